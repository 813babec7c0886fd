/* Operations on pages, inside: what a plan is, what its flags ask for, and what a backend does. */
#ifndef ATTN_KV_OP_H
#define ATTN_KV_OP_H

#include <stdbool.h>

#include "attn_kv.h"
#include "num/half.h"

/* What a field or a pointer needs to be there; ATTN_KV_NEED_X is a bit. X(name, what it is called). */
#define ATTN_KV_NEED_LIST(X)                                \
    X(ANY, "any operation")                                 \
    X(APPEND, "op = ATTN_KV_APPEND")                        \
    X(GATHER, "op = ATTN_KV_GATHER")                        \
    X(COPY, "op = ATTN_KV_COPY")                            \
    X(ROWS, "op = ATTN_KV_APPEND or ATTN_KV_PACKED")        \
    X(TABLE, "a page table: not ATTN_KV_SLOTS, not a copy") \
    X(STARTS, "a page table with table_width = 0")          \
    X(CU_LENS, "ATTN_KV_PACKED, or APPEND without SLOTS")   \
    X(TOKENS, "op = ATTN_KV_APPEND or ATTN_KV_GATHER")      \
    X(COUNT, "ATTN_KV_SLOTS or op = ATTN_KV_COPY")          \
    X(SLOTS, "ATTN_KV_SLOTS")                               \
    X(ROTARY, "ATTN_KV_ROTARY")                             \
    X(ROTARY_Q, "ATTN_KV_ROTARY_Q")                         \
    X(POSITIONS, "ATTN_KV_POSITIONS")                       \
    X(SCALES, "ATTN_KV_SCALES")                             \
    X(SCALES_FROM, "op = ATTN_KV_COPY with ATTN_KV_SCALES")

enum {
#define ATTN_KV_NEED(name, text) ATTN_KV_NEED_BIT_##name,
    ATTN_KV_NEED_LIST(ATTN_KV_NEED)
#undef ATTN_KV_NEED
};

/* The bits of all that the descriptor has. */
uint32_t attn_kv_needs(const attn_kv_desc *desc);

/* What a need is called. */
const char *attn_kv_need_name(int bit);

struct attn_rotary_task;
struct attn_convert_task;

typedef struct attn_kv_backend {
    attn_status (*create)(
        attn_kv_plan *plan); /* desc is resolved; sets the rest, or fails and leaves nothing to free */
    void (*destroy)(attn_kv_plan *plan);
    attn_status (*run)(const attn_kv_plan *plan, const attn_kv_args *args, void *stream); /* args: not checked */
} attn_kv_backend;

extern const attn_kv_backend attn_kv_cpu_backend, attn_kv_cuda_backend;

struct attn_kv_plan {
    const attn_kv_backend *backend;
    attn_kv_desc desc; /* resolved */

    void *own; /* ATTN_CUDA: what its backend keeps */

    /* ATTN_CPU */
    attn_desc loop; /* what src/cpu/threads.h reads of a descriptor */
    void (*rotate)(const struct attn_rotary_task *);
    void (*convert)(const struct attn_convert_task *);
    int64_t stream_items; /* a run of more items writes past the caches; tests set it */
};

/* Checks *desc whole and fills in every default: dim_v, rotary_dim, pages_dtype, strides. */
attn_status attn_kv_resolve(attn_kv_desc *out, const attn_kv_desc *desc, size_t size);

/* Extents of the tensors of a resolved descriptor: of k, or k_out, and of q. */
void attn_kv_extents(const attn_kv_desc *desc, int64_t k[4], int64_t q[4]);

/* Extents of the scales of K and V, and of those that a copy reads. */
typedef struct attn_kv_scale_shape {
    int64_t k[4], v[4], k_from[4], v_from[4];
} attn_kv_scale_shape;

attn_kv_scale_shape attn_kv_scale_shape_of(const attn_kv_desc *desc);

/* Whether the operation writes scales. */
static inline bool attn_kv_writes_scales(const attn_kv_desc *desc)
{
    return desc->flags & ATTN_KV_TOKEN_SCALES || (desc->op == ATTN_KV_COPY && desc->flags & ATTN_KV_SCALES);
}

/* Checks the arguments: pointers, alignment, overlap, counts. And what the arrays say, where the host may read them. */
attn_status attn_kv_check_arrays(const attn_kv_desc *desc, const attn_kv_args *args);
attn_status attn_kv_check_contents(const attn_kv_desc *desc, const attn_kv_args *args);

/* Entries of the page table of sequence b. */
static inline const int32_t *attn_kv_table(const attn_kv_desc *desc, const attn_kv_args *args, int64_t b)
{
    return args->page_table + (desc->table_width ? b * desc->table_width : (int64_t)args->page_starts[b]);
}

/* Rows of k, v and q in this run. */
static inline int64_t attn_kv_rows(const attn_kv_desc *desc, const attn_kv_args *args)
{
    return desc->flags & ATTN_KV_SLOTS ? args->count : desc->batch > 0 ? args->cu_lens[desc->batch] : 0;
}

#endif
