/* From a diagram to an algorithm for a hierarchy of memories: fused, partitioned, recoloured.
 *
 * A derivation is kernels, one after another. A kernel is cut in groups along some axes: each group has a tile of them
 * and does all the rest by itself. It runs along at most one axis, the stream, in chunks and one or more passes. Sums
 * within a chunk may run along one more, the inner axis, in chunks of their own. The other axes it holds whole. What it
 * computes from is loaded, what is wanted of it is stored, and everything between stays inside: recoloured, and
 * computed again where another kernel needs it.
 *
 *     before the passes    load what does not span the stream; reduce what can be
 *     pass, chunk          load, reduce within the chunk, map, accrue; store what spans the stream
 *     after them           map what the accruals came to; store
 *
 * Which axes are groups, which is the stream, which reductions are stored for other kernels and which are computed
 * again is tried out; the cost model (model.h) has the say. A kernel that cannot be computed that way is none: a
 * reduction over an axis cut in groups is another kernel's work. */
#ifndef ATTN_NAPKIN_DERIVE_H
#define ATTN_NAPKIN_DERIVE_H

#include "planner/machine.h"
#include "planner/model.h"
#include "napkin/stream.h"
#include "napkin/text.h"

enum {
    ATTN_NAP_TILES = ATTN_MODEL_ARRAYS,
    ATTN_NAP_STEPS = 96,
    ATTN_NAP_TARGETS = 8,
    ATTN_NAP_KERNELS = 8,
    ATTN_NAP_BREAKS = 4,
    ATTN_NAP_GUARDS = 4
};

typedef enum attn_nap_tile_sort {
    ATTN_NAP_INPUT,   /* loaded: an array */
    ATTN_NAP_STORED,  /* loaded: what an earlier kernel stored */
    ATTN_NAP_INNER,   /* a map, or a reduction within the tile */
    ATTN_NAP_ACCRUED, /* a reduction over the stream; of an accumulator: its states, one after the other */
    ATTN_NAP_SHIFT    /* what an exponent is shifted by, and then what its sums are rescaled by */
} attn_nap_tile_sort;

/* What is resident at some time: a term's value over the tiles of the axes that it spans. */
typedef struct attn_nap_tile {
    attn_nap_tile_sort sort;
    int node;
    int states; /* 1, or an accumulator's */
    char name[2 * ATTN_NAP_NAME];
    int first, last; /* steps between which it is live */
} attn_nap_tile;

typedef enum attn_nap_act {
    ATTN_NAP_LOAD,    /* the tile, from memory */
    ATTN_NAP_MAP,     /* the tile is its term */
    ATTN_NAP_REDUCE,  /* the tile is its reduction, all of it */
    ATTN_NAP_START,   /* the tile accrues: nothing yet */
    ATTN_NAP_KEEP,    /* the shift as it is before the chunk */
    ATTN_NAP_RESCALE, /* exp(the shift as it is now - as it was kept) */
    ATTN_NAP_ACCRUE,  /* the tile takes in the chunk, rescaled by tile `by` if there is one */
    ATTN_NAP_STORE    /* the term `node`, to memory */
} attn_nap_act;

typedef struct attn_nap_step {
    attn_nap_act act;
    int tile, by, node; /* -1: none */
    int pass;           /* what is not inside comes before the pass; `passes`: after the last */
    bool inside;        /* in each chunk */
    bool within;        /* in each chunk of the inner axis */
} attn_nap_step;

typedef struct attn_nap_kernel {
    uint32_t groups;
    int stream, passes;                    /* stream -1: there is none, and no pass */
    int inner;                             /* -1: none */
    int targets, target[ATTN_NAP_TARGETS]; /* nodes to store */
    int tiles, steps, accruals;
    attn_nap_tile tile[ATTN_NAP_TILES];
    attn_nap_step step[ATTN_NAP_STEPS];
    attn_nap_accrual accrual[ATTN_NAP_TILES];
    bool loads[ATTN_NAP_NODES]; /* reductions that other kernels store */
    attn_model model;           /* its axes are the diagram's */
    attn_partition partition;
    attn_model_time time;
    int guards, guard[ATTN_NAP_GUARDS]; /* conditions: a chunk for which one holds nowhere is skipped */
    double density[ATTN_MODEL_LEVELS];  /* share of the chunks that are left, of each level's tiles */
    double bytes;                       /* H of the innermost level */
    double deviation;                   /* of the property test */
} attn_nap_kernel;

/* A composition that does not stream along an axis. */
typedef struct attn_nap_break {
    int node, axis;
    char why[ATTN_NAP_WHY];
} attn_nap_break;

/* The fastest algorithm of a kind: one that stores wide sums for later kernels, or one that computes them again. */
typedef struct attn_nap_way {
    double seconds; /* 0: none was found */
    double stored;  /* bytes of the wide sums that lie in memory between kernels */
    int kernels;
    double moving[ATTN_NAP_KERNELS], rest[ATTN_NAP_KERNELS]; /* seconds of each: to and from memory; the slowest else */
} attn_nap_way;

typedef struct attn_derivation {
    attn_diagram *diagram;
    const attn_machine *machine;
    int levels, level[ATTN_MODEL_LEVELS];                             /* of the partitions, as the machine's */
    int outputs, output[ATTN_NAP_TARGETS], defined[ATTN_NAP_TARGETS]; /* normal forms, definitions */
    attn_nap_names names;
    int kernels, breaks, tried;
    attn_nap_kernel kernel[ATTN_NAP_KERNELS];
    attn_nap_break broken[ATTN_NAP_BREAKS];
    double seconds, bytes;
    bool wide[ATTN_NAP_NODES];   /* sums inside the diagram that are greater than every array */
    attn_nap_way storing, again; /* the faster of them is this derivation's */
    double unfused_bytes;        /* every definition a kernel of its own, once through memory */
} attn_derivation;

/* Derives the algorithm for the machine. ATTN_INVALID where an accumulator is none; ATTN_UNSUPPORTED where no kernel
 * fits the machine. The diagram gains terms, and stays the caller's. */
attn_status attn_derive(attn_derivation *derivation, attn_diagram *diagram, const attn_machine *machine);

/* The partitions' level in which an array, or what a kernel stores, lies. */
int attn_nap_home(const attn_derivation *derivation, int node);

/* ---- again.c: to store or to compute again ---- */

/* What of a derivation the comparison takes. */
attn_nap_way attn_nap_way_of(const attn_derivation *derivation);

/* The bytes per second to and from memory at which both ways take as long: computing again pays below it. 0: it never
 * pays for speed; INFINITY: it always does. Both ways are there. */
double attn_nap_again_pays(const attn_derivation *derivation);

/* Bytes per second to and from memory on the derivation's machine. */
double attn_nap_memory_rate(const attn_derivation *derivation);

/* ---- plan.c: one kernel ---- */

/* Fills all of a kernel whose groups, stream and targets are chosen, but for tiles and time: what it loads of `cut`
 * (reductions that are stored) and of what its groups keep it from reducing. False: there is no such kernel. */
bool attn_nap_plan(attn_derivation *derivation, const bool *cut, attn_nap_kernel *kernel);

/* The tile of a node, or -1. */
int attn_nap_tile_of(const attn_nap_kernel *kernel, int node);

/* Whether a step takes the tile of a node. */
bool attn_nap_reads(const attn_nap_kernel *kernel, const attn_diagram *diagram, const attn_nap_step *step, int node);

/* ---- name.c ---- */

/* Names all tiles: an array's or a definition's name, else one of its own; the same term has the same everywhere. */
void attn_nap_name_tiles(attn_derivation *derivation);

/* The names of a kernel's tiles, and of what it stores, for terms in its steps. */
void attn_nap_tile_names(const attn_derivation *derivation, const attn_nap_kernel *kernel, attn_nap_names *names);

/* The definition that an output's node is, or -1. */
int attn_nap_output_of(const attn_derivation *derivation, int node);

/* ---- skip.c ---- */

/* The masks' conditions that guard all passes of a plan. */
void attn_nap_find_guards(const attn_diagram *diagram, attn_nap_kernel *kernel);

/* The share of chunks that guards leave, of such tiles. */
double attn_nap_density(const attn_diagram *diagram, const attn_nap_kernel *kernel, const int64_t *tile);

/* ---- weigh.c ---- */

/* What a plan is to the cost model, its best tiles, and its time on the machine. False: the tiles do not fit. */
bool attn_nap_weigh(const attn_derivation *derivation, attn_nap_kernel *kernel);

/* The kernel's model with what masks leave of its chunks at a level: for the bytes that move there. */
attn_model attn_nap_model_at(const attn_nap_kernel *kernel, int level);

/* Memory's traffic if every definition were a kernel of its own: what it is made of read, and what it makes written. */
double attn_nap_unfused(attn_diagram *diagram);

/* ---- what comes of it: text; each writes what fits and counts all ---- */

/* Step by step: what streams and why, the kernels, their tiles, what they move and the time (report.c). */
void attn_nap_report(attn_text_buffer *words, const attn_derivation *derivation);

/* The kernels as loops (pseudocode.c). */
void attn_nap_pseudocode(attn_text_buffer *words, const attn_derivation *derivation);

/* A C11 function of that name, self-contained, of the derived kernels with the chosen tiles, for any sizes; its comment
 * says what it takes (emit.c). Computes in float. */
void attn_nap_emit(attn_text_buffer *words, const attn_derivation *derivation, const char *name);

/* SVG: the diagram; the kernels cut and coloured by level; their columns (draw.c). */
void attn_nap_draw(attn_text_buffer *words, const attn_derivation *derivation, const char *title);

#endif
