/* Continuous batching: many requests on one small GPT (examples/gpt), with a KV cache in pages.
 *
 *     attn_generate MODEL.safetensors PROMPT [REQUESTS [ANSWERS [BYTES [PAGES]]]]
 *
 * A request is the prompt and its number, and has ANSWERS continuations of BYTES bytes. What an engine does, in the
 * order of step():
 *   admit     requests join the batch while there is room; what a prompt shares with published pages is not computed
 *   append    the pool gives slots to the new tokens of each sequence; where it has none, the request goes back to the
 *             queue, and its pages to others
 *   compute   all new tokens of all sequences, prompts in chunks beside single bytes, in one pass of the model
 *   draw      the next byte of each sequence that is complete; the first time, other answers fork from it
 *   publish   full pages may be found by requests to come; those behind the model's window are dropped */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <attn_kv.h>

#include "check/random.h"
#include "device/clock.h"
#include "gpt.h"

enum { BATCH = 8, CHUNK = 64, ROWS = 128, PAGE_SIZE = 16, LENGTH_MOST = 2048, WIDTH = LENGTH_MOST / PAGE_SIZE };

/* ---- requests ------------------------------------------------------------------------------ */

typedef enum request_state { WAITING, RUNNING, DONE } request_state;

/* One answer. */
typedef struct request {
    request_state state;
    int parent;                   /* the request that reads the same prompt first; -1: this one */
    int32_t text[LENGTH_MOST];    /* prompt, and what was drawn */
    int64_t prompt, length, goal; /* tokens: of the prompt, there, wanted */
    int64_t cached;               /* tokens whose keys and values are in pages */
    uint64_t random;
    attn_seq seq; /* RUNNING */
} request;

typedef struct figures {
    int64_t steps, computed, matched, forked, copied, preempted, drawn, peak;
    double waste; /* the share of slots that were empty when most pages were used */
} figures;

typedef struct engine {
    const gpt_run *run;
    attn_pool *pool;
    void *memory, *workspace;
    attn_page_copies copies;
    attn_kv_plan *append, *copy;
    attn_plan *attention;
    float *k_pages, *v_pages;                                 /* (layer, page, slot, head, dim) */
    float *cosines, *sines;                                   /* (position, dim / 2) */
    float *x, *scale, *n, *q, *k, *v, *o, *up, *act, *logits; /* (row, channel) */
    int64_t pages, layer_floats;
    request *list; /* all of them */
    int count;
    request *batch[BATCH];
    bool crowded; /* a request had to give its pages back, and none has ended since */
    int32_t table[BATCH][WIDTH], lens[BATCH], starts[BATCH + 1]; /* of this step */
    figures figures;
} engine;

/* ---- the engine's plans, made once --------------------------------------------------------- */

static void make_plans(engine *e)
{
    const gpt_shape *s = &e->run->shape;
    int64_t dim = s->dim / s->heads;
    attn_kv_desc kv = { .op = ATTN_KV_APPEND,
                        .dtype = ATTN_F32,
                        .flags = ATTN_KV_ROTARY | ATTN_KV_ROTARY_Q,
                        .pages = e->pages,
                        .page_size = PAGE_SIZE,
                        .heads_kv = s->heads,
                        .heads_q = s->heads,
                        .dim_qk = dim,
                        .tokens = ROWS,
                        .batch = BATCH,
                        .table_width = WIDTH,
                        .positions = LENGTH_MOST,
                        .threads = gpt_threads() };
    attn_desc desc = { .dtype = ATTN_F32,
                       .flags = ATTN_PAGED | ATTN_VARLEN | ATTN_LENS_KV | ATTN_CAUSAL | ATTN_WINDOW,
                       .batch = BATCH,
                       .heads_q = s->heads,
                       .len_q = CHUNK,
                       .total_q = ROWS,
                       .len_kv = LENGTH_MOST,
                       .dim_qk = dim,
                       .window_left = e->run->context - 1,
                       .window_right = -1,
                       .pages = e->pages,
                       .page_size = PAGE_SIZE,
                       .table_width = WIDTH,
                       .threads = gpt_threads() };
    gpt_must(attn_kv_plan_create(&e->append, &kv));
    kv.op = ATTN_KV_COPY, kv.flags = 0, kv.pages_from = e->pages, kv.copies = BATCH;
    kv.heads_q = kv.tokens = kv.batch = kv.table_width = kv.positions = 0;
    gpt_must(attn_kv_plan_create(&e->copy, &kv));
    gpt_must(attn_plan_create(&e->attention, &desc));
    e->workspace = gpt_allocate((int64_t)attn_plan_workspace(e->attention) + 1, 1);
}

static void make_rotary(engine *e, int64_t half)
{
    float *turn = gpt_allocate(2 * LENGTH_MOST * half, sizeof *turn);
    gpt_turn_fill(turn, 0, LENGTH_MOST, 2 * half);
    e->cosines = gpt_allocate(LENGTH_MOST * half, sizeof *turn),
    e->sines = gpt_allocate(LENGTH_MOST * half, sizeof *turn);
    for (int64_t p = 0; p < LENGTH_MOST; p++) {
        memcpy(e->cosines + p * half, turn + 2 * p * half, (size_t)half * sizeof *turn);
        memcpy(e->sines + p * half, turn + (2 * p + 1) * half, (size_t)half * sizeof *turn);
    }
    free(turn);
}

static engine *engine_new(const gpt_run *run, int64_t pages)
{
    engine *e = gpt_allocate(1, sizeof *e);
    int64_t d = run->shape.dim;
    *e = (engine){ .run = run, .pages = pages, .layer_floats = pages * PAGE_SIZE * d };
    attn_pool_desc pool = { .pages = pages,
                            .page_size = PAGE_SIZE,
                            .sequences = BATCH,
                            .width = WIDTH,
                            .flags = ATTN_POOL_PREFIX,
                            .seed = { 0x6c61747465, 0x6e74696f6e } }; /* an engine that serves strangers draws it */
    size_t size = attn_pool_memory(&pool);
    e->memory = gpt_allocate((int64_t)size + 1, 1);
    gpt_must(attn_pool_create(&e->pool, &pool, e->memory, size));
    e->copies = (attn_page_copies){ .pairs = gpt_allocate(2 * BATCH, sizeof(int32_t)), .room = BATCH };
    e->k_pages = gpt_allocate(run->shape.layers * e->layer_floats, sizeof(float));
    e->v_pages = gpt_allocate(run->shape.layers * e->layer_floats, sizeof(float));
    float **rows[] = { &e->x, &e->n, &e->q, &e->k, &e->v, &e->o };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        *rows[i] = gpt_allocate(ROWS * d, sizeof(float));
    e->up = gpt_allocate(4 * ROWS * d, sizeof(float)), e->act = gpt_allocate(4 * ROWS * d, sizeof(float));
    e->scale = gpt_allocate(ROWS, sizeof(float)), e->logits = gpt_allocate(ROWS * GPT_BYTES, sizeof(float));
    make_rotary(e, d / run->shape.heads / 2);
    make_plans(e);
    return e;
}

static void engine_free(engine *e)
{
    void *all[] = { e->memory, e->workspace, e->copies.pairs, e->k_pages, e->v_pages, e->cosines,
                    e->sines,  e->x,         e->scale,        e->n,       e->q,       e->k,
                    e->v,      e->o,         e->up,           e->act,     e->logits };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    attn_kv_plan_destroy(e->append), attn_kv_plan_destroy(e->copy), attn_plan_destroy(e->attention);
    free(e);
}

/* ---- a step -------------------------------------------------------------------------------- */

static void leave(engine *e, int place, request_state state)
{
    request *r = e->batch[place];
    gpt_must(attn_seq_free(e->pool, r->seq));
    r->state = state, r->cached = 0;
    e->batch[place] = NULL;
    e->crowded = state == WAITING;
}

static int free_place(const engine *e)
{
    for (int i = 0; i < BATCH; i++)
        if (!e->batch[i]) return i;
    return -1;
}

static int running(const engine *e)
{
    int count = 0;
    for (int i = 0; i < BATCH; i++)
        count += e->batch[i] != NULL;
    return count;
}

/* Whether it waits for its prompt, which another request reads or will read. */
static bool is_early(const engine *e, const request *r)
{
    const request *parent = r->parent < 0 ? NULL : &e->list[r->parent];
    return parent && r->state == WAITING && parent->state != DONE && parent->length == parent->prompt;
}

/* Places that are not kept for answers which will fork from prompts that are being read. */
static int places_left(const engine *e)
{
    int left = BATCH - running(e);
    for (int i = 0; i < e->count; i++)
        left -= is_early(e, &e->list[i]) && e->list[e->list[i].parent].state == RUNNING;
    return left;
}

/* Requests that wait join the batch, with what published pages have of their text. An answer waits until its prompt was
 * read, to fork from it or to find its pages. */
static void admit(engine *e)
{
    for (int i = 0, place; i < e->count && places_left(e) > 0 && (place = free_place(e)) >= 0; i++) {
        request *r = &e->list[i];
        if (r->state != WAITING || is_early(e, r)) continue;
        if (e->crowded && running(e) > 0) return; /* one at a time, until somebody ends */
        gpt_must(attn_seq_create(e->pool, 0, &r->seq));
        gpt_must(attn_seq_match(e->pool, r->seq, r->text, r->length - 1, &r->cached));
        e->figures.matched += r->cached;
        r->state = RUNNING, e->batch[place] = r;
    }
}

/* Slots for the new tokens of each sequence, within this step's rows. Returns these. */
static int32_t append(engine *e)
{
    attn_seq seqs[BATCH] = { { 0 } };
    for (int i = 0; i < BATCH; i++) {
        request *r = e->batch[i];
        int64_t rows = r ? r->length - r->cached : 0, room = ROWS - e->starts[i] - (BATCH - 1 - i);
        rows = rows < CHUNK ? rows : CHUNK, rows = rows < room ? rows : room;
        attn_status status = r ? attn_seq_append(e->pool, r->seq, r->text + r->cached, rows, &e->copies) : ATTN_OK;
        if (status == ATTN_POOL_FULL) { /* its turn comes again, when others have ended */
            leave(e, i, WAITING);
            e->figures.preempted++, rows = 0;
        } else {
            gpt_must(status);
        }
        if (e->batch[i]) seqs[i] = e->batch[i]->seq;
        e->starts[i + 1] = e->starts[i] + (int32_t)rows;
    }
    e->figures.copied += e->copies.count, e->figures.computed += e->starts[BATCH];
    gpt_must(attn_pool_tables(e->pool, seqs, BATCH, e->table[0], WIDTH, e->lens));
    return e->starts[BATCH];
}

/* Of one layer: pages that are to be copied, the new keys and values, and attention over all of them. */
static void attend(engine *e, int64_t layer)
{
    float *k_pages = e->k_pages + layer * e->layer_floats, *v_pages = e->v_pages + layer * e->layer_floats;
    attn_kv_args copy = { .k_pages = k_pages,
                          .v_pages = v_pages,
                          .k_from = k_pages,
                          .v_from = v_pages,
                          .pairs = e->copies.pairs,
                          .count = e->copies.count };
    attn_kv_args append = { .k = e->k,
                            .v = e->v,
                            .q = e->q,
                            .q_out = e->q,
                            .k_pages = k_pages,
                            .v_pages = v_pages,
                            .cu_lens = e->starts,
                            .lens_kv = e->lens,
                            .page_table = e->table[0],
                            .cos = e->cosines,
                            .sin = e->sines };
    attn_args args = { .q = e->q,
                       .k = k_pages,
                       .v = v_pages,
                       .o = e->o,
                       .cu_lens_q = e->starts,
                       .lens_kv = e->lens,
                       .page_table = e->table[0] };
    gpt_must(attn_kv_run(e->copy, &copy, NULL));
    gpt_must(attn_kv_run(e->append, &append, NULL));
    gpt_must(attn_run(e->attention, &args, e->workspace, NULL));
}

/* The model of gpt.h on this step's rows; their logits. */
static void compute(engine *e)
{
    const gpt_weights *weights = &e->run->weights;
    int64_t rows = e->starts[BATCH], d = e->run->shape.dim;
    uint8_t bytes[ROWS];
    for (int i = 0; i < BATCH; i++)
        for (int32_t r = e->starts[i]; r < e->starts[i + 1]; r++)
            bytes[r] = (uint8_t)e->batch[i]->text[e->batch[i]->cached + r - e->starts[i]];
    gpt_embed(e->x, weights->embed, bytes, rows, d);
    for (int64_t l = 0; l < e->run->shape.layers; l++) {
        const gpt_layer *w = &weights->layer[l];
        gpt_norm(e->n, e->scale, e->x, w->norm1, rows, d);
        gpt_linear(e->q, e->n, w->query, rows, d, d, false);
        gpt_linear(e->k, e->n, w->key, rows, d, d, false);
        gpt_linear(e->v, e->n, w->value, rows, d, d, false);
        attend(e, l);
        gpt_linear(e->x, e->o, w->proj, rows, d, d, true);
        gpt_norm(e->n, e->scale, e->x, w->norm2, rows, d);
        gpt_linear(e->up, e->n, w->up, rows, d, 4 * d, false);
        gpt_relu2(e->act, e->up, 4 * rows * d);
        gpt_linear(e->x, e->act, w->down, rows, 4 * d, d, true);
    }
    e->copies.count = 0;
    gpt_norm(e->n, e->scale, e->x, weights->norm, rows, d);
    gpt_linear(e->logits, e->n, weights->head, rows, d, GPT_BYTES, false);
}

static int32_t draw(const float *logits, uint64_t *random)
{
    float p[GPT_BYTES + 16];
    memcpy(p, logits, GPT_BYTES * sizeof *p);
    double at = (double)gpt_softmax(p, GPT_BYTES, 1.0f) * (double)(check_bits(random) >> 11) * 0x1p-53;
    int byte = 0;
    while (byte < GPT_BYTES - 1 && (at -= (double)p[byte]) >= 0.0)
        byte++;
    return byte;
}

/* Answers that wait for this prompt, which has just been read, fork from it while the batch has room. */
static void fork_answers(engine *e, const request *from, const float *logits)
{
    for (int i = 0, place; i < e->count && !e->crowded && (place = free_place(e)) >= 0; i++) {
        request *r = &e->list[i];
        if (r->state != WAITING || r->parent != from - e->list || r->length > r->prompt) continue;
        gpt_must(attn_seq_fork(e->pool, from->seq, &r->seq));
        r->state = RUNNING, r->cached = from->cached;
        r->text[r->length++] = draw(logits, &r->random);
        e->batch[place] = r;
        e->figures.forked++, e->figures.drawn++;
    }
}

/* After the rows were computed: what they say of the next bytes, and of the pool. */
static void finish(engine *e)
{
    attn_pool_stats stats;
    int32_t rows[BATCH]; /* before forks join */
    for (int i = 0; i < BATCH; i++)
        rows[i] = e->starts[i + 1] - e->starts[i];
    for (int i = 0; i < BATCH; i++) {
        request *r = e->batch[i];
        if (!r || rows[i] == 0) continue;
        r->cached += rows[i];
        gpt_must(attn_seq_publish(e->pool, r->seq));
        if (r->cached == r->length) {
            const float *logits = e->logits + (int64_t)(e->starts[i + 1] - 1) * GPT_BYTES;
            if (r->length == r->prompt) fork_answers(e, r, logits);
            r->text[r->length++] = draw(logits, &r->random);
            e->figures.drawn++;
        }
        int64_t behind = r->cached - e->run->context + 1; /* tokens that no row will see again */
        if (behind > 0) gpt_must(attn_seq_drop(e->pool, r->seq, behind));
    }
    gpt_must(attn_pool_get_stats(e->pool, &stats));
    if (stats.used > e->figures.peak) {
        e->figures.peak = stats.used;
        e->figures.waste = (double)stats.waste / (double)(stats.used * PAGE_SIZE);
    }
    for (int i = 0; i < BATCH; i++)
        if (e->batch[i] && e->batch[i]->length >= e->batch[i]->goal) leave(e, i, DONE);
}

/* False: all are done, or, with a message, the pool is too small for one of them. */
static bool step(engine *e)
{
    admit(e);
    int before = running(e);
    if (append(e) == 0) return before > 1; /* all gave their pages back: one after another, then */
    compute(e);
    finish(e);
    e->figures.steps++;
    return true;
}

/* ---- the program --------------------------------------------------------------------------- */

static int64_t number(int argc, char **argv, int at, int64_t otherwise)
{
    return argc > at ? strtoll(argv[at], NULL, 10) : otherwise;
}

static void make_requests(engine *e, const char *prompt, int64_t requests, int64_t answers, int64_t bytes)
{
    e->count = (int)(requests * answers);
    e->list = gpt_allocate(e->count, sizeof *e->list);
    for (int i = 0; i < e->count; i++) {
        request *r = &e->list[i];
        char text[LENGTH_MOST];
        int first = i - i % (int)answers,
            length = snprintf(text, sizeof text, "%s %d", prompt, first / (int)answers + 1);
        *r = (request){ .parent = i == first ? -1 : first,
                        .prompt = length,
                        .length = length,
                        .goal = length + bytes,
                        .random = (uint64_t)i + 1 };
        for (int t = 0; t < length; t++)
            r->text[t] = (unsigned char)text[t];
    }
}

static void report(const engine *e, double seconds)
{
    const figures *f = &e->figures;
    for (int i = 0; i < e->count; i++) {
        const request *r = &e->list[i];
        printf("%2d  ", i + 1);
        for (int64_t t = r->prompt; t < r->length; t++)
            putchar(r->text[t] >= ' ' && r->text[t] < 127 ? r->text[t] : '_');
        putchar('\n');
    }
    printf("\n%lld bytes written in %.2f s: %.0f a second, in %lld steps\n", (long long)f->drawn, seconds,
           (double)f->drawn / seconds, (long long)f->steps);
    printf("%lld tokens computed, %lld found in published pages, %lld forks, %lld pages copied, %lld times preempted\n",
           (long long)f->computed, (long long)f->matched, (long long)f->forked, (long long)f->copied,
           (long long)f->preempted);
    printf("%lld of %lld pages used at most, of their slots %.1f %% empty then\n", (long long)f->peak,
           (long long)e->pages, 100 * f->waste);
}

int main(int argc, char **argv)
{
    gpt_run run;
    int64_t requests = number(argc, argv, 3, 8), answers = number(argc, argv, 4, 2), bytes = number(argc, argv, 5, 200);
    int64_t pages = number(argc, argv, 6, 1024);
    if (argc < 3 || argc > 7 || requests < 1 || answers < 1 || requests * answers > 4096 || bytes < 1 || pages < 1 ||
        (int64_t)strlen(argv[2]) + 8 + bytes > LENGTH_MOST) {
        fprintf(stderr,
                "usage: attn_generate MODEL.safetensors PROMPT [REQUESTS [ANSWERS [BYTES [PAGES]]]]\n"
                "prompt and bytes: at most %d; requests times answers: at most 4096\n",
                LENGTH_MOST - 8);
        return 2;
    }
    gpt_threads_set(0);
    gpt_must(gpt_load(&run, argv[1]));
    engine *e = engine_new(&run, pages);
    make_requests(e, argv[2], requests, answers, bytes);
    double start = attn_seconds();
    while (step(e))
        ;
    int left = 0;
    for (int i = 0; i < e->count; i++)
        left += e->list[i].state != DONE;
    if (left)
        fprintf(stderr, "attn_generate: %d requests are left: %lld pages are too few\n", left, (long long)pages);
    else
        report(e, attn_seconds() - start);
    free(e->list);
    engine_free(e);
    gpt_run_free(&run);
    return left ? 1 : 0;
}
