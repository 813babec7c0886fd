/* Operations on KV pages, for Hopper. */
#include "common/gpu.h"
#include "common/pages_params.h"
#include "common/pages.h"
