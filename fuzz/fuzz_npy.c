/* Fuzzes the reading of .npy files. What is taken lies within the bytes, and written again reads the same. */
#include <stdlib.h>
#include <string.h>

#include "extent.h"
#include "npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    attn_array array, again;
    bool taken = !attn_npy_parse(bytes, size, &array);
    if (!taken && !*attn_error()) abort();
    check_extent(attn_npy_extent, bytes, size, taken);
    if (!taken) return 0;
    size_t data = (size_t)(array.count * attn_element_size(array.element));
    const uint8_t *start = array.data;
    if (array.rank < 0 || array.rank > ATTN_RANK_MOST || start < bytes || start + data != bytes + size) abort();

    char header[ATTN_NPY_HEADER_MOST];
    size_t length = attn_npy_header(&array, header);
    uint8_t *copy = malloc(length + data);
    if (!copy) return 0;
    memcpy(copy, header, length);
    if (data) memcpy(copy + length, start, data);
    if (length % 64 || attn_npy_parse(copy, length + data, &again) || again.element != array.element ||
        again.rank != array.rank || again.count != array.count ||
        memcmp(again.extent, array.extent, (size_t)array.rank * sizeof *array.extent))
        abort();
    free(copy);
    return 0;
}
