/* The model's caches and its stream, and what must hold. Contract: pool_model.h. */
#include "check/pool_inside.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char message[256];

const char *check_pool_wrong(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    return message;
}

int64_t check_pool_below(check_pool *m, int64_t n)
{
    return m->draw.draw(m->draw.arg, n);
}

/* ---- the stream ------------------------------------------------------------------------------ */

static bool independent(const attn_page_copies *list, bool one_pool)
{
    uint64_t sources = 0, targets = 0;
    for (int64_t i = 0; i < list->count; i++) {
        uint64_t target = (uint64_t)1 << list->pairs[2 * i + 1];
        if (targets & target) return false;
        sources |= (uint64_t)1 << list->pairs[2 * i], targets |= target;
    }
    return !one_pool || (sources & targets) == 0;
}

static void copy_pairs(check_pool *m, int from, int to)
{
    attn_page_copies *list = &m->list[from][to];
    int64_t size = m->desc[0].page_size;
    bool backwards = check_pool_below(m, 2);
    m->entangled |= !independent(list, from == to);
    for (int64_t i = 0; i < list->count; i++) {
        const int32_t *pair = &list->pairs[2 * (backwards ? list->count - 1 - i : i)];
        memcpy(&m->cache[to][pair[1] * size], &m->cache[from][pair[0] * size], sizeof(uint64_t) * (size_t)size);
    }
    list->count = 0;
}

/* What is free holds nothing that anybody may read. */
static void poison(check_pool *m, int where)
{
    int64_t size = m->desc[0].page_size;
    for (int64_t i = 0; i < m->pool[where]->stats.free; i++)
        memset(&m->cache[where][m->pool[where]->free[i] * size], 0xA5, sizeof(uint64_t) * (size_t)size);
}

void check_pool_flush(check_pool *m)
{
    int64_t size = m->desc[0].page_size;
    for (int from = 0; from < 2; from++)
        for (int to = 0; to < 2; to++)
            copy_pairs(m, from, to);
    poison(m, 0), poison(m, 1);
    for (check_pool_seq *s = m->seq; s < m->seq + 2 * CHECK_POOL_SEQUENCES; s++) {
        for (; s->live && s->written < s->length; s->written++)
            m->cache[s->where][s->table[s->written / size] * size + s->written % size] = s->history[s->written];
        s->flies = false;
    }
}

/* What comes next needs the sequence's keys to be there. */
void check_pool_settle(check_pool *m, const check_pool_seq *s)
{
    if (s->flies || s->written < s->length) check_pool_flush(m);
}

/* A list of its own direction is the only one that has pairs. */
attn_page_copies *check_pool_list(check_pool *m, int from, int to)
{
    for (int f = 0; f < 2; f++)
        for (int t = 0; t < 2; t++)
            if ((f != from || t != to) && m->list[f][t].count > 0) check_pool_flush(m);
    return &m->list[from][to];
}

/* ---- what must hold -------------------------------------------------------------------------- */

/* Reads the sequence's table and length; checks them and the caches behind them. */
const char *check_pool_read_back(check_pool *m, check_pool_seq *s)
{
    int64_t size = m->desc[0].page_size;
    int32_t row[CHECK_POOL_WIDTH], length;
    if (attn_pool_tables(m->pool[s->where], &s->handle, 1, row, CHECK_POOL_WIDTH, &length))
        return check_pool_wrong("tables: %s", attn_error());
    if (length != s->length) return check_pool_wrong("the length is %" PRId32 ", not %" PRId64, length, s->length);
    s->pages = (length + size - 1) / size;
    for (int64_t i = 0; i < CHECK_POOL_WIDTH; i++)
        if ((i >= s->dropped && i < s->pages) != (row[i] >= 0))
            return check_pool_wrong("page %" PRId64 " is %" PRId32, i, row[i]);
    memcpy(s->table, row, sizeof row);
    for (int64_t i = s->dropped * size; i < s->written && !s->flies; i++)
        if (m->cache[s->where][row[i / size] * size + i % size] != s->history[i])
            return check_pool_wrong("token %" PRId64 " of %" PRId64 " finds somebody else's keys", i, s->length);
    return NULL;
}

const char *check_pool_all(check_pool *m)
{
    const char *error = m->entangled ? check_pool_wrong("the pairs of a list depend on each other") : NULL;
    for (int where = 0; where < 2 && !error; where++)
        error = check_pool_invariants(m->pool[where]);
    for (check_pool_seq *s = m->seq; s < m->seq + 2 * CHECK_POOL_SEQUENCES && !error; s++)
        if (s->live) error = check_pool_read_back(m, s);
    return error;
}

/* ---- pools ----------------------------------------------------------------------------------- */

static const char *make(check_pool *m, int where)
{
    attn_pool_desc *d = &m->desc[where];
    *d = m->desc[0];
    d->pages = 1 + check_pool_below(m, check_pool_below(m, 2) ? CHECK_POOL_PAGES : 8);
    d->sequences = 1 + check_pool_below(m, CHECK_POOL_SEQUENCES);
    d->width = 1 + check_pool_below(m, CHECK_POOL_WIDTH);
    size_t size = attn_pool_memory(d);
    int64_t shift = check_pool_below(m, 64);
    m->memory[where] = malloc(size + 64);
    if (!m->memory[where]) return check_pool_wrong("no memory for a pool");
    if (attn_pool_create(&m->pool[where], d, (char *)m->memory[where] + shift, size))
        return check_pool_wrong("create: %s", attn_error());
    if (check_pool_below(m, 4) == 0)
        m->pool[where]->hash_mask = (uint64_t)check_pool_below(m, 4); /* nearly all prefixes collide */
    m->clean[where] = true;
    for (int to = 0; to < 2; to++)
        m->list[where][to] = (attn_page_copies){ .pairs = m->pairs[where][to], .room = CHECK_POOL_ROOM };
    return NULL;
}

const char *check_pool_run(check_draw draw, int64_t operations, check_pool_counts *counts)
{
    check_pool *m = calloc(1, sizeof *m);
    if (!m) return check_pool_wrong("no memory for the model");
    m->draw = draw, m->counts = counts;
    m->desc[0].page_size = 1 + check_pool_below(m, CHECK_POOL_PAGE_SIZE);
    if (check_pool_below(m, 4))
        m->desc[0].flags = ATTN_POOL_PREFIX, m->desc[0].seed[0] = (uint64_t)check_pool_below(m, 1000);
    const char *error = make(m, 0);
    if (!error) error = make(m, 1);
    for (int64_t i = 0; i < operations && !error; i++) {
        error = check_pool_step(m);
        counts->operations++;
        for (int where = 0; where < 2; where++) {
            if (m->pool[where]->stats.indexed < m->indexed[where]) m->clean[where] = false;
            m->indexed[where] = m->pool[where]->stats.indexed;
        }
    }
    if (!error) check_pool_flush(m), error = check_pool_all(m);
    for (int where = 0; where < 2; where++) {
        if (m->pool[where]) counts->evicted += m->pool[where]->stats.evicted;
        free(m->memory[where]);
    }
    free(m);
    return error;
}
