/* Three documents packed into one sequence, which must not see one another, in two ways that give the same answer:
 *
 *   intervals  FlashMask: each key names the row from which on it is hidden: the end of its document. The mask costs
 *              4 bytes per key, and hidden tiles are skipped, not computed;
 *   varlen     the documents as sequences of a packed batch (cu_lens). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <attn.h>

enum { DOCUMENTS = 3, ROWS = 384, HEADS = 4, DIM = 64, COUNT = ROWS * HEADS * DIM };

static const int32_t starts[DOCUMENTS + 1] = { 0, 100, 228, ROWS };

static void attend(const attn_desc *desc, const attn_args *args)
{
    attn_plan *plan;
    if (attn_plan_create(&plan, desc)) fprintf(stderr, "%s\n", attn_error()), exit(1);
    void *workspace = malloc(attn_plan_workspace(plan));
    if (attn_run(plan, args, workspace, NULL)) fprintf(stderr, "%s\n", attn_error()), exit(1);
    free(workspace);
    attn_plan_destroy(plan);
}

int main(void)
{
    static float q[COUNT], k[COUNT], v[COUNT], by_intervals[COUNT], by_varlen[COUNT]; /* (row, head, dim) */
    for (int i = 0; i < COUNT; i++) {
        q[i] = sinf((float)i * 0.37f);
        k[i] = sinf((float)i * 0.73f);
        v[i] = sinf((float)i * 0.11f);
    }

    int32_t hidden_from[ROWS];
    for (int d = 0; d < DOCUMENTS; d++)
        for (int32_t j = starts[d]; j < starts[d + 1]; j++)
            hidden_from[j] = starts[d + 1];
    attn_desc intervals = { .dtype = ATTN_F32,
                            .flags = ATTN_CAUSAL | ATTN_INTERVALS,
                            .batch = 1,
                            .heads_q = HEADS,
                            .len_q = ROWS,
                            .len_kv = ROWS,
                            .dim_qk = DIM,
                            .interval_vectors = 1,
                            .interval_heads = 1 };
    attend(&intervals, &(attn_args){ .q = q, .k = k, .v = v, .o = by_intervals, .intervals = hidden_from });

    int64_t longest = 0;
    for (int d = 0; d < DOCUMENTS; d++)
        if (starts[d + 1] - starts[d] > longest) longest = starts[d + 1] - starts[d];
    attn_desc varlen = { .dtype = ATTN_F32,
                         .flags = ATTN_CAUSAL | ATTN_VARLEN,
                         .batch = DOCUMENTS,
                         .heads_q = HEADS,
                         .len_q = longest,
                         .len_kv = longest,
                         .total_q = ROWS,
                         .total_kv = ROWS,
                         .dim_qk = DIM };
    attend(&varlen, &(attn_args){ .q = q, .k = k, .v = v, .o = by_varlen, .cu_lens_q = starts, .cu_lens_kv = starts });

    float difference = 0;
    for (int i = 0; i < COUNT; i++)
        difference = fmaxf(difference, fabsf(by_intervals[i] - by_varlen[i]));
    printf("%d documents, %d rows: intervals and varlen differ by at most %.1e\n", DOCUMENTS, ROWS, (double)difference);
    return difference < 1e-5f ? 0 : 1;
}
