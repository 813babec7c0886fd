/* The napkin: how a kernel would run a problem on a machine: tiles, splits, bytes at each level, time.
 * One model plans, predicts and explains. */
#ifndef ATTN_NAPKIN_COST_H
#define ATTN_NAPKIN_COST_H

#include "cpu/detect.h"
#include "cpu/kernel.h"

typedef struct attn_machine {
    double hertz;                /* of a core under vector load */
    double fma_lanes[ATTN_ISAS]; /* f32 FMAs a clock and core, by attn_isa */
    double memory_1, memory_all; /* bytes a second read from memory by one core, by all */
    double l2_bytes;             /* L2 a core */
    double l1_l2;                /* bytes a clock from L2 to L1 */
    bool fetches_l2, fast_pairs; /* as attn_cpu_info says */
} attn_machine;

typedef struct attn_choice {
    int threads;
    int splits;
    int64_t rows_tile, keys_tile;
    int64_t units;        /* prefill: KV heads of sequences, times segments of rows */
    int64_t segment_rows; /* prefill: rows of a unit; less than len_q where the mask is a band */
    int64_t segment_keys; /* prefill: room for the keys they may see */
    int64_t packed_heads; /* prefill: units held packed at once */
    bool fetch_l2;        /* decode: fetches the next tile into L2, not the next head into L1 */
    int64_t heads_tile;   /* decode: KV heads streamed side by side */
    double pairs, flops, memory_bytes, cache_bytes, seconds;
} attn_choice;

/* This machine, from what can be known without measuring. */
void attn_machine_detect(attn_machine *machine);

/* desc: resolved. */
void attn_cost(const attn_desc *desc, const attn_machine *machine, const attn_cpu_kernel *kernel, attn_choice *choice);

#endif
