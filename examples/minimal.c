/* The shortest use: describe, plan, run. Four rows over four keys, two heads, causal. */
#include <stdio.h>
#include <stdlib.h>

#include <attn.h>

int main(void)
{
    enum { ROWS = 4, HEADS = 2, DIM = 2 };
    float q[ROWS * HEADS * DIM], k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM], o[ROWS][HEADS][DIM];
    for (int i = 0; i < ROWS * HEADS * DIM; i++)
        q[i] = k[i] = (float)(i % 5), v[i] = (float)i;

    attn_desc desc = { .dtype = ATTN_F32,
                       .flags = ATTN_CAUSAL,
                       .batch = 1,
                       .heads_q = HEADS,
                       .len_q = ROWS,
                       .len_kv = ROWS,
                       .dim_qk = DIM };
    attn_plan *plan;
    if (attn_plan_create(&plan, &desc)) return fprintf(stderr, "%s\n", attn_error()), 1;
    void *workspace = malloc(attn_plan_workspace(plan));
    attn_args args = { .q = q, .k = k, .v = v, .o = o };
    if (attn_run(plan, &args, workspace, NULL)) return fprintf(stderr, "%s\n", attn_error()), 1;

    for (int row = 0; row < ROWS; row++)
        printf("row %d: head 0 %8.4f %8.4f   head 1 %8.4f %8.4f\n", row, (double)o[row][0][0], (double)o[row][0][1],
               (double)o[row][1][0], (double)o[row][1][1]);
    free(workspace);
    attn_plan_destroy(plan);
    return 0;
}
