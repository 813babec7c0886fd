/* In a captured graph: work in a stream that need not wait for other work in it. */
#ifndef ATTN_CUDA_BRANCHES_H
#define ATTN_CUDA_BRANCHES_H

#include <stdbool.h>
#include <stddef.h>

#include "attn.h"

enum { ATTN_BRANCH_NODES = 32 };

/* Nodes of the graph: that all branches wait for; with which the branches so far end. */
typedef struct attn_branches {
    void *stream;
    void *start[ATTN_BRANCH_NODES], *end[ATTN_BRANCH_NODES];
    size_t starts, ends;
} attn_branches;

/* What is put into the stream from here on is the first branch. False: the stream is not captured, or in a way that
 * leaves no choice; then there are no branches. */
bool attn_branches_begin(attn_branches *branches, void *stream);

/* The branch ends here. What follows is the next one, or after the last one waits for all. */
attn_status attn_branches_next(attn_branches *branches, bool last);

#endif
