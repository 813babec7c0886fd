/* cu_lens that say what they must not. A kernel replaces them by the nearest that they may say: then the problem is one
 * that the definition computes. Where nothing of them is right, it still reads and writes its arrays alone. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../scale.h"
#include "check/widen.h"
#include "gpu.h"

/* AROUND: before the first row and after the last. LONG: a sequence of more rows than len_q, keys than len_kv. ANY: not
 * even rising. */
typedef enum wrong_starts { AROUND, LONG, ANY, KINDS } wrong_starts;

enum { MOST_STARTS = 5 };

static void spoil(wrong_starts kind, int64_t batch, int64_t total, int number, int32_t *starts)
{
    const int32_t any[] = { INT_MIN, (int32_t)total, -1, 1, INT_MAX, (int32_t)total / 2, 0, (int32_t)total + 1 };
    if (kind == AROUND) starts[0] = number % 2 ? -1 : INT_MIN;
    if (kind != ANY) starts[batch] = number % 2 ? (int32_t)total + 1 : INT_MAX;
    for (int64_t b = 0; b <= batch && kind == ANY; b++)
        starts[b] = any[(b * 3 + number) % 8];
}

static void check_starts(const attn_cuda_kernel *k, wrong_starts kind, int number)
{
    check_problem problem;
    char name[CHECK_NAME];
    check_options options = options_of(number);
    bool decodes = k->form == ATTN_CUDA_DECODE;
    int64_t more = kind == LONG ? 2 : 1;
    attn_desc desc = { .flags = ATTN_VARLEN | (number % 2 ? ATTN_CAUSAL : 0) | (number % 3 ? 0 : ATTN_DETERMINISTIC),
                       .batch = kind == LONG ? 1 : MOST_STARTS - 1,
                       .heads_q = 2,
                       .heads_kv = 1,
                       .len_q = decodes ? 5 : k->q_tile + 13,
                       .len_kv = 2 * k->kv_tile + 5 };
    desc.total_q = more * desc.len_q, desc.total_kv = more * desc.len_kv;
    if (k->paged) set_pages(&desc, 16);
    options.by = reference_by;
    if (attn_cuda_is_variant(k))
        desc = fit_kernel(k, desc, &options);
    else
        desc.dtype = k->dtype, desc.direction = attn_cuda_direction(k), desc.dim_qk = 40;
    if (k->block_scales) desc.flags |= ATTN_SCALES_KV, desc.k_scale_rows = 64, check_set_scales(&desc, 0x70);
    if (check_problem_create(&problem, &desc, &options)) {
        result(false, "%s: %s", k->name, attn_error());
        return;
    }
    const attn_args right = problem.args;
    int32_t q[MOST_STARTS], kv[MOST_STARTS];
    size_t bytes = sizeof *q * (size_t)(desc.batch + 1);
    memcpy(q, right.cu_lens_q, bytes), spoil(kind, desc.batch, desc.total_q, number, q);
    problem.args.cu_lens_q = q;
    if (right.cu_lens_kv) {
        memcpy(kv, right.cu_lens_kv, bytes), spoil(kind, desc.batch, desc.total_kv, number / 2, kv);
        problem.args.cu_lens_kv = kv;
    }
    desc.device = ATTN_CUDA, desc.kernel = k->name;
    snprintf(watched, sizeof watched, "%s, starts out of range (%d, %d)", k->name, kind, number);
    alarm(WATCHDOG_SECONDS);
    attn_status status = check_problem_run(&problem, &desc, name);
    alarm(0);
    problem.args = right;
    result(!status, "%s: %s", watched, attn_error());
    if (!status && kind != ANY) {
        check_problem_of_kernel(&problem, k);
        check_reference reference = check_reference_create(&problem);
        check_error error = check_compare_again(&problem, check_compare(&problem, &reference));
        result(!error.message[0], "%s: %s", watched, error.message);
        check_reference_destroy(&reference);
    }
    check_problem_destroy(&problem);
}

void starts_out_of_range(const attn_cuda_kernel *k)
{
    if (attn_cuda_is_variant(k) && !(k->features & ATTN_VARLEN)) return;
    if (getenv("ATTN_TEST_BY_CPU")) return; /* the stand-in of the driver computes by the CPU, which refuses these */
    for (int number = 0; number < 12; number += test_scale() < 4 ? 1 : 5)
        if (number % KINDS != ANY || !k->paged) /* other rows see pages that are none */
            check_starts(k, (wrong_starts)(number % KINDS), number);
}
