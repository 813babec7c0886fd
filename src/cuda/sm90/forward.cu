/* One forward variant: the build defines ATTN_NAME, ATTN_DTYPE, ATTN_DIM, ATTN_DIM_V, ATTN_ROWS, ATTN_KEYS,
 * ATTN_STAGES, ATTN_Q_SLOTS, ATTN_SETS, ATTN_MASK and ATTN_SCORE from its line of variants.def. */
#define CAUSAL 0
#define GENERAL 1
#define PLAIN 0
#define RICH 1
#define TWO 0
#define ONE 1
#define TURNS 2

/* Of a thread; together no more than what the block is started with: 640 threads of 96, 512 of 128, 384 of 168. A
 * GENERAL producer walks masks. */
#if ATTN_ROWS == 256
#define REGISTERS_PRODUCER 24
#define REGISTERS_CONSUMER 112
#elif ATTN_ROWS == 192
#define REGISTERS_PRODUCER 32
#define REGISTERS_CONSUMER 160
#elif ATTN_MASK == GENERAL
#define REGISTERS_PRODUCER 56
#define REGISTERS_CONSUMER 224
#else
#define REGISTERS_PRODUCER 40
#define REGISTERS_CONSUMER 232
#endif

#include "params.h"
#include "ptx.h"
#include "tile.h"
#include "schedule.h"
#include "pipeline.h"
#include "mask.h"
#include "softmax.h"
#include "score.h"
#include "store.h"
#include "forward_load.h"
#include "forward_common.h"
#if BY_TURNS
#include "forward_turns.h"
#endif
#include "forward.h"
