/* Threads, memory, and the end of a program that cannot go on. */
#include <stdio.h>
#include <stdlib.h>

#include <cblas.h>

#include "base/detect.h"
#include "cpu/threads.h"
#include "gpt.h"

static int thread_count;

void gpt_threads_set(int threads)
{
    thread_count = threads ? threads : attn_processors_available();
    gpt_must(attn_threads_reserve(&(attn_desc){ 0 }, thread_count));
    openblas_set_num_threads(thread_count);
}

int gpt_threads(void)
{
    return thread_count;
}

typedef struct loop {
    int64_t count, size;
    void (*part)(void *arg, int64_t begin, int64_t end);
    void *arg;
} loop;

static void take(void *arg, int64_t i, int worker)
{
    const loop *l = arg;
    int64_t end = (i + 1) * l->size;
    (void)worker;
    l->part(l->arg, i * l->size, end < l->count ? end : l->count);
}

void gpt_each(int64_t count, int64_t size, void (*part)(void *arg, int64_t begin, int64_t end), void *arg)
{
    loop l = { count, size, part, arg };
    attn_threads_each(&(attn_desc){ 0 }, thread_count, (count + size - 1) / size, take, &l);
}

void *gpt_allocate(int64_t count, size_t size)
{
    void *p = calloc((size_t)(count > 0 ? count : 1), size);
    if (p) return p;
    fprintf(stderr, "attn_gpt: no memory for %.1f MiB\n", (double)count * (double)size / (1 << 20));
    exit(1);
}

void gpt_must(attn_status status)
{
    if (!status) return;
    fprintf(stderr, "attn_gpt: %s\n", attn_error());
    exit(1);
}
