/* One backward variant (config.h). */
#include "sm90/backward/kernel.h"
