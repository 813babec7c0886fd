/* The suite "cascade": sequences with len keys in common and OWN keys of their own, one query row each, in levels
 * (attn_cascade_run); beside the same where each reads all of its keys, or beside FlashInfer's levels. Pages of 64, in
 * order. The limit is reading all keys and values once. */
#include <stdlib.h>
#include <string.h>

#include "attn_kv.h"
#include "base/error.h"
#include "bench/bench.h"
#include "cuda/driver.h"
#include "device/device.h"
#include "problem/desc.h"

enum { PAGE_SIZE = ATTN_BENCH_CASCADE_PAGE, OWN = 256, OWN_PAGES = OWN / PAGE_SIZE };
enum { LEVELS, ALONE, LIMIT, RUNNERS }; /* FlashInfer runs in ALONE's place */

/* Arrays of numbers, which are copied to a GPU whole; tables lie after them. */
typedef struct numbers {
    int32_t group_rows[2], shared_len, rows[ATTN_BENCH_SEQUENCES + 1];
    int32_t own_lens[ATTN_BENCH_SEQUENCES], all_lens[ATTN_BENCH_SEQUENCES];
    int32_t table[]; /* the group's, then the sequences' own, then of each sequence all */
} numbers;

typedef struct cascade {
    const attn_bench_case *item;
    attn_bench_tensors tensors;
    numbers *numbers;
    size_t numbers_bytes;
    int64_t shared_pages, pages;
    attn_cascade_plan *levels;
    attn_plan *alone;
    attn_cascade_keys shared;
    attn_args args[2]; /* of the levels, and alone */
    void *workspace[2];
    CUdeviceptr memory; /* on a GPU */
    attn_bench_limit *read;
} cascade;

/* ---- the problem ------------------------------------------------------------------------------- */

static attn_desc desc_of(const cascade *c, bool alone)
{
    attn_desc d = c->item->desc;
    d.len_kv = alone ? d.len_kv + OWN : OWN;
    d.total_q = d.batch, d.flags |= ATTN_VARLEN | ATTN_PAGED | ATTN_LENS_KV;
    d.pages = c->pages, d.page_size = PAGE_SIZE;
    d.table_width = alone ? c->shared_pages + OWN_PAGES : OWN_PAGES;
    return d;
}

static bool fill_numbers(cascade *c)
{
    int64_t batch = c->item->desc.batch, shared = c->shared_pages, width = shared + OWN_PAGES;
    c->numbers_bytes = sizeof(numbers) + 4 * (size_t)(shared + batch * (OWN_PAGES + width));
    numbers *n = c->numbers = attn_bench_alloc((int64_t)c->numbers_bytes);
    if (!n) return false;
    int32_t *own = n->table + shared, *all = own + batch * OWN_PAGES;
    n->group_rows[1] = (int32_t)batch, n->shared_len = (int32_t)(shared * PAGE_SIZE);
    for (int64_t i = 0; i < shared; i++)
        n->table[i] = (int32_t)i;
    for (int64_t b = 0; b < batch; b++) {
        n->rows[b + 1] = (int32_t)b + 1, n->own_lens[b] = OWN, n->all_lens[b] = (int32_t)(width * PAGE_SIZE);
        for (int64_t i = 0; i < OWN_PAGES; i++)
            own[b * OWN_PAGES + i] = (int32_t)(shared + b * OWN_PAGES + i);
        memcpy(all + b * width, n->table, 4 * (size_t)shared);
        memcpy(all + b * width + shared, own + b * OWN_PAGES, 4 * OWN_PAGES);
    }
    return true;
}

static void point_args(cascade *c, const attn_bench_tensors *t, const numbers *n)
{
    const int32_t *own = n->table + c->shared_pages, *all = own + c->item->desc.batch * OWN_PAGES;
    c->args[LEVELS] = attn_bench_tensors_args(t);
    c->args[LEVELS].cu_lens_q = n->rows;
    c->args[LEVELS].lens_kv = n->own_lens, c->args[LEVELS].page_table = own;
    c->args[ALONE] = c->args[LEVELS];
    c->args[ALONE].lens_kv = n->all_lens, c->args[ALONE].page_table = all;
    c->shared = (attn_cascade_keys){ .cu_lens_q = n->group_rows, .lens_kv = &n->shared_len, .page_table = n->table };
}

static attn_status plan(cascade *c)
{
    attn_desc levels = desc_of(c, false), alone = desc_of(c, true);
    attn_cascade_level shared = {
        .groups = 1, .len_q = alone.batch, .len_kv = c->shared_pages * PAGE_SIZE, .table_width = c->shared_pages
    };
    attn_status status = attn_cascade_plan_create(&c->levels, &levels, &shared, 1);
    return status ? status : attn_plan_create(&c->alone, &alone);
}

/* Arrays and workspaces where they are used: the host's, or copies in one piece of device memory. */
static bool place(cascade *c)
{
    attn_bench_tensors *t = &c->tensors, there = { 0 };
    size_t workspace[2] = { attn_cascade_plan_workspace(c->levels), attn_plan_workspace(c->alone) };
    if (c->item->desc.device == ATTN_CPU) {
        point_args(c, t, c->numbers);
        for (int i = 0; i < 2; i++)
            if (!(c->workspace[i] = attn_bench_alloc((int64_t)workspace[i]))) return false;
        return true;
    }
    const void *from[] = { t->q, t->k, t->v, t->o, c->numbers, NULL, NULL };
    const size_t bytes[] = { (size_t)t->q_bytes, (size_t)t->k_bytes, (size_t)t->v_bytes, (size_t)t->o_bytes,
                             c->numbers_bytes,   workspace[0],       workspace[1] };
    void *at[7];
    if (!attn_bench_gpu_place(&c->memory, from, bytes, 7, at)) return false;
    there.q = at[0], there.k = at[1], there.v = at[2], there.o = at[3];
    point_args(c, &there, at[4]);
    c->workspace[0] = at[5], c->workspace[1] = at[6];
    return true;
}

/* ---- runners ----------------------------------------------------------------------------------- */

static attn_status start_levels(const void *self, void *stream)
{
    const cascade *c = self;
    return attn_cascade_run(c->levels, &c->args[LEVELS], &c->shared, c->workspace[LEVELS], stream);
}

static attn_status start_alone(const void *self, void *stream)
{
    const cascade *c = self;
    return attn_run(c->alone, &c->args[ALONE], c->workspace[ALONE], stream);
}

static double run_levels(void *self, int calls)
{
    return attn_bench_run_calls(((const cascade *)self)->item->desc.device, start_levels, self, calls);
}

static double run_alone(void *self, int calls)
{
    return attn_bench_run_calls(((const cascade *)self)->item->desc.device, start_alone, self, calls);
}

/* In place of each sequence alone, where it is asked for and computes this. */
static bool add_flashinfer(const attn_bench_options *options, const attn_bench_peers *peers, const cascade *c,
                           attn_bench_runner *runner)
{
    attn_bench_case item = *c->item;
    if (options->peer != ATTN_PEER_FLASHINFER || !peers->torch) return false;
    item.desc.flags |= ATTN_PAGED, item.desc.page_size = PAGE_SIZE;
    item.desc.len_kv = c->shared_pages * PAGE_SIZE;
    item.sequences = (int)item.desc.batch;
    for (int i = 0; i < item.sequences; i++)
        item.lens[i] = OWN;
    if (!attn_bench_torch_setup_gpu(peers->torch, attn_bench_peer_name(options->peer), NULL, &item)) return false;
    *runner = (attn_bench_runner){ attn_bench_torch_run, peers->torch };
    return true;
}

static void fill_result(const cascade *c, const attn_bench_times *times, attn_bench_result *r)
{
    const attn_desc *d = &c->item->desc;
    double pairs = (double)(d->batch * d->heads_q) * (double)(c->shared_pages * PAGE_SIZE + OWN);
    attn_cascade_info info = { .seconds = 0 };
    attn_cascade_plan_get_info(c->levels, &info);
    snprintf(r->kernel, sizeof r->kernel, "cascade");
    r->kv_bytes = (double)(c->tensors.k_bytes + c->tensors.v_bytes);
    r->flops = 2 * pairs * (double)(d->dim_qk + d->dim_v);
    r->workspace = info.workspace_bytes, r->predicted_seconds = info.seconds_captured;
    r->subject = times[LEVELS], r->peer = times[ALONE];
    r->read = c->read ? attn_bench_limit_work(c->read) / times[LIMIT].median : attn_bench_gpu_read();
    r->limit = r->kv_bytes / r->read;
}

static void end(cascade *c)
{
    if (c->memory)
        attn_cuda_machine_get()->driver.cuMemFree(c->memory);
    else
        free(c->workspace[0]), free(c->workspace[1]);
    attn_bench_limit_free(c->read);
    attn_cascade_plan_destroy(c->levels);
    attn_plan_destroy(c->alone);
    free(c->numbers);
    attn_bench_tensors_free(&c->tensors);
}

bool attn_bench_cascade(const attn_bench_options *options, const attn_bench_case *item, const attn_bench_peers *peers,
                        attn_bench_result *result)
{
    cascade c = { .item = item, .shared_pages = item->desc.len_kv / PAGE_SIZE };
    attn_bench_runner runners[RUNNERS] = { { run_levels, &c }, { run_alone, &c } };
    attn_bench_times times[RUNNERS] = { 0 };
    *result = (attn_bench_result){ .peer_name = "alone" };
    c.pages = c.shared_pages + item->desc.batch * OWN_PAGES;
    attn_desc alone = desc_of(&c, true);
    bool done = attn_bench_tensors_init(&c.tensors, &alone, item->pass) && fill_numbers(&c);
    if (done && plan(&c)) done = attn_bench_fail("%s", attn_error());
    done = done && place(&c);
    if (done && item->desc.device == ATTN_CPU) {
        attn_plan_info info;
        const attn_bench_simd *simd;
        attn_plan_get_info(c.alone, &info);
        simd = attn_bench_simd_of(attn_bench_isa_named(info.isa));
        const void *const base[] = { c.tensors.k, c.tensors.v };
        const int64_t bytes[] = { c.tensors.k_bytes, c.tensors.v_bytes };
        c.read = attn_bench_read(simd, item->desc.threads, base, bytes);
        runners[LIMIT] = (attn_bench_runner){ attn_bench_limit_run, c.read };
        done = c.read != NULL;
    }
    if (done && add_flashinfer(options, peers, &c, &runners[ALONE])) result->peer_name = "flashinfer";
    done = done && attn_bench_take_turns(options, runners, times, RUNNERS);
    if (done) fill_result(&c, times, result);
    end(&c);
    return done;
}
