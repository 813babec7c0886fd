/* Which pairs the reference sees, against masks drawn and painted from the definitions. */
#include "ref_cases.h"

#include "ref/ref.h"

enum { MOST = 16 };

/* A dense mask, painted; hidden where it says so. */
typedef struct dense {
    int rows, keys;
    bool seen[MOST][MOST];
} dense;

static dense all_seen(int rows, int keys)
{
    dense m = { rows, keys, { { false } } };
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < keys; j++)
            m.seen[i][j] = true;
    return m;
}

/* Hides rows [from, to) from a key. */
static void hide(dense *m, int key, int from, int to)
{
    for (int i = from; i < to; i++)
        m->seen[i][key] = false;
}

static void expect_mask(int line, const dense *m, attn_desc desc, const attn_args *args, int64_t batch, int64_t head)
{
    attn_desc d = resolved(desc);
    for (int i = 0; i < m->rows; i++)
        for (int j = 0; j < m->keys; j++)
            if (attn_ref_visible(&d, args, batch, head, i, j) != m->seen[i][j])
                fail_msg("line %d: row %d, key %d of head %d is %s", line, i, j, (int)head,
                         m->seen[i][j] ? "hidden" : "seen");
    assert_false(attn_ref_visible(&d, args, batch, head, -1, 0));
    assert_false(attn_ref_visible(&d, args, batch, head, 0, -1));
    assert_false(attn_ref_visible(&d, args, batch, head, m->rows, 0));
    assert_false(attn_ref_visible(&d, args, batch, head, 0, m->keys));
}
#define MASK(m, desc, args) expect_mask(__LINE__, m, desc, args, 0, 0)

/* Drawings: '1' is seen. */
static dense drawn(int rows, int keys, const char *const *lines)
{
    dense m = { rows, keys, { { false } } };
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < keys; j++)
            m.seen[i][j] = lines[i][j] == '1';
    return m;
}
#define DRAWN(rows, keys, ...) drawn(rows, keys, (const char *const[]){ __VA_ARGS__ })

static void ranges_are_as_drawn(void **state)
{
    (void)state;
    attn_args none = { 0 };
    dense m = DRAWN(3, 5, "11100", "11110", "11111");
    MASK(&m, single(3, 5, ATTN_CAUSAL), &none);
    m = DRAWN(5, 3, "000", "000", "100", "110", "111");
    MASK(&m, single(5, 3, ATTN_CAUSAL), &none);

    attn_desc d = single(4, 5, ATTN_WINDOW); /* t = 1, 2, 3, 4 */
    d.window_left = 1, d.window_right = 2;
    m = DRAWN(4, 5, "11110", "01111", "00111", "00011");
    MASK(&m, d, &none);
    d.window_left = -1;
    m = DRAWN(4, 5, "11110", "11111", "11111", "11111");
    MASK(&m, d, &none);
    d.window_left = 0, d.window_right = -1;
    m = DRAWN(4, 5, "01111", "00111", "00011", "00001");
    MASK(&m, d, &none);
    d.window_left = d.window_right = INT64_MAX;
    m = all_seen(4, 5);
    MASK(&m, d, &none);
    d.window_left = 1, d.window_right = 2, d.flags |= ATTN_CAUSAL;
    m = DRAWN(4, 5, "11000", "01100", "00110", "00011");
    MASK(&m, d, &none);

    d = single(6, 4, ATTN_CHUNK); /* t = -2 ... 3: chunk -1 has no keys */
    d.chunk = 3;
    m = DRAWN(6, 4, "0000", "0000", "1110", "1110", "1110", "0001");
    MASK(&m, d, &none);
    d.flags |= ATTN_CAUSAL;
    m = DRAWN(6, 4, "0000", "0000", "1000", "1100", "1110", "0001");
    MASK(&m, d, &none);
}

/* The prefix joins causal and window, and is cut by every other kind. */
static void prefixes_join(void **state)
{
    (void)state;
    int32_t prefix[] = { 2 };
    attn_args args = { .prefix = prefix };
    dense m = DRAWN(4, 4, "1100", "1100", "1110", "1111");
    MASK(&m, single(4, 4, ATTN_CAUSAL | ATTN_PREFIX), &args);
    attn_desc d = single(4, 4, ATTN_WINDOW | ATTN_PREFIX);
    m = DRAWN(4, 4, "1100", "1100", "1110", "1101");
    MASK(&m, d, &args);
    d.flags |= ATTN_CHUNK, d.chunk = 3;
    m = DRAWN(4, 4, "1100", "1100", "1110", "0001");
    MASK(&m, d, &args);
    m = all_seen(4, 4); /* a prefix of a mask that hides nothing */
    MASK(&m, single(4, 4, ATTN_PREFIX), &args);
}

static void intervals_hide_what_they_name(void **state)
{
    (void)state;
    enum { ROWS = 9, KEYS = 7, HEADS = 2 };
    static const struct {
        int vectors;
        uint32_t flags;
    } kinds[] = { { 1, ATTN_CAUSAL }, { 2, ATTN_CAUSAL }, { 2, 0 }, { 4, 0 } };
    for (int n = 0; n < COUNT(kinds); n++) {
        int vectors = kinds[n].vectors;
        int32_t intervals[2 * HEADS * KEYS * 4];
        uint32_t random = 7;
        for (int i = 0; i < COUNT(intervals); i++)
            random = random * 1664525 + 1013904223, intervals[i] = (int32_t)(random >> 16) % (ROWS + 1);
        attn_desc d = single(ROWS, KEYS, ATTN_INTERVALS | kinds[n].flags);
        d.batch = 2, d.heads_q = 4, d.heads_kv = HEADS, d.interval_vectors = vectors;
        for (int shared = 0; shared < 2; shared++)
            for (int head = 0; head < 4; head++) {
                dense m = all_seen(ROWS, KEYS);
                d.interval_heads = shared ? 1 : HEADS;
                for (int j = 0; j < KEYS; j++) {
                    const int32_t *v = intervals + ((shared ? 1 : HEADS + head / 2) * KEYS + j) * vectors;
                    if (kinds[n].flags) hide(&m, j, 0, j + ROWS - KEYS);
                    if (vectors == 1) hide(&m, j, v[0], ROWS);
                    if (vectors == 2 && kinds[n].flags) hide(&m, j, v[0], v[1]);
                    if (vectors == 2 && !kinds[n].flags) hide(&m, j, v[0], ROWS), hide(&m, j, 0, v[1]);
                    if (vectors == 4) hide(&m, j, v[0], v[1]), hide(&m, j, v[2], v[3]);
                }
                expect_mask(__LINE__, &m, d, &(attn_args){ .intervals = intervals }, 1, head);
            }
    }
}

static void blocks_and_bits_combine(void **state)
{
    (void)state;
    enum { ROWS = 5, KEYS = 7 }; /* blocks of 2 x 3: 3 lines of 3 columns, ragged at both ends */
    static const int32_t full_count[] = { 0, 0, 0, 1, 1, 0 },
                         full[] = { -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, -1, -1, 2 };
    static const int32_t partial_count[] = { 0, 0, 0, 2, 0, 1 };
    static const int32_t partial[] = { -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 2, -1, -1, -1, -1, 1 };
    static const uint8_t bits[] = { 0x55, 0x2a, 0x7f, 0x00, 0x18 };
    attn_args args = { .block_full_count = full_count,
                       .block_full = full,
                       .block_partial_count = partial_count,
                       .block_partial = partial,
                       .bits = bits };
    attn_desc d = single(ROWS, KEYS, ATTN_BLOCKS);
    d.heads_q = 2, d.block_rows = 2, d.block_keys = 3, d.block_batch = 1, d.block_heads = 2;

    dense m = DRAWN(5, 7, "1111111", "1111111", "0000001", "0000001", "0001110");
    expect_mask(__LINE__, &m, d, &args, 0, 1);
    m = DRAWN(5, 7, "0000000", "0000000", "0000000", "0000000", "0000000");
    expect_mask(__LINE__, &m, d, &args, 0, 0);

    attn_desc both = d;
    both.flags |= ATTN_BITS, both.bits_batch = both.bits_heads = 1;
    m = DRAWN(5, 7, "1011111", "0101110", "0000001", "0000001", "0001100"); /* bits rule partial blocks alone */
    expect_mask(__LINE__, &m, both, &args, 0, 1);
    both.flags |= ATTN_CAUSAL; /* and the other kinds full ones too */
    m = DRAWN(5, 7, "1010000", "0101000", "0000000", "0000000", "0001100");
    expect_mask(__LINE__, &m, both, &args, 0, 1);

    args.block_full_count = args.block_full = NULL;
    m = DRAWN(5, 7, "1110001", "1110001", "0000000", "0000000", "0001110");
    expect_mask(__LINE__, &m, d, &args, 0, 1);

    attn_desc alone = single(ROWS, KEYS, ATTN_BITS);
    alone.bits_batch = alone.bits_heads = 1;
    m = DRAWN(5, 7, "1010101", "0101010", "1111111", "0000000", "0001100");
    MASK(&m, alone, &args);
}

static void bits_are_by_batch_and_head(void **state)
{
    (void)state;
    attn_desc d = single(2, 9, ATTN_BITS); /* two bytes a row */
    d.batch = d.heads_q = 2, d.bits_batch = d.bits_heads = 2;
    static const uint8_t bits[] = { 0x01, 0x00, 0x03, 0x01, 0x02, 0x00, 0x05, 0x01,
                                    0x04, 0x00, 0x09, 0x01, 0x80, 0x01, 0x11, 0x00 };
    static const char *const lines[] = { "100000000", "110000001", "010000000", "101000001",
                                         "001000000", "100100001", "000000011", "100010000" };
    attn_args args = { .bits = bits };
    for (int plane = 0; plane < 4; plane++) {
        dense m = drawn(2, 9, lines + 2 * plane);
        expect_mask(__LINE__, &m, d, &args, plane / 2, plane % 2);
    }
}

static void lengths_shift_the_diagonal(void **state)
{
    (void)state;
    attn_desc d = single(4, 6, ATTN_CAUSAL | ATTN_LENS_Q | ATTN_LENS_KV);
    d.batch = 3, d = resolved(d);
    static const int32_t lens_q[] = { 4, 2, 3 }, lens_kv[] = { 6, 5, 2 };
    attn_args args = { .lens_q = lens_q, .lens_kv = lens_kv };
    dense m[3] = { DRAWN(4, 6, "111000", "111100", "111110", "111111"), DRAWN(2, 5, "11110", "11111"),
                   DRAWN(3, 2, "00", "10", "11") };
    for (int b = 0; b < 3; b++)
        expect_mask(__LINE__, &m[b], d, &args, b, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_are_as_drawn),           cmocka_unit_test(prefixes_join),
        cmocka_unit_test(intervals_hide_what_they_name), cmocka_unit_test(blocks_and_bits_combine),
        cmocka_unit_test(bits_are_by_batch_and_head),    cmocka_unit_test(lengths_shift_the_diagonal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
