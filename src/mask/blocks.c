/* Block lists and packed bits. A listed block is visible: a full one whole, a partial one as the bits say (whole
 * without bits). A list rises, so that the next block is found by bisection. */
#include "mask/parts.h"

#include <string.h>

#include "problem/desc.h"

enum { LEAST_RUN = 64 }; /* keys after which a run ends where row blocks begin to differ in what they see */

/* First index in the list whose block is at or after `block`; its length if there is none. */
static int64_t list_find(const int32_t *list, int64_t length, int64_t block)
{
    int64_t lo = 0, hi = length;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (list[mid] < block)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The first block at or after `block` in list `which` of a row block; block_columns if there is none. */
static int64_t list_next(const attn_mask_view *view, int which, int64_t row_block, int64_t block)
{
    if (!view->lists[which]) return view->block_columns;
    const int32_t *list = view->lists[which] + row_block * view->block_columns;
    int64_t length = view->counts[which][row_block], at = list_find(list, length, block);
    return at < length ? list[at] : view->block_columns;
}

/* A block of keys, to a few row blocks. */
typedef struct listed_block {
    int64_t at;
    bool full;        /* all list it, and none needs bits for it */
    uint64_t pattern; /* which list it and which need bits: alike for blocks that are to all of them the same */
} listed_block;

/* The first block at or after `block` that some row block lists; at block_columns if there is none. */
static listed_block block_next(const attn_mask_view *view, bool bits, int64_t first, int64_t last, int64_t block)
{
    listed_block next = { .at = view->block_columns, .full = true };
    for (int64_t r = first; r <= last; r++) {
        int64_t in[2] = { list_next(view, 0, r, block), list_next(view, 1, r, block) }, own = min64(in[0], in[1]);
        if (own > next.at) {
            next.full = false, next.pattern *= 3;
            continue;
        }
        bool whole = in[0] == own || !bits;
        if (own < next.at) next = (listed_block){ .at = own, .full = r == first };
        next.full = next.full && whole;
        next.pattern = 3 * next.pattern + (whole ? 2 : 1);
    }
    return next;
}

bool attn_list_next(const attn_mask_view *view, bool bits, int64_t row0, int64_t row1, int64_t from, int64_t end,
                    int64_t most, attn_mask_tile *tile)
{
    int64_t first = row0 / view->block_rows, last = (row1 - 1) / view->block_rows, size = view->block_keys;
    listed_block block = block_next(view, bits, first, last, from / size), next;
    int64_t lo = block.at * size > from ? block.at * size : from;
    if (block.at >= view->block_columns || lo >= end) return false;
    int64_t hi = (block.at + 1) * size;
    bool full = block.full;
    while (hi < min64(end, lo + most) &&
           (next = block_next(view, bits, first, last, block.at + 1)).at == block.at + 1) {
        if (hi - lo >= LEAST_RUN && next.pattern != block.pattern) break;
        full = full && next.full, block = next;
        hi = (block.at + 1) * size;
    }
    *tile = (attn_mask_tile){ .lo = lo, .hi = min64(hi, min64(end, lo + most)), .full = full };
    return true;
}

bool attn_list_strip(const attn_mask_view *view, bool bits, int64_t row0, int64_t row1, int64_t *lo, int64_t *hi)
{
    int64_t first = row0 / view->block_rows, last = (row1 - 1) / view->block_rows, size = view->block_keys;
    listed_block block = block_next(view, bits, first, last, *lo / size);
    if (block.at * size > *lo) *lo = min64(block.at * size, *hi);
    bool full = block.full;
    int64_t end = *lo;
    while (block.at < view->block_columns && block.at * size < *hi) {
        full = full && block.full && block.at * size <= end;
        end = min64((block.at + 1) * size, *hi);
        if (end == *hi) break;
        block = block_next(view, bits, first, last, block.at + 1);
    }
    *hi = end;
    return full;
}

/* Blocks of [first, last] that a row block lists; only_full: in its list of full blocks. */
static int64_t listed(const attn_mask_view *view, int64_t row_block, int64_t first, int64_t last, bool only_full)
{
    int64_t count = 0;
    for (int which = 0; which < (only_full ? 1 : 2); which++) {
        if (!view->lists[which]) continue;
        const int32_t *list = view->lists[which] + row_block * view->block_columns;
        int64_t length = view->counts[which][row_block];
        count += list_find(list, length, last + 1) - list_find(list, length, first);
    }
    return count;
}

bool attn_list_rows_next(const attn_mask_view *view, bool bits, int64_t key0, int64_t key1, int64_t from, int64_t end,
                         int64_t most, attn_mask_tile *rows)
{
    int64_t first = key0 / view->block_keys, last = (key1 - 1) / view->block_keys, size = view->block_rows;
    int64_t block = from / size;
    while (block * size < end && listed(view, block, first, last, false) == 0)
        block++;
    int64_t lo = block * size > from ? block * size : from, hi = lo;
    if (lo >= end) return false;
    bool full = true;
    for (; hi < min64(end, lo + most) && listed(view, block, first, last, false) > 0; block++) {
        full = full && listed(view, block, first, last, bits) == last - first + 1;
        hi = (block + 1) * size;
    }
    *rows = (attn_mask_tile){ .lo = lo, .hi = min64(hi, min64(end, lo + most)), .full = full };
    return true;
}

/* Sets in `words` the bits of the row's blocks in one list that overlap [key0, key0 + keys). */
static void list_words(const attn_mask_view *view, int which, int64_t row, int64_t key0, int64_t keys, uint64_t *words)
{
    int64_t size = view->block_keys, row_block = row / view->block_rows;
    for (int64_t block = key0 / size; block * size < key0 + keys; block++) {
        block = list_next(view, which, row_block, block);
        if (block >= view->block_columns || block * size >= key0 + keys) return;
        int64_t lo = block * size - key0, hi = lo + size;
        attn_words_set(words, lo > 0 ? lo : 0, min64(hi, keys));
    }
}

void attn_list_row(const attn_mask_view *view, int64_t row, int64_t key0, int64_t keys, uint64_t *words)
{
    uint64_t full[ATTN_MASK_MOST / 64] = { 0 }, partial[ATTN_MASK_MOST / 64] = { 0 };
    list_words(view, 0, row, key0, keys, full);
    list_words(view, 1, row, key0, keys, partial);
    if (view->bits) attn_bits_row(view, row, key0, keys, partial);
    for (int64_t w = 0; w * 64 < keys; w++)
        words[w] &= full[w] | partial[w];
}

/* 64 bits of a row from bit `at` on; nothing past its bytes is read. */
static uint64_t bits_from(const attn_mask_view *view, const uint8_t *bytes, int64_t at)
{
    int64_t byte = at / 8, shift = at % 8, left = view->bits_pitch - byte;
    uint8_t last[9] = { 0 };
    const uint8_t *near = bytes + byte;
    if (left < 9) {
        if (left > 0) memcpy(last, near, (size_t)left);
        near = last;
    }
    uint64_t word = 0; /* compilers make one load of it, which a copy of a length that they do not know hinders */
    for (int i = 0; i < 8; i++)
        word |= (uint64_t)near[i] << 8 * i;
    return shift ? word >> shift | (uint64_t)near[8] << (64 - shift) : word;
}

void attn_bits_row(const attn_mask_view *view, int64_t row, int64_t key0, int64_t keys, uint64_t *words)
{
    const uint8_t *bytes = view->bits + row * view->bits_pitch;
    for (int64_t base = 0; base < keys; base += 64) {
        int64_t at = key0 + base - view->bits_first; /* below 0: keys without bits come first */
        if (at <= -64) continue;
        words[base / 64] &=
            at >= 0 ? bits_from(view, bytes, at) : bits_from(view, bytes, 0) << -at | ((UINT64_C(1) << -at) - 1);
    }
}
