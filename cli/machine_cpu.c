/* The processor: clock, bandwidths, rates of its units. One core's by the time its thread takes; the least of several
 * counts, so that what else runs here counts little. */
#define _GNU_SOURCE
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "bench/bench.h"
#include "command.h"
#include "base/detect.h"
#include "cpu/threads.h"
#include "device/clock.h"
#include "machine.h"

enum { TRIES = 7, LOOPS = 64, CHAIN = 1 << 20, ROW = 4096 };

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Additions that wait for one another take a clock each. 0: not known of this architecture. */
static double measure_clock(void)
{
    double least = INFINITY;
    for (int i = 0; i < TRIES; i++) {
        uint64_t x = 1;
        double start = thread_seconds();
        for (int n = 0; n < CHAIN; n++) {
#if defined(__x86_64__)
            __asm__ volatile("add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n"
                             "add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0"
                             : "+r"(x));
#elif defined(__aarch64__)
            __asm__ volatile("add %0, %0, #1\n add %0, %0, #1\n add %0, %0, #1\n add %0, %0, #1\n"
                             "add %0, %0, #1\n add %0, %0, #1\n add %0, %0, #1\n add %0, %0, #1"
                             : "+r"(x));
#else
            return 0;
#endif
        }
        least = fmin(least, thread_seconds() - start);
    }
    return 8.0 * CHAIN / least;
}

static attn_isa best_isa(void)
{
    attn_isa best = ATTN_ISA_PORTABLE;
    for (int isa = ATTN_ISA_PORTABLE; attn_isa_name((attn_isa)isa); isa++)
        if (attn_isa_available((attn_isa)isa)) best = (attn_isa)isa;
    return best;
}

/* ---- bandwidth ----------------------------------------------------------------------------- */

typedef struct reading {
    const attn_bench_simd *simd;
    char *buffer;
    int64_t bytes; /* of one core's part */
    int rounds;
    _Atomic uint64_t sink; /* of all that was read, so that it is */
} reading;

static void read_part(void *arg, int64_t i, int worker)
{
    reading *r = arg;
    uint64_t sum = 0;
    (void)worker;
    for (int n = 0; n < r->rounds; n++)
        sum ^= r->simd->read(r->buffer + i * r->bytes, r->bytes, 4);
    atomic_fetch_xor_explicit(&r->sink, sum, memory_order_relaxed);
}

static double read_all(reading *r, int threads)
{
    attn_desc desc = { .threads = threads };
    double least = INFINITY;
    if (attn_threads_reserve(&desc, threads)) return 0;
    for (int i = 0; i < TRIES; i++) {
        double start = threads > 1 ? attn_seconds() : thread_seconds();
        attn_threads_each(&desc, threads, threads, read_part, r);
        double end = threads > 1 ? attn_seconds() : thread_seconds();
        if (i > 0) least = fmin(least, end - start); /* the first brings it there */
    }
    return (double)r->bytes * r->rounds * threads / least;
}

/* Bytes a second into a level from that outside: out of a buffer that the one outside holds, and this one does not. */
static attn_status measure_level(attn_machine_level *level, double held, int threads, bool shared)
{
    double part = held / (shared ? threads : 1);
    reading r = { .simd = attn_bench_simd_of(best_isa() == ATTN_ISA_AMX ? ATTN_ISA_AVX512 : best_isa()) };
    r.bytes = (int64_t)part / 4096 * 4096;
    r.rounds = (int)fmax(1, 64e6 / (double)r.bytes);
    r.buffer = attn_bench_alloc(r.bytes * threads);
    if (!r.buffer) return attn_fail(ATTN_NO_MEMORY, "no memory to read from");
    memset(r.buffer, 1, (size_t)(r.bytes * threads));
    level->all = read_all(&r, threads);
    level->one = read_all(&r, 1);
    if (level->all < level->one) level->all = level->one;
    free(r.buffer);
    return ATTN_OK;
}

static attn_machine_level *level_of(attn_machine *m, const char *name)
{
    for (int i = 0; i < m->levels; i++)
        if (strcmp(m->level[i].name, name) == 0) return &m->level[i];
    return NULL;
}

static attn_status measure_levels(attn_machine *m, const attn_cpu_info *info)
{
    attn_machine_level *l1 = level_of(m, "l1"), *l2 = level_of(m, "l2"), *l3 = level_of(m, "l3");
    int threads = info->processors;
    attn_status status = ATTN_OK;
    if (l1 && info->l1) l1->bytes = (double)info->l1, l1->count = threads;
    if (l2 && info->l2) l2->bytes = (double)info->l2, l2->count = threads;
    if (l3 && info->l3) l3->bytes = (double)info->l3;
    double memory = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (l1 && l2 && l2->bytes > 0) status = measure_level(l1, l2->bytes / 2, threads, false);
    if (!status && l2 && l3 && l3->bytes > 0) status = measure_level(l2, l3->bytes / 2, threads, true);
    if (!status && l3) status = measure_level(l3, fmin(4 * fmax(l3->bytes, 32e6), memory / 4), threads, true);
    return status;
}

/* ---- units --------------------------------------------------------------------------------- */

/* Operations a clock of one core. */
static void measure_units(attn_machine *m)
{
    static float row[ROW];
    attn_isa isa = best_isa(), floats = isa > ATTN_ISA_AVX512 && isa <= ATTN_ISA_AMX ? ATTN_ISA_AVX512 : isa;
    const attn_bench_simd *simd = attn_bench_simd_of(floats), *pairs = attn_bench_simd_of(isa);
    double fma = INFINITY, tensor = INFINITY, exp = INFINITY;
    volatile float sink = 0;
    for (int i = 0; i < TRIES; i++) {
        double start = thread_seconds();
        sink += simd->peak();
        fma = fmin(fma, thread_seconds() - start), start = thread_seconds();
        sink += pairs->peak();
        tensor = fmin(tensor, thread_seconds() - start), start = thread_seconds();
        for (int n = 0; n < 64; n++)
            sink += simd->softmax(row, ROW, 1);
        exp = fmin(exp, thread_seconds() - start);
    }
    (void)sink;
    m->unit[ATTN_UNIT_FMA] = simd->peak_flops / fma / m->hertz;
    m->unit[ATTN_UNIT_TENSOR16] = isa != floats ? pairs->peak_flops / tensor / m->hertz : 0;
    m->unit[ATTN_UNIT_TENSOR8] = 0;
    m->unit[ATTN_UNIT_EXP] = 64.0 * ROW / exp / m->hertz;
}

/* Some 20 us of work. */
static void softmax_item(void *arg, int64_t i, int worker)
{
    const attn_bench_simd *simd = arg;
    float row[ROW] = { 0 };
    volatile float sink = 0;
    (void)i, (void)worker;
    for (int n = 0; n < 8; n++)
        sink += simd->softmax(row, ROW, 1);
    (void)sink;
}

/* What a loop over all cores takes longer than one of its items, when one follows another. */
static double measure_start(int threads)
{
    attn_desc desc = { .threads = threads };
    const attn_bench_simd *simd = attn_bench_simd_of(ATTN_ISA_PORTABLE);
    double all = INFINITY, one = INFINITY;
    for (int i = 0; i < TRIES; i++) {
        double start = attn_seconds();
        for (int n = 0; n < LOOPS; n++)
            attn_threads_each(&desc, threads, threads, softmax_item, (void *)(uintptr_t)simd);
        double middle = attn_seconds();
        for (int n = 0; n < LOOPS; n++)
            softmax_item((void *)(uintptr_t)simd, 0, 0);
        all = fmin(all, (middle - start) / LOOPS), one = fmin(one, (attn_seconds() - middle) / LOOPS);
    }
    return fmax(1e-6, all - one);
}

attn_status attn_measure_cpu(attn_machine *m)
{
    attn_cpu_info info;
    attn_cpu_detect(&info);
    double clock = measure_clock();
    if (clock > 0) m->hertz = clock;
    m->cores = info.processors;
    measure_units(m);
    m->start = measure_start(info.processors);
    return measure_levels(m, &info);
}
