/* See outputs.h. */
#include "outputs.h"

#include <stdio.h>
#include <string.h>

#include "api/error.h"
#include "command.h"
#include "npy.h"
#include "safetensors.h"

attn_element attn_outputs_element(const attn_inputs *inputs, const attn_run_options *options)
{
    attn_dtype dtype = inputs->desc.dtype;
    return attn_element_of(!options->tensors && dtype == ATTN_BF16 ? ATTN_F32 : dtype);
}

static attn_status create(attn_output *output, const char *option, const char *path, size_t header, const attn_array *a,
                          const attn_array *b)
{
    uint64_t size = header + (uint64_t)(a->count * attn_element_size(a->element));
    if (b) size += (uint64_t)(b->count * attn_element_size(b->element));
    attn_status status = size > INT64_MAX || size > SIZE_MAX
                             ? attn_fail(ATTN_INVALID, "cannot write: the file is too large")
                             : attn_output_create(output, path, (size_t)size);
    if (!status) return ATTN_OK;
    char where[300];
    snprintf(where, sizeof where, "--%s %.200s", option, path);
    return attn_fail_in(status, where);
}

static attn_status create_npy(attn_output *output, const char *option, const char *path, const attn_array *array,
                              void **data)
{
    char header[ATTN_NPY_HEADER_MOST];
    size_t length = attn_npy_header(array, header);
    attn_status status = create(output, option, path, length, array, NULL);
    if (status) return status;
    memcpy(output->bytes, header, length);
    *data = output->bytes + length;
    return ATTN_OK;
}

/* LSE stands first: what stands behind o, in 16 bits and of odd size, would not be aligned. */
static attn_status create_tensors(attn_outputs *outputs, const char *path, const attn_array *lse)
{
    static const char *const names[] = { "lse", "o" };
    char header[ATTN_SAFETENSORS_HEADER_MOST];
    attn_array arrays[2] = { *lse, outputs->o };
    int skip = lse->element == ATTN_ELEMENT_NONE;
    size_t length = attn_safetensors_header(names + skip, arrays + skip, 2 - skip, header, sizeof header);
    attn_status status = create(&outputs->files[0], "output", path, length, &outputs->o, skip ? NULL : lse);
    if (status) return status;
    memcpy(outputs->files[0].bytes, header, length);
    unsigned char *at = outputs->files[0].bytes + length;
    if (!skip) outputs->lse = (float *)(void *)at;
    outputs->o_data = skip ? at : at + 4 * lse->count;
    return ATTN_OK;
}

attn_status attn_outputs_create(attn_outputs *outputs, const attn_inputs *inputs, const attn_run_options *options)
{
    const int64_t *q = inputs->q.extent;
    attn_array lse = { .element = ATTN_ELEMENT_F32, .rank = 3, .extent = { q[0], q[2], q[1] } };
    attn_array *o = &outputs->o;
    *outputs = (attn_outputs){ .o = { .element = attn_outputs_element(inputs, options),
                                      .rank = inputs->rank,
                                      .extent = { q[0], q[1], q[2], inputs->v.extent[3] } } };
    if (inputs->rank == 3) memmove(o->extent, o->extent + 1, 3 * sizeof *o->extent);
    if (!attn_array_count(o) || !attn_array_count(&lse)) return attn_fail(ATTN_INVALID, "the output's size overflows");

    if (options->tensors && options->lse && !strcmp(options->lse, options->output))
        return create_tensors(outputs, options->output, &lse);
    attn_status status;
    if (options->tensors)
        status = create_tensors(outputs, options->output, &(attn_array){ .element = ATTN_ELEMENT_NONE });
    else
        status = create_npy(&outputs->files[0], "output", options->output, o, &outputs->o_data);
    if (!status && options->lse) {
        void *data = NULL;
        status = create_npy(&outputs->files[1], "lse", options->lse, &lse, &data);
        outputs->lse = data;
    }
    if (status) attn_outputs_discard(outputs);
    return status;
}

attn_status attn_outputs_commit(attn_outputs *outputs)
{
    attn_status status = attn_output_commit(&outputs->files[0]);
    if (!status) status = attn_output_commit(&outputs->files[1]);
    if (status) attn_outputs_discard(outputs);
    return status;
}

void attn_outputs_discard(attn_outputs *outputs)
{
    for (int i = 0; i < 2; i++)
        attn_output_discard(&outputs->files[i]);
}
