/* attn bench --suite ring, whose ranks are processes of MPI: mpirun -n N attn_bench_mpi [options of attn bench]. */
#include <mpi.h>
#include <stdio.h>

#include "attn_parallel_mpi.h"
#include "bench/bench.h"
#include "command.h"

static int run(int argc, char **argv)
{
    attn_engine *engine;
    if (attn_mpi_engine_create(&engine, NULL)) return fprintf(stderr, "attn_bench_mpi: %s\n", attn_error()), 1;
    attn_bench_ring_over(engine, "mpi");
    if (engine->rank && !freopen("/dev/null", "w", stdout)) return perror("attn_bench_mpi: /dev/null"), 1;
    int code = attn_cmd_bench(argc, argv);
    attn_mpi_engine_destroy(engine);
    return code;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int code = run(argc, argv);
    if (code) MPI_Abort(MPI_COMM_WORLD, code); /* the others may be waiting */
    MPI_Finalize();
    return code;
}
