/* Causal prefill: every row of a prompt sees itself and what came before. 8 query heads share 2 KV heads. */
#include "guide.h"

enum { BATCH = 2, ROWS = 300, HEADS_Q = 8, HEADS_KV = 2, DIM = 64 };

int main(void)
{
    float *q = random_floats(BATCH * ROWS * HEADS_Q * DIM, 1), *o = random_floats(BATCH * ROWS * HEADS_Q * DIM, 2);
    float *k = random_floats(BATCH * ROWS * HEADS_KV * DIM, 3), *v = random_floats(BATCH * ROWS * HEADS_KV * DIM, 4);

    attn_desc desc = { .dtype = ATTN_F32,
                       .flags = ATTN_CAUSAL,
                       .batch = BATCH,
                       .heads_q = HEADS_Q,
                       .heads_kv = HEADS_KV,
                       .len_q = ROWS,
                       .len_kv = ROWS,
                       .dim_qk = DIM };
    attn_plan *plan;
    must(attn_plan_create(&plan, &desc));
    void *workspace = take(attn_plan_workspace(plan));
    must(attn_run(plan, &(attn_args){ .q = q, .k = k, .v = v, .o = o }, workspace, NULL));

    double difference = 0, simple[DIM];
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < ROWS; i += 23)
            for (int h = 0; h < HEADS_Q; h++) {
                int64_t row = ((b * ROWS + i) * HEADS_Q + h) * DIM;
                int64_t head = (b * ROWS * HEADS_KV + h / (HEADS_Q / HEADS_KV)) * DIM;
                simple_row(q + row, k + head, v + head, 0, i + 1, HEADS_KV * DIM, DIM, NULL, -INFINITY, simple);
                difference = fmax(difference, row_difference(o + row, simple, DIM));
            }
    attn_plan_destroy(plan);
    free(workspace), free(q), free(k), free(v), free(o);
    return report("causal prefill", difference, 1e-5);
}
