/* The CUDA backend's kernels as the planner sees them, and what they are made from. */
#ifndef ATTN_CUDA_KERNEL_H
#define ATTN_CUDA_KERNEL_H

#include <stdbool.h>

#include "attn.h"
#include "cuda/nvrtc.h"

/* FORWARD, DECODE, BACKWARD: a variant, a row of an architecture's variants.txt; DECODE: the forward of few rows.
 * FALLBACK, FALLBACK_BACKWARD: every feature, stride and dim, not fast. */
typedef enum attn_cuda_form {
    ATTN_CUDA_FORWARD,
    ATTN_CUDA_FALLBACK,
    ATTN_CUDA_DECODE,
    ATTN_CUDA_BACKWARD,
    ATTN_CUDA_FALLBACK_BACKWARD,
    ATTN_CUDA_FORMS
} attn_cuda_form;

enum {
    ATTN_CUDA_MASKS = ATTN_CAUSAL | ATTN_WINDOW | ATTN_CHUNK | ATTN_PREFIX | ATTN_INTERVALS | ATTN_BLOCKS | ATTN_BITS,
    ATTN_CUDA_SCORES = ATTN_SOFTCAP | ATTN_ALIBI | ATTN_BIAS | ATTN_DROPOUT,
    ATTN_CUDA_LENGTHS = ATTN_VARLEN | ATTN_LENS_Q | ATTN_LENS_KV,
    ATTN_CUDA_CACHES = ATTN_PAGED | ATTN_FIRST_KV | ATTN_POSITIONS
};

enum {
    ATTN_CUDA_FALLBACK_ROWS = 8, /* query rows of a CTA of FALLBACK, rows or keys of FALLBACK_BACKWARD's */
    ATTN_CUDA_OPTIONS = 16
};

/* An architecture of GPUs. Its device code has a folder of its own; what the backend asks of it is in arch.h. */
typedef struct attn_cuda_arch {
    const char *name;                                   /* in its kernels' names */
    const char *isa;                                    /* as attn_plan_info.isa names it */
    const char *compile;                                /* the option that has NVRTC compile for it */
    const char *folder;                                 /* of its texts, as #include names it */
    int major, minor;                                   /* compute capability */
    const struct attn_cuda_pass *pass[ATTN_CUDA_FORMS]; /* what predicts, plans and runs kernels of each form */
} attn_cuda_arch;

typedef struct attn_cuda_kernel {
    const attn_cuda_arch *arch;
    const char *name;   /* as `attn kernels` lists it */
    const char *symbol; /* in its code */
    const char *unit;   /* of the image that holds it */
    attn_cuda_form form;
    attn_dtype dtype;                       /* of q */
    uint32_t kv_dtypes;                     /* bit attn_dtype: those of k and v that it takes */
    int dim, dim_v;                         /* the greatest it takes */
    int q_tile, kv_tile;                    /* rows of each */
    int stages;                             /* of the pipeline that streams by */
    int cluster;                            /* CTAs launched together: its grid is a multiple */
    bool finalises_dq;                      /* backward: in a fixed order, and the last work item finalises dQ */
    bool paged;                             /* forward: of ATTN_PAGED alone */
    bool tma;                               /* a variant that reads its tensors by TMA */
    bool spans;                             /* a row's keys, or in the backward a key's rows, lie side by side */
    bool transposed;                        /* forward: reads V from a transposed copy */
    bool block_scales;                      /* for scales of blocks of q and k and of channels of v alone */
    uint32_t features;                      /* flags: what it computes */
    uint32_t needs;                         /* of these, what a problem must ask for */
    unsigned threads;                       /* of a block */
    unsigned shared;                        /* bytes of dynamic shared memory */
    int spills;                             /* bytes of spilled registers that the build allows */
    bool asked;                             /* nvcc does not compile it into the library: NVRTC does, for a plan */
    const char *source;                     /* a variant's: what is compiled for it alone; else NULL */
    const char *options[ATTN_CUDA_OPTIONS]; /* what its row defines, for the compiler; NULL at the end */
} attn_cuda_kernel;

/* Whether a kernel takes a problem's ranges. Kernels for many rows do not find where a chunk of positions starts.
 * Kernels of spans take no gap between a prefix and a window or chunk: in the backward, where a key's rows count, there
 * is none. */
static inline bool attn_cuda_takes_ranges(const attn_cuda_kernel *kernel, const attn_desc *desc)
{
    bool gap = desc->flags & ATTN_PREFIX && desc->flags & (ATTN_WINDOW | ATTN_CHUNK);
    if (kernel->spans && gap && desc->direction == ATTN_FORWARD) return false;
    return !(kernel->tma && desc->flags & ATTN_POSITIONS && desc->flags & ATTN_CHUNK);
}

/* A variant of the forward for block lists, whose KV tile is gathered from blocks wherever they lie. */
static inline bool attn_cuda_gathers(const attn_cuda_kernel *kernel)
{
    return kernel->needs & ATTN_BLOCKS;
}

/* Whether a kernel takes a problem's block lists. Variants that take no bits are told what each warpgroup sees: in the
 * forward, 64 rows of a KV tile's eights of keys, of blocks of at least half a tile; where it is gathered, and in the
 * backward, 64 rows of 64 keys. */
static inline bool attn_cuda_takes_lists(const attn_cuda_kernel *kernel, const attn_desc *desc)
{
    if (!kernel->tma || !(desc->flags & ATTN_BLOCKS) || kernel->features & ATTN_BITS) return true;
    if (desc->block_rows % 64) return false;
    if (desc->direction == ATTN_BACKWARD || attn_cuda_gathers(kernel)) return desc->block_keys % 64 == 0;
    return desc->block_keys % 8 == 0 && 2 * desc->block_keys >= kernel->kv_tile;
}

/* Keys of a box that a variant of paged keys copies at once: as many as divide both a page and a KV tile, a multiple of
 * ATTN_CUDA_PAGE_BOX; 0: there are none, and threads copy single keys, but of variants of E4M3. */
enum { ATTN_CUDA_PAGE_BOX = 8 };
static inline int64_t attn_cuda_page_box(const attn_cuda_kernel *kernel, const attn_desc *desc)
{
    int64_t a = desc->page_size, b = kernel->kv_tile;
    while (b) {
        int64_t rest = a % b;
        a = b, b = rest;
    }
    return a % ATTN_CUDA_PAGE_BOX ? 0 : a;
}

static inline attn_direction attn_cuda_direction(const attn_cuda_kernel *kernel)
{
    static const attn_direction of[ATTN_CUDA_FORMS] = { [ATTN_CUDA_FORWARD] = ATTN_FORWARD,
                                                        [ATTN_CUDA_FALLBACK] = ATTN_FORWARD,
                                                        [ATTN_CUDA_DECODE] = ATTN_FORWARD,
                                                        [ATTN_CUDA_BACKWARD] = ATTN_BACKWARD,
                                                        [ATTN_CUDA_FALLBACK_BACKWARD] = ATTN_BACKWARD };
    return of[kernel->form];
}

/* The kv_dtype of the problems that a kernel takes; 0: k and v may have q's dtype. */
static inline attn_dtype attn_cuda_kv_dtype(const attn_cuda_kernel *kernel)
{
    if (kernel->kv_dtypes >> kernel->dtype & 1) return (attn_dtype)0;
    return kernel->kv_dtypes >> ATTN_E4M3 & 1 ? ATTN_E4M3 : ATTN_I8;
}

/* Takes no problem without rows or keys. */
static inline bool attn_cuda_is_variant(const attn_cuda_kernel *kernel)
{
    return kernel->source != NULL;
}

static inline const struct attn_cuda_pass *attn_cuda_pass_of(const attn_cuda_kernel *kernel)
{
    return kernel->arch->pass[kernel->form];
}

/* Whether kernels for a bias alone take it: of the rows' dtype, its keys next to each other, for rows and keys or for
 * keys alone, and all else at multiples of 16 bytes. desc: with ATTN_BIAS, its strides resolved. */
bool attn_cuda_bias_is_even(const attn_desc *desc);

/* Why a kernel cannot compute a problem on any device, however it is planned; NULL: it can. desc: resolved. */
const char *attn_cuda_obstacle(const attn_cuda_kernel *kernel, const attn_desc *desc);

/* The same as to scales and outputs of one byte alone, which no flag tells apart. A kernel that stores o in another
 * type may still take the problem by way of an inner one (inner.h). */
const char *attn_cuda_bytes_obstacle(const attn_cuda_kernel *kernel, const attn_desc *desc);

/* All architectures, and their number. */
const attn_cuda_arch *const *attn_cuda_archs(int *count);

/* The kernels of all architectures, best first among equals, and their number. */
const attn_cuda_kernel *attn_cuda_kernels(int *count);

/* What the build embedded: every text below sm90/, and the machine code that nvcc made, if it was there: fatbins of
 * one architecture, compressed. A unit is one compilation: of a variant's source, whose image is named by the kernel's
 * symbol; and of every other *.cu, whose image has the file's name. */
typedef struct attn_cuda_image {
    const char *unit;
    const unsigned char *data, *end;
} attn_cuda_image;

extern const attn_cuda_image attn_cuda_images[];
extern const attn_cuda_text attn_cuda_texts[];
extern const int attn_cuda_image_count, attn_cuda_text_count;

/* The unit's machine code; NULL: nvcc made none, and NVRTC compiles it. */
const attn_cuda_image *attn_cuda_image_of(const char *unit);

#endif
