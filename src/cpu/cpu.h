/* What the parts of the CPU backend share. */
#ifndef ATTN_CPU_CPU_H
#define ATTN_CPU_CPU_H

#include "api/plan.h"
#include "cpu/kernel.h"

/* The kernel of a plan of this backend. */
static inline const attn_cpu_kernel *attn_cpu_kernel_of(const attn_plan *plan)
{
    return plan->own;
}

/* Why a kernel cannot compute a resolved problem with instruction sets up to isa; NULL: it can. */
const char *attn_cpu_obstacle(const attn_cpu_kernel *kernel, const attn_desc *desc, attn_isa isa);

/* The same but for the instruction set: of a machine that runs the kernel. */
const char *attn_cpu_cannot(const attn_cpu_kernel *kernel, const attn_desc *desc);

/* The instruction set that a plan is for: the one asked for, or, where that is ATTN_ISA_AUTO, the environment's. */
attn_status attn_cpu_wanted_isa(attn_isa asked, attn_isa *isa);

/* What turns or quantises rows, in the best instruction set that this machine and the environment allow. */
attn_status attn_cpu_row_ops(const attn_cpu_ops **ops);

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

typedef struct attn_backward_layout {
    int64_t grad_q_floats, rows_floats, scratch_floats; /* of a slot, of a thread */
    uint64_t nodes, views, scores, delta, sinks, slopes, grad_q, rows, scratch, total;
} attn_backward_layout;

bool attn_prefill_lay_out(const attn_plan *plan, attn_prefill_layout *layout);
bool attn_decode_lay_out(const attn_plan *plan, attn_decode_layout *layout);
bool attn_backward_lay_out(const attn_plan *plan, attn_backward_layout *layout);

/* args: checked. workspace: of the plan's size. */
void attn_prefill_run(const attn_plan *plan, const attn_args *args, void *workspace);
void attn_decode_run(const attn_plan *plan, const attn_args *args, void *workspace);
void attn_backward_run(const attn_plan *plan, const attn_args *args, void *workspace);

#endif
