/* What ncu writes: any bytes are read, and counted within the places there are. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>

#include "bench/counters.h"

int LLVMFuzzerTestOneInput(unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(unsigned char *data, size_t size)
{
    enum { MOST = 3 };
    double(*bytes)[ATTN_CHOICE_LEVELS] = malloc(MOST * sizeof *bytes);
    FILE *file = size > 0 && bytes ? fmemopen(data, size, "r") : NULL;
    if (file && attn_counters_read(file, bytes, MOST) < 0) abort();
    if (file) fclose(file);
    free(bytes);
    return 0;
}
