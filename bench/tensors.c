/* The tensors of a case: aligned, touched, random normal. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "check/random.h"
#include "num/half.h"
#include "problem/desc.h"

bool attn_bench_fits(int64_t bytes)
{
    return bytes <= (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / 10 * 8;
}

void *attn_bench_alloc(int64_t bytes)
{
    void *memory = NULL;
    if (!attn_bench_fits(bytes) ||
        posix_memalign(&memory, bytes >= 4 << 20 ? 2 << 20 : 64, bytes ? (size_t)bytes : 64)) {
        attn_bench_fail("a buffer of %.1f MiB does not fit into memory", (double)bytes / (1 << 20));
        return NULL;
    }
    memset(memory, 0, (size_t)bytes);
    return memory;
}

/* Sums of four uniform numbers: normal enough, and quick. */
static void fill_normal(attn_dtype dtype, void *to, int64_t count, uint64_t state)
{
    for (int64_t i = 0; i < count; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        int sum =
            (int)(state >> 48) + (int)(state >> 32 & 0xffff) + (int)(state >> 16 & 0xffff) + (int)(state & 0xffff);
        attn_store_scalar(dtype, to, i, (float)(sum - 2 * 0xffff) * (1.7320508f / 65536.0f));
    }
}

void *attn_bench_normal(attn_dtype dtype, int64_t bytes, uint64_t seed)
{
    enum { DRAWN = (1 << 20) - 3 };
    char *to = attn_bench_alloc(bytes);
    int64_t drawn = bytes / attn_dtype_size(dtype) < DRAWN ? bytes : DRAWN * attn_dtype_size(dtype);
    if (!to) return NULL;
    fill_normal(dtype, to, drawn / attn_dtype_size(dtype), seed);
    for (int64_t at = drawn; at < bytes; at += drawn)
        memcpy(to + at, to, (size_t)(bytes - at < drawn ? bytes - at : drawn));
    return to;
}

static int64_t lse_bytes(const attn_desc *desc)
{
    return desc->batch * desc->heads_q * desc->len_q * (int64_t)sizeof(float);
}

static attn_bench_tensors sizes(const attn_desc *desc)
{
    int64_t queries = desc->batch * desc->len_q * desc->heads_q * attn_dtype_size(desc->dtype);
    int64_t rows = desc->flags & ATTN_PAGED ? desc->pages * desc->page_size : desc->batch * desc->len_kv;
    int64_t keys = rows * desc->heads_kv * attn_dtype_size(attn_kv_dtype(desc));
    return (attn_bench_tensors){ .q_bytes = queries * desc->dim_qk,
                                 .k_bytes = keys * desc->dim_qk,
                                 .v_bytes = keys * desc->dim_v,
                                 .o_bytes = queries / attn_dtype_size(desc->dtype) *
                                            attn_dtype_size(attn_out_dtype(desc)) * desc->dim_v };
}

int64_t attn_bench_tensors_bytes(const attn_desc *desc, attn_bench_pass pass)
{
    attn_bench_tensors t = sizes(desc);
    int64_t bytes = t.q_bytes + t.k_bytes + t.v_bytes + t.o_bytes;
    return pass < ATTN_BENCH_BACKWARD ? bytes : 2 * bytes + lse_bytes(desc);
}

static bool init_backward(attn_bench_tensors *t, const attn_desc *desc)
{
    t->lse = attn_bench_alloc(lse_bytes(desc));
    t->grad_o = attn_bench_normal(desc->dtype, t->o_bytes, 4);
    t->grad_q = attn_bench_alloc(t->q_bytes);
    t->grad_k = attn_bench_alloc(t->k_bytes);
    t->grad_v = attn_bench_alloc(t->v_bytes);
    return t->lse && t->grad_o && t->grad_q && t->grad_k && t->grad_v;
}

static bool init_pages(attn_bench_tensors *t, const attn_desc *desc)
{
    int64_t entries = desc->batch * desc->table_width;
    t->page_table = attn_bench_alloc(entries * (int64_t)sizeof *t->page_table);
    t->lens_kv = attn_bench_alloc(desc->batch * (int64_t)sizeof *t->lens_kv);
    if (!t->page_table || !t->lens_kv) return false;
    for (int64_t i = 0; i < entries; i++)
        t->page_table[i] = (int32_t)i;
    for (int64_t i = 0; i < desc->batch; i++)
        t->lens_kv[i] = (int32_t)desc->len_kv;
    return true;
}

/* Scales of elements of a byte, all of them 1. */
static const float *init_scales(attn_bench_tensors *t, const int64_t extent[4], const int64_t stride[4])
{
    int64_t lo, hi;
    attn_reach(extent, stride, &lo, &hi);
    float *scales = attn_bench_alloc(hi * (int64_t)sizeof *scales);
    if (!scales) return NULL;
    t->own[t->own_count++] = scales;
    for (int64_t i = 0; i < hi; i++)
        scales[i] = 1;
    return scales;
}

void attn_bench_tensors_ragged(attn_bench_tensors *t, const attn_bench_case *item)
{
    const attn_desc *d = &item->desc;
    int32_t next = 0;
    for (int i = 0; i < item->sequences; i++) {
        int32_t *row = t->page_table + i * d->table_width;
        int64_t pages = attn_ceil_div(item->lens[i], d->page_size);
        t->lens_kv[i] = item->lens[i];
        for (int64_t j = 0; j < d->table_width; j++)
            row[j] = j < pages ? next++ : -1;
    }
}

void attn_bench_tensors_mix(attn_bench_tensors *t, const attn_desc *desc)
{
    uint64_t state = 5;
    for (int64_t i = 0; i < desc->batch * desc->table_width; i++) {
        int64_t j = check_below(&state, i + 1);
        int32_t page = t->page_table[i];
        t->page_table[i] = t->page_table[j], t->page_table[j] = page;
    }
}

bool attn_bench_tensors_init(attn_bench_tensors *t, const attn_desc *desc, attn_bench_pass pass)
{
    *t = sizes(desc);
    t->q = attn_bench_normal(desc->dtype, t->q_bytes, 1);
    t->k = attn_bench_normal(attn_kv_dtype(desc), t->k_bytes, 2);
    t->v = attn_bench_normal(attn_kv_dtype(desc), t->v_bytes, 3);
    t->o = attn_bench_alloc(t->o_bytes);
    bool good = t->q && t->k && t->v && t->o;
    if (good && pass >= ATTN_BENCH_BACKWARD) good = init_backward(t, desc);
    if (good && desc->flags & ATTN_PAGED) good = init_pages(t, desc);
    if (good && desc->flags & ATTN_SINK)
        good = (t->sink = attn_bench_normal(ATTN_F32, desc->heads_q * (int64_t)sizeof *t->sink, 6)) != NULL;
    attn_shape scales = attn_scale_shape_of(desc);
    if (good && desc->flags & ATTN_SCALES_Q)
        good = (t->more.q_scale = init_scales(t, scales.q, desc->q_scale_stride)) != NULL;
    if (good && desc->flags & ATTN_SCALES_KV)
        good = (t->more.k_scale = init_scales(t, scales.k, desc->k_scale_stride)) != NULL &&
               (t->more.v_scale = init_scales(t, scales.v, desc->v_scale_stride)) != NULL;
    if (!good) attn_bench_tensors_free(t);
    return good;
}

attn_args attn_bench_tensors_args(const attn_bench_tensors *t)
{
    attn_args args = t->more;
    args.q = t->q, args.k = t->k, args.v = t->v, args.o = t->o, args.lse = t->lse, args.sink = t->sink;
    args.grad_o = t->grad_o, args.grad_q = t->grad_q, args.grad_k = t->grad_k, args.grad_v = t->grad_v;
    if (t->page_table) args.lens_kv = t->lens_kv, args.page_table = t->page_table;
    return args;
}

void attn_bench_tensors_free(attn_bench_tensors *t)
{
    void *const all[] = { t->q,      t->k,      t->v,      t->o,          t->lse,     t->grad_o,
                          t->grad_q, t->grad_k, t->grad_v, t->page_table, t->lens_kv, t->sink };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    for (int i = 0; i < t->own_count; i++)
        free(t->own[i]);
    *t = (attn_bench_tensors){ 0 };
}
