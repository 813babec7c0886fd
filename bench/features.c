/* The suite "features": masks, changes of scores, shapes and addresses, each beside the plain case of its shape. What a
 * case's arrays hold is made in contents.c. */
#include <string.h>

#include "base/text_buffer.h"
#include "bench/bench.h"
#include "num/half.h"
#include "problem/desc.h"

/* Lengths that masks have among the rows and keys of a GPU's cases; others have as large a part of theirs. */
enum { ROWS = 4096 };

typedef enum bias { NO_BIAS, BIAS_16, BIAS_F32, BIAS_OWN, BIAS_KEYS } bias;
typedef enum dims { SAME, FIVE_EIGHTHS, THREE_QUARTERS, ONE_LESS, WIDER_QK } dims;

/* What a case changes of the plain one. */
typedef struct feature {
    uint32_t flags;
    int64_t window, chunk, prefix, document, first, position, bits_keys, block; /* at ROWS; block: its size */
    double share;                                                               /* of bits or blocks */
    bias bias;
    dims dims;
    attn_dtype dtype;
    int groups; /* query heads of a KV head; ALL_HEADS: all of them */
    bool own;   /* bits of each head's own */
    bool gradients, misaligned;
    bool gpu; /* only there */
} feature;

enum { ALL_HEADS = -1 };

static const feature features[] = {
    /* plain itself */
    { .flags = 0 },
    { .flags = ATTN_CAUSAL },
    /* masks */
    { .flags = ATTN_CAUSAL | ATTN_WINDOW, .window = 512 },
    { .flags = ATTN_CAUSAL | ATTN_CHUNK, .chunk = 1024 },
    { .flags = ATTN_CAUSAL | ATTN_PREFIX, .prefix = 1000 },
    { .flags = ATTN_CAUSAL | ATTN_INTERVALS, .document = 700 },
    { .flags = ATTN_INTERVALS, .document = 700, .gpu = true },
    { .flags = ATTN_BITS, .share = 0.5 },
    { .flags = ATTN_BITS, .share = 1 },
    { .flags = ATTN_BITS, .share = 0.5, .own = true, .gpu = true },
    { .flags = ATTN_BITS, .share = 1, .own = true, .gpu = true },
    { .flags = ATTN_CAUSAL | ATTN_BITS, .share = 0.5, .bits_keys = 256, .gpu = true },
    { .flags = ATTN_LENS_Q | ATTN_LENS_KV },
    { .flags = ATTN_BLOCKS, .block = 128, .share = 0.5 },
    { .flags = ATTN_BLOCKS, .block = 128, .share = 0.25 },
    { .flags = ATTN_BLOCKS, .block = 128, .share = 0.125, .gpu = true },
    { .flags = ATTN_BLOCKS, .block = 64, .share = 0.5 },
    { .flags = ATTN_BLOCKS, .block = 64, .share = 0.25 },
    { .flags = ATTN_BLOCKS, .block = 64, .share = 0.125, .gpu = true },
    /* changes of scores */
    { .flags = ATTN_CAUSAL | ATTN_SOFTCAP },
    { .flags = ATTN_CAUSAL | ATTN_ALIBI },
    { .flags = ATTN_ALIBI, .gpu = true },
    { .flags = ATTN_BIAS, .bias = BIAS_16 },
    { .flags = ATTN_BIAS, .bias = BIAS_F32 },
    { .flags = ATTN_CAUSAL | ATTN_BIAS, .bias = BIAS_KEYS },
    { .flags = ATTN_BIAS, .bias = BIAS_16, .gradients = true },
    { .flags = ATTN_BIAS, .bias = BIAS_OWN, .gradients = true, .gpu = true },
    { .flags = ATTN_CAUSAL | ATTN_BIAS, .bias = BIAS_KEYS, .gradients = true },
    { .flags = ATTN_CAUSAL | ATTN_SINK },
    { .flags = ATTN_CAUSAL | ATTN_DROPOUT },
    { .flags = ATTN_DROPOUT, .gpu = true },
    /* where rows and keys are */
    { .flags = ATTN_CAUSAL | ATTN_FIRST_KV, .first = 300 },
    { .flags = ATTN_CAUSAL | ATTN_POSITIONS, .position = 1000 },
    { .flags = ATTN_CAUSAL, .misaligned = true, .gpu = true },
    /* dtypes and shapes */
    { .flags = ATTN_CAUSAL, .dtype = ATTN_F16 },
    { .flags = ATTN_CAUSAL, .dtype = ATTN_F32, .gpu = true },
    { .flags = ATTN_CAUSAL, .dims = FIVE_EIGHTHS },
    { .flags = ATTN_CAUSAL, .dims = THREE_QUARTERS, .gpu = true },
    { .flags = ATTN_CAUSAL, .dims = ONE_LESS },
    { .flags = ATTN_CAUSAL, .dims = WIDER_QK, .gpu = true },
    { .flags = ATTN_CAUSAL, .groups = 4 },
    { .flags = ATTN_CAUSAL, .groups = ALL_HEADS },
    { .flags = ATTN_CAUSAL | ATTN_VARLEN, .document = 700 },
    /* two changes together */
    { .flags = ATTN_CAUSAL | ATTN_WINDOW | ATTN_SOFTCAP, .window = 512 },
    { .flags = ATTN_CAUSAL | ATTN_WINDOW | ATTN_ALIBI, .window = 512, .gpu = true },
    { .flags = ATTN_CAUSAL | ATTN_WINDOW | ATTN_INTERVALS, .window = 512, .document = 700 },
    { .flags = ATTN_CAUSAL | ATTN_INTERVALS | ATTN_DROPOUT, .document = 700 },
    { .flags = ATTN_BIAS | ATTN_DROPOUT, .bias = BIAS_16 },
    { .flags = ATTN_BIAS | ATTN_BITS, .bias = BIAS_16, .share = 0.5, .gpu = true },
    { .flags = ATTN_BIAS | ATTN_BLOCKS, .bias = BIAS_16, .block = 128, .share = 0.5, .gpu = true },
    { .flags = ATTN_CAUSAL | ATTN_SOFTCAP | ATTN_DROPOUT, .gpu = true },
    { .flags = ATTN_CAUSAL | ATTN_ALIBI | ATTN_DROPOUT, .gpu = true },
    { .flags = ATTN_CAUSAL | ATTN_SOFTCAP | ATTN_ALIBI, .gpu = true },
    { .flags = ATTN_CAUSAL | ATTN_INTERVALS | ATTN_SOFTCAP, .document = 700, .gpu = true },
    { .flags = ATTN_CAUSAL | ATTN_INTERVALS | ATTN_ALIBI, .document = 700, .gpu = true },
    { .flags = ATTN_CAUSAL | ATTN_INTERVALS | ATTN_BIAS, .document = 700, .bias = BIAS_KEYS, .gpu = true },
    { .flags = ATTN_BITS | ATTN_DROPOUT, .share = 0.5, .gpu = true },
    { .flags = ATTN_BITS | ATTN_ALIBI, .share = 0.5, .gpu = true },
};

enum { FEATURES = sizeof features / sizeof *features };

/* ---- a case --------------------------------------------------------------------------------------- */

/* As large a part of the case's rows as of ROWS. */
static int64_t part(int64_t of_rows, int64_t rows)
{
    int64_t scaled = of_rows * rows / ROWS;
    return of_rows && !scaled ? 1 : scaled;
}

static void set_mask(attn_bench_case *item, const feature *f)
{
    attn_desc *d = &item->desc;
    int64_t rows = d->len_q;
    if (f->window) d->window_left = part(f->window, rows), d->window_right = -1;
    d->chunk = part(f->chunk, rows);
    item->prefix = part(f->prefix, rows);
    item->first = part(f->first, rows);
    item->position = part(f->position, rows);
    item->share = f->share;
    if (f->block) {
        d->block_rows = d->block_keys = f->block;
        d->block_batch = d->block_heads = 1;
    }
    if (d->flags & ATTN_BITS) {
        d->bits_batch = f->own ? d->batch : 1, d->bits_heads = f->own ? d->heads_q : 1;
        d->bits_keys = part(f->bits_keys, rows);
    }
    if (d->flags & (ATTN_BITS | ATTN_BLOCKS) && !d->bits_keys) d->visible_share = f->share;
}

/* Those of a sequence of so many rows and keys. */
static double pairs_of(const attn_desc *d, int64_t len)
{
    int64_t most = d->flags & ATTN_WINDOW && d->window_left < len ? d->window_left + 1 : len;
    if (!(d->flags & ATTN_CAUSAL)) return (double)len * (double)len;
    return (double)most * (double)(most + 1) / 2 + (double)(len - most) * (double)most;
}

/* Documents back to back, sequences back to back, or the rows and keys that sequences use: 3/4 and 1/2 of all. */
static void set_lengths(attn_bench_case *item, const feature *f)
{
    attn_desc *d = &item->desc;
    int64_t len = d->len_q, document = part(f->document, len);
    double kept = 0;
    for (int64_t at = 0; f->document && at < len; at += document) /* about six of them */
        item->lens[item->sequences++] = (int32_t)(len - at < document ? len - at : document);
    for (int b = 0; d->flags & ATTN_LENS_KV && b < d->batch; b++)
        item->lens[item->sequences++] = (int32_t)attn_ceil_div(len * (3 - b % 2), 4);
    for (int i = 0; i < item->sequences; i++)
        kept += pairs_of(d, item->lens[i]) / pairs_of(d, len);
    if (d->flags & ATTN_LENS_KV) d->visible_share = kept / item->sequences;
    if (d->flags & ATTN_INTERVALS) {
        d->interval_heads = 1, d->interval_vectors = d->flags & ATTN_CAUSAL ? 1 : 2;
        d->visible_share = kept;
    }
    if (!(d->flags & ATTN_VARLEN)) return;
    int of_one = item->sequences;
    for (; item->sequences < d->batch * of_one; item->sequences++)
        item->lens[item->sequences] = item->lens[item->sequences - of_one];
    d->total_q = d->total_kv = d->batch * len;
    d->batch = item->sequences, d->len_q = d->len_kv = document;
}

static void set_scores(attn_bench_case *item, const feature *f)
{
    attn_desc *d = &item->desc;
    if (d->flags & ATTN_SOFTCAP) d->softcap = 30;
    if (d->flags & ATTN_ALIBI) d->alibi_batch = 1;
    if (d->flags & ATTN_DROPOUT) d->dropout_p = 0.1f;
    item->gradients = f->gradients;
    if (!f->bias) return;
    bool keys = f->bias == BIAS_KEYS;
    d->bias_dtype = f->bias == BIAS_F32 ? ATTN_F32 : d->dtype == ATTN_F32 ? ATTN_BF16 : d->dtype;
    d->bias_extent[0] = keys || f->bias == BIAS_OWN ? d->batch : 1;
    d->bias_extent[1] = keys ? 1 : d->heads_q;
    d->bias_extent[2] = keys ? 1 : d->len_q;
    d->bias_extent[3] = d->len_kv;
}

static void set_shape(attn_bench_case *item, const feature *f)
{
    attn_desc *d = &item->desc;
    static const int eighths[] = {
        [SAME] = 8, [FIVE_EIGHTHS] = 5, [THREE_QUARTERS] = 6, [ONE_LESS] = 8, [WIDER_QK] = 8
    };
    d->dim_qk = d->dim_v = attn_ceil_div(d->dim_qk * eighths[f->dims], 8) - (f->dims == ONE_LESS);
    if (f->dims == WIDER_QK) d->dim_qk = d->dim_v + d->dim_v / 2;
    if (f->dtype) d->dtype = f->dtype;
    if (f->groups) d->heads_kv = f->groups > 0 && d->heads_q % f->groups == 0 ? d->heads_q / f->groups : 1;
    if (f->misaligned) item->shift = (int)(d->alignment = attn_dtype_size(d->dtype));
}

/* The masks as text, "causal window:512". attn_bench_variant names what is not a mask. */
static void name_mask(attn_bench_case *item)
{
    const attn_desc *d = &item->desc;
    char *text = item->mask;
    attn_text_buffer w = { text, sizeof item->mask, 0 };
    attn_say(&w, d->flags & ATTN_CAUSAL ? "causal" : "full");
    if (d->flags & ATTN_WINDOW) attn_say(&w, " window:%lld", (long long)d->window_left);
    if (d->flags & ATTN_CHUNK) attn_say(&w, " chunk:%lld", (long long)d->chunk);
    if (d->flags & ATTN_PREFIX) attn_say(&w, " prefix:%lld", (long long)item->prefix);
    if (d->flags & ATTN_INTERVALS) attn_say(&w, " documents:%d", (int)item->lens[0]);
    if (d->flags & ATTN_VARLEN) attn_say(&w, " packed:%d", (int)item->lens[0]);
    if (d->flags & ATTN_LENS_KV) attn_say(&w, " lens");
    if (d->flags & ATTN_BLOCKS) attn_say(&w, " blocks:%lld:%g%%", (long long)d->block_rows, 100 * item->share);
    if (d->flags & ATTN_BITS) attn_say(&w, d->bits_heads > 1 ? " head-bits:%g%%" : " bits:%g%%", 100 * item->share);
    if (d->bits_keys) attn_say(&w, " of %lld", (long long)d->bits_keys);
}

int attn_bench_features(const attn_desc *like, attn_bench_pass pass, attn_bench_case *cases)
{
    int count = 0;
    for (int i = 0; i < FEATURES; i++) {
        const feature *f = &features[i];
        if (f->gpu && like->device == ATTN_CPU) continue;
        if (f->gradients && pass != ATTN_BENCH_BACKWARD) continue; /* the forward is the same without */
        if (f->dtype && like->dtype != ATTN_BF16) continue;        /* beside bf16 */
        if (cases) {
            attn_bench_case *item = &cases[count];
            *item = (attn_bench_case){ .suite = "features", .pass = pass, .desc = *like, .plain = *like };
            item->desc.flags = f->flags, item->plain.flags = f->flags & ATTN_CAUSAL;
            set_shape(item, f);
            set_mask(item, f);
            set_scores(item, f);
            set_lengths(item, f);
            name_mask(item);
        }
        count++;
    }
    return count;
}

bool attn_bench_of_processor(const attn_bench_case *item)
{
    return attn_bench_is_feature(item) && item->desc.device == ATTN_CPU && item->desc.threads == 1;
}

/* ---- what comes of it ------------------------------------------------------------------------------ */

bool attn_bench_refused(const attn_bench_case *item, attn_bench_result *result)
{
    if (!attn_bench_is_feature(item)) return false;
    for (int i = 0; i < 2; i++) {
        attn_plan *plan;
        attn_desc d = item->desc;
        d.direction = i == 0 ? ATTN_FORWARD : ATTN_BACKWARD;
        if (i == 1 && item->pass < ATTN_BENCH_BACKWARD) continue;
        if (attn_plan_create(&plan, &d) == ATTN_OK) {
            attn_plan_destroy(plan);
            continue;
        }
        snprintf(result->refused, sizeof result->refused, "%s", attn_error());
        return true;
    }
    return false;
}

double attn_bench_plain_share(const attn_bench_result *r)
{
    if (!(r->plain.median > 0.0)) return 0.0;
    return r->plain.median / r->plain_flops * r->flops / r->subject.median;
}
