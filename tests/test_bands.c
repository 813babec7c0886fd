/* Long problems under a band of keys: a plan packs only the keys that a segment of rows may see. Whatever the band is
 * combined with, all that a row sees must be among them. */
#include "support.h"

enum { LEN = 2600, DIM = 256 };

static const struct band {
    const char *name;
    attn_desc desc;
    bool narrow; /* a plan must need less than all packed keys */
} bands[] = {
    { "window", { .flags = ATTN_WINDOW, .window_left = 20, .window_right = 5 }, true },
    { "window and causal", { .flags = ATTN_WINDOW | ATTN_CAUSAL, .window_left = 40 }, true },
    { "chunk", { .flags = ATTN_CHUNK, .chunk = 50 }, true },
    { "window and chunk",
      { .flags = ATTN_WINDOW | ATTN_CHUNK, .window_left = 9, .window_right = 9, .chunk = 64 },
      true },
    { "window, causal and prefix", { .flags = ATTN_WINDOW | ATTN_CAUSAL | ATTN_PREFIX, .window_left = 20 }, false },
    { "chunk, causal and prefix", { .flags = ATTN_CHUNK | ATTN_CAUSAL | ATTN_PREFIX, .chunk = 100 }, false },
    { "window and used lengths",
      { .flags = ATTN_WINDOW | ATTN_LENS_Q | ATTN_LENS_KV, .window_left = 30, .window_right = 0 },
      true },
    { "window and packed sequences",
      { .flags = ATTN_WINDOW | ATTN_VARLEN, .window_left = 3, .window_right = 30, .total_q = 6000, .total_kv = 6000 },
      true },
    { "window and intervals",
      { .flags = ATTN_WINDOW | ATTN_CAUSAL | ATTN_INTERVALS,
        .window_left = 25,
        .interval_vectors = 1,
        .interval_heads = 1 },
      true },
};

static attn_desc desc_of(const struct band *band)
{
    attn_desc desc = band->desc;
    desc.dtype = ATTN_F32, desc.batch = 2, desc.heads_q = 2, desc.heads_kv = 1;
    desc.len_q = desc.len_kv = LEN, desc.dim_qk = DIM, desc.threads = 2;
    return desc;
}

static void rows_find_their_keys(void **state)
{
    (void)state;
    int rounds = test_scale() > 1 ? 1 : 3;
    for (int i = 0; i < rounds * COUNT(bands); i++) {
        const struct band *band = &bands[i % COUNT(bands)];
        attn_desc desc = desc_of(band);
        check_problem problem;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = (uint64_t)i }));
        check_reference reference = check_reference_create(&problem);
        assert_ok(check_problem_run(&problem, &desc, NULL));
        check_error error = check_compare(&problem, &reference);
        if (error.message[0]) fail_msg("%s: %s", band->name, error.message);
        check_reference_destroy(&reference);
        check_problem_destroy(&problem);
    }
}

static void packed_keys_are_few(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(bands); i++) {
        attn_desc desc = desc_of(&bands[i]);
        desc.len_q = desc.len_kv = 1 << 17; /* so that any cache is too small for all of them */
        if (desc.flags & ATTN_VARLEN) desc.total_q = desc.total_kv = desc.len_q;
        attn_plan *plan;
        attn_plan_info info;
        assert_ok(attn_plan_create(&plan, &desc));
        assert_ok(attn_plan_get_info(plan, &info));
        uint64_t all = (uint64_t)info.threads * (uint64_t)desc.len_kv * 2 * DIM * sizeof(float);
        if (bands[i].narrow && info.packed_kv_bytes > all / 8)
            fail_msg("%s: %llu bytes of packed keys", bands[i].name, (unsigned long long)info.packed_kv_bytes);
        attn_plan_destroy(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_find_their_keys),
        cmocka_unit_test(packed_keys_are_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
