/* A rank on a GPU. Contract: device.h.
 *
 * All keys are gathered, a few KV heads after others: a piece. All transfers of keys are put into a stream of their own
 * at once, so that while one piece is computed the next ones' keys come. Lanes take the runs in turn, each with a
 * stream and buffers of its own, so that a run's first work fills the processors that the last work of the run before
 * leaves idle. In the backward both runs of a piece are in one lane, and its gradients of keys leave while the next two
 * pieces are computed: kernels of NCCL find room where one of these ends and the other begins, since each of them takes
 * all processors.
 *
 * A piece is a run for each chunk of rows, over all keys that these see: its end is where the chunk's last row stands,
 * so that the causal mask of the fast kernels is the whole's. In the backward gradients of keys are f32, one buffer for
 * each chunk of rows; they are added up, and what is of another rank's keys goes there. */
#include "parallel/device.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cuda/driver.h"
#include "num/half.h"
#include "problem/desc.h"
#include "problem/ranges.h"

enum {
    LANES = 3,
    PIECES = 4,           /* at most, unless the descriptor says how many */
    RUN_LINES = 64 << 10, /* of a run at least, then: rows times heads, so that it keeps all processors busy */
    PIECES_MOST = 64,
    PARTS_MOST = 64,
    FIRST = -5, /* of a stream's priorities; drivers take the first that they have */
    TAKEN = ATTN_CAUSAL | ATTN_WINDOW | ATTN_SOFTCAP | ATTN_ALIBI | ATTN_SINK | ATTN_OUT_F32 | ATTN_DETERMINISTIC
};

/* Byte offsets in the workspace. */
typedef struct lane_room {
    size_t grad_q[ATTN_CHUNKS];   /* f32 */
    size_t grads[ATTN_CHUNKS][2]; /* of k, v; f32 */
    size_t received;              /* in the window: f32 gradients of this rank's keys, of each other rank a block */
    size_t scratch;               /* of attn_run */
} lane_room;

typedef struct lane_streams {
    CUstream stream;    /* NULL: the caller's */
    CUevent done, back; /* gradients are computed; those from others are here */
} lane_streams;

struct attn_parallel_device {
    const attn_cuda_driver *driver;
    int64_t pieces, heads_q, heads_kv; /* of a piece */
    int lanes;
    CUstream transfers;
    CUevent fork, join, ready[PIECES_MOST]; /* ready: a piece's keys are here */
    lane_streams lane[LANES];
    lane_room room[LANES];
    size_t window, window_bytes; /* what other ranks send to: bytes, alike on all ranks; in the workspace at `window` */
    size_t keys[2], piece_keys[2]; /* in the window: k, v: all keys, piece by piece, and bytes of a piece */
    size_t lse[ATTN_CHUNKS], grad_lse[ATTN_CHUNKS]; /* of all pieces, one after another */
    size_t sums, all_sums; /* gradients of slopes and sinks: this rank's chunks', every rank's */
    size_t block[2], slot; /* of `received`: bytes of a chunk's gradients of k, v; of a rank's */
    attn_merge_plan *to_grad_q[ATTN_CHUNKS], *add[2], *to_grads[ATTN_CHUNKS][2], *total;
};

/* ---- which keys ------------------------------------------------------------------------------ */

/* Chunks of keys, of all ranks, and the keys in them that a chunk of rows is run with. */
typedef struct reach {
    int64_t lo, hi;     /* chunks */
    int64_t begin, end; /* keys */
} reach;

static reach reach_of(const attn_parallel_plan *plan, attn_chunk rows)
{
    attn_ranges ranges = attn_ranges_of_desc(&plan->whole);
    attn_runs seen = attn_ranges_hull(&ranges, rows.begin, rows.begin + rows.rows);
    int64_t size = plan->keys_per_chunk, begin = seen.lo[1], end = seen.hi[1];
    if (begin >= end) return (reach){ 0, 0, 0, 0 };
    return (reach){ begin / size, attn_ceil_div(end, size), begin / size * size, end };
}

static reach reach_of_mine(const attn_parallel_plan *plan, int c)
{
    return reach_of(plan, attn_chunk_of_rows(plan, plan->how.rank, c));
}

/* The number of a rank's chunk among all. */
static int64_t number_of(const attn_parallel_plan *plan, int32_t rank, int chunk)
{
    return chunk ? 2 * (int64_t)plan->how.ranks - 1 - rank : rank;
}

/* Whether rows of rank `by` are run with keys of chunk k of rank `of`. */
static bool needs(const attn_parallel_plan *plan, int32_t by, int32_t of, int k)
{
    int64_t number = number_of(plan, of, k);
    for (int c = 0; c < plan->chunks && attn_chunk_of_keys(plan, of, k).rows; c++) {
        reach r = reach_of(plan, attn_chunk_of_rows(plan, by, c));
        if (r.lo <= number && number < r.hi) return true;
    }
    return false;
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
    if (wanted > PIECES_MOST) wanted = PIECES_MOST;
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

/* Runs that lanes take in turn: in the backward those of a piece are one. */
static int64_t turns(const attn_parallel_plan *plan)
{
    return plan->whole.direction == ATTN_BACKWARD ? 1 : plan->chunks;
}

/* Where a piece's run of chunk c is; a piece's last chunk of rows, the longest run, is its first. */
static int lane_of(const attn_parallel_plan *plan, int64_t piece, int c)
{
    int64_t later = turns(plan) > 1 ? plan->chunks - 1 - c : 0;
    return (int)((piece * turns(plan) + later) % plan->device->lanes);
}

/* The descriptor of a piece's run of a chunk of rows. */
static attn_desc desc_of(const attn_parallel_plan *plan, int c)
{
    const attn_parallel_device *own = plan->device;
    attn_desc d = plan->whole;
    reach r = reach_of_mine(plan, c);
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

/* Whether the gradients of chunk `number` of the keys are in the buffer of chunk c of the rows. */
static bool covers(const attn_parallel_plan *plan, int c, int64_t number)
{
    reach r = reach_of_mine(plan, c);
    return r.lo <= number && number < r.hi;
}

/* The keys that both chunks of rows have gradients of: chunk 0's are added to chunk 1's. */
static attn_chunk both_of(const attn_parallel_plan *plan)
{
    if (plan->chunks < 2) return (attn_chunk){ 0, 0 };
    reach a = reach_of_mine(plan, 0), b = reach_of_mine(plan, 1);
    int64_t lo = a.lo > b.lo ? a.lo : b.lo, hi = a.hi < b.hi ? a.hi : b.hi, size = plan->keys_per_chunk;
    if (lo >= hi) return (attn_chunk){ 0, 0 };
    return (attn_chunk){ lo * size, attn_clamp(plan->whole.len_kv - lo * size, (hi - lo) * size) };
}

/* Parts of the gradients of this rank's chunk k of keys: this rank's and others'. */
static int32_t parts_of(const attn_parallel_plan *plan, int k)
{
    int32_t parts = 0;
    for (int32_t rank = 0; rank < plan->how.ranks; rank++)
        parts += needs(plan, rank, plan->how.rank, k);
    return parts;
}

static attn_status create_sums(attn_parallel_plan *plan)
{
    attn_parallel_device *own = plan->device;
    const attn_desc *d = &plan->whole, *l = &plan->local;
    const int64_t dim[2] = { d->dim_qk, d->dim_v }, *stride[2] = { l->grad_k_stride, l->grad_v_stride };
    int64_t both = both_of(plan).rows, floats = (d->alibi_batch + 1) * d->heads_q;
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
        lane_room *room = &own->room[i];
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
    if (!status && plan->how.ranks * plan->chunks > PARTS_MOST)
        status = attn_fail(ATTN_UNSUPPORTED, "ranks = %" PRId32 ": ATTN_CUDA takes %d at most in this layout",
                           plan->how.ranks, PARTS_MOST / plan->chunks);
    if (status) return status;
    attn_parallel_device *own = plan->device = calloc(1, sizeof *own);
    if (!own) return attn_fail(ATTN_NO_MEMORY, "no memory for a plan (%zu bytes)", sizeof *own);
    own->driver = &machine->driver;
    own->pieces = pieces_of(plan);
    own->lanes = (int)attn_clamp(own->pieces * turns(plan), LANES);
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
                exchange(r, to, own, needs(plan, to, me, k) ? (size_t)mine.rows * row : 0, own, from,
                         key_at(r, buffer, row, b, theirs.begin),
                         needs(plan, me, from, k) ? (size_t)theirs.rows * row : 0);
            }
    }
    end_exchange(r);
    if (!r->status) did(r, r->own->driver->cuEventRecord(r->own->ready[piece], r->own->transfers), "cuEventRecord");
}

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
    int lane = lane_of(plan, piece, c);
    const lane_room *room = &r->own->room[lane];
    CUstream stream = stream_of(r, lane);
    size_t size = (size_t)attn_dtype_size(l->dtype), out = (size_t)attn_dtype_size(attn_out_dtype(l));
    int64_t head = piece * r->own->heads_q;
    attn_chunk before = before_rows(r, c);
    reach keys = reach_of_mine(plan, c);
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
    int lane = lane_of(plan, piece, c);
    CUstream stream = stream_of(r, lane);
    reach keys = reach_of_mine(plan, c);
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
    attn_chunk both = both_of(r->plan);
    for (int64_t n = 0; n < 2 * r->plan->whole.batch && both.rows; n++) {
        int v = (int)(n % 2);
        size_t row = row_bytes(r, v, 4);
        const void *parts[2] = { key_at(r, grads_at(r, lane, 1, v), row, n / 2, both.begin),
                                 key_at(r, grads_at(r, lane, 0, v), row, n / 2, both.begin) };
        sum(r, r->own->add[v], parts, (void *)(uintptr_t)parts[0], stream_of(r, lane));
    }
}

/* Where gradients that this rank has of a chunk of keys are, the number of which is given. */
static char *grads_of(const run *r, int lane, int v, int64_t number)
{
    return grads_at(r, lane, r->plan->chunks - 1 ? covers(r->plan, 1, number) : 0, v);
}

/* Where rank `of` gets gradients of its chunk k of keys that the rank h before it has computed. */
static char *received_at(const run *r, int lane, int32_t of, int32_t h, int k, int v, int64_t b)
{
    int64_t rows = attn_chunk_of_keys(r->plan, of, k).rows;
    return r->window + r->own->room[lane].received + (size_t)h * r->own->slot +
           (size_t)k * (r->own->block[0] + r->own->block[1]) + (v ? r->own->block[0] : 0) +
           (size_t)(b * rows) * row_bytes(r, v, 4);
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
                exchange(r, to, key_at(r, grads_of(r, lane, v, number_of(plan, to, k)), row, b, theirs.begin),
                         needs(plan, me, to, k) ? (size_t)theirs.rows * row : 0, received_at(r, lane, to, h, k, v, b),
                         from, received_at(r, lane, me, h, k, v, b),
                         needs(plan, from, me, k) ? (size_t)mine.rows * row : 0);
            }
    }
    end_exchange(r);
    order(r, r->own->lane[lane].back, r->own->transfers, stream_of(r, lane));
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
        const void *parts[PARTS_MOST];
        int32_t count = 0;
        if (!keys) continue;
        if (needs(plan, me, me, k))
            parts[count++] =
                key_at(r, grads_of(r, lane, v, number_of(plan, me, k)), row, b, attn_chunk_of_keys(plan, me, k).begin);
        for (int32_t h = 1; h < ranks; h++)
            if (needs(plan, (me - h + ranks) % ranks, me, k)) parts[count++] = received_at(r, lane, me, h, k, v, b);
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
    const void *parts[PARTS_MOST];
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
        int lane = lane_of(plan, piece, 0);
        for (int c = plan->chunks - 1; c >= 0; c--) { /* the longest first */
            if (!plan->all[c]) continue;
            follow(&r, own->ready[piece], stream_of(&r, lane_of(plan, piece, c)));
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
