/* Memory that ends, or begins, at a page that nobody may touch: reading or writing past it crashes. Fresh memory holds
 * CHECK_FRESH in each byte, a NaN in every dtype. No memory: a message and exit(2). */
#ifndef CHECK_BUFFER_H
#define CHECK_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

enum { CHECK_FRESH = 0xff };

typedef struct check_buffer {
    unsigned char *data;
    size_t size;
    void *map;
    size_t map_size;
} check_buffer;

/* front: data begins right after the guard page; otherwise it ends right before one. */
check_buffer check_buffer_create(size_t size, bool front);
void check_buffer_refresh(const check_buffer *buffer);
void check_buffer_destroy(check_buffer *buffer);

/* malloc that exits as above. */
void *check_allocate(size_t size);

#endif
