/* The engine whose ranks are threads of one process. Contract: attn_parallel.h.
 *
 * A message stays where its sender has it: it is posted as an address, the receiver copies it while it waits, and the
 * sender waits until it has been taken. Whoever waits longer than the time-out fails the group. */
#define _POSIX_C_SOURCE 200809L /* the clock of condition variables */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "parallel/parallel.h"

enum { POSTED_MOST = 512 }; /* between two waits of a rank */

typedef struct message {
    int32_t to;
    const void *data;
    size_t bytes;
    bool taken;
} message;

typedef struct receipt {
    int32_t from;
    void *data;
    size_t bytes;
} receipt;

typedef struct member {
    attn_thread_group *group;
    attn_engine engine;
    message sent[POSTED_MOST];
    receipt awaited[POSTED_MOST];
    int sends, receipts;
    const void *shown; /* of a collective call */
} member;

struct attn_thread_group {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t ranks, inside; /* inside: ranks that have come to the barrier */
    int32_t copying;       /* ranks that read what others sent */
    uint64_t round;        /* of the barrier */
    double timeout;
    bool failed;
    member *members;
};

/* Waits for a change with the lock held; false: the group has failed, or does so now. */
static bool wait_until(attn_thread_group *group, const struct timespec *end)
{
    if (!group->failed && pthread_cond_timedwait(&group->changed, &group->lock, end) == ETIMEDOUT) {
        group->failed = true;
        pthread_cond_broadcast(&group->changed);
    }
    return !group->failed;
}

/* With the lock held: a copy begins, unless the group has failed; it ends. */
static bool begin_copy(attn_thread_group *group)
{
    group->copying += !group->failed;
    return !group->failed;
}

static void end_copy(attn_thread_group *group)
{
    group->copying--;
    pthread_cond_broadcast(&group->changed);
}

/* The end of a call, with the lock held. After a failure its buffers may go, so copies that have begun must end first.
 */
static int leave(attn_thread_group *group, bool good)
{
    if (!good) group->failed = true, pthread_cond_broadcast(&group->changed);
    while (!good && group->copying)
        pthread_cond_wait(&group->changed, &group->lock);
    pthread_mutex_unlock(&group->lock);
    return good ? 0 : ETIMEDOUT;
}

static struct timespec end_of(const attn_thread_group *group)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = group->timeout < 1e9 ? group->timeout : 1e9, whole = floor(seconds);
    end.tv_sec += (time_t)whole, end.tv_nsec += (long)((seconds - whole) * 1e9);
    if (end.tv_nsec >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;
    return end;
}

/* ---- messages -------------------------------------------------------------------------------- */

static int exchange(void *context, int32_t to, const void *send, size_t send_bytes, int32_t from, void *receive,
                    size_t receive_bytes, void *stream)
{
    (void)stream;
    member *me = context;
    attn_thread_group *group = me->group;
    pthread_mutex_lock(&group->lock);
    bool fits = me->sends < POSTED_MOST && me->receipts < POSTED_MOST;
    if (!fits) group->failed = true;
    if (fits && to >= 0) me->sent[me->sends++] = (message){ to, send, send_bytes, false };
    if (fits && from >= 0) me->awaited[me->receipts++] = (receipt){ from, receive, receive_bytes };
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
    return fits ? 0 : ENOBUFS;
}

/* The first message from one rank to another that has not been taken, or NULL. */
static message *first_message(member *from, int32_t to)
{
    for (int i = 0; i < from->sends; i++)
        if (from->sent[i].to == to && !from->sent[i].taken) return &from->sent[i];
    return NULL;
}

static bool all_taken(const member *me)
{
    bool taken = true;
    for (int i = 0; i < me->sends; i++)
        taken = taken && me->sent[i].taken;
    return taken;
}

/* Takes the message of a receipt, with the lock held but while it copies. */
static bool take(member *me, const receipt *r, const struct timespec *end)
{
    attn_thread_group *group = me->group;
    message *found;
    while (!(found = first_message(&group->members[r->from], me->engine.rank)))
        if (!wait_until(group, end)) return false;
    if (found->bytes != r->bytes || !begin_copy(group)) return false;
    pthread_mutex_unlock(&group->lock);
    memcpy(r->data, found->data, r->bytes);
    pthread_mutex_lock(&group->lock);
    found->taken = true;
    end_copy(group);
    return true;
}

static int wait_for_all(void *context, void *stream)
{
    (void)stream;
    member *me = context;
    attn_thread_group *group = me->group;
    struct timespec end = end_of(group);
    pthread_mutex_lock(&group->lock);
    bool good = !group->failed;
    for (int i = 0; i < me->receipts && good; i++)
        good = take(me, &me->awaited[i], &end);
    while (good && !all_taken(me))
        good = wait_until(group, &end);
    me->sends = me->receipts = 0;
    return leave(group, good);
}

/* ---- collective calls ------------------------------------------------------------------------ */

/* Waits for all ranks with the lock held; false: the group has failed. */
static bool barrier(attn_thread_group *group)
{
    struct timespec end = end_of(group);
    uint64_t round = group->round;
    bool good = !group->failed;
    if (good && ++group->inside == group->ranks) {
        group->inside = 0, group->round++;
        pthread_cond_broadcast(&group->changed);
    }
    while (good && group->round == round)
        good = wait_until(group, &end);
    return good;
}

/* Shows `send` to all ranks, reads theirs and waits until all have read. */
static int collect(member *me, const void *send, void (*read)(const member *me, void *receive, size_t size),
                   void *receive, size_t size)
{
    attn_thread_group *group = me->group;
    pthread_mutex_lock(&group->lock);
    me->shown = send;
    bool good = barrier(group) && begin_copy(group);
    if (good) {
        pthread_mutex_unlock(&group->lock);
        read(me, receive, size);
        pthread_mutex_lock(&group->lock);
        end_copy(group);
        good = barrier(group);
    }
    return leave(group, good);
}

static void read_all(const member *me, void *receive, size_t bytes)
{
    for (int32_t r = 0; r < me->group->ranks; r++)
        memcpy((char *)receive + (size_t)r * bytes, me->group->members[r].shown, bytes);
}

static void read_sum(const member *me, void *receive, size_t count)
{
    float *sum = receive;
    for (int32_t r = 0; r < me->group->ranks; r++) {
        const float *from = (const float *)me->group->members[r].shown + (size_t)me->engine.rank * count;
        for (size_t i = 0; i < count; i++)
            sum[i] = r ? sum[i] + from[i] : from[i];
    }
}

static int all_gather(void *context, const void *send, void *receive, size_t bytes, void *stream)
{
    (void)stream;
    return collect(context, send, read_all, receive, bytes);
}

static int reduce_scatter(void *context, const float *send, float *receive, size_t count, void *stream)
{
    (void)stream;
    return collect(context, send, read_sum, receive, count);
}

static void abort_group(void *context)
{
    attn_thread_group *group = ((member *)context)->group;
    pthread_mutex_lock(&group->lock);
    group->failed = true;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
}

/* ---- the group ------------------------------------------------------------------------------- */

attn_status attn_thread_group_create(attn_thread_group **out, int32_t ranks, double timeout)
{
    char text[ATTN_DECIMAL_SIZE];
    if (!out) return attn_fail(ATTN_INVALID, "group = NULL: it takes the address of a pointer");
    if (ranks < 1 || ranks > ATTN_RANKS_MOST)
        return attn_fail(ATTN_INVALID, "ranks = %d is not in 1 to %d", (int)ranks, ATTN_RANKS_MOST);
    if (!(timeout > 0)) return attn_fail(ATTN_INVALID, "timeout = %s is not above 0", attn_decimal(text, timeout));
    attn_thread_group *group = calloc(1, sizeof *group);
    member *members = calloc((size_t)ranks, sizeof *members);
    if (!group || !members) {
        free(group), free(members);
        return attn_fail(ATTN_NO_MEMORY, "no memory for a group of %d ranks", (int)ranks);
    }
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->changed, &clock);
    pthread_condattr_destroy(&clock);
    group->ranks = ranks, group->timeout = timeout, group->members = members;
    for (int32_t r = 0; r < ranks; r++) {
        members[r].group = group;
        members[r].engine = (attn_engine){ .context = &members[r],
                                           .rank = r,
                                           .ranks = ranks,
                                           .exchange = exchange,
                                           .wait = wait_for_all,
                                           .all_gather = all_gather,
                                           .reduce_scatter = reduce_scatter,
                                           .abort = abort_group };
    }
    *out = group;
    return ATTN_OK;
}

void attn_thread_group_destroy(attn_thread_group *group)
{
    if (!group) return;
    pthread_mutex_destroy(&group->lock);
    pthread_cond_destroy(&group->changed);
    free(group->members);
    free(group);
}

const attn_engine *attn_thread_group_engine(const attn_thread_group *group, int32_t rank)
{
    if (!group) {
        attn_fail(ATTN_INVALID, "group = NULL: it takes a group from attn_thread_group_create");
        return NULL;
    }
    if (rank < 0 || rank >= group->ranks) {
        attn_fail(ATTN_INVALID, "rank = %d is not in 0 to %d", (int)rank, (int)group->ranks - 1);
        return NULL;
    }
    return &group->members[rank].engine;
}
