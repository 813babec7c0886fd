/* attn_parallel.h: attention whose rows and keys are spread over ranks. Library: libattn_parallel, beside libattn.
 *
 * The ranks together compute the problem of one attn_desc, forward or backward. Each holds some rows of q, o and lse
 * and the same share of k and v. Ranks are processes or threads; what carries bytes between them is an attn_engine: a
 * table of functions over MPI, torch.distributed or whatever the program has.
 *
 *     attn_desc whole = { .dtype = ATTN_BF16, .flags = ATTN_CAUSAL, .batch = 1, .heads_q = 32, .heads_kv = 8,
 *                         .len_q = 1 << 20, .len_kv = 1 << 20, .dim_qk = 128 };
 *     attn_parallel_desc how = { .layout = ATTN_ZIGZAG };
 *     attn_parallel_plan *plan;
 *     if (attn_parallel_plan_create(&plan, &whole, &how, engine)) die(attn_error());
 *     attn_parallel_info info;
 *     attn_parallel_plan_get_info(plan, &info); // whose rows are here; bytes of workspace
 *     if (attn_parallel_run(plan, &(attn_args){ .q = q, .k = k, .v = v, .o = o }, workspace, NULL)) die(attn_error());
 *
 * Every rank makes the same plan and the same runs, in the same order. Before data moves, the ranks tell each other
 * whether their arguments are valid and their problems the same. If one rank's are not, all ranks' calls fail: its own
 * with the reason, the others' with ATTN_RANK_FAILED. A message is attn_error()'s, as for libattn.
 */
#ifndef ATTN_PARALLEL_H
#define ATTN_PARALLEL_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- engine -------------------------------------------------------------------------------- */

/* What carries bytes between ranks. Functions return 0, or anything else for a failure that the engine cannot repair.
 * Buffers are contiguous, counted in bytes or floats, and of any alignment that libattn takes. stream is the run's.
 *
 * exchange posts a message to rank `to` and the receipt of one from rank `from`; both are other ranks. A rank of -1
 * (then NULL and 0 bytes): none is sent, or received. It may return before anything has moved. Messages from one rank
 * to another arrive in the order in which they were posted, and sender and receiver name the same number of bytes. wait
 * returns when all that was posted has arrived and has been taken: the buffers are the caller's again. all_gather:
 * receive, ranks * bytes, gets every rank's `send`, in the order of ranks. reduce_scatter: receive, count floats, gets
 * the sum over all ranks of floats rank * count ... of `send`, which has ranks * count. The sum's order depends on the
 * ranks alone, so that a repetition gives the same bits. abort: this rank gives up in the middle of a run; the others'
 * calls should fail rather than wait. NULL: nothing is told.
 *
 * A plan's runs use the engine one call at a time.
 *
 * device = ATTN_CUDA: of plans for GPUs. Buffers are device memory, and the functions put their work into the stream
 * and return: what was put there before is done before it, and what comes after wait, all_gather or reduce_scatter is
 * done after it. Exchanges between two waits are posted by sender and receiver in the same order for each pair of
 * ranks, and need not begin before the wait. tell is all_gather of host memory: it returns when that is there. NULL:
 * all_gather does so.
 *
 * window and put, both or none: a rank can write into others' memory. window gives memory of this rank, `bytes` or
 * more, that all ranks can write to: a call of all ranks, which ask for the same, and the same memory again unless it
 * is too small. Runs that use it come one after another. put writes `send` to byte `at` of the window of rank `to`.
 * Between ranks a wait is then a barrier: what all of them have put before it has arrived after it. */
typedef struct attn_engine {
    void *context; /* the functions' first argument */
    int32_t rank, ranks;
    int (*exchange)(void *context, int32_t to, const void *send, size_t send_bytes, int32_t from, void *receive,
                    size_t receive_bytes, void *stream);
    int (*wait)(void *context, void *stream);
    int (*all_gather)(void *context, const void *send, void *receive, size_t bytes, void *stream);
    int (*reduce_scatter)(void *context, const float *send, float *receive, size_t count, void *stream);
    void (*abort)(void *context);
    attn_device device; /* where buffers are */
    int (*tell)(void *context, const void *send, void *receive, size_t bytes);
    int (*window)(void *context, size_t bytes, void **base);
    int (*put)(void *context, int32_t to, size_t at, const void *send, size_t bytes, void *stream);
} attn_engine;

/* An engine whose ranks are threads of one process, for tests and for trying things out. The caller starts the threads;
 * each rank's calls come from one thread at a time. A rank that the others wait for longer than `timeout` seconds ends
 * their calls with an error, and every later call of the group too. ranks: 1 to 1024; timeout > 0. */
typedef struct attn_thread_group attn_thread_group;
ATTN_API attn_status attn_thread_group_create(attn_thread_group **group, int32_t ranks, double timeout);
/* NULL is allowed. No rank may be in a call. */
ATTN_API void attn_thread_group_destroy(attn_thread_group *group);
/* Rank `rank`'s table, which lives as long as the group; NULL, with a message, for a rank that it has not. */
ATTN_API const attn_engine *attn_thread_group_engine(const attn_thread_group *group, int32_t rank);

/* The engine over NCCL, for GPUs. libnccl.so.2 is found when running: the one that the process has loaded, or else the
 * system's. ATTN_UNSUPPORTED: there is none.
 *
 * communicator: an ncclComm_t of that library, for the current device, which stays the caller's and outlives the
 * engine: two libraries in one process do not know each other's. timeout: seconds; see abort below; 0: none. */
ATTN_API attn_status attn_nccl_engine_create(attn_engine **engine, void *communicator, double timeout);

/* The same with a communicator of its own, for the current device: a call of all ranks. id: what attn_nccl_id wrote on
 * one of them. */
enum { ATTN_NCCL_ID_BYTES = 128 };
ATTN_API attn_status attn_nccl_id(char id[ATTN_NCCL_ID_BYTES]);
ATTN_API attn_status attn_nccl_engine_join(attn_engine **engine, const char id[ATTN_NCCL_ID_BYTES], int32_t rank,
                                           int32_t ranks, double timeout);

/* NULL is allowed. Nothing that the engine has put into streams may be under way. */
ATTN_API void attn_nccl_engine_destroy(attn_engine *engine);

/* An engine for ranks that are processes of one host whose GPUs reach each other's memory (NVLink, PCIe): keys and
 * gradients are copied by the GPUs' copy engines, which need no processor, so that they move at any time beside
 * kernels. Everything else is done by the engine `by`, which is of the same ranks and outlives it. A call of all ranks.
 * ATTN_UNSUPPORTED, on all of them, where some GPU does not reach another's memory. timeout: as above. */
ATTN_API attn_status attn_peer_engine_create(attn_engine **engine, const attn_engine *by, double timeout);
ATTN_API void attn_peer_engine_destroy(attn_engine *engine);

/* ---- what is wanted ------------------------------------------------------------------------ */

/* Which rows and keys a rank holds. Both are cut into chunks of the same number of rows, a multiple of 16; the last
 * chunks may be shorter or empty.
 *   ATTN_CONTIGUOUS: a chunk per rank, in order.
 *   ATTN_ZIGZAG: two per rank: rank r holds chunks r and 2 ranks - 1 - r, in this order. Under a causal mask every rank
 *   then has the same work. */
typedef enum attn_layout { ATTN_CONTIGUOUS = 0, ATTN_ZIGZAG = 1 } attn_layout;

/* ATTN_ALL_GATHER: every rank gets all keys and values first. Forward: one run over all keys for each chunk of rows.
 *   Backward: f32 gradients of all keys, reduced and scattered. Memory grows with all keys.
 * ATTN_RING: in step h a rank computes on the keys of the rank h before it, while those for the next step arrive.
 * Results are merged in f32 by their LSEs; backward: f32 gradients of the keys go home while the next step computes.
 * Chunks that no row of the receiver sees are not sent. Memory grows with the rank's own rows and keys.
 * ATTN_SCHEDULE_AUTO: the one that is predicted faster, of those that keep within `memory`. */
typedef enum attn_schedule { ATTN_SCHEDULE_AUTO = 0, ATTN_ALL_GATHER = 1, ATTN_RING = 2 } attn_schedule;

typedef struct attn_parallel_desc {
    int32_t ranks, rank; /* without an engine: 1 to 1024, and 0 to ranks - 1; with one: both 0, or the engine's */
    attn_layout layout;
    attn_schedule schedule;
    uint64_t memory; /* bytes that a rank's workspace may take; 0: any number */
    double link;     /* bytes per second that a rank sends, and receives at the same time; 0: as the machine's file
                      * says (attn_machine_info), else 1e10, between GPUs 1.5e11 */
    int32_t pieces;  /* ATTN_CUDA: into so many pieces the KV heads are cut, of which one is computed while others are
                      * on their way; one a head at most. Of two or more the first is smaller, and in a backward of
                      * three or more the last too, as far as their runs have rows and heads enough; the others
                      * differ by one head at most. In a backward more pieces take less memory. 0: chosen, one or
                      * two, in a backward up to three, or more where rows are very many */
} attn_parallel_desc;

/* ---- plan ---------------------------------------------------------------------------------- */

typedef struct attn_parallel_plan attn_parallel_plan;

/* desc: the whole problem, the same on every rank: lengths and totals are the whole's. Strides, threads, kernel and
 * strategy are this rank's: strides lay out its own tensors (batch, its rows, head, dim), of which the second chunk's
 * rows follow the first's.
 *
 * Taken are dtypes f32, f16 and bf16, ATTN_CPU, and of the flags ATTN_CAUSAL, ATTN_WINDOW, ATTN_CHUNK, ATTN_PREFIX,
 * ATTN_INTERVALS, ATTN_VARLEN (without ATTN_DROPOUT), ATTN_LENS_Q, ATTN_LENS_KV, ATTN_SOFTCAP, ATTN_ALIBI, ATTN_SINK,
 * ATTN_DROPOUT, ATTN_OUT_F32, ATTN_DETERMINISTIC, ATTN_FIRST_KV and ATTN_POSITIONS. With ATTN_VARLEN the packed rows
 * are cut, wherever sequences begin. Everything else is ATTN_UNSUPPORTED.
 *
 * ATTN_CUDA: for the current context, with an engine for it. Taken are ATTN_ALL_GATHER, and of the flags ATTN_CAUSAL,
 * ATTN_WINDOW (with ATTN_CAUSAL, or window_right = 0), ATTN_SOFTCAP, ATTN_ALIBI (with ATTN_CAUSAL), ATTN_SINK,
 * ATTN_OUT_F32 and ATTN_DETERMINISTIC.
 *
 * engine: its table is copied; the call is collective. NULL: a plan that only predicts, and cannot run. */
ATTN_API attn_status attn_parallel_plan_create_sized(attn_parallel_plan **plan, const attn_desc *desc, size_t desc_size,
                                                     const attn_parallel_desc *how, size_t how_size,
                                                     const attn_engine *engine, size_t engine_size);
static inline attn_status attn_parallel_plan_create(attn_parallel_plan **plan, const attn_desc *desc,
                                                    const attn_parallel_desc *how, const attn_engine *engine)
{
    return attn_parallel_plan_create_sized(plan, desc, sizeof *desc, how, sizeof *how, engine, sizeof *engine);
}

/* NULL is allowed. */
ATTN_API void attn_parallel_plan_destroy(attn_parallel_plan *plan);

/* The plan in words: rows, schedule and why, memory, bytes and time. As attn_plan_describe. */
ATTN_API size_t attn_parallel_plan_describe(const attn_parallel_plan *plan, char *text, size_t size);

/* The plan in numbers. why lives as long as the plan. ATTN_INVALID: an argument is NULL. */
typedef struct attn_parallel_info {
    attn_schedule schedule;
    const char *why; /* the reason for the schedule, one sentence */
    int32_t chunks;  /* of this rank: 1, or 2 with ATTN_ZIGZAG; they may be empty */
    int32_t ranks, rank;
    int64_t row_begin[2], row_end[2]; /* of the whole: rows [begin, end) of each chunk; ATTN_VARLEN: packed rows */
    int64_t key_begin[2], key_end[2]; /* likewise */
    int64_t rows, keys;               /* that this rank's tensors have: the chunks' together */
    uint64_t workspace_bytes;         /* of this rank, exact */
    double sent_bytes;                /* predicted: that this rank sends */
    double pairs;                     /* predicted: visible to this rank's rows, over batch and heads */
    double seconds;                   /* predicted time of this rank */
} attn_parallel_info;

ATTN_API attn_status attn_parallel_plan_get_info_sized(const attn_parallel_plan *plan, attn_parallel_info *info,
                                                       size_t info_size);
static inline attn_status attn_parallel_plan_get_info(const attn_parallel_plan *plan, attn_parallel_info *info)
{
    return attn_parallel_plan_get_info_sized(plan, info, sizeof *info);
}

/* ---- run ----------------------------------------------------------------------------------- */

/* Computes this rank's rows; collective. q, o, lse, grad_o, grad_lse, grad_q have its rows, k, v, grad_k, grad_v its
 * keys. Lengths, prefix, first_kv, positions, intervals, slopes, sinks and the seed are the whole's, the same on every
 * rank. grad_alibi and grad_sink are the sums over all ranks, on every rank. workspace: as for attn_run,
 * workspace_bytes, any alignment. With ATTN_DETERMINISTIC the same number of ranks gives the same bits.
 *
 * ATTN_CUDA: the call puts the run into the stream and returns. Ranks tell each other nothing first: where one's
 * arguments are refused, the others wait for it until their engine's time-out. */
ATTN_API attn_status attn_parallel_run_sized(const attn_parallel_plan *plan, const attn_args *args, size_t args_size,
                                             void *workspace, void *stream);
static inline attn_status attn_parallel_run(const attn_parallel_plan *plan, const attn_args *args, void *workspace,
                                            void *stream)
{
    return attn_parallel_run_sized(plan, args, sizeof *args, workspace, stream);
}

#ifdef __cplusplus
}
#endif

#endif
