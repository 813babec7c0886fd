/* Keys and values of a byte for variants of 16 bits: a kernel before them writes a copy in the type of the queries.
 * Contract: sm90.h. */
#include "cuda/sm90/host/sm90.h"

#include "num/half.h"
#include "planner/attention.h"
#include "problem/desc.h"

#include "cuda/common/widen_params.h"

/* With scales a word says whether the copy counts: without, it always does. */
static bool may_be_unfit(const attn_desc *d)
{
    return d->flags & ATTN_SCALES_KV;
}

int64_t attn_sm90_page_entries(const attn_desc *d)
{
    return d->table_width ? d->batch * d->table_width : d->table_total;
}

bool attn_sm90_lay_out_widened(const attn_desc *d, attn_sm90_plan *plan)
{
    bool widens = attn_sm90_widens_kv(d, plan->cuda.chosen.kernel);
    double ids = widens && d->flags & ATTN_PAGED ? (double)attn_sm90_page_entries(d) : 0;
    return attn_cuda_append(&plan->cuda, widens && may_be_unfit(d), sizeof(unsigned), &plan->unfit_at) &&
           attn_cuda_append(&plan->cuda, ids, sizeof(int), &plan->ids_at);
}

/* ---- time ---------------------------------------------------------------------------------- */

/* Bytes that are read and written: of the keys that a typical run's rows see. */
double attn_sm90_widened_traffic(const attn_desc *d, double pairs)
{
    double rows = (double)d->batch * (double)d->heads_q * (double)d->len_q;
    double keys = attn_keys_seen(d, rows > 0 ? pairs / rows : 0);
    double elements = (double)d->batch * keys * (double)d->heads_kv * (double)(d->dim_qk + d->dim_v);
    return elements * (double)(attn_dtype_size(attn_kv_dtype(d)) + attn_dtype_size(d->dtype));
}

double attn_sm90_widening_seconds(const attn_desc *d, double pairs, const attn_cuda_device *device)
{
    return attn_cuda_converting_seconds(device, attn_sm90_widened_traffic(d, pairs), may_be_unfit(d));
}

/* ---- a run --------------------------------------------------------------------------------- */

static attn_cuda_widened widened_of(const attn_cuda_call *c, int which, const void *in, const long long stride[4],
                                    attn_cuda_scale scale)
{
    attn_sm90_tensor copy = attn_sm90_repacked(&c->plan->desc, which);
    int64_t pieces = copy.stride[2] / ATTN_CUDA_WIDEN_COLUMNS;
    return (attn_cuda_widened){ .in = in,
                                .out = attn_cuda_at(c, ((const attn_sm90_plan *)c->cuda)->copies[which]),
                                .stride = { stride[0], stride[1], stride[2] },
                                .heads = (int)copy.extent[2],
                                .dim = (int)copy.extent[3],
                                .pieces = (int)pieces,
                                .by_row = attn_cuda_divisor_of(copy.extent[2] * pieces),
                                .by_head = attn_cuda_divisor_of(pieces),
                                .by_group = attn_cuda_divisor_of(1),
                                .scale = scale };
}

static int rows_of_block(const attn_cuda_widen_params *w)
{
    int k = w->of[0].pieces, v = w->of[1].pieces;
    return ATTN_CUDA_WIDEN_ROWS((k > v ? k : v) * w->shape.heads_kv);
}

/* Keys of whole KV tiles of each variant that may read the copy. */
static int64_t tile_of_all(const attn_sm90_plan *plan)
{
    int64_t own = plan->cuda.chosen.kernel->kv_tile, other = plan->instead.kernel ? plan->instead.kernel->kv_tile : own;
    return own / attn_cuda_common(own, other) * other;
}

attn_status attn_sm90_widen_kv(const attn_cuda_call *c, const attn_cuda_params *p)
{
    const attn_desc *d = &c->plan->desc;
    const attn_sm90_plan *plan = (const attn_sm90_plan *)c->cuda;
    attn_cuda_scales scales = attn_cuda_scales_of(d, c->args);
    attn_cuda_widen_params w = { .shape = p->shape,
                                 .mask = p->mask,
                                 .table = p->cache.table,
                                 .of = { widened_of(c, ATTN_SM90_K, p->tensors.k, p->tensors.k_stride, scales.k),
                                         widened_of(c, ATTN_SM90_V, p->tensors.v, p->tensors.v_stride, scales.v) },
                                 .in_dtype = scales.kv_dtype,
                                 .tile = (int)tile_of_all(plan),
                                 .by_page = attn_cuda_divisor_of(d->page_size ? d->page_size : 1),
                                 .ids = attn_cuda_at(c, plan->ids_at),
                                 .unfit = attn_cuda_at(c, plan->unfit_at) };
    w.block_rows = rows_of_block(&w);
    int64_t blocks = attn_cuda_converting_blocks(d->len_kv, w.block_rows, d->batch, c->cuda->chosen.ctas);
    attn_status status = may_be_unfit(d) ? attn_cuda_clear(c, w.unfit, sizeof *w.unfit) : ATTN_OK;
    if (status) return status;
    return attn_cuda_launch(c, "attn_sm90_widen", plan->widen, blocks, d->batch, 2, ATTN_CUDA_WIDEN_THREADS, &w);
}

void attn_sm90_take_widened(const attn_cuda_call *c, attn_cuda_params *p)
{
    const attn_desc *d = &c->plan->desc;
    const attn_sm90_plan *plan = (const attn_sm90_plan *)c->cuda;
    attn_sm90_tensor k = attn_sm90_repacked(d, ATTN_SM90_K), v = attn_sm90_repacked(d, ATTN_SM90_V);
    p->shape.flags &= ~(unsigned)ATTN_SCALES_KV;
    p->tensors.k = attn_cuda_at(c, plan->copies[ATTN_SM90_K]),
    p->tensors.v = attn_cuda_at(c, plan->copies[ATTN_SM90_V]);
    for (int i = 0; i < 4; i++)
        p->tensors.k_stride[i] = k.stride[i], p->tensors.v_stride[i] = v.stride[i];
    if (!(d->flags & ATTN_PAGED)) return;
    p->cache.table.ids = attn_cuda_at(c, plan->ids_at), p->cache.table.pages = attn_sm90_page_entries(d);
}

attn_status attn_sm90_run_unwidened(const attn_cuda_call *c, const attn_cuda_params *p)
{
    const attn_desc *d = &c->plan->desc;
    const attn_sm90_plan *plan = (const attn_sm90_plan *)c->cuda;
    if (!may_be_unfit(d)) return ATTN_OK;
    return attn_cuda_run_fallback(c, &plan->fallback, p, attn_cuda_at(c, plan->unfit_at));
}

/* ---- words --------------------------------------------------------------------------------- */

void attn_sm90_say_widened(const attn_desc *d, const attn_sm90_plan *plan, attn_text_buffer *words)
{
    attn_dtype to = d->dtype;
    double bytes = 0;
    for (int i = ATTN_SM90_K; i <= ATTN_SM90_V; i++) {
        attn_sm90_tensor t = attn_sm90_repacked(d, i);
        bytes += (double)t.extent[0] * (double)t.stride[0] * (double)attn_dtype_size(to);
    }
    attn_say(words, "widened    k v of %s%s to %s first, ", attn_dtype_name(attn_kv_dtype(d)),
             may_be_unfit(d) ? ", times their scales," : "", attn_dtype_name(to));
    attn_say_bytes(words, bytes);
    if (may_be_unfit(d)) {
        attn_say(words, "; if a scale is beyond %s, the fallback kernel computes it, predicted ", attn_dtype_name(to));
        attn_say_number(words, plan->fallback.seconds * 1e3);
        attn_say(words, " ms");
    }
    attn_say(words, "\n");
}
