/* Decode with a cache: one new row per sequence and step. The plan is made once, for the cache's capacity; how much of
 * the cache is used is an argument of each run. */
#include "guide.h"

enum { BATCH = 2, CAPACITY = 512, HEADS_Q = 8, HEADS_KV = 2, DIM = 64, STEPS = 10 };

typedef float cache[BATCH][CAPACITY][HEADS_KV][DIM];

int main(void)
{
    /* New keys and values as a model's projections would give them: for the prompt, then for each step. */
    float *q = random_floats(BATCH * HEADS_Q * DIM, 1), *o = random_floats(BATCH * HEADS_Q * DIM, 2);
    float *new_k = random_floats(sizeof(cache) / sizeof(float), 3),
          *new_v = random_floats(sizeof(cache) / sizeof(float), 4);
    cache *k = take(sizeof *k), *v = take(sizeof *v);
    int32_t used[BATCH] = { 300, 17 }; /* lengths of the prompts */
    for (int b = 0; b < BATCH; b++) {
        size_t from = (size_t)b * CAPACITY * HEADS_KV * DIM, bytes = (size_t)used[b] * HEADS_KV * DIM * sizeof(float);
        memcpy((*k)[b], new_k + from, bytes);
        memcpy((*v)[b], new_v + from, bytes);
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
        for (int b = 0; b < BATCH; b++) { /* append this step's key and value */
            int64_t from = (b * CAPACITY + used[b]) * HEADS_KV * DIM;
            memcpy((*k)[b][used[b]], new_k + from, HEADS_KV * DIM * sizeof(float));
            memcpy((*v)[b][used[b]], new_v + from, HEADS_KV * DIM * sizeof(float));
            used[b]++;
        }
        must(attn_run(plan, &(attn_args){ .q = q, .k = k, .v = v, .o = o, .lens_kv = used }, workspace, NULL));
        for (int b = 0; b < BATCH; b++)
            for (int h = 0; h < HEADS_Q; h++) {
                int64_t row = (b * HEADS_Q + h) * DIM, group = h / (HEADS_Q / HEADS_KV);
                simple_row(q + row, (*k)[b][0][group], (*v)[b][0][group], 0, used[b], HEADS_KV * DIM, DIM, NULL,
                           -INFINITY, simple);
                difference = fmax(difference, row_difference(o + row, simple, DIM));
            }
    }
    attn_plan_destroy(plan);
    free(workspace), free(q), free(o), free(new_k), free(new_v), free(k), free(v);
    return report("decode with a cache", difference, 1e-5);
}
