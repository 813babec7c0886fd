/* A run in a .safetensors file, by the command's reader and writer:
 *
 *   config    I32 (6)         layers, dim, heads, context, batch, steps
 *   rate      F32 (1)
 *   state     I32 (3)         steps done, and the generator's low and high 32 bits
 *   curve     F32 (step, 2)   gpt_record
 *   embed ... F32             weights, by the names of gpt_tensors; those of mean.* and square.* are AdamW's averages
 *
 * Nothing in a file is trusted: whatever the sizes claim, the reader has checked that the bytes are there. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "command.h"
#include "file.h"
#include "gpt.h"
#include "safetensors.h"

enum { CONFIG = 6, STATE = 3, FIXED = 4, ALL_MOST = FIXED + 3 * GPT_TENSORS_MOST, NAME = 48 };

static const char *const fixed_names[FIXED] = { "config", "rate", "state", "curve" };

/* The tensors of a file, in its order. */
typedef struct contents {
    int count, parts; /* parts: of the weights */
    char text[ALL_MOST][NAME];
    const char *names[ALL_MOST];
    attn_array arrays[ALL_MOST];
    gpt_tensor tensors[GPT_TENSORS_MOST];
} contents;

static attn_array array_of(attn_element element, int rank, int64_t first, int64_t second)
{
    attn_array a = { .element = element, .rank = rank, .extent = { first, second } };
    attn_array_count(&a);
    return a;
}

/* What a run of this shape and so many steps consists of; data is left to the caller. */
static contents *contents_new(const gpt_shape *shape, int64_t step)
{
    static const char *const prefixes[] = { "", "mean.", "square." };
    contents *c = gpt_allocate(1, sizeof *c);
    attn_array fixed[FIXED] = { array_of(ATTN_ELEMENT_I32, 1, CONFIG, 0), array_of(ATTN_ELEMENT_F32, 1, 1, 0),
                                array_of(ATTN_ELEMENT_I32, 1, STATE, 0), array_of(ATTN_ELEMENT_F32, 2, step, 2) };
    c->parts = gpt_tensors(shape, c->tensors);
    c->count = FIXED + 3 * c->parts;
    memcpy(c->arrays, fixed, sizeof fixed);
    for (int i = 0; i < c->count; i++) {
        int part = i - FIXED;
        const gpt_tensor *t = &c->tensors[part % c->parts];
        c->names[i] = i < FIXED ? fixed_names[i] : c->text[i];
        if (i < FIXED) continue;
        snprintf(c->text[i], NAME, "%s%s", prefixes[part / c->parts], t->name);
        c->arrays[i] = array_of(ATTN_ELEMENT_F32, t->rows ? 2 : 1, t->rows ? t->rows : t->cols, t->cols);
    }
    return c;
}

void gpt_run_allocate(gpt_run *run)
{
    run->weights = gpt_weights_new(&run->shape);
    run->mean = gpt_weights_new(&run->shape);
    run->square = gpt_weights_new(&run->shape);
}

void gpt_run_set_steps(gpt_run *run, int64_t steps)
{
    run->steps = steps;
    if (steps <= run->room) return;
    gpt_record *curve = gpt_allocate(steps, sizeof *curve);
    if (run->step) memcpy(curve, run->curve, (size_t)run->step * sizeof *curve);
    free(run->curve);
    run->curve = curve;
    run->room = steps;
}

void gpt_run_free(gpt_run *run)
{
    free(run->weights.data);
    free(run->mean.data);
    free(run->square.data);
    free(run->curve);
}

/* ---- writing ------------------------------------------------------------------------------- */

static attn_status write_file(const contents *c, const char *path)
{
    size_t header = attn_safetensors_header(c->names, c->arrays, c->count, NULL, 0), size = header;
    attn_output output;
    for (int i = 0; i < c->count; i++)
        size += (size_t)(c->arrays[i].count * attn_element_size(c->arrays[i].element));
    attn_status status = attn_output_create(&output, path, size);
    if (status) return status;
    attn_safetensors_header(c->names, c->arrays, c->count, (char *)output.bytes, header);
    unsigned char *at = output.bytes + header;
    for (int i = 0; i < c->count; i++) {
        size_t bytes = (size_t)(c->arrays[i].count * attn_element_size(c->arrays[i].element));
        memcpy(at, c->arrays[i].data, bytes);
        at += bytes;
    }
    return attn_output_commit(&output);
}

attn_status gpt_save(const gpt_run *run, const char *path)
{
    int32_t config[CONFIG] = { (int32_t)run->shape.layers, (int32_t)run->shape.dim, (int32_t)run->shape.heads,
                               (int32_t)run->context,      (int32_t)run->batch,     (int32_t)run->steps };
    uint32_t state[STATE] = { (uint32_t)run->step, (uint32_t)run->random, (uint32_t)(run->random >> 32) };
    const void *fixed[FIXED] = { config, &run->rate, state, run->curve };
    const float *blocks[] = { run->weights.data, run->mean.data, run->square.data };
    contents *c = contents_new(&run->shape, run->step);
    for (int i = 0; i < c->count; i++) {
        int part = i - FIXED;
        c->arrays[i].data = i < FIXED ? fixed[i] : blocks[part / c->parts] + c->tensors[part % c->parts].offset;
    }
    attn_status status = write_file(c, path);
    free(c);
    return status ? attn_fail_in(status, path) : ATTN_OK;
}

/* ---- reading ------------------------------------------------------------------------------- */

static attn_status check_array(const char *name, const attn_array *a, attn_element element, int rank,
                               const int64_t *extent)
{
    char is[ATTN_SHAPE_TEXT], wanted[ATTN_SHAPE_TEXT];
    if (!a->element) return attn_fail(ATTN_INVALID, "not a checkpoint: it has no tensor %s", name);
    bool same = a->element == element && a->rank == rank;
    for (int i = 0; same && i < rank; i++)
        same = a->extent[i] == extent[i];
    if (same) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "tensor %s is %s %s; takes %s %s", name, attn_element_name(a->element),
                     attn_shape_text(a->extent, a->rank, is), attn_element_name(element),
                     attn_shape_text(extent, rank, wanted));
}

static attn_status check_range(const char *what, int64_t value, int64_t least, int64_t most)
{
    if (value >= least && value <= most) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "%s %lld: takes %lld to %lld", what, (long long)value, (long long)least,
                     (long long)most);
}

attn_status gpt_sizes_check(int64_t context, int64_t batch)
{
    attn_status status = check_range("context", context, 1, 1 << 20);
    if (!status) status = check_range("batch", batch, 1, 1 << 20);
    return status ? status : check_range("batch * context", batch * context, 1, 1 << 22);
}

/* The part of the run that says how large the others are. */
static attn_status read_numbers(gpt_run *run, const attn_array *arrays)
{
    static const int64_t extents[] = { CONFIG, 1, STATE };
    int32_t config[CONFIG];
    uint32_t state[STATE];
    attn_status status = ATTN_OK;
    for (int i = 0; i < 3 && !status; i++)
        status = check_array(fixed_names[i], &arrays[i], i == 1 ? ATTN_ELEMENT_F32 : ATTN_ELEMENT_I32, 1, &extents[i]);
    if (status) return status;
    memcpy(config, arrays[0].data, sizeof config);
    memcpy(&run->rate, arrays[1].data, sizeof run->rate);
    memcpy(state, arrays[2].data, sizeof state);
    run->shape = (gpt_shape){ config[0], config[1], config[2] };
    run->context = config[3];
    run->batch = config[4];
    run->steps = config[5];
    run->step = state[0];
    run->random = (uint64_t)state[2] << 32 | state[1];
    status = gpt_shape_check(&run->shape);
    if (!status) status = gpt_sizes_check(run->context, run->batch);
    if (!status) status = check_range("steps", run->steps, 1, GPT_STEPS_MOST);
    if (!status) status = check_range("step", run->step, 0, run->steps);
    if (!status && !(run->rate > 0.0f && isfinite(run->rate)))
        status = attn_fail(ATTN_INVALID, "rate is not a finite number above 0");
    return status;
}

static attn_status check_numbers(const char *name, const attn_array *a)
{
    for (int64_t i = 0; i < a->count; i++) {
        float x;
        memcpy(&x, (const unsigned char *)a->data + i * (int64_t)sizeof x, sizeof x);
        if (!isfinite(x)) return attn_fail(ATTN_INVALID, "tensor %s holds a number that is not finite", name);
    }
    return ATTN_OK;
}

/* Reads all tensors that a run of this shape has; their data stays in the file. */
static attn_status read_contents(contents *c, const attn_file *file)
{
    attn_array *wanted = gpt_allocate(c->count, sizeof *wanted);
    memcpy(wanted, c->arrays, (size_t)c->count * sizeof *wanted);
    attn_status status = attn_safetensors_parse(file->bytes, file->size, c->names, c->count, c->arrays);
    for (int i = 0; i < c->count && !status; i++) {
        status = check_array(c->names[i], &c->arrays[i], wanted[i].element, wanted[i].rank, wanted[i].extent);
        if (!status && wanted[i].element == ATTN_ELEMENT_F32) status = check_numbers(c->names[i], &c->arrays[i]);
    }
    free(wanted);
    return status;
}

static attn_status load(gpt_run *run, const attn_file *file)
{
    attn_array arrays[3];
    attn_status status = attn_safetensors_parse(file->bytes, file->size, fixed_names, 3, arrays);
    if (!status) status = read_numbers(run, arrays);
    if (status) return status;
    contents *c = contents_new(&run->shape, run->step);
    status = read_contents(c, file);
    if (!status) {
        int64_t step = run->step;
        gpt_run_allocate(run);
        run->step = 0; /* no curve to keep */
        gpt_run_set_steps(run, run->steps);
        run->step = step;
        if (step) memcpy(run->curve, c->arrays[FIXED - 1].data, (size_t)step * sizeof *run->curve);
        float *blocks[] = { run->weights.data, run->mean.data, run->square.data };
        for (int i = FIXED; i < c->count; i++) {
            int part = i - FIXED;
            memcpy(blocks[part / c->parts] + c->tensors[part % c->parts].offset, c->arrays[i].data,
                   (size_t)c->arrays[i].count * sizeof(float));
        }
    }
    free(c);
    return status;
}

attn_status gpt_load(gpt_run *run, const char *path)
{
    attn_file file;
    *run = (gpt_run){ .step = 0 };
    attn_status status = attn_file_open(&file, path, attn_safetensors_extent);
    if (!status) status = load(run, &file);
    attn_file_close(&file);
    return status ? attn_fail_in(status, path) : ATTN_OK;
}
