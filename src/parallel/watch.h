/* Watches what has been put into streams, so that nobody waits for a rank that is gone. */
#ifndef ATTN_PARALLEL_WATCH_H
#define ATTN_PARALLEL_WATCH_H

#include <stdbool.h>

#include "cuda/driver.h"

typedef struct attn_watch attn_watch;

/* timeout: seconds; 0: nothing is watched, and *watch is made nevertheless. has_failed (or NULL) is asked now and then
 * while something is under way; if it says so, or the time is over, give_up is called, once, by this thread or by
 * attn_watch_give_up. Both get `context`. */
attn_status attn_watch_create(attn_watch **watch, const attn_cuda_driver *driver, double timeout,
                              bool (*has_failed)(void *context), void (*give_up)(void *context), void *context);
void attn_watch_destroy(attn_watch *watch);

/* What the stream holds now is watched, unless so much is already that this would say no more. */
CUresult attn_watch_stream(attn_watch *watch, CUstream stream);

void attn_watch_give_up(attn_watch *watch);
bool attn_watch_has_given_up(attn_watch *watch);

#endif
