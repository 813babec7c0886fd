/* Counted accesses: a plan's tiles walked through in the order in which a thread works them off, every block that it
 * touches looked up in caches that forget the least recently used. No formula of the planner's is in it. */
#ifndef ATTN_BENCH_REPLAY_H
#define ATTN_BENCH_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "api/plan.h"

/* A memory of so many bytes; blocks are whole or not there. Outer is where misses go, or NULL. */
typedef struct attn_cache attn_cache;

attn_cache *attn_cache_create(double bytes, attn_cache *outer);
void attn_cache_free(attn_cache *cache);

/* Touches block `block` of array `array`; written blocks go outside when they are forgotten, or, of an array that is
 * flushed, then. */
void attn_cache_touch(attn_cache *cache, int array, int64_t block, double bytes, bool written);
void attn_cache_flush(attn_cache *cache, int array);

/* Bytes that came in and went out. */
double attn_cache_bytes(const attn_cache *cache);

/* The forward of a CPU plan on one thread, with caches of these sizes from the outermost inward: bytes into and out of
 * each (0 of the innermost where the kernel is of bf16 pairs, whose bodies are not walked through). args: lengths and
 * prefixes, as a run takes them. ATTN_UNSUPPORTED: of a backward. */
attn_status attn_replay(const attn_plan *plan, const attn_args *args, const double *sizes, int levels, double *bytes);

/* The same with this processor's L3, L2 and L1, sequences and keys of the plan's lengths, and one prefix. */
attn_status attn_replay_here(const attn_plan *plan, int64_t prefix, double *bytes);

/* One head of attention over a memory of M bytes and no more: tiles of `rows` queries stay, keys and values pass in
 * chunks of `keys`, but for those blocks of 64 x 64 that `kept` leaves out. Bytes in and out. */
double attn_replay_theorem(int64_t len, int64_t dim, double element, int64_t rows, int64_t keys, double memory,
                           bool (*kept)(int64_t row_block, int64_t key_block));

#endif
