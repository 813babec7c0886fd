/* What a plan promises: the kernel that it should take, for every feature; its text and numbers; a workspace of exactly
 * the size it says, at any address. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

#include "base/detect.h"
#include "cpu/cpu.h"
#include "processor.h"

#include <time.h>

static attn_desc base_desc(int64_t len_q, int64_t len_kv)
{
    return (attn_desc){ .dtype = ATTN_F32,
                        .batch = 2,
                        .heads_q = 4,
                        .heads_kv = 2,
                        .len_q = len_q,
                        .len_kv = len_kv,
                        .dim_qk = 64,
                        .threads = 2 };
}

static attn_plan *plan_of(const attn_desc *desc)
{
    attn_plan *plan = NULL;
    assert_ok(attn_plan_create(&plan, desc));
    return plan;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

static const struct feature {
    const char *name;
    attn_desc desc; /* added to the base */
} features[] = {
    { "plain", { 0 } },
    { "causal", { .flags = ATTN_CAUSAL } },
    { "window", { .flags = ATTN_WINDOW, .window_left = 5, .window_right = 5 } },
    { "chunk", { .flags = ATTN_CHUNK, .chunk = 64 } },
    { "prefix", { .flags = ATTN_CAUSAL | ATTN_PREFIX } },
    { "intervals", { .flags = ATTN_INTERVALS, .interval_vectors = 4, .interval_heads = 2 } },
    { "blocks", { .flags = ATTN_BLOCKS, .block_rows = 64, .block_keys = 64, .block_batch = 1, .block_heads = 4 } },
    { "bits", { .flags = ATTN_BITS, .bits_batch = 2, .bits_heads = 1 } },
    { "varlen", { .flags = ATTN_VARLEN, .total_q = 3000, .total_kv = 9000 } },
    { "lens", { .flags = ATTN_LENS_Q | ATTN_LENS_KV } },
    { "softcap", { .flags = ATTN_SOFTCAP, .softcap = 15 } },
    { "alibi", { .flags = ATTN_ALIBI, .alibi_batch = 2 } },
    { "bias", { .flags = ATTN_BIAS, .bias_dtype = ATTN_BF16, .bias_extent = { 1, 1, 1, 1 } } },
    { "sink", { .flags = ATTN_SINK } },
    { "dropout", { .flags = ATTN_DROPOUT, .dropout_p = 0.1f } },
    { "deterministic", { .flags = ATTN_DETERMINISTIC } },
    { "f16", { .dtype = ATTN_F16 } },
    { "bf16 to f32", { .dtype = ATTN_BF16, .flags = ATTN_OUT_F32 } },
    { "dim 512", { .dim_qk = 512 } },
    { "dim 1", { .dim_qk = 1, .dim_v = 512 } },
};

static attn_desc with(const struct feature *f, int64_t len_q, int64_t len_kv)
{
    attn_desc desc = f->desc, base = base_desc(len_q, len_kv);
    desc.dtype = desc.dtype ? desc.dtype : base.dtype;
    desc.batch = base.batch, desc.heads_q = base.heads_q, desc.heads_kv = base.heads_kv;
    desc.len_q = base.len_q, desc.len_kv = base.len_kv, desc.threads = base.threads;
    desc.dim_qk = desc.dim_qk ? desc.dim_qk : base.dim_qk;
    return desc;
}

/* Whether the kernel may be taken: the first of this form in the table, which is best first, that the machine runs and
 * isa allows, for the problem; or, if isa does not ask for it, one after it that is not the portable one. */
static bool may_be_taken(const char *name, attn_form form, const attn_desc *desc)
{
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count), *first = NULL;
    for (int i = 0; i < count; i++) {
        const attn_cpu_kernel *k = &kernels[i];
        bool can = k->form == form && (runs(k) || runs_backward(k)) && k->dtypes >> desc->dtype & 1 &&
                   (desc->flags & ~k->features) == 0 && (desc->isa == ATTN_ISA_AUTO || k->isa <= desc->isa);
        if (!can) continue;
        if (!first) first = k;
        if (strcmp(k->name, name) == 0)
            return k == first || (desc->isa == ATTN_ISA_AUTO && k->isa != ATTN_ISA_PORTABLE);
    }
    return false;
}

/* Many query rows prefill, one decodes, the backward is one: with every feature, on every instruction set. */
static void kernel_is_the_best_one(void **state)
{
    (void)state;
    unsetenv("ATTN_ISA");
    for (int isa = ATTN_ISA_AUTO; attn_isa_name((attn_isa)isa) != NULL; isa++) {
        if (!attn_isa_available((attn_isa)isa)) continue;
        for (int f = 0; f < COUNT(features); f++)
            for (int form = 0; form < ATTN_FORMS; form++) {
                attn_desc desc = with(&features[f], form == ATTN_DECODE ? 1 : 1000, 4096);
                desc.isa = (attn_isa)isa;
                if (form == ATTN_GRADIENT) desc.direction = ATTN_BACKWARD;
                attn_plan_info info = info_of(&desc);
                if (!may_be_taken(info.kernel, (attn_form)form, &desc))
                    fail_msg("%s, %d rows, form %d, isa %s: %s", features[f].name, (int)desc.len_q, form,
                             attn_isa_name(desc.isa), info.kernel);
            }
    }
}

/* A flag that the header will have one day: no kernel takes it and ignores it. */
static void new_flags_are_refused(void **state)
{
    (void)state;
    const uint32_t known = (2 * ATTN_SCALES_Q - 1) | ATTN_DROPOUT_BASES | ATTN_DELTA | ATTN_ADD;
    int count, run = 0;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++)
        for (int bit = 0; bit < 32; bit++) {
            if (known >> bit & 1) continue;
            const attn_cpu_kernel *k = &kernels[i];
            attn_desc desc = { .dtype = k->dtypes >> ATTN_F32 & 1 ? ATTN_F32 : ATTN_BF16,
                               .direction = k->form == ATTN_GRADIENT ? ATTN_BACKWARD : ATTN_FORWARD,
                               .batch = 1,
                               .heads_q = 1,
                               .heads_kv = 1,
                               .len_q = 1,
                               .len_kv = 1,
                               .dim_qk = 8,
                               .dim_v = 8 };
            bool here = !attn_cpu_obstacle(k, &desc, ATTN_ISA_AUTO);
            desc.flags = 1u << bit;
            const char *why = attn_cpu_obstacle(k, &desc, ATTN_ISA_AUTO);
            if (!why || k->features >> bit & 1) fail_msg("%s takes flag %d", k->name, bit);
            if (here) assert_string_equal(why, attn_lacking(1u << bit));
            run += here;
        }
    assert_true(run > 0);
    for (int bit = 0; bit < 32; bit++) {
        if (known >> bit & 1) continue;
        attn_plan plan = { .desc = { .dtype = ATTN_F64, .flags = 1u << bit, .batch = 1 } };
        assert_int_equal(attn_reference_backend.create(&plan), ATTN_UNSUPPORTED);
        assert_non_null(strstr(attn_error(), "ATTN_F64 does not take 0x"));
    }
}

static void kernel_can_be_asked_for(void **state)
{
    (void)state;
    attn_desc desc = base_desc(10, 100);
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++) {
        attn_plan *plan = NULL;
        desc.kernel = kernels[i].name, desc.dtype = dtype_of(&kernels[i]);
        desc.direction = kernels[i].form == ATTN_GRADIENT ? ATTN_BACKWARD : ATTN_FORWARD;
        if (runs(&kernels[i]) || runs_backward(&kernels[i]))
            assert_string_equal(info_of(&desc).kernel, desc.kernel);
        else
            assert_int_equal(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED);
        desc.direction = desc.direction == ATTN_FORWARD ? ATTN_BACKWARD : ATTN_FORWARD;
        assert_int_equal(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED);
    }
    attn_plan *plan = (attn_plan *)&desc;
    desc.direction = ATTN_FORWARD, desc.kernel = "portable_backward", desc.dtype = ATTN_F32;
    assert_int_equal(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED);
    assert_non_null(strstr(attn_error(), "the other direction"));
    desc.kernel = "portable_decode", desc.len_q = ATTN_DECODE_ROWS + 1;
    assert_int_equal(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED);
    assert_non_null(strstr(attn_error(), "len_q"));
    desc.kernel = "imaginary";
    assert_int_equal(attn_plan_create(&plan, &desc), ATTN_INVALID);
    assert_non_null(strstr(attn_error(), "imaginary"));
    assert_ptr_equal(plan, &desc); /* a failure writes nothing */
}

/* ---- strategies ------------------------------------------------------------------------------ */

static void words_of_a_strategy_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t rows;
        attn_direction direction;
        attn_status status;
        const char *says; /* NULL: taken */
    } cases[] = {
        { "", 10, ATTN_FORWARD, ATTN_OK, NULL },
        { " , ,", 10, ATTN_FORWARD, ATTN_OK, NULL },
        { "form=decode, split-kv=2", 10, ATTN_FORWARD, ATTN_OK, NULL },
        { "quick", 10, ATTN_FORWARD, ATTN_INVALID, "quick is not a word of the CPU forward: form, threads" },
        { "stream-k=2", 10, ATTN_BACKWARD, ATTN_INVALID, "stream-k=2 is not a word of the CPU backward" },
        { "kv-heads=1", 10, ATTN_BACKWARD, ATTN_INVALID, "kv-heads=1 is not a word of the CPU backward" },
        { "split-kv", 10, ATTN_FORWARD, ATTN_INVALID, "split-kv=N, N from 1 to 2147483647, or no-split-kv" },
        { "split-kv=0", 10, ATTN_FORWARD, ATTN_INVALID, "N from 1 to 2147483647" },
        { "split-kv=2x", 10, ATTN_FORWARD, ATTN_INVALID, "split-kv=2x" },
        { "split-kv=-1", 10, ATTN_FORWARD, ATTN_INVALID, "split-kv=-1" },
        { "split-kv=4294967298", 10, ATTN_FORWARD, ATTN_INVALID, "split-kv=4294967298" },
        { "no-split-kv=2", 10, ATTN_FORWARD, ATTN_INVALID, "no-split-kv=2" },
        { "no-form", 10, ATTN_FORWARD, ATTN_INVALID, "form=prefill, form=decode" },
        { "form=encode", 10, ATTN_FORWARD, ATTN_INVALID, "form=prefill, form=decode" },
        { "split-kv=2,no-split-kv", 10, ATTN_FORWARD, ATTN_INVALID, "there twice" },
        { "form=decode", 17, ATTN_FORWARD, ATTN_UNSUPPORTED, "16 query rows" },
        { "form=prefill,split-kv=2", 10, ATTN_FORWARD, ATTN_UNSUPPORTED, "split-kv" },
        { "form=decode,split-kv=1000", 10, ATTN_FORWARD, ATTN_UNSUPPORTED, "without a key" },
        { "kv-heads=3", 10, ATTN_FORWARD, ATTN_UNSUPPORTED, "kv-heads" },
        { "threads=3", 10, ATTN_FORWARD, ATTN_UNSUPPORTED, "threads" },
        { "q-tile=7", 100, ATTN_FORWARD, ATTN_UNSUPPORTED, "q-tile" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        attn_desc desc = base_desc(cases[i].rows, 1000);
        attn_plan *plan = NULL;
        desc.strategy = cases[i].text, desc.direction = cases[i].direction;
        attn_status status = attn_plan_create(&plan, &desc);
        if (status != cases[i].status || (cases[i].says && !strstr(attn_error(), cases[i].says)))
            fail_msg("\"%s\": %s, %s", cases[i].text, attn_status_name(status), attn_error());
        attn_plan_destroy(plan);
    }
}

/* Where the planner would not take it, with every feature. */
static void strategy_is_followed(void **state)
{
    (void)state;
    for (int f = 0; f < COUNT(features); f++) {
        attn_desc desc = with(&features[f], 5, 700);
        desc.strategy = "form=decode,split-kv=3,kv-tile=32,kv-heads=2,threads=1";
        assert_int_equal(info_of(&desc).splits, 3);
        assert_int_equal(info_of(&desc).kv_tile, 32);
        assert_int_equal(info_of(&desc).threads, 1);
        desc.strategy = "form=prefill,q-tile=96,q-segment=192";
        attn_plan_info info = info_of(&desc);
        assert_int_equal(info.q_tile, 96);
        desc.direction = ATTN_BACKWARD, desc.strategy = "q-tile=144 kv-tile=96 split-kv=5";
        info = info_of(&desc);
        assert_true(info.q_tile == 144 && info.kv_tile == 96 && info.splits == 5);
    }
}

/* As for one thread, but that few heads over many keys are split: more threads must find work. */
static void deterministic_decode_is_split(void **state)
{
    (void)state;
    attn_desc desc = base_desc(1, 100000);
    desc.batch = 1, desc.heads_q = desc.heads_kv = 1;
    desc.flags = ATTN_DETERMINISTIC, desc.strategy = "form=decode";
    desc.threads = 1;
    int splits = info_of(&desc).splits;
    assert_true(splits >= 16);
    desc.threads = 8;
    assert_int_equal(info_of(&desc).splits, splits);
    assert_int_equal(info_of(&desc).threads, 8);
}

static void environment_is_asked_too(void **state)
{
    (void)state;
    attn_desc desc = base_desc(100, 100);
    attn_plan *plan;
    setenv("ATTN_ISA", "portable", 1);
    assert_string_equal(info_of(&desc).isa, "portable");
    setenv("ATTN_ISA", "sse9", 1);
    assert_int_equal(attn_plan_create(&plan, &desc), ATTN_INVALID);
    assert_non_null(strstr(attn_error(), "sse9"));
    desc.isa = ATTN_ISA_PORTABLE; /* the descriptor goes first */
    assert_string_equal(info_of(&desc).isa, "portable");
    unsetenv("ATTN_ISA");
}

/* ---- text and numbers ------------------------------------------------------------------------ */

static void text_is_cut_like_snprintf(void **state)
{
    (void)state;
    static char whole[4096], cut[4096];
    attn_desc desc = base_desc(1000, 4096);
    desc.flags = ATTN_CAUSAL;
    attn_plan *plan = plan_of(&desc);
    attn_plan_info info;
    assert_ok(attn_plan_get_info(plan, &info));
    size_t length = attn_plan_describe(plan, whole, sizeof whole);
    assert_true(length > 100 && length < sizeof whole);
    assert_int_equal(strlen(whole), length);
    assert_non_null(strstr(whole, info.kernel));
    assert_non_null(strstr(whole, info.why));
    assert_int_equal(attn_plan_describe(plan, NULL, 0), length);
    for (size_t size = 1; size <= length + 2; size++) {
        memset(cut, 'x', sizeof cut);
        assert_int_equal(attn_plan_describe(plan, cut, size), length);
        size_t kept = size - 1 < length ? size - 1 : length;
        assert_memory_equal(cut, whole, kept);
        assert_int_equal(cut[kept], '\0');
        for (size_t i = kept + 1; i < size + 10; i++)
            assert_int_equal(cut[i], 'x');
    }
    attn_plan_destroy(plan);
}

static void f64_says_that_it_is_slow(void **state)
{
    (void)state;
    char text[1024];
    attn_desc desc = base_desc(8, 8);
    desc.dtype = ATTN_F64;
    attn_plan *plan = plan_of(&desc);
    attn_plan_describe(plan, text, sizeof text);
    assert_non_null(strstr(text, "from the definition: slow\n"));
    assert_null(strstr(text, "predicted")); /* nobody knows */
    attn_plan_destroy(plan);
}

static void numbers_add_up(void **state)
{
    (void)state;
    attn_desc desc = base_desc(100, 300);
    desc.flags = ATTN_CAUSAL, desc.dim_v = 32;
    desc.direction = ATTN_BACKWARD;
    attn_plan_info backward = info_of(&desc);
    desc.direction = ATTN_FORWARD;
    attn_plan_info info = info_of(&desc);
    double pairs = 2 * 4 * (100.0 * 200 + 100.0 * 101 / 2);
    assert_true(info.pairs == pairs);
    assert_true(info.flops == 2 * pairs * (64 + 32));
    assert_true(backward.pairs == pairs && backward.flops == 2.5 * info.flops);
    assert_true(backward.seconds > info.seconds && backward.memory_bytes > info.memory_bytes);
    assert_true(info.seconds > 0 && info.memory_bytes >= 2 * 100 * 4 * (64 + 32) * 4 && info.cache_bytes > 0);
    assert_true(info.packed_kv_bytes <= info.workspace_bytes);
    assert_true(info.threads >= 1 && info.threads <= 2 && info.splits >= 1);
    attn_plan *plan = plan_of(&desc);
    assert_int_equal(info.workspace_bytes, attn_plan_workspace(plan));
    struct { /* a caller with an older header gets what fits, one with a newer one zeros */
        attn_plan_info known;
        char more[16];
    } larger;
    memset(&larger, 'x', sizeof larger);
    assert_ok(attn_plan_get_info_sized(plan, &larger.known, sizeof(const char *)));
    assert_string_equal(larger.known.kernel, info.kernel);
    assert_int_equal(*(char *)&larger.known.isa, 'x');
    assert_ok(attn_plan_get_info_sized(plan, &larger.known, sizeof larger));
    for (size_t i = 0; i < sizeof larger.more; i++)
        assert_int_equal(larger.more[i], 0);
    attn_plan_destroy(plan);
}

/* Memory beside the packed keys and values stays small, however long the problem. */
static void workspace_does_not_grow_with_length(void **state)
{
    (void)state;
    attn_desc desc = {
        .dtype = ATTN_F32, .batch = 1, .heads_q = 1, .len_q = 65536, .len_kv = 65536, .dim_qk = 64, .threads = 2
    };
    attn_plan_info info = info_of(&desc);
    assert_true(info.packed_kv_bytes >= 65536 * 64 * 2 * 4);
    assert_true(info.workspace_bytes - info.packed_kv_bytes <= 1 << 20);
}

/* The backward holds the gradient of the queries, a copy a split, a thread's packed queries and gradients of the
 * output, and two numbers a row. */
static void workspace_of_the_backward_is_linear(void **state)
{
    (void)state;
    for (int64_t len = 4096; len <= 1 << 20; len *= 4) {
        attn_desc desc = { .dtype = ATTN_F32,
                           .direction = ATTN_BACKWARD,
                           .batch = 1,
                           .heads_q = 1,
                           .len_q = len,
                           .len_kv = len,
                           .dim_qk = 64,
                           .threads = 2 };
        attn_plan_info info = info_of(&desc);
        uint64_t copies = (uint64_t)(info.splits > info.threads ? info.splits : info.threads);
        assert_true(copies <= 8);
        uint64_t floats = copies * 64 + (uint64_t)info.threads * 128;
        assert_true(info.workspace_bytes <= (uint64_t)len * (floats * 4 + 16) + (2 << 20));
    }
}

/* ---- workspace ------------------------------------------------------------------------------- */

/* At each address modulo 64; the bytes before and after are not touched. */
static void workspace_is_exact_at_any_address(void **state)
{
    (void)state;
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int n = 0; n < count * 64; n += test_scale()) {
        const attn_cpu_kernel *kernel = &kernels[n / 64];
        bool backward = runs_backward(kernel);
        if (!runs(kernel) && !backward) continue;
        /* Whole panels: the last byte is used. */
        attn_desc desc = with(&features[n % COUNT(features)], 15, backward ? 192 : 416);
        desc.kernel = kernel->name;
        desc.direction = backward ? ATTN_BACKWARD : ATTN_FORWARD;
        if (!(kernel->dtypes >> desc.dtype & 1)) desc.dtype = dtype_of(kernel);
        if (desc.flags & ~kernel->features) continue;
        check_problem problem;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = (uint64_t)n }));
        attn_plan *plan = plan_of(&desc);
        size_t size = attn_plan_workspace(plan), offset = (size_t)n % 64;
        check_buffer room = check_buffer_create(size + 64, false);
        assert_ok(attn_run(plan, &problem.args, room.data + offset, NULL));
        for (size_t i = 0; i < 64; i++)
            assert_int_equal(room.data[i < offset ? i : size + i], CHECK_FRESH);
        check_reference reference = check_reference_create(&problem);
        check_error error = check_compare(&problem, &reference);
        if (error.message[0])
            fail_msg("%s, %s, offset %d: %s", kernel->name, features[n % COUNT(features)].name, (int)offset,
                     error.message);
        check_reference_destroy(&reference);
        check_buffer_destroy(&room);
        attn_plan_destroy(plan);
        check_problem_destroy(&problem);
    }
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Planning time depends on the machine: it is reported, and only a gross failure fails. */
static void planning_takes_microseconds(void **state)
{
    (void)state;
    double seconds[101];
    attn_desc desc = base_desc(4096, 4096);
    for (int i = 0; i < COUNT(seconds); i++) {
        struct timespec start, end;
        clock_gettime(CLOCK_MONOTONIC, &start);
        attn_plan *plan = plan_of(&desc);
        clock_gettime(CLOCK_MONOTONIC, &end);
        attn_plan_destroy(plan);
        seconds[i] = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    }
    qsort(seconds, COUNT(seconds), sizeof *seconds, compare_doubles);
    print_message("planning: median %.1f us\n", seconds[COUNT(seconds) / 2] * 1e6);
    assert_true(seconds[COUNT(seconds) / 2] < 5e-3);
}

static void refused(attn_status status, const char *text)
{
    assert_int_equal(status, ATTN_INVALID);
    assert_string_equal(attn_error(), text);
}

/* No function of attn.h crashes at NULL: those that have no status return 0 and leave a message. */
static void null_is_refused(void **state)
{
    (void)state;
    static const char no_plan[] = "plan = NULL: it takes a plan from attn_plan_create";
    char text[8] = "unread";
    attn_desc desc = base_desc(4, 4);
    attn_plan *plan = plan_of(&desc);
    attn_plan_info info;
    refused(attn_plan_create(NULL, &desc), "plan = NULL: it takes the address of a pointer");
    refused(attn_plan_create(&plan, NULL), "desc is NULL");
    refused(attn_plan_get_info(NULL, &info), "plan = NULL");
    refused(attn_plan_get_info(plan, NULL), "info = NULL");
    refused(attn_run(NULL, &(attn_args){ 0 }, NULL, NULL), no_plan);
    refused(attn_run(plan, NULL, NULL, NULL), "args is NULL");
    refused(attn_run(plan, &(attn_args){ .q = NULL }, text, NULL), "q is NULL, but has elements");
    refused(attn_check(NULL, &(attn_args){ 0 }), no_plan);
    refused(attn_check(plan, NULL), "args is NULL");
    assert_int_equal(attn_plan_workspace(NULL), 0);
    assert_string_equal(attn_error(), no_plan);
    refused(attn_plan_get_info(plan, NULL), "info = NULL");
    assert_int_equal(attn_plan_describe(NULL, text, sizeof text), 0);
    assert_string_equal(attn_error(), no_plan);
    assert_string_equal(text, "");
    assert_int_equal(attn_plan_describe(NULL, NULL, 0), 0);
    assert_int_equal(attn_plan_describe(plan, NULL, 5), 0);
    assert_string_equal(attn_error(), "text = NULL, but size = 5");
    assert_true(attn_plan_describe(plan, NULL, 0) > 0);
    assert_ok(attn_machine_use(NULL));
    attn_plan_destroy(plan);
    attn_plan_destroy(NULL);
}

/* attn_check refuses what a run refuses, in the same words, and writes nothing. */
static void arguments_are_checked_without_a_run(void **state)
{
    (void)state;
    attn_desc desc = base_desc(4, 4);
    desc.batch = 1, desc.flags = ATTN_LENS_KV;
    attn_plan *plan = plan_of(&desc);
    size_t count = (size_t)(4 * desc.heads_q * desc.dim_qk);
    float *q = calloc(count, sizeof *q), *o = calloc(count, sizeof *o);
    int32_t lens[] = { 5 };
    char *workspace = malloc(attn_plan_workspace(plan) + 1);
    attn_args args = { .q = q, .k = q, .v = q, .o = o, .lens_kv = lens };
    o[0] = 7;
    refused(attn_check(plan, &args), "lens_kv[0] = 5 exceeds len_kv = 4");
    refused(attn_run(plan, &args, workspace, NULL), "lens_kv[0] = 5 exceeds len_kv = 4");
    args.lens_kv = NULL;
    refused(attn_check(plan, &args), "lens_kv is NULL, but has elements");
    args.lens_kv = lens, lens[0] = 4;
    assert_ok(attn_check(plan, &args));
    assert_true(o[0] == 7);
    assert_ok(attn_run(plan, &args, workspace, NULL));
    assert_true(o[0] == 0);
    attn_plan_destroy(plan);
    free(q), free(o), free(workspace);
}

/* Whatever computes: a run whose workspace holds one of its arrays is refused, and writes nothing. */
static void workspaces_are_apart(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        attn_desc desc = base_desc(40, 300);
        desc.batch = 1;
        if (i == 1) desc.direction = ATTN_BACKWARD;
        if (i == 2) desc.dtype = ATTN_F64;
        if (i == 3) desc.len_q = 1;
        attn_plan *plan = plan_of(&desc);
        size_t size = attn_plan_workspace(plan), array = (size_t)(300 * desc.heads_q * desc.dim_qk) * 8;
        char *room = calloc(9, array), *workspace = malloc(size + array), *text = malloc(size);
        attn_args args = { .q = room, .k = room + array, .v = room + 2 * array, .o = room + 3 * array };
        args.lse = (float *)(void *)(room + 4 * array);
        args.grad_o = room + 5 * array, args.grad_q = room + 6 * array, args.grad_k = room + 7 * array;
        args.grad_v = room + 8 * array;
        memset(workspace, 77, size), memset(text, 77, size);
        const void **field[] = { &args.q, &args.k, (const void **)(void *)&args.lse,
                                 (const void **)(void *)(i == 1 ? &args.grad_v : &args.o) };
        for (int n = 0; n < COUNT(field); n++) {
            const void *kept = *field[n];
            uintptr_t last = ((uintptr_t)workspace + size - 1) / 8 * 8;
            *field[n] = workspace + (last - (uintptr_t)workspace);
            assert_ok(attn_check(plan, &args));
            assert_int_equal(attn_run(plan, &args, workspace, NULL), ATTN_INVALID);
            assert_non_null(strstr(attn_error(), "workspace = 0x"));
            *field[n] = kept;
        }
        assert_memory_equal(workspace, text, size);
        assert_ok(attn_run(plan, &args, workspace, NULL));
        attn_plan_destroy(plan);
        free(room), free(workspace), free(text);
    }
}

/* Of packed sequences a looser bound of the lengths changes nothing: neither the choice, nor workspace or prediction;
 * where tables are laid out by it, the prediction at least. */
static void bounds_above_the_totals_change_nothing(void **state)
{
    (void)state;
    for (int backward = 0; backward < 2; backward++)
        for (int bits = 0; bits < 2; bits++) {
            attn_desc tight = { .dtype = ATTN_F32,
                                .direction = (attn_direction)backward,
                                .flags = ATTN_VARLEN | ATTN_CAUSAL | (bits ? ATTN_BITS : 0),
                                .batch = 3,
                                .heads_q = 4,
                                .len_q = 900,
                                .len_kv = 1800,
                                .total_q = 900,
                                .total_kv = 1800,
                                .dim_qk = 64,
                                .bits_batch = bits,
                                .bits_heads = bits,
                                .threads = 2 },
                      loose = tight;
            loose.len_q = 20000, loose.len_kv = 1 << 20;
            attn_plan *tight_plan, *loose_plan; /* the words of a plan's information go with it */
            attn_plan_info a, b;
            assert_ok(attn_plan_create(&tight_plan, &tight));
            assert_ok(attn_plan_create(&loose_plan, &loose));
            assert_ok(attn_plan_get_info(tight_plan, &a));
            assert_ok(attn_plan_get_info(loose_plan, &b));
            assert_string_equal(a.kernel, b.kernel);
            assert_true(a.pairs == b.pairs && a.flops == b.flops);
            if (!bits) {
                assert_true(a.seconds == b.seconds && a.memory_bytes == b.memory_bytes);
                assert_int_equal(a.workspace_bytes, b.workspace_bytes);
                assert_string_equal(a.strategy, b.strategy);
            }
            attn_plan_destroy(tight_plan);
            attn_plan_destroy(loose_plan);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernel_is_the_best_one),
        cmocka_unit_test(new_flags_are_refused),
        cmocka_unit_test(kernel_can_be_asked_for),
        cmocka_unit_test(words_of_a_strategy_are_checked),
        cmocka_unit_test(strategy_is_followed),
        cmocka_unit_test(deterministic_decode_is_split),
        cmocka_unit_test(environment_is_asked_too),
        cmocka_unit_test(text_is_cut_like_snprintf),
        cmocka_unit_test(f64_says_that_it_is_slow),
        cmocka_unit_test(numbers_add_up),
        cmocka_unit_test(workspace_does_not_grow_with_length),
        cmocka_unit_test(workspace_of_the_backward_is_linear),
        cmocka_unit_test(workspaces_are_apart),
        runs_here(workspace_is_exact_at_any_address),
        cmocka_unit_test(bounds_above_the_totals_change_nothing),
        cmocka_unit_test(null_is_refused),
        runs_here(arguments_are_checked_without_a_run),
        cmocka_unit_test(planning_takes_microseconds),
    };
    return cmocka_run_group_tests(tests, test_processor_asked, NULL);
}
