/* Compiled kernels on disk, so that a kernel is compiled once per machine: one file per key in $ATTN_CACHE_DIR, else
 * $XDG_CACHE_HOME/libattn, else $HOME/.cache/libattn.
 *
 * A file is written under a name of its own and then renamed: other processes see all of it or nothing. It carries its
 * size and hash, so that a damaged one is a miss. A cache that cannot be read or written is none, never an error. */
#ifndef ATTN_CUDA_CACHE_H
#define ATTN_CUDA_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* FNV-1a of 128 bits. */
typedef struct attn_hash {
    uint64_t high, low;
} attn_hash;

/* Of nothing; and of what `hash` is of, followed by `size` bytes. Parts are told apart by hashing their ends too. */
attn_hash attn_hash_start(void);
attn_hash attn_hash_more(attn_hash hash, const void *data, size_t size);

/* What was kept under the key, to be freed; NULL: nothing. */
void *attn_cache_read(attn_hash key, size_t *size);
void attn_cache_write(attn_hash key, const void *data, size_t size);

#endif
