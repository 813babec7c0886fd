/* A libattn as one calls it: another build of the library, loaded beside this one to be measured against it. Its
 * structs may be shorter or longer than ours: their size goes along (attn.h). */
#ifndef DEVICE_LIBRARY_H
#define DEVICE_LIBRARY_H

#include "attn.h"

typedef struct device_library {
    attn_status (*create)(attn_plan **plan, const attn_desc *desc, size_t desc_size);
    void (*destroy)(attn_plan *plan);
    size_t (*workspace)(const attn_plan *plan);
    attn_status (*run)(const attn_plan *plan, const attn_args *args, size_t args_size, void *workspace, void *stream);
    const char *(*error)(void);
    const char *(*version)(void);
} device_library;

/* Fails with the message in the library's error(). */
attn_status device_library_failed(const device_library *library, attn_status status);

#endif
