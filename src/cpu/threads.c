/* Contract: threads.h. */
#define _GNU_SOURCE
#include "cpu/threads.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/detect.h"
#include "base/error.h"

enum { SPIN_NANOSECONDS = 50000 };

typedef struct loop {
    void (*item)(void *arg, int64_t i, int worker);
    void *arg;
    int64_t count;
    atomic_int_fast64_t next;
    int threads, joined; /* under the pool's lock */
    atomic_int active;
    struct loop *after; /* of those under way */
} loop;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    pthread_t worker[ATTN_THREADS_MOST];
    int workers;
    bool stop;
    loop *loops;
    atomic_uint published; /* grows with each loop: idle workers watch it for a while before they sleep */
} pool = { .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .idle = PTHREAD_COND_INITIALIZER };

void attn_threads_relax(int n)
{
    if (n % 64 == 63) {
        sched_yield();
        return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_items(loop *l, int worker)
{
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed);
        if (i >= l->count) return;
        l->item(l->arg, i, worker);
    }
}

static loop *joinable(void)
{
    for (loop *l = pool.loops; l; l = l->after)
        if (l->joined < l->threads && atomic_load_explicit(&l->next, memory_order_relaxed) < l->count) return l;
    return NULL;
}

/* Watches for a new loop for a little while, without the lock. */
static void watch(unsigned seen)
{
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int n = 0; atomic_load_explicit(&pool.published, memory_order_acquire) == seen; n++) {
        attn_threads_relax(n);
        if (n % 64 != 0) continue;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((now.tv_sec - start.tv_sec) * 1000000000L + now.tv_nsec - start.tv_nsec > SPIN_NANOSECONDS) return;
    }
}

static void *worker_main(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    while (!pool.stop) {
        loop *l = joinable();
        if (!l) {
            unsigned seen = atomic_load(&pool.published);
            pthread_mutex_unlock(&pool.lock);
            watch(seen);
            pthread_mutex_lock(&pool.lock);
            if (!pool.stop && atomic_load(&pool.published) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
            continue;
        }
        int worker = l->joined++;
        atomic_fetch_add(&l->active, 1);
        pthread_mutex_unlock(&pool.lock);
        take_items(l, worker);
        pthread_mutex_lock(&pool.lock);
        if (atomic_fetch_sub(&l->active, 1) == 1) pthread_cond_broadcast(&pool.idle);
    }
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

/* A child has the memory of the pool but none of its threads. */
static void after_fork(void)
{
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.idle, NULL);
    pool.workers = 0;
    pool.loops = NULL;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void register_fork(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}

/* Starts one worker that takes no signals. */
static int start_worker(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&pool.worker[pool.workers], NULL, worker_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) pool.workers++;
    return error;
}

attn_status attn_threads_reserve(const attn_desc *desc, int threads)
{
    if (desc->parallel_for) return ATTN_OK;
    pthread_once(&once, register_fork);
    pthread_mutex_lock(&pool.lock);
    int error = 0, have;
    while (!error && pool.workers < threads - 1)
        error = start_worker();
    have = pool.workers;
    pthread_mutex_unlock(&pool.lock);
    if (!error) return ATTN_OK;
    return attn_fail(ATTN_NO_MEMORY, "threads = %d: the system started %d of them and refused one more", threads,
                     have + 1);
}

__attribute__((destructor)) static void end_workers(void)
{
    pthread_mutex_lock(&pool.lock);
    pool.stop = true;
    atomic_fetch_add(&pool.published, 1);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < pool.workers; i++)
        pthread_join(pool.worker[i], NULL);
}

static void share_task(void *arg, int index)
{
    take_items(arg, index);
}

void attn_threads_each(const attn_desc *desc, int threads, int64_t count,
                       void (*item)(void *arg, int64_t i, int worker), void *arg)
{
    loop l = { .item = item, .arg = arg, .count = count, .threads = threads, .joined = 1 };
    if (threads <= 1 || count <= 1) {
        take_items(&l, 0);
        return;
    }
    if (desc->parallel_for) {
        desc->parallel_for(desc->parallel_context, threads, share_task, &l);
        return;
    }
    pthread_mutex_lock(&pool.lock);
    l.after = pool.loops, pool.loops = &l;
    atomic_fetch_add(&pool.published, 1);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);

    take_items(&l, 0);

    pthread_mutex_lock(&pool.lock);
    loop **at = &pool.loops;
    while (*at != &l)
        at = &(*at)->after;
    *at = l.after;
    while (atomic_load(&l.active) != 0)
        pthread_cond_wait(&pool.idle, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}
