/* One backward variant: the build defines ATTN_NAME, ATTN_DTYPE, ATTN_DIM, ATTN_DIM_V, ATTN_BLOCK_KEYS, ATTN_STAGES,
 * ATTN_CLUSTER, ATTN_SUMS, ATTN_MASK and ATTN_SCORE from its row of variants.txt. */
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

#include "sm90/params.h"
#include "sm90/backward_params.h"
#include "sm90/common/ptx.h"
#include "sm90/common/wgmma.h"
#include "sm90/common/tile.h"
#include "common/sequence.h"
#include "sm90/common/pipeline.h"
#include "common/mask.h"
#include "common/score.h"
#include "common/dropout.h"
#include "sm90/common/store.h"
#include "sm90/backward/lines.h"
#include "sm90/backward/tile.h"
#include "sm90/backward/places.h"
#include "sm90/backward/mask.h"
#include "sm90/backward/score.h"
#include "sm90/backward/load.h"
#include "sm90/backward/turns.h"
#include "sm90/backward/softmax.h"
#if ATTN_BLOCK_KEYS == 64
#include "sm90/backward/wide.h"
#if ATTN_CLUSTER == 2
#include "sm90/backward/pair.h"
#else
#include "sm90/backward/alone.h"
#endif
#else
#include "sm90/backward/narrow.h"
#endif
#include "sm90/backward/backward.h"
