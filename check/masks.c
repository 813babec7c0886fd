/* The content of FlashMask intervals, block lists and packed bits. */
#include <limits.h>
#include <string.h>

#include "problem/desc.h"
#include "check/problem.h"

/* ---- intervals ----------------------------------------------------------------------------- */

/* What the encodings are drawn from; positions are keys, rows those beside them. */
typedef struct pattern {
    int64_t rows, keys, shift;
    int64_t ends[9]; /* of documents, rising; the last is `keys` */
    int documents;
    int64_t width, global, prefix, segment;
} pattern;

static pattern draw_pattern(const attn_desc *desc, uint64_t *state)
{
    pattern p = { .rows = desc->len_q, .keys = desc->len_kv, .shift = desc->len_kv - desc->len_q };
    p.documents = 1 + (int)check_below(state, 8);
    for (int i = 0; i + 1 < p.documents; i++) {
        int64_t end = check_below(state, p.keys + 1);
        int at = i;
        for (; at > 0 && p.ends[at - 1] > end; at--)
            p.ends[at] = p.ends[at - 1];
        p.ends[at] = end;
    }
    p.ends[p.documents - 1] = p.keys;
    p.width = 1 + check_below(state, p.keys + 1);
    p.global = check_below(state, 1 + p.keys / 4);
    p.prefix = check_below(state, p.keys + 1);
    p.segment = check_below(state, p.keys + 1);
    return p;
}

static int32_t clamp(int64_t x, int64_t most)
{
    return (int32_t)(x < 0 ? 0 : x > most ? most : x);
}

static int32_t row_of(const pattern *p, int64_t key)
{
    return clamp(key - p->shift, p->rows);
}

static void document_of(const pattern *p, int64_t key, int64_t *begin, int64_t *end)
{
    int i = 0;
    while (p->ends[i] <= key)
        i++;
    *begin = i ? p->ends[i - 1] : 0;
    *end = p->ends[i];
}

/* The vectors of key j; out[] as the descriptor counts them. */
static void encode(check_interval interval, const pattern *p, int64_t j, int vectors, uint64_t *state, int32_t out[4])
{
    int64_t begin, end;
    document_of(p, j, &begin, &end);
    int32_t rows = (int32_t)p->rows, B = row_of(p, begin), E = row_of(p, end), g = row_of(p, p->global);
    bool in_global = j < p->global, near_global = j <= p->global + p->width;
    bool in_segment = j >= p->segment && j < p->segment + p->width, last = end == p->keys;
    int32_t last_start = row_of(p, p->documents > 1 ? p->ends[p->documents - 2] : 0);
    switch (interval) {
    case CHECK_FULL:
        out[0] = rows, out[1] = 0;
        return;
    case CHECK_CAUSAL:
        out[0] = rows;
        return;
    case CHECK_SLIDING:
        out[0] = row_of(p, j + p->width);
        return;
    case CHECK_CAUSAL_DOCUMENT:
        out[0] = E;
        return;
    case CHECK_DOCUMENT:
        out[0] = E, out[1] = B;
        return;
    case CHECK_SHARE_QUESTION:
        out[0] = j < p->prefix ? rows : E;
        return;
    case CHECK_GLOBAL_WINDOW:
        out[0] = in_global ? rows : row_of(p, j + p->width + 1), out[1] = rows;
        out[2] = near_global ? 0 : g, out[3] = near_global ? 0 : row_of(p, j - p->width);
        return;
    case CHECK_CAUSAL_BLOCKWISE:
        out[0] = last ? rows : E, out[1] = last ? rows : last_start;
        return;
    case CHECK_PREFIX_DOCUMENT:
        out[0] = E, out[1] = j < begin + p->width ? B : row_of(p, j);
        return;
    case CHECK_PREFIX_CAUSAL:
        out[0] = rows, out[1] = j < p->prefix ? 0 : row_of(p, j);
        return;
    case CHECK_QK_SPARSE:
        out[0] = in_segment ? row_of(p, j) : rows, out[1] = in_segment ? row_of(p, p->segment + p->width) : rows;
        return;
    case CHECK_EVICTION:
        out[0] = check_chance(state, 50) ? rows : (int32_t)check_below(state, p->rows + 1);
        return;
    default: /* anything goes, empty and crossed intervals too */
        for (int v = 0; v < vectors; v++)
            out[v] = (int32_t)check_below(state, p->rows + 1);
    }
}

void check_fill_intervals(check_problem *problem, uint64_t *state)
{
    const attn_desc *desc = &problem->resolved;
    int vectors = (int)desc->interval_vectors;
    int64_t heads = desc->batch * desc->interval_heads;
    int32_t *at = check_problem_allocate(problem, heads * desc->len_kv * vectors * 4);
    problem->args.intervals = at;
    for (int64_t h = 0; h < heads; h++) {
        pattern p = draw_pattern(desc, state);
        for (int64_t j = 0; j < desc->len_kv; j++, at += vectors) {
            int32_t out[4];
            encode(problem->options.interval, &p, j, vectors, state, out);
            for (int v = 0; v < vectors; v++)
                at[v] = out[v];
        }
    }
}

/* ---- blocks -------------------------------------------------------------------------------- */

/* One row block's lists; a block is in neither, in `full` or in `partial`. */
static void draw_block_row(uint64_t *state, int64_t columns, int32_t *full, int32_t *full_count, int32_t *partial,
                           int32_t *partial_count)
{
    static const int densities[] = { 0, 30, 70, 70, 70, 100 };
    int density = densities[check_below(state, 6)];
    for (int64_t c = 0; c < columns; c++) {
        if (!check_chance(state, density)) continue;
        if (partial == NULL || (full != NULL && check_chance(state, 50)))
            full[(*full_count)++] = (int32_t)c;
        else
            partial[(*partial_count)++] = (int32_t)c;
    }
}

void check_fill_blocks(check_problem *problem, uint64_t *state)
{
    const attn_desc *desc = &problem->resolved;
    int64_t rows = attn_ceil_div(desc->len_q, desc->block_rows) * desc->block_batch * desc->block_heads;
    int64_t columns = attn_ceil_div(desc->len_kv, desc->block_keys);
    int32_t *lists[2] = { 0 }, *counts[2] = { 0 };
    for (int kind = 0; kind < 2; kind++) {
        if (problem->options.blocks == (kind ? CHECK_BLOCKS_FULL : CHECK_BLOCKS_PARTIAL)) continue;
        lists[kind] = check_problem_allocate(problem, rows * columns * 4);
        counts[kind] = check_problem_allocate(problem, rows * 4);
        for (int64_t i = 0; i < rows * columns; i++)
            lists[kind][i] = INT_MAX;
        for (int64_t r = 0; r < rows; r++)
            counts[kind][r] = 0;
    }
    for (int64_t r = 0; r < rows; r++)
        draw_block_row(state, columns, lists[0] ? lists[0] + r * columns : NULL, lists[0] ? counts[0] + r : NULL,
                       lists[1] ? lists[1] + r * columns : NULL, lists[1] ? counts[1] + r : NULL);
    problem->args.block_full = lists[0], problem->args.block_full_count = counts[0];
    problem->args.block_partial = lists[1], problem->args.block_partial_count = counts[1];
}

/* ---- bits ---------------------------------------------------------------------------------- */

/* Half of the tiles of 64 rows and 256 keys become empty, or whole: of some of these a row is the opposite. */
static void fill_tiles_of_bits(uint64_t *state, uint8_t *bits, int64_t rows, int64_t pitch)
{
    const int64_t tile_rows = 64, bytes = 32;
    for (int64_t row = 0; row < rows; row += tile_rows)
        for (int64_t at = 0; at < pitch; at += bytes) {
            int64_t kind = check_below(state, 4), width = pitch - at < bytes ? pitch - at : bytes;
            int64_t other = row + check_below(state, 2 * tile_rows);
            for (int64_t r = row; kind < 2 && r < rows && r < row + tile_rows; r++)
                memset(bits + r * pitch + at, (kind == 1) != (r == other) ? 0xff : 0, (size_t)width);
        }
}

void check_fill_bits(check_problem *problem, uint64_t *state)
{
    const attn_desc *desc = &problem->resolved;
    int64_t rows = desc->bits_batch * desc->bits_heads * desc->len_q, pitch = attn_bits_pitch(desc);
    uint8_t *bits = check_problem_allocate(problem, rows * pitch);
    problem->args.bits = bits;
    for (int64_t r = 0; r < rows; r++) {
        int64_t kind = check_below(state, 8); /* empty, whole, or runs, halves and singles of random bits */
        for (int64_t i = 0; i < pitch; i++) {
            uint64_t x = check_bits(state);
            uint8_t sparse = (uint8_t)(x & x >> 8 & x >> 16), dense = (uint8_t)(x | x >> 8 | x >> 16);
            bits[r * pitch + i] = kind == 0   ? 0
                                  : kind == 1 ? 0xff
                                  : kind == 2 ? sparse
                                  : kind == 3 ? (uint8_t)(i / 24 % 2 ? 0xff : 0)
                                              : dense;
        }
    }
    for (int64_t plane = 0; plane < desc->bits_batch * desc->bits_heads; plane++)
        fill_tiles_of_bits(state, bits + plane * desc->len_q * pitch, desc->len_q, pitch);
}
