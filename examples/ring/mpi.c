/* attn_ring_mpi: ranks are processes: mpirun -n RANKS attn_ring_mpi RANKS [STEPS [TEXT]]. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include <attn_parallel_mpi.h>

#include "ring.h"

int main(int argc, char **argv)
{
    ring_job job;
    gpt_text text;
    attn_engine *engine;
    int code = 2;
    MPI_Init(&argc, &argv);
    gpt_must(attn_mpi_engine_create(&engine, NULL));
    int64_t ranks = engine->ranks;
    if (!ring_arguments(argc, argv, &job, &text, &ranks)) MPI_Abort(MPI_COMM_WORLD, code);
    if (ranks != engine->ranks) {
        fprintf(stderr, "%s: mpirun started %d processes\n", argv[0], (int)engine->ranks);
        MPI_Abort(MPI_COMM_WORLD, code);
    }
    double *losses = gpt_allocate(job.steps, sizeof *losses);
    ring_train(&job, engine, losses);
    code = engine->rank ? 0 : ring_compare(&job, losses, ranks);
    free(losses);
    gpt_text_free(&text);
    attn_mpi_engine_destroy(engine);
    MPI_Finalize();
    return code;
}
