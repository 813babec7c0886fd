/* What a plan says of itself, in words and in numbers. */
#include "base/error.h"
#include "api/plan.h"
#include "problem/desc.h"

attn_status attn_plan_get_info_sized(const attn_plan *plan, attn_plan_info *info, size_t info_size)
{
    if (!plan || !info) return attn_fail(ATTN_INVALID, "%s = NULL", plan ? "info" : "plan");
    const attn_choice *c = &plan->choice;
    attn_plan_info full = {
        .kernel = plan->kernel_name,
        .isa = plan->isa_name,
        .why = plan->why,
        .threads = c->threads,
        .splits = c->splits,
        .q_tile = c->q_tile,
        .kv_tile = c->kv_tile,
        .packed_kv_heads = c->packed_kv_heads,
        .workspace_bytes = plan->workspace,
        .packed_kv_bytes = plan->packed,
        .pairs = c->pairs,
        .flops = c->flops,
        .memory_bytes = attn_choice_memory(c),
        .cache_bytes = attn_choice_cache(c),
        .seconds = c->seconds,
        .strategy = plan->strategy,
    };
    attn_struct_fill(info, info_size, &full, sizeof full);
    return ATTN_OK;
}

static void say_flags(attn_text_buffer *w, uint32_t flags)
{
    static const char *const name[] = { "causal",    "window",        "chunk",         "prefix",   "intervals",
                                        "blocks",    "bits",          "varlen",        "lens_q",   "lens_kv",
                                        "softcap",   "alibi",         "bias",          "sink",     "dropout",
                                        "out_f32",   "deterministic", "paged",         "first_kv", "positions",
                                        "scales_kv", "scales_q",      "dropout_bases", "delta",    "add" };
    if (!flags) attn_say(w, ", no mask");
    for (unsigned i = 0; i < sizeof name / sizeof name[0]; i++)
        if (flags >> i & 1) attn_say(w, ", %s", name[i]);
}

/* What shares a scale. */
static void say_scale(attn_text_buffer *w, const char *name, int64_t rows, const int64_t stride[4])
{
    attn_say(w, ", %s per ", name);
    if (!stride[0] && !stride[1] && !stride[2] && !stride[3]) {
        attn_say(w, "tensor");
        return;
    }
    if (rows == 1)
        attn_say(w, "row");
    else if (rows)
        attn_say(w, "%lld rows", (long long)rows);
    else
        attn_say(w, "sequence");
    attn_say(w, "%s%s", stride[2] ? " and head" : "", stride[3] ? " and channel" : "");
}

static void say_scales(attn_text_buffer *w, const attn_desc *d)
{
    if (d->flags & ATTN_SCALES_Q) say_scale(w, "q_scale", d->q_scale_rows, d->q_scale_stride);
    if (!(d->flags & ATTN_SCALES_KV)) return;
    say_scale(w, "k_scale", d->k_scale_rows, d->k_scale_stride);
    say_scale(w, "v_scale", d->v_scale_rows, d->v_scale_stride);
}

size_t attn_plan_describe(const attn_plan *plan, char *text, size_t size)
{
    attn_text_buffer w;
    if (!attn_text_buffer_begin(&w, text, size, plan, "plan", "attn_plan_create")) return 0;
    const attn_desc *d = &plan->desc;
    const attn_choice *c = &plan->choice;
    attn_say(&w, "problem    %s, %s", d->direction == ATTN_BACKWARD ? "backward" : "forward",
             attn_dtype_name(d->dtype));
    if (attn_kv_dtype(d) != d->dtype) attn_say(&w, " over %s", attn_dtype_name(attn_kv_dtype(d)));
    attn_say(&w, ", batch %lld, heads %lld/%lld, %lld rows x %lld keys, dim %lld/%lld", (long long)d->batch,
             (long long)d->heads_q, (long long)d->heads_kv, (long long)d->len_q, (long long)d->len_kv,
             (long long)d->dim_qk, (long long)d->dim_v);
    say_flags(&w, d->flags);
    if (d->device == ATTN_CUDA && d->alignment < 16) attn_say(&w, ", addresses of %lld bytes", (long long)d->alignment);
    if (d->grad_dtype) attn_say(&w, ", gradients %s", attn_dtype_name(d->grad_dtype));
    say_scales(&w, d);
    if (attn_out_dtype(d) != d->dtype && attn_out_dtype(d) != ATTN_F32)
        attn_say(&w, ", o in %s", attn_dtype_name(attn_out_dtype(d)));
    attn_say(&w, "\nkernel     %s: %s\n", plan->kernel_name, plan->why);
    plan->backend->describe(plan, &w);
    if (plan->strategy[0]) attn_say(&w, "strategy   %s\n", plan->strategy);
    attn_say(&w, "workspace  ");
    attn_say_bytes(&w, (double)plan->workspace);
    if (plan->packed) {
        attn_say(&w, ", of which ");
        attn_say_bytes(&w, (double)plan->packed);
        attn_say(&w, " hold %lld packed KV head%s", (long long)c->packed_kv_heads, c->packed_kv_heads == 1 ? "" : "s");
    }
    attn_say(&w, "\nwork       ");
    attn_say_number(&w, c->pairs);
    attn_say(&w, " visible pairs, ");
    attn_say_number(&w, c->flops * 1e-9);
    attn_say(&w, " GFLOP\n");
    if (!c->levels) return w.length; /* the reference predicts nothing */
    attn_say(&w, "bytes      ");
    for (int i = 0; i < c->levels; i++) {
        attn_say(&w, i ? ", %s " : "%s ", c->level[i].name);
        attn_say_bytes(&w, c->level[i].bytes);
    }
    attn_say(&w, "\npredicted  ");
    attn_say_seconds(&w, c->seconds);
    if (c->seconds > 0) {
        attn_say(&w, ", ");
        attn_say_number(&w, c->flops / c->seconds * 1e-9);
        attn_say(&w, " GFLOP/s, ");
        attn_say_number(&w, attn_choice_memory(c) / c->seconds * 1e-9);
        attn_say(&w, " GB/s; %s decides", c->bound);
    }
    attn_say(&w, "\n");
    return w.length;
}
