/* attn.h: exact attention that never stores the scores in memory (IO-aware).
 *
 *     O = softmax(scale * Q K^T + bias | mask) * V
 *
 * Describe -> plan -> run. An attn_desc says what is wanted and how large it may get; what you do not set is zero.
 * attn_plan_create checks all of it, chooses a kernel and knows its exact workspace. attn_run computes. A plan never
 * changes: any number of threads may run it at the same time, each with a workspace of its own. Running allocates
 * nothing.
 *
 *     attn_desc desc = { .dtype = ATTN_F32, .flags = ATTN_CAUSAL, .batch = 1, .heads_q = 32, .heads_kv = 8,
 *                        .len_q = 4096, .len_kv = 4096, .dim_qk = 128 };
 *     attn_plan *plan;
 *     if (attn_plan_create(&plan, &desc)) die(attn_error());
 *     void *workspace = malloc(attn_plan_workspace(plan));
 *     if (attn_run(plan, &(attn_args){ .q = q, .k = k, .v = v, .o = o }, workspace, NULL)) die(attn_error());
 *
 * Conventions
 *   Tensors are (batch, row, head, dim) with unit stride in dim. Four zero strides mean packed. Any other strides are
 *   taken as they are, in elements. They may be negative; a stride of 0 repeats an input along that axis.
 *   Query head i reads KV head i / (heads_q / heads_kv).
 *   Row i of a sequence has position t = i + len_kv - len_q among its keys (the last row sees the last key), where
 *   len_q and len_kv are the sequence's lengths in this run (lens, cu_lens), not the descriptor's. With ATTN_POSITIONS
 *   t = i + position_q - position_kv.
 *   Score of a visible pair: s = scale q.k; softcap tanh(s / softcap); - alibi |t - j|; + bias; in this order.
 *   LSE is the natural logarithm of a row's sum of exponentials: f32, (batch, head, row), packed. The sum includes the
 *   sink and is taken before dropout. A row without a visible key has O = 0 and LSE = -inf (or its sink).
 *   Keys and values outside a sequence's length, or before its first_kv, are never read into a result.
 *
 *   NaN and infinity show in every row that sees their key, but for a score of -inf, which an infinity in k may give:
 *   its key has the probability 0. A NaN that a mask hides may show, too, since kernels
 *   multiply whole tiles and 0 times NaN is NaN. In the forward this happens with v; a hidden NaN in k reaches no
 *   output. In the backward it happens with q, k, v and grad_o. So what a mask hides must be finite, and memory that
 *   was never written belongs after the lengths (ATTN_LENS_KV, ATTN_VARLEN).
 *
 *   Values nearer to 0 than 2^-126 (about 1.2e-38) are kept. Only the kernels of bf16 pairs (ATTN_ISA_AVX512BF16 and
 *   ATTN_ISA_AMX) lose them: their instructions replace such inputs, products and sums by 0.
 *
 *   Scores may have any magnitude that f32 holds; but where a GPU computes them by neither a decode nor a fallback
 *   kernel, 2^27 at most, of bf16 2^30, of ATTN_E4M3 2^22.
 *
 *   A bias of -inf hides its key; a NaN or infinity in the key's score still shows. A finite bias beyond +-2^126 counts
 *   as +-2^126. Some libraries mask with -FLT_MAX: a row with only such keys gives the mean of v, or where a plan
 *   splits its keys (split-kv) the mean of the parts' means, and its LSE is about -2^126.
 *
 *   ATTN_PAGED: k and v are arrays of pages, (page, slot, head, dim) with the strides k_stride and v_stride: slots
 *   before heads or heads before slots. Key j of a sequence is slot j % page_size of the page whose id is entry j /
 *   page_size of the sequence's page table. Pages lie in any order, and sequences may share them. With ATTN_VARLEN only
 *   q is packed: total_kv is 0 and cu_lens_kv NULL. If lengths, first_kv, causal, window, chunk and prefix hide every
 *   key of a page from every row, neither the page nor its id is read: the id may be anything, such as -1. Any other id
 *   out of range is an error (on a GPU see attn_run). It is never replaced by the nearest valid id, which is somebody
 *   else's page.
 *
 *   ATTN_BACKWARD takes the gradient of o (and of lse) and computes those of q, k, v and, on request, of bias, ALiBi
 *   slopes and sinks. It computes the probabilities again, from q, k and the forward's lse: exact, in O(len) further
 *   memory. A row or a key without a visible pair has gradients of 0. Where a row's |LSE| is above 2^24, f32 holds it
 *   to no better than 1. A GPU then returns gradients of 0 for the row. A CPU computes again what rounding took away:
 *   its gradients are right if lse is what this library's forward wrote for the same keys, else 0.
 *
 *   A sequence may lie in parts, on several devices, say. Forward: each part of the keys is a problem of its own, and
 *   attn_merge puts the results together. With ATTN_POSITIONS and ATTN_DROPOUT_BASES pairs are seen and dropped as in
 *   the whole; masks and bias that count from 0 are passed as slices. One part alone has the sink. Backward: lse and o
 *   are the whole's. The first part writes delta; the others take it (ATTN_DELTA) and need no o. grad_q is a sum over
 *   the parts of the keys, grad_k and grad_v are sums over those of the rows, grad_alibi is one over both: f32
 *   (grad_dtype), added up (ATTN_ADD). Every part of the keys gives all of grad_sink: ask one for it. Of all these a
 *   GPU takes grad_dtype and ATTN_POSITIONS.
 *
 *   ATTN_DETERMINISTIC: the same descriptor and inputs give the same bits. On the CPU this holds for any threads,
 *   affinity, parallel_for and attn_machine_use, and on every machine where the same build of the library (and libm)
 *   takes the same kernel; the choice depends on the instruction set, so fix isa or kernel to compare machines. On a
 *   GPU it holds from run to run, on the same model of GPU and with the same build.
 *   The flag promises nothing about two descriptors that differ. Today a CPU's prefill kernel, asked for by name, gives
 *   a row of a causal problem the same bits alone and in a batch, contiguous and in pages of any size, in chunks of any
 *   number of rows. A decode kernel gives a row the same bits alone and in a batch. They change with pages, chunks and
 *   splits unless the strategy fixes these (kv-tile=16,split-kv=1), and they are never a prefill kernel's. On a GPU a
 *   kernel must be asked for by name and with a strategy: prefill with split-kv=1, decode with split-keys=N.
 *   docs/SAME-BITS.md has a table per kernel; a test checks them.
 *
 * A call that fails returns a status other than ATTN_OK, writes nothing, and leaves a message that
 * names the field, its value and what it takes: attn_error(). Each thread has a message of its own.
 */
#ifndef ATTN_H
#define ATTN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 2
#define ATTN_VERSION_PATCH 0

#if defined(__GNUC__)
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif

/* ---- statuses ------------------------------------------------------------------------------ */

/* X(name, value, meaning); values never change. */
#define ATTN_STATUS_LIST(X)                                                                     \
    X(ATTN_OK, 0, "success")                                                                    \
    X(ATTN_INVALID, 1, "a field or an argument is out of range or contradicts another")         \
    X(ATTN_UNSUPPORTED, 2, "valid, but not built into this library or not run by this machine") \
    X(ATTN_NO_MEMORY, 3, "the system gave no memory or no thread")                              \
    X(ATTN_DEVICE_FAILED, 4, "the driver or the compiler of the device reported an error")      \
    X(ATTN_POOL_FULL, 5, "a pool of KV pages (attn_kv.h) has no page or no sequence left")      \
    X(ATTN_RANK_FAILED, 6, "another rank failed, or what connects ranks (attn_parallel.h)")

typedef enum attn_status {
#define ATTN_STATUS_ENUM(name, value, meaning) name = value,
    ATTN_STATUS_LIST(ATTN_STATUS_ENUM)
#undef ATTN_STATUS_ENUM
} attn_status;

/* The calling thread's last message, "" before the first failure. Never NULL. */
ATTN_API const char *attn_error(void);

/* For libraries that stand on this one: makes `message` the calling thread's last, shortened if need be, and returns
 * status. */
ATTN_API attn_status attn_error_set(attn_status status, const char *message);

/* "ATTN_INVALID" and the like; "unknown status" for any other number. */
ATTN_API const char *attn_status_name(attn_status status);

/* "MAJOR.MINOR.PATCH" of the library at run time. */
ATTN_API const char *attn_version(void);

/* ---- what is wanted ------------------------------------------------------------------------ */

/* ATTN_F64 is for checking gradients: on the CPU one thread computes it pair by pair, straight from the definition, by
 * the kernel "reference". It takes no strategy and no ATTN_OUT_F32. What attn_args declares as float (lse, alibi, sink
 * and the gradients of lse, bias, alibi and sink) is then double: cast the pointers. */
typedef enum attn_dtype {
    ATTN_F32 = 1,
    ATTN_F16 = 2,
    ATTN_BF16 = 3,
    ATTN_F64 = 4,
    ATTN_E4M3 = 5, /* a byte: sign, 4 bits of exponent, 3 of mantissa: 2^-9 to 448, no infinity, NaN is 0x7f or 0xff */
    ATTN_I8 = 7    /* a byte: -128 to 127; of k and v alone (kv_dtype) */
} attn_dtype;

typedef enum attn_direction { ATTN_FORWARD = 0, ATTN_BACKWARD = 1 } attn_direction;

typedef enum attn_device { ATTN_CPU = 0, ATTN_CUDA = 1 } attn_device;

/* Instruction sets of the CPU kernels. ATTN_ISA_AUTO takes the best this machine runs, or what the
 * environment variable ATTN_ISA names. An instruction set includes those above it in this list, of the same
 * architecture: if ATTN_ISA_AMX has no kernel for a problem, one for ATTN_ISA_AVX512 computes it. */
typedef enum attn_isa {
    ATTN_ISA_AUTO = 0,
    ATTN_ISA_PORTABLE = 1,
    ATTN_ISA_AVX2 = 2,       /* and FMA, F16C */
    ATTN_ISA_AVX512 = 3,     /* F, BW, VL, DQ */
    ATTN_ISA_AVX512BF16 = 4, /* and its dot products of bf16 pairs */
    ATTN_ISA_AMX = 5,        /* tiles of bf16 */
    ATTN_ISA_NEON = 6
} attn_isa;

/* attn_desc.flags. A pair is visible if every mask shows it. Only prefix adds pairs: those that it shows need not be
 * shown by causal and window. t is the row's position among the keys. Prefix, intervals, blocks, bits and bias count
 * keys and rows from 0, whatever their positions. */
enum {
    ATTN_CAUSAL = 1 << 0,         /* key j visible iff j <= t */
    ATTN_WINDOW = 1 << 1,         /* t - window_left <= j <= t + window_right; -1 is unbounded */
    ATTN_CHUNK = 1 << 2,          /* floor(t/chunk) == floor(j/chunk); ATTN_POSITIONS: with position_kv added to both */
    ATTN_PREFIX = 1 << 3,         /* keys j < prefix[batch] are visible too, whatever causal and window hide */
    ATTN_INTERVALS = 1 << 4,      /* FlashMask: each key names the rows that do not see it */
    ATTN_BLOCKS = 1 << 5,         /* block-sparse: for each block of rows, a list of visible blocks of keys */
    ATTN_BITS = 1 << 6,           /* one bit per pair */
    ATTN_VARLEN = 1 << 7,         /* sequences packed back to back: cu_lens_q, cu_lens_kv */
    ATTN_LENS_Q = 1 << 8,         /* used query rows of each sequence: lens_q */
    ATTN_LENS_KV = 1 << 9,        /* used keys of each sequence: lens_kv */
    ATTN_SOFTCAP = 1 << 10,       /* s = softcap tanh(s / softcap) */
    ATTN_ALIBI = 1 << 11,         /* s -= alibi[head] |t - j| */
    ATTN_BIAS = 1 << 12,          /* s += bias */
    ATTN_SINK = 1 << 13,          /* one more logit per head, in the denominator only */
    ATTN_DROPOUT = 1 << 14,       /* probabilities dropped at dropout_p, the others scaled up */
    ATTN_OUT_F32 = 1 << 15,       /* o and all gradients are f32 whatever dtype is; without it they have dtype */
    ATTN_DETERMINISTIC = 1 << 16, /* the same bits from run to run and for any number of threads */
    ATTN_PAGED = 1 << 17,         /* k and v lie in pages: page_table; needs ATTN_LENS_KV; forward only */
    ATTN_FIRST_KV = 1 << 18,      /* keys j < first_kv[batch] are not visible (left padding, eviction) */
    ATTN_POSITIONS = 1 << 19,     /* rows and keys have positions of their own: position_q, position_kv */
    ATTN_SCALES_KV = 1 << 20,     /* k and v of one byte are multiplied by k_scale and v_scale */
    ATTN_SCALES_Q = 1 << 21,      /* q of ATTN_E4M3 is multiplied by q_scale */
    ATTN_DROPOUT_BASES = 1 << 22, /* dropout counts from dropout_row, dropout_key, dropout_head; needs ATTN_DROPOUT */
    ATTN_DELTA = 1 << 23,         /* ATTN_BACKWARD: delta is given in place of o */
    ATTN_ADD = 1 << 24            /* ATTN_BACKWARD: gradients, of f32, are added to what is there */
};

/* Runs task(arg, 0) ... task(arg, tasks - 1), each once, at the same time or in turn, and returns when all have ended.
 * For programs that bring their own thread pool. */
typedef void (*attn_parallel_for)(void *context, int tasks, void (*task)(void *arg, int index), void *arg);

/* Extents and strides list (batch, row, head, dim), but for bias: (batch, head, row, key). A field whose flag is
 * missing must be 0. Where 0 stands for a default, the field says so; everywhere else it is the number 0. Where lengths
 * vary, batch, len and total are limits: a smaller batch is filled up with empty sequences, and cu_lens may end before
 * the totals. */
typedef struct attn_desc {
    attn_dtype dtype;         /* of q, and of k and v (but see kv_dtype) */
    attn_direction direction; /* ATTN_FORWARD, or ATTN_BACKWARD for a plan that computes gradients */
    attn_device device;       /* ATTN_CPU, or ATTN_CUDA, which takes no threads, isa or parallel_for */
    uint32_t flags;           /* ATTN_CAUSAL | ... */

    int64_t batch;             /* sequences; 0: none, a run computes nothing */
    int64_t heads_q;           /* a multiple of heads_kv */
    int64_t heads_kv;          /* 0: heads_q */
    int64_t len_q, len_kv;     /* rows and keys of a sequence; where lengths vary, any bound on the longest. With
                                * ATTN_VARLEN it may exceed the totals, which then replace it, not in tables' layouts */
    int64_t total_q, total_kv; /* ATTN_VARLEN: rows of the packed q and k (a batch extent of 1) */
    int64_t dim_qk;            /* 1 to 512 */
    int64_t dim_v;             /* 1 to 512; 0: dim_qk */

    float scale;     /* > 0; 0: 1 / sqrt(dim_qk) */
    float softcap;   /* ATTN_SOFTCAP: > 0 */
    float dropout_p; /* ATTN_DROPOUT: 0 <= p < 1, applied as round(256 p) / 256 */

    int64_t window_left, window_right; /* ATTN_WINDOW: >= -1 */
    int64_t chunk;                     /* ATTN_CHUNK: >= 1 */
    int64_t interval_vectors;          /* ATTN_INTERVALS: 1 or 2 with ATTN_CAUSAL, 2 or 4 without */
    int64_t interval_heads;            /* ATTN_INTERVALS: 1 or heads_kv */
    int64_t block_rows, block_keys;    /* ATTN_BLOCKS: size of a block, >= 1 */
    int64_t block_batch, block_heads;  /* ATTN_BLOCKS: 1 or batch, 1 or heads_q */
    int64_t bits_batch, bits_heads;    /* ATTN_BITS: 1 or batch, 1 or heads_q */
    int64_t alibi_batch;               /* ATTN_ALIBI: 1 or batch */
    attn_dtype bias_dtype;             /* ATTN_BIAS: any; ATTN_F64 if dtype is */
    int64_t bias_extent[4];            /* ATTN_BIAS: each 1 or (batch, heads_q, len_q, len_kv) */
    int64_t bias_stride[4];            /* ATTN_BIAS: all 0: packed; an extent of 1 repeats whatever its stride */

    int64_t q_stride[4], k_stride[4], v_stride[4], o_stride[4]; /* all 0: packed; else dim's is 1 */

    int32_t threads;                /* 0: one for each processor the caller may use; at most 1024 */
    attn_isa isa;                   /* ATTN_ISA_AUTO */
    const char *kernel;             /* NULL: the planner's choice; else a name that `attn kernels` lists */
    attn_parallel_for parallel_for; /* NULL: the library's own threads */
    void *parallel_context;         /* its first argument */

    /* ATTN_BACKWARD; likewise: all 0: packed; else dim's is 1 */
    int64_t grad_o_stride[4], grad_q_stride[4], grad_k_stride[4], grad_v_stride[4];

    /* The share of pairs that a run will see, which a plan cannot know: 0 < share <= 1; 0: not known, taken as 1. The
     * plan's choice and predictions depend on it, results only by rounding. With ATTN_INTERVALS, ATTN_BLOCKS or
     * ATTN_BITS it is the share that these leave of the pairs that the other masks leave. With ATTN_LENS_Q or
     * ATTN_LENS_KV alone it is the share that a run's lengths leave of the pairs of len_q and len_kv: 0.25 for len_kv =
     * 16000 and lens_kv of 4000 on average. */
    double visible_share;

    /* NULL: the planner decides everything. Else what you decide instead, in words with commas or spaces between them:
     * name, no-name or name=N, as in "split-kv=4,pack-gqa" (`attn kernels --strategies` lists them). A word of another
     * device or direction, or one twice, is ATTN_INVALID; what this problem or kernel cannot do, ATTN_UNSUPPORTED.
     * The planner decides the rest. */
    const char *strategy;

    /* ATTN_PAGED: how many pages k (and v) has, and how many slots a page: each at least 1. page_table has room for
     * table_width ids of each sequence. Where table_width is 0, it has room for table_total ids in all, and page_starts
     * says whose they are. */
    int64_t pages, page_size, table_width, table_total;

    /* ATTN_BITS: 0: every key has a bit. Else only the last bits_keys keys of each sequence have one, and the bits hide
     * no key before these: for a tree of draft tokens after a long context. */
    int64_t bits_keys;

    double scale_f64; /* ATTN_F64: > 0 replaces scale, which is then 0 or this rounded to float; 0: scale counts */

    /* Elements of one byte, forward only. The value of an element is what is stored, times its scale; without
     * ATTN_SCALES_KV or ATTN_SCALES_Q the scale is 1. ATTN_CUDA, in kernels of 16 bits: q of ATTN_E4M3 is that value
     * rounded to bf16, and so are k and v of more than 16 packed rows (len_q * heads_q / heads_kv), to f16 where q is:
     * exact without scales, or where these are powers of two. Values of f16 below 2^-14 are multiples of 2^-24.
     * attn_plan_describe says what is widened so. */
    attn_dtype kv_dtype;  /* of k and v; 0: dtype. ATTN_E4M3, or ATTN_I8, which needs a dtype of f32, f16 or bf16 */
    attn_dtype out_dtype; /* of o; 0: dtype, or ATTN_BF16 where dtype is ATTN_E4M3; ATTN_OUT_F32 is ATTN_F32. Also
                           * ATTN_E4M3: o / o_scale is stored, and what exceeds 448 becomes 448 */

    /* Scales are f32, at (sequence, block, head, dim) by strides in elements: an array has as many as its strides tell
     * apart, and strides of 0 mean one for the tensor. A block is scale_rows rows of a sequence, counted from its first
     * one; 0: all of them. With ATTN_PAGED and k_scale_rows (v_scale_rows) above 0 it is (page, block, head, dim):
     * slots of a page, counted from its first one. */
    int64_t q_scale_rows, k_scale_rows; /* 0, 1, 64 or 128 */
    int64_t v_scale_rows;               /* 0 or 1 */
    int64_t q_scale_heads;              /* heads_q; or heads_kv: one for all query heads of a KV head; 0: heads_q */
    int64_t q_scale_stride[4], k_scale_stride[4]; /* [3] is 0 */
    int64_t v_scale_stride[4];                    /* [3], of channels, is 0 where v_scale_rows is 1 */

    attn_dtype grad_dtype; /* ATTN_BACKWARD: of grad_q, grad_k and grad_v: 0: that of o; or ATTN_F32 */

    /* ATTN_CUDA: bytes that the addresses of q, k, v, grad_o, o and a 16-bit bias are multiples of: a power of two to
     * 16; 0: 16, as the fast kernels want it. Of less, the plan has workspace into which a run copies q, k, v and
     * grad_o first, and takes kernels that read a bias anywhere. The CPU's kernels are as fast at any address. */
    int64_t alignment;
} attn_desc;

/* ---- plan ---------------------------------------------------------------------------------- */

typedef struct attn_plan attn_plan;

/* Checks *desc and makes *plan, to be freed with attn_plan_destroy. Writes *plan only on success. ATTN_INVALID,
 * ATTN_UNSUPPORTED or ATTN_NO_MEMORY otherwise. desc_size is sizeof(attn_desc).
 *
 * ATTN_CUDA: the plan is for the calling thread's current CUDA context, whose device must have compute capability 9.0.
 * The first plan in a context that uses a kernel loads it. A library built without nvcc compiles it first, with NVRTC:
 * the environment variable ATTN_NVRTC is the path of libnvrtc or of its folder (unset: the system's usual places). What
 * was compiled is kept on disk, in ATTN_CACHE_DIR, else XDG_CACHE_HOME/libattn, else ~/.cache/libattn. An error of the
 * driver or of NVRTC is ATTN_DEVICE_FAILED. */
ATTN_API attn_status attn_plan_create_sized(attn_plan **plan, const attn_desc *desc, size_t desc_size);
static inline attn_status attn_plan_create(attn_plan **plan, const attn_desc *desc)
{
    return attn_plan_create_sized(plan, desc, sizeof *desc);
}

/* NULL is allowed. No run of the plan may be under way. */
ATTN_API void attn_plan_destroy(attn_plan *plan);

/* Bytes of workspace a run of the plan needs: exact, any alignment will do. NULL: 0, with a message. */
ATTN_API size_t attn_plan_workspace(const attn_plan *plan);

/* The plan in words, line by line: kernel and why, tiles, splits, threads, memory, predicted bytes and
 * time. Writes at most `size` bytes, NUL included, and returns the length of the whole text. With
 * size = 0, text may be NULL. If plan is NULL, or text is NULL and size is not 0, it returns 0 with a message. */
ATTN_API size_t attn_plan_describe(const attn_plan *plan, char *text, size_t size);

/* The plan in numbers. Strings live as long as the plan. On a GPU the forward may split the keys of some rows only;
 * the backward splits not the keys but the query heads that share them, and adds up gradients of k and v.
 * ATTN_INVALID: an argument is NULL. */
typedef struct attn_plan_info {
    const char *kernel; /* as `attn kernels` lists it */
    const char *isa;    /* as attn_isa_name; of a GPU "sm_90a" */
    const char *why;    /* the reason for the kernel, one sentence */
    int32_t threads;    /* 0 on a GPU */
    int32_t splits;     /* split-KV: parts the keys are split into, combined by LSE (backward: dQ added); 1: none */
    int64_t q_tile;     /* rows of a Q tile */
    int64_t kv_tile;    /* keys of a KV tile */
    int64_t packed_kv_heads;  /* KV heads held packed at once */
    uint64_t workspace_bytes; /* all of the workspace */
    uint64_t packed_kv_bytes; /* its part that holds packed keys and values */
    double pairs;             /* visible pairs predicted, over batch and heads */
    double flops;             /* 2 pairs (dim_qk + dim_v); ATTN_BACKWARD: 2.5 times as many */
    double memory_bytes;      /* predicted traffic to and from memory */
    double cache_bytes;       /* predicted traffic between L2 and L1 */
    double seconds;           /* predicted time */
    const char *strategy;     /* every decision; as attn_desc.strategy, with the same kernel, it gives this plan */
} attn_plan_info;

ATTN_API attn_status attn_plan_get_info_sized(const attn_plan *plan, attn_plan_info *info, size_t info_size);
static inline attn_status attn_plan_get_info(const attn_plan *plan, attn_plan_info *info)
{
    return attn_plan_get_info_sized(plan, info, sizeof *info);
}

/* ---- run ----------------------------------------------------------------------------------- */

/* Where k and v of one run lie. The run is then one of a descriptor with this len_kv, k_stride and v_stride, and with
 * everything else of the plan's: whatever is laid out by len_kv (intervals, bits, block lists), and bounded by it
 * (lens_kv, prefix, first_kv), is so by this one. For a cache that grows by a key per token, whose tensors have other
 * strides each time: one plan for len_kv = 1024 serves every run of fewer keys. */
typedef struct attn_kv_layout {
    int64_t len_kv;                   /* 0 to the descriptor's; not below bits_keys */
    int64_t k_stride[4], v_stride[4]; /* as in attn_desc: all 0: packed; else dim's is 1 */
} attn_kv_layout;

/* Tensors and, where a flag asks for them, lengths, masks and what changes scores. A pointer that is set although its
 * flag is missing is ATTN_INVALID, not ignored: a forgotten ATTN_LENS_KV must not change results silently. Two
 * exceptions: a forward ignores all grad_*, so that one attn_args serves both directions, and without ATTN_DROPOUT the
 * numbers seed and seed_offset mean nothing. The bytes from the first to the last element of an output may not overlap
 * those of any input or of another output. Outputs are o and lse. In the backward these two are inputs, and the
 * gradients are the outputs. */
typedef struct attn_args {
    const void *q; /* (batch, len_q, heads_q, dim_qk); ATTN_VARLEN: (1, total_q, ...) */
    const void *k; /* (batch, len_kv, heads_kv, dim_qk); ATTN_VARLEN: (1, total_kv, ...) */
    const void *v; /* (batch, len_kv, heads_kv, dim_v); likewise */
    void *o;       /* (batch, len_q, heads_q, dim_v); rows outside every sequence are not written */
    float *lse;    /* (batch, heads_q, len_q), ATTN_VARLEN: (heads_q, total_q); or NULL (not in the backward) */

    const int32_t *cu_lens_q, *cu_lens_kv; /* ATTN_VARLEN: (batch + 1): starts, then the end; from 0, never falling */
    const int32_t *lens_q;  /* ATTN_LENS_Q: (batch): 0 to len_q, or to the sequence's share of cu_lens_q */
    const int32_t *lens_kv; /* ATTN_LENS_KV: (batch): 0 to len_kv, or to the sequence's share of cu_lens_kv */
    const int32_t *prefix;  /* ATTN_PREFIX: (batch): 0 to len_kv, or to total_kv if that is less */

    /* ATTN_INTERVALS: (batch, interval_heads, len_kv, interval_vectors), each 0 to len_q. Key j is hidden from rows
     * [LTS, LTE) and [UTS, UTE): start and end in the lower and in the upper triangle of the scores. Vectors: causal 1:
     * LTS (LTE = len_q); causal 2: LTS, LTE; 2: LTS, UTE (LTE = len_q, UTS = 0); 4: LTS, LTE, UTS, UTE. (FlashMask,
     * arXiv 2410.01359) */
    const int32_t *intervals;

    /* ATTN_BLOCKS: there are R = ceil(len_q / block_rows) row blocks and C = ceil(len_kv / block_keys) key blocks. Each
     * row block has a list of visible key blocks, rising, of which the first `count` numbers are read: counts
     * (block_batch, block_heads, R), lists (block_batch, block_heads, R, C). A full block is seen by all of its rows, a
     * partial one as ATTN_BITS says (or whole, without bits). The two arrays of either kind may be NULL. */
    const int32_t *block_full_count, *block_full;
    const int32_t *block_partial_count, *block_partial;

    /* ATTN_BITS: (bits_batch, bits_heads, len_q, ceil(len_kv / 8)) bytes; bit j % 8 of byte j / 8: key j is visible.
     * With bits_keys: ceil(bits_keys / 8) bytes; bit j stands for the sequence's key lens_kv - bits_keys + j. */
    const uint8_t *bits;

    const float *alibi;   /* ATTN_ALIBI: (alibi_batch, heads_q) slopes, finite */
    const void *bias;     /* ATTN_BIAS: as bias_extent says */
    const float *sink;    /* ATTN_SINK: (heads_q) logits, in units of the scaled score */
    uint64_t seed;        /* ATTN_DROPOUT: Philox4x32-10's key */
    uint32_t seed_offset; /* ATTN_DROPOUT: one of its counters: another one per step (and layer) */

    /* ATTN_BACKWARD. Gradients are written; with ATTN_ADD they are added to what is there. grad_bias, grad_alibi and
     * grad_sink are written whole, with 0 where no pair contributes. Of the others, rows outside every sequence are not
     * touched. */
    const void *grad_o;    /* as o */
    const float *grad_lse; /* as lse; NULL: 0 */
    void *grad_q;          /* as q, of grad_dtype */
    void *grad_k;          /* as k; query heads that share a KV head are summed */
    void *grad_v;          /* as v */
    float *grad_bias;      /* ATTN_BIAS: bias_extent, packed, summed over what repeats; or NULL */
    float *grad_alibi;     /* ATTN_ALIBI: (alibi_batch, heads_q), summed over what repeats; or NULL */
    float *grad_sink;      /* ATTN_SINK: (heads_q), summed over the batch; or NULL */

    /* ATTN_DROPOUT: each points to one number, read when the run computes, or is NULL. ATTN_CUDA: to device memory, so
     * that each replay of a captured graph can drop other pairs; the backward must find what its forward found. Any
     * 64-bit integers will do, signed ones too, as PyTorch keeps its generator's seed and offset. */
    const uint64_t *seed_at;        /* in place of seed */
    const uint64_t *seed_offset_at; /* its low 32 bits are added to seed_offset, modulo 2^32 */

    /* ATTN_PAGED: page ids, 0 to pages - 1: (batch, table_width). Where table_width is 0, sequence b has the ids from
     * page_starts[b] to before page_starts[b + 1]. page_starts (batch + 1) begins with 0, never falls and ends at
     * table_total at most. */
    const int32_t *page_table, *page_starts;

    const int32_t *first_kv; /* ATTN_FIRST_KV: (batch): 0 to len_kv, or to total_kv if that is less */

    /* ATTN_POSITIONS: (batch) each, -2^59 to 2^59: the position of row 0 and of key 0. Causal, window, chunk and ALiBi
     * use them in place of len_kv - len_q and 0, for example where a cache was cut in front. position_kv = NULL: 0. */
    const int64_t *position_q, *position_kv;

    /* ATTN_PAGED, ATTN_CUDA: a word in device memory that the caller clears: see attn_run. NULL: nobody is told. On the
     * CPU it is NULL: there the run fails instead. */
    uint32_t *fault;

    /* As the strides of desc say. Any numbers: NaN shows in the rows that its elements reach. An infinity in v_scale,
     * or in a k_scale of blocks (k_scale_rows above 0), is that of the probability times v, or of the score: it
     * multiplies q.k of what is stored, and not element by element. In q_scale, or in a k_scale of all keys, it may
     * show as NaN in every row that it reaches, for some kernels multiply q by these. */
    const float *q_scale;           /* ATTN_SCALES_Q */
    const float *k_scale, *v_scale; /* ATTN_SCALES_KV; either may be NULL: 1 */
    const float *o_scale;           /* out_dtype = ATTN_E4M3: one number; NULL: 1 */

    /* ATTN_DROPOUT_BASES: (batch) each. Dropout counts pair (i, j) of head h as row dropout_row[b] + i, key
     * dropout_key[b] + j and head dropout_head[b] + h; without the flag as i, j and b heads_q + h. So parts of a
     * problem drop the pairs that the whole drops. Bases of rows and keys are multiples of 16; rows and keys end at
     * 2^34, heads at 2^32. */
    const int64_t *dropout_row, *dropout_key, *dropout_head;

    /* ATTN_BACKWARD: as lse: a row's sum of grad_o o, minus its grad_lse; 0 where LSE is -inf. With ATTN_DELTA it is
     * given, and o and grad_lse, which are in it, are NULL. Without, it is written, or NULL. A delta, given or written,
     * says that lse and o may be of more keys than are here: none of them is computed again. */
    float *delta;

    /* NULL: k and v lie as the descriptor says. Else as this struct says, which the host reads during the call. A
     * forward without ATTN_VARLEN and ATTN_PAGED takes it; a bias has an extent of 1 or of this len_kv along keys.
     * ATTN_CUDA: the decode kernels and the fallback kernels take it. ATTN_UNSUPPORTED: another kernel, whose plan
     * holds where k and v lie. */
    const attn_kv_layout *kv_layout;
} attn_args;

/* Computes *args as the plan says. workspace: attn_plan_workspace(plan) bytes that no other run uses and that hold no
 * element of an array of *args; NULL where that is 0. It may lie between the elements of one. With ATTN_PAGED all
 * pages of k and v are elements, also those that no table names. stream: NULL on the CPU. ATTN_INVALID for bad lengths,
 * tables and pointers, plan or args = NULL.
 *
 * ATTN_CUDA: pointers are of device memory, and the plan's context is current. stream is a CUstream of it (a
 * cudaStream_t; NULL: the default stream), which may be capturing a graph. The call puts the run into the stream and
 * returns. Kernels read lengths and tables, and replace what is out of range by the nearest value in range: of a
 * sequence that cu_lens makes longer than len, the first len rows or keys count, and rows behind are not written. With
 * ATTN_PAGED they hide keys instead. If lens_kv or page_starts of a sequence is out of range, its rows see no key. If a
 * page id is out of range, its page is hidden, and rows that need the page may see no other key either. *fault becomes
 * 1, and stays so. All other rows are computed.
 *
 * ATTN_CUDA, speed: a fallback kernel, one warp per row, computes what the fast kernels do not take. On an H200 it
 * stays below 1 TFLOP/s; the fast kernels reach hundreds. attn_plan_describe names kernel, tensors and time. The
 * fallback computes
 *   - f32, and head dims above 256
 *   - q, k, v, o or grad_o at an address that is no multiple of 16 bytes (cudaMalloc's are), where attn_desc.alignment
 *     does not say so; but for what is copied first, as attn_plan_describe says
 *   - ATTN_CHUNK of ATTN_POSITIONS, with more than 16 packed rows (len_q * heads_q / heads_kv)
 *   - ATTN_PAGED: pages whose strides are no multiples of 8 elements, or negative, or of such an alignment
 * Other tensors with such strides are copied first, which takes workspace and time. With more than 16 packed rows, k
 * and v of a byte under 16-bit queries are copied too, into 16 bits, however they lie; the workspace has room for
 * len_kv keys of each sequence, or for a page per entry of the page table. So is q of ATTN_E4M3 into bf16, with k and
 * v, where no kernel of ATTN_E4M3 takes the problem or one of bf16 is predicted faster. Where o is ATTN_E4M3, or f16
 * from these, its results lie in the workspace first, as f32. Pages are read fastest where page_size is a multiple
 * of 8. */
ATTN_API attn_status attn_run_sized(const attn_plan *plan, const attn_args *args, size_t args_size, void *workspace,
                                    void *stream);
static inline attn_status attn_run(const attn_plan *plan, const attn_args *args, void *workspace, void *stream)
{
    return attn_run_sized(plan, args, sizeof *args, workspace, stream);
}

/* Checks *args as attn_run does, but for the workspace, and computes nothing: ask before other work that must not be
 * done if this run fails, such as an append to the pages that it reads. ATTN_CUDA: no array is read. */
ATTN_API attn_status attn_check_sized(const attn_plan *plan, const attn_args *args, size_t args_size);
static inline attn_status attn_check(const attn_plan *plan, const attn_args *args)
{
    return attn_check_sized(plan, args, sizeof *args);
}

/* ---- merge --------------------------------------------------------------------------------- */

/* Attention to keys in parts (a prefix that sequences share and each one's own keys, say), merged by the parts' LSEs:
 *
 *     m = max lse_i    w_i = exp(lse_i - m)    o = sum w_i o_i / sum w_i    lse = m + ln sum w_i
 *
 * (Milakov & Gimelshein, arXiv 1805.02867.) Each key belongs to one part, and so does a sink. A part with an LSE of
 * -inf is empty: its o is not read. Where all parts are empty, O = 0 and LSE = -inf. An LSE of NaN or +inf shows in O
 * and LSE.
 *
 * Describe -> plan -> run, as above. Running allocates nothing and needs no workspace. */
typedef struct attn_merge_desc {
    attn_dtype dtype;                /* of the parts: ATTN_F32, ATTN_F16, ATTN_BF16 */
    attn_dtype out_dtype;            /* of o; 0: dtype */
    attn_device device;              /* ATTN_CPU, or ATTN_CUDA, which takes no threads or parallel_for */
    int32_t parts;                   /* 1 to 64 */
    int64_t batch, rows, heads, dim; /* dim: 1 to 512; packed sequences: a batch of 1 */

    int64_t part_stride[4], o_stride[4]; /* (batch, row, head, dim), as in attn_desc: all 0: packed; else dim's is 1 */

    int32_t threads;                /* 0: one for each processor the caller may use; at most 1024 */
    attn_parallel_for parallel_for; /* NULL: the library's own threads */
    void *parallel_context;         /* its first argument */

    /* The type and the strides of part 0, where it is not as the others: a sum in f32 of parts of 16 bits, say. 0: it
     * is. On the CPU alone. */
    attn_dtype first_dtype;
    int64_t first_stride[4]; /* first_dtype: as part_stride */

    int32_t sums; /* 1: o is the sum of the parts, as of gradients: part_lse and lse are NULL */
} attn_merge_desc;

typedef struct attn_merge_plan attn_merge_plan;

/* As attn_plan_create and attn_plan_destroy. */
ATTN_API attn_status attn_merge_plan_create_sized(attn_merge_plan **plan, const attn_merge_desc *desc,
                                                  size_t desc_size);
static inline attn_status attn_merge_plan_create(attn_merge_plan **plan, const attn_merge_desc *desc)
{
    return attn_merge_plan_create_sized(plan, desc, sizeof *desc);
}
ATTN_API void attn_merge_plan_destroy(attn_merge_plan *plan);

/* The arrays of addresses are the host's and are read by the call. o may be one of the parts' o if out_dtype and
 * strides are its own; lse may be one of the parts' LSEs. Otherwise an output overlaps no input. */
typedef struct attn_merge_args {
    const void *const *part_o;    /* (parts) addresses, each of (batch, rows, heads, dim) */
    const float *const *part_lse; /* (parts) addresses, each of (batch, heads, rows), packed, as attn_run writes it */
    void *o;                      /* (batch, rows, heads, dim) */
    float *lse;                   /* (batch, heads, rows), packed; or NULL */
} attn_merge_args;

/* Merges *args as the plan says. stream: NULL on the CPU. ATTN_INVALID for bad pointers, plan or args = NULL.
 *
 * ATTN_CUDA: the plan is for the context in which it was made. All pointers but the two arrays of addresses are of
 * device memory. The call puts one kernel into the stream, which may be capturing a graph, and returns. */
ATTN_API attn_status attn_merge_run_sized(const attn_merge_plan *plan, const attn_merge_args *args, size_t args_size,
                                          void *stream);
static inline attn_status attn_merge_run(const attn_merge_plan *plan, const attn_merge_args *args, void *stream)
{
    return attn_merge_run_sized(plan, args, sizeof *args, stream);
}

/* ---- this machine -------------------------------------------------------------------------- */

/* A plan uses what is known of the machine: bandwidths, rates, what each kernel costs. The library knows some
 * processors and GPUs; `attn machine --measure` measures this one and writes a file. After this call, plans for the
 * device that the file at `path` describes use that file. path may also be the name of a built-in machine; NULL: the
 * library chooses again. ATTN_INVALID: the file cannot be read, or something in it is wrong: the message names
 * FILE:LINE:COLUMN. */
ATTN_API attn_status attn_machine_use(const char *path);

/* What plans for a device go by, of the GPU of the current context or the first one; 0: not known. sustained: the clock
 * under a load of many seconds, which power limits. link: to another device, each as it receives as much. By kernels,
 * as NCCL does, beside which computing takes link_beside times as long; by copy engines. ATTN_INVALID: info is NULL, or
 * there is no such device; ATTN_UNSUPPORTED: no GPU is here. */
typedef struct attn_machine_info {
    double clock, sustained; /* hertz */
    double memory;           /* bytes per second */
    double link_send, link_put, link_beside;
} attn_machine_info;

ATTN_API attn_status attn_machine_get_info_sized(attn_device device, attn_machine_info *info, size_t info_size);
static inline attn_status attn_machine_get_info(attn_device device, attn_machine_info *info)
{
    return attn_machine_get_info_sized(device, info, sizeof *info);
}

/* Nonzero if this machine and this build run the instruction set. */
ATTN_API int attn_isa_available(attn_isa isa);

/* "auto", "portable", "avx2", "avx512", "avx512bf16", "amx", "neon"; NULL for any other number. */
ATTN_API const char *attn_isa_name(attn_isa isa);

#ifdef __cplusplus
}
#endif

#endif
