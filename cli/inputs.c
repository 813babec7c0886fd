/* See inputs.h. Files are used as they were read; only a dtype to convert or a misaligned file costs a copy. */
#include "inputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "problem/desc.h"
#include "base/error.h"
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
    attn_status status = attn_file_open(file, path, attn_npy_extent);
    *array = (attn_array){ .data = NULL };
    if (!status) {
        inputs->file_count++;
        status = attn_npy_parse(file->bytes, file->size, array);
    }
    if (!status) status = align(inputs, array);
    return status ? fail_at(status, option, path) : ATTN_OK;
}

enum { TENSORS = 7, FORWARD_TENSORS = 3, REQUIRED_GRADIENTS = 4 };

/* What a file of tensors holds, the forward's first, what may be missing last. */
static attn_array *tensor_at(attn_inputs *inputs, int i)
{
    attn_array *const places[TENSORS] = { &inputs->q, &inputs->k,   &inputs->v,       &inputs->grad_o,
                                          &inputs->o, &inputs->lse, &inputs->grad_lse };
    return places[i];
}

static attn_status load_tensors(attn_inputs *inputs, const char *path)
{
    static const char *const names[TENSORS] = { "q", "k", "v", "do", "o", "lse", "dlse" };
    bool backward = inputs->desc.direction == ATTN_BACKWARD;
    int count = backward ? TENSORS : FORWARD_TENSORS, required = backward ? REQUIRED_GRADIENTS : FORWARD_TENSORS;
    attn_array arrays[TENSORS];
    attn_file *file = &inputs->files[inputs->file_count];
    attn_status status = attn_file_open(file, path, attn_safetensors_extent);
    if (!status) {
        inputs->file_count++;
        status = attn_safetensors_parse(file->bytes, file->size, names, count, arrays);
    }
    for (int i = 0; !status && i < count; i++) {
        if (arrays[i].element)
            status = align(inputs, &arrays[i]);
        else if (i < required)
            status = attn_fail(ATTN_INVALID, "holds no tensor %s", names[i]);
        *tensor_at(inputs, i) = arrays[i];
    }
    return status ? fail_at(status, "tensors", path) : ATTN_OK;
}

static attn_status load_files(attn_inputs *inputs, const attn_input_options *options)
{
    static const char *const names[TENSORS] = { "q", "k", "v", "do", "o-in", "lse-in", "dlse" };
    const char *const paths[TENSORS] = { options->q, options->k,   options->v,       options->grad_o,
                                         options->o, options->lse, options->grad_lse };
    attn_status status = ATTN_OK;
    for (int i = 0; !status && i < TENSORS; i++)
        if (paths[i]) status = attn_inputs_load(inputs, names[i], paths[i], tensor_at(inputs, i));
    return status;
}

static attn_status expect_element(const char *option, attn_element element, unsigned takes)
{
    char wanted[64] = "";
    size_t length = 0;
    if (takes >> element & 1) return ATTN_OK;
    for (int i = ATTN_ELEMENT_F32; i <= ATTN_ELEMENT_BOOL; i++)
        if (takes >> i & 1)
            length += (size_t)snprintf(wanted + length, sizeof wanted - length, "%s%s", length ? " or " : "",
                                       attn_element_name((attn_element)i));
    return attn_fail(ATTN_INVALID, "--%s has dtype %s: takes %s", option, attn_element_name(element), wanted);
}

attn_status attn_inputs_expect(const char *option, const attn_array *array, unsigned elements, int rank,
                               const int64_t *extent, unsigned may_be_one)
{
    char shape[ATTN_SHAPE_TEXT], wanted[2 * ATTN_SHAPE_TEXT];
    attn_status status = expect_element(option, array->element, elements);
    if (status) return status;
    bool fits = array->rank == rank;
    size_t length = 0;
    for (int i = 0; i < rank; i++) {
        bool one = may_be_one >> i & 1, more = extent[i] < 0;
        int64_t least = more ? ATTN_OR_MORE(extent[i]) : extent[i];
        if (fits && (more ? array->extent[i] < least : array->extent[i] != least) && !(one && array->extent[i] == 1))
            fits = false;
        length += (size_t)snprintf(wanted + length, sizeof wanted - length, "%s%s%lld%s", i ? ", " : "",
                                   one && least != 1 ? "1 or " : "", (long long)least, more ? " or more" : "");
    }
    if (fits) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "--%s has shape %s: takes (%s)", option,
                     attn_shape_text(array->extent, array->rank, shape), wanted);
}

attn_status attn_inputs_expect_table(attn_inputs *inputs, const char *option, attn_array *array, int rank,
                                     const int64_t *extent, unsigned may_be_one)
{
    attn_status status = attn_inputs_expect(option, array, ATTN_TAKES_TABLE, rank, extent, may_be_one);
    if (status || array->element == ATTN_ELEMENT_I32) return status;
    const int64_t *from = array->data;
    int32_t *to = attn_inputs_buffer(inputs, array->count, sizeof *to);
    if (!to) return ATTN_NO_MEMORY;
    for (int64_t i = 0; i < array->count; i++) {
        if (from[i] < INT32_MIN || from[i] > INT32_MAX)
            return attn_fail(ATTN_INVALID, "--%s: element %lld is %lld: takes what fits int32, %d to %d", option,
                             (long long)i, (long long)from[i], INT32_MIN, INT32_MAX);
        to[i] = (int32_t)from[i];
    }
    array->element = ATTN_ELEMENT_I32;
    array->data = to;
    return ATTN_OK;
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
        return attn_fail(ATTN_INVALID, "%s has shape %s, but q has rank %d: they take the same rank", name, shape,
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

static attn_status check_kv_rank(const char *name, const attn_inputs *inputs, attn_array *array)
{
    bool paged = inputs->desc.flags & ATTN_PAGED;
    char shape[ATTN_SHAPE_TEXT];
    if (paged && array->rank != 4)
        return attn_fail(ATTN_INVALID, "%s has shape %s: with --page-table it takes (page, slot, head, dim)", name,
                         attn_shape_text(array->extent, array->rank, shape));
    return check_rank(name, array, paged ? 4 : inputs->rank);
}

static attn_status same(const char *what, const char *a_name, int64_t a, const char *b_name, int64_t b)
{
    if (a == b) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "%s has %lld %s, but %s has %lld", b_name, (long long)b, what, a_name, (long long)a);
}

/* o, or its gradient. */
static attn_status describe_output(const char *name, attn_inputs *inputs, attn_array *array)
{
    const int64_t *q = inputs->q.extent, *o = array->extent;
    attn_status status = check_rank(name, array, inputs->rank);
    if (!status) status = same("sequences", "q", q[0], name, o[0]);
    if (!status) status = same("rows", "q", q[1], name, o[1]);
    if (!status) status = same("heads", "q", q[2], name, o[2]);
    if (!status) status = same("dims", "v", inputs->v.extent[3], name, o[3]);
    return status;
}

static attn_status describe_shapes(attn_inputs *inputs)
{
    attn_desc *desc = &inputs->desc;
    inputs->rank = inputs->q.rank;
    attn_status status = check_rank("q", &inputs->q, inputs->rank);
    if (!status) status = check_kv_rank("k", inputs, &inputs->k);
    if (!status) status = check_kv_rank("v", inputs, &inputs->v);
    const int64_t *q = inputs->q.extent, *k = inputs->k.extent, *v = inputs->v.extent;
    bool paged = desc->flags & ATTN_PAGED;
    if (!status && !paged) status = same("sequences", "q", q[0], "k", k[0]);
    if (!status && paged) status = same("pages", "k", k[0], "v", v[0]);
    if (!status && !paged) status = same("sequences", "q", q[0], "v", v[0]);
    if (!status) status = same(paged ? "slots" : "rows", "k", k[1], "v", v[1]);
    if (!status) status = same("heads", "k", k[2], "v", v[2]);
    if (!status) status = same("dims", "q", q[3], "k", k[3]);
    if (!status && desc->direction == ATTN_BACKWARD) {
        status = describe_output("do", inputs, &inputs->grad_o);
        if (!status && inputs->o.element) status = describe_output("o", inputs, &inputs->o);
    }
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

/* q, k and v come in one dtype, o and do in the outputs'. */
static attn_status choose_dtype(attn_inputs *inputs, const attn_input_options *options)
{
    static const char *const names[] = { "q", "k", "v", "do", "o" };
    enum { OPERANDS = sizeof names / sizeof *names };
    attn_dtype asked = options->problem.dtype;
    char list[160];
    size_t length = 0;
    bool alike = true;
    for (int i = 0; i < OPERANDS; i++) {
        attn_element element = tensor_at(inputs, i)->element;
        if (!element) continue;
        alike = alike && element == inputs->q.element;
        length += (size_t)snprintf(list + length, sizeof list - length, "%s%s is %s", i ? ", " : "", names[i],
                                   attn_element_name(element));
    }
    if (!asked && !alike) return attn_fail(ATTN_INVALID, "%s: say --dtype to convert them", list);
    attn_desc *desc = &inputs->desc;
    desc->dtype = asked ? asked : attn_element_dtype(inputs->q.element);
    if (!options->tensors && desc->dtype == ATTN_BF16) desc->flags |= ATTN_OUT_F32;
    attn_dtype out = attn_out_dtype(desc);
    inputs->out = attn_element_of(out);
    attn_status status = ATTN_OK;
    for (int i = 0; !status && i < OPERANDS; i++)
        if (tensor_at(inputs, i)->element) status = convert(inputs, tensor_at(inputs, i), i < 3 ? desc->dtype : out);
    return status;
}

attn_array attn_inputs_like(const attn_inputs *inputs, const attn_array *tensor, int64_t dim)
{
    const int64_t *extent = tensor->extent;
    attn_array array = { .element = inputs->out, .rank = inputs->rank };
    for (int i = 0; i < array.rank; i++)
        array.extent[i] = i + 1 < array.rank ? extent[4 - array.rank + i] : dim;
    return array;
}

attn_array attn_inputs_lse(const attn_inputs *inputs)
{
    const int64_t *q = inputs->q.extent;
    return (attn_array){ .element = ATTN_ELEMENT_F32, .rank = 3, .extent = { q[0], q[2], q[1] } };
}

static attn_status check_rows(const attn_inputs *inputs, const char *option, const attn_array *array)
{
    attn_array lse = attn_inputs_lse(inputs);
    return array->element ? attn_inputs_expect(option, array, ATTN_TAKES_F32, 3, lse.extent, 0) : ATTN_OK;
}

static attn_status check_gradients(const attn_inputs *inputs, const attn_input_options *options)
{
    attn_status status = check_rows(inputs, options->tensors ? "tensors: lse" : "lse-in", &inputs->lse);
    if (!status) status = check_rows(inputs, options->tensors ? "tensors: dlse" : "dlse", &inputs->grad_lse);
    if (!status && !inputs->o.element != !inputs->lse.element)
        return attn_fail(ATTN_INVALID, "--tensors %.200s: holds one of the tensors o and lse: takes both or neither",
                         options->tensors);
    return status;
}

attn_status attn_inputs_open(attn_inputs *inputs, const attn_input_options *options, attn_direction direction)
{
    *inputs = (attn_inputs){ .desc.direction = direction, .desc.flags = options->page_table ? ATTN_PAGED : 0 };
    attn_status status = options->tensors ? load_tensors(inputs, options->tensors) : load_files(inputs, options);
    if (!status) status = describe_shapes(inputs);
    if (!status) status = check_gradients(inputs, options);
    if (!status) status = choose_dtype(inputs, options);
    if (status) return status;
    attn_problem_apply(&options->problem, &inputs->desc);
    attn_args *args = &inputs->args;
    args->q = inputs->q.data, args->k = inputs->k.data, args->v = inputs->v.data;
    args->grad_o = inputs->grad_o.data, args->grad_lse = inputs->grad_lse.data;
    args->o = (void *)(uintptr_t)inputs->o.data;
    args->lse = (float *)(uintptr_t)inputs->lse.data;
    args->seed = options->seed.value;
    return attn_inputs_open_masks(inputs, options);
}

attn_status attn_inputs_check_options(const attn_input_options *options, attn_direction direction)
{
    static const char *const names[] = { "--q", "--k", "--v", "--do" };
    const char *const paths[] = { options->q, options->k, options->v, options->grad_o };
    bool backward = direction == ATTN_BACKWARD;
    const char *all = backward ? "--q, --k, --v and --do" : "--q, --k and --v";
    for (int i = 0; i < 3 + backward; i++) {
        if (options->tensors && paths[i])
            return attn_fail(ATTN_INVALID, "--tensors replaces %s: leave out %s", all, names[i]);
        if (!options->tensors && !paths[i])
            return attn_fail(ATTN_INVALID, "%s is missing: takes %s, or --tensors", names[i], all);
    }
    if (options->tensors && (options->o || options->lse || options->grad_lse))
        return attn_fail(ATTN_INVALID, "--tensors takes o, lse and dlse from its file: leave out %s",
                         options->o     ? "--o-in"
                         : options->lse ? "--lse-in"
                                        : "--dlse");
    const char *dot = options->tensors ? strrchr(options->tensors, '.') : NULL;
    if (dot && !strcmp(dot, ".npy"))
        return attn_fail(ATTN_INVALID, "--tensors %.200s: takes one .safetensors file; .npy files are given as %s",
                         options->tensors, all);
    if (!options->o != !options->lse) return attn_fail(ATTN_INVALID, "--o-in and --lse-in need each other");
    if (options->page_table && !options->lens_kv) return attn_fail(ATTN_INVALID, "--page-table needs --lens-kv");
    if (options->page_table && options->cu_lens_kv)
        return attn_fail(ATTN_INVALID, "--page-table says where keys are: leave out --cu-lens-kv");
    if (!options->page_table && !options->cu_lens_q != !options->cu_lens_kv)
        return attn_fail(ATTN_INVALID, "--cu-lens-q and --cu-lens-kv need each other");
    if (options->seed.given && options->problem.dropout < 0) return attn_fail(ATTN_INVALID, "--seed needs --dropout");
    return ATTN_OK;
}

void attn_inputs_close(attn_inputs *inputs)
{
    for (int i = 0; i < inputs->file_count; i++)
        attn_file_close(&inputs->files[i]);
    for (int i = 0; i < inputs->buffer_count; i++)
        free(inputs->buffers[i]);
}
