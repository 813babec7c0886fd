/* What the machine can do: FMA peak and read bandwidth, on the library's own threads, so that subject and limit wake
 * the same workers. Work is taken in pieces from a counter: a late worker costs its share, not the whole. */
#include <stdatomic.h>
#include <stdlib.h>

#include "bench.h"
#include "command.h"
#include "cpu/threads.h"

enum { FMA_STEPS = 1 << 16, FMA_PIECES = 64, READ_PIECE = 1 << 20 };

struct attn_bench_limit {
    const attn_bench_simd *simd;
    attn_desc threads;
    const char *base[2]; /* NULL: FMA */
    int64_t bytes[2];
    int streams;
    int64_t pieces[2];
    _Atomic int64_t next;
    _Atomic uint64_t sink; /* results go somewhere, so that they are computed */
};

static void fma_work(void *arg, int index)
{
    (void)index;
    attn_bench_limit *limit = arg;
    while (atomic_fetch_add(&limit->next, 1) < limit->pieces[0])
        atomic_fetch_add(&limit->sink, (uint64_t)limit->simd->fma(FMA_STEPS));
}

static void read_work(void *arg, int index)
{
    (void)index;
    attn_bench_limit *limit = arg;
    for (int64_t i; (i = atomic_fetch_add(&limit->next, 1)) < limit->pieces[0] + limit->pieces[1];) {
        int which = i >= limit->pieces[0];
        int64_t offset = (which ? i - limit->pieces[0] : i) * READ_PIECE, left = limit->bytes[which] - offset;
        uint64_t bits =
            limit->simd->read(limit->base[which] + offset, left < READ_PIECE ? left : READ_PIECE, limit->streams);
        atomic_fetch_add(&limit->sink, bits);
    }
}

double attn_bench_limit_run(void *self, int calls)
{
    attn_bench_limit *limit = self;
    double start = attn_seconds();
    for (int i = 0; i < calls; i++) {
        atomic_store(&limit->next, 0);
        attn_threads_run(&limit->threads, limit->base[0] ? read_work : fma_work, limit);
    }
    return (attn_seconds() - start) / calls;
}

double attn_bench_limit_work(const attn_bench_limit *limit)
{
    if (limit->base[0]) return (double)(limit->bytes[0] + limit->bytes[1]);
    return 2.0 * ATTN_BENCH_CHAINS * limit->simd->lanes * FMA_STEPS * (double)limit->pieces[0];
}

static attn_bench_limit *create(const attn_bench_simd *simd, int threads)
{
    attn_bench_limit *limit = calloc(1, sizeof *limit);
    if (!limit || attn_threads_reserve(threads)) {
        attn_bench_fail("no memory or threads for the limits");
        free(limit);
        return NULL;
    }
    limit->simd = simd;
    limit->threads.threads = threads;
    return limit;
}

attn_bench_limit *attn_bench_fma(const attn_bench_simd *simd, int threads)
{
    attn_bench_limit *limit = create(simd, threads);
    if (limit) limit->pieces[0] = (int64_t)FMA_PIECES * threads;
    return limit;
}

attn_bench_limit *attn_bench_read(const attn_bench_simd *simd, int threads, const void *const base[2],
                                  const int64_t bytes[2])
{
    attn_bench_limit *limit = create(simd, threads);
    if (!limit) return NULL;
    for (int i = 0; i < 2; i++) {
        limit->base[i] = base[i];
        limit->bytes[i] = bytes[i];
        limit->pieces[i] = (bytes[i] + READ_PIECE - 1) / READ_PIECE;
    }
    double best = 0.0;
    int best_streams = 1;
    for (int streams = 1; streams <= 8; streams *= 2) {
        limit->streams = streams;
        for (int attempt = 0; attempt < 3; attempt++) {
            double seconds = attn_bench_limit_run(limit, 1);
            if (best == 0.0 || seconds < best) best = seconds, best_streams = streams;
        }
    }
    limit->streams = best_streams;
    return limit;
}

void attn_bench_limit_free(attn_bench_limit *limit)
{
    free(limit);
}
