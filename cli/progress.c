/* See progress.h. */
#define _POSIX_C_SOURCE 200809L
#include "progress.h"

#include <math.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/text_buffer.h"
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

static void show_line(const attn_progress *progress)
{
    char passed[ATTN_NUMBER_TEXT], all[ATTN_NUMBER_TEXT];
    double seconds = attn_seconds() - progress->start;
    const char *form = seconds <= progress->predicted ? "%scomputing... %s of about %s%s"
                                                      : "%scomputing... %s, longer than the predicted %s%s";
    tenths(seconds, passed);
    tenths(progress->predicted, all);
    fprintf(stderr, form, progress->terminal ? "\r\033[K" : "   ", passed, all, progress->terminal ? "" : "\n");
}

static void *show(void *context)
{
    attn_progress *progress = context;
    const long pause = progress->terminal ? 500 : 1200; /* milliseconds */
    bool shown = false;
    pthread_mutex_lock(&progress->mutex);
    while (!progress->done) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += pause % 1000 * 1000000, until.tv_sec += pause / 1000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&progress->changed, &progress->mutex, &until);
        if (progress->done) break;
        show_line(progress);
        shown = true;
    }
    pthread_mutex_unlock(&progress->mutex);
    if (shown && progress->terminal) fputs("\r\033[K", stderr);
    return NULL;
}

void attn_progress_start(attn_progress *progress, double predicted, attn_progress_form form)
{
    *progress = (attn_progress){ .start = attn_seconds(), .predicted = predicted };
    progress->terminal = isatty(STDERR_FILENO);
    if (form == ATTN_PROGRESS_QUIET || (form == ATTN_PROGRESS_TERMINAL && !progress->terminal)) return;
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
