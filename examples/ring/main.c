/* attn_ring: ranks are threads of this process. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "ring.h"

enum { TIMEOUT = 600 }; /* seconds that a rank waits for another */

typedef struct thread {
    const ring_job *job;
    const attn_engine *engine;
    double *losses;
    pthread_t id;
} thread;

static void *be_rank(void *argument)
{
    const thread *t = argument;
    ring_train(t->job, t->engine, t->losses);
    return NULL;
}

int main(int argc, char **argv)
{
    ring_job job;
    gpt_text text;
    int64_t ranks = 2;
    if (!ring_arguments(argc, argv, &job, &text, &ranks)) return 2;
    attn_thread_group *group;
    gpt_must(attn_thread_group_create(&group, (int32_t)ranks, TIMEOUT));
    thread *threads = gpt_allocate(ranks, sizeof *threads);
    for (int32_t r = 0; r < ranks; r++) {
        threads[r] = (thread){ .job = &job, .engine = attn_thread_group_engine(group, r) };
        threads[r].losses = gpt_allocate(job.steps, sizeof(double));
        if (pthread_create(&threads[r].id, NULL, be_rank, &threads[r])) return perror("attn_ring"), 1;
    }
    for (int32_t r = 0; r < ranks; r++)
        pthread_join(threads[r].id, NULL);
    int code = ring_compare(&job, threads[0].losses, ranks);
    for (int32_t r = 0; r < ranks; r++)
        free(threads[r].losses);
    free(threads);
    attn_thread_group_destroy(group);
    gpt_text_free(&text);
    return code;
}
