/* Contract: inner.h. */
#include "cuda/inner.h"

#include "cuda/cost.h"
#include "cuda/fallback.h"
#include "cuda/launch.h"
#include "cuda/params.h"
#include "num/half.h"
#include "planner/attention.h"
#include "problem/desc.h"

#include "cuda/common/widen_params.h"

typedef struct inner_plan {
    attn_cuda_plan base;
    attn_plan inner;                    /* desc, and own: behind this struct, the kernel's plan */
    attn_cuda_params common;            /* of the outer problem, complete but for addresses and seeds */
    attn_cuda_fallback_kernel fallback; /* of the outer problem: where q's copy does not count */
    CUfunction widen, narrow;           /* NULL: not needed */
    uint64_t q_at, unfit_at, o_at, inner_at;
    int multiprocessors;
} inner_plan;

/* ---- the inner problem --------------------------------------------------------------------- */

static bool widens_q(const attn_cuda_kernel *k, const attn_desc *d)
{
    return d->dtype == ATTN_E4M3 && k->dtype == ATTN_BF16;
}

static bool narrows_o(const attn_cuda_kernel *k, const attn_desc *d)
{
    attn_dtype out = attn_out_dtype(d);
    return out == ATTN_E4M3 || (out == ATTN_F16 && k->dtype == ATTN_BF16);
}

bool attn_cuda_has_inner(const attn_cuda_kernel *k, const attn_desc *d)
{
    if (d->dtype != ATTN_E4M3 || attn_cuda_direction(k) != ATTN_FORWARD || !attn_cuda_is_variant(k)) return false;
    return widens_q(k, d) || (k->dtype == ATTN_E4M3 && narrows_o(k, d));
}

/* Rows of heads of so many elements, packed. */
static void pack(int64_t stride[4], int64_t rows, int64_t heads, int64_t dim)
{
    stride[3] = 1, stride[2] = dim, stride[1] = heads * dim, stride[0] = rows * heads * dim;
}

static int64_t rows_of(const attn_desc *d)
{
    return d->flags & ATTN_VARLEN ? d->total_q : d->len_q;
}

static int64_t q_columns(const attn_desc *d)
{
    return attn_round_up(d->dim_qk, ATTN_CUDA_WIDEN_COLUMNS);
}

const attn_desc *attn_cuda_problem_of(const attn_cuda_kernel *k, const attn_desc *d, attn_desc *inner)
{
    if (!attn_cuda_has_inner(k, d)) return d;
    *inner = *d;
    inner->out_dtype = attn_out_dtype(d), inner->kernel = inner->strategy = NULL;
    if (widens_q(k, d)) {
        inner->dtype = ATTN_BF16, inner->kv_dtype = ATTN_E4M3, inner->flags &= ~(uint32_t)ATTN_SCALES_Q;
        inner->q_scale_rows = inner->q_scale_heads = 0;
        for (int i = 0; i < 4; i++)
            inner->q_scale_stride[i] = 0;
        pack(inner->q_stride, rows_of(d), d->heads_q, q_columns(d));
    }
    if (narrows_o(k, d)) {
        inner->out_dtype = ATTN_F32, inner->flags |= ATTN_OUT_F32;
        pack(inner->o_stride, rows_of(d), d->heads_q, d->dim_v);
    }
    return inner;
}

/* With scales a word says whether q's copy counts: without, it always does. */
static bool may_be_unfit(const attn_cuda_kernel *k, const attn_desc *d)
{
    return widens_q(k, d) && d->flags & ATTN_SCALES_Q;
}

/* Elements of all rows, of so many columns a head. */
static double elements_of(const attn_desc *d, int64_t columns)
{
    return (double)(d->flags & ATTN_VARLEN ? 1 : d->batch) * (double)rows_of(d) * (double)(d->heads_q * columns);
}

/* ---- time ---------------------------------------------------------------------------------- */

/* Of copying so many elements, which have so many bytes before and after. */
static void add_copy(const attn_cuda_device *device, double elements, int64_t from, int64_t to, bool looks,
                     attn_choice *c)
{
    double bytes = elements * (double)(from + to);
    c->seconds += attn_cuda_converting_seconds(device, bytes, looks), c->level[0].bytes += bytes;
}

/* What comes before and after the kernel. */
static void add_copies(const attn_cuda_problem *problem, const attn_cuda_kernel *k, attn_choice *c)
{
    const attn_desc *d = problem->desc;
    const int64_t q = attn_dtype_size(d->dtype), widened = attn_dtype_size(k->dtype),
                  o = attn_dtype_size(attn_out_dtype(d));
    if (widens_q(k, d)) add_copy(problem->device, elements_of(d, d->dim_qk), q, widened, may_be_unfit(k, d), c);
    if (narrows_o(k, d)) add_copy(problem->device, elements_of(d, d->dim_v), 4, o, false, c);
}

static bool predict(const attn_cuda_problem *problem, const attn_cuda_kernel *k, attn_cuda_choice *choice)
{
    attn_desc inner;
    attn_cuda_problem of = *problem;
    of.desc = attn_cuda_problem_of(k, problem->desc, &inner);
    if (!attn_cuda_pass_of(k)->predict(&of, k, choice)) return false;
    add_copies(problem, k, &choice->choice);
    return true;
}

/* ---- the plan ------------------------------------------------------------------------------ */

/* The struct, and up to where the kernel's plan begins: it has tensor maps. */
static const size_t own_size = (sizeof(inner_plan) + 63) / 64 * 64;

static bool lay_out(const attn_desc *d, inner_plan *plan, const attn_cuda_plan *own)
{
    const attn_cuda_kernel *k = own->chosen.kernel;
    attn_cuda_plan *base = &plan->base;
    return attn_cuda_append(base, widens_q(k, d) ? elements_of(d, q_columns(d)) : 0, 2, &plan->q_at) &&
           attn_cuda_append(base, may_be_unfit(k, d), sizeof(unsigned), &plan->unfit_at) &&
           attn_cuda_append(base, narrows_o(k, d) ? elements_of(d, d->dim_v) : 0, 4, &plan->o_at) &&
           attn_cuda_append(base, (double)own->workspace, 1, &plan->inner_at);
}

static attn_status load(const attn_cuda_problem *problem, const attn_cuda_context *context, inner_plan *plan)
{
    const attn_desc *d = problem->desc;
    const attn_cuda_kernel *k = plan->base.chosen.kernel;
    attn_status status = ATTN_OK;
    if (widens_q(k, d)) status = attn_cuda_load_dtype(context, k->dtype, "widen", &plan->widen);
    if (!status && narrows_o(k, d)) status = attn_cuda_load_dtype(context, attn_out_dtype(d), "narrow", &plan->narrow);
    if (!status && may_be_unfit(k, d))
        status = attn_cuda_load_fallback(problem, context, k, "fallback", &plan->fallback);
    return status;
}

static attn_status create(const attn_cuda_problem *problem, const attn_cuda_context *context, attn_cuda_plan *cuda)
{
    inner_plan *plan = (inner_plan *)cuda;
    const attn_desc *d = problem->desc;
    const attn_cuda_kernel *k = cuda->chosen.kernel;
    attn_cuda_plan *own = (attn_cuda_plan *)((char *)plan + own_size);
    attn_cuda_problem of = *problem;
    of.desc = attn_cuda_problem_of(k, d, &plan->inner.desc);
    own->context = cuda->context, own->driver = cuda->driver, own->chosen.kernel = k;
    own->holds_q = widens_q(k, d);
    attn_status status = attn_cuda_pass_of(k)->create(&of, context, own);
    if (status) return status;
    plan->inner.own = own;
    cuda->chosen = own->chosen, cuda->decided = own->decided;
    add_copies(problem, k, &cuda->chosen.choice);
    attn_cuda_fill(d, k->kv_tile, &plan->common);
    plan->multiprocessors = problem->device->multiprocessors;
    return lay_out(d, plan, own) ? load(problem, context, plan) : attn_cuda_too_large(d);
}

/* ---- a run --------------------------------------------------------------------------------- */

static int64_t blocks_of(const inner_plan *plan, const attn_desc *d, int block_rows)
{
    return attn_cuda_converting_blocks(d->len_q, block_rows, d->batch, plan->multiprocessors);
}

static attn_status widen(const attn_cuda_call *c, const inner_plan *plan, const attn_cuda_params *p)
{
    const attn_desc *d = &c->plan->desc;
    int64_t pieces = q_columns(d) / ATTN_CUDA_WIDEN_COLUMNS;
    attn_cuda_scale scale = attn_cuda_scales_of(d, c->args).q;
    attn_cuda_widen_params w = { .shape = p->shape,
                                 .of = { { .in = c->args->q,
                                           .out = attn_cuda_at(c, plan->q_at),
                                           .stride = { d->q_stride[0], d->q_stride[1], d->q_stride[2] },
                                           .heads = (int)d->heads_q,
                                           .dim = (int)d->dim_qk,
                                           .pieces = (int)pieces,
                                           .by_row = attn_cuda_divisor_of(d->heads_q * pieces),
                                           .by_head = attn_cuda_divisor_of(pieces),
                                           .by_group =
                                               attn_cuda_divisor_of(scale.of_kv_heads ? d->heads_q / d->heads_kv : 1),
                                           .scale = scale } },
                                 .queries = 1,
                                 .in_dtype = d->dtype,
                                 .tile = 1,
                                 .block_rows = (int)ATTN_CUDA_WIDEN_ROWS(d->heads_q * pieces),
                                 .by_page = attn_cuda_divisor_of(1),
                                 .unfit = attn_cuda_at(c, plan->unfit_at) };
    w.shape.flags &= ~(unsigned)ATTN_PAGED;
    attn_status status = plan->fallback.function ? attn_cuda_clear(c, w.unfit, sizeof *w.unfit) : ATTN_OK;
    if (status) return status;
    return attn_cuda_launch(c, "widening q", plan->widen, blocks_of(plan, d, w.block_rows), d->batch, 1,
                            ATTN_CUDA_WIDEN_THREADS, &w);
}

static attn_status narrow(const attn_cuda_call *c, const inner_plan *plan, const attn_cuda_params *p)
{
    const attn_desc *d = &c->plan->desc;
    int64_t pieces = attn_ceil_div(d->dim_v, ATTN_CUDA_NARROW_COLUMNS);
    attn_cuda_narrow_params n = { .shape = p->shape,
                                  .in = attn_cuda_at(c, plan->o_at),
                                  .scale = attn_cuda_scales_of(d, c->args).o,
                                  .pieces = (int)pieces,
                                  .block_rows = (int)ATTN_CUDA_WIDEN_ROWS(d->heads_q * pieces),
                                  .by_row = attn_cuda_divisor_of(d->heads_q * pieces),
                                  .by_head = attn_cuda_divisor_of(pieces) };
    return attn_cuda_launch(c, "narrowing o", plan->narrow, blocks_of(plan, d, n.block_rows), d->batch, 1,
                            ATTN_CUDA_WIDEN_THREADS, &n);
}

static attn_status run_kernel(const attn_cuda_call *c, const inner_plan *plan)
{
    attn_args args = *c->args;
    attn_plan laid;
    attn_cuda_call call = { .plan = &plan->inner,
                            .cuda = plan->inner.own,
                            .args = &args,
                            .workspace = attn_cuda_at(c, plan->inner_at),
                            .stream = c->stream };
    if (plan->widen) args.q = attn_cuda_at(c, plan->q_at), args.q_scale = NULL;
    if (plan->narrow) args.o = attn_cuda_at(c, plan->o_at), args.o_scale = NULL;
    if (args.kv_layout) { /* the run's plan has it already */
        const attn_desc *d = &c->plan->desc;
        laid = plan->inner, laid.desc.len_kv = d->len_kv;
        for (int i = 0; i < 4; i++)
            laid.desc.k_stride[i] = d->k_stride[i], laid.desc.v_stride[i] = d->v_stride[i];
        call.plan = &laid;
    }
    return attn_cuda_pass_of(call.cuda->chosen.kernel)->run(&call);
}

static attn_status run(const attn_cuda_call *c)
{
    const inner_plan *plan = (const inner_plan *)c->cuda;
    attn_cuda_params p = plan->common;
    attn_cuda_bind(&c->plan->desc, c->args, &p);
    attn_status status = plan->widen ? widen(c, plan, &p) : ATTN_OK;
    if (!status) status = run_kernel(c, plan);
    if (!status && plan->narrow) status = narrow(c, plan, &p);
    if (status || !plan->fallback.function) return status;
    return attn_cuda_run_fallback(c, &plan->fallback, &p, attn_cuda_at(c, plan->unfit_at));
}

/* ---- words --------------------------------------------------------------------------------- */

static void describe(const attn_plan *plan, attn_text_buffer *words)
{
    const inner_plan *own = plan->own;
    const attn_desc *d = &plan->desc;
    const attn_cuda_kernel *k = own->base.chosen.kernel;
    const char *to = attn_dtype_name(k->dtype);
    attn_cuda_pass_of(k)->describe(&own->inner, words);
    if (own->widen) {
        attn_say(words, "widened    q of %s%s to %s first, ", attn_dtype_name(d->dtype),
                 own->fallback.function ? ", times its scales," : "", to);
        attn_say_bytes(words, elements_of(d, q_columns(d)) * 2);
        if (own->fallback.function) {
            attn_say(words, "; if a scale is beyond %s, the fallback kernel computes it, predicted ", to);
            attn_say_number(words, own->fallback.seconds * 1e3);
            attn_say(words, " ms");
        }
        attn_say(words, "\n");
    }
    if (!own->narrow) return;
    attn_say(words, "narrowed   o of f32 to %s at last, ", attn_dtype_name(attn_out_dtype(d)));
    attn_say_bytes(words, elements_of(d, d->dim_v) * 4);
    attn_say(words, "\n");
}

/* ---- either way ---------------------------------------------------------------------------- */

static const attn_cuda_pass by_inner = { sizeof(inner_plan), predict, create, run, describe };

const attn_cuda_pass *attn_cuda_pass_for(const attn_cuda_kernel *k, const attn_desc *d)
{
    return attn_cuda_has_inner(k, d) ? &by_inner : attn_cuda_pass_of(k);
}

size_t attn_cuda_plan_size(const attn_cuda_kernel *k, const attn_desc *d)
{
    size_t size = attn_cuda_pass_of(k)->plan_size;
    return attn_cuda_has_inner(k, d) ? own_size + size : size;
}
