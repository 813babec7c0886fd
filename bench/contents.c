/* What the arrays of a case hold besides q, k and v: lengths, masks, changes of scores; and the pairs that they leave.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "check/random.h"
#include "problem/desc.h"
#include "problem/sequence.h"
#include "ref/ref.h"

/* Zeros, freed with the tensors. The last one failed: all do. */
static void *room(attn_bench_tensors *t, int64_t bytes)
{
    void *memory = attn_bench_alloc(bytes);
    if (memory) t->own[t->own_count++] = memory;
    return memory;
}

static int32_t *numbers(attn_bench_tensors *t, int64_t count)
{
    return room(t, count * (int64_t)sizeof(int32_t));
}

/* One for each sequence. */
static int32_t *same_numbers(attn_bench_tensors *t, int64_t batch, int64_t value)
{
    int32_t *to = numbers(t, batch);
    for (int64_t b = 0; to && b < batch; b++)
        to[b] = (int32_t)value;
    return to;
}

static int32_t *starts(attn_bench_tensors *t, const attn_bench_case *item)
{
    int32_t *to = numbers(t, item->sequences + 1);
    for (int i = 0; to && i < item->sequences; i++)
        to[i + 1] = to[i] + item->lens[i];
    return to;
}

/* Key j of a document is hidden from all rows after its last, and where the mask is not causal from those before its
 * first. */
static int32_t *intervals(attn_bench_tensors *t, const attn_bench_case *item)
{
    const attn_desc *d = &item->desc;
    int64_t vectors = d->interval_vectors;
    int32_t *to = numbers(t, d->batch * d->len_kv * vectors), *at = to;
    for (int64_t b = 0; to && b < d->batch; b++)
        for (int i = 0, begin = 0; i < item->sequences; begin += item->lens[i++])
            for (int j = 0; j < item->lens[i]; j++, at += vectors) {
                at[0] = begin + item->lens[i];
                if (vectors == 2) at[1] = begin;
            }
    return to;
}

static uint8_t *bits(attn_bench_tensors *t, const attn_bench_case *item)
{
    const attn_desc *d = &item->desc;
    int64_t bytes = d->bits_batch * d->bits_heads * d->len_q * attn_bits_pitch(d);
    uint64_t state = 7;
    uint8_t *to = room(t, bytes);
    for (int64_t i = 0; to && i < bytes; i++) {
        to[i] = 0;
        for (int bit = 0; bit < 8; bit++)
            to[i] |= (uint8_t)(check_below(&state, 1000) < (int64_t)(1000 * item->share)) << bit;
    }
    return to;
}

/* In each row of blocks the same share of them, at random. */
static bool fill_blocks(attn_bench_tensors *t, const attn_bench_case *item)
{
    const attn_desc *d = &item->desc;
    int64_t rows = attn_ceil_div(d->len_q, d->block_rows), columns = attn_ceil_div(d->len_kv, d->block_keys);
    int64_t kept = llround(item->share * (double)columns);
    uint64_t state = 8;
    int32_t *counts = same_numbers(t, rows, kept > 0 ? kept : 1), *lists = numbers(t, rows * columns);
    for (int64_t r = 0; counts && lists && r < rows; r++)
        for (int64_t c = 0, listed = 0; listed < counts[r]; c++)
            if (check_below(&state, columns - c) < counts[r] - listed) lists[r * columns + listed++] = (int32_t)c;
    t->more.block_full_count = counts, t->more.block_full = lists;
    return counts && lists;
}

static bool fill_positions(attn_bench_tensors *t, const attn_bench_case *item)
{
    int64_t *to = room(t, item->desc.batch * (int64_t)sizeof *to);
    for (int64_t b = 0; to && b < item->desc.batch; b++)
        to[b] = item->position;
    t->more.position_q = to;
    return to != NULL;
}

static float *slopes(attn_bench_tensors *t, const attn_desc *d)
{
    float *to = room(t, d->heads_q * (int64_t)sizeof *to);
    for (int64_t h = 0; to && h < d->heads_q; h++)
        to[h] = exp2f(-8.0f * (float)(h + 1) / (float)d->heads_q);
    return to;
}

static bool fill_bias(attn_bench_tensors *t, const attn_bench_case *item)
{
    const attn_desc *d = &item->desc;
    int64_t count = 1;
    for (int i = 0; i < 4; i++)
        count *= d->bias_extent[i];
    void *bias = attn_bench_normal(d->bias_dtype, count * attn_dtype_size(d->bias_dtype), 9);
    if (bias) t->own[t->own_count++] = bias;
    t->more.bias = bias;
    if (item->gradients) t->more.grad_bias = room(t, count * (int64_t)sizeof(float));
    return bias && (!item->gradients || t->more.grad_bias);
}

/* Pairs of rows and keys that a causal mask or none leaves of a sequence. */
static double unmasked_pairs(const attn_desc *d, const attn_sequence *s)
{
    double pairs = 0;
    for (int64_t i = 0; i < s->len_q; i++) {
        int64_t seen = d->flags & ATTN_CAUSAL ? i + 1 + s->len_kv - s->len_q : s->len_kv;
        pairs += fmin(fmax((double)seen, 0), (double)s->len_kv);
    }
    return pairs;
}

/* Pairs that some mask leaves whose arrays say so, over all heads. */
static double count_pairs(const attn_bench_case *item, const attn_args *args)
{
    attn_desc d;
    double pairs = 0;
    if (attn_desc_resolve(&d, &item->desc, sizeof d) != ATTN_OK) return 0;
    const uint32_t masks = ATTN_WINDOW | ATTN_CHUNK | ATTN_PREFIX | ATTN_INTERVALS | ATTN_BLOCKS | ATTN_BITS |
                           ATTN_FIRST_KV | ATTN_POSITIONS;
    bool blocks = d.flags & ATTN_BLOCKS; /* alone: all pairs of a block are alike */
    int64_t rows = blocks ? d.block_rows : 1, keys = blocks ? d.block_keys : 1;
    for (int64_t b = 0; b < d.batch; b++) {
        attn_sequence s = attn_sequence_of(&d, args, b);
        if (!(d.flags & masks)) pairs += unmasked_pairs(&d, &s);
        for (int64_t h = 0; d.flags & masks && (h < d.bits_heads || h < 1); h++)
            for (int64_t i = 0; i < s.len_q; i += rows)
                for (int64_t j = 0; j < s.len_kv; j += keys)
                    if (attn_ref_visible(&d, args, b, h, i, j))
                        pairs += fmin((double)rows, (double)(s.len_q - i)) * fmin((double)keys, (double)(s.len_kv - j));
    }
    return pairs * (double)d.heads_q / (double)(d.bits_heads ? d.bits_heads : 1);
}

bool attn_bench_is_feature(const attn_bench_case *item)
{
    return item->plain.dtype != 0;
}

static bool fill_masks(attn_bench_tensors *t, const attn_bench_case *item)
{
    const attn_desc *d = &item->desc;
    attn_args *to = &t->more;
    if (d->flags & ATTN_PREFIX && !(to->prefix = same_numbers(t, d->batch, item->prefix))) return false;
    if (d->flags & ATTN_FIRST_KV && !(to->first_kv = same_numbers(t, d->batch, item->first))) return false;
    if (d->flags & ATTN_VARLEN && !(to->cu_lens_q = to->cu_lens_kv = starts(t, item))) return false;
    if (d->flags & ATTN_INTERVALS && !(to->intervals = intervals(t, item))) return false;
    if (d->flags & ATTN_BITS && !(to->bits = bits(t, item))) return false;
    if (d->flags & ATTN_LENS_Q) { /* as many keys as rows; both are only read */
        int32_t *lens = numbers(t, d->batch);
        if (!lens) return false;
        memcpy(lens, item->lens, (size_t)d->batch * sizeof *lens);
        to->lens_q = to->lens_kv = lens;
    }
    if (d->flags & ATTN_BLOCKS && !fill_blocks(t, item)) return false;
    return !(d->flags & ATTN_POSITIONS) || fill_positions(t, item);
}

static bool fill_scores(attn_bench_tensors *t, const attn_bench_case *item)
{
    const attn_desc *d = &item->desc;
    attn_args *to = &t->more;
    bool backward = item->pass >= ATTN_BENCH_BACKWARD;
    if (d->flags & ATTN_ALIBI && !(to->alibi = slopes(t, d))) return false;
    if (d->flags & ATTN_SINK && backward && !(to->grad_sink = room(t, d->heads_q * (int64_t)sizeof(float))))
        return false;
    return !(d->flags & ATTN_BIAS) || fill_bias(t, item);
}

bool attn_bench_tensors_of(attn_bench_tensors *t, const attn_bench_case *item)
{
    const uint32_t unplanned = ATTN_PREFIX | ATTN_FIRST_KV | ATTN_POSITIONS | ATTN_VARLEN | ATTN_INTERVALS | ATTN_BITS |
                               ATTN_LENS_Q | ATTN_BLOCKS;
    attn_desc shape = item->desc;
    if (shape.flags & ATTN_VARLEN) shape.batch = 1, shape.len_q = shape.total_q, shape.len_kv = shape.total_kv;
    if (!attn_bench_tensors_init(t, &shape, item->pass)) return false;
    if (item->pages_mixed) attn_bench_tensors_mix(t, &item->desc);
    if (item->desc.flags & ATTN_PAGED && item->sequences) attn_bench_tensors_ragged(t, item);
    if (!fill_masks(t, item) || !fill_scores(t, item)) {
        attn_bench_tensors_free(t);
        return false;
    }
    attn_args args = attn_bench_tensors_args(t);
    if (attn_bench_is_feature(item) && item->desc.flags & unplanned) t->pairs = count_pairs(item, &args);
    return true;
}

double attn_bench_tensors_flops(const attn_bench_tensors *t, const attn_bench_case *item, double planned)
{
    const attn_desc *d = &item->desc;
    double passes = item->pass == ATTN_BENCH_BOTH ? 3.5 : item->pass == ATTN_BENCH_BACKWARD ? 2.5 : 1;
    return t->pairs > 0 ? passes * 2 * t->pairs * (double)(d->dim_qk + d->dim_v) : planned;
}
