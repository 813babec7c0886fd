/* Prefill over all heads. A unit is one KV head of one sequence and a segment of query rows, all of them unless the
 * mask is a band: the keys and values that these rows may see are packed once, into a slot, and serve all query blocks
 * of the heads that share them.
 *
 * A thread takes unit after unit and works it off alone, in a slot of its own, so that packed keys stay in its cache.
 * When no unit is left to take, it joins those that others still work on. A slot is filled anew only by a thread that
 * takes a unit; from then on nobody has joined one. Query blocks with most keys come first. */
#include <stdatomic.h>

#include "problem/desc.h"
#include "cpu/layout.h"
#include "cpu/threads.h"

typedef struct progress {
    atomic_int_fast64_t packing, packed; /* pack items taken and done */
    atomic_int_fast64_t attending;       /* attend items taken */
    atomic_int_fast64_t finished;        /* 1: none is left to take */
    atomic_int_fast64_t slot;            /* -1 before the unit is taken */
} progress;

typedef struct run {
    const attn_plan *plan;
    const attn_args *args;
    attn_prefill_layout layout;
    const attn_interval_node *nodes;
    progress *progress;
    float *scratch, *slots;
    atomic_int_fast64_t taken; /* units */
} run;

bool attn_prefill_lay_out(const attn_plan *plan, attn_prefill_layout *l)
{
    const attn_desc *d = &plan->desc;
    const attn_choice *c = &plan->choice;
    uint64_t units = (uint64_t)c->units, slots = (uint64_t)c->packed_kv_heads;
    uint64_t node_count = (uint64_t)(d->batch * (d->flags & ATTN_INTERVALS ? d->interval_heads : 0));
    *l = (attn_prefill_layout){ .pitch = c->segment_keys };
    l->k_floats = l->pitch * d->dim_qk;
    l->slot_floats = l->k_floats + l->pitch * attn_round_up(d->dim_v, attn_cpu_kernel_of(plan)->cols);
    l->scratch_floats = attn_attend_scratch(c->q_tile, d->dim_qk, d->dim_v);
    if (attn_multiplies_pairs(attn_cpu_kernel_of(plan))) {
        l->k_floats = l->pitch * attn_round_up(d->dim_qk, 32) / 2;
        l->slot_floats = l->k_floats + l->pitch * attn_round_up(d->dim_v, 32) / 2;
        l->scratch_floats = attn_pairs_scratch(c->q_tile, d->dim_qk, d->dim_v);
    }
    l->packed = slots * (uint64_t)l->slot_floats * sizeof(float);
    uint64_t node_bytes = (uint64_t)attn_interval_node_count(d) * sizeof(attn_interval_node);
    return attn_append(&l->total, node_count, node_bytes, &l->nodes) &&
           attn_append(&l->total, units, sizeof(progress), &l->progress) &&
           attn_append(&l->total, (uint64_t)c->threads, (uint64_t)l->scratch_floats * sizeof(float), &l->scratch) &&
           attn_append(&l->total, slots, (uint64_t)l->slot_floats * sizeof(float), &l->slots);
}

/* A unit unfolded: rows [row0, row1) of the sequence and the keys [key0, key1) they may see. */
typedef struct unit {
    attn_sequence seq;
    attn_keys keys;
    int64_t batch, head;
    int64_t row0, row1, key0, key1;
    int64_t packs, attends; /* items */
} unit;

static unit unit_of(const run *r, int64_t index)
{
    const attn_desc *d = &r->plan->desc;
    const attn_choice *c = &r->plan->choice;
    int64_t segments = attn_ceil_div(d->len_q, c->segment_rows), group = d->heads_q / d->heads_kv;
    unit u = { .batch = index / segments / d->heads_kv, .head = index / segments % d->heads_kv };
    u.seq = attn_sequence_of(d, r->args, u.batch);
    u.keys = attn_keys_of(d, r->args, u.batch, u.head);
    u.row0 = index % segments * c->segment_rows;
    u.row1 = u.seq.len_q < u.row0 + c->segment_rows ? u.seq.len_q : u.row0 + c->segment_rows;
    if (u.row0 >= u.row1) return u;
    attn_mask_view mask;
    attn_mask_view_init(&mask, d, r->args, r->nodes, u.batch, u.head * group);
    attn_mask_tile seen = { .hi = u.seq.len_kv };
    attn_mask_span(&mask, u.row0, u.row1, &seen);
    u.key0 = seen.lo / ATTN_KEY_ALIGN * ATTN_KEY_ALIGN;
    u.key1 = seen.hi;
    u.packs = seen.lo < seen.hi ? attn_ceil_div(u.key1 - u.key0, ATTN_PACK_KEYS) : 0;
    u.attends = attn_ceil_div(u.row1 - u.row0, c->q_tile) * group;
    return u;
}

static float *slot_of(const run *r, const progress *p)
{
    return r->slots + atomic_load_explicit(&p->slot, memory_order_relaxed) * r->layout.slot_floats;
}

static void wait_for(atomic_int_fast64_t *counter, int64_t value)
{
    for (int n = 0; atomic_load_explicit(counter, memory_order_acquire) < value; n++)
        attn_threads_relax(n);
}

static void pack_item(const run *r, const unit *u, const progress *p, int64_t part)
{
    const attn_desc *d = &r->plan->desc;
    const void *k[ATTN_PACK_KEYS], *v[ATTN_PACK_KEYS];
    int64_t key0 = u->key0 + part * ATTN_PACK_KEYS, left = u->key1 - key0;
    attn_pack_task task = {
        .dtype = attn_kv_dtype(d),
        .k = k,
        .v = v,
        .dim_qk = d->dim_qk,
        .dim_v = d->dim_v,
        .key0 = key0,
        .keys = left < ATTN_PACK_KEYS ? left : ATTN_PACK_KEYS,
        .base = u->key0,
        .pitch = r->layout.pitch,
        .k_pack = slot_of(r, p),
        .v_pack = slot_of(r, p) + r->layout.k_floats,
    };
    attn_keys_rows(&u->keys, key0, task.keys, k, v);
    attn_cpu_kernel_of(r->plan)->ops->pack(&task);
}

static void attend_item(const run *r, const unit *u, const progress *p, int64_t part, int worker)
{
    const attn_desc *d = &r->plan->desc;
    attn_dtype out_dtype = attn_out_dtype(d);
    int64_t group = d->heads_q / d->heads_kv, head = u->head * group + part % group, rows = r->plan->choice.q_tile;
    int64_t row0 = u->row0 + (u->attends / group - 1 - part / group) * rows, batch = attn_tensor_batch(d, u->batch);
    attn_mask_view mask;
    attn_score score;
    attn_mask_view_init(&mask, d, r->args, r->nodes, u->batch, head);
    attn_score_init(&score, d, r->args, u->batch, head, mask.ranges.shift);
    attn_attend_task task = {
        .dtype = d->dtype,
        .out_dtype = out_dtype,
        .mask = &mask,
        .score = &score,
        .keys = &u->keys,
        .row0 = row0,
        .rows = u->row1 - row0 < rows ? u->row1 - row0 : rows,
        .q = attn_bind(d->dtype, r->args->q, d->q_stride, batch, u->seq.start_q, head),
        .q_row = d->q_stride[1],
        .o = (void *)(uintptr_t)attn_bind(out_dtype, r->args->o, d->o_stride, batch, u->seq.start_q, head),
        .o_row = d->o_stride[1],
        .lse = attn_bind_lse(d, r->args->lse, u->batch, head, &u->seq),
        .dim_qk = d->dim_qk,
        .dim_v = d->dim_v,
        .base = u->key0,
        .pitch = r->layout.pitch,
        .k_pack = slot_of(r, p),
        .v_pack = slot_of(r, p) + r->layout.k_floats,
        .scratch = r->scratch + worker * r->layout.scratch_floats,
    };
    attn_cpu_kernel_of(r->plan)->ops->attend(&task);
}

/* Packs and attends what of a taken unit nobody else has begun. */
static void work_off(const run *r, int64_t index, int worker)
{
    progress *p = &r->progress[index];
    unit u = unit_of(r, index);
    int64_t i;
    wait_for(&p->slot, 0);
    while ((i = atomic_fetch_add(&p->packing, 1)) < u.packs) {
        pack_item(r, &u, p, i);
        atomic_fetch_add_explicit(&p->packed, 1, memory_order_release);
    }
    wait_for(&p->packed, u.packs);
    while ((i = atomic_fetch_add(&p->attending, 1)) < u.attends)
        attend_item(r, &u, p, i, worker);
    atomic_store_explicit(&p->finished, 1, memory_order_relaxed);
}

static void take_units(void *arg, int64_t share, int worker)
{
    run *r = arg;
    int64_t slots = r->plan->choice.packed_kv_heads, units = r->plan->choice.units, index;
    while ((index = atomic_fetch_add(&r->taken, 1)) < units) {
        atomic_store_explicit(&r->progress[index].slot, units <= slots ? index : worker, memory_order_release);
        work_off(r, index, worker);
    }
    for (int64_t i = 0; i < units; i++) { /* each begins elsewhere, so that they spread */
        index = (share * units / r->plan->choice.threads + i) % units;
        if (!atomic_load_explicit(&r->progress[index].finished, memory_order_relaxed)) work_off(r, index, worker);
    }
}

void attn_prefill_run(const attn_plan *plan, const attn_args *args, void *workspace)
{
    run r = { .plan = plan, .args = args };
    attn_prefill_lay_out(plan, &r.layout);
    char *base = attn_workspace_start(workspace);
    attn_interval_node *nodes = (attn_interval_node *)(void *)(base + r.layout.nodes);
    r.nodes = nodes;
    r.progress = (progress *)(void *)(base + r.layout.progress);
    r.scratch = (float *)(void *)(base + r.layout.scratch);
    r.slots = (float *)(void *)(base + r.layout.slots);
    attn_summarize_all(plan, args, nodes);
    for (int64_t i = 0; i < plan->choice.units; i++) {
        atomic_init(&r.progress[i].packing, 0);
        atomic_init(&r.progress[i].packed, 0);
        atomic_init(&r.progress[i].attending, 0);
        atomic_init(&r.progress[i].finished, 0);
        atomic_init(&r.progress[i].slot, -1);
    }
    attn_threads_each(&plan->desc, plan->choice.threads, plan->choice.threads, take_units, &r);
}
