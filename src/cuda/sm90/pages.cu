/* Operations on KV pages, for Hopper. */
#include "common/pages.h"
