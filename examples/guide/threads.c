/* Threads: the library's own, a program's own thread pool, and one plan run by two threads at once. */
#include "guide.h"

#include <pthread.h>

enum { ROWS = 256, HEADS = 8, DIM = 64, COUNT = ROWS * HEADS * DIM };

static attn_desc problem(void)
{
    return (attn_desc){ .dtype = ATTN_F32,
                        .flags = ATTN_CAUSAL,
                        .batch = 1,
                        .heads_q = HEADS,
                        .len_q = ROWS,
                        .len_kv = ROWS,
                        .dim_qk = DIM };
}

/* A program's pool, as simple as can be: a thread takes the next task until none is left. */
typedef struct pool {
    int threads, loops; /* how many threads; how often the library came */
} pool;

typedef struct loop {
    pthread_mutex_t lock;
    int next, tasks;
    void (*task)(void *arg, int index);
    void *arg;
} loop;

static void *work(void *context)
{
    loop *l = context;
    for (;;) {
        pthread_mutex_lock(&l->lock);
        int index = l->next < l->tasks ? l->next++ : -1;
        pthread_mutex_unlock(&l->lock);
        if (index < 0) return NULL;
        l->task(l->arg, index);
    }
}

static void on_my_pool(void *context, int tasks, void (*task)(void *arg, int index), void *arg)
{
    pool *p = context;
    pthread_t thread[16];
    loop l = { PTHREAD_MUTEX_INITIALIZER, 0, tasks, task, arg };
    int started = 0;
    p->loops++;
    while (started < p->threads - 1 && pthread_create(&thread[started], NULL, work, &l) == 0)
        started++;
    work(&l); /* the caller works along; so it is no harm if a thread does not start */
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
}

/* What each of two threads does with the plan that they share. */
typedef struct job {
    const attn_plan *plan;
    attn_args args;
    attn_status status;
} job;

static void *run_job(void *context)
{
    job *j = context;
    void *workspace = take(attn_plan_workspace(j->plan)); /* the plan is shared, the workspace is not */
    j->status = attn_run(j->plan, &j->args, workspace, NULL);
    free(workspace);
    return NULL;
}

static double difference_of(const float *a, const float *b)
{
    double most = 0;
    for (int i = 0; i < COUNT; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

int main(void)
{
    float *q = random_floats(COUNT, 1), *k = random_floats(COUNT, 2), *v = random_floats(COUNT, 3);
    float *one = random_floats(COUNT, 4), *other = random_floats(COUNT, 5), *third = random_floats(COUNT, 6);
    attn_args args = { .q = q, .k = k, .v = v, .o = one };
    attn_plan *plan;

    attn_desc desc = problem();
    desc.threads = 1; /* 0, the default: one for each processor that the caller may use */
    must(attn_plan_create(&plan, &desc));
    void *workspace = take(attn_plan_workspace(plan));
    must(attn_run(plan, &args, workspace, NULL));
    free(workspace);

    pthread_t thread;
    job jobs[2] = { { .plan = plan, .args = args }, { .plan = plan, .args = args } };
    jobs[0].args.o = other, jobs[1].args.o = third; /* outputs of their own, too */
    int started = pthread_create(&thread, NULL, run_job, &jobs[0]) == 0;
    if (!started) run_job(&jobs[0]);
    run_job(&jobs[1]);
    if (started) pthread_join(thread, NULL);
    must(jobs[0].status), must(jobs[1].status);
    attn_plan_destroy(plan);
    int wrong = report("one plan in two threads", difference_of(one, other) + difference_of(one, third), 0);

    pool mine = { .threads = 3 };
    desc = problem();
    desc.threads = mine.threads;
    desc.parallel_for = on_my_pool;
    desc.parallel_context = &mine;
    must(attn_plan_create(&plan, &desc));
    workspace = take(attn_plan_workspace(plan));
    args.o = other;
    must(attn_run(plan, &args, workspace, NULL));
    free(workspace);
    attn_plan_destroy(plan);
    printf("my pool was asked %s\n", mine.loops > 0 ? "for its threads" : "for NOTHING");
    wrong |= report("a pool of my own", difference_of(one, other), 1e-5) | (mine.loops == 0);

    free(q), free(k), free(v), free(one), free(other), free(third);
    return wrong;
}
