/* attn_parallel_mpi.h: an engine of attn_parallel.h over MPI. Library: libattn_parallel_mpi. */
#ifndef ATTN_PARALLEL_MPI_H
#define ATTN_PARALLEL_MPI_H

#include "attn_parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* communicator: the address of an MPI_Comm, whose ranks are the engine's, 1 to 1024 of them; NULL: MPI_COMM_WORLD. The
 * call is collective, after MPI_Init: it duplicates the communicator. What MPI does at an error is the communicator's
 * error handler, which by default ends all processes. abort is MPI_Abort: it ends them with a non-zero exit.
 * reduce_scatter takes up to 2^31 - 1 floats of a rank. */
ATTN_API attn_status attn_mpi_engine_create(attn_engine **engine, const void *communicator);

/* Collective, before MPI_Finalize. NULL is allowed. */
ATTN_API void attn_mpi_engine_destroy(attn_engine *engine);

#ifdef __cplusplus
}
#endif

#endif
