/* NCCL, found when running. The declarations are our own, in NCCL's words and layout. */
#ifndef ATTN_PARALLEL_NCCL_H
#define ATTN_PARALLEL_NCCL_H

#include <stddef.h>

#include "attn_parallel.h"

typedef int ncclResult_t; /* 0: success */
typedef struct ncclComm *ncclComm_t;
typedef struct ncclUniqueId {
    char internal[ATTN_NCCL_ID_BYTES];
} ncclUniqueId;

enum { NCCL_INT8 = 0, NCCL_FLOAT = 7, NCCL_SUM = 0, NCCL_IN_PROGRESS = 7 };

/* X(name, arguments) */
#define ATTN_NCCL_FUNCTIONS(X)                                                                 \
    X(ncclGetUniqueId, (ncclUniqueId *))                                                       \
    X(ncclCommInitRank, (ncclComm_t *, int ranks, ncclUniqueId, int rank))                     \
    X(ncclCommCount, (ncclComm_t, int *))                                                      \
    X(ncclCommUserRank, (ncclComm_t, int *))                                                   \
    X(ncclCommDestroy, (ncclComm_t))                                                           \
    X(ncclCommAbort, (ncclComm_t))                                                             \
    X(ncclCommGetAsyncError, (ncclComm_t, ncclResult_t *))                                     \
    X(ncclGroupStart, (void))                                                                  \
    X(ncclGroupEnd, (void))                                                                    \
    X(ncclSend, (const void *, size_t count, int type, int to, ncclComm_t, void *stream))      \
    X(ncclRecv, (void *, size_t count, int type, int from, ncclComm_t, void *stream))          \
    X(ncclAllGather, (const void *, void *, size_t count, int type, ncclComm_t, void *stream)) \
    X(ncclReduceScatter, (const void *, void *, size_t count, int type, int operation, ncclComm_t, void *stream))

typedef struct attn_nccl {
#define ATTN_NCCL_MEMBER(name, arguments) ncclResult_t(*name) arguments;
    ATTN_NCCL_FUNCTIONS(ATTN_NCCL_MEMBER)
#undef ATTN_NCCL_MEMBER
    const char *(*ncclGetErrorString)(ncclResult_t);
} attn_nccl;

/* The library; NULL: why not is in attn_error(), for ATTN_UNSUPPORTED. */
const attn_nccl *attn_nccl_get(void);

#endif
