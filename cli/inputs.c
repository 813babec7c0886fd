/* See inputs.h. Files are used where they lie; only a dtype to convert or a misaligned file costs a copy. */
#include "inputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/desc.h"
#include "api/error.h"
#include "command.h"
#include "inputs_masks.h"
#include "npy.h"
#include "num/half.h"
#include "safetensors.h"

static attn_status fail_at(attn_status status, const char *option, const char *path)
{
    char where[300];
    snprintf(where, sizeof where, "--%s %.200s", option, path);
    return attn_fail_in(status, where);
}

void *attn_inputs_buffer(attn_inputs *inputs, int64_t count, int64_t size)
{
    void *buffer = count <= (INT64_MAX - 1) / size ? malloc((size_t)(count * size) + 1) : NULL;
    if (buffer) inputs->buffers[inputs->buffer_count++] = buffer;
    if (!buffer) attn_fail(ATTN_NO_MEMORY, "no memory for %lld elements", (long long)count);
    return buffer;
}

/* A copy where the data lie less aligned than their element. */
static attn_status align(attn_inputs *inputs, attn_array *array)
{
    int64_t size = attn_element_size(array->element);
    if ((uintptr_t)array->data % (uintptr_t)size == 0) return ATTN_OK;
    void *buffer = attn_inputs_buffer(inputs, array->count, size);
    if (!buffer) return ATTN_NO_MEMORY;
    memcpy(buffer, array->data, (size_t)(array->count * size));
    array->data = buffer;
    return ATTN_OK;
}

attn_status attn_inputs_load(attn_inputs *inputs, const char *option, const char *path, attn_array *array)
{
    attn_file *file = &inputs->files[inputs->file_count];
    attn_status status = attn_file_open(file, path);
    *array = (attn_array){ .data = NULL };
    if (!status) {
        inputs->file_count++;
        status = attn_npy_parse(file->bytes, file->size, array);
    }
    if (!status) status = align(inputs, array);
    return status ? fail_at(status, option, path) : ATTN_OK;
}

static attn_status load_tensors(attn_inputs *inputs, const char *path)
{
    static const char *const names[] = { "q", "k", "v" };
    attn_array arrays[3];
    attn_file *file = &inputs->files[inputs->file_count];
    attn_status status = attn_file_open(file, path);
    if (!status) {
        inputs->file_count++;
        status = attn_safetensors_parse(file->bytes, file->size, names, 3, arrays);
    }
    for (int i = 0; !status && i < 3; i++) {
        if (!arrays[i].element)
            status = attn_fail(ATTN_INVALID, "holds no tensor %s", names[i]);
        else
            status = align(inputs, &arrays[i]);
    }
    if (status) return fail_at(status, "tensors", path);
    inputs->q = arrays[0];
    inputs->k = arrays[1];
    inputs->v = arrays[2];
    return ATTN_OK;
}

attn_status attn_inputs_expect(const char *option, const attn_array *array, attn_element element, int rank,
                               const int64_t *extent, unsigned may_be_one)
{
    char shape[ATTN_SHAPE_TEXT], wanted[2 * ATTN_SHAPE_TEXT];
    if (array->element != element)
        return attn_fail(ATTN_INVALID, "--%s has dtype %s: takes %s", option, attn_element_name(array->element),
                         attn_element_name(element));
    bool fits = array->rank == rank;
    size_t length = 0;
    for (int i = 0; i < rank; i++) {
        bool one = may_be_one >> i & 1;
        if (fits && array->extent[i] != extent[i] && !(one && array->extent[i] == 1)) fits = false;
        length += (size_t)snprintf(wanted + length, sizeof wanted - length, "%s%s%lld", i ? ", " : "",
                                   one && extent[i] != 1 ? "1 or " : "", (long long)extent[i]);
    }
    if (fits) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "--%s has shape %s: takes (%s)", option,
                     attn_shape_text(array->extent, array->rank, shape), wanted);
}

/* (row, head, dim) becomes (1, row, head, dim). */
static attn_status check_rank(const char *name, attn_array *array, int rank)
{
    char shape[ATTN_SHAPE_TEXT];
    attn_shape_text(array->extent, array->rank, shape);
    if (!attn_element_dtype(array->element))
        return attn_fail(ATTN_INVALID, "%s has dtype %s: takes float32 or float16 (bfloat16 in .safetensors)", name,
                         attn_element_name(array->element));
    if (array->rank != 3 && array->rank != 4)
        return attn_fail(ATTN_INVALID, "%s has shape %s: takes (batch, row, head, dim) or (row, head, dim)", name,
                         shape);
    if (array->rank != rank)
        return attn_fail(ATTN_INVALID, "%s has shape %s, but q has rank %d: q, k and v take the same rank", name, shape,
                         rank);
    if (rank == 3) {
        memmove(array->extent + 1, array->extent, 3 * sizeof *array->extent);
        array->extent[0] = 1;
    }
    array->rank = 4;
    for (int i = 2; i < 4; i++) {
        if (array->extent[i] == 0)
            return attn_fail(ATTN_INVALID, "%s has shape %s: no %s", name, shape, i == 2 ? "head" : "dim");
    }
    return ATTN_OK;
}

static attn_status same(const char *what, const char *a_name, int64_t a, const char *b_name, int64_t b)
{
    if (a == b) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "%s has %lld %s, but %s has %lld", b_name, (long long)b, what, a_name, (long long)a);
}

static attn_status describe_shapes(attn_inputs *inputs)
{
    attn_desc *desc = &inputs->desc;
    int rank = inputs->q.rank;
    attn_status status = check_rank("q", &inputs->q, rank);
    if (!status) status = check_rank("k", &inputs->k, rank);
    if (!status) status = check_rank("v", &inputs->v, rank);
    const int64_t *q = inputs->q.extent, *k = inputs->k.extent, *v = inputs->v.extent;
    if (!status) status = same("sequences", "q", q[0], "k", k[0]);
    if (!status) status = same("sequences", "q", q[0], "v", v[0]);
    if (!status) status = same("rows", "k", k[1], "v", v[1]);
    if (!status) status = same("heads", "k", k[2], "v", v[2]);
    if (!status) status = same("dims", "q", q[3], "k", k[3]);
    inputs->rank = rank;
    desc->batch = q[0];
    desc->len_q = q[1];
    desc->len_kv = k[1];
    desc->heads_q = q[2];
    desc->heads_kv = k[2];
    desc->dim_qk = q[3];
    desc->dim_v = v[3];
    return status;
}

static attn_status convert(attn_inputs *inputs, attn_array *array, attn_dtype dtype)
{
    attn_dtype from = attn_element_dtype(array->element);
    if (from == dtype) return ATTN_OK;
    void *buffer = attn_inputs_buffer(inputs, array->count, attn_dtype_size(dtype));
    if (!buffer) return ATTN_NO_MEMORY;
    for (int64_t i = 0; i < array->count; i++)
        attn_store_scalar(dtype, buffer, i, attn_load_scalar(from, array->data, i));
    array->element = attn_element_of(dtype);
    array->data = buffer;
    return ATTN_OK;
}

static attn_status choose_dtype(attn_inputs *inputs, attn_dtype asked)
{
    attn_element q = inputs->q.element, k = inputs->k.element, v = inputs->v.element;
    if (!asked && (q != k || q != v))
        return attn_fail(ATTN_INVALID, "q is %s, k is %s, v is %s: say --dtype to convert them", attn_element_name(q),
                         attn_element_name(k), attn_element_name(v));
    inputs->desc.dtype = asked ? asked : attn_element_dtype(q);
    attn_status status = convert(inputs, &inputs->q, inputs->desc.dtype);
    if (!status) status = convert(inputs, &inputs->k, inputs->desc.dtype);
    if (!status) status = convert(inputs, &inputs->v, inputs->desc.dtype);
    return status;
}

attn_status attn_inputs_open(attn_inputs *inputs, const attn_run_options *options)
{
    *inputs = (attn_inputs){ .file_count = 0 };
    attn_status status;
    if (options->tensors) {
        status = load_tensors(inputs, options->tensors);
    } else {
        status = attn_inputs_load(inputs, "q", options->q, &inputs->q);
        if (!status) status = attn_inputs_load(inputs, "k", options->k, &inputs->k);
        if (!status) status = attn_inputs_load(inputs, "v", options->v, &inputs->v);
    }
    if (!status) status = describe_shapes(inputs);
    if (!status) status = choose_dtype(inputs, options->problem.dtype);
    if (status) return status;
    attn_problem_apply(&options->problem, &inputs->desc);
    inputs->args.q = inputs->q.data;
    inputs->args.k = inputs->k.data;
    inputs->args.v = inputs->v.data;
    inputs->args.seed = options->seed.value;
    return attn_inputs_open_masks(inputs, options);
}

void attn_inputs_close(attn_inputs *inputs)
{
    for (int i = 0; i < inputs->file_count; i++)
        attn_file_close(&inputs->files[i]);
    for (int i = 0; i < inputs->buffer_count; i++)
        free(inputs->buffers[i]);
}
