/* Attention as the napkin has it: the model that the planners of all devices count by. */
#ifndef ATTN_PLANNER_ATTENTION_H
#define ATTN_PLANNER_ATTENTION_H

#include "attn.h"
#include "planner/model.h"

enum { ATTN_AXIS_HEAD, ATTN_AXIS_ROW, ATTN_AXIS_KEY, ATTN_AXIS_DIM, ATTN_AXIS_DIM_V, ATTN_AXES };
enum { ATTN_ARRAY_Q, ATTN_ARRAY_K, ATTN_ARRAY_V, ATTN_ARRAY_O, ATTN_ARRAY_S, ATTN_ARRAYS };

/* One axis holds all heads, one the rows of `pack` heads that share a KV head. Keys and values of the others stand
 * there once per head that passes over them. wire: bytes of an element of K and V on their way inward, inside: of Q, K
 * and V in level 1 and within. seen: share of the pairs that is computed. */
attn_model attn_model_attention(const attn_desc *desc, int64_t pack, double wire, double inside, double seen);

/* Two levels: tiles of rows in groups, keys streamed past them. */
attn_partition attn_model_attention_tiles(const attn_model *model, int64_t rows, int64_t keys);

/* Sides on which ranges cut a row's keys, at least 1: what is computed beyond them counts for each. */
int attn_mask_edges(const attn_desc *desc);

/* The problem whose time is predicted, in place of *desc. Lengths of packed sequences are not known before the run:
 * only their maximum and their sum are. So the model assumes that one sequence has the maximum, and that the others are
 * spread as widely as the mean and the maximum allow (the distribution of greatest entropy). It replaces them by equal
 * sequences with the same rows and the same pairs in all. For packed rows over pages it takes the same number of
 * sequences, each with the mean number of rows and with all keys. Where visible_share is a share of lengths alone, rows
 * and keys are shortened to match it. All other problems are *desc itself. */
attn_desc attn_typical(const attn_desc *desc);

/* Visible pairs of *desc, a typical one, over batch and heads. */
double attn_typical_pairs(const attn_desc *desc);

/* Keys that the rows of a sequence see together, if each row sees `each`: neighbours see nearly the same. */
double attn_keys_seen(const attn_desc *desc, double each);

/* Bytes that cross memory at least: every input read and every output written once. keys: that are read, a head. */
double attn_tensor_bytes(const attn_desc *desc, double keys);

#endif
