#include <math.h>
#include <stdio.h>

#include "num/half.h"
#include "gpu.h"

/* Scores that rise by 240 from a Q tile's first KV tile on, which is that of the last keys: with an unchecked max each
 * Q tile overflows, and is retried. */
static void overflows(const attn_cuda_kernel *k)
{
    static const uint32_t flags[] = { 0, ATTN_CAUSAL, ATTN_VARLEN };
    for (int i = 0; i < 3; i++) {
        attn_desc desc = { .flags = flags[i], .batch = 2, .heads_q = 4, .heads_kv = 2, .len_q = 3 * k->q_tile + 1 };
        if (flags[i] & ~k->features) continue;
        desc.len_kv = desc.len_q + 3 * k->kv_tile, desc.scale = 8 / sqrtf((float)k->dim);
        if (flags[i] == ATTN_VARLEN) desc.total_q = 2 * desc.len_q, desc.total_kv = 2 * desc.len_kv;
        check_kernel(k, desc, (check_options){ .data = CHECK_DESCENDING, .seed = 4 }, false);
    }
}

/* A row's later keys, from which its max would come, may be masked by the lowest number or by -100. */
static void low_biases(const attn_cuda_kernel *k)
{
    static const uint32_t flags[] = { 0, ATTN_CAUSAL, ATTN_LENS_KV };
    for (int i = 0; i < 3; i++) {
        attn_desc desc = { .flags = flags[i], .batch = 2, .heads_q = 4, .heads_kv = 2, .len_q = 2 * k->q_tile + 1 };
        desc.len_kv = 5 * k->kv_tile + 6 + i;
        check_kernel(k, desc, (check_options){ .seed = 4, .bias_lowest = true }, false);
    }
}

/* All keys are masked by the lowest number: each row is the mean of v, where its keys are not split. */
static void lowest_biases(const attn_cuda_kernel *k)
{
    check_problem problem;
    attn_desc desc = { .dtype = k->dtype, .batch = 2, .heads_q = 2, .len_q = 70, .dim_qk = k->dim, .dim_v = k->dim_v };
    char name[CHECK_NAME];
    desc.len_kv = 4 * k->kv_tile + 1;
    check_problem_fit_bias(&desc);
    const check_options options = { .seed = 4 };
    if (check_problem_create(&problem, &desc, &options)) {
        result(false, "%s: %s", k->name, attn_error());
        return;
    }
    const int64_t keys = desc.len_kv, dims = desc.dim_v, pitch = (keys + 7) / 8 * 8;
    for (int64_t i = 0; i < attn_bias_count(&desc); i++) /* rows have gaps between them */
        attn_store_scalar(desc.dtype, (void *)problem.args.bias, i / keys * pitch + i % keys, -0x1.fep127f);
    desc.device = ATTN_CUDA, desc.kernel = k->name, desc.strategy = "split-kv=1";
    attn_status status = check_problem_run(&problem, &desc, name);
    double worst = status ? INFINITY : 0;
    for (int64_t line = 0; line < desc.batch * desc.len_q * desc.heads_q && !status; line++)
        for (int64_t c = 0; c < dims; c++) {
            double mean = 0;
            for (int64_t j = 0; j < keys; j++) {
                int64_t row = line / desc.heads_q / desc.len_q * keys + j;
                mean += (double)attn_load_scalar(desc.dtype, problem.args.v,
                                                 (row * desc.heads_q + line % desc.heads_q) * dims + c) /
                        (double)keys;
            }
            double o = (double)attn_load_scalar(desc.dtype, problem.args.o, line * dims + c);
            worst = fmax(worst, isfinite(o) ? fabs(o - mean) : INFINITY);
        }
    result(worst < 0.005, "%s: masked rows are %g off the mean of v", k->name, worst);
    check_problem_destroy(&problem);
}

/* Equal Q tiles, five per head, or one of packed heads: the KV tiles of those that full waves leave over are split, as
 * the strategy says. */
static void last_waves(const attn_cuda_kernel *k)
{
    int sms = attn_cuda_machine_get()->device[0].multiprocessors;
    int64_t heads = (sms + 3) / 4;
    for (int i = 0; i < 4; i++) {
        attn_desc desc = { .batch = 2, .heads_q = heads, .heads_kv = i < 2 ? 1 : heads, .len_q = 4 * k->q_tile + 1 };
        attn_desc packed = { .batch = sms + sms / 4, .heads_q = 2, .heads_kv = 1, .len_q = 3 };
        char strategy[96];
        int over = i % 2 ? sms / 4 : (int)(10 * heads % sms);
        snprintf(strategy, sizeof strategy, "split-kv=3,split-tail=%d,%s", over > 0 ? over : 1,
                 i % 2 ? "pack-gqa" : "no-pack-gqa");
        desc.strategy = packed.strategy = strategy;
        desc.flags = packed.flags = i < 2 ? 0 : ATTN_OUT_F32 | ATTN_SINK;
        desc.len_kv = packed.len_kv =
            16 * k->kv_tile - (k->kv_tile % 3 ? 3 : 5); /* no multiple of 2 or 3: all of a bias */
        check_kernel(k, i % 2 ? packed : desc, options_of(i + 1), true);
    }
}

void forward_tiles(const attn_cuda_kernel *k)
{
    overflows(k);
    if (k->needs & ATTN_BIAS) low_biases(k), lowest_biases(k);
    if (!k->paged && !k->spans) last_waves(k); /* lengths of pages differ, and spans: so do Q tiles */
}
