/* Window and sink: a row sees itself and the 127 keys before it; each head has one learned logit more in its
 * denominator, so that a row may attend to nothing. */
#include "guide.h"

enum { ROWS = 600, HEADS = 4, DIM = 64, BEFORE = 127 };

int main(void)
{
    float *q = random_floats(ROWS * HEADS * DIM, 1), *k = random_floats(ROWS * HEADS * DIM, 2);
    float *v = random_floats(ROWS * HEADS * DIM, 3), *o = random_floats(ROWS * HEADS * DIM, 4);

    const float sink[HEADS] = { -1, 0, 2, 5 };
    attn_desc desc = { .dtype = ATTN_F32,
                       .flags = ATTN_WINDOW | ATTN_SINK,
                       .window_left = BEFORE,
                       .window_right = 0,
                       .batch = 1,
                       .heads_q = HEADS,
                       .len_q = ROWS,
                       .len_kv = ROWS,
                       .dim_qk = DIM };
    attn_plan *plan;
    must(attn_plan_create(&plan, &desc));
    void *workspace = take(attn_plan_workspace(plan));
    must(attn_run(plan, &(attn_args){ .q = q, .k = k, .v = v, .o = o, .sink = sink }, workspace, NULL));

    double difference = 0, simple[DIM];
    for (int i = 0; i < ROWS; i += 11)
        for (int h = 0; h < HEADS; h++) {
            int64_t row = (i * HEADS + h) * DIM, head = h * DIM, first = i > BEFORE ? i - BEFORE : 0;
            simple_row(q + row, k + head, v + head, first, i + 1, HEADS * DIM, DIM, NULL, (double)sink[h], simple);
            difference = fmax(difference, row_difference(o + row, simple, DIM));
        }
    attn_plan_destroy(plan);
    free(workspace), free(q), free(k), free(v), free(o);
    return report("window and sink", difference, 1e-5);
}
