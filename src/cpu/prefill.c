/* Prefill over all heads. A unit is one KV head of one sequence: its keys and values are packed once, into a slot, and
 * serve all query blocks of the heads that share it.
 *
 * A thread takes unit after unit and works it off alone, in a slot of its own, so that packed keys stay in its cache.
 * When no unit is left to take, it joins those that others still work on. A slot is filled anew only by a thread that
 * takes a unit; from then on nobody has joined one. Query blocks with most keys come first. */
#include <stdatomic.h>

#include "api/desc.h"
#include "cpu/layout.h"
#include "cpu/threads.h"

enum { PACK_KEYS = 256 };

typedef struct progress {
    atomic_int_fast64_t packing, packed; /* pack items taken and done */
    atomic_int_fast64_t attending;       /* attend items taken */
    atomic_int_fast64_t slot;            /* -1 before the unit is taken */
} progress;

typedef struct run {
    const attn_plan *plan;
    const attn_args *args;
    attn_prefill_layout layout;
    const attn_interval_node *nodes;
    progress *progress;
    float *scratch, *slots;
    int64_t units;
    atomic_int_fast64_t taken; /* units */
} run;

bool attn_prefill_lay_out(const attn_plan *plan, attn_prefill_layout *l)
{
    const attn_desc *d = &plan->desc;
    const attn_choice *c = &plan->choice;
    uint64_t units = (uint64_t)d->batch * (uint64_t)d->heads_kv, slots = (uint64_t)c->packed_heads;
    uint64_t node_count = (uint64_t)(d->batch * (d->flags & ATTN_INTERVALS ? d->interval_heads : 0));
    *l = (attn_prefill_layout){ .pitch = attn_round_up(d->len_kv, ATTN_KEY_ALIGN) };
    l->k_floats = l->pitch * d->dim_qk;
    l->slot_floats = l->k_floats + l->pitch * attn_round_up(d->dim_v, plan->kernel->cols);
    l->scratch_floats = attn_attend_scratch(c->rows_tile, d->dim_qk, d->dim_v);
    l->packed = slots * (uint64_t)l->slot_floats * sizeof(float);
    uint64_t node_bytes = (uint64_t)attn_interval_node_count(d) * sizeof(attn_interval_node);
    return attn_append(&l->total, node_count, node_bytes, &l->nodes) &&
           attn_append(&l->total, units, sizeof(progress), &l->progress) &&
           attn_append(&l->total, (uint64_t)c->threads, (uint64_t)l->scratch_floats * sizeof(float), &l->scratch) &&
           attn_append(&l->total, slots, (uint64_t)l->slot_floats * sizeof(float), &l->slots);
}

static int64_t query_blocks(const run *r, const attn_sequence *seq)
{
    return attn_ceil_div(seq->len_q, r->plan->choice.rows_tile);
}

static int64_t attend_items(const run *r, int64_t unit)
{
    const attn_desc *d = &r->plan->desc;
    attn_sequence seq = attn_sequence_of(d, r->args, unit / d->heads_kv);
    return query_blocks(r, &seq) * (d->heads_q / d->heads_kv);
}

static int64_t pack_items(const run *r, int64_t unit)
{
    const attn_desc *d = &r->plan->desc;
    attn_sequence seq = attn_sequence_of(d, r->args, unit / d->heads_kv);
    return seq.len_q ? attn_ceil_div(seq.len_kv, PACK_KEYS) : 0;
}

static float *slot_of(const run *r, int64_t unit)
{
    return r->slots + atomic_load_explicit(&r->progress[unit].slot, memory_order_relaxed) * r->layout.slot_floats;
}

static void wait_for(atomic_int_fast64_t *counter, int64_t value)
{
    for (int n = 0; atomic_load_explicit(counter, memory_order_acquire) < value; n++)
        attn_threads_relax(n);
}

static void pack_item(run *r, int64_t unit, int64_t part)
{
    const attn_desc *d = &r->plan->desc;
    int64_t batch = unit / d->heads_kv, head = unit % d->heads_kv;
    attn_sequence seq = attn_sequence_of(d, r->args, batch);
    int64_t key0 = part * PACK_KEYS, tensor_batch = attn_tensor_batch(d, batch);
    attn_pack_task task = {
        .dtype = d->dtype,
        .k = attn_bind(d->dtype, r->args->k, d->k_stride, tensor_batch, seq.start_kv, head),
        .v = attn_bind(d->dtype, r->args->v, d->v_stride, tensor_batch, seq.start_kv, head),
        .k_row = d->k_stride[1],
        .v_row = d->v_stride[1],
        .dim_qk = d->dim_qk,
        .dim_v = d->dim_v,
        .key0 = key0,
        .keys = seq.len_kv - key0 < PACK_KEYS ? seq.len_kv - key0 : PACK_KEYS,
        .pitch = r->layout.pitch,
        .k_pack = slot_of(r, unit),
        .v_pack = slot_of(r, unit) + r->layout.k_floats,
    };
    r->plan->kernel->ops->pack(&task);
}

static void attend_item(run *r, int64_t unit, int64_t part, int worker)
{
    const attn_desc *d = &r->plan->desc;
    int64_t group = d->heads_q / d->heads_kv, batch = unit / d->heads_kv,
            head = unit % d->heads_kv * group + part % group;
    attn_sequence seq = attn_sequence_of(d, r->args, batch);
    int64_t rows = r->plan->choice.rows_tile, row0 = (query_blocks(r, &seq) - 1 - part / group) * rows;
    int64_t tensor_batch = attn_tensor_batch(d, batch);
    attn_mask_view mask;
    attn_score score;
    attn_mask_view_init(&mask, d, r->args, r->nodes, batch, head);
    attn_score_init(&score, d, r->args, batch, head, mask.shift);
    attn_attend_task task = {
        .dtype = d->dtype,
        .out_dtype = attn_out_dtype(d),
        .mask = &mask,
        .score = &score,
        .row0 = row0,
        .rows = seq.len_q - row0 < rows ? seq.len_q - row0 : rows,
        .q = attn_bind(d->dtype, r->args->q, d->q_stride, tensor_batch, seq.start_q, head),
        .q_row = d->q_stride[1],
        .o = (void *)(uintptr_t)attn_bind(attn_out_dtype(d), r->args->o, d->o_stride, tensor_batch, seq.start_q, head),
        .o_row = d->o_stride[1],
        .lse = attn_bind_lse(d, r->args, batch, head, &seq),
        .dim_qk = d->dim_qk,
        .dim_v = d->dim_v,
        .k_pack = slot_of(r, unit),
        .v_pack = slot_of(r, unit) + r->layout.k_floats,
        .pitch = r->layout.pitch,
        .scratch = r->scratch + worker * r->layout.scratch_floats,
    };
    r->plan->kernel->ops->attend(&task);
}

/* Packs and attends what of a taken unit nobody else has begun. */
static void work_off(run *r, int64_t unit, int worker)
{
    progress *p = &r->progress[unit];
    int64_t packs = pack_items(r, unit), attends = attend_items(r, unit), i;
    wait_for(&p->slot, 0);
    while ((i = atomic_fetch_add(&p->packing, 1)) < packs) {
        pack_item(r, unit, i);
        atomic_fetch_add_explicit(&p->packed, 1, memory_order_release);
    }
    wait_for(&p->packed, packs);
    while ((i = atomic_fetch_add(&p->attending, 1)) < attends)
        attend_item(r, unit, i, worker);
}

static void take_units(void *arg, int64_t share, int worker)
{
    run *r = arg;
    int64_t slots = r->plan->choice.packed_heads, unit;
    while ((unit = atomic_fetch_add(&r->taken, 1)) < r->units) {
        atomic_store_explicit(&r->progress[unit].slot, r->units <= slots ? unit : worker, memory_order_release);
        work_off(r, unit, worker);
    }
    for (int64_t i = 0; i < r->units; i++) { /* each begins elsewhere, so that they spread */
        unit = (share * r->units / r->plan->choice.threads + i) % r->units;
        if (atomic_load_explicit(&r->progress[unit].attending, memory_order_relaxed) < attend_items(r, unit))
            work_off(r, unit, worker);
    }
}

void attn_prefill_run(const attn_plan *plan, const attn_args *args, void *workspace)
{
    const attn_desc *d = &plan->desc;
    run r = { .plan = plan, .args = args, .units = d->batch * d->heads_kv };
    attn_prefill_lay_out(plan, &r.layout);
    char *base = attn_workspace_start(workspace);
    attn_interval_node *nodes = (attn_interval_node *)(void *)(base + r.layout.nodes);
    r.nodes = nodes;
    r.progress = (progress *)(void *)(base + r.layout.progress);
    r.scratch = (float *)(void *)(base + r.layout.scratch);
    r.slots = (float *)(void *)(base + r.layout.slots);
    attn_summarize_all(plan, args, nodes);
    for (int64_t u = 0; u < r.units; u++) {
        atomic_init(&r.progress[u].packing, 0);
        atomic_init(&r.progress[u].packed, 0);
        atomic_init(&r.progress[u].attending, 0);
        atomic_init(&r.progress[u].slot, -1);
    }
    attn_threads_each(d, plan->choice.threads, plan->choice.threads, take_units, &r);
}
