/* The levels of a batch: which pages sequences next to each other have in common. Contract: attn_kv.h.
 *
 * Sequences that have the same page have the same pages before it: a fork begins with all of them, and so does what the
 * prefix index found. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "kv/pool.h"

/* A sequence of the batch: its pages, and how many of them may be shared: full ones before the rows' own tokens. */
typedef struct member {
    const int32_t *page;
    int64_t length, pages, most;
} member;

typedef struct batch {
    const attn_pool *pool;
    const attn_seq *seqs;
    const int32_t *cu_lens_q;
    int64_t count, width; /* sequences; most pages of one */
    int64_t least;        /* pages that a group has in common at least */
    int32_t *shared;      /* pages of each sequence that are in levels already */
} batch;

static attn_status open_member(const batch *a, int64_t i, member *m)
{
    attn_pool_sequence *s;
    *m = (member){ NULL, 0, 0, 0 };
    attn_status status = attn_pool_open_row(a->pool, a->seqs, i, a->width, &s);
    if (status || !s) return status;
    int64_t rows = (int64_t)a->cu_lens_q[i + 1] - a->cu_lens_q[i];
    *m = (member){ attn_pool_row(a->pool, s), s->length, s->pages, (s->length - rows) / a->pool->desc.page_size };
    if (rows > s->length)
        return attn_fail(ATTN_INVALID,
                         "cu_lens_q[%" PRId64 "] to the next: %" PRId64 " rows, but the sequence has %" PRId64
                         " tokens",
                         i, rows, s->length);
    return ATTN_OK;
}

/* The member of a handle that was opened before. */
static member member_at(const batch *a, int64_t i)
{
    member m;
    (void)open_member(a, i, &m);
    return m;
}

static attn_status check(const batch *a, const attn_pool_level *level, int32_t levels)
{
    if (!a->pool || !level) return attn_fail(ATTN_INVALID, "%s is NULL", a->pool ? "level" : "pool");
    if (levels < 1 || levels > ATTN_CASCADE_LEVELS)
        return attn_fail(ATTN_INVALID, "levels = %" PRId32 " is not in 1 to %d", levels, ATTN_CASCADE_LEVELS);
    if (a->count < 0 || a->width < 1)
        return attn_fail(ATTN_INVALID, "count = %" PRId64 " is below 0 or width = %" PRId64 " below 1", a->count,
                         a->width);
    if (!a->cu_lens_q || (a->count > 0 && !a->seqs))
        return attn_fail(ATTN_INVALID, "%s is NULL", a->cu_lens_q ? "seqs" : "cu_lens_q");
    for (int n = 0; n <= levels; n++)
        if (!level[n].cu_lens_q || (a->count > 0 && (!level[n].lens_kv || !level[n].table)))
            return attn_fail(ATTN_INVALID, "level[%d] has no %s: it is NULL", n,
                             !level[n].cu_lens_q ? "cu_lens_q"
                             : level[n].lens_kv  ? "table"
                                                 : "lens_kv");
    if (a->cu_lens_q[0] != 0) return attn_fail(ATTN_INVALID, "cu_lens_q[0] = %" PRId32 " is not 0", a->cu_lens_q[0]);
    for (int64_t i = 0; i < a->count; i++) {
        member m;
        if (a->cu_lens_q[i + 1] < a->cu_lens_q[i])
            return attn_fail(ATTN_INVALID, "cu_lens_q[%" PRId64 "] = %" PRId32 " is below the one before, %" PRId32,
                             i + 1, a->cu_lens_q[i + 1], a->cu_lens_q[i]);
        attn_status status = open_member(a, i, &m);
        if (status) return status;
    }
    return ATTN_OK;
}

/* Pages that two members have in common from the first one's shared pages on; 0 if they part before. */
static int64_t common(const batch *a, int64_t first, int64_t other)
{
    member m = member_at(a, first), n = member_at(a, other);
    int64_t from = a->shared[first], most = m.most < n.most ? m.most : n.most, at = from;
    if (a->shared[other] != from) return 0;
    while (at < most && m.page[at] == n.page[at] && m.page[at] != ATTN_NO_PAGE)
        at++;
    return at - from;
}

static void write_row(const batch *a, const member *m, int64_t from, int64_t pages, int32_t *row)
{
    if (pages > 0) memcpy(row, m->page + from, sizeof *row * (size_t)pages);
    for (int64_t j = pages; j < a->width; j++)
        row[j] = ATTN_NO_PAGE;
}

/* One shared level. Groups that there are not have no rows. */
static void write_level(batch *a, attn_pool_level *level)
{
    level->groups = level->saved = 0, level->cu_lens_q[0] = a->cu_lens_q[0];
    for (int64_t first = 0, end; first < a->count; first = end, level->groups++) {
        member m = member_at(a, first);
        int64_t pages = m.most;
        for (end = first + 1; end < a->count; end++) {
            int64_t same = common(a, first, end);
            if (same < a->least) break;
            if (same < pages) pages = same;
        }
        if (end == first + 1) pages = 0;
        write_row(a, &m, a->shared[first], pages, level->table + level->groups * a->width);
        level->lens_kv[level->groups] = (int32_t)(pages * a->pool->desc.page_size);
        level->cu_lens_q[level->groups + 1] = a->cu_lens_q[end];
        level->saved += (end - first - 1) * level->lens_kv[level->groups];
        for (int64_t i = first; i < end; i++)
            a->shared[i] += (int32_t)pages;
    }
    for (int64_t g = level->groups; g < a->count; g++) {
        write_row(a, NULL, 0, 0, level->table + g * a->width);
        level->lens_kv[g] = 0, level->cu_lens_q[g + 1] = a->cu_lens_q[a->count];
    }
}

static void write_own(const batch *a, attn_pool_level *level)
{
    level->groups = a->count, level->saved = 0;
    memmove(level->cu_lens_q, a->cu_lens_q, sizeof *a->cu_lens_q * (size_t)(a->count + 1));
    for (int64_t i = 0; i < a->count; i++) {
        member m = member_at(a, i);
        int64_t shared = a->shared[i];
        write_row(a, &m, shared, m.pages - shared, level->table + i * a->width);
        level->lens_kv[i] = (int32_t)(m.length - shared * a->pool->desc.page_size);
    }
}

attn_status attn_pool_levels(const attn_pool *pool, const attn_seq *seqs, int64_t count, const int32_t *cu_lens_q,
                             int64_t least, int64_t width, attn_pool_level *level, int32_t levels)
{
    batch a = { .pool = pool, .seqs = seqs, .cu_lens_q = cu_lens_q, .count = count, .width = width };
    attn_status status = check(&a, level, levels);
    if (!status && least < 1) status = attn_fail(ATTN_INVALID, "least = %" PRId64 " is below 1", least);
    if (status) return status;
    a.least = (least - 1) / pool->desc.page_size + 1;
    a.shared = level[levels].lens_kv; /* until the lengths are written */
    for (int64_t i = 0; i < count; i++)
        a.shared[i] = 0;
    for (int32_t n = 0; n < levels; n++)
        write_level(&a, &level[n]);
    write_own(&a, &level[levels]);
    return ATTN_OK;
}
