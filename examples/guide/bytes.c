/* A cache of bytes: keys and values are kept as integers of 8 bits, each row of a head with a scale of its own, and
 * read by queries of 32 bits. What that costs is compared with the same rows in full. */
#include "guide.h"

enum { BATCH = 2, KEYS = 600, HEADS_Q = 8, HEADS_KV = 2, DIM = 64, ROW = HEADS_KV * DIM };

/* The nearest bytes; returns what they are to be multiplied by. */
static float quantise(const float *row, int8_t *bytes)
{
    float most = 0;
    for (int d = 0; d < DIM; d++)
        most = fmaxf(most, fabsf(row[d]));
    float scale = most > 0 ? most / 127 : 1;
    for (int d = 0; d < DIM; d++)
        bytes[d] = (int8_t)lrintf(row[d] / scale);
    return scale;
}

int main(void)
{
    float *q = random_floats(BATCH * HEADS_Q * DIM, 1), *o = random_floats(BATCH * HEADS_Q * DIM, 2);
    float *k = random_floats(BATCH * KEYS * ROW, 3), *v = random_floats(BATCH * KEYS * ROW, 4);
    int8_t *k_bytes = take(BATCH * KEYS * ROW), *v_bytes = take(BATCH * KEYS * ROW);
    float *k_scale = take(BATCH * KEYS * HEADS_KV * sizeof *k_scale),
          *v_scale = take(BATCH * KEYS * HEADS_KV * sizeof *v_scale);

    for (int64_t i = 0; i < BATCH * KEYS * HEADS_KV; i++) { /* (sequence, row, head), as k and v are */
        k_scale[i] = quantise(k + i * DIM, k_bytes + i * DIM);
        v_scale[i] = quantise(v + i * DIM, v_bytes + i * DIM);
    }

    attn_desc desc = { .dtype = ATTN_F32,
                       .kv_dtype = ATTN_I8,
                       .flags = ATTN_SCALES_KV,
                       .batch = BATCH,
                       .heads_q = HEADS_Q,
                       .heads_kv = HEADS_KV,
                       .len_q = 1,
                       .len_kv = KEYS,
                       .dim_qk = DIM,
                       .k_scale_rows = 1, /* of each row, */
                       .v_scale_rows = 1,
                       .k_scale_stride = { KEYS * HEADS_KV, HEADS_KV, 1, 0 }, /* and head */
                       .v_scale_stride = { KEYS * HEADS_KV, HEADS_KV, 1, 0 } };
    attn_plan *plan;
    must(attn_plan_create(&plan, &desc));
    void *workspace = take(attn_plan_workspace(plan));
    attn_args args = { .q = q, .k = k_bytes, .v = v_bytes, .o = o, .k_scale = k_scale, .v_scale = v_scale };
    must(attn_run(plan, &args, workspace, NULL));

    double difference = 0, simple[DIM];
    for (int b = 0; b < BATCH; b++)
        for (int h = 0; h < HEADS_Q; h++) {
            int64_t row = (b * HEADS_Q + h) * DIM, first = b * KEYS * ROW + h / (HEADS_Q / HEADS_KV) * DIM;
            simple_row(q + row, k + first, v + first, 0, KEYS, ROW, DIM, NULL, -INFINITY, simple);
            difference = fmax(difference, row_difference(o + row, simple, DIM));
        }
    attn_plan_destroy(plan);
    free(workspace), free(q), free(o), free(k), free(v), free(k_bytes), free(v_bytes), free(k_scale), free(v_scale);
    return report("a cache of bytes", difference, 1e-3);
}
