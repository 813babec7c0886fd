/* The demo: an untrained language model in one attention call, on a book (see model.h).
 *
 *   attn_demo TEXT PLOT.svg
 *
 * 1. Bits per byte of the same SCORED bytes against the context that they may look back on, by a window mask.
 * 2. All of the text in one call, against standard attention: the same answer, the time, the memory.
 * 3. What the next byte looks at, and how the text goes on, byte after byte, through the decode path and a KV cache.
 *
 * A slow machine gets less to do, not more time: what would not fit into a part's seconds is left out, and said so.
 * "Strictly earlier" needs no mask of its own: there is one key less than there are rows, and causal aligns the ends,
 * so row i sees keys j < i. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attn.h"
#include "base/detect.h"
#include "base/text_buffer.h"
#include "device/clock.h"
#include "model.h"
#include "plot.h"
#include "progress.h"
#include "standard.h"

enum { SCORED = 2048, CONTEXT = 65536, LENGTH = CONTEXT + SCORED, WRITTEN = 320, SOURCES = 5 };

/* What the parts may take, and the bytes of scores that standard attention may have. */
#define BITS_SECONDS 12.0
#define LENGTHS_SECONDS 50.0
#define WRITING_SECONDS 10.0
#define SCORES_MOST ((int64_t)1 << 30)

#define WRITING_SCALE (4 * MODEL_SCALE) /* less by chance than it guesses */

typedef struct demo {
    uint8_t text[LENGTH + WRITTEN];
    float *feature, *value, *o; /* rows of MODEL_DIM, MODEL_BYTES, MODEL_BYTES */
    int threads;
    bool standard;          /* OpenBLAS is there */
    int64_t memory, unused; /* bytes of this machine */
    double per_pair;        /* seconds, in the last call; 0: there was none */
    double per_score;       /* the same of standard attention */
    plot_line bits, ours, theirs, our_bytes, their_bytes, machine;
    plot_line our_prediction, their_prediction; /* bytes where the call was left out */
} demo;

static void die(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "attn_demo: ");
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    va_end(list);
    exit(1);
}

static void *allocate(size_t bytes)
{
    void *p = malloc(bytes);
    if (!p) die("no memory for %zu bytes", bytes);
    return p;
}

static attn_plan *plan_of(attn_desc *desc)
{
    attn_plan *plan;
    desc->dtype = ATTN_F32;
    desc->batch = desc->heads_q = 1;
    desc->dim_qk = MODEL_DIM;
    desc->dim_v = MODEL_BYTES;
    if (desc->scale <= 0) desc->scale = MODEL_SCALE;
    if (attn_plan_create(&plan, desc)) die("%s", attn_error());
    return plan;
}

/* Visible pairs of so many rows, the last of which sees all keys. */
static double pairs_of(int64_t rows, int64_t keys)
{
    return (double)rows * ((double)keys - (double)(rows - 1) / 2);
}

static double run(demo *d, const attn_plan *plan, const attn_args *args, void *workspace, double pairs)
{
    attn_progress progress;
    double start = attn_seconds();
    attn_progress_start(&progress, pairs * d->per_pair, ATTN_PROGRESS_LINES);
    attn_status status = attn_run(plan, args, workspace, NULL);
    attn_progress_stop(&progress);
    if (status) die("%s", attn_error());
    double seconds = attn_seconds() - start;
    d->per_pair = seconds / pairs;
    return seconds;
}

/* Bytes with a unit, for people. */
static const char *size_text(int64_t bytes, char text[32])
{
    snprintf(text, 32, bytes >= 1 << 30 ? "%.1f GiB" : "%.1f MiB",
             (double)bytes / (bytes >= 1 << 30 ? 1 << 30 : 1 << 20));
    return text;
}

static double mib(int64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static void read_text(demo *d, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) die("%s: cannot be opened", path);
    size_t length = fread(d->text, 1, LENGTH, file);
    fclose(file);
    if (length < LENGTH) die("%s: %zu bytes; the demo takes %d", path, length, LENGTH);
}

static double bits_with(demo *d, int64_t context)
{
    attn_desc desc = { .flags = ATTN_CAUSAL | ATTN_WINDOW,
                       .len_q = SCORED,
                       .len_kv = context + SCORED - 1,
                       .window_left = context - 1,
                       .window_right = -1 };
    attn_plan *plan = plan_of(&desc);
    void *workspace = allocate(attn_plan_workspace(plan));
    int64_t key0 = LENGTH - SCORED - context;
    attn_args args = { .q = d->feature + (int64_t)CONTEXT * MODEL_DIM,
                       .k = d->feature + key0 * MODEL_DIM,
                       .v = d->value + key0 * MODEL_BYTES,
                       .o = d->o };
    double bits = 0.0;
    run(d, plan, &args, workspace, (double)SCORED * (double)context);
    for (int64_t i = 0; i < SCORED; i++)
        bits += model_bits(d->o + i * MODEL_BYTES, d->text[CONTEXT + i]) / SCORED;
    free(workspace);
    attn_plan_destroy(plan);
    return bits;
}

static void show_bits(demo *d)
{
    double start = attn_seconds();
    printf("1. The farther it may look back, the better it guesses the next byte\n\n");
    printf("   bytes it sees   bits per byte (8: knows nothing)\n");
    for (int64_t context = 512; context <= CONTEXT; context *= 2) {
        double left = BITS_SECONDS - (attn_seconds() - start);
        if ((double)SCORED * (double)context * d->per_pair > left) break;
        double bits = bits_with(d, context);
        printf("   %13lld   %.2f  %.*s\n", (long long)context, bits, (int)lround(6 * bits),
               "################################################");
        fflush(stdout);
        plot_add(&d->bits, (double)context, bits);
    }
}

static double difference(const float *a, const float *b, int64_t count)
{
    double most = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double gap = fabs((double)a[i] - (double)b[i]);
        if (!(gap <= most)) most = gap; /* NaN stays */
    }
    return most;
}

/* What the last lines say: of the longest text, and of the longest that standard attention had the memory for. */
typedef struct verdict {
    int64_t rows, bytes, other_bytes;
    double seconds, gap, faster;
} verdict;

static double run_standard(demo *d, int64_t rows, float *other, float *scores)
{
    attn_progress progress;
    double pairs = (double)rows * (double)rows, start = attn_seconds();
    attn_progress_start(&progress, pairs * d->per_score, ATTN_PROGRESS_LINES);
    standard_attend(rows, rows - 1, MODEL_DIM, MODEL_BYTES, MODEL_SCALE, d->feature, d->feature, d->value, other,
                    scores, d->threads);
    attn_progress_stop(&progress);
    d->per_score = (attn_seconds() - start) / pairs;
    return attn_seconds() - start;
}

/* Standard attention's time, the better of two where it is short; its answer is compared with ours. */
static double compare_at(demo *d, int64_t rows, double seconds, verdict *v)
{
    float *scores = allocate((size_t)standard_bytes(rows, rows - 1));
    float *other = allocate((size_t)(rows * MODEL_BYTES) * sizeof *other);
    double theirs = run_standard(d, rows, other, scores);
    if (theirs < 0.3) theirs = fmin(theirs, run_standard(d, rows, other, scores));
    v->gap = difference(d->o, other, rows * MODEL_BYTES), v->faster = theirs / seconds;
    plot_add(&d->theirs, (double)rows, theirs);
    plot_add(&d->their_bytes, (double)rows, mib(standard_bytes(rows, rows - 1)));
    free(other);
    free(scores);
    return theirs;
}

static void run_at(demo *d, int64_t rows, const attn_plan *plan, verdict *v)
{
    char ours[32], theirs[32];
    int64_t bytes = (int64_t)attn_plan_workspace(plan), other_bytes = standard_bytes(rows, rows - 1);
    attn_args args = { .q = d->feature, .k = d->feature, .v = d->value, .o = d->o };
    double pairs = pairs_of(rows, rows - 1);
    void *workspace = allocate((size_t)bytes);
    double seconds = run(d, plan, &args, workspace, pairs);
    if (seconds < 0.3) seconds = fmin(seconds, run(d, plan, &args, workspace, pairs));
    bool fits = other_bytes <= SCORES_MOST && other_bytes <= d->unused / 2;
    double other_seconds = fits && d->standard ? compare_at(d, rows, seconds, v) : 0;
    v->rows = rows, v->bytes = bytes, v->seconds = seconds;
    plot_add(&d->ours, (double)rows, seconds);
    plot_add(&d->our_bytes, (double)rows, mib(bytes));
    if (!(other_seconds > 0)) plot_add(&d->their_prediction, (double)rows, mib(other_bytes));
    printf("   %6lld   %9s  %7.2f s   %9s", (long long)rows, size_text(bytes, ours), seconds,
           size_text(other_bytes, theirs));
    if (other_seconds > 0)
        printf("  %7.2f s   the same to %.0e\n", other_seconds, v->gap);
    else
        printf(fits ? "\n" : "          -   more than it gets here\n");
    free(workspace);
}

static void show_at(demo *d, int64_t rows, double left, verdict *v)
{
    char bytes[32], time[ATTN_NUMBER_TEXT];
    attn_desc desc = { .flags = ATTN_CAUSAL, .len_q = rows, .len_kv = rows - 1 };
    attn_plan *plan = plan_of(&desc);
    double seconds = pairs_of(rows, rows - 1) * d->per_pair;
    plot_add(&d->machine, (double)rows, mib(d->memory));
    if (seconds <= left) {
        run_at(d, rows, plan, v);
    } else {
        plot_add(&d->our_prediction, (double)rows, mib((int64_t)attn_plan_workspace(plan)));
        plot_add(&d->their_prediction, (double)rows, mib(standard_bytes(rows, rows - 1)));
        printf("   %6lld   %9s  left out: it would take about %s on this machine now\n", (long long)rows,
               size_text((int64_t)attn_plan_workspace(plan), bytes), attn_seconds_text(seconds, time));
    }
    fflush(stdout);
    attn_plan_destroy(plan);
}

static verdict show_lengths(demo *d)
{
    verdict v = { 0 };
    double start = attn_seconds();
    printf("\n2. Every byte looks at all before it, in one call%s\n\n",
           d->standard ? "; standard attention (OpenBLAS) beside it" : "");
    printf("                  libattn              standard\n");
    printf("    bytes      memory       time      memory       time   answer\n");
    for (int64_t rows = 4096; rows <= CONTEXT; rows *= 2)
        show_at(d, rows, LENGTHS_SECONDS - (attn_seconds() - start), &v);
    return v;
}

static void append(demo *d, int64_t i)
{
    model_value(d->text[i], d->value + i * MODEL_BYTES);
    if (i + 1 < LENGTH + WRITTEN) model_feature(d->text, i + 1, d->feature + (i + 1) * MODEL_DIM);
}

/* So many bytes before place i on one line. */
static void print_past(const demo *d, int64_t i, int count)
{
    for (int64_t j = i - count; j < i; j++)
        putchar(d->text[j] == '\n' ? ' ' : d->text[j]);
}

/* The place after the text's last `words`. */
static int64_t last_place(const demo *d, const char *words)
{
    int64_t length = (int64_t)strlen(words), at = LENGTH;
    while (at > length && memcmp(d->text + at - length, words, (size_t)length) != 0)
        at--;
    return at;
}

/* The places that byte `at` looks at most: what stands before them, what followed, and their share of the sum. */
static void show_sources(const demo *d, int64_t at)
{
    const float *q = d->feature + at * MODEL_DIM;
    double *weight = allocate((size_t)at * sizeof *weight), sum = 0.0;
    for (int64_t j = 0; j < at; j++) {
        double dot = 0.0;
        for (int c = 0; c < MODEL_DIM; c++)
            dot += (double)q[c] * (double)d->feature[j * MODEL_DIM + c];
        sum += weight[j] = exp((double)MODEL_SCALE * dot);
    }
    printf("\n3. Where it looks, to guess what follows \"");
    print_past(d, at, 30);
    printf("\"\n\n");
    for (int n = 0; n < SOURCES; n++) {
        int64_t most = 0;
        for (int64_t j = 0; j < at; j++)
            if (weight[j] > weight[most]) most = j;
        printf("   %4.1f %% of its attention at byte %5lld: \"", 100 * weight[most] / sum, (long long)most);
        print_past(d, most, 30);
        printf("[%c]", d->text[most] == '\n' ? ' ' : d->text[most]);
        print_past(d, most + 9, 8);
        printf("\"\n");
        weight[most] = 0;
    }
    free(weight);
}

static void show_writing(demo *d)
{
    attn_desc desc = { .flags = ATTN_LENS_KV, .len_q = 1, .len_kv = LENGTH + WRITTEN, .scale = WRITING_SCALE };
    attn_plan *plan = plan_of(&desc);
    void *workspace = allocate(attn_plan_workspace(plan));
    uint64_t state = 1865;
    double seconds = 0.0;
    int64_t i = LENGTH;
    printf("\n   Byte after byte it goes on (in brackets):\n\n%.160s[", (const char *)d->text + LENGTH - 160);
    for (; i < LENGTH + WRITTEN && seconds < WRITING_SECONDS; i++) {
        int32_t used = (int32_t)i;
        attn_args args = {
            .q = d->feature + i * MODEL_DIM, .k = d->feature, .v = d->value, .o = d->o, .lens_kv = &used
        };
        double start = attn_seconds();
        if (attn_run(plan, &args, workspace, NULL)) die("%s", attn_error());
        seconds += attn_seconds() - start;
        d->text[i] = model_draw(d->o, &state);
        append(d, i);
        putchar(d->text[i]);
        fflush(stdout);
    }
    double bytes = (double)LENGTH * (MODEL_DIM + MODEL_BYTES) * sizeof(float) * (double)(i - LENGTH);
    printf("]\n\n   %.0f bytes per second, each from %d keys and values: %.1f GB/s\n", (double)(i - LENGTH) / seconds,
           LENGTH, bytes / seconds * 1e-9);
    free(workspace);
    attn_plan_destroy(plan);
}

/* In words: what standard attention cannot do here, and what was done instead. */
static void say_verdict(const demo *d, const verdict *v)
{
    char ours[32], theirs[32], here[32];
    printf(
        "\nStandard attention stores every score. For %lld bytes of text these are %lld x %lld: %s for a single head\n",
        (long long)CONTEXT, (long long)CONTEXT, (long long)CONTEXT,
        size_text(standard_bytes(CONTEXT, CONTEXT), theirs));
    if (standard_bytes(CONTEXT, CONTEXT) > d->memory)
        printf("of a single layer. This machine has %s: here it cannot be done that way at all.\n",
               size_text(d->memory, here));
    else
        printf("of a single layer, and a model has hundreds of heads.\n");
    printf("libattn stores none: the call over %lld bytes took %s beside its inputs and outputs, and %.1f s.\n",
           (long long)v->rows, size_text(v->bytes, ours), v->seconds);
    if (v->faster > 0)
        printf("Where both fit, the answers are the same to %.0e, and libattn is %.1f times as fast.\n", v->gap,
               v->faster);
    if (!d->standard) printf("(Nothing was compared: OpenBLAS, libopenblas.so.0, was not found.)\n");
}

static void plot(const demo *d, const char *path)
{
    plot_line times[2] = { d->ours, d->theirs }, bytes[5];
    const plot_line *all[5] = { &d->our_bytes, &d->our_prediction, &d->their_bytes, &d->their_prediction, &d->machine };
    attn_cpu_info cpu;
    char note[256], memory[32];
    int lines = 0;
    for (int i = 0; i < 5; i++)
        if (all[i]->count) bytes[lines++] = *all[i];
    attn_cpu_detect(&cpu);
    snprintf(note, sizeof note,
             "Measured on %s, %d threads, %s of memory. Standard attention is OpenBLAS's products and "
             "a softmax of stored scores, in f32.",
             cpu.model, d->threads, size_text(d->memory, memory));
    plot_panel panels[3] = {
        { "It guesses better the farther it looks back", "bytes it sees", "bits per byte", PLOT_LOG_X, 1, &d->bits },
        { "Memory of one call", "bytes of text", "MiB", PLOT_LOG_BOTH, lines, bytes },
        { "Time of one call", "bytes of text", "seconds", PLOT_LOG_BOTH, d->theirs.count ? 2 : 1, times },
    };
    if (!plot_write(path, panels, 3, note)) die("%s: cannot be written", path);
    printf("The same in a picture: %s\n", path);
}

int main(int argc, char **argv)
{
    const char *blue = "#1d4ed8", *red = "#c2410c";
    if (argc != 3) die("usage: attn_demo TEXT PLOT.svg");
    demo *d = allocate(sizeof *d);
    memset(d, 0, sizeof *d);
    d->bits = d->ours = d->our_bytes = (plot_line){ .name = "libattn", .color = blue, .marked = true };
    d->theirs = d->their_bytes = (plot_line){ .name = "standard attention", .color = red, .marked = true };
    d->our_prediction = d->our_bytes, d->our_prediction.predicted = true;
    d->their_prediction = d->their_bytes, d->their_prediction.predicted = true;
    d->machine = (plot_line){ .name = "all memory of this machine", .color = "#6b7280" };
    d->threads = attn_processors_available();
    d->memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    d->unused = (int64_t)sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
    d->standard = standard_load(d->threads);
    d->feature = allocate((size_t)(LENGTH + WRITTEN) * MODEL_DIM * sizeof *d->feature);
    d->value = allocate((size_t)(LENGTH + WRITTEN) * MODEL_BYTES * sizeof *d->value);
    d->o = allocate((size_t)LENGTH * MODEL_BYTES * sizeof *d->o);
    read_text(d, argv[1]);
    model_feature(d->text, 0, d->feature);
    for (int64_t i = 0; i < LENGTH; i++)
        append(d, i);

    printf("A language model that was never trained, in one call of attention over a book (%s), on %d threads:\n"
           "each byte looks for places whose last six bytes are like its own, and guesses what followed there.\n\n",
           argv[1], d->threads);
    show_bits(d);
    verdict v = show_lengths(d);
    show_sources(d, last_place(d, "said the D"));
    show_writing(d);
    say_verdict(d, &v);
    plot(d, argv[2]);
    free(d->feature);
    free(d->value);
    free(d->o);
    free(d);
    return 0;
}
