/* A rank on a GPU: which keys its rows see, and its plan. Contracts: device.h, device_plan.h. */
#include "parallel/device_plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "num/half.h"
#include "problem/desc.h"
#include "problem/ranges.h"

enum {
    PIECES = 4,           /* at most, unless the descriptor says how many */
    RUN_LINES = 64 << 10, /* of a run at least, then: rows times heads, so that it keeps all processors busy */
    FIRST = -5,           /* of a stream's priorities; drivers take the first that they have */
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

/* Runs that lanes take in turn: in the backward those of a piece are one. */
static int64_t turns(const attn_parallel_plan *plan)
{
    return plan->whole.direction == ATTN_BACKWARD ? 1 : plan->chunks;
}

int attn_parallel_lane(const attn_parallel_plan *plan, int64_t piece, int c)
{
    int64_t later = turns(plan) > 1 ? plan->chunks - 1 - c : 0;
    return (int)((piece * turns(plan) + later) % plan->device->lanes);
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

/* Addresses of a head have to be multiples of 16 bytes, and slopes of a batch lie in one array. */
static int64_t pieces_of(const attn_parallel_plan *plan)
{
    const attn_desc *d = &plan->whole;
    int64_t size = attn_dtype_size(d->dtype), wanted = plan->how.pieces ? plan->how.pieces : PIECES;
    if (wanted > ATTN_PIECES_MOST) wanted = ATTN_PIECES_MOST;
    while (!plan->how.pieces && wanted > 1 && d->batch * plan->rows_per_chunk * d->heads_q / wanted < RUN_LINES)
        wanted--;
    bool whole = d->dim_qk * size % 16 || d->dim_v * size % 16 || (d->flags & ATTN_ALIBI && d->alibi_batch > 1);
    if (whole || plan->how.ranks == 1) return 1;
    while (d->heads_kv % wanted)
        wanted--;
    return wanted;
}

static void set_stride(int64_t stride[4], int64_t rows, int64_t heads, int64_t dim)
{
    stride[0] = rows * heads * dim, stride[1] = heads * dim, stride[2] = dim, stride[3] = 1;
}

/* The descriptor of a piece's run of a chunk of rows. */
static attn_desc desc_of(const attn_parallel_plan *plan, int c)
{
    const attn_parallel_device *own = plan->device;
    attn_desc d = plan->whole;
    attn_key_reach r = attn_parallel_reach_of(plan, c);
    int64_t keys = plan->whole.len_kv;
    d.len_q = attn_chunk_of_rows(plan, plan->how.rank, c).rows, d.len_kv = r.end - r.begin;
    d.heads_q = own->heads_q, d.heads_kv = own->heads_kv;
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

static attn_status create_sums(attn_parallel_plan *plan)
{
    attn_parallel_device *own = plan->device;
    const attn_desc *d = &plan->whole, *l = &plan->local;
    const int64_t dim[2] = { d->dim_qk, d->dim_v }, *stride[2] = { l->grad_k_stride, l->grad_v_stride };
    int64_t both = attn_parallel_both(plan).rows, floats = (d->alibi_batch + 1) * d->heads_q;
    attn_status status = ATTN_OK;
    for (int c = 0; c < plan->chunks && !status; c++) {
        int64_t rows = attn_chunk_of_rows(plan, plan->how.rank, c).rows,
                keys = attn_chunk_of_keys(plan, plan->how.rank, c).rows;
        int32_t parts = parts_of(plan, c);
        if (rows)
            status =
                create_sum(&own->to_grad_q[c], 1, rows, own->heads_q, d->dim_qk, attn_grad_dtype(l), l->grad_q_stride);
        for (int v = 0; v < 2 && keys && !status; v++)
            status = create_sum(&own->to_grads[c][v], parts ? parts : 1, keys, own->heads_kv, dim[v],
                                attn_grad_dtype(l), stride[v]);
    }
    for (int v = 0; v < 2 && both && !status; v++)
        status = create_sum(&own->add[v], 2, both, own->heads_kv, dim[v], ATTN_F32, NULL);
    if (!status && d->flags & (ATTN_ALIBI | ATTN_SINK))
        status = create_sum(&own->total, plan->how.ranks * plan->chunks, floats, 1, 1, ATTN_F32, NULL);
    return status;
}

/* Does what is asked with every event. */
static CUresult each_event(attn_parallel_device *own, CUresult (*what)(const attn_cuda_driver *, CUevent *))
{
    CUresult result = what(own->driver, &own->fork);
    if (!result) result = what(own->driver, &own->join);
    for (int64_t i = 0; i < own->pieces && !result; i++)
        result = what(own->driver, &own->ready[i]);
    for (int i = 0; i < own->lanes && !result; i++) {
        result = what(own->driver, &own->lane[i].done);
        if (!result) result = what(own->driver, &own->lane[i].back);
    }
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

static void lay_out(attn_parallel_plan *plan)
{
    attn_parallel_device *own = plan->device;
    const attn_desc *d = &plan->whole;
    bool backward = d->direction == ATTN_BACKWARD;
    double size = (double)attn_dtype_size(d->dtype), batch = (double)d->batch, heads = (double)own->heads_kv;
    const double dim[2] = { (double)d->dim_qk, (double)d->dim_v };
    size_t end = 0, scratch = 0, floats = (size_t)((d->alibi_batch + 1) * d->heads_q) * 4;
    for (int c = 0; c < plan->chunks; c++) {
        double lines = batch * (double)(d->heads_q * attn_chunk_of_rows(plan, plan->how.rank, c).rows);
        size_t bytes = plan->all[c] ? attn_plan_workspace(plan->all[c]) : 0;
        scratch = bytes > scratch ? bytes : scratch;
        own->lse[c] = take(&end, 4 * lines);
        if (backward) own->grad_lse[c] = take(&end, 4 * lines);
    }
    for (int v = 0; v < 2; v++) {
        int64_t bytes = (int64_t)(4 * batch * heads * dim[v]) * plan->keys_per_chunk;
        own->block[v] = (size_t)attn_round_up(bytes, ATTN_PARALLEL_ALIGN);
    }
    own->slot = (size_t)plan->chunks * (own->block[0] + own->block[1]);
    for (int v = 0; v < 2; v++) {
        double bytes = size * batch * (double)d->len_kv * heads * dim[v];
        own->piece_keys[v] = (size_t)attn_round_up((int64_t)bytes, ATTN_PARALLEL_ALIGN);
        own->keys[v] = take(&own->window_bytes, (double)own->piece_keys[v] * (double)own->pieces);
    }
    for (int i = 0; i < own->lanes && backward; i++)
        own->room[i].received = take(&own->window_bytes, (double)own->slot * plan->how.ranks);
    if (!plan->engine.put) own->window = take(&end, (double)own->window_bytes);
    for (int i = 0; i < own->lanes; i++) {
        attn_lane_room *room = &own->room[i];
        for (int c = 0; c < plan->chunks && backward; c++) {
            double rows = (double)attn_chunk_of_rows(plan, plan->how.rank, c).rows;
            room->grad_q[c] = take(&end, 4 * batch * rows * (double)own->heads_q * dim[0]);
            for (int v = 0; v < 2; v++)
                room->grads[c][v] = take(&end, 4 * batch * (double)d->len_kv * heads * dim[v]);
        }
        room->scratch = take(&end, (double)scratch);
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
    own->pieces = pieces_of(plan);
    own->lanes = (int)attn_clamp(own->pieces * turns(plan), ATTN_LANES);
    own->heads_q = d->heads_q / own->pieces, own->heads_kv = d->heads_kv / own->pieces;
    for (int c = 0; c < plan->chunks && !status; c++) {
        attn_desc run = desc_of(plan, c);
        if (run.len_q) status = attn_plan_create(&plan->all[c], &run);
    }
    if (!status && d->direction == ATTN_BACKWARD) status = create_sums(plan);
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
    each_event(own, destroy_event);
    for (int i = 0; i < ATTN_CHUNKS; i++) {
        attn_merge_plan_destroy(own->to_grad_q[i]), attn_merge_plan_destroy(own->add[i]);
        attn_merge_plan_destroy(own->to_grads[i][0]), attn_merge_plan_destroy(own->to_grads[i][1]);
    }
    attn_merge_plan_destroy(own->total);
    free(own);
    plan->device = NULL;
}

int64_t attn_parallel_device_pieces(const attn_parallel_plan *plan)
{
    return plan->device->pieces;
}
