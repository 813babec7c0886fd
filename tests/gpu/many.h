/* One problem on the GPU, run many times. */
#ifndef TESTS_GPU_MANY_H
#define TESTS_GPU_MANY_H

#include "problem/args.h"
#include "device/device.h"
#include "cuda/sm90/host/backward.h"

/* With its outputs as its first run left them. */
typedef struct many {
    check_problem problem;
    device_run run;
    int outputs;
    unsigned char *first[ATTN_ARGS_OUTPUTS];
    char name[80];
} many;

/* False after a check that failed: there is nothing to end. */
bool many_begin(many *m, const attn_desc *desc);
void many_end(many *m);

/* A run in the default stream, which all others must equal. */
void many_first(many *m);

/* Output i of `outputs`; the bytes of an array, 0 for one that is absent. */
const attn_args_array *many_output(const many *m, int i);
size_t many_size(const attn_args_array *a);

/* Overwrites the outputs that args name, and the workspace by `value`. */
void many_poison(const many *m, const attn_args *args, void *workspace, int value, CUstream stream);

/* Whether the outputs that args name are those of the first run. */
bool many_same(const many *m, const attn_args *args);

#endif
