/* A KV cache in pages: sequences that begin alike share pages, a fork writes into copies. A pool says whose they are; K
 * and V of the new tokens are appended where its tables say, and attention reads them where they lie. */
#include "guide.h"

#include <attn_kv.h>

enum { PAGES = 32, PAGE_SIZE = 16, WIDTH = 8, BATCH = 3, HEADS_Q = 4, HEADS_KV = 2, DIM = 32, PROMPT = 40, STEPS = 10 };
enum { CAPACITY = WIDTH * PAGE_SIZE, ROW = HEADS_KV * DIM, TOKENS = 2 * PROMPT };

typedef struct engine {
    attn_pool *pool;
    attn_page_copies copies;
    attn_kv_plan *append, *copy;
    attn_plan *attention;
    float *k_pages, *v_pages, *q, *o;
    int32_t table[BATCH][WIDTH], lens[BATCH];
    void *memory, *workspace; /* of the pool, of attention */
} engine;

/* What a model would make of a token: its query, key and value, here of the token and its position alone. */
static void project(int32_t token, int64_t position, uint32_t which, int count, float *row)
{
    float *made = random_floats(count, (uint32_t)(token * 4099 + position * 3 + which));
    memcpy(row, made, (size_t)count * sizeof *row);
    free(made);
}

/* ---- plans, made once ---------------------------------------------------------------------- */

static void make_pool(engine *e)
{
    attn_pool_desc desc = { .pages = PAGES,
                            .page_size = PAGE_SIZE,
                            .sequences = BATCH,
                            .width = WIDTH,
                            .flags = ATTN_POOL_PREFIX,
                            .seed = { 0x243f6a88,
                                      0x85a308d3 } }; /* random and secret in a program that serves others */
    size_t size = attn_pool_memory(&desc);
    e->memory = take(size);
    must(attn_pool_create(&e->pool, &desc, e->memory, size));
    e->copies = (attn_page_copies){ .pairs = take(2 * BATCH * sizeof(int32_t)), .room = BATCH };
}

static void make_plans(engine *e)
{
    attn_kv_desc desc = { .op = ATTN_KV_APPEND,
                          .dtype = ATTN_F32,
                          .pages = PAGES,
                          .page_size = PAGE_SIZE,
                          .heads_kv = HEADS_KV,
                          .dim_qk = DIM,
                          .tokens = TOKENS,
                          .batch = BATCH,
                          .table_width = WIDTH };
    must(attn_kv_plan_create(&e->append, &desc));
    desc.op = ATTN_KV_COPY, desc.tokens = desc.batch = desc.table_width = 0;
    desc.pages_from = PAGES, desc.copies = BATCH;
    must(attn_kv_plan_create(&e->copy, &desc));

    attn_desc attention = { .dtype = ATTN_F32,
                            .flags = ATTN_PAGED | ATTN_LENS_KV,
                            .batch = BATCH,
                            .heads_q = HEADS_Q,
                            .heads_kv = HEADS_KV,
                            .len_q = 1,
                            .len_kv = CAPACITY,
                            .dim_qk = DIM,
                            .pages = PAGES,
                            .page_size = PAGE_SIZE,
                            .table_width = WIDTH };
    must(attn_plan_create(&e->attention, &attention));
    e->workspace = take(attn_plan_workspace(e->attention));
    e->k_pages = take(PAGES * PAGE_SIZE * ROW * sizeof(float));
    e->v_pages = take(PAGES * PAGE_SIZE * ROW * sizeof(float));
    e->q = take(BATCH * HEADS_Q * DIM * sizeof(float)), e->o = take(BATCH * HEADS_Q * DIM * sizeof(float));
}

static void finish(engine *e)
{
    attn_kv_plan_destroy(e->append), attn_kv_plan_destroy(e->copy);
    attn_plan_destroy(e->attention);
    free(e->memory), free(e->workspace), free(e->copies.pairs), free(e->k_pages), free(e->v_pages);
    free(e->q), free(e->o);
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* Appends new tokens, count[i] to sequence i: first in the pool, then what it asks for. */
static void append(engine *e, const attn_seq *seqs, const int32_t *const *tokens, const int *count)
{
    float k[TOKENS][ROW], v[TOKENS][ROW];
    int32_t starts[BATCH + 1] = { 0 };
    for (int i = 0; i < BATCH; i++) {
        int64_t length = seqs[i].generation ? attn_seq_length(e->pool, seqs[i]) : 0;
        for (int t = 0; t < count[i]; t++) {
            project(tokens[i][t], length + t, 1, ROW, k[starts[i] + t]);
            project(tokens[i][t], length + t, 2, ROW, v[starts[i] + t]);
        }
        starts[i + 1] = starts[i] + count[i];
    }

    for (int i = 0; i < BATCH; i++)
        if (count[i] > 0) must(attn_seq_append(e->pool, seqs[i], tokens[i], count[i], &e->copies));
    must(attn_pool_tables(e->pool, seqs, BATCH, e->table[0], WIDTH, e->lens));

    attn_kv_args args = { .k_pages = e->k_pages, .v_pages = e->v_pages, .k_from = e->k_pages, .v_from = e->v_pages };
    args.pairs = e->copies.pairs, args.count = e->copies.count;
    must(attn_kv_run(e->copy, &args, NULL)); /* pages that a fork writes into */
    e->copies.count = 0;
    args = (attn_kv_args){ .k = k, .v = v, .k_pages = e->k_pages, .v_pages = e->v_pages };
    args.cu_lens = starts, args.lens_kv = e->lens, args.page_table = e->table[0];
    must(attn_kv_run(e->append, &args, NULL));
}

/* One row of each sequence, that of its last token, over all of its keys. */
static void attend(const engine *e)
{
    attn_args args = { .q = e->q, .k = e->k_pages, .v = e->v_pages, .o = e->o };
    args.lens_kv = e->lens, args.page_table = e->table[0];
    must(attn_run(e->attention, &args, e->workspace, NULL));
}

/* The same from the tokens alone, without pages. */
static double difference_of(const engine *e, int i, const int32_t *tokens, int64_t length)
{
    static float k[CAPACITY][ROW], v[CAPACITY][ROW];
    double most = 0, simple[DIM];
    for (int64_t t = 0; t < length; t++)
        project(tokens[t], t, 1, ROW, k[t]), project(tokens[t], t, 2, ROW, v[t]);
    for (int h = 0; h < HEADS_Q; h++) {
        int group = h / (HEADS_Q / HEADS_KV) * DIM;
        const float *q = e->q + (i * HEADS_Q + h) * DIM;
        simple_row(q, k[0] + group, v[0] + group, 0, length, ROW, DIM, NULL, -INFINITY, simple);
        most = fmax(most, row_difference(e->o + (i * HEADS_Q + h) * DIM, simple, DIM));
    }
    return most;
}

int main(void)
{
    engine e = { 0 };
    int32_t text[BATCH][PROMPT + STEPS];
    make_pool(&e), make_plans(&e);
    for (int i = 0; i < BATCH; i++)
        for (int t = 0; t < PROMPT + STEPS; t++)
            text[i][t] = t < PROMPT ? t * t % 97 : 100 * (i + 1) + t; /* one prompt, three answers */

    attn_seq seqs[BATCH] = { { 0 } }; /* zeros: a row that pads the batch */
    const int32_t *next[BATCH] = { text[0] };
    int64_t matched;
    must(attn_seq_create(e.pool, 0, &seqs[0]));
    append(&e, seqs, next, (int[BATCH]){ PROMPT });
    must(attn_seq_publish(e.pool, seqs[0]));

    must(attn_seq_fork(e.pool, seqs[0], &seqs[1])); /* all pages are shared */
    must(attn_seq_create(e.pool, 0, &seqs[2]));     /* somebody else asks the same */
    must(attn_seq_match(e.pool, seqs[2], text[2], PROMPT - 1, &matched));
    next[2] = text[2] + matched;
    append(&e, seqs, next, (int[BATCH]){ 0, 0, PROMPT - (int)matched });

    double difference = 0;
    for (int step = 0; step < STEPS; step++) {
        int64_t length = PROMPT + step + 1;
        for (int i = 0; i < BATCH; i++) {
            next[i] = &text[i][length - 1];
            project(*next[i], length - 1, 0, HEADS_Q * DIM, e.q + i * HEADS_Q * DIM);
        }
        append(&e, seqs, next, (int[BATCH]){ 1, 1, 1 });
        attend(&e);
        for (int i = 0; i < BATCH; i++)
            difference = fmax(difference, difference_of(&e, i, text[i], length));
    }
    attn_pool_stats stats;
    must(attn_pool_get_stats(e.pool, &stats));
    printf("%d tokens matched; %d tokens in %d pages, of which %d are shared\n", (int)matched, (int)stats.tokens,
           (int)stats.used, (int)stats.shared);
    finish(&e);
    return report("a cache in pages", difference, 1e-5);
}
