/* A rank whose tensors are on a GPU. */
#ifndef ATTN_PARALLEL_DEVICE_H
#define ATTN_PARALLEL_DEVICE_H

#include "parallel/parallel.h"

/* What of a problem a GPU computes over ranks. desc: resolved. */
attn_status attn_parallel_device_check(const attn_desc *desc);

/* Of a plan that is resolved: its runs, its streams and its workspace. */
attn_status attn_parallel_device_create(attn_parallel_plan *plan);

void attn_parallel_device_destroy(attn_parallel_plan *plan);

/* The pieces that heads are computed in, as "2 pieces of the KV heads: 1, 7". */
enum { ATTN_PIECES_TEXT = 100 };
void attn_parallel_device_pieces(const attn_parallel_plan *plan, char text[ATTN_PIECES_TEXT]);

/* Of the workspace: what attn_run takes in all lanes. */
size_t attn_parallel_device_scratch(const attn_parallel_plan *plan);

/* What other ranks put into, with an engine that puts: a call of all ranks. */
attn_status attn_parallel_device_window(const attn_parallel_plan *plan, char **window);

/* A run of valid arguments. */
attn_status attn_parallel_device_run(const attn_parallel_plan *plan, const attn_args *args, char *workspace,
                                     void *stream);

#endif
