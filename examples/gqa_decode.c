/* Decoding from a KV cache: one new row a step and sequence, 32 query heads over 8 KV heads, bf16.
 *
 * The plan is made once for the cache's capacity; how much of it is used is a run argument (ATTN_LENS_KV), so a step
 * allocates and plans nothing. Two sequences of different length share the batch. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <attn.h>

enum { BATCH = 2, HEADS_Q = 32, HEADS_KV = 8, DIM = 128, CAPACITY = 1024, STEPS = 8 };

typedef uint16_t bf16;
typedef bf16 cache[BATCH][CAPACITY][HEADS_KV][DIM];

static bf16 to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Stands for the model: what its projections would give for one token. */
static void project(bf16 *x, int count, int token)
{
    for (int i = 0; i < count; i++)
        x[i] = to_bf16(sinf((float)(token * 131 + i * 7)));
}

int main(void)
{
    cache *k = calloc(1, sizeof *k), *v = calloc(1, sizeof *v);
    bf16 q[BATCH][1][HEADS_Q][DIM];
    float o[BATCH][1][HEADS_Q][DIM];
    int32_t used[BATCH] = { 700, 90 }; /* the prompts */
    if (!k || !v) return 1;
    for (int b = 0; b < BATCH; b++)
        for (int j = 0; j < used[b]; j++)
            project((*k)[b][j][0], HEADS_KV * DIM, j), project((*v)[b][j][0], HEADS_KV * DIM, j + 1);

    attn_desc desc = { .dtype = ATTN_BF16,
                       .flags = ATTN_LENS_KV | ATTN_OUT_F32,
                       .batch = BATCH,
                       .heads_q = HEADS_Q,
                       .heads_kv = HEADS_KV,
                       .len_q = 1,
                       .len_kv = CAPACITY,
                       .dim_qk = DIM };
    attn_plan *plan;
    if (attn_plan_create(&plan, &desc)) return fprintf(stderr, "%s\n", attn_error()), 1;
    void *workspace = malloc(attn_plan_workspace(plan));

    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < BATCH; b++) {
            project(q[b][0][0], HEADS_Q * DIM, used[b]);
            project((*k)[b][used[b]][0], HEADS_KV * DIM, used[b]);
            project((*v)[b][used[b]][0], HEADS_KV * DIM, used[b] + 1);
            used[b]++;
        }
        attn_args args = { .q = q, .k = k, .v = v, .o = o, .lens_kv = used };
        if (attn_run(plan, &args, workspace, NULL)) return fprintf(stderr, "%s\n", attn_error()), 1;
        printf("step %d: %4d keys -> %+.5f   %4d keys -> %+.5f\n", step, used[0], (double)o[0][0][0][0], used[1],
               (double)o[1][0][0][0]);
    }
    free(workspace);
    attn_plan_destroy(plan);
    free(k);
    free(v);
    return 0;
}
