/* The CPU backend as plan and run see it. */
#ifndef ATTN_CPU_CPU_H
#define ATTN_CPU_CPU_H

#include "cpu/kernel.h"
#include "napkin/cost.h"

struct attn_plan {
    attn_desc desc; /* resolved */
    const attn_cpu_kernel *kernel;
    attn_choice choice;
    uint64_t workspace, packed; /* bytes */
    char why[160];
};

/* Where everything lies in the workspace: byte offsets from its first 64-byte boundary. False: the sizes overflow. */
typedef struct attn_prefill_layout {
    int64_t pitch; /* keys a slot holds */
    int64_t k_floats, slot_floats, scratch_floats;
    uint64_t nodes, progress, scratch, slots, total, packed;
} attn_prefill_layout;

typedef struct attn_decode_layout {
    int64_t rows, partial_floats, scratch_floats;
    uint64_t nodes, views, scores, partials, scratch, total;
} attn_decode_layout;

bool attn_prefill_lay_out(const attn_plan *plan, attn_prefill_layout *layout);
bool attn_decode_lay_out(const attn_plan *plan, attn_decode_layout *layout);

/* args: checked. workspace: of the plan's size. */
void attn_prefill_run(const attn_plan *plan, const attn_args *args, void *workspace);
void attn_decode_run(const attn_plan *plan, const attn_args *args, void *workspace);

#endif
