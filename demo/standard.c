/* Standard attention on OpenBLAS, found when running; its threads for the products, ours for the softmax. The softmax
 * is the vectorised one of `attn bench`, over the visible part of each row; the division is left to O. */
#include "standard.h"

#include <dlfcn.h>
#include <string.h>

#include "bench/bench.h"
#include "cpu/threads.h"

typedef void sgemm_function(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a,
                            int lda, const float *b, int ldb, float beta, float *c, int ldc);

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112, ROWS_TASK = 64 };

static sgemm_function *sgemm;

typedef struct softmax_job {
    const attn_bench_simd *simd;
    int64_t rows, keys;
    float scale;
    float *scores, *sums;
} softmax_job;

bool standard_load(int threads)
{
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    void (*set_threads)(int) = NULL;
    if (!library) return false;
    *(void **)&sgemm = dlsym(library, "cblas_sgemm");
    *(void **)&set_threads = dlsym(library, "openblas_set_num_threads");
    if (!sgemm || !set_threads) return false;
    set_threads(threads);
    return true;
}

int64_t standard_bytes(int64_t rows, int64_t keys)
{
    return rows * (keys + 1) * (int64_t)sizeof(float);
}

static void softmax_rows(void *arg, int64_t task, int worker)
{
    const softmax_job *job = arg;
    (void)worker;
    for (int64_t i = task * ROWS_TASK; i < job->rows && i < (task + 1) * ROWS_TASK; i++) {
        int64_t seen = i < job->keys ? i : job->keys;
        float *row = job->scores + i * job->keys;
        job->sums[i] = seen > 0 ? job->simd->softmax(row, seen, job->scale) : 1.0f;
        memset(row + seen, 0, (size_t)(job->keys - seen) * sizeof *row);
    }
}

void standard_attend(int64_t rows, int64_t keys, int64_t dim_qk, int64_t dim_v, float scale, const float *q,
                     const float *k, const float *v, float *o, float *scores, int threads)
{
    attn_isa best = ATTN_ISA_AVX512;
    while (!attn_isa_available(best))
        best = (attn_isa)(best - 1);
    softmax_job job = { attn_bench_simd_of(best), rows, keys, scale, scores, scores + rows * keys };
    sgemm(ROW_MAJOR, NO_TRANS, TRANS, (int)rows, (int)keys, (int)dim_qk, 1.0f, q, (int)dim_qk, k, (int)dim_qk, 0.0f,
          scores, (int)keys);
    attn_threads_each(&(attn_desc){ 0 }, threads, (rows + ROWS_TASK - 1) / ROWS_TASK, softmax_rows, &job);
    sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, (int)rows, (int)dim_v, (int)keys, 1.0f, scores, (int)keys, v, (int)dim_v, 0.0f,
          o, (int)dim_v);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < dim_v; c++)
            o[i * dim_v + c] /= job.sums[i];
}
