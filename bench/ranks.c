/* A rank of the suite "ring": its part of a problem, and what it does until rank 0 has measured. Contract: ranks.h. */
#define _POSIX_C_SOURCE 200809L
#include "bench/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/clock.h"
#include "num/half.h"
#include "problem/desc.h"

/* ---- an engine that counts what another one carries ---------------------------------------- */

static int exchange(void *context, int32_t to, const void *send, size_t send_bytes, int32_t from, void *receive,
                    size_t receive_bytes, void *stream)
{
    bench_rank *r = context;
    r->sent += (double)send_bytes;
    return r->by.exchange(r->by.context, to, send, send_bytes, from, receive, receive_bytes, stream);
}

static int wait_for_all(void *context, void *stream)
{
    const bench_rank *r = context;
    return r->by.wait(r->by.context, stream);
}

static int all_gather(void *context, const void *send, void *receive, size_t bytes, void *stream)
{
    bench_rank *r = context;
    r->sent += (double)bytes * (r->by.ranks - 1);
    return r->by.all_gather(r->by.context, send, receive, bytes, stream);
}

static int reduce_scatter(void *context, const float *send, float *receive, size_t count, void *stream)
{
    bench_rank *r = context;
    r->sent += (double)(count * sizeof *send) * (r->by.ranks - 1);
    return r->by.reduce_scatter(r->by.context, send, receive, count, stream);
}

static void give_up(void *context)
{
    const bench_rank *r = context;
    if (r->by.abort) r->by.abort(r->by.context);
}

void bench_rank_init(bench_rank *r, const attn_engine *by)
{
    *r = (bench_rank){ .by = *by };
    r->engine = (attn_engine){ .context = r,
                               .rank = by->rank,
                               .ranks = by->ranks,
                               .exchange = exchange,
                               .wait = wait_for_all,
                               .all_gather = all_gather,
                               .reduce_scatter = reduce_scatter,
                               .abort = give_up };
}

bool bench_rank_tell(const bench_rank *r, const void *mine, void *all, size_t bytes)
{
    return !r->by.all_gather(r->by.context, mine, all, bytes, NULL) ||
           attn_bench_fail("rank %d: the engine's all_gather failed", (int)r->by.rank);
}

bool bench_rank_hear(const bench_rank *r, void *thing, size_t bytes)
{
    char *all = malloc((size_t)r->by.ranks * bytes);
    bool good = all && bench_rank_tell(r, thing, all, bytes);
    if (good) memcpy(thing, all, bytes);
    free(all);
    return good;
}

bool bench_rank_add(const bench_rank *r, double *numbers, int count)
{
    double *all = malloc((size_t)(r->by.ranks * count) * sizeof *all);
    bool good = all && bench_rank_tell(r, numbers, all, (size_t)count * sizeof *all);
    for (int i = 0; i < count && good; i++) {
        numbers[i] = 0;
        for (int32_t of = 0; of < r->by.ranks; of++)
            numbers[i] += all[of * count + i];
    }
    free(all);
    return good;
}

bool bench_rank_most(const bench_rank *r, double *number)
{
    double *all = malloc((size_t)r->by.ranks * sizeof *all);
    bool good = all && bench_rank_tell(r, number, all, sizeof *all);
    for (int32_t of = 0; of < r->by.ranks && good; of++)
        *number = fmax(*number, all[of]);
    free(all);
    return good;
}

/* ---- its part of a problem ------------------------------------------------------------------- */

/* Bytes of a row, in which all heads are; its rows one after another. */
static void *rows_of(const bench_rank *r, const void *whole, bool keys, int64_t row)
{
    const attn_parallel_info *info = &r->info;
    char *rows = attn_bench_alloc((keys ? info->keys : info->rows) * row), *to = rows;
    for (int c = 0; c < info->chunks && rows && whole; c++) {
        int64_t begin = (keys ? info->key_begin : info->row_begin)[c], end = (keys ? info->key_end : info->row_end)[c];
        memcpy(to, (const char *)whole + begin * row, (size_t)((end - begin) * row));
        to += (end - begin) * row;
    }
    return rows;
}

static bool take_rows(bench_rank *r, const attn_desc *d, const attn_bench_tensors *t, bool backward)
{
    int64_t size = attn_dtype_size(d->dtype), q = size * d->heads_q * d->dim_qk, o = size * d->heads_q * d->dim_v,
            k = size * d->heads_kv * d->dim_qk, v = size * d->heads_kv * d->dim_v;
    attn_args *a = &r->args;
    *a = (attn_args){ .q = rows_of(r, t->q, false, q),
                      .k = rows_of(r, t->k, true, k),
                      .v = rows_of(r, t->v, true, v),
                      .o = rows_of(r, NULL, false, o) };
    if (!a->q || !a->k || !a->v || !a->o) return false;
    if (!backward) return true;
    a->lse = attn_bench_alloc(r->info.rows * d->heads_q * (int64_t)sizeof *a->lse);
    a->grad_o = rows_of(r, t->grad_o, false, o);
    a->grad_q = rows_of(r, NULL, false, q);
    a->grad_k = rows_of(r, NULL, true, k), a->grad_v = rows_of(r, NULL, true, v);
    return a->lse && a->grad_o && a->grad_q && a->grad_k && a->grad_v;
}

bool bench_rank_begin(bench_rank *r, const attn_desc *desc, const attn_parallel_desc *how, bool backward,
                      const attn_bench_tensors *whole)
{
    size_t most = 0;
    r->predicted = 0;
    for (int i = 0; i <= backward; i++) {
        attn_desc d = *desc;
        d.direction = (attn_direction)i;
        if (attn_parallel_plan_create(&r->plan[i], &d, how, &r->engine))
            return attn_bench_fail("rank %d: %s", (int)r->by.rank, attn_error());
        attn_parallel_plan_get_info(r->plan[i], &r->info);
        r->predicted += r->info.seconds;
        most = r->info.workspace_bytes > most ? r->info.workspace_bytes : most;
    }
    r->workspace_bytes = most;
    r->workspace = attn_bench_alloc((int64_t)most);
    return r->workspace && take_rows(r, desc, whole, backward);
}

void bench_rank_end(bench_rank *r)
{
    void *const all[] = { (void *)(uintptr_t)r->args.q,
                          (void *)(uintptr_t)r->args.k,
                          (void *)(uintptr_t)r->args.v,
                          r->args.o,
                          r->args.lse,
                          (void *)(uintptr_t)r->args.grad_o,
                          r->args.grad_q,
                          r->args.grad_k,
                          r->args.grad_v,
                          r->workspace };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    attn_parallel_plan_destroy(r->plan[0]), attn_parallel_plan_destroy(r->plan[1]);
    r->plan[0] = r->plan[1] = NULL, r->args = (attn_args){ .q = NULL }, r->workspace = NULL;
}

bool bench_rank_run(const bench_rank *r)
{
    for (int i = 0; i < 2 && r->plan[i]; i++)
        if (attn_parallel_run(r->plan[i], &r->args, r->workspace, NULL))
            return attn_bench_fail("rank %d: %s", (int)r->by.rank, attn_error());
    return true;
}

/* ---- what rank 0 says ------------------------------------------------------------------------ */

/* calls: of a run; 0: this rank is not needed for some seconds; -1: it is over. */
typedef struct command {
    int64_t calls;
    double seconds;
} command;

static bool hear(const bench_rank *r, command *c)
{
    return bench_rank_hear(r, c, sizeof *c);
}

/* From the time at which all ranks are there to that at which the last one is done. */
static double run_timed(bench_rank *r, int64_t calls)
{
    double begin = 0;
    if (!bench_rank_most(r, &begin)) return -1;
    r->sent = 0;
    begin = attn_seconds();
    for (int64_t i = 0; i < calls; i++)
        if (!bench_rank_run(r)) return -1;
    double took = (attn_seconds() - begin) / (double)calls;
    r->sent /= (double)calls;
    return bench_rank_most(r, &took) ? took : -1;
}

double bench_rank_lead(void *self, int calls)
{
    bench_rank *r = self;
    return hear(r, &(command){ .calls = calls }) ? run_timed(r, calls) : -1;
}

bool bench_rank_rest(const bench_rank *r, double seconds)
{
    return hear(r, &(command){ .seconds = seconds });
}

bool bench_rank_release(const bench_rank *r)
{
    return hear(r, &(command){ .calls = -1 });
}

bool bench_rank_serve(bench_rank *r)
{
    for (;;) {
        command c = { 0, 0 };
        if (!hear(r, &c)) return false;
        if (c.calls < 0) return true;
        if (c.calls > 0 && run_timed(r, c.calls) < 0) return false;
        double whole = floor(c.seconds);
        nanosleep(&(struct timespec){ (time_t)whole, (long)(1e9 * (c.seconds - whole)) }, NULL);
    }
}
