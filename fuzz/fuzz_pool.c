/* A pool beside its model (check/pool_model.h): each operation is drawn from the input's bytes. */
#include <stdio.h>
#include <stdlib.h>

#include "check/pool_model.h"

typedef struct input {
    const unsigned char *at, *end;
} input;

static int64_t from_bytes(void *arg, int64_t below)
{
    input *in = arg;
    uint64_t value = in->at < in->end ? *in->at++ : 0;
    if (below > 256) value = value << 8 | (in->at < in->end ? *in->at++ : 0);
    return (int64_t)(value % (uint64_t)below);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    input in = { data, data + size };
    check_pool_counts counts = { 0 };
    const char *wrong = check_pool_run((check_draw){ from_bytes, &in }, (int64_t)size / 2, &counts);
    if (!wrong) return 0;
    fprintf(stderr, "%s\n", wrong);
    abort();
}
