/* Strategies: what a plan decides beside its kernel, each by a name, and a text that decides it instead of the planner.
 *
 *     text = [word {("," | " ") word}]        word = name | "no-" name | name "=" value
 *
 * A SWITCH is on (name) or off (no-name). A COUNT is a number (name=N), and off (no-name) where the table has a value
 * for that. A CHOICE is one of its alternatives (name=alternative). Words that the text leaves out are the planner's.
 */
#ifndef ATTN_PROBLEM_STRATEGY_H
#define ATTN_PROBLEM_STRATEGY_H

#include <stdbool.h>

#include "base/text_buffer.h"
#include "attn.h"

/* Which plans a word is of: a bit each. */
enum {
    ATTN_STRATEGY_CPU_FORWARD = 1 << 0,
    ATTN_STRATEGY_CPU_BACKWARD = 1 << 1,
    ATTN_STRATEGY_CUDA_FORWARD = 1 << 2,
    ATTN_STRATEGY_CUDA_BACKWARD = 1 << 3,
    ATTN_STRATEGY_CPU = ATTN_STRATEGY_CPU_FORWARD | ATTN_STRATEGY_CPU_BACKWARD,
    ATTN_STRATEGY_CUDA = ATTN_STRATEGY_CUDA_FORWARD | ATTN_STRATEGY_CUDA_BACKWARD
};

/* X(enumerator, name, plans, kind, least, off, values to try or alternatives, meaning). least: of a COUNT; off: the
 * value that no-name means, -1: there is none. */
#define ATTN_STRATEGY_LIST(X)                                                                                        \
    X(FORM, "form", CPU_FORWARD, CHOICE, 0, -1, ("prefill", "decode"),                                               \
      "keys and values are packed once per KV head (prefill), or streamed for few query rows (decode)")              \
    X(THREADS, "threads", CPU, COUNT, 1, -1, (1, 2, 3), "threads that work, of those the problem has")               \
    X(Q_TILE, "q-tile", CPU, COUNT, 1, -1, (48, 96, 144, 192), "rows of a Q tile")                                   \
    X(KV_TILE, "kv-tile", CPU, COUNT, 1, -1, (16, 32, 64, 96, 128, 192), "keys of a KV tile")                        \
    X(Q_SEGMENT, "q-segment", CPU_FORWARD, COUNT, 0, 0, (0, 48, 96, 192),                                            \
      "rows that keys are packed for at once; off: all rows of a sequence")                                          \
    X(KV_HEADS, "kv-heads", CPU_FORWARD, COUNT, 1, -1, (1, 2, 3), "KV heads that are streamed side by side")         \
    X(PREFETCH, "prefetch", CPU_FORWARD, CHOICE, 0, -1, ("l1", "l2"),                                                \
      "the next KV head goes into L1, or the next KV tile into L2")                                                  \
    X(SPLIT_KV, "split-kv", CPU | ATTN_STRATEGY_CUDA_FORWARD, COUNT, 1, 1, (1, 2, 3, 5),                             \
      "parts that keys are split into, combined by LSE (CPU backward: their dQ is added)")                           \
    X(SPLIT_TAIL, "split-tail", CUDA_FORWARD, COUNT, 0, 0, (0, 1, 2, 5),                                             \
      "split-kv splits only the keys of so many Q tiles, those taken last; off: of all")                             \
    X(SPLIT_KEYS, "split-keys", CUDA_FORWARD, COUNT, 0, 0, (0, 32, 64, 160, 512),                                    \
      "decode: keys of a part, so that a sequence's bits do not depend on the batch; off: CTAs share keys evenly")   \
    X(TEAMS, "teams", CUDA_FORWARD, COUNT, 1, 1, (1, 2, 4),                                                          \
      "decode: teams of a CTA's warps, each with keys of its own; off: one of all warps")                            \
    X(PACK_GQA, "pack-gqa", CUDA_FORWARD, SWITCH, 0, 0, (0, 1), "query heads of a KV head share a Q tile (PackGQA)") \
    X(SPLIT_GQA, "split-gqa", CUDA_BACKWARD, COUNT, 1, 1, (1, 2, 3),                                                 \
      "parts that the query heads of a KV head are split into, whose dK and dV are added")                           \
    X(STREAM_K, "stream-k", CUDA_BACKWARD, COUNT, 0, 0, (0, 1, 2, 3, 8),                                             \
      "the last wave's work items are shared out, so many Q tiles at a time")                                        \
    X(HEAD_PERSISTENT_DQ, "head-persistent-dq", CUDA_BACKWARD, SWITCH, 0, 0, (0, 1),                                 \
      "a CTA takes all KV tiles of a KV head, adds up its dQ alone and stores it")                                   \
    X(DQ_SEMAPHORE, "dq-semaphore", CUDA_BACKWARD, SWITCH, 0, 0, (0, 1), "work items add to dQ in a fixed order")    \
    X(DQ_POSTPROCESS, "dq-postprocess", CUDA_BACKWARD, CHOICE, 0, -1, ("none", "separate", "fused"),                 \
      "the dQ accumulator is stored by who adds last, by a kernel of its own, or by CTAs between work items")        \
    X(DQ_LATE, "dq-late", CUDA_BACKWARD, COUNT, 0, -1, (0, 1, 2, 3, 4, 6, 9),                                        \
      "KV heads whose fused dQ postprocess comes after all work items")                                              \
    X(SCHEDULER, "scheduler", CUDA, CHOICE, 0, -1, ("static", "dynamic"),                                            \
      "CTAs take work items at a fixed stride, or from a counter")                                                   \
    X(HEAD_GROUP, "head-group", CUDA, COUNT, 1, -1, (1, 2, 3, 4),                                                    \
      "heads (backward: KV heads) whose work items are taken together")                                              \
    X(CTAS, "ctas", CUDA, COUNT, 1, -1, (1, 2, 3, 4, 6, 8), "persistent CTAs at most: as if the GPU had as many SMs")

typedef enum attn_strategy_word {
#define ATTN_STRATEGY_ENUM(enumerator, ...) ATTN_STRATEGY_##enumerator,
    ATTN_STRATEGY_LIST(ATTN_STRATEGY_ENUM) ATTN_STRATEGIES
#undef ATTN_STRATEGY_ENUM
} attn_strategy_word;

typedef enum attn_strategy_kind { ATTN_STRATEGY_SWITCH, ATTN_STRATEGY_COUNT, ATTN_STRATEGY_CHOICE } attn_strategy_kind;

/* Values of words that are choices, and of switches. */
enum { ATTN_FORM_PREFILL, ATTN_FORM_DECODE }; /* = whether it is decode */
enum { ATTN_PREFETCH_L1, ATTN_PREFETCH_L2 };
enum { ATTN_DQ_NONE, ATTN_DQ_SEPARATE, ATTN_DQ_FUSED };
enum { ATTN_SCHEDULER_STATIC, ATTN_SCHEDULER_DYNAMIC };

enum { ATTN_STRATEGY_TRIES = 8, ATTN_STRATEGY_TEXT = 512 };

/* A line of the table. tries: values worth trying, of a CHOICE all that there are. */
typedef struct attn_strategy {
    const char *name, *meaning;
    unsigned plans;
    attn_strategy_kind kind;
    int64_t least, off;
    int try_count;
    int64_t tries[ATTN_STRATEGY_TRIES];
    const char *alternatives[ATTN_STRATEGY_TRIES]; /* of a CHOICE, by value */
} attn_strategy;

/* The table, by attn_strategy_word, and its length. */
const attn_strategy *attn_strategies(int *count);

/* The bit of a plan's device and direction in `plans`. */
static inline unsigned attn_strategy_plan(attn_device device, attn_direction direction)
{
    return 1u << (2 * (int)device + (int)direction);
}

/* What desc.strategy decides instead of the planner: for each word whether it is set, and its value. All zero: none. */
typedef struct attn_overrides {
    bool set[ATTN_STRATEGIES];
    int64_t value[ATTN_STRATEGIES];
} attn_overrides;

/* Whether a word may have the value: it has no other. */
static inline bool attn_overrides_allow(const attn_overrides *s, attn_strategy_word word, int64_t value)
{
    return !s || !s->set[word] || s->value[word] == value;
}

/* The value of a word: its own, else `planned`. */
static inline int64_t attn_override_or(const attn_overrides *s, attn_strategy_word word, int64_t planned)
{
    return s && s->set[word] ? s->value[word] : planned;
}

static inline void attn_override(attn_overrides *s, attn_strategy_word word, int64_t value)
{
    s->set[word] = true, s->value[word] = value;
}

/* Reads desc.strategy: ATTN_INVALID for a word that is none of its plan's, is there twice, or has no such value. */
attn_status attn_strategy_read(attn_overrides *overrides, const attn_desc *desc);

/* Writes the words that are set as a text that attn_strategy_read takes: all of them, or one. */
void attn_strategy_write(const attn_overrides *overrides, attn_text_buffer *words);
void attn_strategy_write_word(attn_strategy_word word, int64_t value, attn_text_buffer *words);

#endif
