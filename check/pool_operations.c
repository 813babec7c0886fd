/* What is drawn, what the model makes of it, and what the pool must answer. Contract: pool_inside.h. */
#include "check/pool_inside.h"

#include <inttypes.h>

/* ---- what the model knows -------------------------------------------------------------------- */

static uint64_t bits_of(const check_pool_seq *s)
{
    uint64_t bits = 0;
    for (int64_t i = s->dropped; i < s->pages; i++)
        bits |= (uint64_t)1 << s->table[i];
    return bits;
}

/* The pages that sequences of a pool hold, and those that more than one holds. */
static uint64_t used_pages(const check_pool *m, int where, uint64_t *shared)
{
    uint64_t used = 0;
    *shared = 0;
    for (const check_pool_seq *s = m->seq; s < m->seq + 2 * CHECK_POOL_SEQUENCES; s++) {
        if (!s->live || s->where != where) continue;
        *shared |= used & bits_of(s);
        used |= bits_of(s);
    }
    return used;
}

static int64_t count_bits(uint64_t bits)
{
    return __builtin_popcountll(bits);
}

/* Pages that the model has left to give. */
static int64_t room(const check_pool *m, int where, uint64_t *shared)
{
    return m->desc[where].pages - count_bits(used_pages(m, where, shared));
}

/* ---- operations ------------------------------------------------------------------------------ */

static check_pool_seq *any_live(check_pool *m)
{
    int64_t start = check_pool_below(m, 2 * CHECK_POOL_SEQUENCES);
    for (int64_t i = 0; i < 2 * CHECK_POOL_SEQUENCES; i++) {
        check_pool_seq *s = &m->seq[(start + i) % (2 * CHECK_POOL_SEQUENCES)];
        if (s->live) return s;
    }
    return NULL;
}

static check_pool_seq *any_dead(check_pool *m)
{
    for (check_pool_seq *s = m->seq; s < m->seq + 2 * CHECK_POOL_SEQUENCES; s++)
        if (!s->live) return s;
    return NULL;
}

static int64_t live_in(const check_pool *m, int where)
{
    int64_t count = 0;
    for (const check_pool_seq *s = m->seq; s < m->seq + 2 * CHECK_POOL_SEQUENCES; s++)
        count += s->live && s->where == where;
    return count;
}

static void write_token(check_pool_seq *s, int64_t at, int32_t token)
{
    uint64_t before = at > 0 ? s->history[at - 1] : s->salt * 0x9E3779B97F4A7C15u + 1;
    s->tokens[at] = token;
    s->history[at] = (before ^ (before >> 29)) * 0xBF58476D1CE4E5B9u + (uint64_t)token + 1;
}

/* The length of the longest prefix of of->tokens[0, count) that must be found: a live sequence of the pool has
 * published it, and holds all of its pages still (none was dropped), or nothing has left the index. */
static int64_t published_prefix(const check_pool *m, const check_pool_seq *of, int64_t count)
{
    int64_t size = m->desc[0].page_size, longest = 0;
    for (const check_pool_seq *s = m->seq; s < m->seq + 2 * CHECK_POOL_SEQUENCES; s++) {
        if (!s->live || s->where != of->where || s->forgotten || (s->dropped > 0 && !m->clean[s->where])) continue;
        for (int64_t n = size; n <= count && n <= s->published; n += size)
            if (s->history[n - 1] == of->history[n - 1] && n > longest) longest = n;
    }
    return longest;
}

/* What a new sequence looks for: tokens that are drawn or, as often, those of another sequence. */
static int64_t draw_prompt(check_pool *m, check_pool_seq *s)
{
    const check_pool_seq *like = check_pool_below(m, 2) ? any_live(m) : NULL;
    int64_t count = check_pool_below(m, CHECK_POOL_TOKENS + 1);
    for (int64_t i = 0; i < count; i++)
        write_token(s, i, like && i < like->length ? like->tokens[i] : (int32_t)check_pool_below(m, 8) / 7);
    return count;
}

static const char *match(check_pool *m, check_pool_seq *s)
{
    int64_t count = draw_prompt(m, s), got = -1, size = m->desc[0].page_size;
    if (count > m->desc[0].width * size) count = m->desc[0].width * size;
    int64_t want = published_prefix(m, s, count);
    if (attn_seq_match(m->pool[s->where], s->handle, s->tokens, count, &got))
        return check_pool_wrong("match: %s", attn_error());
    if (got % size != 0 || got > count || got < 0)
        return check_pool_wrong("match: %" PRId64 " of %" PRId64, got, count);
    if (got < want)
        return check_pool_wrong("match: %" PRId64 " tokens, although %" PRId64 " were published", got, want);
    s->length = s->written = s->published = got;
    m->counts->matched += got > 0, m->counts->found_whole += got > 0 && got == want;
    return check_pool_read_back(m, s);
}

static const char *create(check_pool *m)
{
    check_pool_seq *s = any_dead(m);
    int where = check_pool_below(m, 4) == 0;
    attn_seq handle;
    uint64_t salt = check_pool_prefix(m) ? (uint64_t)check_pool_below(m, 2) : 0;
    attn_status status = attn_seq_create(m->pool[where], salt, &handle);
    bool full = live_in(m, where) == m->desc[where].sequences;
    if (status != (full ? ATTN_POOL_FULL : ATTN_OK)) return check_pool_wrong("create: %s", attn_status_name(status));
    if (full) return NULL;
    *s = (check_pool_seq){ .live = true, .where = where, .handle = handle, .salt = salt };
    return check_pool_prefix(m) && check_pool_below(m, 4) ? match(m, s) : NULL;
}

/* Every page that nobody holds is part of the list. */
static bool all_listed(const check_pool *m, int where, uint64_t used)
{
    const attn_page_copies *list = &m->list[where][where];
    uint64_t listed = used;
    for (int64_t i = 0; i < 2 * list->count; i++)
        listed |= (uint64_t)1 << list->pairs[i];
    return listed == (((uint64_t)1 << m->desc[where].pages) - 1);
}

static const char *append(check_pool *m, check_pool_seq *s)
{
    int64_t size = m->desc[0].page_size, most = m->desc[s->where].width * size - s->length;
    int64_t count = check_pool_below(m, 3) ? check_pool_below(m, 3) : check_pool_below(m, CHECK_POOL_TOKENS);
    int32_t tokens[CHECK_POOL_TOKENS];
    uint64_t shared, used = used_pages(m, s->where, &shared);
    attn_page_copies *list = check_pool_list(m, s->where, s->where);
    bool copy = count > 0 && s->length % size != 0 && shared >> s->table[s->pages - 1] & 1;
    int64_t need = (s->length + count + size - 1) / size - s->pages + copy;
    int64_t have = m->desc[s->where].pages - count_bits(used), before = list->count;
    for (int64_t i = 0; i < count; i++)
        tokens[i] = (int32_t)check_pool_below(m, 8) / 7;
    attn_status status =
        attn_seq_append(m->pool[s->where], s->handle, check_pool_prefix(m) ? tokens : NULL, count, list);
    attn_status want = count > most                        ? ATTN_INVALID
                       : count == 0                        ? ATTN_OK
                       : need > have                       ? ATTN_POOL_FULL
                       : copy && before == CHECK_POOL_ROOM ? ATTN_INVALID
                                                           : ATTN_OK;
    if (status == ATTN_POOL_FULL && want == ATTN_OK && copy && all_listed(m, s->where, used)) want = ATTN_POOL_FULL;
    if (status != want)
        return check_pool_wrong("append of %" PRId64 ": %s, not %s: %s", count, attn_status_name(status),
                                attn_status_name(want), attn_error());
    m->counts->full += status == ATTN_POOL_FULL;
    if (list->count != before + (copy && !status))
        return check_pool_wrong("append: %" PRId64 " pairs", list->count - before);
    if (before == CHECK_POOL_ROOM && status) check_pool_flush(m);
    if (status) return check_pool_read_back(m, s);
    m->counts->copied += copy;
    for (int64_t i = 0; i < count; i++)
        write_token(s, s->length + i, tokens[i]);
    s->length += count;
    s->flies |= copy;
    return check_pool_read_back(m, s);
}

static const char *fork_one(check_pool *m, check_pool_seq *s)
{
    check_pool_seq *made = any_dead(m);
    check_pool_settle(m, s);
    attn_seq handle;
    attn_status status = attn_seq_fork(m->pool[s->where], s->handle, &handle);
    bool full = live_in(m, s->where) == m->desc[s->where].sequences;
    if (status != (full ? ATTN_POOL_FULL : ATTN_OK)) return check_pool_wrong("fork: %s", attn_status_name(status));
    if (full) return NULL;
    *made = *s;
    made->handle = handle;
    m->counts->shared += s->pages > s->dropped;
    return check_pool_read_back(m, made);
}

static const char *truncate_one(check_pool *m, check_pool_seq *s)
{
    int64_t size = m->desc[0].page_size,
            length = check_pool_below(m, 2) ? s->length - check_pool_below(m, 3) : check_pool_below(m, s->length + 2);
    attn_status status = attn_seq_truncate(m->pool[s->where], s->handle, length);
    bool bad = length < s->dropped * size || length > s->length;
    if (status != (bad ? ATTN_INVALID : ATTN_OK)) return check_pool_wrong("truncate: %s", attn_status_name(status));
    if (bad) return check_pool_read_back(m, s);
    s->length = length;
    if (s->written > length) s->written = length;
    if (s->published > length / size * size) s->published = length / size * size;
    return check_pool_read_back(m, s);
}

static const char *drop(check_pool *m, check_pool_seq *s)
{
    int64_t size = m->desc[0].page_size, tokens = check_pool_below(m, s->length + 2);
    attn_status status = attn_seq_drop(m->pool[s->where], s->handle, tokens);
    if (status != (tokens > s->length ? ATTN_INVALID : ATTN_OK))
        return check_pool_wrong("drop: %s", attn_status_name(status));
    if (!status && tokens / size > s->dropped) {
        s->dropped = tokens / size, m->counts->dropped++;
        if (s->written < s->dropped * size) s->written = s->dropped * size;
    }
    return check_pool_read_back(m, s);
}

static const char *publish(check_pool *m, check_pool_seq *s)
{
    int64_t size = m->desc[0].page_size;
    check_pool_settle(m, s);
    attn_status status = attn_seq_publish(m->pool[s->where], s->handle);
    if (status != (check_pool_prefix(m) ? ATTN_OK : ATTN_INVALID))
        return check_pool_wrong("publish: %s", attn_status_name(status));
    if (!status && s->published >= s->dropped * size) s->published = s->length / size * size;
    return NULL;
}

static const char *move(check_pool *m, check_pool_seq *s)
{
    int from = s->where, to = !from;
    uint64_t shared;
    check_pool_settle(m, s);
    attn_page_copies *list = check_pool_list(m, from, to);
    int64_t need = s->pages - s->dropped, have = room(m, to, &shared);
    bool listed = list->count > 0;
    if (need > list->room - list->count) check_pool_flush(m), listed = false;
    bool full = need > have || live_in(m, to) == m->desc[to].sequences;
    attn_seq handle, old = s->handle;
    attn_status status = attn_seq_move(m->pool[from], old, m->pool[to], &handle, list);
    if (status == ATTN_POOL_FULL && listed) return NULL; /* pages of the list may be what is lacking */
    bool wide = s->pages > m->desc[to].width;
    if (status != (wide ? ATTN_INVALID : full ? ATTN_POOL_FULL : ATTN_OK))
        return check_pool_wrong("move: %s: %s", attn_status_name(status), attn_error());
    if (status) return check_pool_read_back(m, s);
    m->counts->moved += need > 0;
    s->where = to, s->handle = handle, s->published = 0, s->forgotten = false;
    m->stale = old;
    if (attn_seq_length(m->pool[from], old) != -1) return check_pool_wrong("move: the old handle lives");
    s->flies = need > 0;
    return check_pool_read_back(m, s);
}

static const char *free_one(check_pool *m, check_pool_seq *s)
{
    if (attn_seq_free(m->pool[s->where], s->handle)) return check_pool_wrong("free: %s", attn_error());
    if (attn_seq_free(m->pool[s->where], s->handle) != ATTN_INVALID) return check_pool_wrong("free: twice");
    s->live = false;
    return NULL;
}

static const char *forget(check_pool *m)
{
    int where = (int)check_pool_below(m, 2);
    check_pool_flush(m);
    if (attn_pool_forget(m->pool[where])) return check_pool_wrong("forget: %s", attn_error());
    for (check_pool_seq *s = m->seq; s < m->seq + 2 * CHECK_POOL_SEQUENCES; s++)
        s->forgotten |= s->live && s->where == where;
    return m->pool[where]->stats.cached ? check_pool_wrong("forget: pages are cached") : NULL;
}

const char *check_pool_step(check_pool *m)
{
    static const char *(*const on_live[])(check_pool *,
                                          check_pool_seq *) = { append,  append,       append,   publish,
                                                                publish, truncate_one, fork_one, free_one };
    int64_t what = check_pool_below(m, 64);
    check_pool_seq *s = any_live(m);
    if (what == 0) return check_pool_below(m, 4) ? NULL : forget(m);
    if (what == 1) return check_pool_flush(m), check_pool_all(m);
    if (!s || what < 14) return create(m);
    if (what == 14) return drop(m, s);
    if (what < 17) return move(m, s);
    return on_live[what % 8](m, s);
}
