/* How long a rank's run takes, and what it sends. Contract: parallel.h.
 *
 * A pair of a row and a key takes what libattn's plan says of a run, of all its pairs. Bytes move at the speed of the
 * link, beside computing in the ring, before and after it in the all-gather. */
#include "num/half.h"
#include "parallel/device_plan.h"
#include "problem/desc.h"

/* Seconds of one thread for a value of a result that is merged into others [m]. */
static const double merge_value_seconds = 2e-9;

/* Seconds of a visible pair of one head; 0: no such plan. */
static double seconds_per_pair(const attn_plan *plan)
{
    attn_plan_info info;
    return plan && !attn_plan_get_info(plan, &info) && info.pairs > 0 ? info.seconds / info.pairs : 0;
}

static double rate_of(const attn_parallel_plan *plan, attn_schedule schedule)
{
    bool all = schedule == ATTN_ALL_GATHER && plan->whole.direction == ATTN_FORWARD;
    double rate = 0;
    for (int c = 0; c < plan->chunks; c++)
        for (int k = 0; k < 2; k++) {
            double seconds = seconds_per_pair(all ? plan->all[c] : plan->pair[c][k]);
            if (rate == 0) rate = seconds;
        }
    return rate;
}

/* What a rank does in a step of the ring: with the keys of one rank. */
typedef struct step {
    double pairs, merged; /* merged: values of results */
    size_t keys, grads;   /* bytes that arrive for it, and that go back */
} step;

static step step_of(const attn_parallel_plan *plan, int32_t rank, int32_t of)
{
    step s = { 0 };
    attn_seen seen = attn_rank_sees(plan, NULL, rank, of);
    for (int c = 0; c < plan->chunks; c++)
        for (int k = seen.lo; k < seen.hi; k++) {
            attn_chunk rows = attn_chunk_of_rows(plan, rank, c), keys = attn_chunk_of_keys(plan, of, k);
            if (!attn_chunk_sees(plan, NULL, rows, keys)) continue;
            s.pairs += attn_chunk_pairs(plan, rows, keys) * (double)plan->whole.heads_q;
            s.merged += (double)attn_shape_of(&plan->local).o[0] *
                        (double)(rows.rows * plan->whole.heads_q * plan->whole.dim_v);
        }
    s.keys = (size_t)(seen.hi - seen.lo) * plan->block.chunk;
    s.grads = (size_t)(seen.hi - seen.lo) * plan->gradient.chunk;
    return s;
}

/* Bytes of sums in the backward of a GPU: f32 gradients of rows, of keys that both chunks see, and of this rank's keys,
 * of which `parts` ranks have some, are read, and results written. */
static double sums_bytes(const attn_parallel_plan *plan, double received)
{
    const attn_desc *d = &plan->whole;
    double size = (double)attn_dtype_size(attn_grad_dtype(&plan->local)), batch = (double)d->batch,
           key = batch * (double)(d->heads_kv * (d->dim_qk + d->dim_v)), row = batch * (double)(d->heads_q * d->dim_qk);
    return (double)plan->local.len_q * row * (4 + size) + (double)attn_parallel_both(plan).rows * key * (4 + 4 + 4) +
           (double)plan->local.len_kv * key * (4 + size) + received;
}

/* Of one piece: all its runs, at the clock of a long load. */
static double runs_seconds(const attn_parallel_plan *plan, const attn_piece *piece, const attn_machine_info *machine)
{
    double seconds = 0;
    for (int c = 0; c < plan->chunks; c++) {
        const attn_plan *run = plan->device->size[piece->size].run[c];
        attn_plan_info info;
        if (run && !attn_plan_get_info(run, &info)) seconds += info.seconds;
    }
    return seconds * machine->clock / machine->sustained;
}

/* On a GPU: pieces one after another, each when its keys are there; the gradients of keys of one after those of
 * another, when they are computed; and sums. keys, grads: bytes of all pieces. What transfers take beside runs costs
 * processors, if they are kernels. */
static double device_seconds(const attn_parallel_plan *plan, double keys, double grads, double summed)
{
    const attn_parallel_device *own = plan->device;
    attn_machine_info machine;
    double all = (double)plan->whole.heads_kv * plan->how.link, runs = 0, here = 0, computed = 0, gone = 0, sums = 0;
    if (attn_machine_get_info(ATTN_CUDA, &machine)) return 0;
    for (int i = 0; i < own->pieces; i++) {
        double heads = (double)own->piece[i].heads, seconds = runs_seconds(plan, &own->piece[i], &machine);
        here += heads * keys / all, runs += seconds;
        computed = (computed > here ? computed : here) + seconds;
        gone = (gone > computed ? gone : computed) + heads * grads / all;
    }
    if (plan->whole.direction == ATTN_BACKWARD && machine.memory > 0) sums = sums_bytes(plan, summed) / machine.memory;
    bool kernels = !plan->engine.put && machine.link_beside > 1;
    double hidden = (keys + grads) / plan->how.link - (gone - runs);
    return gone + sums + (kernels && hidden > 0 ? hidden * (1 - 1 / machine.link_beside) : 0);
}

static double larger(const double of[2])
{
    return of[0] > of[1] ? of[0] : of[1];
}

double attn_parallel_predict(const attn_parallel_plan *plan, attn_schedule schedule, int32_t rank, double *sent_bytes,
                             double *pairs)
{
    int32_t ranks = plan->how.ranks;
    bool backward = plan->whole.direction == ATTN_BACKWARD, ring = schedule == ATTN_RING;
    double keys[2] = { 0, 0 }, grads[2] = { 0, 0 }; /* on a GPU: sent, received */
    double rate = rate_of(plan, schedule), seconds = 0, link = plan->how.link, threads = plan->whole.threads;
    *sent_bytes = *pairs = 0;
    for (int32_t h = 0; h < ranks; h++) {
        step now = step_of(plan, rank, (rank - h + ranks) % ranks);
        double compute = now.pairs * rate, bytes = 0;
        *pairs += now.pairs;
        if (ring && h + 1 < ranks) bytes += (double)step_of(plan, rank, (rank - h - 1 + ranks) % ranks).keys;
        if (ring && backward && h > 0) bytes += (double)now.grads;
        if (ring && !backward) compute += now.merged * merge_value_seconds / threads;
        if (ring) seconds += compute > bytes / link ? compute : bytes / link;
        if (!ring) seconds += compute;
        if (!h) continue;
        step theirs = step_of(plan, (rank + h) % ranks, rank);
        keys[0] += (double)theirs.keys, keys[1] += (double)now.keys;
        grads[0] += backward * (double)now.grads, grads[1] += backward * (double)theirs.grads;
    }
    *sent_bytes = keys[0] + grads[0];
    if (ring) return seconds;
    if (plan->device) return device_seconds(plan, larger(keys), larger(grads), grads[1]);
    *sent_bytes = (double)(ranks - 1) * (double)(plan->block.bytes + (backward ? plan->gradient.bytes : 0));
    return seconds + *sent_bytes / link;
}
