/* NumPy's .npy files: magic, version, header length, a header that is a Python dict of descr, fortran_order and shape,
 * then the elements. Versions 1.0, 2.0, 3.0; C order; little-endian '<f4', '<f2', '<i4', '<i8', '|u1'
 * and '|b1'; headers of at most 1 MiB. */
#ifndef ATTN_CLI_NPY_H
#define ATTN_CLI_NPY_H

#include "array.h"

/* How long a file is that begins so: an attn_file_extent. */
attn_status attn_npy_extent(const void *bytes, size_t size, uint64_t *need);

/* Reads the file whose bytes these are; array->data points into them. The data must be there, and nothing after it. */
attn_status attn_npy_parse(const void *bytes, size_t size, attn_array *array);

/* Writes the header of an array (a version 1.0 one, so that the data after it is 64-byte aligned) and returns its
 * length. */
enum { ATTN_NPY_HEADER_MOST = 512 };
size_t attn_npy_header(const attn_array *array, char header[ATTN_NPY_HEADER_MOST]);

#endif
