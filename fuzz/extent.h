/* Opens bytes as the command opens a pipe: as far as the reader's extent asks for. A file that the reader takes ends
 * where the extent says; no extent reads past the bytes that there are. */
#ifndef FUZZ_EXTENT_H
#define FUZZ_EXTENT_H

#include <stdlib.h>
#include <string.h>

#include "file.h"

static inline void check_extent(attn_file_extent *extent, const uint8_t *bytes, size_t size, bool taken)
{
    size_t have = 0;
    uint64_t need = 0;
    attn_status status = ATTN_OK;
    do {
        if (need > size) {
            if (taken) abort();
            return;
        }
        have = (size_t)need;
        uint8_t *copy = malloc(have + !have); /* exactly as long as it says */
        if (!copy) return;
        memcpy(copy, bytes, have);
        status = extent(copy, have, &need);
        free(copy);
    } while (!status && need > have);
    if (status ? taken || !*attn_error() : taken && have != size) abort();
}

#endif
