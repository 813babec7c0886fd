/* The engine over NCCL. Contract: attn_parallel.h, nccl.h.
 *
 * Exchanges become a group, which the wait ends. A thread watches what has been put into streams: if a run's event is
 * not there within the time-out, or the communicator has an error, the communicator is aborted, so that its kernels end
 * and nobody waits for a rank that is gone. */
#define _GNU_SOURCE
#include "parallel/nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cuda/driver.h"
#include "parallel/watch.h"

/* ---- the library ----------------------------------------------------------------------------- */

static attn_nccl nccl;
static bool found;
static char why_not[200];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool bind(void *library, const char *symbol, void *to)
{
    void *address = dlsym(library, symbol);
    if (!address) snprintf(why_not, sizeof why_not, "libnccl.so.2 has no %s", symbol);
    memcpy(to, &address, sizeof address);
    return address != NULL;
}

/* A second library would not know the caller's communicators, so that one that is loaded already is taken first. */
static void look(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    if (!library) library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *text = dlerror();
        snprintf(why_not, sizeof why_not, "no NCCL: %s", text ? text : "libnccl.so.2 cannot be loaded");
        return;
    }
    found = true;
#define BIND(name, arguments) found = found && bind(library, #name, &nccl.name);
    ATTN_NCCL_FUNCTIONS(BIND)
#undef BIND
    found = found && bind(library, "ncclGetErrorString", &nccl.ncclGetErrorString);
}

const attn_nccl *attn_nccl_get(void)
{
    pthread_once(&once, look);
    if (found) return &nccl;
    attn_fail(ATTN_UNSUPPORTED, "%s", why_not);
    return NULL;
}

static attn_status fail(ncclResult_t result, const char *doing)
{
    return attn_fail(ATTN_RANK_FAILED, "%s: NCCL: %s", doing, nccl.ncclGetErrorString(result));
}

/* ---- an engine ------------------------------------------------------------------------------- */

typedef struct nccl_engine {
    attn_engine engine; /* first: it is what the caller has */
    ncclComm_t communicator;
    const attn_cuda_driver *driver;
    attn_watch *watch;
    bool owns, in_group;
} nccl_engine;

static bool has_failed(void *context)
{
    nccl_engine *e = context;
    ncclResult_t error = 0;
    return nccl.ncclCommGetAsyncError(e->communicator, &error) || (error && error != NCCL_IN_PROGRESS);
}

static void give_up(void *context)
{
    nccl.ncclCommAbort(((nccl_engine *)context)->communicator);
}

static void abort_engine(void *context)
{
    nccl_engine *e = context;
    if (e->in_group) nccl.ncclGroupEnd();
    e->in_group = false;
    attn_watch_give_up(e->watch);
}

static int exchange(void *context, int32_t to, const void *send, size_t send_bytes, int32_t from, void *receive,
                    size_t receive_bytes, void *stream)
{
    nccl_engine *e = context;
    if (attn_watch_has_given_up(e->watch)) return ETIMEDOUT;
    int failed = e->in_group ? 0 : nccl.ncclGroupStart();
    e->in_group = !failed;
    if (!failed && to >= 0) failed = nccl.ncclSend(send, send_bytes, NCCL_INT8, to, e->communicator, stream);
    if (!failed && from >= 0) failed = nccl.ncclRecv(receive, receive_bytes, NCCL_INT8, from, e->communicator, stream);
    return failed;
}

static int wait_for_all(void *context, void *stream)
{
    nccl_engine *e = context;
    if (attn_watch_has_given_up(e->watch)) return ETIMEDOUT;
    if (!e->in_group) return 0;
    e->in_group = false;
    int failed = nccl.ncclGroupEnd();
    return failed ? failed : attn_watch_stream(e->watch, stream);
}

static int all_gather(void *context, const void *send, void *receive, size_t bytes, void *stream)
{
    nccl_engine *e = context;
    if (attn_watch_has_given_up(e->watch)) return ETIMEDOUT;
    int failed = nccl.ncclAllGather(send, receive, bytes, NCCL_INT8, e->communicator, stream);
    return failed ? failed : attn_watch_stream(e->watch, stream);
}

static int reduce_scatter(void *context, const float *send, float *receive, size_t count, void *stream)
{
    nccl_engine *e = context;
    if (attn_watch_has_given_up(e->watch)) return ETIMEDOUT;
    int failed = nccl.ncclReduceScatter(send, receive, count, NCCL_FLOAT, NCCL_SUM, e->communicator, stream);
    return failed ? failed : attn_watch_stream(e->watch, stream);
}

/* By way of device memory. */
static int tell(void *context, const void *send, void *receive, size_t bytes)
{
    nccl_engine *e = context;
    size_t ranks = (size_t)e->engine.ranks;
    CUdeviceptr at = 0;
    int failed = e->driver->cuMemAlloc(&at, (ranks + 1) * bytes);
    if (failed) return failed;
    char *place = (char *)(uintptr_t)at;
    failed = e->driver->cuMemcpyHtoD(at, send, bytes);
    if (!failed) failed = all_gather(e, place, place + bytes, bytes, NULL);
    if (!failed) failed = e->driver->cuStreamSynchronize(NULL);
    if (!failed && attn_watch_has_given_up(e->watch)) failed = ETIMEDOUT;
    if (!failed) failed = e->driver->cuMemcpyDtoH(receive, at + bytes, ranks * bytes);
    e->driver->cuMemFree(at);
    return failed;
}

static attn_status start(nccl_engine *e, double timeout)
{
    const attn_cuda_machine *machine = attn_cuda_machine_get();
    int ranks = 0, rank = 0;
    if (!machine) return ATTN_UNSUPPORTED;
    e->driver = &machine->driver;
    ncclResult_t failed = nccl.ncclCommCount(e->communicator, &ranks);
    if (!failed) failed = nccl.ncclCommUserRank(e->communicator, &rank);
    if (failed) return fail(failed, "the communicator");
    e->engine = (attn_engine){ .context = e,
                               .rank = rank,
                               .ranks = ranks,
                               .exchange = exchange,
                               .wait = wait_for_all,
                               .all_gather = all_gather,
                               .reduce_scatter = reduce_scatter,
                               .abort = abort_engine,
                               .device = ATTN_CUDA,
                               .tell = tell };
    return attn_watch_create(&e->watch, e->driver, timeout, has_failed, give_up, e);
}

static attn_status check(attn_engine **engine, double timeout)
{
    char text[32];
    if (!engine) return attn_fail(ATTN_INVALID, "engine = NULL: it takes the address of a pointer");
    snprintf(text, sizeof text, "%g", timeout);
    if (!(timeout >= 0) || isinf(timeout)) return attn_fail(ATTN_INVALID, "timeout = %s is not 0 or above", text);
    return attn_nccl_get() ? ATTN_OK : ATTN_UNSUPPORTED;
}

static attn_status create(attn_engine **out, ncclComm_t communicator, bool owns, double timeout)
{
    nccl_engine *e = calloc(1, sizeof *e);
    attn_status status = ATTN_OK;
    if (e) {
        e->communicator = communicator, e->owns = owns;
        status = start(e, timeout);
    } else {
        status = attn_fail(ATTN_NO_MEMORY, "no memory for an engine (%zu bytes)", sizeof *e);
    }
    if (!status) *out = &e->engine;
    if (status) free(e);
    return status;
}

attn_status attn_nccl_engine_create(attn_engine **engine, void *communicator, double timeout)
{
    attn_status status = check(engine, timeout);
    if (!status && !communicator) status = attn_fail(ATTN_INVALID, "communicator = NULL: it takes an ncclComm_t");
    return status ? status : create(engine, communicator, false, timeout);
}

attn_status attn_nccl_id(char id[ATTN_NCCL_ID_BYTES])
{
    ncclUniqueId unique;
    if (!id) return attn_fail(ATTN_INVALID, "id = NULL: it takes %d bytes", ATTN_NCCL_ID_BYTES);
    if (!attn_nccl_get()) return ATTN_UNSUPPORTED;
    ncclResult_t failed = nccl.ncclGetUniqueId(&unique);
    if (failed) return fail(failed, "ncclGetUniqueId");
    memcpy(id, unique.internal, sizeof unique.internal);
    return ATTN_OK;
}

attn_status attn_nccl_engine_join(attn_engine **engine, const char id[ATTN_NCCL_ID_BYTES], int32_t rank, int32_t ranks,
                                  double timeout)
{
    ncclUniqueId unique;
    ncclComm_t communicator = NULL;
    attn_status status = check(engine, timeout);
    if (!status && !id) status = attn_fail(ATTN_INVALID, "id = NULL: it takes what attn_nccl_id wrote");
    if (!status && (ranks < 1 || rank < 0 || rank >= ranks))
        status =
            attn_fail(ATTN_INVALID, "rank = %" PRId32 " of ranks = %" PRId32 ": it takes 0 to ranks - 1", rank, ranks);
    if (status) return status;
    memcpy(unique.internal, id, sizeof unique.internal);
    ncclResult_t failed = nccl.ncclCommInitRank(&communicator, ranks, unique, rank);
    if (failed) return fail(failed, "ncclCommInitRank");
    status = create(engine, communicator, true, timeout);
    if (status) nccl.ncclCommAbort(communicator);
    return status;
}

void attn_nccl_engine_destroy(attn_engine *engine)
{
    nccl_engine *e = (nccl_engine *)engine;
    if (!e) return;
    bool aborted = attn_watch_has_given_up(e->watch);
    attn_watch_destroy(e->watch);
    if (e->owns && !aborted) nccl.ncclCommDestroy(e->communicator);
    free(e);
}
