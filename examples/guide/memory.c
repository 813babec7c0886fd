/* Memory: a plan knows its workspace to the byte before anything runs, and running allocates nothing. */
#include "guide.h"

enum { HEADS = 8, DIM = 64, ROWS = 512, GUARD = 64 };

static attn_desc problem(int64_t rows, attn_direction direction)
{
    return (attn_desc){ .dtype = ATTN_F32,
                        .direction = direction,
                        .flags = ATTN_CAUSAL,
                        .batch = 1,
                        .heads_q = HEADS,
                        .len_q = rows,
                        .len_kv = rows,
                        .dim_qk = DIM };
}

/* Bytes that a problem needs besides its tensors. Nothing of that size is allocated to find out. */
static size_t workspace_of(const attn_desc *desc)
{
    attn_plan *plan;
    must(attn_plan_create(&plan, desc));
    size_t bytes = attn_plan_workspace(plan);
    attn_plan_destroy(plan);
    return bytes;
}

int main(void)
{
    for (int64_t rows = 1024; rows <= 65536; rows *= 8) {
        attn_desc forward = problem(rows, ATTN_FORWARD), backward = problem(rows, ATTN_BACKWARD);
        double scores = (double)rows * (double)rows * HEADS * sizeof(float);
        printf("%6d rows: forward %8.2f MiB, backward %8.2f MiB, a score matrix would take %9.0f MiB\n", (int)rows,
               (double)workspace_of(&forward) / 1048576, (double)workspace_of(&backward) / 1048576, scores / 1048576);
    }

    /* Exactly that many bytes are used, at any alignment: a byte before and those after stay as they are. */
    attn_desc desc = problem(ROWS, ATTN_FORWARD);
    attn_plan *plan;
    must(attn_plan_create(&plan, &desc));
    size_t bytes = attn_plan_workspace(plan);
    unsigned char *memory = take(bytes + 1 + GUARD);
    memset(memory, 0xa5, bytes + 1 + GUARD);
    float *q = random_floats(ROWS * HEADS * DIM, 1), *o = random_floats(ROWS * HEADS * DIM, 2);
    must(attn_run(plan, &(attn_args){ .q = q, .k = q, .v = q, .o = o }, memory + 1, NULL));
    int changed = memory[0] != 0xa5;
    for (int i = 0; i < GUARD; i++)
        changed += memory[1 + bytes + (size_t)i] != 0xa5;
    attn_plan_destroy(plan);
    free(memory), free(q), free(o);
    printf("bytes changed outside the workspace: %d\n", changed);

    attn_desc large = problem(65536, ATTN_FORWARD);
    return changed != 0 || workspace_of(&large) > (size_t)1 << 30;
}
