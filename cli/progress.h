/* A line on stderr while one call computes: the time it has taken, beside what was predicted. On a terminal it is shown
 * from half a second on and wiped at the end. Elsewhere there is none, or, on request, one about every second. */
#ifndef ATTN_CLI_PROGRESS_H
#define ATTN_CLI_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>

typedef enum attn_progress_form { ATTN_PROGRESS_QUIET, ATTN_PROGRESS_TERMINAL, ATTN_PROGRESS_LINES } attn_progress_form;

typedef struct attn_progress {
    bool running, done, terminal;
    double start, predicted;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
} attn_progress;

/* predicted: seconds. QUIET shows nothing, TERMINAL nothing where stderr is none. */
void attn_progress_start(attn_progress *progress, double predicted, attn_progress_form form);
void attn_progress_stop(attn_progress *progress);

#endif
