/* Contract: watch.h. An event for what a stream holds, in a queue; a thread looks at the first of them. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "parallel/watch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"

enum { WATCHED = 64, POLL_MILLISECONDS = 20 };

typedef struct watched {
    CUevent event;
    struct timespec since;
} watched;

struct attn_watch {
    const attn_cuda_driver *driver;
    CUcontext context;
    double timeout;
    bool (*has_failed)(void *of);
    void (*give_up)(void *of);
    void *of;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool ends, given_up;
    watched queue[WATCHED]; /* in the order of streams: `count` of them from `first` on */
    int first, count;
    CUevent spare[WATCHED];
    int spares;
};

/* With the lock held. */
static void give_up(attn_watch *w)
{
    if (!w->given_up) w->give_up(w->of);
    w->given_up = true;
}

static double seconds_since(const struct timespec *then)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - then->tv_sec) + (double)(now.tv_nsec - then->tv_nsec) * 1e-9;
}

static void *look(void *argument)
{
    attn_watch *w = argument;
    int relaxed = CU_STREAM_CAPTURE_MODE_RELAXED; /* another thread's capture is none of this one's business */
    w->driver->cuCtxSetCurrent(w->context);
    w->driver->cuThreadExchangeStreamCaptureMode(&relaxed);
    pthread_mutex_lock(&w->lock);
    while (!w->ends) {
        if (!w->count) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        watched *now = &w->queue[w->first];
        if (w->driver->cuEventQuery(now->event) != CUDA_ERROR_NOT_READY) {
            w->spare[w->spares++] = now->event;
            w->first = (w->first + 1) % WATCHED, w->count--;
            if (w->count) clock_gettime(CLOCK_MONOTONIC, &w->queue[w->first].since);
            continue;
        }
        bool failed = !w->given_up && w->has_failed && w->has_failed(w->of);
        if (failed || seconds_since(&now->since) > w->timeout) give_up(w);
        pthread_mutex_unlock(&w->lock);
        nanosleep(&(struct timespec){ .tv_nsec = POLL_MILLISECONDS * 1000000L }, NULL);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

CUresult attn_watch_stream(attn_watch *w, CUstream stream)
{
    CUresult result = 0;
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    size_t count = 0;
    if (!w->timeout) return 0;
    if (!w->driver->cuStreamGetCaptureInfo(stream, &status, NULL, NULL, NULL, NULL, &count) &&
        status != CU_STREAM_CAPTURE_STATUS_NONE)
        return 0;
    pthread_mutex_lock(&w->lock);
    if (w->count < WATCHED - 1) {
        watched *now = &w->queue[(w->first + w->count) % WATCHED];
        *now = (watched){ .event = w->spares ? w->spare[--w->spares] : NULL };
        if (!now->event) result = w->driver->cuEventCreate(&now->event, CU_EVENT_DISABLE_TIMING);
        if (!result) result = w->driver->cuEventRecord(now->event, stream);
        clock_gettime(CLOCK_MONOTONIC, &now->since);
        if (!result) w->count++, pthread_cond_signal(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return result;
}

void attn_watch_give_up(attn_watch *w)
{
    pthread_mutex_lock(&w->lock);
    give_up(w);
    pthread_mutex_unlock(&w->lock);
}

bool attn_watch_has_given_up(attn_watch *w)
{
    pthread_mutex_lock(&w->lock);
    bool given_up = w->given_up;
    pthread_mutex_unlock(&w->lock);
    return given_up;
}

attn_status attn_watch_create(attn_watch **out, const attn_cuda_driver *driver, double timeout,
                              bool (*has_failed)(void *of), void (*give_up_of)(void *of), void *of)
{
    attn_watch *w = calloc(1, sizeof *w);
    if (!w) return attn_fail(ATTN_NO_MEMORY, "no memory for an engine (%zu bytes)", sizeof *w);
    w->driver = driver, w->timeout = timeout, w->has_failed = has_failed, w->give_up = give_up_of, w->of = of;
    CUresult result = driver->cuCtxGetCurrent(&w->context);
    pthread_mutex_init(&w->lock, NULL), pthread_cond_init(&w->changed, NULL);
    int error = timeout > 0 && !result ? pthread_create(&w->thread, NULL, look, w) : 0;
    if (!error && !result) {
        *out = w;
        return ATTN_OK;
    }
    pthread_mutex_destroy(&w->lock), pthread_cond_destroy(&w->changed);
    free(w);
    return result ? attn_cuda_fail(result, "cuCtxGetCurrent")
                  : attn_fail(ATTN_NO_MEMORY, "no thread for an engine: %s", strerror(error));
}

void attn_watch_destroy(attn_watch *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->ends = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (w->timeout > 0) pthread_join(w->thread, NULL);
    for (int i = 0; i < w->count; i++)
        w->driver->cuEventDestroy(w->queue[(w->first + i) % WATCHED].event);
    for (int i = 0; i < w->spares; i++)
        w->driver->cuEventDestroy(w->spare[i]);
    pthread_mutex_destroy(&w->lock), pthread_cond_destroy(&w->changed);
    free(w);
}
