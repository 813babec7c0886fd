/* The engine over MPI. Contract: attn_parallel_mpi.h.
 *
 * MPI counts in int. A message of any size is one element of a type of its size. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

#include "attn_parallel_mpi.h"

enum { POSTED_MOST = 16, MIB = 1 << 20, RANKS_MOST = 1024, TAG = 47 };

typedef struct mpi_engine {
    attn_engine engine; /* first: it is what the caller has */
    MPI_Comm communicator;
    MPI_Request posted[POSTED_MOST];
    int count;
} mpi_engine;

/* A type of so many bytes: whole MiB, and what is left. */
static int create_bytes(size_t bytes, MPI_Datatype *type)
{
    MPI_Datatype mib;
    int whole = (int)(bytes / MIB), rest = (int)(bytes % MIB), lengths[2] = { whole, rest };
    MPI_Aint at[2] = { 0, (MPI_Aint)bytes - rest };
    int failed = MPI_Type_contiguous(MIB, MPI_BYTE, &mib);
    if (failed) return failed;
    MPI_Datatype types[2] = { mib, MPI_BYTE };
    failed = MPI_Type_create_struct(2, lengths, at, types, type);
    MPI_Type_free(&mib);
    return failed ? failed : MPI_Type_commit(type);
}

static int exchange(void *context, int32_t to, const void *send, size_t send_bytes, int32_t from, void *receive,
                    size_t receive_bytes, void *stream)
{
    (void)stream;
    mpi_engine *e = context;
    int failed = 0;
    MPI_Datatype type;
    if (e->count + 2 > POSTED_MOST) return ENOBUFS;
    if (from >= 0) {
        failed = create_bytes(receive_bytes, &type);
        if (failed) return failed;
        failed = MPI_Irecv(receive, 1, type, from, TAG, e->communicator, &e->posted[e->count]);
        e->count += !failed;
        MPI_Type_free(&type); /* the operation keeps it as long as it needs it */
    }
    if (to >= 0 && !failed) {
        failed = create_bytes(send_bytes, &type);
        if (failed) return failed;
        failed = MPI_Isend(send, 1, type, to, TAG, e->communicator, &e->posted[e->count]);
        e->count += !failed;
        MPI_Type_free(&type);
    }
    return failed;
}

static int wait_for_all(void *context, void *stream)
{
    (void)stream;
    mpi_engine *e = context;
    int count = e->count;
    e->count = 0;
    return MPI_Waitall(count, e->posted, MPI_STATUSES_IGNORE);
}

static int all_gather(void *context, const void *send, void *receive, size_t bytes, void *stream)
{
    (void)stream;
    mpi_engine *e = context;
    MPI_Datatype type;
    int failed = create_bytes(bytes, &type);
    if (failed) return failed;
    failed = MPI_Allgather(send, 1, type, receive, 1, type, e->communicator);
    MPI_Type_free(&type);
    return failed;
}

static int reduce_scatter(void *context, const float *send, float *receive, size_t count, void *stream)
{
    (void)stream;
    mpi_engine *e = context;
    if (count > INT_MAX) return EOVERFLOW;
    return MPI_Reduce_scatter_block(send, receive, (int)count, MPI_FLOAT, MPI_SUM, e->communicator);
}

static void abort_all(void *context)
{
    MPI_Abort(((mpi_engine *)context)->communicator, EXIT_FAILURE);
}

static attn_status fail(attn_status status, const char *what, int number)
{
    char message[200];
    snprintf(message, sizeof message, what, number);
    return attn_error_set(status, message);
}

attn_status attn_mpi_engine_create(attn_engine **out, const void *communicator)
{
    int begun = 0, ranks, rank, failed;
    MPI_Comm own, given = communicator ? *(const MPI_Comm *)communicator : MPI_COMM_WORLD;
    if (!out) return fail(ATTN_INVALID, "engine = NULL: it takes the address of a pointer", 0);
    MPI_Initialized(&begun);
    if (!begun) return fail(ATTN_INVALID, "MPI_Init has not been called", 0);
    failed = MPI_Comm_size(given, &ranks);
    if (!failed) failed = MPI_Comm_rank(given, &rank);
    if (failed) return fail(ATTN_RANK_FAILED, "MPI failed with %d", failed);
    if (ranks > RANKS_MOST) return fail(ATTN_INVALID, "communicator: its %d ranks are more than 1024", ranks);
    failed = MPI_Comm_dup(given, &own);
    if (failed) return fail(ATTN_RANK_FAILED, "MPI_Comm_dup failed with %d", failed);
    mpi_engine *e = calloc(1, sizeof *e);
    if (!e) {
        MPI_Comm_free(&own);
        return fail(ATTN_NO_MEMORY, "no memory for an engine", 0);
    }
    e->communicator = own;
    e->engine = (attn_engine){ .context = e,
                               .rank = rank,
                               .ranks = ranks,
                               .exchange = exchange,
                               .wait = wait_for_all,
                               .all_gather = all_gather,
                               .reduce_scatter = reduce_scatter,
                               .abort = abort_all };
    *out = &e->engine;
    return ATTN_OK;
}

void attn_mpi_engine_destroy(attn_engine *engine)
{
    mpi_engine *e = (mpi_engine *)engine;
    if (e) MPI_Comm_free(&e->communicator);
    free(e);
}
