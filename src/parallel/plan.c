/* The plan of a problem over ranks: what it takes, which runs it needs, its workspace, its words. Contract:
 * attn_parallel.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text_buffer.h"
#include "num/half.h"
#include "parallel/device.h"
#include "parallel/parallel.h"
#include "problem/desc.h"

enum {
    TAKEN = ATTN_CAUSAL | ATTN_WINDOW | ATTN_CHUNK | ATTN_PREFIX | ATTN_INTERVALS | ATTN_VARLEN | ATTN_LENS_Q |
            ATTN_LENS_KV | ATTN_SOFTCAP | ATTN_ALIBI | ATTN_SINK | ATTN_DROPOUT | ATTN_OUT_F32 | ATTN_DETERMINISTIC |
            ATTN_FIRST_KV | ATTN_POSITIONS,
    OF_WHOLE = ATTN_PREFIX | ATTN_INTERVALS | ATTN_VARLEN | ATTN_LENS_Q | ATTN_LENS_KV | ATTN_FIRST_KV | ATTN_POSITIONS
};

static const double link_unknown[] = { [ATTN_CPU] = 1e10, [ATTN_CUDA] = 1.5e11 };

/* ---- what is taken --------------------------------------------------------------------------- */

static attn_status check_whole(const attn_desc *d)
{
    uint32_t others = d->flags & ~(uint32_t)TAKEN;
    if (d->dtype != ATTN_F32 && d->dtype != ATTN_F16 && d->dtype != ATTN_BF16)
        return attn_fail(ATTN_UNSUPPORTED, "dtype = %d: over ranks it is ATTN_F32, ATTN_F16 or ATTN_BF16",
                         (int)d->dtype);
    if (attn_kv_dtype(d) != d->dtype)
        return attn_fail(ATTN_UNSUPPORTED, "kv_dtype = %s: over ranks it is dtype", attn_dtype_name(d->kv_dtype));
    if (attn_dtype_size(attn_out_dtype(d)) == 1)
        return attn_fail(ATTN_UNSUPPORTED, "out_dtype = %s: over ranks it is ATTN_F32, ATTN_F16 or ATTN_BF16",
                         attn_dtype_name(d->out_dtype));
    if (d->device == ATTN_CUDA) return attn_parallel_device_check(d);
    if (others)
        return attn_fail(ATTN_UNSUPPORTED,
                         "flags = 0x%" PRIx32 ": over ranks ATTN_PAGED, ATTN_BLOCKS, ATTN_BITS, ATTN_BIAS, "
                         "ATTN_DROPOUT_BASES, ATTN_DELTA and ATTN_ADD are not taken",
                         d->flags);
    if (d->flags & ATTN_VARLEN && d->flags & ATTN_DROPOUT)
        return attn_fail(ATTN_UNSUPPORTED, "flags: over ranks ATTN_DROPOUT does not take ATTN_VARLEN, whose sequences "
                                           "are cut at rows that are no multiple of 16");
    return ATTN_OK;
}

static attn_status check_how(attn_parallel_desc *how, const attn_engine *engine)
{
    char text[ATTN_DECIMAL_SIZE];
    if (engine && !how->ranks && !how->rank) how->ranks = engine->ranks, how->rank = engine->rank;
    if (how->ranks < 1 || how->ranks > ATTN_RANKS_MOST)
        return attn_fail(ATTN_INVALID, "ranks = %" PRId32 " is not in 1 to %d", how->ranks, ATTN_RANKS_MOST);
    if (how->rank < 0 || how->rank >= how->ranks)
        return attn_fail(ATTN_INVALID, "rank = %" PRId32 " is not in 0 to %" PRId32, how->rank, how->ranks - 1);
    if (engine && (engine->ranks != how->ranks || engine->rank != how->rank))
        return attn_fail(ATTN_INVALID,
                         "ranks = %" PRId32 ", rank = %" PRId32 ": the engine has %" PRId32 " and %" PRId32, how->ranks,
                         how->rank, engine->ranks, engine->rank);
    if (how->layout != ATTN_CONTIGUOUS && how->layout != ATTN_ZIGZAG)
        return attn_fail(ATTN_INVALID, "layout = %d is not ATTN_CONTIGUOUS or ATTN_ZIGZAG", (int)how->layout);
    if (how->schedule < ATTN_SCHEDULE_AUTO || how->schedule > ATTN_RING)
        return attn_fail(ATTN_INVALID, "schedule = %d is not ATTN_SCHEDULE_AUTO, ATTN_ALL_GATHER or ATTN_RING",
                         (int)how->schedule);
    if (!(how->link >= 0)) return attn_fail(ATTN_INVALID, "link = %s is below 0", attn_decimal(text, how->link));
    if (how->pieces < 0) return attn_fail(ATTN_INVALID, "pieces = %" PRId32 " is below 0", how->pieces);
    return ATTN_OK;
}

/* The engine's table, whose header may be older or newer. What cannot be called cannot tell the other ranks. */
static attn_status copy_engine(attn_parallel_plan *plan, const attn_engine *engine, size_t size)
{
    attn_status status = attn_struct_copy(&plan->engine, sizeof plan->engine, engine, size, "engine");
    const attn_engine *e = &plan->engine;
    if (status) return status;
    if (!e->exchange || !e->wait || !e->all_gather || !e->reduce_scatter)
        return attn_fail(ATTN_INVALID, "engine: %s = NULL: it takes a function",
                         !e->exchange     ? "exchange"
                         : !e->wait       ? "wait"
                         : !e->all_gather ? "all_gather"
                                          : "reduce_scatter");
    if (!e->put != !e->window)
        return attn_fail(ATTN_INVALID, "engine: %s = NULL: window and put are both functions, or both NULL",
                         e->put ? "window" : "put");
    if (e->ranks < 1 || e->ranks > ATTN_RANKS_MOST || e->rank < 0 || e->rank >= e->ranks)
        return attn_fail(ATTN_INVALID, "engine: rank = %" PRId32 " of ranks = %" PRId32 ": it takes ranks from 1 to %d",
                         e->rank, e->ranks, ATTN_RANKS_MOST);
    plan->has_engine = true;
    return ATTN_OK;
}

/* What a device takes of it. */
static attn_status check_device(attn_parallel_plan *plan)
{
    attn_device device = plan->whole.device;
    attn_parallel_desc *how = &plan->how;
    if (plan->has_engine && plan->engine.device != device)
        return attn_fail(ATTN_INVALID, "engine: device = %d, but that of desc is %d", (int)plan->engine.device,
                         (int)device);
    if (device == ATTN_CUDA && how->schedule == ATTN_RING)
        return attn_fail(ATTN_UNSUPPORTED, "schedule = ATTN_RING: ATTN_CUDA takes ATTN_ALL_GATHER");
    if (device == ATTN_CPU && how->pieces)
        return attn_fail(ATTN_INVALID, "pieces = %" PRId32 ": ATTN_CPU takes 0", how->pieces);
    if (how->link > 0) return ATTN_OK;
    attn_machine_info machine;
    attn_status status = attn_machine_get_info(device, &machine);
    if (status) return status;
    how->link = plan->engine.put ? machine.link_put : machine.link_send;
    if (how->link == 0) how->link = link_unknown[device];
    return ATTN_OK;
}

/* ---- whole, chunks, this rank's tensors -------------------------------------------------------- */

/* Fields that only these flags take. */
static void leave_out(attn_desc *d, uint32_t flags)
{
    d->flags &= ~flags;
    if (flags & ATTN_INTERVALS) d->interval_vectors = d->interval_heads = 0;
    d->total_q = d->total_kv = 0, d->visible_share = 0;
}

/* The problem of this rank's tensors: as checks of pointers, strides and overlaps see it. */
static attn_status resolve_local(attn_parallel_plan *plan, const attn_desc *given)
{
    attn_desc d = *given;
    bool packed = d.flags & ATTN_VARLEN;
    d.len_q = d.len_kv = 0;
    for (int c = 0; c < plan->chunks; c++) {
        d.len_q += attn_chunk_of_rows(plan, plan->how.rank, c).rows;
        d.len_kv += attn_chunk_of_keys(plan, plan->how.rank, c).rows;
    }
    leave_out(&d, OF_WHOLE);
    if (packed) d.batch = 1;
    if (packed && d.flags & ATTN_ALIBI) d.alibi_batch = 1;
    return attn_desc_resolve(&plan->local, &d, sizeof d);
}

static int64_t chunk_size(const attn_parallel_plan *plan, int64_t len)
{
    int64_t size = attn_ceil_div(len, (int64_t)plan->chunks * plan->how.ranks);
    return size ? attn_round_up(size, ATTN_CHUNK_STEP) : ATTN_CHUNK_STEP;
}

/* A block of keys, of elements of `size` bytes. */
static attn_block block_of(const attn_parallel_plan *plan, int64_t size)
{
    const attn_desc *d = &plan->whole;
    int64_t rows = attn_shape_of(d).k[0] * plan->keys_per_chunk * d->heads_kv * size;
    attn_block block = { .v_at = (size_t)attn_round_up(rows * d->dim_qk, ATTN_PARALLEL_ALIGN) };
    block.chunk = block.v_at + (size_t)attn_round_up(rows * d->dim_v, ATTN_PARALLEL_ALIGN);
    block.bytes = (size_t)plan->chunks * block.chunk;
    return block;
}

static attn_status resolve(attn_parallel_plan *plan, const attn_desc *desc, size_t size)
{
    attn_desc given, packed;
    attn_status status = attn_struct_copy(&given, sizeof given, desc, size, "desc");
    if (status) return status;
    packed = given;
    int64_t *const strides[] = {
        packed.q_stride,      packed.k_stride,      packed.v_stride,      packed.o_stride,
        packed.grad_o_stride, packed.grad_q_stride, packed.grad_k_stride, packed.grad_v_stride
    };
    for (int i = 0; i < 8; i++)
        memset(strides[i], 0, sizeof packed.q_stride);
    status = attn_desc_resolve(&plan->whole, &packed, sizeof packed);
    if (!status) status = check_whole(&plan->whole);
    if (!status) status = check_device(plan);
    if (status) return status;
    attn_shape shape = attn_shape_of(&plan->whole);
    plan->chunks = plan->how.layout == ATTN_ZIGZAG ? 2 : 1;
    plan->rows_per_chunk = chunk_size(plan, shape.q[1]), plan->keys_per_chunk = chunk_size(plan, shape.k[1]);
    plan->block = block_of(plan, attn_dtype_size(plan->whole.dtype)), plan->gradient = block_of(plan, 4);
    return resolve_local(plan, &given);
}

/* ---- the runs that it needs --------------------------------------------------------------------- */

/* Keys of a chunk: full, or the whole's last, which may be shorter; 0: there is none. */
static int64_t keys_of_kind(const attn_parallel_plan *plan, int kind)
{
    int64_t all = attn_shape_of(&plan->whole).k[1];
    if (kind == 0) return all >= plan->keys_per_chunk ? plan->keys_per_chunk : 0;
    return all % plan->keys_per_chunk;
}

/* A run of some rows and a chunk of keys (0: of none, which begins the sums), and its f32 results. */
static attn_desc part_desc(const attn_parallel_plan *plan, int64_t rows, int64_t keys)
{
    attn_desc d = attn_chunk_desc(plan, rows, keys);
    if (d.direction == ATTN_FORWARD) {
        d.flags |= ATTN_OUT_F32, d.out_dtype = ATTN_F32;
        memset(d.o_stride, 0, sizeof d.o_stride);
    } else {
        d.grad_dtype = ATTN_F32;
        if (keys) d.flags |= ATTN_ADD | ATTN_DELTA;
    }
    if (!keys) d.flags |= plan->whole.flags & ATTN_SINK, d.strategy = NULL;
    return d;
}

static attn_status create_parts(attn_parallel_plan *plan, int c, int64_t rows)
{
    attn_desc start = part_desc(plan, rows, 0);
    attn_status status = attn_plan_create(&plan->start[c], &start);
    for (int kind = 0; kind < 2 && !status; kind++) {
        int64_t keys = keys_of_kind(plan, kind);
        attn_desc pair = part_desc(plan, rows, keys);
        if (keys) status = attn_plan_create(&plan->pair[c][kind], &pair);
    }
    return status;
}

static attn_status create_merge(attn_parallel_plan *plan, int c, int64_t rows)
{
    const attn_desc *d = &plan->whole;
    attn_merge_desc merge = { .dtype = ATTN_F32,
                              .parts = 2,
                              .batch = attn_shape_of(d).o[0],
                              .rows = rows,
                              .heads = d->heads_q,
                              .dim = d->dim_v,
                              .threads = d->threads,
                              .parallel_for = d->parallel_for,
                              .parallel_context = d->parallel_context };
    return attn_merge_plan_create(&plan->add[c], &merge);
}

static attn_status create_all(attn_parallel_plan *plan, int c, int64_t rows)
{
    attn_desc all = attn_chunk_desc(plan, rows, attn_shape_of(&plan->whole).k[1]);
    all.flags |= plan->whole.flags & ATTN_SINK;
    return attn_plan_create(&plan->all[c], &all);
}

static attn_status create_runs(attn_parallel_plan *plan)
{
    bool forward = plan->whole.direction == ATTN_FORWARD;
    attn_schedule schedule = plan->how.schedule;
    attn_status status = ATTN_OK;
    for (int c = 0; c < plan->chunks && !status; c++) {
        int64_t rows = attn_chunk_of_rows(plan, plan->how.rank, c).rows;
        if (!rows) continue;
        if (!forward || schedule != ATTN_ALL_GATHER) status = create_parts(plan, c, rows);
        if (forward && schedule != ATTN_ALL_GATHER && !status) status = create_merge(plan, c, rows);
        if (forward && schedule != ATTN_RING && !status) status = create_all(plan, c, rows);
    }
    return status;
}

/* ---- workspace ---------------------------------------------------------------------------------- */

static size_t take(size_t *end, size_t bytes)
{
    size_t at = *end;
    *end += (size_t)attn_round_up((int64_t)bytes, ATTN_PARALLEL_ALIGN);
    return at;
}

static size_t scratch_of(const attn_parallel_plan *plan)
{
    size_t most = 0;
    if (plan->device) return attn_parallel_device_scratch(plan);
    for (int c = 0; c < plan->chunks; c++) {
        const attn_plan *runs[] = { plan->start[c], plan->pair[c][0], plan->pair[c][1], plan->all[c] };
        for (int i = 0; i < 4; i++) {
            size_t bytes = runs[i] ? attn_plan_workspace(runs[i]) : 0;
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

static attn_parallel_room room_of(const attn_parallel_plan *plan, attn_schedule schedule)
{
    const attn_desc *d = &plan->whole;
    bool forward = d->direction == ATTN_FORWARD, ring = schedule == ATTN_RING;
    size_t ranks = (size_t)plan->how.ranks, lines_most = 0, end = 0;
    attn_shape shape = attn_shape_of(d);
    int64_t all_keys = shape.k[1], keys = plan->keys_per_chunk < all_keys ? plan->keys_per_chunk : all_keys;
    size_t k_row = (size_t)(shape.k[0] * d->heads_kv * attn_dtype_size(d->dtype));
    attn_parallel_room room = { .own = take(&end, plan->block.bytes) };
    for (int i = 0; i < 2 && ring; i++)
        room.arrived[i] = take(&end, plan->block.bytes);
    if (!ring) room.gathered = take(&end, ranks * plan->block.bytes);
    if (!ring && forward) {
        room.k = take(&end, (size_t)all_keys * k_row * (size_t)d->dim_qk);
        room.v = take(&end, (size_t)all_keys * k_row * (size_t)d->dim_v);
    }
    for (int c = 0; c < plan->chunks; c++) {
        int64_t rows = attn_chunk_of_rows(plan, plan->how.rank, c).rows;
        size_t lines = (size_t)(shape.q[0] * d->heads_q * rows);
        lines_most = lines > lines_most ? lines : lines_most;
        room.lse[c] = take(&end, 4 * lines);
        if (ring && forward) room.o[c] = take(&end, 4 * lines * (size_t)d->dim_v);
        if (!forward) room.delta[c] = take(&end, 4 * lines), room.grad_lse[c] = take(&end, 4 * lines);
        if (!forward) room.grad_q[c] = take(&end, 4 * lines * (size_t)d->dim_qk);
    }
    if (ring && forward) room.part_lse = take(&end, 4 * lines_most);
    if (ring && forward) room.part_o = take(&end, 4 * lines_most * (size_t)d->dim_v);
    if (!forward) {
        size_t sums = 4 * (size_t)(d->alibi_batch + 1) * (size_t)d->heads_q * 2;
        room.grads = take(&end, plan->gradient.bytes);
        for (int i = 0; i < 2 && ring; i++)
            room.sent[i] = take(&end, plan->gradient.bytes);
        if (ring) room.back = take(&end, plan->gradient.bytes);
        if (!ring) room.scattered = take(&end, ranks * plan->gradient.bytes);
        room.sums = take(&end, sums), room.all_sums = take(&end, ranks * sums / 2);
    }
    room.tables = take(&end, attn_chunk_tables_bytes(d, !ring && forward ? all_keys : keys));
    room.scratch = take(&end, scratch_of(plan));
    room.bytes = end + ATTN_PARALLEL_ALIGN;
    return room;
}

/* ---- schedule ----------------------------------------------------------------------------------- */

/* Decides as the last rank would, which has the most work where ranks have not the same. */
static attn_schedule choose(attn_parallel_plan *plan)
{
    double sent, pairs;
    char ring_text[ATTN_NUMBER_TEXT], all_text[ATTN_NUMBER_TEXT];
    int32_t last = plan->how.ranks - 1;
    double ring = attn_parallel_predict(plan, ATTN_RING, last, &sent, &pairs);
    double all = attn_parallel_predict(plan, ATTN_ALL_GATHER, last, &sent, &pairs);
    size_t bytes = room_of(plan, ATTN_ALL_GATHER).bytes;
    bool large = plan->how.memory && bytes > plan->how.memory;
    attn_number_text(ring * 1e3, ring_text), attn_number_text(all * 1e3, all_text);
    if (large)
        snprintf(plan->why, sizeof plan->why, "gathering all keys would take %zu bytes, more than memory = %" PRIu64,
                 bytes, plan->how.memory);
    else
        snprintf(plan->why, sizeof plan->why, "predicted: ring %s ms, all-gather %s ms", ring_text, all_text);
    return large || ring < all ? ATTN_RING : ATTN_ALL_GATHER;
}

/* A GPU has this schedule alone. */
static attn_schedule gather(attn_parallel_plan *plan)
{
    char pieces[ATTN_PIECES_TEXT];
    attn_parallel_device_pieces(plan, pieces);
    snprintf(plan->why, sizeof plan->why, "on a GPU, in %s", pieces);
    return ATTN_ALL_GATHER;
}

static attn_status check_memory(const attn_parallel_plan *plan)
{
    if (plan->how.memory && plan->room.bytes > plan->how.memory)
        return attn_fail(ATTN_INVALID, "memory = %" PRIu64 ": this rank's workspace takes %zu bytes", plan->how.memory,
                         plan->room.bytes);
    return ATTN_OK;
}

/* status: of what has been checked so far. */
static attn_status create(attn_parallel_plan *plan, attn_status status, const attn_desc *desc, size_t desc_size,
                          const attn_parallel_desc *how, size_t how_size)
{
    if (!status) status = attn_struct_copy(&plan->how, sizeof plan->how, how, how_size, "how");
    int32_t schedule = 0;
    if (!status) status = check_how(&plan->how, plan->has_engine ? &plan->engine : NULL);
    if (!status) status = resolve(plan, desc, desc_size);
    bool device = !status && plan->whole.device == ATTN_CUDA;
    if (!status) status = device ? attn_parallel_device_create(plan) : create_runs(plan);
    if (!status && plan->how.schedule == ATTN_SCHEDULE_AUTO) schedule = (int32_t)(device ? gather(plan) : choose(plan));
    if (plan->has_engine)
        status = attn_parallel_agree(plan, status, status ? 0 : attn_parallel_word(plan), &schedule, NULL);
    if (status) return status;
    if (plan->how.schedule == ATTN_SCHEDULE_AUTO)
        plan->how.schedule = (attn_schedule)schedule;
    else
        snprintf(plan->why, sizeof plan->why, "the descriptor says so");
    if (!device) plan->room = room_of(plan, plan->how.schedule);
    plan->seconds = attn_parallel_predict(plan, plan->how.schedule, plan->how.rank, &plan->sent_bytes, &plan->pairs);
    status = check_memory(plan);
    if (device && plan->engine.put) {
        char *window;
        attn_status opened = attn_parallel_device_window(plan, &window);
        if (!status) status = opened;
    }
    return plan->has_engine ? attn_parallel_agree(plan, status, 0, &schedule, NULL) : status;
}

attn_status attn_parallel_plan_create_sized(attn_parallel_plan **out, const attn_desc *desc, size_t desc_size,
                                            const attn_parallel_desc *how, size_t how_size, const attn_engine *engine,
                                            size_t engine_size)
{
    attn_parallel_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return attn_fail(ATTN_NO_MEMORY, "no memory for a plan (%zu bytes)", sizeof *plan);
    attn_status status = engine ? copy_engine(plan, engine, engine_size) : ATTN_OK, given = ATTN_OK;
    if (!out) given = attn_fail(ATTN_INVALID, "plan = NULL: it takes the address of a pointer");
    if (!status) status = create(plan, given, desc, desc_size, how, how_size);
    if (status) {
        attn_parallel_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return ATTN_OK;
}

void attn_parallel_plan_destroy(attn_parallel_plan *plan)
{
    for (int c = 0; c < ATTN_CHUNKS && plan; c++) {
        attn_plan_destroy(plan->start[c]), attn_plan_destroy(plan->all[c]);
        attn_plan_destroy(plan->pair[c][0]), attn_plan_destroy(plan->pair[c][1]);
        attn_merge_plan_destroy(plan->add[c]);
    }
    if (plan) attn_parallel_device_destroy(plan);
    free(plan);
}

/* ---- what a plan says --------------------------------------------------------------------------- */

attn_status attn_parallel_plan_get_info_sized(const attn_parallel_plan *plan, attn_parallel_info *info,
                                              size_t info_size)
{
    if (!plan || !info) return attn_fail(ATTN_INVALID, "%s = NULL", plan ? "info" : "plan");
    attn_parallel_info full = { .schedule = plan->how.schedule,
                                .why = plan->why,
                                .chunks = plan->chunks,
                                .ranks = plan->how.ranks,
                                .rank = plan->how.rank,
                                .workspace_bytes = plan->room.bytes,
                                .sent_bytes = plan->sent_bytes,
                                .pairs = plan->pairs,
                                .seconds = plan->seconds };
    for (int c = 0; c < plan->chunks; c++) {
        attn_chunk rows = attn_chunk_of_rows(plan, plan->how.rank, c),
                   keys = attn_chunk_of_keys(plan, plan->how.rank, c);
        full.row_begin[c] = rows.begin, full.row_end[c] = rows.begin + rows.rows, full.rows += rows.rows;
        full.key_begin[c] = keys.begin, full.key_end[c] = keys.begin + keys.rows, full.keys += keys.rows;
    }
    attn_struct_fill(info, info_size, &full, sizeof full);
    return ATTN_OK;
}

size_t attn_parallel_plan_describe(const attn_parallel_plan *plan, char *text, size_t size)
{
    attn_text_buffer w;
    attn_parallel_info info;
    if (!attn_text_buffer_begin(&w, text, size, plan, "plan", "attn_parallel_plan_create")) return 0;
    attn_parallel_plan_get_info(plan, &info);
    attn_say(&w, "rank       %d of %d, %s:", (int)info.rank, (int)info.ranks,
             info.chunks == 2 ? "zigzag" : "contiguous");
    for (int c = 0; c < info.chunks; c++)
        attn_say(&w, "%s rows %lld to %lld, keys %lld to %lld", c ? ";" : "", (long long)info.row_begin[c],
                 (long long)info.row_end[c], (long long)info.key_begin[c], (long long)info.key_end[c]);
    attn_say(&w, "\nschedule   %s: %s\nworkspace  ", info.schedule == ATTN_RING ? "ring" : "all-gather", info.why);
    attn_say_bytes(&w, (double)info.workspace_bytes);
    attn_say(&w, ", of which ");
    attn_say_bytes(&w, (double)scratch_of(plan));
    attn_say(&w, " are the kernels'\nwork       ");
    attn_say_number(&w, info.pairs);
    attn_say(&w, " visible pairs\nsends      ");
    attn_say_bytes(&w, info.sent_bytes);
    attn_say(&w, "\npredicted  ");
    attn_say_seconds(&w, info.seconds);
    attn_say(&w, "\n");
    return w.length;
}
