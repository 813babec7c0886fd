/* Output files: in memory, so that the library computes into them, then written. */
#ifndef ATTN_CLI_OUTPUTS_H
#define ATTN_CLI_OUTPUTS_H

#include "array.h"
#include "file.h"

/* An array to be written. */
typedef struct attn_result {
    const char *option; /* as messages name it */
    const char *tensor; /* its name in .safetensors */
    const char *path;   /* NULL: not asked for */
    bool f32;           /* float32 whatever the problem's dtype: it may go to .npy beside tensors */
    attn_array array;   /* element, rank, extents */
    void *data;         /* zeros, to compute into; NULL where path is */
} attn_result;

typedef struct attn_outputs {
    attn_output files[ATTN_OUTPUTS_MOST];
    const attn_result *first[ATTN_OUTPUTS_MOST]; /* of those in each file */
    int count;
} attn_outputs;

/* Whether names end as they must, and only .safetensors are shared. tensors: inputs came from one. */
attn_status attn_outputs_check(const attn_result *results, int count, bool tensors);

/* Makes the temporaries, with headers, and sets data; count is at most ATTN_OUTPUTS_MOST. Refuses to replace one of the
 * `read` files of the inputs. On failure nothing is left. */
attn_status attn_outputs_create(attn_outputs *outputs, attn_result *results, int count, const attn_file *files,
                                int read);

/* How many elements of all results are NaN. Unless `quiet`, says of each result that has any how many, on stderr. */
int64_t attn_outputs_nans(const char *command, const attn_result *results, int count, bool quiet);

attn_status attn_outputs_commit(attn_outputs *outputs);
void attn_outputs_discard(attn_outputs *outputs);

#endif
