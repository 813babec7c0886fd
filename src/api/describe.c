/* What a plan says of itself, in words and in numbers. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/error.h"
#include "cpu/cpu.h"

attn_status attn_plan_get_info_sized(const attn_plan *plan, attn_plan_info *info, size_t info_size)
{
    if (!plan || !info) return attn_fail(ATTN_INVALID, "%s = NULL", plan ? "info" : "plan");
    const attn_choice *c = &plan->choice;
    attn_plan_info full = {
        .kernel = plan->kernel->name,
        .isa = attn_isa_name(plan->kernel->isa),
        .why = plan->why,
        .threads = c->threads,
        .splits = c->splits,
        .rows_tile = c->rows_tile,
        .keys_tile = c->keys_tile,
        .packed_heads = c->packed_heads,
        .workspace_bytes = plan->workspace,
        .packed_bytes = plan->packed,
        .pairs = c->pairs,
        .flops = c->flops,
        .memory_bytes = c->memory_bytes,
        .cache_bytes = c->cache_bytes,
        .seconds = c->seconds,
    };
    if (info_size > sizeof full) memset((char *)info + sizeof full, 0, info_size - sizeof full);
    memcpy(info, &full, info_size < sizeof full ? info_size : sizeof full);
    return ATTN_OK;
}

/* Text of any length into a buffer of fixed size. */
typedef struct writer {
    char *text;
    size_t size, length;
} writer;

__attribute__((format(printf, 2, 3))) static void say(writer *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t left = w->length < w->size ? w->size - w->length : 0;
    int n = vsnprintf(left ? w->text + w->length : NULL, left, format, args);
    va_end(args);
    if (n > 0) w->length += (size_t)n;
}

/* Four significant digits, in any locale. */
static void say_number(writer *w, double x)
{
    char text[ATTN_DECIMAL_SIZE];
    double unit = x != 0 ? pow(10, floor(log10(fabs(x))) - 3) : 1;
    say(w, "%s", attn_decimal(text, round(x / unit) * unit));
}

static void say_bytes(writer *w, double bytes)
{
    static const char *const unit[] = { " B", " KiB", " MiB", " GiB", " TiB" };
    int i = 0;
    for (; bytes >= 1024 && i < 4; i++)
        bytes /= 1024;
    say_number(w, bytes);
    say(w, "%s", unit[i]);
}

static void say_flags(writer *w, uint32_t flags)
{
    static const char *const name[] = { "causal", "window", "chunk",   "prefix",  "intervals",    "blocks",
                                        "bits",   "varlen", "lens_q",  "lens_kv", "softcap",      "alibi",
                                        "bias",   "sink",   "dropout", "out_f32", "deterministic" };
    if (!flags) say(w, ", no mask");
    for (unsigned i = 0; i < sizeof name / sizeof name[0]; i++)
        if (flags >> i & 1) say(w, ", %s", name[i]);
}

size_t attn_plan_describe(const attn_plan *plan, char *text, size_t size)
{
    static const char *const dtypes[] = { "", "f32", "f16", "bf16" };
    const attn_desc *d = &plan->desc;
    const attn_choice *c = &plan->choice;
    writer w = { text, size, 0 };
    if (size) text[0] = 0;
    say(&w, "problem    forward, %s, batch %lld, heads %lld over %lld, %lld rows x %lld keys, dim %lld/%lld",
        dtypes[d->dtype], (long long)d->batch, (long long)d->heads_q, (long long)d->heads_kv, (long long)d->len_q,
        (long long)d->len_kv, (long long)d->dim_qk, (long long)d->dim_v);
    say_flags(&w, d->flags);
    say(&w, "\nkernel     %s: %s\n", plan->kernel->name, plan->why);
    say(&w, "tiles      %lld query rows x %lld keys, registers %lld x %lld\n", (long long)c->rows_tile,
        (long long)c->keys_tile, (long long)plan->kernel->rows, (long long)plan->kernel->cols);
    say(&w, "threads    %d", c->threads);
    if (c->splits > 1) say(&w, ", keys split into %d parts merged by LSE", c->splits);
    say(&w, "\nworkspace  ");
    say_bytes(&w, (double)plan->workspace);
    if (plan->packed) {
        say(&w, ", of which ");
        say_bytes(&w, (double)plan->packed);
        say(&w, " hold %lld packed KV head%s", (long long)c->packed_heads, c->packed_heads == 1 ? "" : "s");
    }
    say(&w, "\nwork       ");
    say_number(&w, c->pairs);
    say(&w, " visible pairs, ");
    say_number(&w, c->flops * 1e-9);
    say(&w, " GFLOP\nmemory     ");
    say_bytes(&w, c->memory_bytes);
    say(&w, " to and from memory, ");
    say_bytes(&w, c->cache_bytes);
    say(&w, " between L2 and L1\npredicted  ");
    say_number(&w, c->seconds * 1e3);
    say(&w, " ms");
    if (c->seconds > 0) {
        say(&w, ", ");
        say_number(&w, c->flops / c->seconds * 1e-9);
        say(&w, " GFLOP/s, ");
        say_number(&w, c->memory_bytes / c->seconds * 1e-9);
        say(&w, " GB/s");
    }
    say(&w, "\n");
    return w.length;
}
