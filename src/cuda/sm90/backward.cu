/* One backward variant: the build defines ATTN_NAME, ATTN_DTYPE, ATTN_DIM, ATTN_DIM_V, ATTN_BLOCK_KEYS, ATTN_STAGES,
 * ATTN_CLUSTER, ATTN_SUMS, ATTN_MASK and ATTN_SCORE from its line of backward_variants.def. */
#define CAUSAL 0
#define GENERAL 1
#define PLAIN 0
#define RICH 1
#define ADDED 0
#define FOLDED 1

/* Of a thread; together what the block is started with: 512 threads of 128, 384 of 168. A GENERAL producer walks masks.
 */
#if ATTN_BLOCK_KEYS == 128 && (ATTN_MASK == GENERAL || ATTN_DIM > 64)
#define REGISTERS_PRODUCER 32
#define REGISTERS_CONSUMER 208
#define REGISTERS_DQ 64
#elif ATTN_BLOCK_KEYS == 128
#define REGISTERS_PRODUCER 24
#define REGISTERS_CONSUMER 208
#define REGISTERS_DQ 72
#elif ATTN_MASK == GENERAL || ATTN_CLUSTER == 2
#define REGISTERS_PRODUCER 40
#define REGISTERS_CONSUMER 232
#else
#define REGISTERS_PRODUCER 24
#define REGISTERS_CONSUMER 240
#endif

#include "params.h"
#include "backward_params.h"
#include "ptx.h"
#include "tile.h"
#include "schedule.h"
#include "pipeline.h"
#include "mask.h"
#include "score.h"
#include "store.h"
#include "backward_lines.h"
#include "backward_tile.h"
#include "backward_places.h"
#include "backward_mask.h"
#include "backward_score.h"
#include "backward_load.h"
#include "backward_turns.h"
#include "backward_softmax.h"
#if ATTN_BLOCK_KEYS == 64
#include "backward_wide.h"
#if ATTN_CLUSTER == 2
#include "backward_pair.h"
#else
#include "backward_alone.h"
#endif
#else
#include "backward_narrow.h"
#endif
#include "backward.h"
