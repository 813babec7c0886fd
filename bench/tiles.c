/* The suite "tiles": every kernel and every tile, split and segment that may be asked for, one after another in each
 * round, against the planner's own choice. The peer is the fastest of all of them, the choice among them: its time over
 * ours is 1 where nothing was faster. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "bench/bench.h"
#include "cuda/kernel.h"
#include "bench/point.h"
#include "cpu/kernel.h"

enum { CANDIDATES_MOST = 256, TILE_STEP = 48, HOPELESS = 3 };

typedef struct candidate {
    const char *kernel; /* NULL: the planner's choice of everything */
    attn_tiles tiles;
    attn_point point;
    double least;
} candidate;

typedef struct sweep {
    attn_desc desc;
    attn_args args;
    int count;
    candidate list[CANDIDATES_MOST];
} sweep;

/* ---- candidates ---------------------------------------------------------------------------- */

static attn_status run(const sweep *s, candidate *c, double budget)
{
    attn_desc desc = s->desc;
    desc.kernel = c->kernel;
    return attn_point_run(&desc, &c->tiles, &s->args, budget, &c->point);
}

static bool same(const candidate *a, const candidate *b)
{
    const attn_choice *x = &a->point.choice, *y = &b->point.choice;
    return strcmp(a->point.kernel, b->point.kernel) == 0 && x->q_tile == y->q_tile && x->kv_tile == y->kv_tile &&
           x->splits == y->splits && x->split_tiles == y->split_tiles && x->segment_rows == y->segment_rows &&
           x->heads_tile == y->heads_tile;
}

/* Adds it if a plan takes it, no other is the same, and it is not hopeless. */
static void add(sweep *s, const char *kernel, attn_tiles tiles)
{
    candidate *c = &s->list[s->count];
    if (s->count == CANDIDATES_MOST) return;
    *c = (candidate){ .kernel = kernel, .tiles = tiles };
    if (run(s, c, 0)) return;
    for (int i = 0; i < s->count; i++)
        if (same(&s->list[i], c)) return;
    if (s->count > 0 && c->point.choice.seconds > HOPELESS * s->list[0].point.choice.seconds) return;
    s->count++;
}

static void add_cpu(sweep *s, const attn_cpu_kernel *k)
{
    static const int64_t kv_tiles[] = { 16, 32, 64, 128 }, segments[] = { 0, 256, 512, 1024, 2048 };
    int splits = s->desc.threads > 1 ? 8 * s->desc.threads : 1;
    if (k->form == ATTN_PREFILL)
        for (int64_t rows = TILE_STEP; rows <= ATTN_PAIRS_ROWS_MOST; rows += TILE_STEP)
            for (int i = 0; i < (s->desc.flags & ATTN_WINDOW ? 5 : 1); i++)
                add(s, k->name, (attn_tiles){ .rows = rows, .segment_rows = segments[i] });
    if (k->form == ATTN_DECODE)
        for (int i = 0; i < 4; i++)
            for (int n = 1; n <= splits; n *= 2)
                add(s, k->name, (attn_tiles){ .keys = kv_tiles[i], .splits = n });
    if (k->form == ATTN_GRADIENT)
        for (int64_t rows = TILE_STEP; rows <= ATTN_GRADIENT_TILE; rows += TILE_STEP)
            for (int64_t keys = 2 * TILE_STEP; keys <= ATTN_GRADIENT_TILE; keys += 2 * TILE_STEP)
                for (int n = 1; n <= (splits > 1 ? 2 * s->desc.threads : 1); n++)
                    add(s, k->name, (attn_tiles){ .rows = rows, .keys = keys, .splits = n });
}

static void add_cuda(sweep *s, const attn_cuda_kernel *k)
{
    int group = (int)(s->desc.heads_q / s->desc.heads_kv);
    for (int pack = 1; pack <= group; pack += group > 1 ? group - 1 : 1)
        for (int splits = 1; splits <= 64; splits += 1 + splits / 4)
            add(s, k->name, (attn_tiles){ .splits = splits, .pack = pack });
}

static void add_all(sweep *s)
{
    int count;
    add(s, NULL, (attn_tiles){ .splits = 0 });
    if (s->desc.device == ATTN_CUDA) {
        const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
        for (int i = 0; i < count; i++)
            if (kernels[i].form == ATTN_CUDA_FORWARD && kernels[i].dtype == s->desc.dtype) add_cuda(s, &kernels[i]);
        return;
    }
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++)
        add_cpu(s, &kernels[i]);
}

/* ---- the sweep ----------------------------------------------------------------------------- */

/* Every candidate once per round; those that were far slower in the first are left out. */
static attn_status measure(sweep *s, int rounds, double budget)
{
    double best = 0;
    attn_status status = ATTN_OK;
    for (int round = 0; round < rounds && !status; round++)
        for (int i = 0; i < s->count && !status; i++) {
            candidate *c = &s->list[i];
            if (round > 0 && i > 0 && c->least > 1.3 * best) continue;
            status = run(s, c, budget);
            if (round == 0 || c->point.seconds < c->least) c->least = c->point.seconds;
            if (best <= 0 || c->least < best) best = c->least;
        }
    return status;
}

static void fill(const sweep *s, attn_bench_result *r)
{
    const candidate *ours = &s->list[0], *best = ours;
    for (int i = 1; i < s->count; i++)
        if (s->list[i].least < best->least) best = &s->list[i];
    const attn_choice *c = &best->point.choice;
    snprintf(r->kernel, sizeof r->kernel, "%s", ours->point.kernel);
    snprintf(r->peer_form, sizeof r->peer_form, "%dx%d/%d", (int)c->q_tile, (int)c->kv_tile, c->splits);
    r->peer_name = "best-tiles";
    r->splits = ours->point.choice.splits;
    r->flops = ours->point.choice.flops;
    r->predicted_seconds = ours->point.choice.seconds;
    r->predicted_bytes = attn_choice_memory(&ours->point.choice);
    r->subject = (attn_bench_times){ ours->least, ours->least, ours->least };
    r->peer = (attn_bench_times){ best->least, best->least, best->least };
    r->limit = best->least;
    r->peak = r->flops / best->least;
}

bool attn_bench_tiles(const attn_bench_options *options, const attn_bench_case *item, attn_bench_result *result)
{
    attn_bench_tensors tensors;
    sweep *s = calloc(1, sizeof *s);
    *result = (attn_bench_result){ 0 };
    if (!s) return attn_bench_fail("out of memory");
    s->desc = item->desc;
    if (item->pass == ATTN_BENCH_BACKWARD) s->desc.direction = ATTN_BACKWARD;
    attn_status status = attn_point_data(&s->desc, &tensors, &s->args);
    if (!status) {
        add_all(s);
        status = s->count > 0 ? measure(s, (int)options->repeat, (double)options->min_time) : ATTN_UNSUPPORTED;
        if (!status) fill(s, result);
        attn_bench_tensors_free(&tensors);
    }
    free(s);
    return !status || attn_bench_fail("%s", attn_error());
}
