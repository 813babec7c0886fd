/* One forward variant: the build defines ATTN_NAME, ATTN_DTYPE, ATTN_DIM, ATTN_DIM_V, ATTN_ROWS, ATTN_KEYS,
 * ATTN_STAGES, ATTN_Q_SLOTS, ATTN_SETS, ATTN_MASK and ATTN_SCORE from its row of variants.txt. */
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

#include "sm90/params.h"
#include "common/gpu.h"
#include "common/sequence.h"
#include "common/mask.h"
#include "common/score.h"
#include "common/dropout.h"
#include "sm90/common/ptx.h"
#include "sm90/common/wgmma.h"
#include "sm90/common/tile.h"
#include "sm90/common/pipeline.h"
#include "sm90/common/store.h"
#include "sm90/forward/tile.h"
#include "sm90/forward/schedule.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/rows.h"
#if ATTN_MASK == CAUSAL
#include "sm90/forward/mask_causal.h"
#else
#include "sm90/forward/mask_general.h"
#endif
#include "sm90/forward/softmax.h"
#include "sm90/forward/score.h"
#include "sm90/forward/epilogue.h"
#include "sm90/forward/load.h"
#include "sm90/forward/common.h"
#if BY_TURNS
#include "sm90/forward/turns.h"
#endif
#include "sm90/forward/forward.h"
