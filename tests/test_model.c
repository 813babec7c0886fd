/* The napkin's arithmetic against sums worked by hand, the closed form against the optimum, and the optimum against
 * every partition there is. */
#include "support.h"

#include <math.h>

#include "planner/model.h"

/* ---- models -------------------------------------------------------------------------------- */

enum { HEAD, ROW, KEY, DIM, ATTENTION_AXES };
enum { Q = 0, K, V, O, S };
enum { TENSOR, EXP };

/* Heads of `group` query heads each over a KV head, whose rows are one axis; `bytes` an element, sums in as many. */
static attn_model attention(int64_t heads, int64_t rows, int64_t keys, int64_t dim, double bytes)
{
    const uint32_t q = 1u << HEAD | 1u << ROW | 1u << DIM, k = 1u << HEAD | 1u << KEY | 1u << DIM;
    const uint32_t s = 1u << HEAD | 1u << ROW | 1u << KEY;
    return (attn_model){
        .axes = ATTENTION_AXES,
        .axis = { { "head", heads, 1 }, { "row", rows, 1 }, { "key", keys, 1 }, { "dim", dim, 1 } },
        .arrays = 5,
        .array = { { "q", q, { bytes }, ATTN_MODEL_READ, 0, 0, 0 },
                   { "k", k, { bytes }, ATTN_MODEL_READ, 0, 0, 0 },
                   { "v", k, { bytes }, ATTN_MODEL_READ, 0, 0, 0 },
                   { "o", q, { bytes }, ATTN_MODEL_WRITTEN, 0, 0, 0 },
                   { "s", s, { bytes }, ATTN_MODEL_READ | ATTN_MODEL_WRITTEN, 1, 0, 0 } },
        .columns = 2,
        .column = { 1u << Q | 1u << K | 1u << S | 1u << O, 1u << Q | 1u << V | 1u << S | 1u << O },
        .works = 2,
        .work = { { "products", s, TENSOR, 4.0 * (double)dim, 0 }, { "exponentials", s, EXP, 1, 0 } },
    };
}

static attn_partition tiled(const attn_model *m, int64_t rows, int64_t keys)
{
    attn_partition p;
    attn_partition_whole(m, 2, &p);
    p.tile[1][HEAD] = 1, p.tile[1][ROW] = rows, p.tile[1][KEY] = keys;
    p.streamed[1] = 1u << KEY;
    return p;
}

enum { A, B, C };

/* a x b by b x c. */
static attn_model matmul(int64_t a, int64_t b, int64_t c)
{
    return (attn_model){
        .axes = 3,
        .axis = { { "a", a, 1 }, { "b", b, 1 }, { "c", c, 1 } },
        .arrays = 3,
        .array = { { "x", 1u << A | 1u << B, { 1 }, ATTN_MODEL_READ, 0, 0, 0 },
                   { "y", 1u << B | 1u << C, { 1 }, ATTN_MODEL_READ, 0, 0, 0 },
                   { "z", 1u << A | 1u << C, { 1 }, ATTN_MODEL_WRITTEN, 0, 0, 0 } },
        .columns = 1,
        .column = { 7 },
    };
}

/* ---- bytes --------------------------------------------------------------------------------- */

static void near(double a, double b, double share)
{
    if (!(fabs(a - b) <= share * fabs(b))) fail_msg("%.17g is not %.17g", a, b);
}

static void attention_by_hand(void **state)
{
    (void)state;
    attn_model m = attention(3, 1000, 700, 64, 2);
    attn_partition p = tiled(&m, 128, 96);
    /* queries and output once, keys and values once a tile of 128 rows: 8 of them */
    near(attn_model_transfer(&m, &p, 1), 2.0 * 3 * 64 * (2 * 1000 + 2 * 700 * 8), 0);
    near(attn_model_least(&m), 2.0 * 3 * 64 * (2 * 1000 + 2 * 700), 0);
    near(attn_model_live(&m, &p, 1), 2.0 * (64 * (2 * 128 + 96) + 128 * 96), 0);
    near(attn_model_operations(&m, TENSOR), 4.0 * 64 * 3 * 1000 * 700, 0);
    near(attn_model_operations(&m, EXP), 3.0 * 1000 * 700, 0);
    m.array[K].density = m.array[V].density = m.work[0].density = 0.25; /* a mask keeps a quarter of the blocks */
    near(attn_model_transfer(&m, &p, 1), 2.0 * 3 * 64 * (2 * 1000 + 0.25 * 2 * 700 * 8), 0);
    near(attn_model_operations(&m, TENSOR), 64.0 * 3 * 1000 * 700, 0);
}

/* Warpgroups of 64 rows, two at a time, read shared memory: queries once a tile of keys if they do not stay. */
static void levels(void **state)
{
    (void)state;
    attn_model m = attention(1, 1024, 2048, 128, 2);
    m.array[S].home = 2; /* registers */
    attn_partition p = tiled(&m, 128, 176);
    p.levels = 3;
    for (int i = 0; i < m.axes; i++)
        p.tile[2][i] = p.tile[1][i];
    p.streamed[2] = 1u << KEY;
    p.tile[2][ROW] = 64;
    double once = 2.0 * 128 * 1024, keys = 2.0 * 128 * 2048;
    near(attn_model_transfer(&m, &p, 2), 2 * 12 * once + 2 * keys * 16, 0); /* 2048 keys are 12 tiles of 176 */
    p.side_by_side[2] = 2;
    near(attn_model_transfer(&m, &p, 2), 2 * once + 2 * keys * 16, 0);
    near(attn_model_live(&m, &p, 2), 2 * 2.0 * (128 * (2 * 64 + 176) + 64 * 176), 0);
}

/* Scores that lie in L2 are written and read by every level inside. */
static void home_and_precision(void **state)
{
    (void)state;
    attn_model m = attention(1, 960, 1024, 64, 2);
    for (int i = 0; i < 5; i++)
        m.array[i].bytes[1] = 4; /* packed as floats */
    attn_partition p = tiled(&m, 96, 256);
    p.levels = 3;
    p.tile[2][HEAD] = 1, p.tile[2][ROW] = 6, p.tile[2][KEY] = 16, p.tile[2][DIM] = 64;
    p.streamed[2] = 1u << ROW; /* a panel of keys stays, rows pass */
    near(attn_model_crossing(&m, &p, 1, K), 2.0 * 64 * 1024 * 10, 0);
    near(attn_model_crossing(&m, &p, 1, S), 0, 0);
    near(attn_model_crossing(&m, &p, 2, K), 4.0 * 64 * 1024 * 10, 0); /* once a tile of 96 rows */
    near(attn_model_crossing(&m, &p, 2, Q), 4.0 * 64 * 960 * 64, 0);  /* once a panel of 16 keys */
    near(attn_model_crossing(&m, &p, 2, S), 2 * 4.0 * 960 * 1024, 0);
}

/* Query heads in rows share what passes while they fit a tile. */
static void grouped_heads(void **state)
{
    (void)state;
    const int64_t group = 8, tile = 128;
    for (int64_t rows = 1; rows <= 64; rows *= 2) {
        attn_model apart = attention(group, rows, 4096, 128, 2), packed = attention(1, group * rows, 4096, 128, 2);
        attn_partition p = tiled(&apart, tile, 64), r = tiled(&packed, tile, 64);
        double saved = attn_model_crossing(&apart, &p, 1, K) * (double)group / attn_model_crossing(&packed, &r, 1, K);
        near(saved, group * rows <= tile ? 64 : 64.0 / ceil((double)(group * rows) / tile), 0);
    }
}

/* ---- the closed form ----------------------------------------------------------------------- */

static void closed_attention(void **state)
{
    (void)state;
    const double n = 8192, d = 64;
    double alpha[2];
    for (int wide = 0; wide < 2; wide++) {
        double bytes = 1 + wide;
        attn_model m = attention(1, (int64_t)n, (int64_t)n, (int64_t)d, bytes);
        attn_partition p = tiled(&m, 1, 1);
        attn_model_closed closed = attn_model_close(&m, &p);
        assert_true(closed.exact);
        near(closed.beta, 1, 0);
        near(closed.alpha, bytes * bytes * 4 * n * n * d * d, 1e-12); /* H* = 4 N^2 d^2 / M + 2 N d */
        near(closed.least, bytes * 2 * n * d, 1e-12);
        alpha[wide] = closed.alpha;
    }
    near(alpha[1] / alpha[0], 4, 1e-12); /* q^(1 + beta) */
}

static void closed_matmul(void **state)
{
    (void)state;
    const double a = 3000, b = 2000, c = 1000;
    attn_model m = matmul((int64_t)a, (int64_t)b, (int64_t)c);
    attn_partition p;
    attn_partition_whole(&m, 2, &p);
    p.tile[1][A] = p.tile[1][B] = p.tile[1][C] = 1;
    p.streamed[1] = 1u << B;
    attn_model_closed closed = attn_model_close(&m, &p);
    assert_true(closed.exact);
    near(closed.beta, 0.5, 0);
    near(closed.alpha, 2 * a * b * c, 1e-12);
    near(closed.least, a * c, 1e-12);
}

/* Two outputs of one axis each: what stays is a sum. */
static void closed_sum(void **state)
{
    (void)state;
    attn_model m = matmul(1 << 14, 1, 1 << 14);
    m.array[2].direction = 0; /* nothing spans both */
    m.column[0] = 3;
    attn_partition p;
    attn_partition_whole(&m, 2, &p);
    p.tile[1][A] = p.tile[1][C] = 1;
    attn_model_closed closed = attn_model_close(&m, &p);
    assert_true(closed.exact);
    near(closed.beta, 1, 0);
    near(closed.alpha, 4.0 * 0x1p28, 1e-12);
    p.tile[1][A] = p.tile[1][C] = 0;
    assert_true(attn_model_optimum(&m, &p, 1, 256));
    near(attn_model_transfer(&m, &p, 1), closed.alpha / 256, 1e-12);
}

/* Where tiles are large beside chunks the optimum is what the closed form says. */
static void closed_is_reached(void **state)
{
    (void)state;
    for (double capacity = 32768; capacity <= 524288; capacity *= 2) {
        attn_model m = attention(1, 1 << 20, 1 << 20, 64, 1), square = matmul(1 << 16, 1 << 10, 1 << 16);
        m.array[S].bytes[0] = 0; /* scores are not held */
        attn_partition p = tiled(&m, 0, 0), r;
        attn_model_closed closed = attn_model_close(&m, &p);
        assert_true(attn_model_optimum(&m, &p, 1, capacity));
        near(attn_model_transfer(&m, &p, 1), closed.least + closed.alpha / capacity, 0.02);
        attn_partition_whole(&square, 2, &r);
        r.tile[1][A] = r.tile[1][B] = r.tile[1][C] = 0;
        r.streamed[1] = 1u << B;
        closed = attn_model_close(&square, &r);
        assert_true(attn_model_optimum(&square, &r, 1, capacity));
        near(attn_model_transfer(&square, &r, 1), closed.least + closed.alpha / sqrt(capacity), 0.02);
    }
}

/* ---- the optimum --------------------------------------------------------------------------- */

/* Every pair of tiles, and chunks of the least size. */
static double best_by_trial(const attn_model *m, int64_t b, double capacity)
{
    attn_partition p;
    double best = INFINITY;
    attn_partition_whole(m, 2, &p);
    p.streamed[1] = 1u << B;
    p.tile[1][B] = b;
    for (int64_t a = m->axis[A].multiple; a < m->axis[A].size + m->axis[A].multiple; a += m->axis[A].multiple)
        for (int64_t c = m->axis[C].multiple; c < m->axis[C].size + m->axis[C].multiple; c += m->axis[C].multiple) {
            p.tile[1][A] = a, p.tile[1][C] = c;
            if (attn_model_live(m, &p, 1) <= capacity) best = fmin(best, attn_model_transfer(m, &p, 1));
        }
    return best;
}

static void optimum_is_least(void **state)
{
    (void)state;
    for (int64_t a = 40; a <= 200; a += 53)
        for (int64_t c = 1; c <= 300; c += 71)
            for (int64_t multiple = 1; multiple <= 48; multiple = multiple * 3 + 1)
                for (double capacity = 300; capacity <= 60000; capacity *= 3) {
                    attn_model m = matmul(a, 64, c);
                    m.axis[A].multiple = multiple, m.axis[C].multiple = 8, m.axis[B].multiple = 4;
                    attn_partition p;
                    attn_partition_whole(&m, 2, &p);
                    p.tile[1][A] = p.tile[1][B] = p.tile[1][C] = 0;
                    p.streamed[1] = 1u << B;
                    bool fits = attn_model_optimum(&m, &p, 1, capacity);
                    double best = best_by_trial(&m, 4, capacity);
                    assert_int_equal(fits, isfinite(best));
                    assert_int_equal(p.tile[1][A] % multiple + p.tile[1][B] % 4 + p.tile[1][C] % 8, 0);
                    if (!fits) continue;
                    assert_true(attn_model_live(&m, &p, 1) <= capacity);
                    near(attn_model_transfer(&m, &p, 1), best, 0);
                    p.tile[1][B] += 4; /* no greater chunk would fit, unless it was whole */
                    assert_true(p.tile[1][B] > 64 || attn_model_live(&m, &p, 1) > capacity ||
                                ceil(64.0 / (double)(p.tile[1][B] - 4)) == ceil(64.0 / (double)p.tile[1][B]));
                }
}

/* ---- time ---------------------------------------------------------------------------------- */

static void predicted_time(void **state)
{
    (void)state;
    attn_model m = attention(16, 4096, 4096, 128, 2);
    attn_partition p = tiled(&m, 128, 128);
    attn_model_rates rates = { .bandwidth = { 0, 1e12 }, .unit = { 1e15, 4e12 } };
    double tensor = 4.0 * 128 * 16 * 4096 * 4096 / 1e15, exp = 16.0 * 4096 * 4096 / 4e12;
    double level = attn_model_transfer(&m, &p, 1) / 1e12;
    attn_model_time t = attn_model_predict(&m, &p, &rates);
    near(t.seconds, level, 1e-12);
    assert_int_equal(t.bound_level, 1);
    rates.bandwidth[1] = 1e15, rates.exposed = 0.5;
    t = attn_model_predict(&m, &p, &rates);
    assert_int_equal(t.bound_level, -1);
    assert_int_equal(t.bound_unit, TENSOR);
    near(t.seconds, tensor + 0.5 * (exp + level / 1000), 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_by_hand),  cmocka_unit_test(levels),
        cmocka_unit_test(home_and_precision), cmocka_unit_test(grouped_heads),
        cmocka_unit_test(closed_attention),   cmocka_unit_test(closed_matmul),
        cmocka_unit_test(closed_sum),         cmocka_unit_test(closed_is_reached),
        cmocka_unit_test(optimum_is_least),   cmocka_unit_test(predicted_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
