/* The runners' turns, and medians over the rounds. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <time.h>

#include "bench/bench.h"
#include "device/clock.h"

static void pause_between(double seconds)
{
    double whole = floor(seconds);
    nanosleep(&(struct timespec){ (time_t)whole, (long)(1e9 * (seconds - whole)) }, NULL);
}

static bool of_processor;

void attn_bench_clock(bool processor)
{
    of_processor = processor;
}

double attn_bench_now(void)
{
    struct timespec t;
    clock_gettime(of_processor ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Warms a runner up and returns the calls that fill a turn; 0 after a failure. */
static int calls_a_turn(const attn_bench_options *options, const attn_bench_runner *runner)
{
    int calls = 1;
    for (int attempt = 0; attempt < 3; attempt++) { /* the first calls may be slow ones */
        double seconds = runner->run(runner->self, calls);
        if (seconds < 0.0) return 0;
        int more = (int)fmin(1e6, fmax(1.0, ceil(options->min_time / fmax(seconds, 1e-9))));
        if (more <= calls) return more;
        calls = more;
    }
    return calls;
}

bool attn_bench_take_turns(const attn_bench_options *options, const attn_bench_runner *runners, attn_bench_times *times,
                           int count)
{
    double samples[ATTN_BENCH_RUNNERS_MOST][ATTN_BENCH_ROUNDS_MOST];
    int calls[ATTN_BENCH_RUNNERS_MOST], rounds = (int)options->repeat;
    for (int r = 0; r < count; r++)
        if (runners[r].run && !(calls[r] = calls_a_turn(options, &runners[r]))) return false;
    for (int round = 0; round < rounds; round++) {
        for (int r = 0; r < count; r++) {
            if (!runners[r].run) continue;
            pause_between(options->pause);
            samples[r][round] = runners[r].run(runners[r].self, calls[r]);
            if (samples[r][round] < 0.0) return false;
        }
    }
    for (int r = 0; r < count; r++) {
        times[r] = (attn_bench_times){ 0 };
        if (!runners[r].run) continue;
        double median = attn_median(samples[r], rounds);
        times[r] = (attn_bench_times){ median, samples[r][0], samples[r][rounds - 1] };
    }
    return true;
}

double attn_bench_run_calls(attn_device device, device_call *call, const void *self, int calls)
{
    if (device == ATTN_CUDA) return attn_bench_gpu_median(call, self, true, calls);
    double begin = attn_seconds();
    for (int i = 0; i < calls; i++)
        if (call(self, NULL)) return attn_bench_fail("%s", attn_error()), -1.0;
    return (attn_seconds() - begin) / calls;
}
