/* One forward variant: the build defines ATTN_NAME, ATTN_DTYPE, ATTN_DIM, ATTN_DIM_V, ATTN_ROWS, ATTN_KEYS, ATTN_STAGES,
 * ATTN_Q_SLOTS, ATTN_MASK and ATTN_SCORE from its line of variants.def. */
#define CAUSAL 0
#define GENERAL 1
#define PLAIN 0
#define RICH 1

#ifndef ATTN_TURNS
#define ATTN_TURNS 1
#endif
#ifndef ATTN_POLY
#define ATTN_POLY 0
#endif
#define REGISTERS_PRODUCER (ATTN_ROWS == 256 ? 24 : ATTN_ROWS == 192 ? 32 : 40)
#define REGISTERS_CONSUMER (ATTN_ROWS == 256 ? 120 : ATTN_ROWS == 192 ? 160 : 232)

#include "params.h"
#include "ptx.h"
#include "tile.h"
#include "pipeline.h"
#include "schedule.h"
#include "mask.h"
#include "softmax.h"
#include "store.h"
#include "forward.h"
