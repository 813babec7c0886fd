/* What the arguments of a run must be. First every array by its bytes: asked for by its flag, there, aligned, and apart
 * from the outputs; then the contents of every table. Every CPU run comes through here: the cost is that of reading the
 * tables once. On a GPU tables cannot be read: the first half has to do, and kernels clamp what they find. */
#include "problem/args.h"
#include "problem/desc.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "problem/keys.h"
#include "num/half.h"

/* ---- arrays -------------------------------------------------------------------------------- */

/* A table that may be missing. */
static attn_args_array optional(const char *name, size_t field, const void *base, int64_t size, int64_t count)
{
    attn_args_array array = attn_array_packed(name, field, base, size, count);
    array.optional = true;
    return array;
}

static int64_t lse_count(const attn_desc *d)
{
    return d->heads_q * (d->flags & ATTN_VARLEN ? d->total_q : d->batch * d->len_q);
}

#define FIELD(name) #name, offsetof(attn_args, name), a->name

int attn_args_inputs(attn_args_array list[ATTN_ARGS_INPUTS], const attn_desc *d, const attn_args *a)
{
    attn_shape shape = attn_shape_of(d);
    attn_shape scales = attn_scale_shape_of(d);
    int64_t kv_size = attn_dtype_size(attn_kv_dtype(d)), out_size = attn_dtype_size(attn_out_dtype(d));
    int64_t float_size = attn_dtype_size(attn_float_dtype(d));
    int n = 0;
    list[n++] = attn_array_strided(FIELD(q), attn_dtype_size(d->dtype), shape.q, d->q_stride);
    list[n++] = attn_array_strided(FIELD(k), kv_size, shape.k, d->k_stride);
    list[n++] = attn_array_strided(FIELD(v), kv_size, shape.v, d->v_stride);
    if (d->flags & ATTN_SCALES_Q) list[n++] = attn_array_strided(FIELD(q_scale), 4, scales.q, d->q_scale_stride);
    if (d->flags & ATTN_SCALES_KV) {
        list[n] = attn_array_strided(FIELD(k_scale), 4, scales.k, d->k_scale_stride);
        list[n++].optional = true;
        list[n] = attn_array_strided(FIELD(v_scale), 4, scales.v, d->v_scale_stride);
        list[n++].optional = true;
    }
    if (attn_out_dtype(d) == ATTN_E4M3) list[n++] = optional(FIELD(o_scale), 4, 1);
    if (d->flags & ATTN_VARLEN) {
        list[n++] = attn_array_packed(FIELD(cu_lens_q), 4, d->batch + 1);
        if (!(d->flags & ATTN_PAGED)) list[n++] = attn_array_packed(FIELD(cu_lens_kv), 4, d->batch + 1);
    }
    if (d->flags & ATTN_PAGED) {
        list[n++] =
            attn_array_packed(FIELD(page_table), 4, d->table_width ? d->batch * d->table_width : d->table_total);
        if (!d->table_width) list[n++] = attn_array_packed(FIELD(page_starts), 4, d->batch + 1);
    }
    if (d->flags & ATTN_LENS_Q) list[n++] = attn_array_packed(FIELD(lens_q), 4, d->batch);
    if (d->flags & ATTN_LENS_KV) list[n++] = attn_array_packed(FIELD(lens_kv), 4, d->batch);
    if (d->flags & ATTN_PREFIX) list[n++] = attn_array_packed(FIELD(prefix), 4, d->batch);
    if (d->flags & ATTN_FIRST_KV) list[n++] = attn_array_packed(FIELD(first_kv), 4, d->batch);
    if (d->flags & ATTN_POSITIONS) {
        list[n++] = attn_array_packed(FIELD(position_q), 8, d->batch);
        list[n++] = optional(FIELD(position_kv), 8, d->batch);
    }
    if (d->flags & ATTN_INTERVALS)
        list[n++] =
            attn_array_packed(FIELD(intervals), 4, d->batch * d->interval_heads * d->len_kv * d->interval_vectors);
    if (d->flags & ATTN_BLOCKS) {
        int64_t lines = d->block_batch * d->block_heads * attn_ceil_div(d->len_q, d->block_rows);
        int64_t columns = attn_ceil_div(d->len_kv, d->block_keys);
        list[n++] = optional(FIELD(block_full_count), 4, lines);
        list[n++] = optional(FIELD(block_full), 4, lines * columns);
        list[n++] = optional(FIELD(block_partial_count), 4, lines);
        list[n++] = optional(FIELD(block_partial), 4, lines * columns);
    }
    if (d->flags & ATTN_BITS)
        list[n++] = attn_array_packed(FIELD(bits), 1, d->bits_batch * d->bits_heads * d->len_q * attn_bits_pitch(d));
    if (d->flags & ATTN_ALIBI) list[n++] = attn_array_packed(FIELD(alibi), float_size, d->alibi_batch * d->heads_q);
    if (d->flags & ATTN_BIAS)
        list[n++] = attn_array_strided(FIELD(bias), attn_dtype_size(d->bias_dtype), d->bias_extent, d->bias_stride);
    if (d->flags & ATTN_SINK) list[n++] = attn_array_packed(FIELD(sink), float_size, d->heads_q);
    if (d->flags & ATTN_DROPOUT) {
        list[n++] = optional(FIELD(seed_at), 8, 1);
        list[n++] = optional(FIELD(seed_offset_at), 8, 1);
    }
    if (d->flags & ATTN_DROPOUT_BASES) {
        list[n++] = attn_array_packed(FIELD(dropout_row), 8, d->batch);
        list[n++] = attn_array_packed(FIELD(dropout_key), 8, d->batch);
        list[n++] = attn_array_packed(FIELD(dropout_head), 8, d->batch);
    }
    if (d->direction == ATTN_BACKWARD) {
        if (d->flags & ATTN_DELTA)
            list[n++] = attn_array_packed(FIELD(delta), float_size, lse_count(d));
        else
            list[n++] = attn_array_strided(FIELD(o), out_size, shape.o, d->o_stride);
        list[n++] = attn_array_packed(FIELD(lse), float_size, lse_count(d));
        list[n++] = attn_array_strided(FIELD(grad_o), out_size, shape.o, d->grad_o_stride);
        list[n++] = optional(FIELD(grad_lse), float_size, lse_count(d));
    }
    return n;
}

int attn_args_outputs(attn_args_array list[ATTN_ARGS_OUTPUTS], const attn_desc *d, const attn_args *a)
{
    attn_shape shape = attn_shape_of(d);
    int64_t float_size = attn_dtype_size(attn_float_dtype(d)), size = attn_dtype_size(attn_grad_dtype(d));
    int n = 0;
    if (d->direction == ATTN_FORWARD) {
        list[n++] = attn_array_strided(FIELD(o), attn_dtype_size(attn_out_dtype(d)), shape.o, d->o_stride);
        list[n++] = optional(FIELD(lse), float_size, lse_count(d));
        if (d->flags & ATTN_PAGED) list[n++] = optional(FIELD(fault), 4, 1);
        return n;
    }
    list[n++] = attn_array_strided(FIELD(grad_q), size, shape.q, d->grad_q_stride);
    list[n++] = attn_array_strided(FIELD(grad_k), size, shape.k, d->grad_k_stride);
    list[n++] = attn_array_strided(FIELD(grad_v), size, shape.v, d->grad_v_stride);
    if (d->flags & ATTN_BIAS) list[n++] = optional(FIELD(grad_bias), float_size, attn_bias_count(d));
    if (d->flags & ATTN_ALIBI) list[n++] = optional(FIELD(grad_alibi), float_size, d->alibi_batch * d->heads_q);
    if (d->flags & ATTN_SINK) list[n++] = optional(FIELD(grad_sink), float_size, d->heads_q);
    if (!(d->flags & ATTN_DELTA)) list[n++] = optional(FIELD(delta), float_size, lse_count(d));
    return n;
}

/* A pointer and the flag without which it must be NULL. */
typedef struct flagged {
    const char *name;
    size_t offset;
    uint32_t flag;
    const char *flag_name;
    attn_direction direction; /* ATTN_BACKWARD: a forward ignores it */
} flagged;

#define FLAGGED(name, flag, direction) { #name, offsetof(attn_args, name), flag, #flag, direction },

static const flagged pointers[] = { ATTN_FLAGGED_LIST(FLAGGED) };

static attn_status check_flags(const attn_desc *d, const attn_args *a)
{
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++) {
        const flagged *p = &pointers[i];
        const void *at;
        memcpy(&at, (const char *)a + p->offset, sizeof at);
        if (at && !(d->flags & p->flag) && p->direction <= d->direction)
            return attn_fail(ATTN_INVALID, "%s = %p needs %s", p->name, at, p->flag_name);
    }
    if (a->cu_lens_kv && d->flags & ATTN_PAGED)
        return attn_fail(ATTN_INVALID, "cu_lens_kv = %p is not NULL: with ATTN_PAGED no keys are packed",
                         (const void *)a->cu_lens_kv);
    if (a->page_starts && d->table_width)
        return attn_fail(ATTN_INVALID, "page_starts = %p needs table_width = 0", (const void *)a->page_starts);
    if (a->o_scale && attn_out_dtype(d) != ATTN_E4M3)
        return attn_fail(ATTN_INVALID, "o_scale = %p needs out_dtype = ATTN_E4M3", (const void *)a->o_scale);
    if (a->fault && d->device == ATTN_CPU)
        return attn_fail(ATTN_INVALID, "fault is not NULL: the CPU has none, it returns ATTN_INVALID");
    if (a->delta && d->direction == ATTN_FORWARD)
        return attn_fail(ATTN_INVALID, "delta = %p needs direction = ATTN_BACKWARD", (void *)a->delta);
    if (d->flags & ATTN_DELTA && (a->o || a->grad_lse))
        return attn_fail(ATTN_INVALID, "%s is not NULL: with ATTN_DELTA it is in delta", a->o ? "o" : "grad_lse");
    if (a->delta && d->device == ATTN_CUDA)
        return attn_fail(ATTN_UNSUPPORTED, "delta = %p: ATTN_CUDA does not write it", (void *)a->delta);
    return ATTN_OK;
}

static attn_status check_array(const attn_args_array *a)
{
    if (!a->base && a->hi > a->lo && !a->optional)
        return attn_fail(ATTN_INVALID, "%s is NULL, but has elements", a->name);
    if ((uintptr_t)a->base % (uintptr_t)a->size != 0)
        return attn_fail(ATTN_INVALID, "%s = %p is not aligned to its elements of %" PRId64 " bytes", a->name, a->base,
                         a->size);
    return ATTN_OK;
}

static attn_status check_apart(const attn_args_array *out, const attn_args_array *other)
{
    if (attn_arrays_are_apart(out, other)) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "%s overlaps %s", out->name, other->name);
}

attn_status attn_check_arrays(const attn_args_array *inputs, int input_count, const attn_args_array *outputs,
                              int output_count)
{
    attn_status status = ATTN_OK;
    for (int i = 0; i < input_count && !status; i++)
        status = check_array(&inputs[i]);
    for (int i = 0; i < output_count && !status; i++)
        status = check_array(&outputs[i]);
    for (int o = 0; o < output_count; o++)
        for (int i = 0; i < input_count && !status; i++)
            status = check_apart(&outputs[o], &inputs[i]);
    for (int o = 0; o < output_count; o++)
        for (int i = o + 1; i < output_count && !status; i++)
            status = check_apart(&outputs[o], &outputs[i]);
    return status;
}

static attn_status check_workspace(const attn_args_array *workspace, const attn_args_array *arrays, int count)
{
    for (int i = 0; i < count; i++)
        if (!attn_arrays_are_apart(workspace, &arrays[i]) && attn_arrays_share(workspace, &arrays[i]))
            return attn_fail(ATTN_INVALID, "workspace = %p overlaps %s = %p: it takes %" PRId64 " bytes of its own",
                             workspace->base, arrays[i].name, arrays[i].base, workspace->hi);
    return ATTN_OK;
}

static attn_status check_arrays(const attn_desc *d, const attn_args *a, const void *workspace, uint64_t bytes)
{
    attn_args_array inputs[ATTN_ARGS_INPUTS], outputs[ATTN_ARGS_OUTPUTS],
        room = attn_array_packed("workspace", 0, workspace, 1, (int64_t)bytes);
    int input_count = attn_args_inputs(inputs, d, a), output_count = attn_args_outputs(outputs, d, a);
    attn_status status = attn_check_arrays(inputs, input_count, outputs, output_count);
    if (!status) status = check_workspace(&room, inputs, input_count);
    return status ? status : check_workspace(&room, outputs, output_count);
}

attn_status attn_check_starts(const char *name, const int32_t *starts, int64_t batch, const char *most_name,
                              int64_t most)
{
    if (starts[0] != 0) return attn_fail(ATTN_INVALID, "%s[0] = %" PRId32 " is not 0", name, starts[0]);
    for (int64_t i = 0; i < batch; i++)
        if (starts[i + 1] < starts[i])
            return attn_fail(ATTN_INVALID, "%s[%" PRId64 "] = %" PRId32 " is below %s[%" PRId64 "] = %" PRId32, name,
                             i + 1, starts[i + 1], name, i, starts[i]);
    if (starts[batch] > most)
        return attn_fail(ATTN_INVALID, "%s[%" PRId64 "] = %" PRId32 " exceeds %s = %" PRId64, name, batch,
                         starts[batch], most_name, most);
    return ATTN_OK;
}

/* ---- lengths ------------------------------------------------------------------------------- */

static attn_status check_starts(const char *side, const int32_t *cu, int64_t batch, int64_t len, int64_t total)
{
    if (cu[0] != 0) return attn_fail(ATTN_INVALID, "cu_lens_%s[0] = %" PRId32 " is not 0", side, cu[0]);
    for (int64_t i = 0; i < batch; i++) {
        if (cu[i + 1] < cu[i])
            return attn_fail(ATTN_INVALID,
                             "cu_lens_%s[%" PRId64 "] = %" PRId32 " is below cu_lens_%s[%" PRId64 "] = %" PRId32, side,
                             i + 1, cu[i + 1], side, i, cu[i]);
        if (cu[i + 1] > total)
            return attn_fail(ATTN_INVALID, "cu_lens_%s[%" PRId64 "] = %" PRId32 " exceeds total_%s = %" PRId64, side,
                             i + 1, cu[i + 1], side, total);
        if (cu[i + 1] - cu[i] > len)
            return attn_fail(ATTN_INVALID,
                             "cu_lens_%s gives sequence %" PRId64 " %" PRId32 " rows, which exceeds len_%s = %" PRId64,
                             side, i, cu[i + 1] - cu[i], side, len);
    }
    return ATTN_OK;
}

/* starts: of the sequences, or NULL where each has `most`. */
static attn_status check_lens(const char *name, const int32_t *lens, const int32_t *starts, int64_t batch,
                              const char *most_name, int64_t most)
{
    for (int64_t i = 0; i < batch; i++) {
        int64_t share = starts ? starts[i + 1] - starts[i] : most;
        if (lens[i] < 0) return attn_fail(ATTN_INVALID, "%s[%" PRId64 "] = %" PRId32 " is below 0", name, i, lens[i]);
        if (lens[i] > share)
            return attn_fail(ATTN_INVALID, "%s[%" PRId64 "] = %" PRId32 " exceeds %s = %" PRId64, name, i, lens[i],
                             starts ? "the sequence's share of cu_lens" : most_name, share);
    }
    return ATTN_OK;
}

static attn_status check_lengths(const attn_desc *d, const attn_args *a)
{
    const int32_t *starts_q = NULL, *starts_kv = NULL;
    bool packed_kv = d->flags & ATTN_VARLEN && !(d->flags & ATTN_PAGED);
    const char *keys = packed_kv && d->len_kv >= d->total_kv ? "total_kv" : "len_kv"; /* the lower bound's name */
    attn_status status = ATTN_OK;
    if (d->flags & ATTN_VARLEN) {
        starts_q = a->cu_lens_q, starts_kv = a->cu_lens_kv;
        status = check_starts("q", starts_q, d->batch, d->len_q, d->total_q);
        if (!status && starts_kv) status = check_starts("kv", starts_kv, d->batch, d->len_kv, d->total_kv);
    }
    if (!status && d->flags & ATTN_LENS_Q)
        status = check_lens("lens_q", a->lens_q, starts_q, d->batch, "len_q", d->len_q);
    if (!status && d->flags & ATTN_LENS_KV)
        status = check_lens("lens_kv", a->lens_kv, starts_kv, d->batch, "len_kv", d->len_kv);
    if (!status && d->flags & ATTN_PREFIX) status = check_lens("prefix", a->prefix, NULL, d->batch, keys, d->len_kv);
    if (!status && d->flags & ATTN_FIRST_KV)
        status = check_lens("first_kv", a->first_kv, NULL, d->batch, keys, d->len_kv);
    return status;
}

static attn_status check_positions(const char *name, const int64_t *positions, int64_t batch)
{
    const int64_t most = (int64_t)1 << 59;
    for (int64_t i = 0; i < batch && positions; i++)
        if (positions[i] < -most || positions[i] > most)
            return attn_fail(ATTN_INVALID, "%s[%" PRId64 "] = %" PRId64 " is not in -2^59 to 2^59", name, i,
                             positions[i]);
    return ATTN_OK;
}

/* Bases from which dropout counts `count` things, whose numbers end at `most`. */
static attn_status check_bases(const char *name, const int64_t *bases, int64_t batch, int64_t step, int64_t count,
                               int64_t most)
{
    for (int64_t i = 0; i < batch && bases; i++) {
        if (bases[i] < 0 || bases[i] > most - count)
            return attn_fail(ATTN_INVALID, "%s[%" PRId64 "] = %" PRId64 " is not in 0 to %" PRId64, name, i, bases[i],
                             most - count);
        if (bases[i] % step)
            return attn_fail(ATTN_INVALID, "%s[%" PRId64 "] = %" PRId64 " is no multiple of %" PRId64, name, i,
                             bases[i], step);
    }
    return ATTN_OK;
}

static attn_status check_dropout(const attn_desc *d, const attn_args *a)
{
    const int64_t pairs = (int64_t)4 << 32, heads = (int64_t)1 << 32; /* a counter is of 4 rows or keys of 16 */
    attn_status status = check_bases("dropout_row", a->dropout_row, d->batch, 16, d->len_q, pairs);
    if (!status) status = check_bases("dropout_key", a->dropout_key, d->batch, 16, d->len_kv, pairs);
    return status ? status : check_bases("dropout_head", a->dropout_head, d->batch, 1, d->heads_q, heads);
}

/* ---- pages --------------------------------------------------------------------------------- */

static attn_status check_page_starts(const attn_desc *d, const attn_args *a)
{
    const int32_t *starts = a->page_starts;
    if (starts[0] != 0) return attn_fail(ATTN_INVALID, "page_starts[0] = %" PRId32 " is not 0", starts[0]);
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t needed = attn_ceil_div(a->lens_kv[b], d->page_size);
        if (starts[b + 1] < starts[b])
            return attn_fail(ATTN_INVALID,
                             "page_starts[%" PRId64 "] = %" PRId32 " is below page_starts[%" PRId64 "] = %" PRId32,
                             b + 1, starts[b + 1], b, starts[b]);
        if (starts[b + 1] - starts[b] < needed)
            return attn_fail(ATTN_INVALID,
                             "page_starts gives sequence %" PRId64 " %" PRId32 " pages, but lens_kv[%" PRId64
                             "] = %" PRId32 " needs %" PRId64,
                             b, starts[b + 1] - starts[b], b, a->lens_kv[b], needed);
    }
    if (starts[d->batch] > d->table_total)
        return attn_fail(ATTN_INVALID, "page_starts[%" PRId64 "] = %" PRId32 " exceeds table_total = %" PRId64,
                         d->batch, starts[d->batch], d->table_total);
    return ATTN_OK;
}

/* Only of pages with a key that ranges leave to some row. */
static attn_status check_page_ids(const attn_desc *d, const attn_args *a, int64_t batch)
{
    attn_ranges ranges = attn_ranges_of(d, a, batch);
    attn_runs seen = attn_ranges_hull(&ranges, 0, ranges.len_q);
    int64_t room;
    const int32_t *ids = attn_pages_of(d, a, batch, &room);
    for (int i = 0; i < 2; i++) {
        int64_t first = seen.lo[i] / d->page_size, last = (seen.hi[i] - 1) / d->page_size;
        for (int64_t page = first; page <= last && seen.lo[i] < seen.hi[i]; page++)
            if (ids[page] < 0 || ids[page] >= d->pages)
                return attn_fail(ATTN_INVALID,
                                 "page_table: sequence %" PRId64 ", entry %" PRId64 " = %" PRId32
                                 " is no page of 0 to %" PRId64,
                                 batch, page, ids[page], d->pages - 1);
    }
    return ATTN_OK;
}

static attn_status check_pages(const attn_desc *d, const attn_args *a)
{
    attn_status status = d->table_width ? ATTN_OK : check_page_starts(d, a);
    for (int64_t b = 0; b < d->batch && !status; b++)
        status = check_page_ids(d, a, b);
    return status;
}

/* ---- masks --------------------------------------------------------------------------------- */

/* One pass in parts of a constant length, which compilers turn into vector code: v | (most - v) has its sign bit set
 * exactly where v is outside 0 to most. */
static attn_status check_intervals(const attn_desc *d, const attn_args *a)
{
    enum { PART = 256 };
    int64_t count = d->batch * d->interval_heads * d->len_kv * d->interval_vectors;
    uint32_t most = (uint32_t)d->len_q, outside = 0;
    const int32_t *v = a->intervals;
    int64_t i = 0;
    for (; i + PART <= count && !(outside >> 31); i += PART)
        for (int j = 0; j < PART; j++)
            outside |= (uint32_t)v[i + j] | (most - (uint32_t)v[i + j]);
    if (outside >> 31) i -= PART;
    for (; i < count; i++)
        if (v[i] < 0 || v[i] > d->len_q)
            return attn_fail(ATTN_INVALID, "intervals[%" PRId64 "] = %" PRId32 " is not in 0 to len_q = %" PRId64, i,
                             v[i], d->len_q);
    return ATTN_OK;
}

/* One row of a list: rising numbers of blocks. */
static attn_status check_line(const char *kind, int64_t line, int32_t count, const int32_t *list, int64_t columns)
{
    if (count < 0 || count > columns)
        return attn_fail(ATTN_INVALID,
                         "block_%s_count[%" PRId64 "] = %" PRId32 " is not in 0 to %" PRId64 " key blocks", kind, line,
                         count, columns);
    for (int32_t i = 0; i < count; i++) {
        if (list[i] < 0 || list[i] >= columns)
            return attn_fail(ATTN_INVALID,
                             "block_%s[%" PRId64 "] = %" PRId32 " is not one of the key blocks 0 to %" PRId64, kind,
                             line * columns + i, list[i], columns - 1);
        if (i > 0 && list[i] <= list[i - 1])
            return attn_fail(ATTN_INVALID,
                             "block_%s[%" PRId64 "] = %" PRId32 " does not rise above %" PRId32 " before it", kind,
                             line * columns + i, list[i], list[i - 1]);
    }
    return ATTN_OK;
}

static attn_status check_pair(const char *kind, const int32_t *counts, const int32_t *lists, int64_t columns)
{
    if (counts && !lists && columns > 0)
        return attn_fail(ATTN_INVALID, "block_%s is NULL, but block_%s_count is not", kind, kind);
    if (lists && !counts) return attn_fail(ATTN_INVALID, "block_%s_count is NULL, but block_%s is not", kind, kind);
    return ATTN_OK;
}

static attn_status check_pairs(const attn_desc *d, const attn_args *a)
{
    int64_t columns = attn_ceil_div(d->len_kv, d->block_keys);
    attn_status status = check_pair("full", a->block_full_count, a->block_full, columns);
    if (!status) status = check_pair("partial", a->block_partial_count, a->block_partial, columns);
    if (!status && d->block_batch > 0 && d->len_q > 0 && !a->block_full_count && !a->block_partial_count)
        return attn_fail(ATTN_INVALID, "block_full_count and block_partial_count are both NULL: ATTN_BLOCKS needs one");
    return status;
}

static attn_status check_blocks(const attn_desc *d, const attn_args *a)
{
    int64_t columns = attn_ceil_div(d->len_kv, d->block_keys);
    int64_t lines = d->block_batch * d->block_heads * attn_ceil_div(d->len_q, d->block_rows);
    attn_status status = ATTN_OK;
    for (int64_t line = 0; line < lines; line++) {
        int32_t fulls = a->block_full_count ? a->block_full_count[line] : 0;
        int32_t partials = a->block_partial_count ? a->block_partial_count[line] : 0;
        const int32_t *full = a->block_full ? a->block_full + line * columns : NULL;
        const int32_t *partial = a->block_partial ? a->block_partial + line * columns : NULL;
        status = check_line("full", line, fulls, full, columns);
        if (!status) status = check_line("partial", line, partials, partial, columns);
        if (status) return status;
        for (int32_t i = 0, j = 0; i < fulls && j < partials;) {
            if (full[i] == partial[j])
                return attn_fail(ATTN_INVALID,
                                 "line %" PRId64 " of the block lists has block %" PRId32
                                 " in both block_full and block_partial",
                                 line, full[i]);
            if (full[i] < partial[j])
                i++;
            else
                j++;
        }
    }
    return ATTN_OK;
}

/* ---- score changes ------------------------------------------------------------------------- */

static attn_status check_logits(const attn_desc *d, const attn_args *a)
{
    char text[ATTN_DECIMAL_SIZE];
    double x;
    if (d->flags & ATTN_ALIBI)
        for (int64_t i = 0; i < d->alibi_batch * d->heads_q; i++)
            if (!isfinite(x = attn_load_double(attn_float_dtype(d), a->alibi, i)))
                return attn_fail(ATTN_INVALID, "alibi[%" PRId64 "] = %s is not finite", i, attn_decimal(text, x));
    if (d->flags & ATTN_SINK)
        for (int64_t i = 0; i < d->heads_q; i++)
            if (!((x = attn_load_double(attn_float_dtype(d), a->sink, i)) < INFINITY))
                return attn_fail(ATTN_INVALID, "sink[%" PRId64 "] = %s is neither finite nor -inf", i,
                                 attn_decimal(text, x));
    return ATTN_OK;
}

attn_status attn_args_check_arrays(const attn_desc *desc, const attn_args *args, const void *workspace, uint64_t bytes)
{
    attn_status status = check_flags(desc, args);
    if (!status) status = check_arrays(desc, args, workspace, bytes);
    return status || !(desc->flags & ATTN_BLOCKS) ? status : check_pairs(desc, args);
}

attn_status attn_args_check_run(const attn_desc *desc, const attn_args *args, const void *workspace, uint64_t bytes)
{
    attn_status status = attn_args_check_arrays(desc, args, workspace, bytes);
    if (!status) status = check_lengths(desc, args);
    if (!status) status = check_positions("position_q", args->position_q, desc->batch);
    if (!status) status = check_positions("position_kv", args->position_kv, desc->batch);
    if (!status) status = check_dropout(desc, args);
    if (!status && desc->flags & ATTN_PAGED) status = check_pages(desc, args);
    if (!status && desc->flags & ATTN_INTERVALS) status = check_intervals(desc, args);
    if (!status && desc->flags & ATTN_BLOCKS) status = check_blocks(desc, args);
    return status ? status : check_logits(desc, args);
}
