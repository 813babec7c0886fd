/* The engine over other GPUs' memory. Contract: attn_parallel.h.
 *
 * A window begins with a word per rank: how many barriers that rank has come to. A barrier writes this rank's number to
 * all others' windows and waits for theirs in its own. It is put into streams as copies and as waits of the driver's,
 * which take no processor. The copy of the number comes after those of the data, so that whoever sees it has these. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "parallel/parallel.h"
#include "parallel/watch.h"

enum {
    RANKS_MOST = 64, /* of a host */
    HEAD = 4096,     /* bytes before the window: others' numbers, then numbers on their way */
    NUMBERS = HEAD / 8,
    LARGE = 1 << 30 /* above every number that is waited for */
};

typedef struct peer_engine {
    attn_engine engine, by; /* first: it is what the caller has */
    const attn_cuda_driver *driver;
    attn_watch *watch;
    CUstream release; /* lets go what waits, when it is given up */
    size_t bytes;
    CUdeviceptr window[RANKS_MOST]; /* each rank's, with its head; 0: none */
    uint32_t number;                /* of the last barrier */
} peer_engine;

/* ---- the window ------------------------------------------------------------------------------ */

static void close_others(peer_engine *e)
{
    for (int32_t r = 0; r < e->engine.ranks; r++) {
        if (r == e->engine.rank || !e->window[r]) continue;
        e->driver->cuIpcCloseMemHandle(e->window[r]);
        e->window[r] = 0;
    }
}

static void free_own(peer_engine *e)
{
    if (e->window[e->engine.rank]) e->driver->cuMemFree(e->window[e->engine.rank]);
    e->window[e->engine.rank] = 0, e->bytes = 0;
}

typedef struct card {
    CUipcMemHandle handle;
    CUresult failed;
} card;

static int tell(const peer_engine *e, const void *send, void *receive, size_t bytes)
{
    return e->by.tell ? e->by.tell(e->by.context, send, receive, bytes)
                      : e->by.all_gather(e->by.context, send, receive, bytes, NULL);
}

/* Whether all ranks have succeeded; the first failure. */
static int agree(const peer_engine *e, int mine)
{
    int all[RANKS_MOST], failed = tell(e, &mine, all, sizeof mine);
    for (int32_t r = 0; r < e->engine.ranks && !failed; r++)
        failed = all[r];
    return failed;
}

/* Nobody may be using the windows that there are. */
static int open_windows(peer_engine *e, size_t bytes)
{
    int32_t ranks = e->engine.ranks, me = e->engine.rank;
    card mine = { .failed = e->driver->cuCtxSynchronize() }, all[RANKS_MOST];
    int failed = agree(e, mine.failed);
    if (failed) return failed;
    close_others(e);
    mine.failed = agree(e, 0); /* nobody has this rank's window open any more */
    free_own(e);
    if (!mine.failed) mine.failed = e->driver->cuMemAlloc(&e->window[me], HEAD + bytes);
    if (!mine.failed) mine.failed = e->driver->cuMemsetD8Async(e->window[me], 0, HEAD, NULL);
    if (!mine.failed) mine.failed = e->driver->cuStreamSynchronize(NULL);
    if (!mine.failed) mine.failed = e->driver->cuIpcGetMemHandle(&mine.handle, e->window[me]);
    failed = tell(e, &mine, all, sizeof mine);
    for (int32_t r = 0; r < ranks && !failed; r++)
        failed = all[r].failed;
    CUresult opened = 0;
    for (int32_t r = 0; r < ranks && !failed && !opened; r++)
        if (r != me)
            opened = e->driver->cuIpcOpenMemHandle(&e->window[r], all[r].handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (!failed) failed = agree(e, opened);
    if (failed) close_others(e), free_own(e);
    e->bytes = failed ? 0 : bytes, e->number = 0;
    return failed;
}

static int window(void *context, size_t bytes, void **base)
{
    peer_engine *e = context;
    int failed = attn_watch_has_given_up(e->watch) ? ETIMEDOUT : 0;
    if (!failed && bytes > e->bytes) failed = open_windows(e, bytes);
    if (!failed) *base = (char *)(uintptr_t)e->window[e->engine.rank] + HEAD;
    return failed;
}

/* ---- what is put into streams ---------------------------------------------------------------- */

static int put(void *context, int32_t to, size_t at, const void *send, size_t bytes, void *stream)
{
    peer_engine *e = context;
    return e->driver->cuMemcpyDtoDAsync(e->window[to] + HEAD + at, (CUdeviceptr)(uintptr_t)send, bytes, stream);
}

static int barrier(void *context, void *stream)
{
    peer_engine *e = context;
    int32_t ranks = e->engine.ranks, me = e->engine.rank;
    if (attn_watch_has_given_up(e->watch)) return ETIMEDOUT;
    uint32_t number = ++e->number;
    CUdeviceptr own = e->window[me], leaving = own + HEAD / 2 + number % NUMBERS * 4;
    int failed = e->driver->cuStreamWriteValue32(stream, leaving, number, 0);
    for (int32_t h = 1; h < ranks && !failed; h++)
        failed = e->driver->cuMemcpyDtoDAsync(e->window[(me + h) % ranks] + (CUdeviceptr)me * 4, leaving, 4, stream);
    for (int32_t h = 1; h < ranks && !failed; h++)
        failed = e->driver->cuStreamWaitValue32(stream, own + (CUdeviceptr)((me - h + ranks) % ranks) * 4, number,
                                                CU_STREAM_WAIT_VALUE_GEQ);
    return failed ? failed : attn_watch_stream(e->watch, stream);
}

static int exchange(void *context, int32_t to, const void *send, size_t send_bytes, int32_t from, void *receive,
                    size_t receive_bytes, void *stream)
{
    (void)context, (void)to, (void)send, (void)send_bytes, (void)from, (void)receive, (void)receive_bytes, (void)stream;
    return ENOSYS; /* what is put is not exchanged */
}

static int all_gather(void *context, const void *send, void *receive, size_t bytes, void *stream)
{
    const attn_engine *by = &((peer_engine *)context)->by;
    return by->all_gather(by->context, send, receive, bytes, stream);
}

static int reduce_scatter(void *context, const float *send, float *receive, size_t count, void *stream)
{
    const attn_engine *by = &((peer_engine *)context)->by;
    return by->reduce_scatter(by->context, send, receive, count, stream);
}

static int tell_by(void *context, const void *send, void *receive, size_t bytes)
{
    return tell(context, send, receive, bytes);
}

/* What waits for others goes on. */
static void give_up(void *context)
{
    peer_engine *e = context;
    CUdeviceptr own = e->window[e->engine.rank];
    for (int32_t r = 0; r < e->engine.ranks && own; r++)
        e->driver->cuStreamWriteValue32(e->release, own + (CUdeviceptr)r * 4, e->number + LARGE, 0);
    if (e->by.abort) e->by.abort(e->by.context);
}

static void abort_engine(void *context)
{
    attn_watch_give_up(((peer_engine *)context)->watch);
}

/* ---- the engine ------------------------------------------------------------------------------ */

static attn_status start(peer_engine *e, const attn_engine *by, double timeout)
{
    const attn_cuda_machine *machine = attn_cuda_machine_get();
    if (!machine) return ATTN_UNSUPPORTED;
    e->driver = &machine->driver, e->by = *by;
    e->engine = (attn_engine){ .context = e,
                               .rank = by->rank,
                               .ranks = by->ranks,
                               .exchange = exchange,
                               .wait = barrier,
                               .all_gather = all_gather,
                               .reduce_scatter = reduce_scatter,
                               .abort = abort_engine,
                               .device = ATTN_CUDA,
                               .tell = tell_by,
                               .window = window,
                               .put = put };
    CUresult result = e->driver->cuStreamCreate(&e->release, CU_STREAM_NON_BLOCKING);
    if (result) return attn_cuda_fail(result, "cuStreamCreate");
    return attn_watch_create(&e->watch, e->driver, timeout, NULL, give_up, e);
}

attn_status attn_peer_engine_create(attn_engine **engine, const attn_engine *by, double timeout)
{
    char text[32];
    if (!engine || !by) return attn_fail(ATTN_INVALID, "%s = NULL", engine ? "by" : "engine");
    snprintf(text, sizeof text, "%g", timeout);
    if (!(timeout >= 0) || isinf(timeout)) return attn_fail(ATTN_INVALID, "timeout = %s is not 0 or above", text);
    if (by->device != ATTN_CUDA) return attn_fail(ATTN_INVALID, "by: device = %d: it takes ATTN_CUDA", (int)by->device);
    if (by->ranks < 1 || by->ranks > RANKS_MOST)
        return attn_fail(ATTN_UNSUPPORTED, "by: ranks = %" PRId32 ": it takes 1 to %d", by->ranks, RANKS_MOST);
    peer_engine *e = calloc(1, sizeof *e);
    attn_status status = e ? start(e, by, timeout) : attn_fail(ATTN_NO_MEMORY, "no memory for an engine");
    peer_engine words = { .engine = *by, .by = *by };
    int failed = agree(&words, (int)status);
    if (!failed) failed = open_windows(e, 1);
    if (!failed) {
        *engine = &e->engine;
        return ATTN_OK;
    }
    if (!status)
        status = attn_fail(ATTN_UNSUPPORTED, "the ranks' GPUs do not reach each other's memory: error %d", failed);
    attn_peer_engine_destroy(e ? &e->engine : NULL);
    return status;
}

void attn_peer_engine_destroy(attn_engine *engine)
{
    peer_engine *e = (peer_engine *)engine;
    if (!e) return;
    attn_watch_destroy(e->watch);
    close_others(e), free_own(e);
    if (e->release) e->driver->cuStreamDestroy(e->release);
    free(e);
}
