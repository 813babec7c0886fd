/* The suite "strategies": what each strategy that the planner took on a GPU gains (docs/DESIGN.md, Strategies). A case
 * compares the plan with the one that the planner makes, in the same kernel, when one word takes the strategy from it;
 * or with the plan of the kernel next to it that lacks it. The other decisions are the planner's again: a strategy is
 * worth what the library would lose without it. */
#include <string.h>

#include "base/error.h"
#include "bench/bench.h"
#include "cuda/kernel.h"
#include "problem/strategy.h"

/* A word's value without its strategy; of the direction's plans. A word that excludes another one takes it along. */
static const struct {
    attn_strategy_word word;
    int64_t value;
    const char *name;
    attn_direction direction;
} words[] = {
    { ATTN_STRATEGY_SPLIT_TAIL, 0, "no-split-tail", ATTN_FORWARD },
    { ATTN_STRATEGY_SPLIT_KV, 1, "no-split-kv", ATTN_FORWARD },
    { ATTN_STRATEGY_PACK_GQA, 0, "no-pack-gqa", ATTN_FORWARD },
    { ATTN_STRATEGY_SPLIT_GQA, 1, "no-split-gqa", ATTN_BACKWARD },
    { ATTN_STRATEGY_STREAM_K, 0, "no-stream-k", ATTN_BACKWARD },
    { ATTN_STRATEGY_HEAD_PERSISTENT_DQ, 0, "no-head-persistent-dq", ATTN_BACKWARD },
    { ATTN_STRATEGY_DQ_POSTPROCESS, ATTN_DQ_SEPARATE, "dq-postprocess=separate", ATTN_BACKWARD },
    { ATTN_STRATEGY_DQ_LATE, 0, "dq-late=0", ATTN_BACKWARD },
    { ATTN_STRATEGY_SCHEDULER, ATTN_SCHEDULER_STATIC, "scheduler=static", ATTN_BACKWARD },
    { ATTN_STRATEGY_HEAD_GROUP, 1, "head-group=1", ATTN_BACKWARD },
};

typedef struct list {
    const attn_bench_case *point;
    attn_desc desc; /* of the pass that is timed */
    attn_bench_case *cases;
    int count;
    char plans[ATTN_BENCH_ALTERNATIVES + 1][ATTN_STRATEGY_TEXT]; /* the planner's, then each case's */
} list;

/* Writes what a plan decides, its kernel before it. False where there is no such plan. */
static bool decide(const list *l, const char *kernel, const char *strategy, char text[ATTN_STRATEGY_TEXT])
{
    attn_plan *plan;
    attn_plan_info info;
    attn_desc desc = l->desc;
    desc.kernel = kernel, desc.strategy = strategy;
    if (attn_plan_create(&plan, &desc) != ATTN_OK) return false;
    bool good = attn_plan_get_info(plan, &info) == ATTN_OK;
    if (good) snprintf(text, ATTN_STRATEGY_TEXT, "%s %s", info.kernel, info.strategy);
    attn_plan_destroy(plan);
    return good;
}

/* Adds a case if there is such a plan, and none before is the same. */
static void add(list *l, const char *name, const char *kernel, const char *strategy)
{
    char *plan = l->plans[l->count + 1];
    if (l->count == ATTN_BENCH_ALTERNATIVES || !decide(l, kernel, strategy, plan)) return;
    for (int i = 0; i <= l->count; i++)
        if (strcmp(l->plans[i], plan) == 0) return;
    attn_bench_case *item = &l->cases[l->count++];
    *item = *l->point;
    item->baseline_name = name;
    item->baseline = l->point->desc;
    item->baseline.kernel = kernel;
    snprintf(item->baseline_strategy, sizeof item->baseline_strategy, "%s", strategy);
}

static void add_word(list *l, const char *name, const char *kernel, attn_strategy_word word, int64_t value)
{
    char text[64];
    attn_text_buffer w = { text, sizeof text, 0 };
    attn_strategy_write_word(word, value, &w);
    add(l, name, kernel, text);
}

static void add_words(list *l, const char *kernel, const attn_overrides *taken)
{
    const int64_t *value = taken->value;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        attn_strategy_word word = words[i].word;
        if (words[i].direction != l->desc.direction || !taken->set[word] || value[word] == words[i].value) continue;
        if (word == ATTN_STRATEGY_DQ_POSTPROCESS && value[word] != ATTN_DQ_FUSED) continue;
        add_word(l, words[i].name, kernel, word, words[i].value);
    }
    if (l->desc.direction == ATTN_BACKWARD && taken->set[ATTN_STRATEGY_HEAD_GROUP] &&
        !value[ATTN_STRATEGY_HEAD_PERSISTENT_DQ])
        add_word(l, "head-group=all", kernel, ATTN_STRATEGY_HEAD_GROUP, l->desc.batch * l->desc.heads_kv);
}

/* Whether two kernels compute the same problems, windows and lengths aside, which a kernel that finishes dQ lacks. */
static bool alike(const attn_cuda_kernel *a, const attn_cuda_kernel *b)
{
    uint32_t apart = (a->features ^ b->features) & ~(uint32_t)(ATTN_WINDOW | ATTN_CUDA_LENGTHS);
    return a->form == b->form && a->dtype == b->dtype && a->dim == b->dim && a->dim_v == b->dim_v && !apart;
}

/* Kernels that differ from the plan's by what is theirs alone: dQ that they finish, the two-CTA cluster. */
static void add_kernels(list *l, const attn_cuda_kernel *taken, const attn_cuda_kernel *kernels, int count)
{
    for (int i = 0; i < count; i++) {
        const attn_cuda_kernel *k = &kernels[i];
        if (!alike(k, taken) || k->finalises_dq) continue;
        if (taken->finalises_dq && k->cluster == taken->cluster) add(l, "no-finalised-dq", k->name, "");
        if (taken->cluster > 1 && k->cluster == 1) add(l, "no-cluster", k->name, "");
    }
}

int attn_bench_alternatives(const attn_bench_case *point, attn_bench_case cases[ATTN_BENCH_ALTERNATIVES])
{
    static list l;
    attn_plan *plan;
    attn_plan_info info;
    attn_overrides taken;
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    l = (list){ .point = point, .desc = point->desc, .cases = cases };
    l.desc.direction = point->pass == ATTN_BENCH_BACKWARD ? ATTN_BACKWARD : ATTN_FORWARD;
    cases[0] = *point; /* without a plan: measuring it says why */
    if (attn_plan_create(&plan, &l.desc) != ATTN_OK) return 1;
    bool good = attn_plan_get_info(plan, &info) == ATTN_OK && decide(&l, NULL, NULL, l.plans[0]);
    attn_desc again = l.desc;
    again.strategy = info.strategy;
    good = good && attn_strategy_read(&taken, &again) == ATTN_OK;
    for (int i = 0; i < count && good; i++)
        if (strcmp(kernels[i].name, info.kernel) == 0)
            add_words(&l, kernels[i].name, &taken), add_kernels(&l, &kernels[i], kernels, count);
    attn_plan_destroy(plan);
    return good ? l.count : 1;
}
