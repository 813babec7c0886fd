/* The demo: an untrained language model in one attention call, on a book (see model.h).
 *
 *   attn_demo TEXT PLOT.svg
 *
 * 1. Bits a byte of the same SCORED bytes against the context they may look back on, by a window mask.
 * 2. All of the text in one call, against standard attention: the same answer, the time, the memory.
 * 3. The text goes on, byte after byte, through the decode path and a KV cache.
 *
 * "Strictly earlier" needs no mask of its own: there is one key less than there are rows, and causal aligns the ends,
 * so row i sees keys j < i. */
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn.h"
#include "base/detect.h"
#include "command.h"
#include "cpu/threads.h"
#include "device/clock.h"
#include "model.h"
#include "plot.h"
#include "standard.h"

enum { SCORED = 8192, CONTEXT = 65536, LENGTH = CONTEXT + SCORED, WRITTEN = 320 };

#define BUDGET ((int64_t)2 << 30) /* bytes of scores that standard attention may have */

typedef struct demo {
    uint8_t text[LENGTH + WRITTEN];
    float *feature, *value, *o; /* rows of MODEL_DIM, MODEL_BYTES, MODEL_BYTES */
    int threads;
    bool standard; /* OpenBLAS is there */
    plot_line bits, ours, theirs;
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
    desc->scale = MODEL_SCALE;
    if (attn_plan_create(&plan, desc)) die("%s", attn_error());
    return plan;
}

static double run(const attn_plan *plan, const attn_args *args, void *workspace)
{
    double start = attn_seconds();
    if (attn_run(plan, args, workspace, NULL)) die("%s", attn_error());
    return attn_seconds() - start;
}

/* Bytes with a unit, for people. */
static const char *size_text(int64_t bytes, char text[32])
{
    snprintf(text, 32, bytes >= 1 << 30 ? "%.1f GiB" : "%.1f MiB",
             (double)bytes / (bytes >= 1 << 30 ? 1 << 30 : 1 << 20));
    return text;
}

static void read_text(demo *d, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) die("%s: cannot be opened", path);
    size_t length = fread(d->text, 1, LENGTH, file);
    fclose(file);
    if (length < LENGTH) die("%s: %zu bytes; the demo takes %d", path, length, LENGTH);
}

static void show_bits(demo *d)
{
    printf("1. Predicting %d bytes of the book from what comes before them\n\n", SCORED);
    printf("   context   bits a byte        time\n");
    for (int64_t context = 512; context <= CONTEXT; context *= 2) {
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
        double seconds = run(plan, &args, workspace), bits = 0.0;
        for (int64_t i = 0; i < SCORED; i++)
            bits += model_bits(d->o + i * MODEL_BYTES, d->text[CONTEXT + i]) / SCORED;
        printf("   %7lld   %11.3f   %7.2f s\n", (long long)context, bits, seconds);
        fflush(stdout);
        plot_add(&d->bits, (double)context, bits);
        free(workspace);
        attn_plan_destroy(plan);
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

/* What the last line says: of the longest text that standard attention had the memory for. */
typedef struct verdict {
    double gap, faster, less;
} verdict;

static void compare_at(demo *d, int64_t rows, verdict *last)
{
    attn_desc desc = { .flags = ATTN_CAUSAL, .len_q = rows, .len_kv = rows - 1 };
    attn_plan *plan = plan_of(&desc);
    int64_t bytes = (int64_t)attn_plan_workspace(plan), other_bytes = standard_bytes(rows, rows - 1);
    void *workspace = allocate((size_t)bytes);
    attn_args args = { .q = d->feature, .k = d->feature, .v = d->value, .o = d->o };
    bool both = d->standard && other_bytes <= BUDGET;
    float *scores = both ? allocate((size_t)other_bytes) : NULL;
    float *other = both ? allocate((size_t)(rows * MODEL_BYTES) * sizeof *other) : NULL;
    double seconds = INFINITY, other_seconds = INFINITY;
    for (int turn = 0; turn < (both ? 3 : 1); turn++) { /* the best of three turns each */
        seconds = fmin(seconds, run(plan, &args, workspace));
        if (!both) continue;
        double start = attn_seconds();
        standard_attend(rows, rows - 1, MODEL_DIM, MODEL_BYTES, MODEL_SCALE, d->feature, d->feature, d->value, other,
                        scores, d->threads);
        other_seconds = fmin(other_seconds, attn_seconds() - start);
    }

    char ours[32], theirs[32];
    printf("   %6lld   %7.2f s  %9s", (long long)rows, seconds, size_text(bytes, ours));
    plot_add(&d->ours, (double)rows, seconds);
    if (both) {
        *last = (verdict){ difference(d->o, other, rows * MODEL_BYTES), other_seconds / seconds,
                           (double)other_bytes / (double)bytes };
        printf("   %7.2f s  %9s   %.1e", other_seconds, size_text(other_bytes, theirs), last->gap);
        plot_add(&d->theirs, (double)rows, other_seconds);
    } else if (d->standard) {
        printf("         -  %9s   over its budget of %s", size_text(other_bytes, theirs), size_text(BUDGET, ours));
    }
    printf("\n");
    fflush(stdout);
    free(other);
    free(scores);
    free(workspace);
    attn_plan_destroy(plan);
}

static verdict show_comparison(demo *d)
{
    verdict last = { 0 };
    printf("\n2. All of the text in one call%s\n\n", d->standard ? ", beside standard attention (OpenBLAS)" : "");
    printf("                    libattn%s\n", d->standard ? "               standard   largest" : "");
    printf("    bytes        time     memory%s\n", d->standard ? "        time     memory   difference" : "");
    for (int64_t rows = 4096; rows <= CONTEXT; rows *= 2)
        compare_at(d, rows, &last);
    return last;
}

static void append(demo *d, int64_t i)
{
    model_value(d->text[i], d->value + i * MODEL_BYTES);
    if (i + 1 < LENGTH + WRITTEN) model_feature(d->text, i + 1, d->feature + (i + 1) * MODEL_DIM);
}

static void show_writing(demo *d)
{
    attn_desc desc = { .flags = ATTN_LENS_KV, .len_q = 1, .len_kv = LENGTH + WRITTEN };
    attn_plan *plan = plan_of(&desc);
    void *workspace = allocate(attn_plan_workspace(plan));
    uint64_t state = 1865;
    double seconds = 0.0;
    printf("\n3. Going on from there, through the decode path\n\n%.160s[", (const char *)d->text + LENGTH - 160);
    for (int64_t i = LENGTH; i < LENGTH + WRITTEN; i++) {
        int32_t used = (int32_t)i;
        attn_args args = {
            .q = d->feature + i * MODEL_DIM, .k = d->feature, .v = d->value, .o = d->o, .lens_kv = &used
        };
        seconds += run(plan, &args, workspace);
        d->text[i] = model_draw(d->o, &state);
        append(d, i);
        putchar(d->text[i]);
        fflush(stdout);
    }
    double bytes = (double)LENGTH * (MODEL_DIM + MODEL_BYTES) * sizeof(float) * WRITTEN;
    printf("]\n\n   %d tokens, each from %d keys and values: %.0f tokens/s, %.1f GB/s\n", WRITTEN, LENGTH,
           WRITTEN / seconds, bytes / seconds * 1e-9);
    free(workspace);
    attn_plan_destroy(plan);
}

static void plot(const demo *d, const char *path)
{
    plot_line times[2] = { d->ours, d->theirs };
    plot_panel panels[2] = {
        { "An untrained model learns from its context", "context, bytes", "bits a byte", PLOT_LOG_X, 1, &d->bits },
        { "One attention call over the text", "length, bytes", "seconds", PLOT_LOG_BOTH, d->standard ? 2 : 1, times }
    };
    if (!plot_write(path, panels, 2)) die("%s: cannot be written", path);
    printf("   plot: %s\n\n", path);
}

int main(int argc, char **argv)
{
    if (argc != 3) die("usage: attn_demo TEXT PLOT.svg");
    demo *d = allocate(sizeof *d);
    memset(d, 0, sizeof *d);
    d->bits = (plot_line){ .name = "libattn", .color = "#1d4ed8", .marked = true };
    d->ours = d->bits;
    d->theirs = (plot_line){ .name = "standard attention (OpenBLAS)", .color = "#c2410c", .marked = true };
    d->threads = attn_processors_available();
    d->standard = standard_load(d->threads);
    d->feature = allocate((size_t)(LENGTH + WRITTEN) * MODEL_DIM * sizeof *d->feature);
    d->value = allocate((size_t)(LENGTH + WRITTEN) * MODEL_BYTES * sizeof *d->value);
    d->o = allocate((size_t)LENGTH * MODEL_BYTES * sizeof *d->o);
    read_text(d, argv[1]);
    model_feature(d->text, 0, d->feature);
    for (int64_t i = 0; i < LENGTH; i++)
        append(d, i);

    printf(
        "A language model without weights: softmax(%.1f q.k) v over what was read, q and k hashes of the last bytes,\n"
        "v the byte that followed. %s, %d threads.\n\n",
        (double)MODEL_SCALE, argv[1], d->threads);
    show_bits(d);
    verdict last = show_comparison(d);
    show_writing(d);
    plot(d, argv[2]);
    if (d->standard)
        printf("same answer to %.0e, %.1fx faster, %.0fx less memory\n", last.gap, last.faster, last.less);
    else
        printf("nothing to compare with: OpenBLAS (libopenblas.so.0) was not found\n");
    free(d->feature);
    free(d->value);
    free(d->o);
    free(d);
    return 0;
}
