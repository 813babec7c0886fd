/* Lists of page copies: what makes their pairs independent of each other. Contract: attn_kv.h, pool.h. */
#include <inttypes.h>
#include <stdatomic.h>

#include "base/error.h"
#include "kv/pool.h"

static atomic_uint_fast64_t lists; /* ids given */

attn_status attn_copies_open(attn_page_copies *copies, int64_t count, const attn_pool *from, const attn_pool *to)
{
    if (!copies) return attn_fail(ATTN_INVALID, "copies = NULL: a page has to be copied, which others hold too");
    if (!copies->pairs && copies->room != 0)
        return attn_fail(ATTN_INVALID, "copies->pairs is NULL, but copies->room = %" PRId64, copies->room);
    if (copies->count < 0 || copies->count > copies->room)
        return attn_fail(ATTN_INVALID, "copies->count = %" PRId64 " is not in 0 to copies->room = %" PRId64,
                         copies->count, copies->room);
    if (copies->count > 0 && (copies->from != from || copies->to != to))
        return attn_fail(ATTN_INVALID, "copies has %" PRId64 " pairs of other pools: each direction takes a list",
                         copies->count);
    if (copies->count > 0 && (from->list != copies->id || to->list != copies->id))
        return attn_fail(ATTN_INVALID,
                         "copies: another list was begun since its %" PRId64 " pairs: put both into the stream, in "
                         "this order, and set their counts to 0",
                         copies->count);
    if (copies->room - copies->count < count)
        return attn_fail(ATTN_INVALID, "copies->room = %" PRId64 ": there are %" PRId64 " pairs, and %" PRId64 " come",
                         copies->room, copies->count, count);
    if (copies->count == 0) copies->id = atomic_fetch_add(&lists, 1) + 1, copies->from = from, copies->to = to;
    return ATTN_OK;
}

int64_t attn_copies_blocked(const attn_page_copies *copies, const attn_pool *to)
{
    int64_t blocked = 0;
    for (int64_t i = 0; i < copies->count; i++)
        blocked += to->refs[copies->pairs[2 * i + 1]] == 0;
    return blocked;
}

attn_status attn_copies_check_source(const attn_page_copies *copies, const attn_pool *from, int32_t page)
{
    if (from->mark[page] != 2 * copies->id + 1) return ATTN_OK;
    return attn_fail(ATTN_INVALID,
                     "copies: page %" PRId32 " is the target of a copy in the list, and would be the source of another "
                     "one: what was forked must be in the stream, and the list's count 0",
                     page);
}

void attn_copies_add(attn_page_copies *copies, attn_pool *from, int32_t page, attn_pool *to, int32_t target)
{
    copies->pairs[2 * copies->count] = page;
    copies->pairs[2 * copies->count + 1] = target;
    copies->count++;
    from->list = to->list = copies->id;
    from->mark[page] = 2 * copies->id;
    to->mark[target] = 2 * copies->id + 1;
}
