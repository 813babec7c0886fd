/* Packed batch: sequences of any lengths stored back to back, without padding. No row sees another sequence. */
#include "guide.h"

enum { SEQUENCES = 3, TOTAL = 400, LONGEST = 250, HEADS = 4, DIM = 32 };

int main(void)
{
    float *q = random_floats(TOTAL * HEADS * DIM, 1), *k = random_floats(TOTAL * HEADS * DIM, 2);
    float *v = random_floats(TOTAL * HEADS * DIM, 3), *o = random_floats(TOTAL * HEADS * DIM, 4);

    int32_t start[SEQUENCES + 1] = { 0, 100, 350, TOTAL }; /* where each sequence starts; then the end */
    attn_desc desc = { .dtype = ATTN_F32,
                       .flags = ATTN_CAUSAL | ATTN_VARLEN,
                       .batch = SEQUENCES,
                       .heads_q = HEADS,
                       .len_q = LONGEST,
                       .len_kv = LONGEST,
                       .total_q = TOTAL,
                       .total_kv = TOTAL,
                       .dim_qk = DIM };
    attn_plan *plan;
    must(attn_plan_create(&plan, &desc));
    void *workspace = take(attn_plan_workspace(plan));
    attn_args args = { .q = q, .k = k, .v = v, .o = o, .cu_lens_q = start, .cu_lens_kv = start };
    must(attn_run(plan, &args, workspace, NULL));

    double difference = 0, simple[DIM];
    for (int s = 0; s < SEQUENCES; s++)
        for (int i = start[s]; i < start[s + 1]; i += 7)
            for (int h = 0; h < HEADS; h++) {
                int64_t row = (i * HEADS + h) * DIM, head = h * DIM;
                simple_row(q + row, k + head, v + head, start[s], i + 1, HEADS * DIM, DIM, NULL, -INFINITY, simple);
                difference = fmax(difference, row_difference(o + row, simple, DIM));
            }
    attn_plan_destroy(plan);
    free(workspace), free(q), free(k), free(v), free(o);
    return report("packed batch", difference, 1e-5);
}
