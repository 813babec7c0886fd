/* The napkin as planner: how a kernel would run a problem on a machine: tiles, splits, bytes at each level, time.
 * One model plans, predicts and explains. The algebra is model.h's, the constants are machine.h's. */
#ifndef ATTN_NAPKIN_COST_H
#define ATTN_NAPKIN_COST_H

#include "api/strategy.h"
#include "cpu/detect.h"
#include "cpu/kernel.h"
#include "napkin/machine.h"

/* A processor: its machine, and what was asked of the processor itself. */
typedef struct attn_host {
    const attn_machine *machine;
    attn_cpu_info info;
} attn_host;

/* What somebody else has decided: 0 is left to the planner. */
typedef struct attn_tiles {
    int64_t rows, keys, segment_rows, heads;
    int splits, pack;      /* pack: CUDA: query heads that share a tile of rows */
    int threads, prefetch; /* CPU; prefetch: 1 + its value (api/strategy.h) */
    bool exact;            /* it is legal, and taken as it is; else as the nearest that the kernel can take */
    const attn_said *said; /* CUDA: what desc.strategy says, or NULL */
} attn_tiles;

enum { ATTN_CHOICE_LEVELS = 4 };

typedef struct attn_choice {
    int threads;
    int splits;
    int64_t parted; /* CUDA, splits > 1: row tiles whose keys are split; all, or the last ones */
    int64_t rows_tile, keys_tile;
    int64_t units;        /* prefill: KV heads of sequences, times segments of rows */
    int64_t segment_rows; /* prefill: rows of a unit; less than len_q where the mask is a band */
    int64_t segment_keys; /* prefill: room for the keys they may see */
    int64_t packed_heads; /* prefill: units held packed at once */
    bool fetch_l2;        /* decode: fetches the next tile into L2, not the next head into L1 */
    int64_t heads_tile;   /* decode: KV heads streamed side by side */
    double pairs, flops, seconds;
    int levels;
    struct {
        const char *name;         /* "L3 to L2" */
        double bytes;             /* predicted, into it and out of it */
    } level[ATTN_CHOICE_LEVELS];  /* from memory inward */
    const char *bound;            /* what takes the time: "memory", ... */
    double count[ATTN_CONSTANTS]; /* of what a kernel's constants are of */
} attn_choice;

/* Bytes predicted to cross memory, and into the innermost level. */
static inline double attn_choice_memory(const attn_choice *c)
{
    return c->levels > 0 ? c->level[0].bytes : 0;
}

static inline double attn_choice_cache(const attn_choice *c)
{
    return c->levels > 0 ? c->level[c->levels - 1].bytes : 0;
}

/* This processor. Nothing is measured. */
void attn_host_detect(attn_host *host);

/* A processor of which nothing is known: the same on every machine and whatever attn_machine_use named. */
void attn_host_unknown(attn_host *host);

/* desc: resolved. tiles: NULL or what is decided already. */
void attn_cost(const attn_desc *desc, const attn_host *host, const attn_cpu_kernel *kernel, const attn_tiles *tiles,
               attn_choice *choice);

#endif
