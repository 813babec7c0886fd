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

static CUstream stream_of(const run *r, const attn_lane *lane)
{
    return lane == r->own->lane ? r->caller : lane->stream;
}

static void follow(run *r, CUevent event, CUstream stream)
{
    if (!r->status) did(r, r->own->driver->cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
}

static void record(run *r, CUevent event, CUstream stream)
{
    if (!r->status) did(r, r->own->driver->cuEventRecord(event, stream), "cuEventRecord");
}

/* What is put into `later` from now on waits for what is in `first`. */
static void order(run *r, CUevent event, CUstream first, CUstream later)
{
    record(r, event, first);
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

/* Query heads of so many KV heads. */
static int64_t queries(const run *r, int64_t heads)
{
    return heads * (r->plan->whole.heads_q / r->plan->whole.heads_kv);
}

/* Bytes of a key's heads in a piece: of k, or of v. */
static size_t row_bytes(const run *r, const attn_piece *piece, int v, size_t size)
{
    const attn_desc *d = &r->plan->whole;
    return (size_t)(piece->heads * (v ? d->dim_v : d->dim_qk)) * size;
}

/* A key of all in a piece's buffer: of keys, or of gradients. */
static char *key_at(const run *r, char *buffer, size_t row, int64_t batch, int64_t key)
{
    return buffer + (size_t)(batch * r->plan->whole.len_kv + key) * row;
}

/* Gradients of keys from the rows of chunk c. */
static char *grads_at(const run *r, int slot, int c, int v)
{
    return r->room + r->own->slot[slot].grads[c][v];
}

/* Where the keys of a piece are. */
static char *keys_of(const run *r, const attn_piece *piece, int v)
{
    return r->window + piece->keys[v];
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

/* This rank's keys of a piece, to where all keys are gathered. */
static void place_own(run *r, const attn_piece *piece)
{
    const attn_desc *l = &r->plan->local;
    size_t size = (size_t)attn_dtype_size(l->dtype);
    for (int i = 0; i < 2 * r->plan->chunks; i++) {
        int v = i % 2, c = i / 2;
        attn_chunk keys = attn_chunk_of_keys(r->plan, r->plan->how.rank, c);
        const int64_t *stride = v ? l->v_stride : l->k_stride, dim = v ? l->dim_v : l->dim_qk;
        int64_t together = stride[2] == dim ? piece->heads : 1, copies = piece->heads / together;
        for (int64_t n = 0; n < l->batch * copies; n++) {
            int64_t b = n / copies, h = n % copies;
            const char *from = row_of(v ? r->args->v : r->args->k, stride, size, b, before_keys(r, c), piece->head + h);
            size_t row = row_bytes(r, piece, v, size);
            char *to = key_at(r, keys_of(r, piece, v), row, b, keys.begin) + (size_t)(h * dim) * size;
            copy(r, to, row, from, (size_t)stride[1] * size, (size_t)(together * dim) * size, keys.rows,
                 r->own->copies);
        }
    }
    record(r, piece->ready, r->own->copies);
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
static char *grads_of(const run *r, int slot, int v, int64_t number)
{
    return grads_at(r, slot, r->plan->chunks - 1 ? attn_parallel_covers(r->plan, 1, number) : 0, v);
}

/* Where rank `of` gets gradients of its chunk k of keys that the rank h before it has computed. */
static char *received_at(const run *r, const attn_piece *piece, int32_t of, int32_t h, int k, int v, int64_t b)
{
    int slot = attn_parallel_slot(r->plan, (int)(piece - r->own->piece));
    int64_t rows = attn_chunk_of_keys(r->plan, of, k).rows;
    size_t first = attn_parallel_block(r->plan, piece, 0), both = first + attn_parallel_block(r->plan, piece, 1);
    return r->window + r->own->slot[slot].received + (size_t)(h * r->plan->chunks + k) * both + (v ? first : 0) +
           (size_t)(b * rows) * row_bytes(r, piece, v, 4);
}

/* All keys of a piece that this rank's rows see. */
static void gather(run *r, const attn_piece *piece)
{
    const attn_parallel_plan *plan = r->plan;
    int32_t ranks = plan->how.ranks, me = plan->how.rank;
    size_t size = (size_t)attn_dtype_size(plan->whole.dtype);
    follow(r, piece->ready, r->own->transfers); /* this rank's are in their place */
    for (int32_t h = 1; h < ranks; h++) {
        int32_t to = (me + h) % ranks, from = (me - h + ranks) % ranks;
        for (int i = 0; i < 2 * plan->chunks; i++)
            for (int64_t b = 0; b < plan->whole.batch; b++) {
                int v = i % 2, k = i / 2;
                attn_chunk mine = attn_chunk_of_keys(plan, me, k), theirs = attn_chunk_of_keys(plan, from, k);
                size_t row = row_bytes(r, piece, v, size);
                char *buffer = keys_of(r, piece, v), *own = key_at(r, buffer, row, b, mine.begin);
                exchange(r, to, own, attn_parallel_needs(plan, to, me, k) ? (size_t)mine.rows * row : 0, own, from,
                         key_at(r, buffer, row, b, theirs.begin),
                         attn_parallel_needs(plan, me, from, k) ? (size_t)theirs.rows * row : 0);
            }
    }
    end_exchange(r);
    record(r, piece->ready, r->own->transfers);
}

/* Gradients of others' keys leave, and those of this rank's come. Where others put them nobody reads any more: a rank
 * has read what it got of a piece before its wait for the next, and this comes in a later one. */
static void exchange_grads(run *r, const attn_piece *piece, int slot)
{
    const attn_parallel_plan *plan = r->plan;
    int32_t ranks = plan->how.ranks, me = plan->how.rank;
    for (int32_t h = 1; h < ranks; h++) {
        int32_t to = (me + h) % ranks, from = (me - h + ranks) % ranks;
        for (int i = 0; i < 2 * plan->chunks; i++)
            for (int64_t b = 0; b < plan->whole.batch; b++) {
                int v = i % 2, k = i / 2;
                attn_chunk theirs = attn_chunk_of_keys(plan, to, k), mine = attn_chunk_of_keys(plan, me, k);
                size_t row = row_bytes(r, piece, v, 4);
                exchange(r, to,
                         key_at(r, grads_of(r, slot, v, attn_parallel_number(plan, to, k)), row, b, theirs.begin),
                         attn_parallel_needs(plan, me, to, k) ? (size_t)theirs.rows * row : 0,
                         received_at(r, piece, to, h, k, v, b), from, received_at(r, piece, me, h, k, v, b),
                         attn_parallel_needs(plan, from, me, k) ? (size_t)mine.rows * row : 0);
            }
    }
    end_exchange(r);
}

/* ---- computing ------------------------------------------------------------------------------- */

/* LSEs of a chunk's rows and a piece's heads, from those of all rows of this rank, or back. */
static void copy_lse(run *r, int c, const attn_piece *piece, float *all, float *chunk, bool back, CUstream stream)
{
    const attn_desc *l = &r->plan->local;
    int64_t rows = attn_chunk_of_rows(r->plan, r->plan->how.rank, c).rows, heads = queries(r, piece->heads);
    for (int64_t b = 0; b < l->batch; b++) {
        float *theirs = all + (b * l->heads_q + queries(r, piece->head)) * l->len_q + before_rows(r, c).rows,
              *ours = chunk + b * heads * rows;
        size_t whole = (size_t)l->len_q * 4, part = (size_t)rows * 4;
        copy(r, back ? theirs : ours, back ? whole : part, back ? ours : theirs, back ? part : whole, part, heads,
             stream);
    }
}

static float *lse_at(const run *r, const size_t *of, int c, const attn_piece *piece)
{
    int64_t rows = attn_chunk_of_rows(r->plan, r->plan->how.rank, c).rows;
    return (float *)(void *)(r->room + of[c]) + queries(r, piece->head) * r->plan->whole.batch * rows;
}

/* A chunk's gradients of slopes and sinks. */
static float *sums_at(const run *r, int c)
{
    const attn_desc *d = &r->plan->whole;
    return (float *)(void *)(r->room + r->own->sums) + c * (d->alibi_batch + 1) * d->heads_q;
}

/* The rows of chunk c with a piece of the heads, when the piece's keys are there. */
static void compute(run *r, int c, const attn_piece *piece, int slot)
{
    const attn_parallel_plan *plan = r->plan;
    const attn_desc *l = &plan->local;
    const attn_lane *lane = &r->own->lane[attn_parallel_lane(plan, (int)(piece - r->own->piece), c)];
    const attn_plan *of_heads = r->own->size[piece->size].run[c];
    CUstream stream = stream_of(r, lane);
    size_t size = (size_t)attn_dtype_size(l->dtype), out = (size_t)attn_dtype_size(attn_out_dtype(l));
    int64_t head = queries(r, piece->head);
    attn_chunk before = before_rows(r, c);
    attn_key_reach keys = attn_parallel_reach_of(plan, c);
    attn_args a = { .q = row_of(r->args->q, l->q_stride, size, 0, before, head),
                    .k = key_at(r, keys_of(r, piece, 0), row_bytes(r, piece, 0, size), 0, keys.begin),
                    .v = key_at(r, keys_of(r, piece, 1), row_bytes(r, piece, 1, size), 0, keys.begin),
                    .o = row_of(r->args->o, l->o_stride, out, 0, before, head),
                    .lse = lse_at(r, r->own->lse, c, piece) };
    if (l->flags & ATTN_ALIBI) a.alibi = r->args->alibi + head;
    if (l->flags & ATTN_SINK) a.sink = r->args->sink + head;
    if (l->direction == ATTN_BACKWARD) {
        int64_t slopes = plan->whole.alibi_batch * l->heads_q;
        a.grad_o = row_of(r->args->grad_o, l->grad_o_stride, out, 0, before, head);
        a.grad_q = r->room + lane->grad_q;
        a.grad_k = key_at(r, grads_at(r, slot, c, 0), row_bytes(r, piece, 0, 4), 0, keys.begin);
        a.grad_v = key_at(r, grads_at(r, slot, c, 1), row_bytes(r, piece, 1, 4), 0, keys.begin);
        if (l->flags & ATTN_ALIBI) a.grad_alibi = sums_at(r, c) + head;
        if (l->flags & ATTN_SINK) a.grad_sink = sums_at(r, c) + slopes + head;
        copy_lse(r, c, piece, r->args->lse, a.lse, false, stream);
        if (r->args->grad_lse) {
            float *chunk = lse_at(r, r->own->grad_lse, c, piece);
            copy_lse(r, c, piece, (float *)(uintptr_t)r->args->grad_lse, chunk, false, stream);
            a.grad_lse = chunk;
        }
    }
    follow(r, piece->ready, stream);
    if (!r->status) r->status = attn_run(of_heads, &a, r->room + lane->scratch, stream);
    if (l->direction == ATTN_FORWARD && r->args->lse) copy_lse(r, c, piece, r->args->lse, a.lse, true, stream);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Zeros for keys of a chunk's last chunk of keys that it was not run with. */
static void clear_rest(run *r, int c, const attn_piece *piece, int slot, CUstream stream)
{
    const attn_parallel_plan *plan = r->plan;
    attn_key_reach keys = attn_parallel_reach_of(plan, c);
    int64_t end = attn_clamp(keys.hi * plan->keys_per_chunk, plan->whole.len_kv);
    for (int n = 0; n < 2 * (int)plan->whole.batch; n++) {
        size_t row = row_bytes(r, piece, n % 2, 4);
        clear(r, key_at(r, grads_at(r, slot, c, n % 2), row, n / 2, keys.end), (size_t)(end - keys.end) * row, stream);
    }
}

/* After a chunk's run: its gradient of q. */
static void finish_chunk(run *r, int c, const attn_piece *piece, const attn_lane *lane)
{
    const attn_parallel_plan *plan = r->plan;
    const attn_desc *l = &plan->local;
    int64_t floats = attn_chunk_of_rows(plan, plan->how.rank, c).rows * queries(r, piece->heads) * l->dim_qk;
    for (int64_t b = 0; b < l->batch; b++) {
        const void *part[1] = { (float *)(void *)(r->room + lane->grad_q) + b * floats };
        sum(r, r->own->size[piece->size].to_grad_q[c], part,
            row_of(r->args->grad_q, l->grad_q_stride, (size_t)attn_dtype_size(attn_grad_dtype(l)), b, before_rows(r, c),
                   queries(r, piece->head)),
            stream_of(r, lane));
    }
}

/* The two chunks' gradients of keys that both see. */
static void add_chunks(run *r, const attn_piece *piece, int slot)
{
    attn_chunk both = attn_parallel_both(r->plan);
    for (int64_t n = 0; n < 2 * r->plan->whole.batch && both.rows; n++) {
        int v = (int)(n % 2);
        size_t row = row_bytes(r, piece, v, 4);
        const void *parts[2] = { key_at(r, grads_at(r, slot, 1, v), row, n / 2, both.begin),
                                 key_at(r, grads_at(r, slot, 0, v), row, n / 2, both.begin) };
        sum(r, r->own->size[piece->size].add[v], parts, (void *)(uintptr_t)parts[0], r->own->transfers);
    }
}

/* All ranks' gradients of this rank's keys, in the order of distance, as the caller has them. */
static void finish_keys(run *r, const attn_piece *piece, int slot)
{
    const attn_parallel_plan *plan = r->plan;
    const attn_desc *l = &plan->local;
    CUstream stream = r->own->transfers;
    int32_t ranks = plan->how.ranks, me = plan->how.rank;
    for (int n = 0; n < 2 * plan->chunks * (int)l->batch; n++) {
        int v = n % 2, k = n / 2 % plan->chunks;
        int64_t b = n / 2 / plan->chunks, keys = attn_chunk_of_keys(plan, me, k).rows;
        size_t row = row_bytes(r, piece, v, 4);
        const void *parts[ATTN_PARTS_MOST];
        int32_t count = 0;
        if (!keys) continue;
        if (attn_parallel_needs(plan, me, me, k))
            parts[count++] = key_at(r, grads_of(r, slot, v, attn_parallel_number(plan, me, k)), row, b,
                                    attn_chunk_of_keys(plan, me, k).begin);
        for (int32_t h = 1; h < ranks; h++)
            if (attn_parallel_needs(plan, (me - h + ranks) % ranks, me, k))
                parts[count++] = received_at(r, piece, me, h, k, v, b);
        if (!count) {
            parts[0] = received_at(r, piece, me, 0, k, v, b);
            clear(r, received_at(r, piece, me, 0, k, v, b), (size_t)keys * row, stream);
        }
        sum(r, r->own->size[piece->size].to_grads[k][v], parts,
            row_of(v ? r->args->grad_v : r->args->grad_k, v ? l->grad_v_stride : l->grad_k_stride,
                   (size_t)attn_dtype_size(attn_grad_dtype(l)), b, before_keys(r, k), piece->head),
            stream);
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

/* A piece's runs, the longest first; in the backward all that is done with their gradients. */
static void run_piece(run *r, int number)
{
    const attn_parallel_plan *plan = r->plan;
    const attn_parallel_device *own = r->own;
    const attn_piece *piece = &own->piece[number];
    int slot = attn_parallel_slot(plan, number);
    bool backward = plan->whole.direction == ATTN_BACKWARD;
    for (int c = plan->chunks - 1; c >= 0; c--) {
        const attn_lane *lane = &own->lane[attn_parallel_lane(plan, number, c)];
        CUstream stream = stream_of(r, lane);
        if (!own->size[piece->size].run[c]) continue;
        if (backward && number >= own->slots) follow(r, own->slot[slot].free, stream);
        compute(r, c, piece, slot);
        if (!backward) continue;
        clear_rest(r, c, piece, slot, stream);
        order(r, lane->done, stream, own->transfers);
        finish_chunk(r, c, piece, lane);
    }
    if (!backward) return;
    add_chunks(r, piece, slot), exchange_grads(r, piece, slot), finish_keys(r, piece, slot);
    record(r, own->slot[slot].free, own->transfers);
}

attn_status attn_parallel_device_run(const attn_parallel_plan *plan, const attn_args *args, char *workspace,
                                     void *stream)
{
    const attn_parallel_device *own = plan->device;
    bool backward = plan->whole.direction == ATTN_BACKWARD;
    run r = { plan, own, args, workspace, workspace + own->window, stream, ATTN_OK };
    if (plan->engine.put) r.status = attn_parallel_device_window(plan, &r.window);
    if (backward && plan->whole.flags & (ATTN_ALIBI | ATTN_SINK))
        clear(&r, sums_at(&r, 0),
              (size_t)(plan->chunks * (plan->whole.alibi_batch + 1) * plan->whole.heads_q) * sizeof(float), r.caller);
    order(&r, own->fork, r.caller, own->copies);
    follow(&r, own->fork, own->transfers);
    for (int i = 1; i < own->lanes; i++)
        follow(&r, own->fork, own->lane[i].stream);
    for (int i = 0; i < own->pieces; i++) /* before kernels: copies may need processors */
        place_own(&r, &own->piece[i]);
    open_window(&r);
    for (int i = 0; i < own->pieces; i++)
        gather(&r, &own->piece[i]);
    for (int i = 0; i < own->pieces; i++)
        run_piece(&r, i);
    for (int i = 1; i < own->lanes; i++)
        order(&r, own->join, own->lane[i].stream, r.caller);
    order(&r, own->join, own->transfers, r.caller);
    if (backward) total(&r);
    return r.status;
}
