/* Decode with a cache: one new row per sequence and step. The plan is made once, for the cache's capacity; how much of
 * the cache is used is an argument of each run. */
#include "guide.h"

enum { BATCH = 2, CAPACITY = 512, HEADS_Q = 8, HEADS_KV = 2, DIM = 64, ROW = HEADS_KV * DIM, STEPS = 10 };

int main(void)
{
    float *q = random_floats(BATCH * HEADS_Q * DIM, 1), *o = random_floats(BATCH * HEADS_Q * DIM, 2);
    float *k = take(BATCH * CAPACITY * ROW * sizeof *k), *v = take(BATCH * CAPACITY * ROW * sizeof *v);
    int32_t used[BATCH] = { 300, 17 }; /* lengths of the prompts */
    for (int b = 0; b < BATCH; b++) {
        float *prompt_k = random_floats(used[b] * ROW, 3), *prompt_v = random_floats(used[b] * ROW, 4);
        memcpy(k + b * CAPACITY * ROW, prompt_k, (size_t)(used[b] * ROW) * sizeof *k);
        memcpy(v + b * CAPACITY * ROW, prompt_v, (size_t)(used[b] * ROW) * sizeof *v);
        free(prompt_k), free(prompt_v);
    }

    attn_desc desc = { .dtype = ATTN_F32,
                       .flags = ATTN_LENS_KV,
                       .batch = BATCH,
                       .heads_q = HEADS_Q,
                       .heads_kv = HEADS_KV,
                       .len_q = 1,
                       .len_kv = CAPACITY,
                       .dim_qk = DIM };
    attn_plan *plan;
    must(attn_plan_create(&plan, &desc));
    void *workspace = take(attn_plan_workspace(plan));

    double difference = 0, simple[DIM];
    for (int step = 0; step < STEPS; step++) {
        /* As a model's projections would give them: one key and value of each sequence. */
        float *new_k = random_floats(BATCH * ROW, 5 + (uint32_t)step), *new_v = random_floats(BATCH * ROW, 99);
        for (int b = 0; b < BATCH; b++) {
            int32_t at = (b * CAPACITY + used[b]) * ROW; /* k and v are (sequence, row, head, dim) */
            memcpy(k + at, new_k + b * ROW, ROW * sizeof *k);
            memcpy(v + at, new_v + b * ROW, ROW * sizeof *v);
            used[b]++;
        }
        must(attn_run(plan, &(attn_args){ .q = q, .k = k, .v = v, .o = o, .lens_kv = used }, workspace, NULL));
        free(new_k), free(new_v);
        for (int b = 0; b < BATCH; b++)
            for (int h = 0; h < HEADS_Q; h++) {
                int64_t row = (b * HEADS_Q + h) * DIM, first = b * CAPACITY * ROW + h / (HEADS_Q / HEADS_KV) * DIM;
                simple_row(q + row, k + first, v + first, 0, used[b], ROW, DIM, NULL, -INFINITY, simple);
                difference = fmax(difference, row_difference(o + row, simple, DIM));
            }
    }
    attn_plan_destroy(plan);
    free(workspace), free(q), free(o), free(k), free(v);
    return report("decode with a cache", difference, 1e-5);
}
