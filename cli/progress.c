/* See progress.h. */
#define _POSIX_C_SOURCE 200809L
#include "progress.h"

#include <math.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/words.h"
#include "command.h"
#include "device/clock.h"

/* "0.5 s", "43 s", "4 min 40 s". */
static void tenths(double seconds, char text[ATTN_NUMBER_TEXT])
{
    if (seconds < 9.95)
        snprintf(text, ATTN_NUMBER_TEXT, "%.1f s", seconds);
    else
        attn_seconds_text(fmax(seconds, 10), text);
}

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
        char passed[ATTN_NUMBER_TEXT], all[ATTN_NUMBER_TEXT];
        double seconds = attn_seconds() - progress->start;
        tenths(seconds, passed);
        tenths(progress->predicted, all);
        if (seconds <= progress->predicted)
            fprintf(stderr, "\r\033[Kcomputing... %s of about %s", passed, all);
        else
            fprintf(stderr, "\r\033[Kcomputing... %s, longer than the predicted %s", passed, all);
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
