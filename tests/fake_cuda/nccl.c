/* NCCL for the fake driver: ranks are threads, device memory is the host's, and what is put into a stream is done at
 * once. Sends and receipts wait for the end of their group. A rank that waits long for another, or is aborted, fails.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "parallel/nccl.h"

#define API __attribute__((visibility("default")))

enum { SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, RANKS_MOST = 16, POSTED_MOST = 512, SECONDS = 5 };

typedef struct message {
    const void *from;
    void *to;
    size_t bytes;
    int peer;
    bool taken; /* of a send */
} message;

typedef struct world {
    char id[ATTN_NCCL_ID_BYTES];
    int ranks, joined, inside;
    unsigned long round;
    bool aborted;
    message *sent[RANKS_MOST]; /* of the group that a rank is ending */
    int sends[RANKS_MOST];
    const void *shown[RANKS_MOST];
} world;

struct ncclComm {
    world *of;
    int rank;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static world worlds[64];
static int ids;

static _Thread_local struct {
    int depth, sends, receipts;
    ncclComm_t of;
    message send[POSTED_MOST], receive[POSTED_MOST];
} group;

#define FUNCTION(name, arguments) API ncclResult_t name arguments;
ATTN_NCCL_FUNCTIONS(FUNCTION)
API const char *ncclGetErrorString(ncclResult_t result);

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == SYSTEM_ERROR ? "unhandled system error" : "invalid argument";
}

/* With the lock held: all ranks come, or one is aborted or late. */
static bool meet(world *w)
{
    struct timespec end;
    unsigned long round = w->round;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += SECONDS;
    if (++w->inside == w->ranks) w->inside = 0, w->round++, pthread_cond_broadcast(&changed);
    while (w->round == round && !w->aborted)
        if (pthread_cond_timedwait(&changed, &lock, &end)) w->aborted = true;
    return !w->aborted;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 0, sizeof *id);
    pthread_mutex_lock(&lock);
    snprintf(id->internal, sizeof id->internal, "world %d", ++ids);
    pthread_mutex_unlock(&lock);
    return 0;
}

ncclResult_t ncclCommInitRank(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank)
{
    int number;
    if (ranks > RANKS_MOST || sscanf(id.internal, "world %d", &number) != 1) return INVALID_ARGUMENT;
    world *w = &worlds[number % 64];
    pthread_mutex_lock(&lock);
    if (strcmp(w->id, id.internal) != 0) {
        *w = (world){ .ranks = ranks };
        memcpy(w->id, id.internal, sizeof w->id);
    }
    bool good = meet(w);
    pthread_mutex_unlock(&lock);
    if (!good) return SYSTEM_ERROR;
    *communicator = calloc(1, sizeof **communicator);
    **communicator = (struct ncclComm){ w, rank };
    return 0;
}

ncclResult_t ncclCommCount(ncclComm_t c, int *ranks)
{
    *ranks = c->of->ranks;
    return 0;
}

ncclResult_t ncclCommUserRank(ncclComm_t c, int *rank)
{
    *rank = c->rank;
    return 0;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    free(c);
    return 0;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    pthread_mutex_lock(&lock);
    c->of->aborted = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    free(c);
    return 0;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error)
{
    (void)c;
    *error = 0;
    return 0;
}

ncclResult_t ncclGroupStart(void)
{
    if (!group.depth++) group.sends = group.receipts = 0, group.of = NULL;
    return 0;
}

static ncclResult_t post(ncclComm_t c, message m, bool is_send)
{
    int *count = is_send ? &group.sends : &group.receipts;
    if (!group.depth || *count == POSTED_MOST || (group.of && group.of != c)) return INVALID_USAGE;
    if (m.peer < 0 || m.peer >= c->of->ranks || m.peer == c->rank) return INVALID_ARGUMENT;
    group.of = c, (is_send ? group.send : group.receive)[(*count)++] = m;
    return 0;
}

ncclResult_t ncclSend(const void *from, size_t bytes, int type, int to, ncclComm_t c, void *stream)
{
    (void)stream;
    return type == NCCL_INT8 ? post(c, (message){ from, NULL, bytes, to, false }, true) : INVALID_ARGUMENT;
}

ncclResult_t ncclRecv(void *to, size_t bytes, int type, int from, ncclComm_t c, void *stream)
{
    (void)stream;
    return type == NCCL_INT8 ? post(c, (message){ NULL, to, bytes, from, false }, false) : INVALID_ARGUMENT;
}

/* With the lock held: something has changed, unless a rank is late. */
static bool wait_for_change(world *w, const struct timespec *end)
{
    if (!w->aborted && pthread_cond_timedwait(&changed, &lock, end)) w->aborted = true;
    return !w->aborted;
}

static message *next_from(const world *w, int peer, int me)
{
    for (int i = 0; i < w->sends[peer]; i++)
        if (w->sent[peer][i].peer == me && !w->sent[peer][i].taken) return &w->sent[peer][i];
    return NULL;
}

static bool all_taken(void)
{
    for (int i = 0; i < group.sends; i++)
        if (!group.send[i].taken) return false;
    return true;
}

/* Only ranks that have messages for each other wait for each other. */
ncclResult_t ncclGroupEnd(void)
{
    if (--group.depth || !group.of) return 0;
    world *w = group.of->of;
    int me = group.of->rank;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += SECONDS;
    pthread_mutex_lock(&lock);
    bool good = !w->aborted;
    w->sent[me] = group.send, w->sends[me] = group.sends;
    pthread_cond_broadcast(&changed);
    for (int i = 0; i < group.receipts && good; i++) {
        const message *m = &group.receive[i];
        message *found;
        while (!(found = next_from(w, m->peer, me)) && good)
            good = wait_for_change(w, &end);
        good = good && found->bytes == m->bytes;
        if (!good) break;
        memcpy(m->to, found->from, m->bytes);
        found->taken = true;
        pthread_cond_broadcast(&changed);
    }
    while (good && !all_taken())
        good = wait_for_change(w, &end);
    w->sends[me] = 0;
    pthread_mutex_unlock(&lock);
    return good ? 0 : SYSTEM_ERROR;
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t bytes, int type, ncclComm_t c, void *stream)
{
    (void)stream;
    world *w = c->of;
    if (type != NCCL_INT8) return INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    w->shown[c->rank] = from;
    bool good = meet(w);
    for (int r = 0; r < w->ranks && good; r++)
        memcpy((char *)to + (size_t)r * bytes, w->shown[r], bytes);
    good = meet(w) && good;
    pthread_mutex_unlock(&lock);
    return good ? 0 : SYSTEM_ERROR;
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation, ncclComm_t c,
                               void *stream)
{
    (void)stream;
    world *w = c->of;
    float *sum = to;
    if (type != NCCL_FLOAT || operation != NCCL_SUM) return INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    w->shown[c->rank] = from;
    bool good = meet(w);
    for (size_t i = 0; i < count && good; i++) {
        sum[i] = 0;
        for (int r = 0; r < w->ranks; r++)
            sum[i] += ((const float *)w->shown[r])[(size_t)c->rank * count + i];
    }
    good = meet(w) && good;
    pthread_mutex_unlock(&lock);
    return good ? 0 : SYSTEM_ERROR;
}
