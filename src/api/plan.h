/* A plan as all backends see it, and what a backend is. */
#ifndef ATTN_API_PLAN_H
#define ATTN_API_PLAN_H

#include "planner/choice.h"
#include "problem/strategy.h"
#include "base/text_buffer.h"

/* What a run may leave for a merge instead of o and lse: the results of parts of each row's keys. They are f32, each as
 * if its keys were all; part i begins i steps of elements after the first. */
typedef struct attn_parts {
    int most; /* that may be left, 1 at least; set by the caller */
    int count;
    const float *o, *lse; /* (1, head, row, dim), and (1, head, row), packed */
    int64_t o_step, lse_step;
} attn_parts;

typedef struct attn_backend {
    /* For plan->desc, which is resolved: sets all the rest but `backend`, or fails and leaves nothing to free. */
    attn_status (*create)(attn_plan *plan);
    /* Frees what create made, but for the plan itself. */
    void (*destroy)(attn_plan *plan);
    /* workspace: not NULL where the plan needs one. Nothing of *args has been checked. parts: NULL, or as
     * attn_run_parts has it: one part, o and lse. A backend that does not know of parts leaves it so. */
    attn_status (*run)(const attn_plan *plan, const attn_args *args, void *workspace, void *stream, attn_parts *parts);
    /* Writes the plan's lines between "kernel" and "workspace". */
    void (*describe)(const attn_plan *plan, attn_text_buffer *words);
} attn_backend;

extern const attn_backend attn_cpu_backend, attn_cuda_backend, attn_reference_backend;

struct attn_plan {
    const attn_backend *backend;
    attn_desc desc; /* resolved */
    attn_choice choice;
    const attn_tiles *tiles;    /* while it is made: what somebody else has decided, or NULL */
    uint64_t workspace, packed; /* bytes */
    const char *kernel_name, *isa_name;
    char why[160];
    attn_overrides overrides;          /* of desc.strategy */
    char strategy[ATTN_STRATEGY_TEXT]; /* all that is decided */
    bool holds_kv;                     /* what is made holds where k and v lie: no run may say it */
    const void *own;                   /* what the backend alone knows */
};

/* attn_run of packed sequences (ATTN_VARLEN, ATTN_OUT_F32, o head by head, packed), which may leave parts. They lie in
 * the workspace, or are one: o and lse of *args. */
attn_status attn_run_parts(const attn_plan *plan, const attn_args *args, void *workspace, void *stream,
                           attn_parts *parts);

/* attn_plan_create with some of its choices made. For sweeps over them: a tile that a kernel cannot take is replaced by
 * the nearest that it can. */
attn_status attn_plan_create_tiled(attn_plan **plan, const attn_desc *desc, const attn_tiles *tiles);

#endif
