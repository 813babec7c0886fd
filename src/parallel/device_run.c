/* A rank on a GPU: a run of its plan. Contracts: device.h, device_plan.h. */
#include "base/error.h"
#include "num/half.h"
#include "parallel/device_plan.h"
#include "problem/desc.h"

/* ---- a run ----------------------------------------------------------------------------------- */

typedef struct run {
    const attn_parallel_plan *plan;
    const attn_parallel_device *own;
    const attn_args *args;
    char *room, *window;
    CUstream caller;
    attn_status status; /* of what has been put into streams so far: the first failure ends it */
} run;

static void did(run *r, CUresult result, const char *what)
{
    if (result && !r->status) r->status = attn_cuda_fail(result, what);
}

static CUstream stream_of(const run *r, int lane)
{
    return lane ? r->own->lane[lane].stream : r->caller;
}

static void follow(run *r, CUevent event, CUstream stream)
{
    if (!r->status) did(r, r->own->driver->cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
}

/* What is put into `later` from now on waits for what is in `first`. */
static void order(run *r, CUevent event, CUstream first, CUstream later)
{
    if (!r->status) did(r, r->own->driver->cuEventRecord(event, first), "cuEventRecord");
    follow(r, event, later);
}

/* Rows of `width` bytes, `rows` of them; pitches in bytes. */
static void copy(run *r, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, int64_t rows,
                 CUstream stream)
{
    CUDA_MEMCPY2D c = { .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                        .srcDevice = (CUdeviceptr)(uintptr_t)from,
                        .srcPitch = from_pitch,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = (CUdeviceptr)(uintptr_t)to,
                        .dstPitch = to_pitch,
                        .WidthInBytes = width,
                        .Height = (size_t)rows };
    if (width && rows && !r->status) did(r, r->own->driver->cuMemcpy2DAsync(&c, stream), "cuMemcpy2DAsync");
}

static void clear(run *r, void *at, size_t bytes, CUstream stream)
{
    if (bytes && !r->status)
        did(r, r->own->driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)at, 0, bytes, stream), "cuMemsetD8Async");
}

static void called(run *r, const char *name, int failed)
{
    if (failed && !r->status) r->status = attn_fail(ATTN_RANK_FAILED, "the engine's %s failed with %d", name, failed);
}

static void sum(run *r, const attn_merge_plan *plan, const void *const *parts, void *to, CUstream stream)
{
    attn_merge_args a = { .part_o = parts, .o = to };
    if (!r->status) r->status = attn_merge_run(plan, &a, stream);
}

/* Bytes of a key's heads in a piece: of k, or of v. */
static size_t row_bytes(const run *r, int v, size_t size)
{
    const attn_desc *d = &r->plan->whole;
    return (size_t)(r->own->heads_kv * (v ? d->dim_v : d->dim_qk)) * size;
}

/* A key of all in a buffer of this lane: of keys, or of gradients. */
static char *key_at(const run *r, char *buffer, size_t row, int64_t batch, int64_t key)
{
    return buffer + (size_t)(batch * r->plan->whole.len_kv + key) * row;
}

/* Gradients of keys from the rows of chunk c. */
static char *grads_at(const run *r, int lane, int c, int v)
{
    return r->room + r->own->room[lane].grads[c][v];
}

/* Where the keys of a piece are. */
static char *keys_of(const run *r, int v, int64_t piece)
{
    return r->window + r->own->keys[v] + (size_t)piece * r->own->piece_keys[v];
}

/* A row of this rank's tensor: of batch b, of chunk c, from head `head` on; size: of an element. */
static char *row_of(const void *base, const int64_t stride[4], size_t size, int64_t b, attn_chunk before, int64_t head)
{
    int64_t at = b * stride[0] + before.rows * stride[1] + head * stride[2];
    return (char *)(uintptr_t)base + at * (int64_t)size;
}

/* The chunk before chunk c, of which this rank has no rows if c is its first. */
static attn_chunk before_rows(const run *r, int c)
{
    return c ? attn_chunk_of_rows(r->plan, r->plan->how.rank, 0) : (attn_chunk){ 0, 0 };
}

static attn_chunk before_keys(const run *r, int c)
{
    return c ? attn_chunk_of_keys(r->plan, r->plan->how.rank, 0) : (attn_chunk){ 0, 0 };
}

/* This rank's keys of a piece, to where all keys are gathered; the copies of several pieces beside each other. */
static void place_own(run *r, int64_t piece)
{
    CUstream stream = stream_of(r, (int)(piece % r->own->lanes));
    const attn_desc *l = &r->plan->local;
    size_t size = (size_t)attn_dtype_size(l->dtype);
    for (int i = 0; i < 2 * r->plan->chunks; i++) {
        int v = i % 2, c = i / 2;
        attn_chunk keys = attn_chunk_of_keys(r->plan, r->plan->how.rank, c);
        const int64_t *stride = v ? l->v_stride : l->k_stride, dim = v ? l->dim_v : l->dim_qk;
        int64_t together = stride[2] == dim ? r->own->heads_kv : 1;
        for (int64_t n = 0; n < l->batch * r->own->heads_kv / together; n++) {
            int64_t b = n / (r->own->heads_kv / together), h = n % (r->own->heads_kv / together);
            const char *from =
                row_of(v ? r->args->v : r->args->k, stride, size, b, before_keys(r, c), piece * r->own->heads_kv + h);
            size_t row = row_bytes(r, v, size);
            char *to = key_at(r, keys_of(r, v, piece), row, b, keys.begin) + (size_t)(h * dim) * size;
            copy(r, to, row, from, (size_t)stride[1] * size, (size_t)(together * dim) * size, keys.rows, stream);
        }
    }
    if (!r->status) did(r, r->own->driver->cuEventRecord(r->own->ready[piece], stream), "cuEventRecord");
}

/* ---- messages -------------------------------------------------------------------------------- */

/* A message to rank `to`, whose window gets it at `there`, and one from rank `from`, at `here`, if they have bytes. */
static void exchange(run *r, int32_t to, const char *send, size_t sent, const char *there, int32_t from, char *here,
                     size_t received)
{
    const attn_engine *e = &r->plan->engine;
    if (r->status || (!sent && !received)) return;
    if (!e->put)
        called(r, "exchange",
               e->exchange(e->context, sent ? to : -1, sent ? send : NULL, sent, received ? from : -1,
                           received ? here : NULL, received, r->own->transfers));
    else if (sent)
        called(r, "put", e->put(e->context, to, (size_t)(there - r->window), send, sent, r->own->transfers));
}

static void end_exchange(run *r)
{
    const attn_engine *e = &r->plan->engine;
    if (!r->status) called(r, "wait", e->wait(e->context, r->own->transfers));
}

/* Before others put into this rank's window: what was there has been read. */
static void open_window(run *r)
{
    if (r->plan->engine.put) end_exchange(r);
}

/* Where gradients that this rank has of a chunk of keys are, the number of which is given. */
static char *grads_of(const run *r, int lane, int v, int64_t number)
{
    return grads_at(r, lane, r->plan->chunks - 1 ? attn_parallel_covers(r->plan, 1, number) : 0, v);
}

/* Where rank `of` gets gradients of its chunk k of keys that the rank h before it has computed. */
static char *received_at(const run *r, int lane, int32_t of, int32_t h, int k, int v, int64_t b)
{
    int64_t rows = attn_chunk_of_keys(r->plan, of, k).rows;
    return r->window + r->own->room[lane].received + (size_t)h * r->own->slot +
           (size_t)k * (r->own->block[0] + r->own->block[1]) + (v ? r->own->block[0] : 0) +
           (size_t)(b * rows) * row_bytes(r, v, 4);
}

/* All keys of a piece that this rank's rows see. */
static void gather(run *r, int64_t piece)
{
    const attn_parallel_plan *plan = r->plan;
    int32_t ranks = plan->how.ranks, me = plan->how.rank;
    size_t size = (size_t)attn_dtype_size(plan->whole.dtype);
    follow(r, r->own->ready[piece], r->own->transfers); /* this rank's are in their place */
    for (int32_t h = 1; h < ranks; h++) {
        int32_t to = (me + h) % ranks, from = (me - h + ranks) % ranks;
        for (int i = 0; i < 2 * plan->chunks; i++)
            for (int64_t b = 0; b < plan->whole.batch; b++) {
                int v = i % 2, k = i / 2;
                attn_chunk mine = attn_chunk_of_keys(plan, me, k), theirs = attn_chunk_of_keys(plan, from, k);
                size_t row = row_bytes(r, v, size);
                char *buffer = keys_of(r, v, piece), *own = key_at(r, buffer, row, b, mine.begin);
                exchange(r, to, own, attn_parallel_needs(plan, to, me, k) ? (size_t)mine.rows * row : 0, own, from,
                         key_at(r, buffer, row, b, theirs.begin),
                         attn_parallel_needs(plan, me, from, k) ? (size_t)theirs.rows * row : 0);
            }
    }
    end_exchange(r);
    if (!r->status) did(r, r->own->driver->cuEventRecord(r->own->ready[piece], r->own->transfers), "cuEventRecord");
}

/* Gradients of others' keys leave, and those of this rank's come. */
static void exchange_grads(run *r, int lane)
{
    const attn_parallel_plan *plan = r->plan;
    int32_t ranks = plan->how.ranks, me = plan->how.rank;
    order(r, r->own->lane[lane].done, stream_of(r, lane), r->own->transfers);
    open_window(r);
    for (int32_t h = 1; h < ranks; h++) {
        int32_t to = (me + h) % ranks, from = (me - h + ranks) % ranks;
        for (int i = 0; i < 2 * plan->chunks; i++)
            for (int64_t b = 0; b < plan->whole.batch; b++) {
                int v = i % 2, k = i / 2;
                attn_chunk theirs = attn_chunk_of_keys(plan, to, k), mine = attn_chunk_of_keys(plan, me, k);
                size_t row = row_bytes(r, v, 4);
                exchange(r, to,
                         key_at(r, grads_of(r, lane, v, attn_parallel_number(plan, to, k)), row, b, theirs.begin),
                         attn_parallel_needs(plan, me, to, k) ? (size_t)theirs.rows * row : 0,
                         received_at(r, lane, to, h, k, v, b), from, received_at(r, lane, me, h, k, v, b),
                         attn_parallel_needs(plan, from, me, k) ? (size_t)mine.rows * row : 0);
            }
    }
    end_exchange(r);
    order(r, r->own->lane[lane].back, r->own->transfers, stream_of(r, lane));
}

/* ---- computing ------------------------------------------------------------------------------- */

/* LSEs of a chunk's rows and a piece's heads, from those of all rows of this rank, or back. */
static void copy_lse(run *r, int c, int64_t piece, float *all, float *chunk, bool back, CUstream stream)
{
    const attn_desc *l = &r->plan->local;
    int64_t rows = attn_chunk_of_rows(r->plan, r->plan->how.rank, c).rows, heads = r->own->heads_q;
    for (int64_t b = 0; b < l->batch; b++) {
        float *theirs = all + (b * l->heads_q + piece * heads) * l->len_q + before_rows(r, c).rows,
              *ours = chunk + b * heads * rows;
        size_t whole = (size_t)l->len_q * 4, part = (size_t)rows * 4;
        copy(r, back ? theirs : ours, back ? whole : part, back ? ours : theirs, back ? part : whole, part, heads,
             stream);
    }
}

static float *lse_at(const run *r, const size_t *of, int c, int64_t piece)
{
    int64_t rows = attn_chunk_of_rows(r->plan, r->plan->how.rank, c).rows;
    return (float *)(void *)(r->room + of[c]) + piece * r->plan->whole.batch * r->own->heads_q * rows;
}

/* A chunk's gradients of slopes and sinks. */
static float *sums_at(const run *r, int c)
{
    const attn_desc *d = &r->plan->whole;
    return (float *)(void *)(r->room + r->own->sums) + c * (d->alibi_batch + 1) * d->heads_q;
}

/* The rows of chunk c with a piece of the heads. */
static void compute(run *r, int c, int64_t piece)
{
    const attn_parallel_plan *plan = r->plan;
    const attn_desc *l = &plan->local;
    int lane = attn_parallel_lane(plan, piece, c);
    const attn_lane_room *room = &r->own->room[lane];
    CUstream stream = stream_of(r, lane);
    size_t size = (size_t)attn_dtype_size(l->dtype), out = (size_t)attn_dtype_size(attn_out_dtype(l));
    int64_t head = piece * r->own->heads_q;
    attn_chunk before = before_rows(r, c);
    attn_key_reach keys = attn_parallel_reach_of(plan, c);
    attn_args a = { .q = row_of(r->args->q, l->q_stride, size, 0, before, head),
                    .k = key_at(r, keys_of(r, 0, piece), row_bytes(r, 0, size), 0, keys.begin),
                    .v = key_at(r, keys_of(r, 1, piece), row_bytes(r, 1, size), 0, keys.begin),
                    .o = row_of(r->args->o, l->o_stride, out, 0, before, head),
                    .lse = lse_at(r, r->own->lse, c, piece) };
    if (l->flags & ATTN_ALIBI) a.alibi = r->args->alibi + head;
    if (l->flags & ATTN_SINK) a.sink = r->args->sink + head;
    if (l->direction == ATTN_BACKWARD) {
        int64_t slopes = plan->whole.alibi_batch * l->heads_q;
        a.grad_o = row_of(r->args->grad_o, l->grad_o_stride, out, 0, before, head);
        a.grad_q = r->room + room->grad_q[c];
        a.grad_k = key_at(r, grads_at(r, lane, c, 0), row_bytes(r, 0, 4), 0, keys.begin);
        a.grad_v = key_at(r, grads_at(r, lane, c, 1), row_bytes(r, 1, 4), 0, keys.begin);
        if (l->flags & ATTN_ALIBI) a.grad_alibi = sums_at(r, c) + head;
        if (l->flags & ATTN_SINK) a.grad_sink = sums_at(r, c) + slopes + head;
        copy_lse(r, c, piece, r->args->lse, a.lse, false, stream);
        if (r->args->grad_lse) {
            float *chunk = lse_at(r, r->own->grad_lse, c, piece);
            copy_lse(r, c, piece, (float *)(uintptr_t)r->args->grad_lse, chunk, false, stream);
            a.grad_lse = chunk;
        }
    }
    if (!r->status) r->status = attn_run(plan->all[c], &a, r->room + room->scratch, stream);
    if (l->direction == ATTN_FORWARD && r->args->lse) copy_lse(r, c, piece, r->args->lse, a.lse, true, stream);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* After a chunk's run: its gradient of q, and zeros for keys of its last chunk that it was not run with. */
static void finish_chunk(run *r, int c, int64_t piece)
{
    const attn_parallel_plan *plan = r->plan;
    const attn_desc *l = &plan->local;
    int lane = attn_parallel_lane(plan, piece, c);
    CUstream stream = stream_of(r, lane);
    attn_key_reach keys = attn_parallel_reach_of(plan, c);
    int64_t end = attn_clamp(keys.hi * plan->keys_per_chunk, plan->whole.len_kv);
    int64_t floats = attn_chunk_of_rows(plan, plan->how.rank, c).rows * r->own->heads_q * l->dim_qk;
    for (int64_t b = 0; b < l->batch; b++) {
        const void *part[1] = { (float *)(void *)(r->room + r->own->room[lane].grad_q[c]) + b * floats };
        sum(r, r->own->to_grad_q[c], part,
            row_of(r->args->grad_q, l->grad_q_stride, (size_t)attn_dtype_size(attn_grad_dtype(l)), b, before_rows(r, c),
                   piece * r->own->heads_q),
            stream);
        for (int v = 0; v < 2; v++) {
            size_t row = row_bytes(r, v, 4);
            clear(r, key_at(r, grads_at(r, lane, c, v), row, b, keys.end), (size_t)(end - keys.end) * row, stream);
        }
    }
}

/* The two chunks' gradients of keys that both see. */
static void add_chunks(run *r, int lane)
{
    attn_chunk both = attn_parallel_both(r->plan);
    for (int64_t n = 0; n < 2 * r->plan->whole.batch && both.rows; n++) {
        int v = (int)(n % 2);
        size_t row = row_bytes(r, v, 4);
        const void *parts[2] = { key_at(r, grads_at(r, lane, 1, v), row, n / 2, both.begin),
                                 key_at(r, grads_at(r, lane, 0, v), row, n / 2, both.begin) };
        sum(r, r->own->add[v], parts, (void *)(uintptr_t)parts[0], stream_of(r, lane));
    }
}

/* All ranks' gradients of this rank's keys, in the order of distance, as the caller has them. */
static void finish_keys(run *r, int lane, int64_t piece)
{
    const attn_parallel_plan *plan = r->plan;
    const attn_desc *l = &plan->local;
    int32_t ranks = plan->how.ranks, me = plan->how.rank;
    for (int n = 0; n < 2 * plan->chunks * (int)l->batch; n++) {
        int v = n % 2, k = n / 2 % plan->chunks;
        int64_t b = n / 2 / plan->chunks, keys = attn_chunk_of_keys(plan, me, k).rows;
        size_t row = row_bytes(r, v, 4);
        const void *parts[ATTN_PARTS_MOST];
        int32_t count = 0;
        if (!keys) continue;
        if (attn_parallel_needs(plan, me, me, k))
            parts[count++] = key_at(r, grads_of(r, lane, v, attn_parallel_number(plan, me, k)), row, b,
                                    attn_chunk_of_keys(plan, me, k).begin);
        for (int32_t h = 1; h < ranks; h++)
            if (attn_parallel_needs(plan, (me - h + ranks) % ranks, me, k))
                parts[count++] = received_at(r, lane, me, h, k, v, b);
        if (!count) {
            parts[0] = received_at(r, lane, me, 0, k, v, b);
            clear(r, received_at(r, lane, me, 0, k, v, b), (size_t)keys * row, stream_of(r, lane));
        }
        sum(r, r->own->to_grads[k][v], parts,
            row_of(v ? r->args->grad_v : r->args->grad_k, v ? l->grad_v_stride : l->grad_k_stride,
                   (size_t)attn_dtype_size(attn_grad_dtype(l)), b, before_keys(r, k), piece * r->own->heads_kv),
            stream_of(r, lane));
    }
}

/* Gradients of slopes and sinks: of all ranks and chunks. */
static void total(run *r)
{
    const attn_parallel_plan *plan = r->plan;
    const attn_engine *e = &plan->engine;
    const attn_desc *d = &plan->whole;
    int64_t slopes = d->alibi_batch * d->heads_q, floats = slopes + d->heads_q;
    char *all = r->room + r->own->all_sums, *mine = r->room + r->own->sums;
    const void *parts[ATTN_PARTS_MOST];
    if (!(d->flags & (ATTN_ALIBI | ATTN_SINK)) || r->status) return;
    for (int i = 0; i < plan->how.ranks * plan->chunks; i++)
        parts[i] = all + (size_t)(i * floats) * 4;
    called(r, "all_gather", e->all_gather(e->context, mine, all, (size_t)(plan->chunks * floats) * 4, r->caller));
    sum(r, r->own->total, parts, mine, r->caller);
    if (r->args->grad_alibi)
        copy(r, r->args->grad_alibi, (size_t)slopes * 4, mine, (size_t)slopes * 4, (size_t)slopes * 4, 1, r->caller);
    if (r->args->grad_sink)
        copy(r, r->args->grad_sink, (size_t)d->heads_q * 4, mine + slopes * 4, (size_t)d->heads_q * 4,
             (size_t)d->heads_q * 4, 1, r->caller);
}

attn_status attn_parallel_device_run(const attn_parallel_plan *plan, const attn_args *args, char *workspace,
                                     void *stream)
{
    const attn_parallel_device *own = plan->device;
    bool backward = plan->whole.direction == ATTN_BACKWARD;
    run r = { plan, own, args, workspace, workspace + own->window, stream, ATTN_OK };
    if (plan->engine.put) r.status = attn_parallel_device_window(plan, &r.window);
    if (backward)
        clear(&r, sums_at(&r, 0),
              (size_t)(plan->chunks * (plan->whole.alibi_batch + 1) * plan->whole.heads_q) * sizeof(float), r.caller);
    order(&r, own->fork, r.caller, own->transfers);
    for (int i = 1; i < own->lanes; i++)
        order(&r, own->fork, r.caller, stream_of(&r, i));
    for (int64_t piece = 0; piece < own->pieces; piece++) /* before kernels: copies may need processors */
        place_own(&r, piece);
    open_window(&r);
    for (int64_t piece = 0; piece < own->pieces; piece++)
        gather(&r, piece);
    for (int64_t piece = 0; piece < own->pieces; piece++) {
        int lane = attn_parallel_lane(plan, piece, 0);
        for (int c = plan->chunks - 1; c >= 0; c--) { /* the longest first */
            if (!plan->all[c]) continue;
            follow(&r, own->ready[piece], stream_of(&r, attn_parallel_lane(plan, piece, c)));
            compute(&r, c, piece);
            if (backward) finish_chunk(&r, c, piece);
        }
        if (backward) add_chunks(&r, lane), exchange_grads(&r, lane), finish_keys(&r, lane, piece);
    }
    for (int i = 1; i < own->lanes; i++)
        order(&r, own->join, stream_of(&r, i), r.caller);
    order(&r, own->join, own->transfers, r.caller);
    if (backward) total(&r);
    return r.status;
}
