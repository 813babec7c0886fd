/* A rank on a GPU: which keys its rows see, and its plan. Contracts: device.h, device_plan.h. */
#include "parallel/device_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "num/half.h"
#include "problem/desc.h"
#include "problem/ranges.h"

enum {
    FIRST_LINES = 32 << 10,  /* of the first piece: rows times heads; the greatest tiles have 192 or 256 rows */
    MOST_LINES = 2 << 20,    /* of a piece of the backward, on average, unless the descriptor says how many there are */
    HIDDEN_BYTES = 16 << 20, /* that a further piece hides at least: twice what moves while it costs, 35 us [m] */
    NAMED_PIECES = 8,
    FIRST = -5, /* of a stream's priorities; drivers take the first that they have */
    TAKEN = ATTN_CAUSAL | ATTN_WINDOW | ATTN_SOFTCAP | ATTN_ALIBI | ATTN_SINK | ATTN_OUT_F32 | ATTN_DETERMINISTIC
};

/* ---- which keys ------------------------------------------------------------------------------ */

static attn_key_reach reach_of(const attn_parallel_plan *plan, attn_chunk rows)
{
    attn_ranges ranges = attn_ranges_of_desc(&plan->whole);
    attn_runs seen = attn_ranges_hull(&ranges, rows.begin, rows.begin + rows.rows);
    int64_t size = plan->keys_per_chunk, begin = seen.lo[1], end = seen.hi[1];
    if (begin >= end) return (attn_key_reach){ 0, 0, 0, 0 };
    return (attn_key_reach){ begin / size, attn_ceil_div(end, size), begin / size * size, end };
}

attn_key_reach attn_parallel_reach_of(const attn_parallel_plan *plan, int c)
{
    return reach_of(plan, attn_chunk_of_rows(plan, plan->how.rank, c));
}

int64_t attn_parallel_number(const attn_parallel_plan *plan, int32_t rank, int chunk)
{
    return chunk ? 2 * (int64_t)plan->how.ranks - 1 - rank : rank;
}

bool attn_parallel_needs(const attn_parallel_plan *plan, int32_t by, int32_t of, int k)
{
    int64_t number = attn_parallel_number(plan, of, k);
    for (int c = 0; c < plan->chunks && attn_chunk_of_keys(plan, of, k).rows; c++) {
        attn_key_reach r = reach_of(plan, attn_chunk_of_rows(plan, by, c));
        if (r.lo <= number && number < r.hi) return true;
    }
    return false;
}

bool attn_parallel_covers(const attn_parallel_plan *plan, int c, int64_t number)
{
    attn_key_reach r = attn_parallel_reach_of(plan, c);
    return r.lo <= number && number < r.hi;
}

attn_chunk attn_parallel_both(const attn_parallel_plan *plan)
{
    if (plan->chunks < 2) return (attn_chunk){ 0, 0 };
    attn_key_reach a = attn_parallel_reach_of(plan, 0), b = attn_parallel_reach_of(plan, 1);
    int64_t lo = a.lo > b.lo ? a.lo : b.lo, hi = a.hi < b.hi ? a.hi : b.hi, size = plan->keys_per_chunk;
    if (lo >= hi) return (attn_chunk){ 0, 0 };
    return (attn_chunk){ lo * size, attn_clamp(plan->whole.len_kv - lo * size, (hi - lo) * size) };
}

int attn_parallel_slot(const attn_parallel_plan *plan, int piece)
{
    return piece % plan->device->slots;
}

int attn_parallel_lane(const attn_parallel_plan *plan, int piece, int c)
{
    return attn_parallel_slot(plan, piece) * plan->chunks + plan->chunks - 1 - c;
}

/* ---- a plan ---------------------------------------------------------------------------------- */

attn_status attn_parallel_device_check(const attn_desc *d)
{
    bool turned = d->flags & (ATTN_CAUSAL | ATTN_WINDOW);
    if (d->flags & ~(uint32_t)TAKEN)
        return attn_fail(ATTN_UNSUPPORTED,
                         "flags = 0x%" PRIx32 ": over ranks ATTN_CUDA takes ATTN_CAUSAL, ATTN_WINDOW, ATTN_SOFTCAP, "
                         "ATTN_ALIBI, ATTN_SINK, ATTN_OUT_F32 and ATTN_DETERMINISTIC",
                         d->flags);
    if (d->flags & ATTN_WINDOW && !(d->flags & ATTN_CAUSAL) && d->window_right != 0)
        return attn_fail(ATTN_UNSUPPORTED, "window_right = %" PRId64 ": over ranks ATTN_CUDA takes 0, or ATTN_CAUSAL",
                         d->window_right);
    if (d->flags & ATTN_ALIBI && !turned)
        return attn_fail(ATTN_UNSUPPORTED, "flags: over ranks ATTN_CUDA takes ATTN_ALIBI with ATTN_CAUSAL alone");
    if (turned && d->len_q > d->len_kv)
        return attn_fail(ATTN_UNSUPPORTED,
                         "len_q = %" PRId64 " is above len_kv = %" PRId64
                         ": over ranks ATTN_CUDA takes no such problem "
                         "with ATTN_CAUSAL or ATTN_WINDOW",
                         d->len_q, d->len_kv);
    return ATTN_OK;
}

/* Keys are copied with rows `stride` apart. */
static attn_status check_rows(const char *name, const int64_t stride[4], int64_t heads, int64_t dim)
{
    int64_t least = stride[2] == dim ? heads * dim : dim;
    if (stride[1] >= least && stride[2] > 0) return ATTN_OK;
    return attn_fail(ATTN_UNSUPPORTED,
                     "%s_stride = (.., %" PRId64 ", %" PRId64 ", 1): over ranks ATTN_CUDA takes rows that follow each "
                     "other, and heads within them",
                     name, stride[1], stride[2]);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Addresses of a head have to be multiples of 16 bytes, and slopes of a batch lie in one array. */
static bool can_be_cut(const attn_parallel_plan *plan)
{
    const attn_desc *d = &plan->whole;
    int64_t size = attn_dtype_size(d->dtype);
    return d->dim_qk * size % 16 == 0 && d->dim_v * size % 16 == 0 && !(d->flags & ATTN_ALIBI && d->alibi_batch > 1) &&
           plan->how.ranks > 1;
}

/* Rows of a rank times query heads. */
static int64_t lines_of(const attn_parallel_plan *plan)
{
    return plan->whole.batch * plan->whole.heads_q * plan->rows_per_chunk * plan->chunks;
}

/* The KV heads that have so many lines. */
static int64_t heads_of(const attn_parallel_plan *plan, int64_t lines)
{
    int64_t all = lines_of(plan);
    return all > lines ? attn_ceil_div(plan->whole.heads_kv * lines, all) : plan->whole.heads_kv;
}

/* The pieces' heads: the first's, the last's in a backward, and between them numbers that differ by 1 at most. */
static void share_out(const attn_parallel_plan *plan, int pieces, int64_t *heads)
{
    bool backward = plan->whole.direction == ATTN_BACKWARD, ends = pieces > 1 + backward;
    int64_t all = plan->whole.heads_kv, even = all / pieces, least = heads_of(plan, FIRST_LINES);
    int from = ends, to = pieces - (ends && backward);
    if (ends) all -= heads[0] = even < least ? even : least;
    if (ends && backward) all -= heads[to] = even < 2 * least ? even : 2 * least;
    for (int i = from; i < to; i++)
        all -= heads[i] = attn_ceil_div(all, to - i);
}

/* Bytes that a rank gets while others are computed: of keys all but the first piece's, of gradients all but the
 * last's. */
static double hidden_bytes(const attn_parallel_plan *plan, int pieces)
{
    const attn_desc *d = &plan->whole;
    bool backward = d->direction == ATTN_BACKWARD;
    int64_t heads[ATTN_PIECES_MOST], others = d->len_kv - d->len_kv / plan->how.ranks;
    share_out(plan, pieces, heads);
    double keys = (double)(d->heads_kv - heads[0]) * (double)attn_dtype_size(d->dtype),
           grads = backward ? 4 * (double)(d->heads_kv - heads[pieces - 1]) : 0;
    return (keys + grads) * (double)(d->batch * others * (d->dim_qk + d->dim_v));
}

/* As many as device_plan.h says, the same on all ranks. */
static int64_t choose_pieces(const attn_parallel_plan *plan)
{
    bool backward = plan->whole.direction == ATTN_BACKWARD;
    int64_t heads = plan->whole.heads_kv, first = heads_of(plan, FIRST_LINES),
            many = backward ? attn_ceil_div(lines_of(plan), MOST_LINES) : 0;
    bool ends = backward && heads >= 4 * first && lines_of(plan) >= 8 * FIRST_LINES; /* these are 3/8 at most */
    int pieces = ends ? 3 : heads >= 2 * first ? 2 : 1;
    while (pieces > 1 && hidden_bytes(plan, pieces) < (double)(pieces - 1) * HIDDEN_BYTES)
        pieces--;
    return many > pieces ? many : pieces;
}

static int size_of(attn_parallel_device *own, int64_t heads)
{
    int size = 0;
    while (size < own->sizes && own->size[size].heads != heads)
        size++;
    if (size == own->sizes) own->size[own->sizes++].heads = heads;
    return size;
}

static void cut(const attn_parallel_plan *plan)
{
    attn_parallel_device *own = plan->device;
    int64_t heads[ATTN_PIECES_MOST] = { 0 }, head = 0, pieces = 1;
    if (can_be_cut(plan)) pieces = plan->how.pieces ? plan->how.pieces : choose_pieces(plan);
    if (pieces > plan->whole.heads_kv) pieces = plan->whole.heads_kv;
    own->pieces = (int)attn_clamp(pieces, ATTN_PIECES_MOST);
    share_out(plan, own->pieces, heads);
    for (int i = 0; i < own->pieces; head += heads[i++])
        own->piece[i] = (attn_piece){ .head = head, .heads = heads[i], .size = size_of(own, heads[i]) };
    own->slots = own->pieces < ATTN_SLOTS ? own->pieces : ATTN_SLOTS;
    own->lanes = own->slots * plan->chunks;
}

/* The most heads of a slot's pieces. */
static int64_t most_heads(const attn_parallel_device *own, int slot)
{
    int64_t most = 0;
    for (int i = slot; i < own->pieces; i += own->slots)
        most = own->piece[i].heads > most ? own->piece[i].heads : most;
    return most;
}

/* ---- what pieces take ------------------------------------------------------------------------ */

static void set_stride(int64_t stride[4], int64_t rows, int64_t heads, int64_t dim)
{
    stride[0] = rows * heads * dim, stride[1] = heads * dim, stride[2] = dim, stride[3] = 1;
}

/* The descriptor of the run of a chunk of rows, of some KV heads. */
static attn_desc desc_of(const attn_parallel_plan *plan, int c, int64_t heads)
{
    attn_desc d = plan->whole;
    attn_key_reach r = attn_parallel_reach_of(plan, c);
    int64_t keys = plan->whole.len_kv;
    d.len_q = attn_chunk_of_rows(plan, plan->how.rank, c).rows, d.len_kv = r.end - r.begin;
    d.heads_q = heads * (d.heads_q / d.heads_kv), d.heads_kv = heads;
    memcpy(d.q_stride, plan->local.q_stride, sizeof d.q_stride);
    memcpy(d.o_stride, plan->local.o_stride, sizeof d.o_stride);
    memcpy(d.grad_o_stride, plan->local.grad_o_stride, sizeof d.grad_o_stride);
    set_stride(d.k_stride, keys, d.heads_kv, d.dim_qk), set_stride(d.v_stride, keys, d.heads_kv, d.dim_v);
    if (d.direction == ATTN_FORWARD) return d;
    d.grad_dtype = ATTN_F32;
    memset(d.grad_q_stride, 0, sizeof d.grad_q_stride);
    memcpy(d.grad_k_stride, d.k_stride, sizeof d.k_stride), memcpy(d.grad_v_stride, d.v_stride, sizeof d.v_stride);
    return d;
}

/* Sums of f32 parts, (rows, heads, dim). stride: of the result; NULL: packed. */
static attn_status create_sum(attn_merge_plan **sum, int32_t parts, int64_t rows, int64_t heads, int64_t dim,
                              attn_dtype out, const int64_t *stride)
{
    attn_merge_desc d = { .dtype = ATTN_F32,
                          .out_dtype = out,
                          .device = ATTN_CUDA,
                          .parts = parts,
                          .batch = 1,
                          .rows = rows,
                          .heads = heads,
                          .dim = dim,
                          .sums = 1 };
    if (stride) memcpy(d.o_stride, stride, sizeof d.o_stride);
    return attn_merge_plan_create(sum, &d);
}

/* Parts of the gradients of this rank's chunk k of keys: this rank's and others'. */
static int32_t parts_of(const attn_parallel_plan *plan, int k)
{
    int32_t parts = 0;
    for (int32_t rank = 0; rank < plan->how.ranks; rank++)
        parts += attn_parallel_needs(plan, rank, plan->how.rank, k);
    return parts;
}

static attn_status create_sums(const attn_parallel_plan *plan, attn_piece_size *of)
{
    const attn_desc *d = &plan->whole, *l = &plan->local;
    const int64_t dim[2] = { d->dim_qk, d->dim_v }, *stride[2] = { l->grad_k_stride, l->grad_v_stride };
    int64_t both = attn_parallel_both(plan).rows, heads_q = of->heads * (d->heads_q / d->heads_kv);
    attn_status status = ATTN_OK;
    for (int c = 0; c < plan->chunks && !status; c++) {
        int64_t rows = attn_chunk_of_rows(plan, plan->how.rank, c).rows,
                keys = attn_chunk_of_keys(plan, plan->how.rank, c).rows;
        int32_t parts = parts_of(plan, c);
        if (rows)
            status = create_sum(&of->to_grad_q[c], 1, rows, heads_q, d->dim_qk, attn_grad_dtype(l), l->grad_q_stride);
        for (int v = 0; v < 2 && keys && !status; v++)
            status = create_sum(&of->to_grads[c][v], parts ? parts : 1, keys, of->heads, dim[v], attn_grad_dtype(l),
                                stride[v]);
    }
    for (int v = 0; v < 2 && both && !status; v++)
        status = create_sum(&of->add[v], 2, both, of->heads, dim[v], ATTN_F32, NULL);
    return status;
}

static attn_status create_size(const attn_parallel_plan *plan, attn_piece_size *of)
{
    attn_status status = ATTN_OK;
    for (int c = 0; c < plan->chunks && !status; c++) {
        attn_desc run = desc_of(plan, c, of->heads);
        if (run.len_q) status = attn_plan_create(&of->run[c], &run);
    }
    return status || plan->whole.direction == ATTN_FORWARD ? status : create_sums(plan, of);
}

/* Gradients of slopes and sinks, of all ranks and chunks. */
static attn_status create_total(const attn_parallel_plan *plan)
{
    const attn_desc *d = &plan->whole;
    if (d->direction == ATTN_FORWARD || !(d->flags & (ATTN_ALIBI | ATTN_SINK))) return ATTN_OK;
    int64_t floats = (d->alibi_batch + 1) * d->heads_q;
    return create_sum(&plan->device->total, plan->how.ranks * plan->chunks, floats, 1, 1, ATTN_F32, NULL);
}

/* Does what is asked with every event. */
static CUresult each_event(attn_parallel_device *own, CUresult (*what)(const attn_cuda_driver *, CUevent *))
{
    CUresult result = what(own->driver, &own->fork);
    if (!result) result = what(own->driver, &own->join);
    for (int i = 0; i < own->pieces && !result; i++)
        result = what(own->driver, &own->piece[i].ready);
    for (int i = 0; i < own->slots && !result; i++)
        result = what(own->driver, &own->slot[i].free);
    for (int i = 0; i < own->lanes && !result; i++)
        result = what(own->driver, &own->lane[i].done);
    return result;
}

static CUresult create_event(const attn_cuda_driver *driver, CUevent *event)
{
    return driver->cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
}

static CUresult destroy_event(const attn_cuda_driver *driver, CUevent *event)
{
    if (*event) driver->cuEventDestroy(*event);
    return 0;
}

static attn_status create_streams(attn_parallel_device *own)
{
    const attn_cuda_driver *driver = own->driver;
    CUresult result = driver->cuStreamCreateWithPriority(&own->transfers, CU_STREAM_NON_BLOCKING, FIRST);
    if (!result) result = driver->cuStreamCreateWithPriority(&own->copies, CU_STREAM_NON_BLOCKING, FIRST);
    for (int i = 1; i < own->lanes && !result; i++)
        result = driver->cuStreamCreate(&own->lane[i].stream, CU_STREAM_NON_BLOCKING);
    if (!result) result = each_event(own, create_event);
    return result ? attn_cuda_fail(result, "streams of attention over ranks") : ATTN_OK;
}

static size_t take(size_t *end, double bytes)
{
    size_t at = *end;
    *end += (size_t)attn_round_up((int64_t)bytes, ATTN_PARALLEL_ALIGN);
    return at;
}

size_t attn_parallel_block(const attn_parallel_plan *plan, const attn_piece *piece, int v)
{
    const attn_desc *d = &plan->whole;
    int64_t bytes = 4 * d->batch * piece->heads * (v ? d->dim_v : d->dim_qk) * plan->keys_per_chunk;
    return (size_t)attn_round_up(bytes, ATTN_PARALLEL_ALIGN);
}

/* The most that attn_run takes in a lane. */
static size_t scratch_of(const attn_parallel_plan *plan, int lane)
{
    const attn_parallel_device *own = plan->device;
    size_t most = 0;
    for (int i = lane / plan->chunks; i < own->pieces; i += own->slots) {
        const attn_plan *run = own->size[own->piece[i].size].run[plan->chunks - 1 - lane % plan->chunks];
        size_t bytes = run ? attn_plan_workspace(run) : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

size_t attn_parallel_device_scratch(const attn_parallel_plan *plan)
{
    size_t all = 0;
    for (int i = 0; i < plan->device->lanes; i++)
        all += scratch_of(plan, i);
    return all;
}

/* What all ranks have alike. */
static void lay_out_window(const attn_parallel_plan *plan)
{
    attn_parallel_device *own = plan->device;
    const attn_desc *d = &plan->whole;
    double key = (double)d->batch * (double)d->len_kv * (double)attn_dtype_size(d->dtype);
    for (int v = 0; v < 2; v++)
        for (int i = 0; i < own->pieces; i++)
            own->piece[i].keys[v] =
                take(&own->window_bytes, key * (double)own->piece[i].heads * (double)(v ? d->dim_v : d->dim_qk));
    for (int s = 0; s < own->slots && d->direction == ATTN_BACKWARD; s++) {
        attn_piece most = { .heads = most_heads(own, s) };
        size_t block = attn_parallel_block(plan, &most, 0) + attn_parallel_block(plan, &most, 1);
        own->slot[s].received = take(&own->window_bytes, (double)block * plan->chunks * plan->how.ranks);
    }
}

static void lay_out(attn_parallel_plan *plan)
{
    attn_parallel_device *own = plan->device;
    const attn_desc *d = &plan->whole;
    bool backward = d->direction == ATTN_BACKWARD;
    double batch = (double)d->batch, group = (double)(d->heads_q / d->heads_kv);
    size_t end = 0, floats = (size_t)((d->alibi_batch + 1) * d->heads_q) * 4;
    lay_out_window(plan);
    if (!plan->engine.put) own->window = take(&end, (double)own->window_bytes);
    for (int c = 0; c < plan->chunks; c++) {
        double lines = batch * (double)(d->heads_q * attn_chunk_of_rows(plan, plan->how.rank, c).rows);
        own->lse[c] = take(&end, 4 * lines);
        if (backward) own->grad_lse[c] = take(&end, 4 * lines);
    }
    for (int i = 0; i < own->lanes; i++) {
        int s = i / plan->chunks, c = plan->chunks - 1 - i % plan->chunks;
        double heads = (double)most_heads(own, s), rows = (double)attn_chunk_of_rows(plan, plan->how.rank, c).rows;
        own->lane[i].scratch = take(&end, (double)scratch_of(plan, i));
        if (!backward) continue;
        own->lane[i].grad_q = take(&end, 4 * batch * rows * heads * group * (double)d->dim_qk);
        for (int v = 0; v < 2; v++)
            own->slot[s].grads[c][v] =
                take(&end, 4 * batch * (double)d->len_kv * heads * (double)(v ? d->dim_v : d->dim_qk));
    }
    if (backward) own->sums = take(&end, (double)floats * plan->chunks);
    if (backward) own->all_sums = take(&end, (double)floats * plan->chunks * plan->how.ranks);
    plan->room.bytes = end + ATTN_PARALLEL_ALIGN;
}

attn_status attn_parallel_device_create(attn_parallel_plan *plan)
{
    const attn_desc *d = &plan->whole, *l = &plan->local;
    const attn_cuda_machine *machine = attn_cuda_machine_get();
    attn_status status = machine ? ATTN_OK : ATTN_UNSUPPORTED;
    if (!status) status = check_rows("k", l->k_stride, d->heads_kv, d->dim_qk);
    if (!status) status = check_rows("v", l->v_stride, d->heads_kv, d->dim_v);
    if (!status && plan->how.ranks * plan->chunks > ATTN_PARTS_MOST)
        status = attn_fail(ATTN_UNSUPPORTED, "ranks = %" PRId32 ": ATTN_CUDA takes %d at most in this layout",
                           plan->how.ranks, ATTN_PARTS_MOST / plan->chunks);
    if (status) return status;
    attn_parallel_device *own = plan->device = calloc(1, sizeof *own);
    if (!own) return attn_fail(ATTN_NO_MEMORY, "no memory for a plan (%zu bytes)", sizeof *own);
    own->driver = &machine->driver;
    cut(plan);
    for (int i = 0; i < own->sizes && !status; i++)
        status = create_size(plan, &own->size[i]);
    if (!status) status = create_total(plan);
    if (!status && plan->has_engine) status = create_streams(own);
    if (!status) lay_out(plan);
    return status;
}

attn_status attn_parallel_device_window(const attn_parallel_plan *plan, char **window)
{
    const attn_engine *e = &plan->engine;
    void *base = NULL;
    int failed = e->window(e->context, plan->device->window_bytes, &base);
    if (failed)
        return attn_fail(ATTN_RANK_FAILED, "the engine's window of %zu bytes failed with %d",
                         plan->device->window_bytes, failed);
    *window = base;
    return ATTN_OK;
}

void attn_parallel_device_destroy(attn_parallel_plan *plan)
{
    attn_parallel_device *own = plan->device;
    if (!own) return;
    const attn_cuda_driver *driver = own->driver;
    for (int i = 1; i < own->lanes; i++)
        if (own->lane[i].stream) driver->cuStreamDestroy(own->lane[i].stream);
    if (own->transfers) driver->cuStreamDestroy(own->transfers);
    if (own->copies) driver->cuStreamDestroy(own->copies);
    each_event(own, destroy_event);
    for (int i = 0; i < own->sizes * ATTN_CHUNKS; i++) {
        attn_piece_size *of = &own->size[i / ATTN_CHUNKS];
        int n = i % ATTN_CHUNKS;
        attn_plan_destroy(of->run[n]), attn_merge_plan_destroy(of->to_grad_q[n]), attn_merge_plan_destroy(of->add[n]);
        attn_merge_plan_destroy(of->to_grads[n][0]), attn_merge_plan_destroy(of->to_grads[n][1]);
    }
    attn_merge_plan_destroy(own->total);
    free(own);
    plan->device = NULL;
}

void attn_parallel_device_pieces(const attn_parallel_plan *plan, char text[ATTN_PIECES_TEXT])
{
    const attn_parallel_device *own = plan->device;
    int at = snprintf(text, ATTN_PIECES_TEXT, "%d piece%s of the KV heads: ", own->pieces, own->pieces > 1 ? "s" : "");
    for (int i = 0; i < own->pieces && i < NAMED_PIECES; i++)
        at += snprintf(text + at, (size_t)(ATTN_PIECES_TEXT - at), "%s%" PRId64, i ? ", " : "", own->piece[i].heads);
    if (own->pieces > NAMED_PIECES) snprintf(text + at, (size_t)(ATTN_PIECES_TEXT - at), ", ..");
}
