/* A line on the terminal while one call computes: the time it has taken, beside the plan's prediction.
 * Shown from half a second on, only where stderr is a terminal, and wiped at the end. */
#ifndef ATTN_CLI_PROGRESS_H
#define ATTN_CLI_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>

typedef struct attn_progress {
    bool running, done;
    double start, predicted;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
} attn_progress;

/* predicted: seconds. quiet: shows nothing. */
void attn_progress_start(attn_progress *progress, double predicted, bool quiet);
void attn_progress_stop(attn_progress *progress);

#endif
