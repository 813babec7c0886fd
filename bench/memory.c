/* Memory of a forward and a backward, ours beside standard attention's (standard.c).
 *
 *   counted   bytes of q, k, v, o, LSE and the gradients of o, q, k and v, and what the computation holds besides: ours
 *             the greater of both plans' workspaces, theirs P and dS
 *   peak      how far the resident memory of a child process that does just this once, on touched buffers, rises above
 *             what it was at the start: VmHWM - VmRSS of /proc/self/status. OpenBLAS has worked before, so its own
 *             buffers do not count. 0: not run, because it is not f32, there is no OpenBLAS or it does not fit */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"

/* Bytes, of a line of /proc/self/status; negative without it. */
static double resident(const char *field)
{
    char line[256];
    double bytes = -1.0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && bytes < 0.0 && fgets(line, sizeof line, file))
        if (strncmp(line, field, strlen(field)) == 0) bytes = 1024.0 * strtod(line + strlen(field), NULL);
    if (file) fclose(file);
    return bytes;
}

static bool run_ours(const attn_desc *desc)
{
    attn_bench_tensors tensors = { 0 };
    attn_bench_subject subject = { 0 };
    return attn_bench_tensors_init(&tensors, desc, ATTN_BENCH_BOTH) &&
           attn_bench_subject_init(&subject, desc, ATTN_BENCH_BOTH, &tensors) &&
           attn_bench_subject_run(&subject, 1) >= 0.0;
}

/* The child's whole life. */
static void measure_here(const attn_desc *desc, bool (*run)(const attn_desc *), int result)
{
    if (run == attn_bench_standard_run) attn_bench_standard_warm_up();
    malloc_trim(0); /* freed memory that is still resident would be used again without a rise */
    double before = resident("VmRSS:");
    bool good = run(desc);
    double after = resident("VmHWM:");
    if (good && (before < 0.0 || after < 0.0))
        good = attn_bench_fail("/proc/self/status does not tell how much memory is resident");
    double rise = after - before;
    _exit(good && write(result, &rise, sizeof rise) == sizeof rise ? 0 : 1);
}

/* The peak; 0 after a failure, which has been reported. */
static double peak_of(const attn_desc *desc, bool (*run)(const attn_desc *))
{
    int ends[2], status = 0;
    if (pipe(ends)) return attn_bench_fail("no pipe to a child process"), 0.0;
    pid_t child = fork();
    if (child == 0) measure_here(desc, run, ends[1]);
    close(ends[1]);
    double rise = 0.0;
    bool told = child > 0 && read(ends[0], &rise, sizeof rise) == sizeof rise;
    close(ends[0]);
    if (child > 0) waitpid(child, &status, 0);
    if (!told && (child < 0 || WIFSIGNALED(status)))
        attn_bench_fail(child < 0 ? "no child process" : "the child process was ended by signal %d: out of memory?",
                        WTERMSIG(status));
    return told ? rise : 0.0;
}

bool attn_bench_memory(const attn_bench_case *item, const attn_bench_peers *peers, uint64_t workspace,
                       attn_bench_result *result)
{
    const attn_desc *d = &item->desc;
    double tensors = (double)attn_bench_tensors_bytes(d, ATTN_BENCH_BOTH);
    double standard = (double)attn_bench_standard_bytes(d);
    result->peer_name = "standard";
    result->memory.counted = tensors + (double)workspace;
    result->peer_memory.counted = tensors + standard;
    result->memory.peak = peak_of(d, run_ours);
    if (peers->openblas && d->dtype == ATTN_F32 && attn_bench_fits((int64_t)result->peer_memory.counted))
        result->peer_memory.peak = peak_of(d, attn_bench_standard_run);
    return result->memory.peak > 0.0;
}
