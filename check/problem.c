#include "check/problem.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "problem/sequence.h"
#include "base/error.h"
#include "problem/desc.h"
#include "device/device.h"
#include "num/half.h"
#include "ref/ref.h"

static check_buffer *keep(check_problem *problem, int64_t size)
{
    if (problem->input_count == CHECK_BUFFERS) abort();
    check_buffer *buffer = &problem->inputs[problem->input_count++];
    *buffer = check_buffer_create((size_t)size, problem->options.front);
    return buffer;
}

void *check_problem_allocate(check_problem *problem, int64_t size)
{
    return keep(problem, size)->data;
}

void *check_problem_allocate_tensor(check_problem *problem, attn_dtype dtype, const int64_t extent[4],
                                    const int64_t stride[4])
{
    int64_t lo, hi;
    attn_reach(extent, stride, &lo, &hi);
    unsigned char *data = check_problem_allocate(problem, (hi - lo) * attn_dtype_size(dtype));
    return data - lo * attn_dtype_size(dtype);
}

/* ---- strides ------------------------------------------------------------------------------- */

static void lay_out(int64_t stride[4], check_layout layout, int64_t rows, int64_t heads, int64_t dim)
{
    if (rows == 0) rows = 1;
    const int64_t table[CHECK_LAYOUT_COUNT][4] = {
        [CHECK_HEAD_MAJOR] = { rows * heads * dim, dim, rows * dim, 1 },
        [CHECK_PADDED] = { rows * (heads * (dim + 5) + 3) + 7, heads * (dim + 5) + 3, dim + 5, 1 },
        [CHECK_REVERSED] = { rows * heads * dim, -heads * dim, dim, 1 },
        [CHECK_REPEATED] = { 0, heads * dim, dim, 1 },
    };
    memcpy(stride, table[layout], sizeof table[layout]);
}

/* A slice of a larger tensor: axes in one of three orders, gaps after each, some of them walked backwards. Inputs may
 * repeat along axes. Large tensors get small gaps. */
static void lay_out_slice(uint64_t *state, int64_t stride[4], const int64_t extent[4], bool input)
{
    static const int orders[][3] = { { 2, 1, 0 }, { 1, 2, 0 }, { 2, 0, 1 } }, gaps[] = { 0, 0, 0, 8, 8, 16, 1, 5 };
    const int *order = orders[check_below(state, 3)];
    int64_t step = extent[3], count = extent[0] * extent[1] * extent[2];
    bool odd = check_chance(state, 30), large = count * extent[3] > 1 << 18;
    stride[3] = 1;
    for (int i = 0; i < 3; i++) {
        int gap = gaps[check_below(state, odd ? 8 : 6)];
        if (!odd && !(large && extent[3] < 16)) step = (step + 7) / 8 * 8; /* so that all strides are multiples of 8 */
        if (!large || extent[3] >= 32) step += gap;
        stride[order[i]] = check_chance(state, 10) ? -step : step;
        step *= extent[order[i]] > 0 ? extent[order[i]] : 1;
        if (input && check_chance(state, 8)) stride[order[i]] = 0;
    }
}

static void lay_out_scales(uint64_t *state, attn_desc *desc)
{
    attn_shape shape = check_scale_shape(desc);
    const int64_t *extents[] = { shape.q, shape.k, shape.v },
                  rows[] = { desc->q_scale_rows, desc->k_scale_rows, desc->v_scale_rows };
    int64_t *strides[] = { desc->q_scale_stride, desc->k_scale_stride, desc->v_scale_stride };
    for (int i = 0; i < 3; i++) {
        if (!(desc->flags & (i == 0 ? ATTN_SCALES_Q : ATTN_SCALES_KV))) continue;
        bool channels = i == 2 && strides[i][3] && !rows[i];
        const int64_t *e = extents[i], extent[4] = { e[0], e[1], e[2], channels ? e[3] : 1 };
        lay_out_slice(state, strides[i], extent, true);
        if (!channels) strides[i][3] = 0;
        if (!rows[i]) strides[i][1] = 0;
    }
}

static void lay_out_slices(attn_desc *desc, uint64_t seed)
{
    attn_desc resolved;
    uint64_t state = seed;
    if (attn_desc_resolve(&resolved, desc, sizeof *desc) != ATTN_OK) return;
    attn_shape shape = attn_shape_of(&resolved);
    lay_out_slice(&state, desc->q_stride, shape.q, true);
    lay_out_slice(&state, desc->k_stride, shape.k, true);
    lay_out_slice(&state, desc->v_stride, shape.v, true);
    lay_out_slice(&state, desc->o_stride, shape.o, false);
    lay_out_scales(&state, desc);
    if (desc->direction != ATTN_BACKWARD) return;
    lay_out_slice(&state, desc->grad_o_stride, shape.o, true);
    lay_out_slice(&state, desc->grad_q_stride, shape.q, false);
    lay_out_slice(&state, desc->grad_k_stride, shape.k, false);
    lay_out_slice(&state, desc->grad_v_stride, shape.v, false);
}

void check_problem_lay_out(attn_desc *desc, const check_options *options)
{
    static const int64_t none[4];
    check_layout layout = options->layout;
    if (memcmp(desc->q_stride, none, sizeof none) != 0) return;
    if (options->strides) lay_out_slices(desc, options->strides);
    if (options->strides || layout == CHECK_PACKED) return;
    bool packed = desc->flags & ATTN_VARLEN;
    int64_t rows = packed ? desc->total_q : desc->len_q, keys = packed ? desc->total_kv : desc->len_kv;
    int64_t heads_kv = desc->heads_kv ? desc->heads_kv : desc->heads_q,
            dim_v = desc->dim_v ? desc->dim_v : desc->dim_qk;
    lay_out(desc->q_stride, layout, rows, desc->heads_q, desc->dim_qk);
    if (desc->flags & ATTN_PAGED) keys = desc->page_size;
    lay_out(desc->k_stride, layout, keys, heads_kv, desc->dim_qk);
    lay_out(desc->v_stride, layout, keys, heads_kv, dim_v);
    check_layout out = layout == CHECK_REPEATED ? CHECK_PACKED : layout;
    lay_out(desc->o_stride, out, rows, desc->heads_q, dim_v);
    if (desc->direction != ATTN_BACKWARD) return;
    lay_out(desc->grad_o_stride, layout, rows, desc->heads_q, dim_v);
    lay_out(desc->grad_q_stride, out, rows, desc->heads_q, desc->dim_qk);
    lay_out(desc->grad_k_stride, out, keys, heads_kv, desc->dim_qk);
    lay_out(desc->grad_v_stride, out, keys, heads_kv, dim_v);
}

/* ---- lengths ------------------------------------------------------------------------------- */

static int32_t draw_length(uint64_t *state, int64_t most)
{
    int64_t choice = check_below(state, 6);
    if (choice < 2 || most == 0) return (int32_t)most;
    return (int32_t)(choice == 2 ? 0 : choice == 3 ? 1 : check_below(state, most + 1));
}

/* Sequences back to back; one of them is as long as the descriptor allows, if `total` rows have room for it. */
static int32_t *draw_starts(check_problem *problem, uint64_t *state, int64_t most, int64_t total)
{
    int64_t batch = problem->resolved.batch;
    int32_t *starts = check_problem_allocate(problem, (batch + 1) * 4);
    int64_t whole = batch ? check_below(state, batch) : 0;
    starts[0] = 0;
    for (int64_t b = 0; b < batch; b++) {
        int64_t len = b == whole ? most : draw_length(state, most), left = total - starts[b];
        starts[b + 1] = starts[b] + (int32_t)(len < left ? len : left);
    }
    return starts;
}

static int32_t *draw_lengths(check_problem *problem, uint64_t *state, int64_t most, const int32_t *starts)
{
    int64_t batch = problem->resolved.batch;
    int32_t *lens = check_problem_allocate(problem, batch * 4);
    for (int64_t b = 0; b < batch; b++)
        lens[b] = draw_length(state, starts ? starts[b + 1] - starts[b] : most);
    return lens;
}

/* Rows that stand among the keys, before or behind them, of sequences that begin anywhere. A slope times a distance has
 * 24 bits. */
static void fill_positions(check_problem *problem, uint64_t *state)
{
    const attn_desc *desc = &problem->resolved;
    int64_t *q = check_problem_allocate(problem, desc->batch * 8), *kv = NULL;
    int64_t far = desc->flags & ATTN_ALIBI ? 1 << 12 : (int64_t)1 << 59;
    if (check_chance(state, 70)) kv = check_problem_allocate(problem, desc->batch * 8);
    for (int64_t b = 0; b < desc->batch; b++) {
        attn_sequence seq = attn_sequence_of(&(attn_desc){ .flags = desc->flags & ~(uint32_t)ATTN_POSITIONS,
                                                           .len_q = desc->len_q,
                                                           .len_kv = desc->len_kv },
                                             &problem->args, b);
        int64_t reach = seq.len_kv + seq.len_q + 1, start = check_below(state, 1 << 20) - (1 << 19);
        if (kv && check_chance(state, 10)) start = check_chance(state, 50) ? far - 2 * reach : 2 * reach - far;
        if (kv) kv[b] = start;
        q[b] = (kv ? start : 0) + seq.len_kv - seq.len_q;
        if (check_chance(state, 60)) q[b] += check_below(state, reach) - reach / 2;
        if (check_chance(state, 5)) q[b] = check_chance(state, 50) ? far : -far;
    }
    problem->args.position_q = q, problem->args.position_kv = kv;
}

static void fill_lengths(check_problem *problem, uint64_t *state)
{
    const attn_desc *desc = &problem->resolved;
    attn_args *args = &problem->args;
    if (desc->flags & ATTN_VARLEN) {
        args->cu_lens_q = draw_starts(problem, state, desc->len_q, desc->total_q);
        if (!(desc->flags & ATTN_PAGED)) args->cu_lens_kv = draw_starts(problem, state, desc->len_kv, desc->total_kv);
    }
    if (desc->flags & ATTN_LENS_Q) args->lens_q = draw_lengths(problem, state, desc->len_q, args->cu_lens_q);
    if (desc->flags & ATTN_LENS_KV) args->lens_kv = draw_lengths(problem, state, desc->len_kv, args->cu_lens_kv);
    if (desc->flags & ATTN_PREFIX) {
        int32_t *prefix = check_problem_allocate(problem, desc->batch * 4);
        for (int64_t b = 0; b < desc->batch; b++)
            prefix[b] = draw_length(state, desc->len_kv);
        args->prefix = prefix;
    }
    if (desc->flags & ATTN_FIRST_KV) {
        int32_t *first = check_problem_allocate(problem, desc->batch * 4);
        for (int64_t b = 0; b < desc->batch; b++)
            first[b] = check_chance(state, 30) ? draw_length(state, desc->len_kv)
                                               : (int32_t)check_below(state, 1 + desc->len_kv / 2);
        args->first_kv = first;
    }
    if (desc->flags & ATTN_POSITIONS) fill_positions(problem, state);
    if (desc->flags & ATTN_PAGED) check_fill_pages(problem, state);
}

/* ---- tensors ------------------------------------------------------------------------------- */

enum { TENSOR_Q, TENSOR_K, TENSOR_V };

/* What all elements of a key get added, so that its scores rise by about 30 or 60. */
static float key_level(check_data data, uint64_t *state, int64_t key, int64_t len, int64_t dim)
{
    float per_score = 1.0f / sqrtf((float)dim);
    if (data == CHECK_ASCENDING) return 30.0f * per_score * (float)(key + 1) / (float)len;
    if (data == CHECK_DESCENDING) return 30.0f * per_score * (float)(len - key) / (float)len;
    if (data == CHECK_SPIKED && check_chance(state, 2))
        return check_chance(state, 50) ? 60 * per_score : -60 * per_score;
    return 0.0f;
}

/* check_normal from a table: 2^20 numbers, from an index that the state says, the next one each time. */
static float fast_normal(uint64_t *state)
{
    enum { NORMALS = 1 << 20 };
    static float *normals;
    if (!normals) {
        uint64_t seed = 1;
        normals = check_allocate(NORMALS * sizeof *normals);
        for (int i = 0; i < NORMALS; i++)
            normals[i] = check_normal(&seed);
    }
    return normals[(*state)++ % NORMALS];
}

static float draw_element(int tensor, check_data data, bool fast, uint64_t *state, float level)
{
    float x = fast ? fast_normal(state) : check_normal(state);
    if (data == CHECK_TIMES_3) return 3 * x;
    if (data == CHECK_TIMES_5) return 5 * x;
    bool shaped = data == CHECK_ASCENDING || data == CHECK_DESCENDING || data == CHECK_SPIKED;
    return shaped && tensor == TENSOR_Q ? 1.0f + 0.1f * x : x + level;
}

/* head: a query head. */
static void fill_row(const check_problem *problem, int tensor, uint64_t *state, void *base, int64_t at, int64_t batch,
                     int64_t head, int64_t row, int64_t len, int64_t dim)
{
    const attn_desc *desc = &problem->resolved;
    attn_dtype dtype = tensor == TENSOR_Q ? desc->dtype : attn_kv_dtype(desc);
    bool scaled = desc->flags & (tensor == TENSOR_Q ? ATTN_SCALES_Q : ATTN_SCALES_KV);
    check_data data = problem->options.data;
    float level = tensor == TENSOR_K ? key_level(data, state, row, len, dim) : 0.0f;
    bool one_hot = tensor == TENSOR_V && data == CHECK_ONE_HOT, fast = problem->options.fast;
    uint64_t drawn = fast ? check_bits(state) : 0;
    if (fast) state = &drawn;
    for (int64_t d = 0; d < dim; d++) {
        float x = one_hot ? (float)(row % dim == d) : draw_element(tensor, data, fast, state, level);
        if (scaled) x /= check_scale_at(problem, "qkv"[tensor], batch, head, row, d);
        attn_store_scalar(dtype, base, at + d, x);
    }
}

static void *fill_tensor(check_problem *problem, int tensor, uint64_t *state)
{
    const attn_desc *desc = &problem->resolved;
    attn_shape shape = attn_shape_of(desc);
    const int64_t *extent = tensor == TENSOR_Q ? shape.q : tensor == TENSOR_K ? shape.k : shape.v;
    const int64_t *stride = tensor == TENSOR_Q ? desc->q_stride : tensor == TENSOR_K ? desc->k_stride : desc->v_stride;
    int64_t group = tensor == TENSOR_Q ? 1 : desc->heads_q / desc->heads_kv;
    attn_dtype dtype = tensor == TENSOR_Q ? desc->dtype : attn_kv_dtype(desc);
    void *base = check_problem_allocate_tensor(problem, dtype, extent, stride);
    for (int64_t b = 0; b < desc->batch; b++) {
        attn_sequence seq = attn_sequence_of(desc, &problem->args, b);
        int64_t len = tensor == TENSOR_Q ? seq.len_q : seq.len_kv;
        for (int64_t i = 0; i < len; i++) {
            if (tensor != TENSOR_Q && !check_key_is_there(problem, b, i)) continue;
            for (int64_t h = 0; h < extent[2]; h++) {
                int64_t at = tensor == TENSOR_Q ? attn_row_at(desc, &problem->args, b, h, i, stride)
                                                : attn_key_at(desc, &problem->args, b, h * group, i, stride);
                fill_row(problem, tensor, state, base, at, b, h * group, i, len, extent[3]);
            }
        }
    }
    return base;
}

/* late: of a row's later keys. */
static float draw_bias(const check_options *options, uint64_t *state, int64_t row, bool late)
{
    if (options->bias_lowest && late && row % 4 > 1) return row % 4 == 2 ? -0x1.fep127f : -100;
    if (options->bias_infinite && (row % 5 == 2 || check_chance(state, 20))) return -INFINITY;
    return check_normal(state);
}

static void fill_bias(check_problem *problem, uint64_t *state)
{
    const attn_desc *desc = &problem->resolved;
    const int64_t *extent = desc->bias_extent;
    const int64_t *stride = desc->bias_stride;
    void *base = check_problem_allocate_tensor(problem, desc->bias_dtype, extent, stride);
    for (int64_t b = 0; b < desc->batch; b++) {
        attn_sequence seq = attn_sequence_of(desc, &problem->args, b);
        int64_t rows = extent[2] == 1 ? (seq.len_q > 0) : seq.len_q,
                keys = extent[3] == 1 ? (seq.len_kv > 0) : seq.len_kv;
        for (int64_t h = 0; h < extent[1]; h++)
            for (int64_t i = 0; i < rows; i++) {
                int64_t at = (extent[0] == 1 ? 0 : b * stride[0]) + h * stride[1] + i * stride[2];
                for (int64_t j = 0; j < keys; j++)
                    attn_store_scalar(desc->bias_dtype, base, at + j * stride[3],
                                      draw_bias(&problem->options, state, i, 2 * j >= keys));
            }
    }
    problem->args.bias = base;
}

/* Numbers of 64 bits, of an offset's some that do not count. */
static void fill_seeds(check_problem *problem, uint64_t *state)
{
    uint64_t *seed = check_problem_allocate(problem, 8), *offset = check_problem_allocate(problem, 8);
    *seed = check_bits(state), *offset = check_bits(state);
    problem->args.seed_at = seed, problem->args.seed_offset_at = offset;
}

/* Bases of sequences at the beginning, in between and at the end of what can be counted. */
static int64_t *draw_bases(check_problem *problem, uint64_t *state, int64_t step, int64_t count, int64_t most)
{
    int64_t batch = problem->resolved.batch, *bases = check_problem_allocate(problem, batch * 8);
    for (int64_t b = 0; b < batch; b++) {
        int64_t far = check_below(state, 3), last = (most - count) / step;
        bases[b] = (far == 2 ? last : check_below(state, far ? last : 100)) * step;
    }
    return bases;
}

static void fill_bases(check_problem *problem, uint64_t *state)
{
    const attn_desc *desc = &problem->resolved;
    problem->args.dropout_row = draw_bases(problem, state, 16, desc->len_q, (int64_t)1 << 34);
    problem->args.dropout_key = draw_bases(problem, state, 16, desc->len_kv, (int64_t)1 << 34);
    problem->args.dropout_head = draw_bases(problem, state, 1, desc->heads_q, (int64_t)1 << 32);
}

static void fill_scores(check_problem *problem, uint64_t *state)
{
    const attn_desc *desc = &problem->resolved;
    if (desc->flags & ATTN_ALIBI) {
        float *alibi = check_problem_allocate(problem, desc->alibi_batch * desc->heads_q * 4);
        for (int64_t i = 0; i < desc->alibi_batch * desc->heads_q; i++)
            alibi[i] = exp2f(-8.0f * (float)(i % desc->heads_q + 1) / (float)desc->heads_q) *
                       (1 + 0.5f * (float)(i / desc->heads_q));
        problem->args.alibi = alibi;
    }
    if (desc->flags & ATTN_SINK) {
        float *sink = check_problem_allocate(problem, desc->heads_q * 4);
        for (int64_t h = 0; h < desc->heads_q; h++)
            sink[h] = 2 * check_normal(state);
        problem->args.sink = sink;
    }
    if (desc->flags & ATTN_BIAS) fill_bias(problem, state);
    problem->args.seed = check_bits(state);
    problem->args.seed_offset = (uint32_t)check_bits(state);
    if (desc->flags & ATTN_DROPOUT && problem->options.seed % 2 == 0) fill_seeds(problem, state);
    if (desc->flags & ATTN_DROPOUT_BASES) fill_bases(problem, state);
}

static void create_outputs(check_problem *problem)
{
    const attn_desc *desc = &problem->resolved;
    attn_shape shape = attn_shape_of(desc);
    int64_t lo, hi, size = attn_dtype_size(attn_out_dtype(desc));
    attn_reach(shape.o, desc->o_stride, &lo, &hi);
    problem->o = check_buffer_create((size_t)((hi - lo) * size), problem->options.front);
    problem->args.o = problem->o.data - lo * size;
    if (problem->options.no_lse && desc->direction == ATTN_FORWARD) return;
    size_t rows = (size_t)(shape.o[0] * shape.o[1] * shape.o[2]);
    problem->lse = check_buffer_create(rows * sizeof(float), problem->options.front);
    problem->args.lse = (float *)problem->lse.data;
}

/* ---- the whole ----------------------------------------------------------------------------- */

attn_status check_problem_create(check_problem *problem, const attn_desc *desc, const check_options *options)
{
    *problem = (check_problem){ .desc = *desc, .options = *options };
    check_problem_lay_out(&problem->desc, options);
    attn_status status = attn_desc_resolve(&problem->resolved, &problem->desc, sizeof problem->desc);
    if (status != ATTN_OK) return status;
    uint64_t state = options->seed;
    fill_lengths(problem, &state);
    if (attn_dtype_size(attn_kv_dtype(&problem->resolved)) == 1 || attn_out_dtype(&problem->resolved) == ATTN_E4M3)
        check_fill_scales(problem, &state);
    problem->args.q = fill_tensor(problem, TENSOR_Q, &state);
    problem->args.k = fill_tensor(problem, TENSOR_K, &state);
    problem->args.v = fill_tensor(problem, TENSOR_V, &state);
    create_outputs(problem);
    fill_scores(problem, &state);
    if (desc->flags & ATTN_INTERVALS) check_fill_intervals(problem, &state);
    if (desc->flags & ATTN_BLOCKS) check_fill_blocks(problem, &state);
    if (desc->flags & ATTN_BITS) check_fill_bits(problem, &state);
    if (desc->direction == ATTN_BACKWARD) check_fill_backward(problem, &state);
    return ATTN_OK;
}

void check_problem_destroy(check_problem *problem)
{
    for (int i = 0; i < problem->input_count; i++)
        check_buffer_destroy(&problem->inputs[i]);
    check_buffer_destroy(&problem->o);
    check_buffer_destroy(&problem->lse);
    for (int i = 0; i < CHECK_GRADIENTS; i++)
        check_buffer_destroy(&problem->gradients[i]);
    problem->input_count = 0;
}

static void refresh_outputs(const check_problem *problem)
{
    if (problem->desc.direction == ATTN_FORWARD) {
        check_buffer_refresh(&problem->o);
        check_buffer_refresh(&problem->lse);
    }
    for (int i = 0; i < CHECK_GRADIENTS; i++)
        check_buffer_refresh(&problem->gradients[i]);
    if (problem->resolved.flags & ATTN_ADD) check_fill_added(problem);
}

/* With ATTN_DELTA what is in it is not given besides. */
static attn_args args_of(const check_problem *problem)
{
    attn_args args = problem->args;
    if (problem->resolved.flags & ATTN_DELTA) args.o = NULL, args.grad_lse = NULL;
    return args;
}

int check_problem_shift(const check_problem *problem)
{
    const check_options *o = &problem->options;
    return o->shift ? o->shift : o->seed % 4 == 1 ? 2 : 0;
}

/* Every fourth problem lies at addresses that kernels find inconvenient. */
static attn_status run_on_device(const check_problem *problem, const attn_desc *desc, char *kernel)
{
    device_run run;
    attn_plan_info info;
    attn_desc gpu = *desc;
    attn_args args = args_of(problem);
    uint32_t fault = 0;
    if (gpu.flags & ATTN_PAGED) args.fault = &fault;
    gpu.threads = 0, gpu.isa = ATTN_ISA_AUTO, gpu.parallel_for = NULL;
    refresh_outputs(problem);
    attn_status status = device_begin(&run, &gpu, &args, check_problem_shift(problem));
    if (status != ATTN_OK) return status;
    if (kernel != NULL && attn_plan_get_info(run.plan, &info) == ATTN_OK)
        snprintf(kernel, CHECK_NAME, "%s", info.kernel);
    status = device_start(&run);
    attn_status ended = device_end(&run, true);
    if (status == ATTN_OK) status = ended;
    return status || !fault ? status : attn_fail(ATTN_DEVICE_FAILED, "fault is set, but nothing is out of range");
}

attn_status check_problem_run(const check_problem *problem, const attn_desc *desc, char *kernel)
{
    if (desc->device == ATTN_CUDA) return run_on_device(problem, desc, kernel);
    attn_plan *plan;
    attn_plan_info info;
    attn_args args = args_of(problem);
    attn_status status = attn_plan_create(&plan, desc);
    if (status != ATTN_OK) return status;
    refresh_outputs(problem);
    check_buffer workspace = check_buffer_create(attn_plan_workspace(plan), problem->options.front);
    status = attn_run(plan, &args, workspace.data, NULL);
    if (kernel != NULL && attn_plan_get_info(plan, &info) == ATTN_OK) snprintf(kernel, CHECK_NAME, "%s", info.kernel);
    check_buffer_destroy(&workspace);
    attn_plan_destroy(plan);
    return status;
}

/* ---- a caller's pool ----------------------------------------------------------------------- */

typedef struct pool {
    atomic_int left;
    void (*task)(void *arg, int index);
    void *arg;
} pool;

static void *pool_work(void *argument)
{
    pool *p = argument;
    for (int i; (i = atomic_fetch_sub(&p->left, 1) - 1) >= 0;)
        p->task(p->arg, i);
    return NULL;
}

void check_parallel_for(void *context, int tasks, void (*task)(void *arg, int index), void *arg)
{
    (void)context;
    pool p = { .left = tasks, .task = task, .arg = arg };
    pthread_t thread;
    bool two = pthread_create(&thread, NULL, pool_work, &p) == 0;
    pool_work(&p);
    if (two) pthread_join(thread, NULL);
}

void check_leave_out_parts(attn_desc *desc)
{
    desc->flags &= ~(uint32_t)(ATTN_DROPOUT_BASES | ATTN_DELTA | ATTN_ADD);
    desc->grad_dtype = (attn_dtype)0;
}

void check_problem_fit_bias(attn_desc *desc)
{
    bool heads = (desc->dim_qk + desc->len_q) % 2, batch = desc->len_kv % 2, rows = desc->len_kv % 3 > 0;
    const int64_t extent[] = { batch ? desc->batch : 1, heads ? desc->heads_q : 1, rows ? desc->len_q : 1,
                               desc->len_kv };
    int64_t pitch = (desc->len_kv + 7) / 8 * 8;
    const int64_t stride[] = { extent[1] * extent[2] * pitch, extent[2] * pitch, pitch, 1 };
    desc->flags |= ATTN_BIAS, desc->bias_dtype = desc->dtype == ATTN_E4M3 ? ATTN_BF16 : desc->dtype;
    memcpy(desc->bias_extent, extent, sizeof extent), memcpy(desc->bias_stride, stride, sizeof stride);
}

void check_problem_fit_ranges(const attn_cuda_kernel *k, attn_desc *d)
{
    if (!attn_cuda_takes_ranges(k, d)) d->flags &= ~(uint32_t)ATTN_CHUNK, d->chunk = 0;
    if (!attn_cuda_takes_ranges(k, d)) d->flags &= ~(uint32_t)ATTN_WINDOW, d->window_left = d->window_right = 0;
}

void check_problem_even_blocks(attn_desc *desc)
{
    desc->block_rows = attn_ceil_div(desc->block_rows, 64) * 64;
    desc->block_keys = attn_ceil_div(desc->block_keys, 64) * 64;
}

void check_problem_add(attn_desc *desc, uint32_t flags)
{
    desc->flags |= flags;
    if (flags & ATTN_SOFTCAP) desc->softcap = desc->dim_qk % 2 ? 50 : 15;
    if (flags & ATTN_ALIBI) desc->alibi_batch = 1;
    if (flags & ATTN_DROPOUT) desc->dropout_p = 0.25f;
    if (flags & ATTN_BIAS) check_problem_fit_bias(desc);
    if (flags & ATTN_BLOCKS)
        desc->block_rows = desc->block_keys = 64, desc->block_batch = 1, desc->block_heads = desc->heads_q;
    if (flags & ATTN_BITS)
        desc->bits_batch = desc->len_q % 2 ? desc->batch : 1, desc->bits_heads = desc->dim_qk % 2 ? desc->heads_q : 1;
}
