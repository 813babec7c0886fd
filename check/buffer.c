#define _GNU_SOURCE
#include "check/buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *or_exit(void *memory, size_t size)
{
    if (memory != NULL && memory != MAP_FAILED) return memory;
    fprintf(stderr, "check: no memory for %zu bytes\n", size);
    exit(2);
}

void *check_allocate(size_t size)
{
    return or_exit(malloc(size ? size : 1), size);
}

check_buffer check_buffer_create(size_t size, bool front)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (size + page - 1) / page * page;
    check_buffer buffer = { .size = size, .map_size = body + 2 * page };
    buffer.map = or_exit(mmap(NULL, buffer.map_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), size);
    unsigned char *first = (unsigned char *)buffer.map + page;
    if (body != 0 && mprotect(first, body, PROT_READ | PROT_WRITE) != 0) or_exit(NULL, size);
    buffer.data = front ? first : first + body - size;
    check_buffer_refresh(&buffer);
    return buffer;
}

void check_buffer_refresh(const check_buffer *buffer)
{
    if (buffer->size != 0) memset(buffer->data, CHECK_FRESH, buffer->size);
}

void check_buffer_destroy(check_buffer *buffer)
{
    if (buffer->map != NULL) munmap(buffer->map, buffer->map_size);
    *buffer = (check_buffer){ 0 };
}
