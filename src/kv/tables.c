/* Page tables and lengths of many sequences, as attention takes them. Contract: attn_kv.h. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "kv/pool.h"

static attn_status check(const attn_pool *pool, const attn_seq *seqs, int64_t count, const void *ids, const void *lens)
{
    if (!pool) return attn_fail(ATTN_INVALID, "pool is NULL");
    if (count < 0) return attn_fail(ATTN_INVALID, "count = %" PRId64 " is below 0", count);
    if (count > 0 && !seqs) return attn_fail(ATTN_INVALID, "seqs is NULL, but count = %" PRId64, count);
    if (count > 0 && !ids) return attn_fail(ATTN_INVALID, "there is no array for page ids: it is NULL");
    if (count > 0 && !lens) return attn_fail(ATTN_INVALID, "lens is NULL");
    return ATTN_OK;
}

attn_status attn_pool_tables(const attn_pool *pool, const attn_seq *seqs, int64_t count, int32_t *table, int64_t width,
                             int32_t *lens)
{
    attn_pool_sequence *s;
    attn_status status = check(pool, seqs, count, table, lens);
    if (!status && width < 1) return attn_fail(ATTN_INVALID, "width = %" PRId64 " is below 1", width);
    for (int64_t i = 0; i < count && !status; i++)
        status = attn_pool_open_row(pool, seqs, i, width, &s);
    for (int64_t i = 0; i < count && !status; i++) {
        int32_t *row = table + i * width, pages = 0;
        status = attn_pool_open_row(pool, seqs, i, width, &s);
        if (s) memcpy(row, attn_pool_row(pool, s), sizeof *row * (size_t)(pages = s->pages));
        for (int64_t j = pages; j < width; j++)
            row[j] = ATTN_NO_PAGE;
        lens[i] = s ? (int32_t)s->length : 0;
    }
    return status;
}

attn_status attn_pool_tables_csr(const attn_pool *pool, const attn_seq *seqs, int64_t count, int32_t *starts,
                                 int32_t *ids, int64_t room, int32_t *lens)
{
    attn_pool_sequence *s;
    int64_t total = 0;
    attn_status status = check(pool, seqs, count, room > 0 ? ids : starts, lens);
    if (status) return status;
    if (!starts) return attn_fail(ATTN_INVALID, "starts is NULL");
    for (int64_t i = 0; i < count; i++) {
        if ((status = attn_pool_open_row(pool, seqs, i, pool->desc.width, &s))) return status;
        total += s ? s->pages : 0;
    }
    if (total > room || total > INT32_MAX)
        return attn_fail(ATTN_INVALID, "room = %" PRId64 ": the sequences have %" PRId64 " pages, and 2^31 - 1 at most",
                         room, total);
    starts[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        status = attn_pool_open_row(pool, seqs, i, pool->desc.width, &s);
        int32_t pages = s ? s->pages : 0;
        if (pages > 0) memcpy(ids + starts[i], attn_pool_row(pool, s), sizeof *ids * (size_t)pages);
        starts[i + 1] = starts[i] + pages;
        lens[i] = s ? (int32_t)s->length : 0;
    }
    return status;
}
