/* A run over ranks, by either schedule. Contract: attn_parallel.h.
 *
 * What a run computes is a sum over parts: a chunk of this rank's rows with a chunk of somebody's keys. A run without
 * keys begins the sums: forward with the sink, backward with delta, which all parts share. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "parallel/device.h"
#include "parallel/parallel.h"
#include "problem/args.h"
#include "problem/desc.h"
#include "problem/sequence.h"

typedef struct run {
    const attn_parallel_plan *plan;
    const attn_args *args;
    char *room; /* the workspace, aligned */
    void *stream;
    attn_status status;
} run;

static void *at(const run *r, size_t offset)
{
    return r->room + offset;
}

static attn_chunk rows_of(const run *r, int c)
{
    return attn_chunk_of_rows(r->plan, r->plan->how.rank, c);
}

static attn_chunk keys_of(const run *r, int c)
{
    return attn_chunk_of_keys(r->plan, r->plan->how.rank, c);
}

/* ---- the engine ------------------------------------------------------------------------------ */

static void called(run *r, const char *name, int failed)
{
    if (failed && !r->status) r->status = attn_fail(ATTN_RANK_FAILED, "the engine's %s failed with %d", name, failed);
}

static void wait_for_all(run *r)
{
    const attn_engine *e = &r->plan->engine;
    if (!r->status) called(r, "wait", e->wait(e->context, r->stream));
}

/* Chunks of blocks: `seen` of *send to rank `to`, and `will` of *receive from rank `from`. */
static void exchange(run *r, size_t chunk, int32_t to, attn_seen seen, const char *send, int32_t from, attn_seen will,
                     char *receive)
{
    const attn_engine *e = &r->plan->engine;
    size_t sent = (size_t)(seen.hi - seen.lo) * chunk, received = (size_t)(will.hi - will.lo) * chunk;
    if (r->status || (!sent && !received)) return;
    called(r, "exchange",
           e->exchange(e->context, sent ? to : -1, sent ? send + (size_t)seen.lo * chunk : NULL, sent,
                       received ? from : -1, received ? receive + (size_t)will.lo * chunk : NULL, received, r->stream));
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* A tensor of this rank: chunk c of its rows or keys. */
typedef struct tensor {
    attn_dtype dtype;
    const int64_t *stride;
    int64_t heads, dim;
    bool keys;
} tensor;

static attn_chunk chunk_of(const run *r, const tensor *t, int c)
{
    return t->keys ? keys_of(r, c) : rows_of(r, c);
}

/* The element at which row `row` of a chunk begins. */
static int64_t element(const run *r, const tensor *t, int c, int64_t plane, int64_t row)
{
    return plane * t->stride[0] + ((c ? chunk_of(r, t, 0).rows : 0) + row) * t->stride[1];
}

static const void *row_at(const run *r, const void *base, const tensor *t, int c)
{
    return (const char *)base + element(r, t, c, 0, 0) * attn_dtype_size(t->dtype);
}

/* A chunk, packed. */
static void pack(const run *r, const tensor *t, int c, const void *from, char *to)
{
    int64_t size = attn_dtype_size(t->dtype);
    for (int64_t p = 0; p < attn_shape_of(&r->plan->local).q[0]; p++)
        for (int64_t i = 0; i < chunk_of(r, t, c).rows; i++)
            for (int64_t h = 0; h < t->heads; h++, to += t->dim * size)
                memcpy(to, (const char *)from + (element(r, t, c, p, i) + h * t->stride[2]) * size,
                       (size_t)(t->dim * size));
}

/* Where a sequence's rows, or keys, are in a chunk. */
static attn_cut cut_of(const run *r, attn_chunk chunk, int64_t batch, bool keys)
{
    attn_sequence seq = attn_sequence_of(&r->plan->whole, r->args, batch);
    return keys ? attn_cut_of(chunk, seq.start_kv, seq.len_kv) : attn_cut_of(chunk, seq.start_q, seq.len_q);
}

static void store_row(attn_dtype dtype, const float *from, int64_t dim, void *to, int64_t first)
{
    for (int64_t d = 0; d < dim; d++)
        attn_store_scalar(dtype, to, first + d, from[d]);
}

/* The way back, from f32: rows of sequences alone. */
static void unpack(const run *r, const tensor *t, int c, const float *from, void *to)
{
    attn_chunk chunk = chunk_of(r, t, c);
    for (int64_t b = 0; b < r->plan->whole.batch; b++) {
        int64_t plane = attn_tensor_batch(&r->plan->whole, b);
        attn_cut cut = cut_of(r, chunk, b, t->keys);
        const float *row = from + (plane * chunk.rows + cut.at) * t->heads * t->dim;
        for (int64_t i = 0; i < cut.len; i++)
            for (int64_t h = 0; h < t->heads; h++, row += t->dim)
                store_row(t->dtype, row, t->dim, to, element(r, t, c, plane, cut.at + i) + h * t->stride[2]);
    }
}

/* LSEs of a chunk's rows from those of all rows of this rank, or back. */
static void copy_lse(const run *r, int c, float *all, float *chunk, bool back)
{
    attn_shape shape = attn_shape_of(&r->plan->local);
    attn_chunk rows = rows_of(r, c);
    int64_t heads = shape.q[2], first = c ? rows_of(r, 0).rows : 0;
    for (int64_t b = 0; b < r->plan->whole.batch; b++) {
        attn_cut cut = cut_of(r, rows, b, false);
        for (int64_t h = 0; h < heads; h++) {
            int64_t line = attn_tensor_batch(&r->plan->whole, b) * heads + h;
            float *theirs = all + line * shape.q[1] + first + cut.at, *ours = chunk + line * rows.rows + cut.at;
            memcpy(back ? theirs : ours, back ? ours : theirs, (size_t)cut.len * sizeof *ours);
        }
    }
}

/* k or v, and their gradients. */
static tensor keys_tensor(const run *r, bool of_v, bool gradient)
{
    const attn_desc *d = &r->plan->local;
    return (tensor){ gradient ? attn_grad_dtype(d) : d->dtype,
                     gradient ? (of_v ? d->grad_v_stride : d->grad_k_stride) : (of_v ? d->v_stride : d->k_stride),
                     d->heads_kv, of_v ? d->dim_v : d->dim_qk, true };
}

/* o, or with these strides grad_o. */
static tensor output_tensor(const run *r, const int64_t *stride)
{
    const attn_desc *d = &r->plan->local;
    return (tensor){ attn_out_dtype(d), stride, d->heads_q, d->dim_v, false };
}

static void pack_keys(const run *r)
{
    const attn_block *block = &r->plan->block;
    tensor k = keys_tensor(r, false, false), v = keys_tensor(r, true, false);
    for (int c = 0; c < r->plan->chunks; c++) {
        char *to = at(r, r->plan->room.own + (size_t)c * block->chunk);
        pack(r, &k, c, r->args->k, to);
        pack(r, &v, c, r->args->v, to + block->v_at);
    }
}

/* Gradients of this rank's keys, from a block of f32. */
static void unpack_keys(const run *r)
{
    const attn_block *block = &r->plan->gradient;
    tensor k = keys_tensor(r, false, true), v = keys_tensor(r, true, true);
    for (int c = 0; c < r->plan->chunks; c++) {
        size_t from = r->plan->room.grads + (size_t)c * block->chunk;
        unpack(r, &k, c, at(r, from), r->args->grad_k);
        unpack(r, &v, c, at(r, from + block->v_at), r->args->grad_v);
    }
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Arguments of a run of a chunk of this rank's rows. */
static attn_args args_of(const run *r, int c, attn_chunk keys)
{
    const attn_desc *d = &r->plan->local;
    const attn_parallel_room *room = &r->plan->room;
    attn_args a = *r->args;
    attn_chunk_tables(r->plan, r->args, rows_of(r, c), keys, at(r, room->tables), &a);
    tensor q = { d->dtype, d->q_stride, d->heads_q, d->dim_qk, false }, grad_o = output_tensor(r, d->grad_o_stride);
    a.q = row_at(r, r->args->q, &q, c), a.k = a.v = NULL;
    a.lse = at(r, room->lse[c]);
    if (d->direction == ATTN_BACKWARD) {
        a.o = NULL, a.grad_lse = NULL, a.delta = at(r, room->delta[c]);
        a.grad_o = row_at(r, r->args->grad_o, &grad_o, c);
        a.grad_q = at(r, room->grad_q[c]), a.grad_k = a.grad_v = NULL;
        if (d->flags & ATTN_ALIBI) a.grad_alibi = at(r, room->sums);
    }
    return a;
}

static void compute(run *r, const attn_plan *plan, const attn_args *a)
{
    if (!r->status) r->status = attn_run(plan, a, at(r, r->plan->room.scratch), r->stream);
}

static void merge(run *r, const attn_merge_plan *plan, const void *const *o, const float *const *lse, void *to,
                  float *to_lse)
{
    attn_merge_args a = { .part_o = o, .part_lse = lse, .o = to, .lse = to_lse };
    if (!r->status) r->status = attn_merge_run(plan, &a, r->stream);
}

/* Floats of gradients of slopes and sinks. */
static int64_t sums_of(const run *r)
{
    const attn_desc *d = &r->plan->whole;
    return (d->alibi_batch + 1) * d->heads_q;
}

/* Begins the sums of all rows. Those of rows outside every sequence are never written out. */
static void start(run *r)
{
    const attn_desc *d = &r->plan->local;
    const attn_parallel_room *room = &r->plan->room;
    bool forward = d->direction == ATTN_FORWARD;
    tensor o = output_tensor(r, d->o_stride);
    float *sums = forward ? NULL : at(r, room->sums), *more = forward ? NULL : sums + sums_of(r);
    int64_t slopes = r->plan->whole.alibi_batch * d->heads_q;
    if (!forward) memset(sums, 0, 2 * (size_t)sums_of(r) * sizeof *sums);
    for (int c = 0; c < r->plan->chunks; c++) {
        int64_t lines = attn_shape_of(d).q[0] * d->heads_q * rows_of(r, c).rows;
        if (!rows_of(r, c).rows) continue;
        if (!forward) copy_lse(r, c, r->args->lse, at(r, room->lse[c]), false);
        attn_args a = args_of(r, c, (attn_chunk){ 0, 0 });
        if (d->flags & ATTN_SINK) a.sink = r->args->sink;
        if (forward) {
            a.o = at(r, room->o[c]);
        } else {
            a.o = (void *)(uintptr_t)row_at(r, r->args->o, &o, c);
            memset(a.grad_q, 0, (size_t)(lines * d->dim_qk) * 4), memset(a.delta, 0, (size_t)lines * 4);
            if (d->flags & ATTN_ALIBI) a.grad_alibi = more;
            if (d->flags & ATTN_SINK) a.grad_sink = more + slopes;
            if (r->args->grad_lse) {
                float *chunk = at(r, room->grad_lse[c]);
                copy_lse(r, c, (float *)(uintptr_t)r->args->grad_lse, chunk, false);
                a.grad_lse = chunk;
            }
        }
        compute(r, r->plan->start[c], &a);
        for (int64_t i = 0; i < (forward ? 0 : sums_of(r)); i++)
            sums[i] += more[i];
    }
}

/* All rows of this rank with a block of keys, of rank `of`. grads: its gradients, which are added to. */
static void add_block(run *r, int32_t of, const char *block, char *grads)
{
    const attn_parallel_plan *plan = r->plan;
    const attn_parallel_room *room = &plan->room;
    for (int i = 0; i < plan->chunks * plan->chunks; i++) {
        int k = i / plan->chunks, c = i % plan->chunks;
        attn_chunk keys = attn_chunk_of_keys(plan, of, k);
        if (!attn_chunk_sees(plan, r->args, rows_of(r, c), keys)) continue;
        attn_args a = args_of(r, c, keys);
        const attn_plan *pair = plan->pair[c][keys.rows != plan->keys_per_chunk];
        a.k = block + (size_t)k * plan->block.chunk, a.v = (const char *)a.k + plan->block.v_at;
        if (plan->whole.direction == ATTN_BACKWARD) {
            char *to = grads + (size_t)k * plan->gradient.chunk;
            a.grad_k = to, a.grad_v = to + plan->gradient.v_at;
            compute(r, pair, &a);
            continue;
        }
        float *lse = a.lse;
        a.o = at(r, room->part_o), a.lse = at(r, room->part_lse);
        compute(r, pair, &a);
        merge(r, plan->add[c], (const void *[]){ at(r, room->o[c]), a.o }, (const float *[]){ lse, a.lse },
              at(r, room->o[c]), lse);
    }
}

/* ---- schedules ------------------------------------------------------------------------------- */

static void add_grads(const run *r, attn_seen seen)
{
    size_t chunk = r->plan->gradient.chunk / sizeof(float), lo = (size_t)seen.lo * chunk, hi = (size_t)seen.hi * chunk;
    float *sum = at(r, r->plan->room.grads);
    const float *more = at(r, r->plan->room.back);
    for (size_t i = lo; i < hi && !r->status; i++)
        sum[i] += more[i];
}

/* In step h a rank computes on the keys of the rank h before it. While it does, keys for step h + 1 come, and gradients
 * of step h - 1 go home. */
static void run_ring(run *r)
{
    const attn_parallel_plan *plan = r->plan;
    const attn_parallel_room *room = &plan->room;
    int32_t ranks = plan->how.ranks, me = plan->how.rank;
    bool backward = plan->whole.direction == ATTN_BACKWARD;
    attn_seen back = { 0, 0 }; /* of this rank's keys: chunks whose gradients are under way */
    start(r);
    if (backward) memset(at(r, room->grads), 0, plan->gradient.bytes);
    for (int32_t h = 0; h <= ranks; h++) {
        int32_t before = (me - h + ranks) % ranks, next = (me + h + 1) % ranks, far = (me - h - 1 + 2 * ranks) % ranks;
        char *grads = at(r, h ? room->sent[h % 2] : room->grads);
        if (h) wait_for_all(r);
        add_grads(r, back);
        if (h + 1 < ranks)
            exchange(r, plan->block.chunk, next, attn_rank_sees(plan, r->args, next, me), at(r, room->own), far,
                     attn_rank_sees(plan, r->args, me, far), at(r, room->arrived[(h + 1) % 2]));
        if (backward && h > 1) { /* to the rank h - 1 before this one */
            int32_t home = (far + 2) % ranks, user = (me + h - 1) % ranks;
            back = attn_rank_sees(plan, r->args, user, me);
            exchange(r, plan->gradient.chunk, home, attn_rank_sees(plan, r->args, me, home),
                     at(r, room->sent[(h - 1) % 2]), user, back, at(r, room->back));
        }
        if (h == ranks) break;
        if (backward && h) memset(grads, 0, plan->gradient.bytes);
        add_block(r, before, at(r, h ? room->arrived[h % 2] : room->own), grads);
    }
    if (backward && ranks > 1) wait_for_all(r);
    add_grads(r, back);
}

/* All keys in order, from every rank's block. */
static void order_keys(const run *r)
{
    const attn_parallel_plan *plan = r->plan;
    const attn_desc *d = &plan->whole;
    attn_shape shape = attn_shape_of(d);
    int64_t size = attn_dtype_size(d->dtype);
    for (int i = 0; i < plan->how.ranks * plan->chunks; i++) {
        int rank = i / plan->chunks, c = i % plan->chunks;
        attn_chunk keys = attn_chunk_of_keys(plan, rank, c);
        const char *block =
            at(r, plan->room.gathered + (size_t)rank * plan->block.bytes + (size_t)c * plan->block.chunk);
        for (int of_v = 0; of_v < 2; of_v++) {
            int64_t row = d->heads_kv * (of_v ? d->dim_v : d->dim_qk) * size;
            char *to = at(r, of_v ? plan->room.v : plan->room.k);
            const char *from = block + (of_v ? plan->block.v_at : 0);
            for (int64_t p = 0; p < shape.k[0]; p++)
                memcpy(to + (p * shape.k[1] + keys.begin) * row, from + p * keys.rows * row, (size_t)(keys.rows * row));
        }
    }
}

static void gather(run *r, const void *from, void *to, size_t bytes)
{
    const attn_engine *e = &r->plan->engine;
    if (!r->status) called(r, "all_gather", e->all_gather(e->context, from, to, bytes, r->stream));
}

static void run_all_gather(run *r)
{
    const attn_parallel_plan *plan = r->plan;
    const attn_parallel_room *room = &plan->room;
    const attn_engine *e = &plan->engine;
    gather(r, at(r, room->own), at(r, room->gathered), plan->block.bytes);
    if (r->status) return;
    if (plan->whole.direction == ATTN_BACKWARD) {
        memset(at(r, room->scattered), 0, (size_t)plan->how.ranks * plan->gradient.bytes);
        start(r);
        for (int32_t s = 0; s < plan->how.ranks; s++)
            add_block(r, s, at(r, room->gathered + (size_t)s * plan->block.bytes),
                      at(r, room->scattered + (size_t)s * plan->gradient.bytes));
        if (!r->status)
            called(r, "reduce_scatter",
                   e->reduce_scatter(e->context, at(r, room->scattered), at(r, room->grads),
                                     plan->gradient.bytes / sizeof(float), r->stream));
        return;
    }
    order_keys(r);
    tensor o = output_tensor(r, plan->local.o_stride);
    for (int c = 0; c < plan->chunks; c++) {
        attn_chunk all = { 0, attn_shape_of(&plan->whole).k[1] };
        if (!rows_of(r, c).rows) continue;
        attn_args a = args_of(r, c, all);
        if (plan->whole.flags & ATTN_SINK) a.sink = r->args->sink;
        a.k = at(r, room->k), a.v = at(r, room->v);
        a.o = (void *)(uintptr_t)row_at(r, r->args->o, &o, c);
        compute(r, plan->all[c], &a);
    }
}

/* ---- what is written ------------------------------------------------------------------------- */

static void write_results(run *r)
{
    tensor o = output_tensor(r, r->plan->local.o_stride);
    for (int c = 0; c < r->plan->chunks; c++) {
        if (r->plan->how.schedule == ATTN_RING) unpack(r, &o, c, at(r, r->plan->room.o[c]), r->args->o);
        if (r->args->lse) copy_lse(r, c, r->args->lse, at(r, r->plan->room.lse[c]), true);
    }
}

static void write_gradients(run *r)
{
    const attn_desc *d = &r->plan->local;
    const attn_parallel_room *room = &r->plan->room;
    int64_t slopes = r->plan->whole.alibi_batch * d->heads_q, count = sums_of(r);
    float *sums = at(r, room->sums), *all = at(r, room->all_sums);
    if (d->flags & (ATTN_ALIBI | ATTN_SINK)) gather(r, sums, all, (size_t)count * sizeof *sums);
    if (r->status) return;
    unpack_keys(r);
    tensor q = { attn_grad_dtype(d), d->grad_q_stride, d->heads_q, d->dim_qk, false };
    for (int c = 0; c < r->plan->chunks; c++)
        unpack(r, &q, c, at(r, room->grad_q[c]), r->args->grad_q);
    for (int64_t i = 0; i < count; i++) {
        float *to = i < slopes ? r->args->grad_alibi : r->args->grad_sink, sum = 0;
        for (int32_t rank = 0; rank < r->plan->how.ranks; rank++)
            sum += to ? all[rank * count + i] : 0;
        if (to) to[i < slopes ? i : i - slopes] = sum;
    }
}

/* ---- the call -------------------------------------------------------------------------------- */

/* The whole's tables and lengths are checked with tensors of one element, which lies in `element` wherever it is: this
 * rank has no others. */
static attn_status check_tables(const attn_parallel_plan *plan, const attn_args *args, const void *workspace)
{
    _Alignas(8) char element[16];
    attn_desc d = plan->whole;
    attn_args a = *args;
    d.direction = ATTN_FORWARD, d.grad_dtype = (attn_dtype)0;
    int64_t *const strides[] = { d.q_stride, d.k_stride, d.v_stride, d.o_stride };
    for (int i = 0; i < 4; i++)
        memset(strides[i], 0, sizeof d.q_stride);
    a.q = a.k = a.v = element, a.o = element + 8, a.lse = NULL;
    return attn_args_check_run(&d, &a, workspace, plan->room.bytes);
}

static attn_status check(const attn_parallel_plan *plan, const attn_args *args, const void *workspace)
{
    if (args->delta) return attn_fail(ATTN_INVALID, "delta = %p: over ranks it is NULL", (void *)args->delta);
    if (args->kv_layout) return attn_fail(ATTN_INVALID, "kv_layout is not NULL: over ranks the plan has the layout");
    attn_args a = *args;
    attn_args_keep(plan->local.flags, &a);
    uint64_t bytes = plan->room.bytes;
    attn_status status =
        plan->device ? attn_args_check_arrays(&plan->local, &a, workspace, bytes) : check_tables(plan, args, workspace);
    if (!status && !plan->device) status = attn_args_check_run(&plan->local, &a, workspace, bytes);
    if (!status && !workspace)
        status = attn_fail(ATTN_INVALID, "workspace = NULL: it takes %zu bytes", plan->room.bytes);
    return status;
}

static void run_on_host(run *r)
{
    pack_keys(r);
    if (r->plan->how.schedule == ATTN_RING)
        run_ring(r);
    else
        run_all_gather(r);
    if (r->plan->whole.direction == ATTN_BACKWARD)
        write_gradients(r);
    else if (!r->status)
        write_results(r);
}

attn_status attn_parallel_run_sized(const attn_parallel_plan *plan, const attn_args *args, size_t args_size,
                                    void *workspace, void *stream)
{
    attn_args full;
    int32_t nothing = 0;
    if (!plan) return attn_fail(ATTN_INVALID, "plan = NULL: it takes a plan from attn_parallel_plan_create");
    if (!plan->has_engine) return attn_fail(ATTN_INVALID, "plan: it has no engine, so it only predicts");
    attn_status status = attn_struct_copy(&full, sizeof full, args, args_size, "args");
    if (!status) status = check(plan, &full, workspace);
    if (!plan->device)
        status = attn_parallel_agree(plan, status, status ? 0 : attn_parallel_run_word(plan, &full), &nothing, stream);
    if (status) return status;
    uintptr_t aligned = ((uintptr_t)workspace + ATTN_PARALLEL_ALIGN - 1) / ATTN_PARALLEL_ALIGN * ATTN_PARALLEL_ALIGN;
    run r = { plan, &full, (char *)aligned, stream, ATTN_OK };
    if (plan->device)
        r.status = attn_parallel_device_run(plan, &full, r.room, stream);
    else
        run_on_host(&r);
    if (r.status && plan->engine.abort) plan->engine.abort(plan->engine.context);
    return r.status;
}
