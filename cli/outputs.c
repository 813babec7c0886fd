/* See outputs.h. */
#include "outputs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "command.h"
#include "npy.h"
#include "safetensors.h"

static const char npy[] = ".npy", safetensors[] = ".safetensors";

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length > tail && !strcmp(text + length - tail, end);
}

attn_status attn_outputs_check(const attn_result *results, int count, bool tensors)
{
    for (int i = 0; i < count; i++) {
        const attn_result *r = &results[i];
        if (!r->path) continue;
        bool array = ends_with(r->path, npy) && (!tensors || r->f32);
        if (!array && !(tensors && ends_with(r->path, safetensors)))
            return attn_fail(ATTN_INVALID, "%s %.200s: takes a name that ends in %s%s", r->option, r->path,
                             tensors ? safetensors : npy, tensors && r->f32 ? " or .npy" : "");
        for (int j = 0; array && j < i; j++)
            if (results[j].path && !strcmp(r->path, results[j].path))
                return attn_fail(ATTN_INVALID, "%s and %s name the same file, %.200s", results[j].option, r->option,
                                 r->path);
    }
    return ATTN_OK;
}

static attn_status fail_at(attn_status status, const attn_result *r)
{
    char where[300];
    snprintf(where, sizeof where, "%s %.200s", r->option, r->path);
    return attn_fail_in(status, where);
}

static attn_status create_file(attn_outputs *outputs, const attn_result *first, const char *header, size_t length,
                               uint64_t data, unsigned char **at)
{
    attn_output *output = &outputs->files[outputs->count];
    attn_status status = data > SIZE_MAX - length || data > INT64_MAX - length
                             ? attn_fail(ATTN_INVALID, "cannot write: the file is too large")
                             : attn_output_create(output, first->path, length + (size_t)data);
    if (status) return fail_at(status, first);
    outputs->first[outputs->count++] = first;
    for (int i = 0; i + 1 < outputs->count; i++)
        if (attn_output_same(&outputs->files[i], output))
            return attn_fail(ATTN_INVALID, "%s and %s name the same file, as %.200s and %.200s",
                             outputs->first[i]->option, first->option, outputs->first[i]->path, first->path);
    memcpy(output->bytes, header, length);
    *at = output->bytes + length;
    return ATTN_OK;
}

static attn_status create_npy(attn_outputs *outputs, attn_result *r)
{
    char header[ATTN_NPY_HEADER_MOST];
    unsigned char *at;
    size_t length = attn_npy_header(&r->array, header);
    uint64_t bytes = (uint64_t)(r->array.count * attn_element_size(r->array.element));
    attn_status status = create_file(outputs, r, header, length, bytes, &at);
    if (!status) r->data = at;
    return status;
}

/* All results of the first one's path. float32 comes first: after 16-bit elements it might not be aligned. */
static attn_status create_tensors(attn_outputs *outputs, attn_result *first, attn_result *end)
{
    const char *names[ATTN_OUTPUTS_MOST];
    attn_array arrays[ATTN_OUTPUTS_MOST];
    attn_result *order[ATTN_OUTPUTS_MOST];
    char header[ATTN_SAFETENSORS_HEADER_MOST];
    unsigned char *at;
    uint64_t bytes = 0;
    int count = 0;
    for (int size = 4; size >= 2; size -= 2)
        for (attn_result *r = first; r < end; r++) {
            if (!r->path || strcmp(r->path, first->path) || attn_element_size(r->array.element) != size) continue;
            names[count] = r->tensor;
            arrays[count] = r->array;
            order[count++] = r;
            if (__builtin_add_overflow(bytes, (uint64_t)(r->array.count * size), &bytes))
                return attn_fail(ATTN_INVALID, "%s %.200s: the file is too large", r->option, r->path);
        }
    size_t length = attn_safetensors_header(names, arrays, count, header, sizeof header);
    attn_status status = create_file(outputs, first, header, length, bytes, &at);
    for (int i = 0; !status && i < count; i++) {
        order[i]->data = at;
        at += arrays[i].count * attn_element_size(arrays[i].element);
    }
    return status;
}

static attn_status refuse_inputs(const attn_outputs *outputs, const attn_file *files, int read)
{
    for (int i = 0; i < outputs->count; i++)
        for (int j = 0; j < read; j++)
            if (attn_output_replaces(&outputs->files[i], &files[j]))
                return attn_fail(ATTN_INVALID, "%s %.200s: is an input, too: takes another file",
                                 outputs->first[i]->option, outputs->first[i]->path);
    return ATTN_OK;
}

attn_status attn_outputs_create(attn_outputs *outputs, attn_result *results, int count, const attn_file *files,
                                int read)
{
    attn_status status = ATTN_OK;
    *outputs = (attn_outputs){ .count = 0 };
    for (int i = 0; !status && i < count; i++)
        if (results[i].path && !attn_array_count(&results[i].array))
            status =
                attn_fail(ATTN_INVALID, "%s %.200s: the output's size overflows", results[i].option, results[i].path);
    for (int i = 0; !status && i < count; i++) {
        attn_result *r = &results[i];
        if (!r->path || r->data) continue;
        status = ends_with(r->path, npy) ? create_npy(outputs, r) : create_tensors(outputs, r, results + count);
    }
    if (!status) status = refuse_inputs(outputs, files, read);
    if (status) attn_outputs_discard(outputs);
    return status;
}

static int64_t nans(const attn_array *array, const void *data)
{
    const float *floats = data;
    const uint16_t *halves = data;
    uint16_t infinity = array->element == ATTN_ELEMENT_F16 ? 0x7c00 : 0x7f80;
    int64_t count = 0;
    if (array->element == ATTN_ELEMENT_F32)
        for (int64_t i = 0; i < array->count; i++)
            count += isnan(floats[i]) != 0;
    else
        for (int64_t i = 0; i < array->count; i++)
            count += (halves[i] & 0x7fff) > infinity;
    return count;
}

int64_t attn_outputs_nans(const char *command, const attn_result *results, int count, bool quiet)
{
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
        const attn_result *r = &results[i];
        int64_t here = r->path ? nans(&r->array, r->data) : 0;
        total += here;
        if (here && !quiet)
            fprintf(stderr,
                    "attn %s: warning: %s %s: %lld of %lld elements are NaN: NaN or infinity in an input, or scores"
                    " beyond float32\n",
                    command, r->option, r->path, (long long)here, (long long)r->array.count);
    }
    return total;
}

attn_status attn_outputs_commit(attn_outputs *outputs)
{
    attn_status status = ATTN_OK;
    int at = 0, count = outputs->count;
    for (int i = 0; !status && i < count; i++) /* before any is renamed: if one fails, none is replaced */
        status = attn_output_write(&outputs->files[at = i]);
    for (int i = 0; !status && i < count; i++)
        status = attn_output_commit(&outputs->files[at = i]);
    if (status) status = fail_at(status, outputs->first[at]);
    attn_outputs_discard(outputs);
    return status;
}

void attn_outputs_discard(attn_outputs *outputs)
{
    for (int i = 0; i < outputs->count; i++)
        attn_output_discard(&outputs->files[i]);
}
