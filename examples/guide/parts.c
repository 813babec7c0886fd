/* A sequence in parts: two ranks hold a half of its rows and keys each. Here they take turns in one process; between
 * machines keys travel, and gradients of keys travel back. */
#include "guide.h"

enum { ROWS = 256, RANKS = 2, OWN = ROWS / RANKS, HEADS = 2, DIM = 32, COUNT = ROWS * HEADS * DIM };

static void run(const attn_desc *desc, const attn_args *args)
{
    attn_plan *plan;
    must(attn_plan_create(&plan, desc));
    void *workspace = take(attn_plan_workspace(plan));
    must(attn_run(plan, args, workspace, NULL));
    free(workspace);
    attn_plan_destroy(plan);
}

typedef struct tensors {
    float *q, *k, *v, *grad_o; /* of the whole: a rank reads and writes its part of each */
    float *o, *grad_q, *grad_k, *grad_v;
} tensors;

/* What a rank does for its rows. Under a causal mask no row sees a key of a later rank. */
static void attend(const tensors *t, int rank)
{
    int64_t row = rank * OWN, key, head = 0, rows = row * HEADS * DIM;
    float *o = t->o + rows, part_o[OWN * HEADS * DIM];
    float lse[HEADS * OWN], part_lse[HEADS * OWN], delta[HEADS * OWN];
    attn_merge_plan *merge;
    attn_merge_desc two = { .dtype = ATTN_F32, .parts = 2, .batch = 1, .rows = OWN, .heads = HEADS, .dim = DIM };
    must(attn_merge_plan_create(&merge, &two));

    attn_desc desc = { .dtype = ATTN_F32,
                       .flags = ATTN_CAUSAL | ATTN_DROPOUT | ATTN_POSITIONS | ATTN_DROPOUT_BASES,
                       .dropout_p = 0.1f,
                       .batch = 1,
                       .heads_q = HEADS,
                       .len_q = OWN,
                       .len_kv = OWN,
                       .dim_qk = DIM };
    attn_args args = { .q = t->q + rows, .seed = 7 };
    args.position_q = args.dropout_row = &row, args.position_kv = args.dropout_key = &key;
    args.dropout_head = &head;
    for (int part = rank; part >= 0; part--) { /* its own keys, then those that arrive */
        key = part * OWN;
        args.k = t->k + key * HEADS * DIM, args.v = t->v + key * HEADS * DIM;
        args.o = part == rank ? o : part_o, args.lse = part == rank ? lse : part_lse;
        run(&desc, &args);
        if (part == rank) continue;
        const void *part_os[] = { o, part_o };
        const float *part_lses[] = { lse, part_lse };
        attn_merge_args both = { .part_o = part_os, .part_lse = part_lses, .o = o, .lse = lse };
        must(attn_merge_run(merge, &both, NULL));
    }

    desc.direction = ATTN_BACKWARD;
    desc.flags |= ATTN_ADD; /* to gradients that begin with 0 */
    args.lse = lse, args.delta = delta, args.grad_o = t->grad_o + rows, args.grad_q = t->grad_q + rows;
    for (int part = rank; part >= 0; part--) {
        key = part * OWN;
        args.k = t->k + key * HEADS * DIM, args.v = t->v + key * HEADS * DIM;
        args.grad_k = t->grad_k + key * HEADS * DIM, args.grad_v = t->grad_v + key * HEADS * DIM;
        args.o = part == rank ? o : NULL; /* the first part writes delta, */
        run(&desc, &args);
        desc.flags |= ATTN_DELTA; /* the others take it */
    }
    attn_merge_plan_destroy(merge);
}

static double apart(const float *a, const float *b)
{
    double most = 0;
    for (int i = 0; i < COUNT; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

static float *zeros(void)
{
    return memset(take(COUNT * sizeof(float)), 0, COUNT * sizeof(float));
}

int main(void)
{
    tensors whole = { random_floats(COUNT, 1),
                      random_floats(COUNT, 2),
                      random_floats(COUNT, 3),
                      random_floats(COUNT, 4),
                      zeros(),
                      zeros(),
                      zeros(),
                      zeros() };
    tensors parts = whole;
    parts.o = zeros(), parts.grad_q = zeros(), parts.grad_k = zeros(), parts.grad_v = zeros();
    for (int rank = 0; rank < RANKS; rank++)
        attend(&parts, rank);

    static float lse[HEADS * ROWS];
    attn_desc desc = { .dtype = ATTN_F32, .flags = ATTN_CAUSAL | ATTN_DROPOUT, .dropout_p = 0.1f, .batch = 1 };
    desc.heads_q = HEADS, desc.len_q = desc.len_kv = ROWS, desc.dim_qk = DIM;
    attn_args args = { .q = whole.q, .k = whole.k, .v = whole.v, .o = whole.o, .lse = lse, .seed = 7 };
    run(&desc, &args);
    desc.direction = ATTN_BACKWARD;
    args.grad_o = whole.grad_o, args.grad_q = whole.grad_q, args.grad_k = whole.grad_k, args.grad_v = whole.grad_v;
    run(&desc, &args);

    double difference = fmax(fmax(apart(parts.o, whole.o), apart(parts.grad_q, whole.grad_q)),
                             fmax(apart(parts.grad_k, whole.grad_k), apart(parts.grad_v, whole.grad_v)));
    free(whole.q), free(whole.k), free(whole.v), free(whole.grad_o);
    for (int i = 0; i < 2; i++) {
        tensors *t = i ? &whole : &parts;
        free(t->o), free(t->grad_q), free(t->grad_k), free(t->grad_v);
    }
    return report("a sequence in parts", difference, 1e-5);
}
