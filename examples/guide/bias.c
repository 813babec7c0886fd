/* My own bias and its gradient: one learned bias per head, row and key, shared by both sequences of the batch. */
#include "guide.h"

enum { BATCH = 2, ROWS = 40, HEADS = 2, DIM = 16, COUNT = BATCH * ROWS * HEADS * DIM, BIASES = HEADS * ROWS * ROWS };

/* The sum of o * grad_o in double precision: the loss whose gradient the backward computes. */
static double loss(const float *q, const float *k, const float *v, const float *bias, const float *grad_o)
{
    double sum = 0, o[DIM];
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < ROWS; i++)
            for (int h = 0; h < HEADS; h++) {
                int64_t row = ((b * ROWS + i) * HEADS + h) * DIM, head = (b * ROWS * HEADS + h) * DIM;
                simple_row(q + row, k + head, v + head, 0, ROWS, HEADS * DIM, DIM, bias + (h * ROWS + i) * ROWS,
                           -INFINITY, o);
                for (int d = 0; d < DIM; d++)
                    sum += o[d] * (double)grad_o[row + d];
            }
    return sum;
}

static void run(const attn_desc *desc, const attn_args *args)
{
    attn_plan *plan;
    must(attn_plan_create(&plan, desc));
    void *workspace = take(attn_plan_workspace(plan));
    must(attn_run(plan, args, workspace, NULL));
    free(workspace);
    attn_plan_destroy(plan);
}

int main(void)
{
    float *q = random_floats(COUNT, 1), *k = random_floats(COUNT, 2), *v = random_floats(COUNT, 3);
    float *o = take(COUNT * sizeof *o), *lse = take(BATCH * HEADS * ROWS * sizeof *lse);
    float *bias = random_floats(BIASES, 4), *grad_bias = take(BIASES * sizeof *bias);
    float *grad_o = random_floats(COUNT, 5), *grad_q = take(COUNT * sizeof *q);
    float *grad_k = take(COUNT * sizeof *k), *grad_v = take(COUNT * sizeof *v);

    attn_desc desc = { .dtype = ATTN_F32,
                       .flags = ATTN_BIAS,
                       .bias_dtype = ATTN_F32,
                       .bias_extent = { 1, HEADS, ROWS, ROWS }, /* batch 1: the same for every sequence */
                       .batch = BATCH,
                       .heads_q = HEADS,
                       .len_q = ROWS,
                       .len_kv = ROWS,
                       .dim_qk = DIM };
    attn_args args = { .q = q, .k = k, .v = v, .bias = bias, .o = o, .lse = lse };
    run(&desc, &args); /* writes o and lse */

    desc.direction = ATTN_BACKWARD;
    args.grad_o = grad_o; /* the gradient that comes in */
    args.grad_q = grad_q, args.grad_k = grad_k, args.grad_v = grad_v;
    args.grad_bias = grad_bias;
    run(&desc, &args); /* reads o and lse, writes the gradients */

    double difference = 0;
    for (int n = 0; n < BIASES; n += 161) { /* some biases a little up, then down: how does the loss change? */
        const float step = 1.0f / 64, before = bias[n];
        bias[n] = before + step;
        double up = loss(q, k, v, bias, grad_o);
        bias[n] = before - step;
        double slope = (up - loss(q, k, v, bias, grad_o)) / (2 * (double)step);
        bias[n] = before;
        difference = fmax(difference, fabs(slope - (double)grad_bias[n]));
    }
    free(q), free(k), free(v), free(o), free(lse), free(bias), free(grad_bias), free(grad_o);
    free(grad_q), free(grad_k), free(grad_v);
    return report("gradient of a bias", difference, 1e-4);
}
