/* Machines' texts: what is read, and where a mistake is; the built-in ones; and that plans go by them. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"

#include <locale.h>
#include <unistd.h>

#include "problem/desc.h"
#include "processor.h"
#include "api/plan.h"
#include "cpu/cost.h"
#include "num/decimal.h"

static const char good[] = "# a comment\n"
                           "machine toy\n"
                           "\n"
                           "device cpu # here too\n"
                           "match Some Maker family 1\n"
                           "cores 4\n"
                           "clock 2.5e9\n"
                           "sustained 2e9\n"
                           "link send 3e9 put 4e9 beside 1.5\n"
                           "start 1e-5\n"
                           "level memory\n"
                           "level l2 bytes 1000 count 4 one 1e9 all 3e9\n"
                           "unit exp 2\n"
                           "kernel avx2_prefill product 0.25 score 2 edge 7\r\n";

static void text_is_read(void **state)
{
    (void)state;
    attn_machine m;
    for (size_t cut = 0; cut < 2; cut++) { /* the last line may lack its end */
        assert_ok(attn_machine_parse("toy", good, strlen(good) - 2 * cut, &m));
        assert_string_equal(m.name, "toy");
        assert_int_equal(m.device, ATTN_CPU);
        assert_string_equal(m.match[0], "Some Maker family 1");
        assert_true(m.cores == 4 && m.hertz == 2.5e9 && m.start == 1e-5 && m.unit[ATTN_UNIT_EXP] == 2);
        assert_true(m.sustained == 2e9 && m.link_send == 3e9 && m.link_put == 4e9 && m.link_beside == 1.5);
        const attn_machine_level *level = attn_machine_level_named(&m, "l2");
        assert_true(level && level->bytes == 1000 && level->count == 4 && level->one == 1e9 && level->all == 3e9);
        const attn_machine_kernel *kernel = attn_machine_kernel_named(&m, "avx2_prefill");
        assert_true(kernel && kernel->clocks[ATTN_PER_PRODUCT] == 0.25 && kernel->clocks[ATTN_PER_EDGE] == 7);
        assert_true(kernel->clocks[ATTN_PER_PACK] == 0);
    }
    assert_null(attn_machine_level_named(&m, "l3"));
    assert_null(attn_machine_kernel_named(&m, "avx2"));
}

static void base_is_taken_over(void **state)
{
    (void)state;
    attn_machine m;
    static const char text[] = "machine mine\nbase zen3\ncores 3\nlevel l2 bytes 7\nkernel avx2_prefill score 1\n";
    const attn_machine *base = attn_machine_named("zen3");
    assert_ok(attn_machine_parse("mine", text, strlen(text), &m));
    assert_string_equal(m.name, "mine");
    assert_int_equal(m.matches, 0);
    assert_int_equal(m.levels, base->levels);
    assert_int_equal(m.kernels, base->kernels);
    assert_true(m.hertz == base->hertz && m.cores == 3);
    assert_true(attn_machine_level_named(&m, "l2")->bytes == 7 && attn_machine_level_named(&m, "l2")->one == 0);
    assert_true(attn_machine_kernel_named(&m, "avx2_prefill")->clocks[ATTN_PER_PRODUCT] == 0);
    assert_true(attn_machine_kernel_named(&m, "avx2_decode")->clocks[ATTN_PER_PRODUCT] > 0);
}

static void mistakes_are_placed(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        { "", "t:1:1: 'machine NAME' is missing" },
        { "cores 3\n", "t:1:1: takes 'machine NAME' first, not 'cores'" },
        { "machine a\nmachine b\n", "t:2:1: 'machine' comes once, and first, not 'machine'" },
        { "machine\n", "t:1:8: takes a name of at most 47 characters" },
        { "machine a b\n", "t:1:11: takes nothing more, not 'b'" },
        { "machine a\n  core 3\n",
          "t:2:3: takes base, device, match, cores, clock, sustained, level, unit, start, link or kernel, not 'core'" },
        { "machine a\ncores x\n", "t:2:7: takes a number, 0 or more, not 'x'" },
        { "machine a\ncores -1\n", "t:2:7: takes a number, 0 or more, not '-1'" },
        { "machine a\nclock 1e999\n", "t:2:7: takes a number, 0 or more, not '1e999'" },
        { "machine a\nclock nan\n", "t:2:7: takes a number, 0 or more, not 'nan'" },
        { "machine a\nbase nowhere\n", "t:2:6: takes the name of a built-in machine, not 'nowhere'" },
        { "machine a\ndevice gpu\n", "t:2:8: takes cpu or cuda, not 'gpu'" },
        { "machine a\nmatch  # nothing\n", "t:2:8: takes a text of at most 47 characters" },
        { "machine a\nunit flop 3\n", "t:2:6: takes tensor16, tensor8, fma or exp, not 'flop'" },
        { "machine a\nlevel l2 size 3\n", "t:2:10: takes bytes, count, one or all, not 'size'" },
        { "machine a\nkernel k product\n", "t:2:17: takes a number, 0 or more" },
        { "machine a\nkernel k products 1\n",
          "t:2:10: takes product, score, pack, byte, far, step, tile, edge or run, not 'products'" },
        { "machine a\ncores 1\n", "t:3:1: cores or clock is missing" },
        { "machine a\ncores 1\nclock 1e9\nlevel x\n", "t:5:1: takes two levels at least" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        attn_machine m;
        assert_int_equal(attn_machine_parse("t", cases[i].text, strlen(cases[i].text), &m), ATTN_INVALID);
        assert_string_equal(attn_error(), cases[i].message);
    }
}

/* More of anything than there is room for, and names that are too long, end in a message. */
static void crowds_are_refused(void **state)
{
    (void)state;
    static const char *const lines[] = { "level l%d\n", "kernel k%d\n", "match m%d\n" };
    static char text[1 << 16];
    attn_machine m;
    for (int kind = 0; kind < COUNT(lines); kind++) {
        int length = sprintf(text, "machine a\ncores 1\nclock 1\n");
        for (int i = 0; i < 200; i++)
            length += sprintf(text + length, lines[kind], i);
        assert_int_equal(attn_machine_parse("t", text, (size_t)length, &m), ATTN_INVALID);
        assert_non_null(strstr(attn_error(), "too many"));
    }
    int length = sprintf(text, "machine %0100d\n", 0);
    assert_int_equal(attn_machine_parse("t", text, (size_t)length, &m), ATTN_INVALID);
}

static void numbers_in_any_locale(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } cases[] = { { "0", 0 },       { "12", 12 }, { "-0.5", -0.5 }, { "+3.25e2", 325 },
                  { "1e-3", 1e-3 }, { ".5", .5 }, { "0e999", 0 } };
    static const char *const wrong[] = { "", ".", "-", "1e", "1e+", "e5", "1.2.3", "0x10", "1,5", "inf", "1e400" };
    double x;
    setlocale(LC_ALL, "de_DE.UTF-8"); /* where there is none, the others say as much */
    for (int i = 0; i < COUNT(cases); i++) {
        assert_true(attn_read_decimal(cases[i].text, strlen(cases[i].text), &x));
        assert_true(fabs(x - cases[i].value) <= 1e-15 * fabs(x));
    }
    for (int i = 0; i < COUNT(wrong); i++)
        assert_false(attn_read_decimal(wrong[i], strlen(wrong[i]), &x));
    setlocale(LC_ALL, "C");
}

/* ---- built in ------------------------------------------------------------------------------ */

/* Milliseconds of AMX kernels that 16 threads took on an Emerald Rapids: 16 heads, bf16. */
static void amx_is_predicted(void **state)
{
    (void)state;
    static const struct {
        int64_t dim, len;
        uint32_t flags;
        double forward, backward;
    } cases[] = {
        { 64, 512, 0, 0.3497, 0.91 },   { 64, 512, ATTN_CAUSAL, 0.2526, 0.6541 },
        { 64, 2048, 0, 4.05, 12.47 },   { 64, 2048, ATTN_CAUSAL, 2.268, 6.739 },
        { 64, 8192, 0, 62.66, 187.3 },  { 64, 8192, ATTN_CAUSAL, 29.3, 94.18 },
        { 128, 512, 0, 0.5447, 1.685 }, { 128, 512, ATTN_CAUSAL, 0.409, 1.18 },
        { 128, 2048, 0, 6.576, 23.06 }, { 128, 2048, ATTN_CAUSAL, 3.886, 12.2 },
        { 128, 8192, 0, 97.05, 355.4 }, { 128, 8192, ATTN_CAUSAL, 49.73, 177.6 },
    };
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    attn_host host = { .machine = attn_machine_named("emerald_rapids") };
    for (int i = 0; i < 2 * COUNT(cases); i++)
        for (int k = 0; k < count; k++) {
            bool backward = i % 2;
            if (strcmp(kernels[k].name, backward ? "amx_backward" : "amx_prefill") != 0) continue;
            attn_desc desc = { .dtype = ATTN_BF16,
                               .direction = backward ? ATTN_BACKWARD : ATTN_FORWARD,
                               .flags = cases[i / 2].flags,
                               .batch = 1,
                               .heads_q = 16,
                               .len_q = cases[i / 2].len,
                               .len_kv = cases[i / 2].len,
                               .dim_qk = cases[i / 2].dim,
                               .threads = 16 },
                      resolved;
            attn_choice choice;
            assert_ok(attn_desc_resolve(&resolved, &desc, sizeof desc));
            attn_cost(&resolved, &host, &kernels[k], NULL, &choice);
            double ratio = 1e3 * choice.seconds / (backward ? cases[i / 2].backward : cases[i / 2].forward);
            if (!(ratio > 0.75 && ratio < 1.25))
                fail_msg("%s, dim %d, %d rows: predicted %.3f of what was measured", kernels[k].name, (int)desc.dim_qk,
                         (int)desc.len_q, ratio);
        }
}

static void built_in_machines_are_whole(void **state)
{
    (void)state;
    static const char *const names[] = { "cpu",  "zen3", "zen4", "sapphire_rapids", "emerald_rapids",
                                         "h200", "h100", "a100" };
    for (int i = 0; i < COUNT(names); i++) {
        assert_non_null(attn_machine_named(names[i]));
        assert_ptr_equal(attn_machine_builtin(i), attn_machine_named(names[i]));
    }
    assert_null(attn_machine_builtin(COUNT(names)));
    assert_null(attn_machine_named("toaster"));
    assert_ptr_equal(attn_machine_for(ATTN_CUDA, "NVIDIA H100 80GB HBM3"), attn_machine_named("h100"));
    assert_ptr_equal(attn_machine_for(ATTN_CUDA, "Something else"), attn_machine_named("h200"));
    assert_ptr_equal(attn_machine_for(ATTN_CPU, "AuthenticAMD family 25 model 17: x"), attn_machine_named("zen4"));
    assert_ptr_equal(attn_machine_for(ATTN_CPU, "AuthenticAMD family 25 model 1: x"), attn_machine_named("zen3"));
    assert_ptr_equal(attn_machine_for(ATTN_CPU, "H100"), attn_machine_named("cpu"));
    for (int i = 0; i < COUNT(names); i++) { /* each of a CPU has its processor in processor.c */
        bool has = attn_machine_named(names[i])->device != ATTN_CPU;
        for (int p = 0; test_processor_name(p); p++)
            has = has || strcmp(test_processor_name(p), names[i]) == 0;
        assert_true(has);
    }
    int count; /* every CPU kernel has its constants wherever it may run */
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++)
        for (int m = 0; m < 4; m++) {
            const attn_machine_kernel *k = attn_machine_kernel_named(attn_machine_named(names[m]), kernels[i].name);
            if (!k || k->clocks[ATTN_PER_PRODUCT] <= 0) fail_msg("%s on %s", kernels[i].name, names[m]);
        }
}

static void processors_take_their_machines(void **state)
{
    (void)state;
    const char *processor;
    for (int p = 0; (processor = test_processor_name(p)); p++) {
        attn_host host;
        test_processor(processor, NULL);
        attn_host_detect(&host);
        assert_string_equal(host.machine->name, processor);
    }
    test_processor_asked(NULL);
}

/* ---- used ---------------------------------------------------------------------------------- */

static void plans_go_by_the_file(void **state)
{
    (void)state;
    attn_desc desc = {
        .dtype = ATTN_F32, .batch = 1, .heads_q = 4, .len_q = 1024, .len_kv = 1024, .dim_qk = 64, .threads = 1
    };
    attn_plan_info before = info_of(&desc);
    char path[] = "/tmp/attn_machine_XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    char text[256];
    int length = sprintf(text, "machine slow\nbase cpu\nclock 1e6\n");
    assert_int_equal(write(file, text, (size_t)length), length);
    assert_ok(attn_machine_use(path));
    assert_true(info_of(&desc).seconds > 100 * before.seconds);
    assert_ok(attn_machine_use("h200")); /* of another device: this one's stays */
    assert_true(info_of(&desc).seconds > 100 * before.seconds);
    assert_int_equal(write(file, "oops\n", 5), 5);
    assert_int_equal(attn_machine_use(path), ATTN_INVALID); /* and leaves all as it was */
    assert_non_null(strstr(attn_error(), ":4:1: takes base"));
    assert_true(info_of(&desc).seconds > 100 * before.seconds);
    assert_ok(attn_machine_use(NULL));
    assert_true(info_of(&desc).seconds == before.seconds);
    close(file);
    unlink(path);
    assert_int_equal(attn_machine_use(path), ATTN_INVALID);
    assert_int_equal(attn_machine_use("/"), ATTN_INVALID);
}

/* Tiles that are asked for are taken, and the answer does not depend on them. */
static void tiles_can_be_asked_for(void **state)
{
    (void)state;
    enum { LEN = 600, HEADS = 2, DIM = 32, COUNT_ = LEN * HEADS * DIM };
    static float q[COUNT_], o[2][COUNT_];
    for (int i = 0; i < COUNT_; i++)
        q[i] = (float)(i * 2654435761u >> 8) * 0x1p-23f - 1;
    attn_desc desc = {
        .dtype = ATTN_F32, .batch = 1, .heads_q = HEADS, .len_q = LEN, .len_kv = LEN, .dim_qk = DIM, .threads = 2
    };
    static const attn_tiles tiles[] = { { .rows = 48 }, { .rows = 96 }, { .rows = 1000000 }, { .rows = 7 } };
    for (int i = 0; i < COUNT(tiles); i++) {
        attn_plan *plan;
        attn_plan_info info;
        assert_ok(attn_plan_create_tiled(&plan, &desc, &tiles[i]));
        assert_ok(attn_plan_get_info(plan, &info));
        if (i < 2) assert_int_equal(info.q_tile, tiles[i].rows);
        void *workspace = malloc(attn_plan_workspace(plan));
        assert_ok(attn_run(plan, &(attn_args){ .q = q, .k = q, .v = q, .o = o[i > 0] }, workspace, NULL));
        for (int j = 0; j < COUNT_; j++)
            assert_true(fabsf(o[i > 0][j] - o[0][j]) < 1e-5f);
        free(workspace);
        attn_plan_destroy(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_read),
        cmocka_unit_test(base_is_taken_over),
        cmocka_unit_test(mistakes_are_placed),
        cmocka_unit_test(crowds_are_refused),
        cmocka_unit_test(numbers_in_any_locale),
        cmocka_unit_test(built_in_machines_are_whole),
        cmocka_unit_test(amx_is_predicted),
        cmocka_unit_test(plans_go_by_the_file),
        cmocka_unit_test(processors_take_their_machines),
        runs_here(tiles_can_be_asked_for),
    };
    return cmocka_run_group_tests(tests, test_processor_asked, NULL);
}
