#include <math.h>
#include <string.h>
#include <unistd.h>

#include "gpu.h"
#include "problem/sequence.h"

/* Whether the backward's plan has these words. */
static bool plan_says(const attn_cuda_kernel *k, attn_desc desc, const char *words)
{
    attn_plan *plan;
    char text[2000] = "";
    desc.device = ATTN_CUDA, desc.kernel = k->name, desc.direction = ATTN_BACKWARD;
    desc.dtype = k->dtype;
    if (!desc.dim_qk) desc.dim_qk = k->dim;
    if (!desc.dim_v) desc.dim_v = k->dim_v;
    if (attn_plan_create(&plan, &desc)) return false;
    attn_plan_describe(plan, text, sizeof text);
    attn_plan_destroy(plan);
    return strstr(text, words) != NULL;
}

/* Heads of several KV tiles, the last of which finalises dQ: without a mask, causal and by windows, in which work items
 * are the first, the last, both or neither that see a Q tile; rows without keys. Head-persistent: as many KV heads as
 * CTAs, or twice as many. With a dQ semaphore: as few as let CTAs wait for each other. */
static void finalised_heads(const attn_cuda_kernel *k)
{
    static const struct {
        uint32_t flags;
        int64_t left, right, len_q, len_kv, group;
    } cases[] = {
        { 0, 0, 0, 129, 300, 1 },
        { ATTN_CAUSAL, 0, 0, 320, 385, 1 },
        { ATTN_CAUSAL | ATTN_DETERMINISTIC, 0, 0, 129, 260, 2 },
        { ATTN_WINDOW, 130, 20, 200, 390, 1 },
        { ATTN_WINDOW | ATTN_CAUSAL | ATTN_OUT_F32, 40, 0, 100, 260, 3 },
        { ATTN_WINDOW | ATTN_SINK, 10, 200, 300, 257, 1 },
        { ATTN_DETERMINISTIC, 0, 0, 65, 640, 2 },
        { ATTN_WINDOW, -1, 5, 64, 384, 1 },
        { ATTN_CAUSAL, 0, 0, 700, 129, 1 },
    };
    int sms = attn_cuda_machine_get()->device[0].multiprocessors, ctas = sms / k->cluster;
    bool persistent = !(k->features & ATTN_CHUNK) && ATTN_SM90_BACKWARD_HEAD_PERSISTENT(k->dim);
    if (!persistent && !k->finalises_dq) return;
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        if (cases[i].flags & ~k->features) continue;
        int batch = i % 2 ? ctas : 2 * ctas;
        attn_desc desc = { .flags = cases[i].flags,
                           .batch = k->finalises_dq ? (batch + 7) / 8 : batch,
                           .heads_q = cases[i].group,
                           .heads_kv = 1,
                           .len_q = cases[i].len_q,
                           .len_kv = cases[i].len_kv,
                           .window_left = cases[i].left,
                           .window_right = cases[i].right };
        bool all = cases[i].len_q < k->q_tile + cases[i].len_kv + cases[i].right; /* Q tiles see keys */
        result(plan_says(k, desc, "head-persistent:") == (persistent && all), "%s, case %d: head-persistent, or not",
               k->name, i);
        check_kernel(k, desc, options_of(i), false);
    }
}

/* stream-K: equal work items of which a full wave leaves over a few, three per head, or half as many, of heads that
 * share keys, whose Q tiles are odd, so that there are shares of two work items. */
static void stream_k(const attn_cuda_kernel *k)
{
    int ctas = attn_cuda_machine_get()->device[0].multiprocessors / k->cluster, keys = k->kv_tile * k->cluster;
    bool general = k->features & ATTN_CHUNK;
    for (int many = 0; many < 2 && !general && !k->finalises_dq; many++) {
        int64_t heads = many ? ctas + ctas / 2 : ctas / 3 + 1, tiles = many ? 15 : ctas < 16 ? 60 : 25;
        attn_desc desc = { .batch = 1,
                           .heads_q = many ? 3 * heads : heads,
                           .heads_kv = heads,
                           .len_q = tiles * k->q_tile - 5,
                           .len_kv = many ? 20 : 2 * keys + 3 };
        bool persistent = plan_says(k, desc, "head-persistent:"); /* of one tile */
        if (many && !persistent) desc.strategy = "stream-k=23";   /* half a wave is too little for the planner */
        result(persistent ? many : plan_says(k, desc, "stream-K by"), "%s, %d heads, %d ctas: no stream-K", k->name,
               (int)heads, ctas);
        check_kernel(k, desc, options_of(many), false);
    }
}

/* The fused postprocess: of half of the heads after the work items of the others, of heads that share keys after all,
 * without a mask one head at a time; a head's second postprocess item has two Q tiles. */
static void fused_postprocess(const attn_cuda_kernel *k)
{
    int ctas = attn_cuda_machine_get()->device[0].multiprocessors;
    bool general = k->features & ATTN_CHUNK && !k->spans;
    for (int i = 0; i < 3 && k->kv_tile == 128 && !general; i++) {
        int64_t heads = i == 2 ? ctas : ctas / 2 + 9;
        attn_desc desc = { .flags = i == 2 ? 0 : ATTN_CAUSAL,
                           .batch = i == 0 ? 2 : 1,
                           .heads_q = i == 1 ? 2 * heads : heads,
                           .heads_kv = heads,
                           .len_q = 600,
                           .len_kv = k->kv_tile + 2 };
        bool persistent = plan_says(k, desc, "head-persistent:");
        result(persistent ? i == 2 : plan_says(k, desc, "postprocess fused"), "%s, case %d: a separate postprocess",
               k->name, i);
        check_kernel(k, desc, options_of(i), false);
    }
}

/* The fused postprocess where a row of dQ is shorter than a warpgroup's part of the kernel's columns, about as long,
 * and longer: few rows and so many keys that there are more work items than CTAs. */
static void fused_postprocess_of_narrow_rows(const attn_cuda_kernel *k)
{
    const int64_t dims[] = { 8, 16, k->dim / 2 - 8, k->dim / 2, k->dim / 2 + 8, k->dim - 8 }, rows[] = { 1, 7, 16 };
    int ctas = attn_cuda_machine_get()->device[0].multiprocessors;
    bool general = k->features & ATTN_CHUNK;
    for (int i = 0; i < 6 && k->kv_tile == 128 && !general; i++) {
        attn_desc desc = { .batch = 1,
                           .heads_q = 8,
                           .heads_kv = 4,
                           .len_q = rows[i % 3],
                           .len_kv = (ctas / 4 + 2) * k->kv_tile - 3,
                           .dim_qk = dims[i],
                           .dim_v = i < 3 ? 16 : k->dim_v };
        result(plan_says(k, desc, "postprocess fused"), "%s, dim %d: a separate postprocess", k->name, (int)dims[i]);
        check_kernel(k, desc, options_of(2 + 3 * i), false);
    }
}

/* Each row sees one key, so dP and delta cancel, also where the products' dO is the caller's f32, rounded: dQ is 0 but
 * for f32's rounding, where unfused attention's is not. */
static void rows_of_one_key(const attn_cuda_kernel *k)
{
    check_options options = { .data = CHECK_PLAIN, .seed = 4, .no_lse = true };
    check_problem problem;
    char name[CHECK_NAME];
    attn_desc desc = { .dtype = k->dtype,
                       .direction = ATTN_BACKWARD,
                       .flags = ATTN_WINDOW | ATTN_OUT_F32,
                       .batch = 1,
                       .heads_q = 2,
                       .heads_kv = 1,
                       .len_q = k->q_tile + 3,
                       .len_kv = k->q_tile + 3,
                       .dim_qk = k->dim,
                       .dim_v = k->dim_v };
    if (!(k->features & ATTN_WINDOW)) return;
    if (check_problem_create(&problem, &desc, &options)) {
        result(false, "%s: %s", k->name, attn_error());
        return;
    }
    desc.device = ATTN_CUDA, desc.kernel = k->name;
    alarm(WATCHDOG_SECONDS);
    attn_status status = check_problem_run(&problem, &desc, name);
    alarm(0);
    double most = 0;
    for (int64_t i = 0; i < desc.len_q && !status; i++)
        for (int64_t h = 0; h < desc.heads_q; h++) {
            int64_t at = attn_row_at(&problem.resolved, &problem.args, 0, h, i, problem.resolved.grad_q_stride);
            for (int64_t c = 0; c < desc.dim_qk; c++)
                most = fmax(most, fabs((double)((const float *)problem.args.grad_q)[at + c]));
        }
    result(!status, "%s, rows of one key: %s", k->name, attn_error());
    result(most < 1e-4, "%s, rows of one key: dQ has %g", k->name, most);
    check_problem_destroy(&problem);
}

void backward_schedules(const attn_cuda_kernel *k)
{
    rows_of_one_key(k);
    finalised_heads(k);
    stream_k(k);
    fused_postprocess(k);
    fused_postprocess_of_narrow_rows(k);
}
