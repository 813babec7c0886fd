/* The GPT of examples/gpt on a model of some thousand weights: gradients against finite differences and against one
 * another, learning, checkpoints that go on to the bit, hostile ones, a save that is killed, and the KV cache against
 * the whole sequence. Files are made in the directory that the test runs in. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support.h"

#include <math.h>
#include <signal.h>
#include <time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check/random.h"
#include "gpt.h"

enum { CONTEXT = 24, BATCH = 2, STEPS = 60 };

static const char file_name[] = "test_gpt.safetensors";

static gpt_run run_new(int64_t steps)
{
    gpt_run run = { .shape = { 2, 16, 2 }, .context = CONTEXT, .batch = BATCH, .rate = 1e-2f, .random = 7 };
    gpt_run_allocate(&run);
    gpt_run_set_steps(&run, steps);
    gpt_weights_start(&run.weights, &run.shape, &run.random);
    return run;
}

/* Short words in a fixed order, with a letter now and then that cannot be foretold. */
static gpt_text text_new(void)
{
    static const char words[] = "one two three four five six seven eight nine ten ";
    gpt_text text = { .train_count = 4096, .held_count = 512 };
    uint64_t random = 3;
    text.train = gpt_allocate(text.train_count, 1);
    text.held = gpt_allocate(text.held_count, 1);
    for (int64_t i = 0; i < text.train_count; i++)
        text.train[i] = (uint8_t)(check_chance(&random, 2) ? '?' : words[i % (int64_t)strlen(words)]);
    for (int64_t i = 0; i < text.held_count; i++)
        text.held[i] = (uint8_t)words[i % (int64_t)strlen(words)];
    return text;
}

/* A trainer with a batch of the text. */
static gpt_trainer trainer_new(gpt_run *run, gpt_attention_maker *maker)
{
    gpt_trainer t;
    gpt_text text = text_new();
    uint64_t random = 5;
    assert_ok(gpt_trainer_new(&t, run, maker));
    gpt_text_batch(text.train, text.train_count, run->batch, run->context, &random, t.bytes, t.targets);
    gpt_text_free(&text);
    return t;
}

/* ---- gradients ----------------------------------------------------------------------------- */

/* Loss at weights + step * direction, by a backward's forward. */
static double loss_at(gpt_trainer *t, float *weights, const float *direction, int64_t count, float step)
{
    float *before = gpt_allocate(count, sizeof *before);
    memcpy(before, weights, (size_t)count * sizeof *before);
    for (int64_t i = 0; i < count; i++)
        weights[i] += step * direction[i];
    double loss = gpt_gradient(t);
    memcpy(weights, before, (size_t)count * sizeof *before);
    free(before);
    return loss;
}

static double dot(const float *a, const float *b, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Each tensor along its own gradient, where all of it counts, and along random directions, where nothing may be
 * there that the loss does not know of. */
static void check_differences(gpt_attention_maker *maker)
{
    gpt_run run = run_new(1);
    gpt_trainer t = trainer_new(&run, maker);
    gpt_tensor list[GPT_TENSORS_MOST];
    int tensors = gpt_tensors(&run.shape, list);
    uint64_t random = 11;
    gpt_gradient(&t);
    float *grad = gpt_allocate(t.grad.count, sizeof *grad), *direction = gpt_allocate(t.grad.count, sizeof *direction);
    memcpy(grad, t.grad.data, (size_t)t.grad.count * sizeof *grad);
    for (int i = 0; i < tensors; i++) {
        int64_t count = (list[i].rows ? list[i].rows : 1) * list[i].cols;
        float *weights = run.weights.data + list[i].offset, *g = grad + list[i].offset;
        double norm = sqrt(dot(g, g, count));
        assert_true(norm > 1e-4);
        for (int turn = 0; turn < 4; turn++) {
            for (int64_t j = 0; j < count; j++)
                direction[j] = turn ? check_normal(&random) / sqrtf((float)count) : g[j] / (float)norm;
            float step = 4e-3f;
            double slope =
                (loss_at(&t, weights, direction, count, step) - loss_at(&t, weights, direction, count, -step)) /
                (2.0 * (double)step);
            double gap = fabs(slope - dot(g, direction, count));
            if (!(gap <= 2e-3 * norm + 1e-4))
                fail_msg("%s, direction %d: the loss rises by %.6f, the gradient says %.6f", list[i].name, turn, slope,
                         dot(g, direction, count));
        }
    }
    free(grad);
    free(direction);
    gpt_trainer_free(&t);
    gpt_run_free(&run);
}

static void gradients_are_slopes(void **state)
{
    (void)state;
    check_differences(gpt_standard_new);
    check_differences(gpt_attention_new);
}

static void attentions_agree(void **state)
{
    gpt_run run = run_new(1);
    gpt_trainer ours = trainer_new(&run, gpt_attention_new), theirs = trainer_new(&run, gpt_standard_new);
    (void)state;
    assert_true(fabs(gpt_gradient(&ours) - gpt_gradient(&theirs)) < 1e-5);
    double size = sqrt(dot(theirs.grad.data, theirs.grad.data, theirs.grad.count) / (double)theirs.grad.count);
    for (int64_t i = 0; i < ours.grad.count; i++)
        assert_true(fabs((double)ours.grad.data[i] - (double)theirs.grad.data[i]) < 1e-3 * size);
    gpt_trainer_free(&ours);
    gpt_trainer_free(&theirs);
    gpt_run_free(&run);
}

/* Twice the rows: libattn holds twice as much, standard attention four times. */
static void memory_grows_with_rows(void **state)
{
    gpt_shape shape = { 2, 64, 2 };
    (void)state;
    for (int64_t rows = 512; rows <= 1024; rows *= 2) {
        gpt_attention *ours[2], *theirs[2];
        for (int i = 0; i < 2; i++) {
            ours[i] = gpt_attention_new(&shape, 1, rows << i, true);
            theirs[i] = gpt_standard_new(&shape, 1, rows << i, true);
            assert_non_null(ours[i]);
        }
        assert_true(ours[1]->bytes < 2.1 * (double)ours[0]->bytes && theirs[1]->bytes == 4 * theirs[0]->bytes);
        assert_true(theirs[1]->bytes == (2 * 2 + 1) * 4 * (2 * rows) * (2 * rows));
        for (int i = 0; i < 2; i++)
            ours[i]->free(ours[i]), theirs[i]->free(theirs[i]);
    }
}

/* A run by the clock: its number of steps follows what they take, and it ends when the time is over. */
static void steps_by_the_clock(void **state)
{
    (void)state;
    assert_int_equal(gpt_steps_in(1, 0.5, 60.0), 120);
    assert_int_equal(gpt_steps_in(60, 30.0, 60.0), 120);  /* as fast as expected */
    assert_int_equal(gpt_steps_in(61, 45.0, 60.0), 81);   /* the last one was slow: fewer follow */
    assert_int_equal(gpt_steps_in(100, 59.7, 60.0), 101); /* nearer to the time with another step than without it */
    assert_int_equal(gpt_steps_in(100, 59.8, 60.0), 100);
    assert_int_equal(gpt_steps_in(7, 200.0, 60.0), 7);
    assert_int_equal(gpt_steps_in(1, 1e-9, 60.0), GPT_STEPS_MOST);
}

static void adamw_steps(void **state)
{
    gpt_shape shape = { 1, 4, 1 };
    gpt_weights w = gpt_weights_new(&shape), g = gpt_weights_new(&shape), m = gpt_weights_new(&shape),
                v = gpt_weights_new(&shape);
    (void)state;
    w.embed[0] = w.norm[0] = 1.0f;
    g.embed[0] = 6.0f; /* the norm is 10: clipped to 0.6 and 0.8 */
    g.norm[0] = -8.0f;
    assert_true(fabs(gpt_adamw(&w, &g, &m, &v, &shape, 0.01f, 0) - 10.0) < 1e-6);
    assert_true(fabsf(m.embed[0] - 0.06f) < 1e-6f && fabsf(v.embed[0] - 0.05f * 0.36f) < 1e-6f);
    assert_true(fabsf(w.embed[0] - (1.0f - 0.001f - 0.01f)) < 1e-6f); /* decayed, then a whole step */
    assert_true(fabsf(w.norm[0] - (1.0f + 0.01f)) < 1e-6f);           /* a vector: not decayed */
    assert_true(w.embed[1] == 0.0f);
    assert_true(gpt_rate(1.0f, 0, 100) < 0.2f && gpt_rate(1.0f, 5, 100) == 1.0f);
    assert_true(fabsf(gpt_rate(1.0f, 99, 100) - 0.1f) < 1e-3f);
    free(w.data), free(g.data), free(m.data), free(v.data);
}

/* ---- learning and going on ----------------------------------------------------------------- */

static void train(gpt_run *run, int64_t steps)
{
    gpt_trainer t;
    gpt_text text = text_new();
    assert_ok(gpt_trainer_new(&t, run, gpt_attention_new));
    for (int64_t i = 0; i < steps; i++)
        gpt_step(&t, &text);
    gpt_trainer_free(&t);
    gpt_text_free(&text);
}

static void it_learns(void **state)
{
    gpt_run run = run_new(STEPS);
    (void)state;
    train(&run, STEPS);
    if (!(run.curve[0].loss > 5.0f && run.curve[STEPS - 1].loss < 2.0f))
        fail_msg("the loss went from %.3f to %.3f", (double)run.curve[0].loss, (double)run.curve[STEPS - 1].loss);
    gpt_run_free(&run);
}

static void assert_same(const gpt_run *a, const gpt_run *b)
{
    size_t bytes = (size_t)a->weights.count * sizeof(float);
    assert_true(a->step == b->step && a->steps == b->steps && a->random == b->random && a->rate == b->rate);
    assert_true(a->context == b->context && a->batch == b->batch && a->weights.count == b->weights.count);
    assert_memory_equal(&a->shape, &b->shape, sizeof a->shape);
    assert_memory_equal(a->weights.data, b->weights.data, bytes);
    assert_memory_equal(a->mean.data, b->mean.data, bytes);
    assert_memory_equal(a->square.data, b->square.data, bytes);
    assert_memory_equal(a->curve, b->curve, (size_t)a->step * sizeof *a->curve);
}

static void resumed_goes_on_to_the_bit(void **state)
{
    gpt_run whole = run_new(12), half = run_new(12), loaded;
    (void)state;
    train(&whole, 12);
    train(&half, 5);
    assert_ok(gpt_save(&half, file_name));
    assert_ok(gpt_load(&loaded, file_name));
    assert_same(&half, &loaded);
    train(&loaded, 7);
    assert_same(&whole, &loaded);
    gpt_run_free(&whole);
    gpt_run_free(&half);
    gpt_run_free(&loaded);
    unlink(file_name);
}

/* ---- the cache ----------------------------------------------------------------------------- */

static void assert_near(const float *a, const float *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(a[i] - b[i]) < 1e-4f)) fail_msg("number %d: %g and %g", (int)i, (double)a[i], (double)b[i]);
}

static void cache_is_the_whole(void **state)
{
    gpt_run run = run_new(STEPS);
    (void)state;
    train(&run, 20);
    gpt_trainer t = trainer_new(&run, gpt_attention_new);
    gpt_forward(t.pass, &run.weights, t.attention, t.bytes);
    gpt_reader *reader = gpt_reader_new(&run.shape, CONTEXT, CONTEXT);
    for (int64_t at = 0, count = 5; at < CONTEXT; at += count, count = 1)
        assert_near(gpt_read(reader, &run.weights, t.bytes + at, count), t.pass->logits + at * GPT_BYTES,
                    count * GPT_BYTES);
    gpt_reader_free(reader);

    /* Past the context: a window, whether the bytes come at once or one by one. */
    gpt_reader *once = gpt_reader_new(&run.shape, 7, CONTEXT), *singly = gpt_reader_new(&run.shape, 7, CONTEXT);
    const float *logits = gpt_read(once, &run.weights, t.bytes, CONTEXT);
    for (int64_t at = 0; at < CONTEXT; at++)
        assert_near(gpt_read(singly, &run.weights, t.bytes + at, 1), logits + at * GPT_BYTES, GPT_BYTES);
    gpt_reader_free(once);
    gpt_reader_free(singly);

    /* A window of one: nothing of what came before. */
    gpt_reader *fresh = gpt_reader_new(&run.shape, 1, 1), *late = gpt_reader_new(&run.shape, 1, CONTEXT);
    const float *alone = gpt_read(fresh, &run.weights, (const uint8_t *)"x", 1);
    gpt_read(late, &run.weights, t.bytes, CONTEXT - 1);
    assert_near(gpt_read(late, &run.weights, (const uint8_t *)"x", 1), alone, GPT_BYTES);
    gpt_reader_free(fresh);
    gpt_reader_free(late);
    gpt_trainer_free(&t);
    gpt_run_free(&run);
}

/* ---- checkpoints that are not ---------------------------------------------------------------- */

typedef struct bytes {
    char *at;
    size_t size;
} bytes;

static bytes read_bytes(void)
{
    bytes b = { .at = gpt_allocate(1 << 20, 1) };
    FILE *file = fopen(file_name, "rb");
    assert_non_null(file);
    b.size = fread(b.at, 1, 1 << 20, file);
    fclose(file);
    assert_true(b.size > 10000 && b.size < 1 << 20);
    return b;
}

/* Loading the bytes, which are left as they are, fails with `part` in the message; NULL: may also succeed. */
static void expect(const bytes *b, size_t size, const char *part)
{
    gpt_run run;
    FILE *file = fopen(file_name, "wb");
    assert_non_null(file);
    fwrite(b->at, 1, size, file);
    fclose(file);
    if (!gpt_load(&run, file_name)) {
        if (part) fail_msg("loaded; should fail with: %s", part);
        gpt_run_free(&run);
    } else if (!strstr(attn_error(), file_name) || (part && !strstr(attn_error(), part))) {
        fail_msg("message '%s' lacks: %s", attn_error(), part ? part : file_name);
    }
}

static char *find(const bytes *b, const char *text)
{
    for (size_t i = 0; i + strlen(text) < b->size; i++)
        if (!memcmp(b->at + i, text, strlen(text))) return b->at + i;
    fail_msg("no %s in the file", text);
    return NULL;
}

/* With `size` bytes at `at` changed to those of `to`. */
static void expect_changed(const bytes *b, char *at, const void *to, size_t size, const char *part)
{
    char before[16];
    memcpy(before, at, size);
    memcpy(at, to, size);
    expect(b, b->size, part);
    memcpy(at, before, size);
}

static void hostile_files_are_refused(void **state)
{
    gpt_run run = run_new(3);
    uint64_t random = 13;
    (void)state;
    train(&run, 2);
    assert_ok(gpt_save(&run, file_name));
    bytes b = read_bytes();
    uint64_t length;
    memcpy(&length, b.at, 8);
    char *data = b.at + 8 + length;

    static const size_t cut[] = { 0, 7, 8, 100 };
    for (int i = 0; i < COUNT(cut); i++)
        expect(&b, cut[i], "");
    expect(&b, b.size - 1, "leave the");
    expect_changed(&b, find(&b, "layer.1.up"), "layer.1.uq", 10, "no tensor layer.1.up");
    expect_changed(&b, find(&b, "\"config\""), "\"konfig\"", 8, "no tensor config");
    expect_changed(&b, find(&b, "[16,64]"), "[64,16]", 7, "tensor layer.0.down is");
    static const struct {
        int index;
        int32_t value;
        const char *part;
    } numbers[] = { { 0, 0, "layers 0" },      { 0, 3, "no tensor layer.2" },
                    { 0, 65, "layers 65" },    { 0, -1, "layers -1" },
                    { 1, 32, "tensor embed" }, { 1, INT32_MAX, "dim 2147483647" },
                    { 2, 3, "heads 3" },       { 2, 0, "heads 0" },
                    { 3, 0, "context 0" },     { 3, INT32_MAX, "context" },
                    { 4, 0, "batch 0" },       { 4, 1 << 20, "batch * context" },
                    { 5, 0, "steps 0" },       { 5, 1, "step 2" },
                    { 7, 1, "tensor curve" },  { 7, -1, "step 4294967295" },
                    { 6, 0x7fc00000, "rate" } };
    for (int i = 0; i < COUNT(numbers); i++)
        expect_changed(&b, data + 4 * numbers[i].index, &numbers[i].value, 4, numbers[i].part);
    uint32_t nan = 0x7fc00000;
    expect_changed(&b, b.at + b.size - 4, &nan, 4, "not finite");

    for (int i = 0; i < 400; i++) { /* whatever it is, no crash */
        char byte = (char)check_bits(&random);
        expect_changed(&b, b.at + check_below(&random, 8 + (int64_t)length), &byte, 1, NULL);
    }
    free(b.at);
    gpt_run_free(&run);
    unlink(file_name);
}

/* Saves again and again until it is killed: the weights are all alike and name the step. */
static void save_for_ever(void)
{
    gpt_run run = run_new(GPT_STEPS_MOST);
    for (run.step = 0;; run.step = (run.step + 1) % 1000) {
        for (int64_t i = 0; i < run.weights.count; i++)
            run.weights.data[i] = (float)run.step;
        if (gpt_save(&run, file_name)) _exit(1);
    }
}

static void killed_save_leaves_the_old(void **state)
{
    gpt_run first = run_new(10), run;
    uint64_t random = 17;
    (void)state;
    assert_ok(gpt_save(&first, file_name));
    for (int i = 0; i < 20; i++) {
        char temporary[64];
        int status;
        pid_t child = fork();
        if (child == 0) save_for_ever();
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 + check_below(&random, 20000000) }, NULL);
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        assert_ok(gpt_load(&run, file_name));
        for (int64_t j = 1; run.step && j < run.weights.count; j++)
            assert_true(run.weights.data[j] == (float)run.step);
        gpt_run_free(&run);
        snprintf(temporary, sizeof temporary, "%s.%ld.tmp", file_name, (long)child);
        unlink(temporary);
    }
    gpt_run_free(&first);
    unlink(file_name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(attentions_agree),
        cmocka_unit_test(memory_grows_with_rows),
        cmocka_unit_test(steps_by_the_clock),
        cmocka_unit_test(adamw_steps),
        cmocka_unit_test(it_learns),
        cmocka_unit_test(resumed_goes_on_to_the_bit),
        cmocka_unit_test(cache_is_the_whole),
        cmocka_unit_test(hostile_files_are_refused),
        cmocka_unit_test(killed_save_leaves_the_old),
    };
    gpt_threads_set(2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
