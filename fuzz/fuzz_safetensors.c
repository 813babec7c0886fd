/* Fuzzes the reading of safetensors files. Tensors that are taken lie within the bytes; written again they read the
 * same. */
#include <stdlib.h>
#include <string.h>

#include "extent.h"
#include "safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { WANTED = 3 };

static const char *const names[WANTED] = { "q", "k", "v" };

static size_t data_size(const attn_array *array)
{
    return (size_t)(array->count * attn_element_size(array->element));
}

static void write_and_read(const attn_array *arrays)
{
    char header[ATTN_SAFETENSORS_HEADER_MOST];
    attn_array again[WANTED];
    size_t length = attn_safetensors_header(names, arrays, WANTED, header, sizeof header), total = length;
    for (int i = 0; i < WANTED; i++)
        total += data_size(&arrays[i]);
    uint8_t *copy = calloc(total, 1);
    if (!copy) return;
    memcpy(copy, header, length);
    if (length % 8 || attn_safetensors_parse(copy, total, names, WANTED, again)) abort();
    for (int i = 0; i < WANTED; i++) {
        if (again[i].element != arrays[i].element || again[i].rank != arrays[i].rank ||
            memcmp(again[i].extent, arrays[i].extent, (size_t)arrays[i].rank * sizeof *arrays[i].extent))
            abort();
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    attn_array arrays[WANTED];
    int found = 0;
    bool taken = !attn_safetensors_parse(bytes, size, names, WANTED, arrays);
    if (!taken && !*attn_error()) abort();
    check_extent(attn_safetensors_extent, bytes, size, taken);
    if (!taken) return 0;
    for (int i = 0; i < WANTED; i++) {
        const uint8_t *start = arrays[i].data;
        if (!arrays[i].element) continue;
        if (arrays[i].rank < 0 || arrays[i].rank > ATTN_RANK_MOST || start < bytes ||
            start + data_size(&arrays[i]) > bytes + size)
            abort();
        found++;
    }
    if (found == WANTED) write_and_read(arrays);
    return 0;
}
