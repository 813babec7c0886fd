/* A problem in one line of text, its defaults left out. */
#include <stdarg.h>
#include <stdio.h>

#include "check/problem.h"
#include "problem/desc.h"

#define NAME(enumerator, name) [enumerator] = name,
#define INTERVAL_NAME(enumerator, name, causal, vectors) [enumerator] = name,
static const char *const data_names[] = { CHECK_DATA_LIST(NAME) };
static const char *const layout_names[] = { CHECK_LAYOUT_LIST(NAME) };
static const char *const interval_names[] = { CHECK_INTERVAL_LIST(INTERVAL_NAME) };
static const char *const block_names[] = { CHECK_BLOCK_LIST(NAME) };

typedef struct text {
    char *at;
    size_t left;
} text;

__attribute__((format(printf, 2, 3))) static void add(text *t, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(t->at, t->left, format, arguments);
    va_end(arguments);
    size_t used = n < 0 ? 0 : (size_t)n < t->left ? (size_t)n : t->left - 1;
    t->at += used;
    t->left -= used;
}

static void add_masks(text *t, const attn_desc *d, const check_options *o)
{
    static const struct {
        uint32_t flag;
        const char *name;
    } plain[] = { { ATTN_CAUSAL, "causal" },      { ATTN_PREFIX, "prefix" },   { ATTN_VARLEN, "varlen" },
                  { ATTN_LENS_Q, "lens_q" },      { ATTN_LENS_KV, "lens_kv" }, { ATTN_FIRST_KV, "first_kv" },
                  { ATTN_POSITIONS, "positions" } };
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (d->flags & plain[i].flag) add(t, " %s", plain[i].name);
    if (d->flags & ATTN_WINDOW) add(t, " window %lld,%lld", (long long)d->window_left, (long long)d->window_right);
    if (d->flags & ATTN_CHUNK) add(t, " chunk %lld", (long long)d->chunk);
    if (d->flags & ATTN_INTERVALS)
        add(t, " intervals %s x%lld, heads %lld", interval_names[o->interval], (long long)d->interval_vectors,
            (long long)d->interval_heads);
    if (d->flags & ATTN_BLOCKS)
        add(t, " blocks %lldx%lld %s, batch %lld, heads %lld", (long long)d->block_rows, (long long)d->block_keys,
            block_names[o->blocks], (long long)d->block_batch, (long long)d->block_heads);
    if (d->flags & ATTN_BITS)
        add(t, " bits batch %lld, heads %lld", (long long)d->bits_batch, (long long)d->bits_heads);
    if (d->bits_keys) add(t, " of %lld keys", (long long)d->bits_keys);
    if (d->flags & ATTN_PAGED)
        add(t, " paged %lld x %lld, %s %lld", (long long)d->pages, (long long)d->page_size,
            d->table_width ? "width" : "total", (long long)(d->table_width ? d->table_width : d->table_total));
}

static void add_scores(text *t, const attn_desc *d, const check_options *o)
{
    if (d->scale != 0) add(t, " scale %g", (double)d->scale);
    if (d->flags & ATTN_SOFTCAP) add(t, " softcap %g", (double)d->softcap);
    if (d->flags & ATTN_ALIBI) add(t, " alibi batch %lld", (long long)d->alibi_batch);
    if (d->flags & ATTN_BIAS)
        add(t, " bias %s %lldx%lldx%lldx%lld%s%s", attn_dtype_name(d->bias_dtype), (long long)d->bias_extent[0],
            (long long)d->bias_extent[1], (long long)d->bias_extent[2], (long long)d->bias_extent[3],
            d->bias_stride[2] < 0 ? " by distance" : "", o->bias_infinite ? " with -inf" : "");
    if (d->flags & ATTN_SINK) add(t, " sink");
    if (d->flags & ATTN_DROPOUT) add(t, " dropout %g", (double)d->dropout_p);
    if (d->flags & ATTN_DROPOUT_BASES) add(t, " from bases");
    if (d->alignment && d->alignment < 16) add(t, ", addresses of %lld bytes", (long long)d->alignment);
    if (d->grad_dtype) add(t, ", gradients %s", attn_dtype_name(d->grad_dtype));
    if (d->flags & ATTN_DELTA) add(t, ", delta");
    if (d->flags & ATTN_ADD) add(t, ", added");
}

static void add_strides(text *t, const char *name, const int64_t stride[4])
{
    add(t, ", %s by %lld %lld %lld", name, (long long)stride[0], (long long)stride[1], (long long)stride[2]);
}

static void add_scale(text *t, const char *name, int64_t rows, const int64_t stride[4])
{
    add(t, ", %s scales of %lld rows by %lld %lld %lld %lld", name, (long long)rows, (long long)stride[0],
        (long long)stride[1], (long long)stride[2], (long long)stride[3]);
}

static void add_scales(text *t, const attn_desc *d)
{
    if (d->flags & ATTN_SCALES_Q) {
        add_scale(t, "q", d->q_scale_rows, d->q_scale_stride);
        if (d->q_scale_heads) add(t, " of %lld heads", (long long)d->q_scale_heads);
    }
    if (!(d->flags & ATTN_SCALES_KV)) return;
    add_scale(t, "k", d->k_scale_rows, d->k_scale_stride);
    add_scale(t, "v", d->v_scale_rows, d->v_scale_stride);
}

static void add_layout(text *t, const attn_desc *desc, const check_options *o)
{
    if (!o->strides && o->layout != CHECK_PACKED) add(t, ", %s", layout_names[o->layout]);
    if (o->shift) add(t, ", %d bytes beside a boundary", o->shift);
    if (!o->strides) return;
    attn_desc d = *desc;
    check_problem_lay_out(&d, o);
    add_strides(t, "q", d.q_stride);
    add_strides(t, "k", d.k_stride);
    add_strides(t, "v", d.v_stride);
    add_strides(t, "o", d.o_stride);
    if (d.direction != ATTN_BACKWARD) return;
    add_strides(t, "grad_o", d.grad_o_stride);
    add_strides(t, "grad_q", d.grad_q_stride);
    add_strides(t, "grad_k", d.grad_k_stride);
    add_strides(t, "grad_v", d.grad_v_stride);
}

void check_problem_print(const attn_desc *d, const check_options *o, char *out, size_t size)
{
    text t = { out, size };
    int64_t heads_kv = d->heads_kv ? d->heads_kv : d->heads_q;
    attn_dtype kv = attn_kv_dtype(d), stored = attn_out_dtype(d);
    add(&t, "%s%s%s%s%s%s batch %lld, heads %lld/%lld, lengths %lldx%lld, dims %lld/%lld",
        d->direction == ATTN_BACKWARD ? "backward, " : "", attn_dtype_name(d->dtype), kv != d->dtype ? " over " : "",
        kv != d->dtype ? attn_dtype_name(kv) : "", stored != d->dtype ? " to " : "",
        stored != d->dtype ? attn_dtype_name(stored) : "", (long long)d->batch, (long long)d->heads_q,
        (long long)heads_kv, (long long)d->len_q, (long long)d->len_kv, (long long)d->dim_qk,
        (long long)(d->dim_v ? d->dim_v : d->dim_qk));
    add_masks(&t, d, o);
    add_scores(&t, d, o);
    add_scales(&t, d);
    if (o->data != CHECK_PLAIN) add(&t, ", data %s", data_names[o->data]);
    add_layout(&t, d, o);
    if (d->flags & ATTN_DETERMINISTIC) add(&t, ", deterministic");
    if (o->strategy[0]) add(&t, ", strategy %s", o->strategy);
    if (d->device == ATTN_CPU) add(&t, ", threads %d%s", (int)d->threads, d->parallel_for ? " of the caller" : "");
}
