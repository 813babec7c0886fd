/* See progress.h. */
#define _POSIX_C_SOURCE 200809L
#include "progress.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "command.h"

static void *show(void *context)
{
    attn_progress *progress = context;
    bool shown = false;
    pthread_mutex_lock(&progress->mutex);
    while (!progress->done) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 500000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&progress->changed, &progress->mutex, &until);
        if (progress->done) break;
        fprintf(stderr, "\r\033[Kcomputing... %.1f s of about %.1f s", attn_seconds() - progress->start,
                progress->predicted);
        shown = true;
    }
    pthread_mutex_unlock(&progress->mutex);
    if (shown) fputs("\r\033[K", stderr);
    return NULL;
}

void attn_progress_start(attn_progress *progress, double predicted, bool quiet)
{
    *progress = (attn_progress){ .start = attn_seconds(), .predicted = predicted };
    if (quiet || !isatty(STDERR_FILENO)) return;
    pthread_mutex_init(&progress->mutex, NULL);
    pthread_cond_init(&progress->changed, NULL);
    progress->running = !pthread_create(&progress->thread, NULL, show, progress);
}

void attn_progress_stop(attn_progress *progress)
{
    if (!progress->running) return;
    pthread_mutex_lock(&progress->mutex);
    progress->done = true;
    pthread_cond_signal(&progress->changed);
    pthread_mutex_unlock(&progress->mutex);
    pthread_join(progress->thread, NULL);
    pthread_cond_destroy(&progress->changed);
    pthread_mutex_destroy(&progress->mutex);
}
