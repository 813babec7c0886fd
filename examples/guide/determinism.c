/* Determinism: the same bits from run to run, and on a CPU for any number of threads. */
#include "guide.h"

enum { ROWS = 200, HEADS = 4, DIM = 64, COUNT = ROWS * HEADS * DIM };

static void run(int threads, attn_direction direction, const attn_args *args)
{
    attn_desc desc = { .dtype = ATTN_F32,
                       .direction = direction,
                       .flags = ATTN_CAUSAL | ATTN_DETERMINISTIC,
                       .threads = threads,
                       .batch = 1,
                       .heads_q = HEADS,
                       .heads_kv = 1,
                       .len_q = ROWS,
                       .len_kv = ROWS,
                       .dim_qk = DIM };
    attn_plan *plan;
    must(attn_plan_create(&plan, &desc));
    void *workspace = take(attn_plan_workspace(plan));
    must(attn_run(plan, args, workspace, NULL));
    free(workspace);
    attn_plan_destroy(plan);
}

int main(void)
{
    enum { KEYS = ROWS * DIM };
    float *q = random_floats(COUNT, 1), *k = random_floats(KEYS, 2), *v = random_floats(KEYS, 3);
    float *grad_o = random_floats(COUNT, 4), *lse = random_floats(HEADS * ROWS, 5), *o[3], *grad[3];
    int different = 0;
    for (int i = 0; i < 3; i++) {
        o[i] = random_floats(COUNT, 6), grad[i] = random_floats(COUNT + 2 * KEYS, 7);
        attn_args args = { .q = q, .k = k, .v = v, .o = o[i], .lse = lse };
        run(1 + i, ATTN_FORWARD, &args); /* with 1, 2 and 3 threads */
        args.grad_o = grad_o;
        args.grad_q = grad[i], args.grad_k = grad[i] + COUNT, args.grad_v = grad[i] + COUNT + KEYS;
        run(1 + i, ATTN_BACKWARD, &args);
        different += memcmp(o[0], o[i], COUNT * sizeof(float)) != 0;
        different += memcmp(grad[0], grad[i], (COUNT + 2 * KEYS) * sizeof(float)) != 0;
    }
    for (int i = 0; i < 3; i++)
        free(o[i]), free(grad[i]);
    free(q), free(k), free(v), free(grad_o), free(lse);
    printf("results with 1, 2 and 3 threads: %s\n", different ? "they DIFFER" : "the same bits");
    return different != 0;
}
