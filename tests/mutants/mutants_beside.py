"""Mutants of what is beside the library: check/, examples/gpt; choice.py says what a mutant is."""

GPT = "examples/gpt/"

MUTANTS = [
    # random problems, and their reference
    ("check/gpu/reference_pairs.h", "if (d->flags & ATTN_CAUSAL && key > t) in_band = false;",
     "if (d->flags & ATTN_CAUSAL && key >= t) in_band = false;", "the GPU's reference: the diagonal is hidden", "random"),
    ("check/gpu/reference.cu", "sum[k] = there ? sums[k * p->dim] : 0, naive[k]", "sum[k] = 0, naive[k]",
     "the GPU's reference: each launch begins its sums anew", "random"),
    ("check/random_problem.c", "if (d->block_heads > 1) d->block_heads = h;", "", "a smaller problem keeps its lists", "random"),
    ("check/random_shrink.c", "*desc = d, *options = o, steps[count++] = step;", "*desc = d, steps[count++] = step;",
     "shrinking forgets what it chose", "random"),
    # the GPT
    (GPT + "layers.c", "j->back ? -1.0f : 1.0f", "1.0f", "rotary places: the backward turns on instead of back", "gpt"),
    (GPT + "layers.c", "scale * scale * scale / (float)j->dim", "scale * scale / (float)j->dim",
     "norm: a power of the scale is lost in the backward", "gpt"),
    (GPT + "layers.c", "memset(dembed, 0, (size_t)(GPT_BYTES * dim) * sizeof *dembed);", "",
     "embedding: gradients of the step before stay", "gpt"),
    (GPT + "model.c", "w->value, t, d, d, true)", "w->value, t, d, d, false)", "the gradient by way of q and k is lost", "gpt"),
    (GPT + "attention.c", ".lse = f->lse + layer * f->lse_layer", ".lse = f->lse", "another layer's log-sum-exp", "gpt"),
    (GPT + "sample.c", "r->now->pass->first = r->used;", "", "the cache: every byte read stands at place 0", "gpt"),
    (GPT + "sample.c", ".window_left = r->context - 1", ".window_left = r->context", "the cache: one key too far back", "gpt"),
    (GPT + "checkpoint.c", "run->random = (uint64_t)state[2] << 32 | state[1];", "run->random = state[1];",
     "half of the generator is not resumed", "gpt"),
    (GPT + "train.c", "return steps < (double)step ? step :", "return steps < (double)step ? step + 1 :",
     "a run by the clock goes on when its time is over", "gpt"),
    (GPT + "adamw.c", "norm > 1.0 ? (float)(1.0 / norm) : 1.0f", "1.0f", "gradients are not clipped", "gpt"),
]
