/* What the machine can do: peak FLOP/s and read bandwidth, on the library's own threads, so that subject and limit wake
 * the same workers, in many pieces, so that a late worker costs its share and not the whole. */
#include <stdatomic.h>
#include <stdlib.h>

#include "bench/bench.h"
#include "cpu/threads.h"

enum { PEAK_PIECES = 64, READ_PIECE = 1 << 20 };

struct attn_bench_limit {
    const attn_bench_simd *simd;
    attn_desc desc;      /* its threads */
    const char *base[2]; /* NULL: FLOPs */
    int64_t bytes[2];
    int streams;
    int64_t pieces[2];
    _Atomic uint64_t sink; /* results go somewhere, so that they are computed */
};

static void peak_piece(void *arg, int64_t i, int worker)
{
    (void)i, (void)worker;
    attn_bench_limit *limit = arg;
    atomic_fetch_add(&limit->sink, (uint64_t)limit->simd->peak());
}

static void read_piece(void *arg, int64_t i, int worker)
{
    (void)worker;
    attn_bench_limit *limit = arg;
    int which = i >= limit->pieces[0];
    int64_t offset = (which ? i - limit->pieces[0] : i) * READ_PIECE, left = limit->bytes[which] - offset;
    const char *from = limit->base[which] + offset;
    atomic_fetch_add(&limit->sink, limit->simd->read(from, left < READ_PIECE ? left : READ_PIECE, limit->streams));
}

double attn_bench_limit_run(void *self, int calls)
{
    attn_bench_limit *limit = self;
    double start = attn_bench_now();
    for (int i = 0; i < calls; i++)
        attn_threads_each(&limit->desc, limit->desc.threads, limit->pieces[0] + limit->pieces[1],
                          limit->base[0] ? read_piece : peak_piece, limit);
    return (attn_bench_now() - start) / calls;
}

double attn_bench_limit_work(const attn_bench_limit *limit)
{
    if (limit->base[0]) return (double)(limit->bytes[0] + limit->bytes[1]);
    return limit->simd->peak_flops * (double)limit->pieces[0];
}

static attn_bench_limit *create(const attn_bench_simd *simd, int threads)
{
    attn_bench_limit *limit = calloc(1, sizeof *limit);
    if (!limit) {
        attn_bench_fail("out of memory");
        return NULL;
    }
    limit->simd = simd;
    limit->desc.threads = threads;
    if (attn_threads_reserve(&limit->desc, threads) == ATTN_OK) return limit;
    attn_bench_fail("%s", attn_error());
    free(limit);
    return NULL;
}

/* Seconds, the least of a few. */
static double least(attn_bench_limit *limit)
{
    double best = 0.0;
    for (int attempt = 0; attempt < 3; attempt++) {
        double seconds = attn_bench_limit_run(limit, 1);
        if (best == 0.0 || seconds < best) best = seconds;
    }
    return best;
}

attn_bench_limit *attn_bench_peak(attn_isa isa, int threads)
{
    attn_bench_limit *limit = create(attn_bench_simd_of(isa), threads);
    if (!limit) return NULL;
    limit->pieces[0] = (int64_t)PEAK_PIECES * threads;
    if (isa != ATTN_ISA_AVX512BF16) return limit;
    /* There are processors whose dot products of bf16 are slower than f32. */
    double rate = attn_bench_limit_work(limit) / least(limit);
    limit->simd = attn_bench_simd_of(ATTN_ISA_AVX512);
    if (attn_bench_limit_work(limit) / least(limit) < rate) limit->simd = attn_bench_simd_of(isa);
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
        double seconds = least(limit);
        if (best == 0.0 || seconds < best) best = seconds, best_streams = streams;
    }
    limit->streams = best_streams;
    return limit;
}

void attn_bench_limit_free(attn_bench_limit *limit)
{
    free(limit);
}
