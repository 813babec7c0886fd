/* A random batch whose sequences share keys in levels, for the CPU's test and the GPU's: the cascade's problem, and the
 * same one with a page table of all keys for each sequence. All arrays lie in one piece that can be copied whole. */
#ifndef TESTS_CASCADE_SUPPORT_H
#define TESTS_CASCADE_SUPPORT_H

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "attn_kv.h"
#include "check/random.h"
#include "num/half.h"
#include "problem/desc.h"

enum {
    CASCADE_BATCH = 9,
    CASCADE_ROWS = 64,    /* of all sequences, and some that are of none */
    CASCADE_SLOTS = 4096, /* of a pool */
    CASCADE_WIDTH = 512,  /* heads_kv times the head dim, at most */
    CASCADE_SHARED = 3,
    CASCADE_ENTRIES = 1024
};

typedef struct cascade_level_arrays {
    int32_t cu_lens_q[CASCADE_BATCH + 1], lens_kv[CASCADE_BATCH], starts[CASCADE_BATCH + 1];
    int32_t table[CASCADE_BATCH * CASCADE_ENTRIES];
} cascade_level_arrays;

typedef struct cascade_arrays {
    char k[CASCADE_SLOTS * CASCADE_WIDTH * 4], v[CASCADE_SLOTS * CASCADE_WIDTH * 4];
    char q[CASCADE_ROWS * 4 * CASCADE_WIDTH * 4], o[CASCADE_ROWS * 4 * CASCADE_WIDTH * 4];
    float lse[CASCADE_ROWS * 64], sink[64], k_scale[CASCADE_SLOTS * 4], v_scale[CASCADE_SLOTS * 4];
    uint32_t fault;
    cascade_level_arrays level[CASCADE_SHARED + 1]; /* the last: each sequence's own */
    cascade_level_arrays all;                       /* of each sequence all keys */
} cascade_arrays;

typedef struct cascade_problem {
    attn_desc own, all; /* descriptors of the cascade, and of the same without */
    int levels;         /* shared */
    attn_cascade_level level[CASCADE_SHARED];
    int64_t next_page;
    cascade_arrays *at;
} cascade_problem;

/* `keys` keys on new pages, after the `count` entries that are in the table; how many are in it then. */
static int64_t cascade_take(cascade_problem *p, int32_t *table, int64_t count, int64_t keys)
{
    for (int64_t i = 0; i < attn_ceil_div(keys, p->own.page_size); i++) /* in no order: 7 and pages have no divisor */
        table[count++] = (int32_t)(p->next_page++ * 7 % p->own.pages);
    return count;
}

static void cascade_desc(cascade_problem *p, uint64_t *random)
{
    static const int sizes[] = { 16, 8, 64, 1, 5 }, dims[] = { 64, 128, 40, 8 }, heads[] = { 1, 2, 4 };
    static const uint32_t flags[] = { ATTN_CAUSAL, ATTN_SOFTCAP, ATTN_SINK, ATTN_OUT_F32, ATTN_DETERMINISTIC };
    attn_desc *d = &p->own;
    d->flags = ATTN_VARLEN | ATTN_PAGED | ATTN_LENS_KV;
    for (int i = 0; i < 5; i++)
        if (check_chance(random, 40)) d->flags |= flags[i];
    if (d->flags & ATTN_SOFTCAP) d->softcap = 3;
    d->batch = 1 + check_below(random, CASCADE_BATCH);
    d->heads_kv = heads[check_below(random, 3)], d->heads_q = d->heads_kv * (1 + check_below(random, 4));
    d->dim_qk = dims[check_below(random, 4)], d->dim_v = check_chance(random, 70) ? d->dim_qk : 24;
    d->page_size = sizes[check_below(random, 5)], d->pages = CASCADE_SLOTS / 64 / d->page_size * 64 - 1;
    while (d->pages % 7 == 0)
        d->pages--;
}

/* A level's groups: sequences one after another, of which each group takes some. */
static void cascade_share(cascade_problem *p, int n, const int32_t *rows, int64_t *counts, uint64_t *random)
{
    cascade_level_arrays *a = &p->at->level[n], *all = &p->at->all;
    attn_cascade_level *level = &p->level[n];
    int64_t used = 0;
    bool lists = check_chance(random, 50);
    a->cu_lens_q[0] = a->starts[0] = 0;
    for (int64_t b = 0, end; b < p->own.batch; b = end, level->groups++) {
        int64_t g = level->groups, keys = p->own.page_size * check_below(random, 1 + 200 / p->own.page_size);
        end = b + 1 + check_below(random, p->own.batch - b);
        int32_t *table = lists ? a->table + used : a->table + g * CASCADE_ENTRIES;
        int64_t count = cascade_take(p, table, 0, keys);
        used += count, a->starts[g + 1] = (int32_t)used;
        a->cu_lens_q[g + 1] = rows[end], a->lens_kv[g] = (int32_t)keys;
        if (rows[end] - rows[b] > level->len_q) level->len_q = rows[end] - rows[b];
        if (keys > level->len_kv) level->len_kv = keys;
        for (; b < end; b++) {
            memcpy(all->table + b * CASCADE_ENTRIES + counts[b], table, (size_t)count * 4);
            counts[b] += count, all->lens_kv[b] += (int32_t)keys;
        }
    }
    if (lists)
        level->table_total = CASCADE_BATCH * CASCADE_ENTRIES;
    else
        level->table_width = CASCADE_ENTRIES;
}

/* Draws the problem of this number into *at. */
static cascade_problem cascade_draw(cascade_arrays *at, int number, attn_dtype dtype)
{
    cascade_problem p = { .at = at, .levels = 1 + number % CASCADE_SHARED, .own = { .dtype = dtype } };
    uint64_t random = 77 + (uint64_t)number;
    int64_t counts[CASCADE_BATCH] = { 0 };
    attn_desc *d = &p.own;
    memset(at, 0, sizeof *at);
    cascade_desc(&p, &random);
    cascade_level_arrays *own = &at->level[p.levels];
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t rows = check_below(&random, 6);
        own->cu_lens_q[b + 1] = own->cu_lens_q[b] + (int32_t)rows;
        if (rows > d->len_q) d->len_q = rows;
    }
    memcpy(at->all.cu_lens_q, own->cu_lens_q, sizeof own->cu_lens_q);
    d->total_q = own->cu_lens_q[d->batch] + check_below(&random, 4);
    for (int n = 0; n < p.levels; n++)
        cascade_share(&p, n, own->cu_lens_q, counts, &random);
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t keys = own->cu_lens_q[b + 1] - own->cu_lens_q[b] + check_below(&random, 40);
        bool may_have_none = !(d->flags & ATTN_CAUSAL) || at->all.lens_kv[b] == 0;
        if (may_have_none && check_chance(&random, 20)) keys = 0;
        int64_t count = cascade_take(&p, own->table + b * CASCADE_ENTRIES, 0, keys);
        memcpy(at->all.table + b * CASCADE_ENTRIES + counts[b], own->table + b * CASCADE_ENTRIES, (size_t)count * 4);
        own->lens_kv[b] = (int32_t)keys, at->all.lens_kv[b] += (int32_t)keys;
        if (keys > d->len_kv) d->len_kv = keys;
        if (at->all.lens_kv[b] > p.all.len_kv) p.all.len_kv = at->all.lens_kv[b];
    }
    d->table_width = CASCADE_ENTRIES;
    int64_t longest = p.all.len_kv;
    p.all = *d, p.all.len_kv = longest;
    for (int64_t i = 0; i < CASCADE_SLOTS * CASCADE_WIDTH; i++)
        attn_store_scalar(dtype, at->k, i, check_normal(&random)),
            attn_store_scalar(dtype, at->v, i, check_normal(&random));
    for (int64_t i = 0; i < d->total_q * d->heads_q * d->dim_qk; i++)
        attn_store_scalar(dtype, at->q, i, check_normal(&random));
    for (int i = 0; i < 64; i++)
        at->sink[i] = check_normal(&random);
    memset(at->o, 0xff, sizeof at->o), memset(at->lse, 0xff, sizeof at->lse); /* NaN */
    return p;
}

/* Arguments of the cascade, or of the same without, whose arrays lie in a copy of *p->at, at `at`. */
static attn_args cascade_args(const cascade_problem *p, cascade_arrays *at, bool all)
{
    cascade_level_arrays *level = all ? &at->all : &at->level[p->levels];
    return (attn_args){ .q = at->q,
                        .k = at->k,
                        .v = at->v,
                        .o = at->o,
                        .lse = at->lse,
                        .cu_lens_q = level->cu_lens_q,
                        .lens_kv = level->lens_kv,
                        .page_table = level->table,
                        .sink = p->own.flags & ATTN_SINK ? at->sink : NULL,
                        .k_scale = p->own.flags & ATTN_SCALES_KV ? at->k_scale : NULL,
                        .v_scale = p->own.flags & ATTN_SCALES_KV ? at->v_scale : NULL };
}

static void cascade_shared_keys(const cascade_problem *p, cascade_arrays *at, attn_cascade_keys keys[CASCADE_SHARED])
{
    for (int i = 0; i < p->levels; i++)
        keys[i] = (attn_cascade_keys){ .cu_lens_q = at->level[i].cu_lens_q,
                                       .lens_kv = at->level[i].lens_kv,
                                       .page_table = at->level[i].table,
                                       .page_starts = p->level[i].table_total ? at->level[i].starts : NULL };
}

/* The same without levels, on the CPU, over and into *at. */
static attn_status cascade_run_all(const cascade_problem *p, cascade_arrays *at)
{
    attn_plan *plan;
    attn_args args = cascade_args(p, at, true);
    attn_status status = attn_plan_create(&plan, &p->all);
    if (status) return status;
    char *workspace = malloc(attn_plan_workspace(plan) + 1);
    status = attn_run(plan, &args, workspace, NULL);
    free(workspace);
    attn_plan_destroy(plan);
    return status;
}

/* The first line, of total_q heads_q, where two results differ by more than rounding; -1: none. Rows of no sequence:
 * 0 and -inf. */
static int64_t cascade_difference(const cascade_problem *p, const cascade_arrays *got, const cascade_arrays *want)
{
    const attn_desc *d = &p->own;
    attn_dtype dtype = attn_out_dtype(d);
    float bound = d->dtype == ATTN_BF16 || d->dtype == ATTN_E4M3 ? 0x1p-6f : d->dtype == ATTN_F16 ? 0x1p-9f : 1e-5f;
    int64_t rows = p->at->level[p->levels].cu_lens_q[d->batch];
    for (int64_t line = 0; line < d->total_q * d->heads_q; line++) {
        int64_t row = line / d->heads_q, head = line % d->heads_q, at = head * d->total_q + row;
        float lse = row < rows ? want->lse[at] : -INFINITY;
        if (!(got->lse[at] == lse || fabsf(got->lse[at] - lse) <= bound * (1 + fabsf(lse)))) return line;
        for (int64_t i = 0; i < d->dim_v; i++) {
            float a = attn_load_scalar(dtype, got->o, line * d->dim_v + i);
            float b = row < rows ? attn_load_scalar(dtype, want->o, line * d->dim_v + i) : 0;
            if (!(fabsf(a - b) <= bound * (1 + fabsf(b)))) return line;
        }
    }
    return -1;
}

#endif
