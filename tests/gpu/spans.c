#include "../scale.h"
#include "gpu.h"

/* A mask that leaves rows keys, and keys rows, side by side, or intervals that do for some kinds alone. */
typedef struct span_mask {
    uint32_t flags;
    check_interval interval;
    int vectors;
} span_mask;

void masks_of_spans(const attn_cuda_kernel *k)
{
    static const span_mask masks[] = {
        { ATTN_CHUNK | ATTN_CAUSAL, 0, 0 },
        { ATTN_PREFIX | ATTN_CAUSAL, 0, 0 },
        { ATTN_FIRST_KV | ATTN_CAUSAL | ATTN_LENS_KV, 0, 0 },
        { ATTN_POSITIONS | ATTN_WINDOW, 0, 0 },
        { ATTN_INTERVALS | ATTN_CAUSAL, CHECK_CAUSAL_DOCUMENT, 1 },
        { ATTN_INTERVALS, CHECK_DOCUMENT, 2 },
        { ATTN_INTERVALS | ATTN_CAUSAL | ATTN_WINDOW | ATTN_LENS_Q | ATTN_LENS_KV, CHECK_SLIDING, 1 },
        { ATTN_INTERVALS | ATTN_CAUSAL, CHECK_SHARE_QUESTION, 1 }, /* no spans */
        { ATTN_INTERVALS, CHECK_RANDOM_4, 4 },
        { ATTN_INTERVALS | ATTN_CAUSAL, CHECK_QK_SPARSE, 2 }, /* rows side by side, as only the device knows */
        { ATTN_INTERVALS | ATTN_CAUSAL, CHECK_CAUSAL_BLOCKWISE, 2 },
        { ATTN_PREFIX | ATTN_WINDOW | ATTN_CAUSAL, 0, 0 }, /* rows see keys apart, keys are seen by rows side by side */
    };
    int scale = test_scale(), count = (int)(sizeof masks / sizeof *masks);
    for (int i = 0; i < 2 * count && k->spans; i++) {
        const span_mask *m = &masks[i % count];
        bool few = i >= count, backward = attn_cuda_direction(k) == ATTN_BACKWARD; /* rows, and heads that share them */
        attn_desc d = { .flags = m->flags, .batch = 2, .heads_q = 4, .heads_kv = 2, .interval_vectors = m->vectors };
        check_options options = options_of(i);
        options.interval = m->interval;
        d.len_q = few ? k->q_tile / 2 - 3 : (backward ? 6 : 2) * k->q_tile + 37,
        d.len_kv = 5 * k->kv_tile + (i % 2 ? 64 : 11);
        if (m->vectors) d.interval_heads = 1 + i / 2 % 2;
        if (m->flags & ATTN_CHUNK) d.chunk = 100;
        if (m->flags & ATTN_WINDOW) d.window_left = 70, d.window_right = m->flags & ATTN_CAUSAL ? 0 : 9;
        bool needs_causal = k->needs & ATTN_CAUSAL && !(m->flags & ATTN_CAUSAL);
        bool gap = m->flags & ATTN_PREFIX && m->flags & ATTN_WINDOW && !backward;
        if (i % (scale < 8 ? 1 : scale / 8) || needs_causal || gap || m->flags & ~k->features) continue;
        check_kernel(k, d, options, false);
    }
}
