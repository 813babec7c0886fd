/* The forward on Hopper. */
#ifndef ATTN_CUDA_SM90_HOST_FORWARD_H
#define ATTN_CUDA_SM90_HOST_FORWARD_H

#include "cuda/sm90/host/sm90.h"

/* How a kernel would run the forward: all of its schedule but the counter's address. */
typedef struct attn_sm90_forward_choice {
    attn_cuda_choice base;
    attn_sm90_schedule schedule;
} attn_sm90_forward_choice;

/* As attn_cuda_pass.predict. */
bool attn_sm90_cost_forward(const attn_cuda_problem *problem, const attn_cuda_kernel *kernel,
                            attn_sm90_forward_choice *choice);

/* All that a choice decides. */
attn_overrides attn_sm90_decided_forward(const attn_desc *desc, const attn_sm90_forward_choice *choice);

/* Whether a variant stores o by 16 bytes: what is split it stores as f32. */
static inline bool attn_sm90_stores_wide(const attn_desc *desc, const attn_sm90_schedule *s)
{
    return s->total > s->split_tiles * s->splits && !(desc->flags & ATTN_OUT_F32);
}

extern const attn_cuda_pass attn_sm90_forward;

#endif
