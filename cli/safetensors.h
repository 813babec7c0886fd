/* Files of named tensors: a header length (8 bytes), a header in JSON, then the tensors' bytes.
 *
 *     {"__metadata__": {"key": "text", ...}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
 *
 * Read strictly: keys once, whole numbers only, tensors that cover the data without gap or overlap, and sizes that
 * match dtype and shape. The header holds at most 100,000,000 bytes. */
#ifndef ATTN_CLI_SAFETENSORS_H
#define ATTN_CLI_SAFETENSORS_H

#include "array.h"

/* How long a file is that begins so: an attn_file_extent. */
attn_status attn_safetensors_extent(const void *bytes, size_t size, uint64_t *need);

/* Checks the whole file and fills arrays[i] with the tensor names[i], or with element ATTN_ELEMENT_NONE if there is
 * none. A wanted tensor has a dtype of attn_element and at most ATTN_RANK_MOST axes. Data pointers point into `bytes`.
 */
attn_status attn_safetensors_parse(const void *bytes, size_t size, const char *const *names, int count,
                                   attn_array *arrays);

/* Writes the header, its length included, of tensors that follow one another, and returns its length: a multiple of 8.
 * Names need no escapes. With less than that of room nothing is written. */
enum { ATTN_SAFETENSORS_HEADER_MOST = 2048 }; /* of 4 tensors with short names, 8 of up to 4 axes */
size_t attn_safetensors_header(const char *const *names, const attn_array *arrays, int count, char *bytes, size_t room);

#endif
