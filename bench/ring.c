/* The suite "ring": a problem over ranks, beside one of them that computes it all, each on as many threads as the case
 * has. Ranks are threads of this process, or as attn_bench_ring_over says.
 *
 * Beside the time: bytes that ranks send, counted; and the error of O and of the gradients over one device's, against
 * f64, of a small problem of the same kind: one KV head, its query heads, at most CHECKED rows. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bench/ranks.h"
#include "device/clock.h"
#include "num/half.h"

enum { CHECKED = 512, RESULTS = 4 }; /* o and the gradients of q, k, v */

/* How long ranks that are threads wait for each other: rank 0 measures one device meanwhile. */
static const double thread_timeout = 86400;

static const attn_engine *given;
static const char *given_name = "threads";

void attn_bench_ring_over(const attn_engine *engine, const char *name)
{
    given = engine, given_name = name;
}

const attn_engine *attn_bench_ring_engine(void)
{
    return given;
}

/* What ranks of a process share: two problems, and the exact results of the first. */
typedef struct shared {
    const attn_bench_case *item;
    attn_bench_subject one[2]; /* one device's plans: of the small problem, of the case */
    attn_desc desc[2];
    attn_bench_tensors whole[2];
    double *exact[RESULTS];
} shared;

static bool goes_back(const attn_bench_case *item)
{
    return item->pass == ATTN_BENCH_BOTH;
}

/* ---- errors ---------------------------------------------------------------------------------- */

static double *in_double(attn_dtype dtype, const void *from, int64_t bytes)
{
    int64_t count = bytes / attn_dtype_size(dtype);
    double *to = attn_bench_alloc(count * (int64_t)sizeof *to);
    for (int64_t i = 0; i < count && to && from; i++)
        to[i] = (double)attn_load_scalar(dtype, from, i);
    return to;
}

static bool run_exactly(attn_desc desc, bool backward, const attn_args *args)
{
    bool good = true;
    desc.dtype = ATTN_F64, desc.isa = ATTN_ISA_AUTO, desc.threads = 1;
    for (int i = 0; i <= backward && good; i++) {
        attn_plan *plan;
        desc.direction = (attn_direction)i;
        if (attn_plan_create(&plan, &desc)) return attn_bench_fail("%s", attn_error());
        void *workspace = attn_bench_alloc((int64_t)attn_plan_workspace(plan));
        good = workspace && !attn_run(plan, args, workspace, NULL);
        free(workspace);
        attn_plan_destroy(plan);
    }
    return good || attn_bench_fail("%s", attn_error());
}

static bool make_exact(shared *s)
{
    const attn_bench_tensors *t = &s->whole[0];
    const attn_desc *d = &s->desc[0];
    bool backward = goes_back(s->item), good = true;
    double *q = in_double(d->dtype, t->q, t->q_bytes), *k = in_double(d->dtype, t->k, t->k_bytes),
           *v = in_double(d->dtype, t->v, t->v_bytes), *go = in_double(d->dtype, t->grad_o, t->o_bytes),
           *lse = attn_bench_alloc(d->heads_q * d->len_q * (int64_t)sizeof *lse);
    const int64_t bytes[RESULTS] = { t->o_bytes, t->q_bytes, t->k_bytes, t->v_bytes };
    for (int i = 0; i < RESULTS; i++)
        good = (s->exact[i] = in_double(d->dtype, NULL, bytes[i])) && good;
    attn_args a = { .q = q, .k = k, .v = v, .o = s->exact[0], .lse = (float *)(void *)lse };
    if (backward) a.grad_o = go, a.grad_q = s->exact[1], a.grad_k = s->exact[2], a.grad_v = s->exact[3];
    good = good && q && k && v && go && lse && run_exactly(*d, backward, &a);
    free(q), free(k), free(v), free(go), free(lse);
    return good;
}

/* Squared differences of rows, all heads of each, from the exact ones. */
static double difference(const shared *s, int result, const void *rows, int64_t from, int64_t count)
{
    const attn_desc *d = &s->desc[0];
    int64_t row = result == 2   ? d->heads_kv * d->dim_qk
                  : result == 3 ? d->heads_kv * d->dim_v
                                : d->heads_q * (result ? d->dim_qk : d->dim_v);
    const double *exact = s->exact[result] + from * row;
    double sum = 0;
    for (int64_t i = 0; i < count * row; i++)
        sum += pow((double)attn_load_scalar(d->dtype, rows, i) - exact[i], 2);
    return sum;
}

/* The greatest error of a result, as a multiple of one device's. */
static bool compare(const shared *s, const bench_rank *r, double *error)
{
    const attn_parallel_info *info = &r->info;
    const void *const ours[RESULTS] = { r->args.o, r->args.grad_q, r->args.grad_k, r->args.grad_v };
    const attn_args *of = &s->one[0].args;
    const void *const one[RESULTS] = { of->o, of->grad_q, of->grad_k, of->grad_v };
    double sums[RESULTS] = { 0 };
    int results = goes_back(s->item) ? RESULTS : 1;
    for (int i = 0; i < results; i++) {
        int64_t size = attn_dtype_size(s->desc[0].dtype), before = 0, keys = i >= 2;
        for (int c = 0; c < info->chunks; c++) {
            int64_t begin = keys ? info->key_begin[c] : info->row_begin[c],
                    count = (keys ? info->key_end[c] : info->row_end[c]) - begin,
                    row = (keys ? s->desc[0].heads_kv : s->desc[0].heads_q) *
                          (i == 0 || i == 3 ? s->desc[0].dim_v : s->desc[0].dim_qk) * size;
            sums[i] += difference(s, i, (const char *)ours[i] + before * row, begin, count);
            before += count;
        }
    }
    if (!bench_rank_add(r, sums, RESULTS)) return false;
    *error = 0;
    for (int i = 0; i < results; i++)
        *error = fmax(*error, sqrt(sums[i] / difference(s, i, one[i], 0, s->desc[0].len_q)));
    return true;
}

/* ---- a case ---------------------------------------------------------------------------------- */

static bool begin(shared *s, const attn_bench_case *item)
{
    *s = (shared){ .item = item, .desc = { item->desc, item->desc } };
    attn_desc *small = &s->desc[0];
    small->heads_q /= small->heads_kv, small->heads_kv = 1;
    small->len_q = small->len_kv = small->len_q < CHECKED ? small->len_q : CHECKED;
    for (int i = 0; i < 2; i++)
        if (!attn_bench_tensors_init(&s->whole[i], &s->desc[i], item->pass) ||
            !attn_bench_subject_init(&s->one[i], &s->desc[i], item->pass, &s->whole[i]))
            return false;
    return attn_bench_subject_run(&s->one[0], 1) >= 0 && make_exact(s);
}

static void end(shared *s)
{
    for (int i = 0; i < 2; i++)
        attn_bench_subject_free(&s->one[i]), attn_bench_tensors_free(&s->whole[i]);
    for (int i = 0; i < RESULTS; i++)
        free(s->exact[i]);
}

/* One device, while the other ranks rest. */
typedef struct alone {
    shared *shared;
    const bench_rank *rank;
    double seconds; /* that a call took */
} alone;

static double run_alone(void *self, int calls)
{
    alone *a = self;
    if (!bench_rank_rest(a->rank, calls * a->seconds)) return -1;
    return a->seconds = attn_bench_subject_run(&a->shared->one[1], calls);
}

/* Rank 0's turns; the others serve it. */
static bool measure(shared *s, bench_rank *r, const attn_bench_options *options, attn_bench_times times[2])
{
    alone one = { s, r, 0 };
    if (r->by.rank) return bench_rank_serve(r);
    attn_bench_runner runners[] = { { bench_rank_lead, r }, { run_alone, &one } };
    return attn_bench_take_turns(options, runners, times, 2) && bench_rank_release(r);
}

/* What every rank does. result: the same on all of them; options: of rank 0. */
static bool take_part(shared *s, bench_rank *r, const attn_bench_options *options, attn_bench_result *result)
{
    const attn_parallel_desc how = { .layout = ATTN_ZIGZAG, .schedule = (attn_schedule)s->item->schedule };
    attn_bench_times times[2] = { { 0 } };
    bool backward = goes_back(s->item);
    bool good = bench_rank_begin(r, &s->desc[0], &how, backward, &s->whole[0]) && bench_rank_run(r) &&
                compare(s, r, &result->error_ratio);
    bench_rank_end(r);
    good = good && bench_rank_begin(r, &s->desc[1], &how, backward, &s->whole[1]) && measure(s, r, options, times);
    result->predicted_seconds = r->predicted, result->workspace = r->workspace_bytes;
    result->sent_bytes = r->sent;
    good = good && bench_rank_hear(r, times, sizeof times) && bench_rank_add(r, &result->sent_bytes, 1) &&
           bench_rank_most(r, &result->predicted_seconds);
    result->subject = times[0], result->peer = times[1];
    result->sent_bytes /= r->by.ranks, result->ranks = r->by.ranks;
    if (!good && r->by.abort) r->by.abort(r->by.context);
    bench_rank_end(r);
    return good;
}

typedef struct member {
    shared *shared;
    attn_engine engine;
} member;

static void *be_member(void *argument)
{
    const member *m = argument;
    bench_rank rank;
    attn_bench_result result;
    bench_rank_init(&rank, &m->engine);
    take_part(m->shared, &rank, NULL, &result);
    return NULL;
}

/* Ranks that are threads of this process; the caller is rank 0. */
static bool with_threads(shared *s, const attn_bench_options *options, attn_bench_result *result)
{
    int32_t ranks = s->item->ranks, begun = 1;
    attn_thread_group *group = NULL;
    pthread_t *thread = calloc((size_t)ranks, sizeof *thread);
    member *members = calloc((size_t)ranks, sizeof *members);
    bool good = thread && members && !attn_thread_group_create(&group, ranks, thread_timeout);
    if (!good) attn_bench_fail("%s", thread && members ? attn_error() : "out of memory");
    for (; good && begun < ranks; begun += good) {
        members[begun] = (member){ s, *attn_thread_group_engine(group, begun) };
        good = !pthread_create(&thread[begun], NULL, be_member, &members[begun]) ||
               attn_bench_fail("a thread for rank %d cannot be started", (int)begun);
    }
    if (group) {
        const attn_engine *engine = attn_thread_group_engine(group, 0);
        bench_rank rank;
        bench_rank_init(&rank, engine);
        if (good)
            good = take_part(s, &rank, options, result);
        else
            engine->abort(engine->context);
    }
    for (int32_t i = 1; i < begun; i++)
        pthread_join(thread[i], NULL);
    attn_thread_group_destroy(group);
    free(thread), free(members);
    return good;
}

bool attn_bench_ring(const attn_bench_options *options, const attn_bench_case *item, attn_bench_result *result)
{
    shared s;
    bench_rank rank;
    *result = (attn_bench_result){ 0 };
    bool good = begin(&s, item);
    if (given) bench_rank_init(&rank, given);
    good = good && (given ? take_part(&s, &rank, options, result) : with_threads(&s, options, result));
    result->peer_name = "one-rank";
    result->flops = s.one[1].info.flops;
    snprintf(result->isa, sizeof result->isa, "%s", s.one[1].info.isa);
    snprintf(result->kernel, sizeof result->kernel, "%s %s", given_name,
             item->schedule == ATTN_RING ? "ring" : "all-gather");
    end(&s);
    return good;
}
