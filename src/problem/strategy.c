/* Contract: strategy.h. */
#include "problem/strategy.h"

#include <inttypes.h>
#include <string.h>

#include "base/error.h"

enum { WORD_MOST = 64 };

#define UNWRAP(...) __VA_ARGS__
#define TRIES_SWITCH(values) .tries = { UNWRAP values }
#define TRIES_COUNT(values) .tries = { UNWRAP values }
#define TRIES_CHOICE(values) .tries = { 0, 1, 2 }, .alternatives = { UNWRAP values }
#define NUMBER_SWITCH(values) sizeof((const int[]){ UNWRAP values }) / sizeof(int)
#define NUMBER_COUNT(values) sizeof((const int[]){ UNWRAP values }) / sizeof(int)
#define NUMBER_CHOICE(values) sizeof((const char *const[]){ UNWRAP values }) / sizeof(const char *)

static const attn_strategy table[] = {
#define LINE(enumerator, name_, plans_, kind_, least_, off_, values, meaning_) \
    { .name = name_,                                                           \
      .meaning = meaning_,                                                     \
      .plans = ATTN_STRATEGY_##plans_,                                         \
      .kind = ATTN_STRATEGY_##kind_,                                           \
      .least = least_,                                                         \
      .off = off_,                                                             \
      .try_count = NUMBER_##kind_(values),                                     \
      TRIES_##kind_(values) },
    ATTN_STRATEGY_LIST(LINE)
};

const attn_strategy *attn_strategies(int *count)
{
    *count = ATTN_STRATEGIES;
    return table;
}

/* ---- reading ------------------------------------------------------------------------------- */

static attn_status unknown(const attn_desc *desc, const char *word, unsigned plan)
{
    char text[400] = "";
    attn_text_buffer list = { text, sizeof text, 0 };
    for (int i = 0; i < ATTN_STRATEGIES; i++)
        if (table[i].plans & plan) attn_say(&list, "%s%s", list.length ? ", " : "", table[i].name);
    return attn_fail(ATTN_INVALID, "strategy: %s is not a word of the %s %s: %s", word,
                     desc->device == ATTN_CUDA ? "CUDA" : "CPU",
                     desc->direction == ATTN_BACKWARD ? "backward" : "forward", text);
}

static int named(const char *name, size_t length)
{
    for (int i = 0; i < ATTN_STRATEGIES; i++)
        if (strlen(table[i].name) == length && strncmp(table[i].name, name, length) == 0) return i;
    return -1;
}

/* A whole number of up to 10 digits; -1: it is none. */
static int64_t number_of(const char *text)
{
    int64_t value = 0;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 10 || text[digits]) return -1;
    for (size_t i = 0; i < digits; i++)
        value = 10 * value + (text[i] - '0');
    return value;
}

/* The value after '='; -1: it is none of the word's. */
static int64_t value_of(const attn_strategy *s, const char *text)
{
    for (int i = 0; s->kind == ATTN_STRATEGY_CHOICE && i < s->try_count; i++)
        if (strcmp(s->alternatives[i], text) == 0) return i;
    int64_t value = s->kind == ATTN_STRATEGY_COUNT ? number_of(text) : -1;
    return value >= s->least && value <= INT32_MAX ? value : -1;
}

static attn_status bad_value(const attn_strategy *s, const char *word)
{
    char text[160] = "";
    attn_text_buffer takes = { text, sizeof text, 0 };
    if (s->kind == ATTN_STRATEGY_SWITCH) attn_say(&takes, "%s", s->name);
    if (s->kind == ATTN_STRATEGY_COUNT)
        attn_say(&takes, "%s=N, N from %" PRId64 " to %" PRId32, s->name, s->least, INT32_MAX);
    for (int i = 0; s->kind == ATTN_STRATEGY_CHOICE && i < s->try_count; i++)
        attn_say(&takes, "%s%s=%s", i ? ", " : "", s->name, s->alternatives[i]);
    if (s->off >= 0) attn_say(&takes, ", or no-%s", s->name);
    return attn_fail(ATTN_INVALID, "strategy: %s: it takes %s", word, text);
}

static attn_status read_word(attn_overrides *overrides, const attn_desc *desc, const char *word)
{
    unsigned plan = attn_strategy_plan(desc->device, desc->direction);
    size_t length = strcspn(word, "=");
    bool no = strncmp(word, "no-", 3) == 0;
    int i = named(word + 3 * no, length - 3 * no);
    if (i < 0 || !(table[i].plans & plan)) return unknown(desc, word, plan);
    const attn_strategy *s = &table[i];
    int64_t value = -1;
    if (no && !word[length])
        value = s->off;
    else if (!no && word[length])
        value = value_of(s, word + length + 1);
    else if (!no && s->kind == ATTN_STRATEGY_SWITCH)
        value = 1;
    if (value < 0) return bad_value(s, word);
    if (overrides->set[i]) return attn_fail(ATTN_INVALID, "strategy: %s is there twice", s->name);
    attn_override(overrides, (attn_strategy_word)i, value);
    return ATTN_OK;
}

attn_status attn_strategy_read(attn_overrides *overrides, const attn_desc *desc)
{
    static const char separators[] = ", ";
    attn_status status = ATTN_OK;
    *overrides = (attn_overrides){ .set = { false } };
    const char *text = desc->strategy ? desc->strategy : "";
    for (text += strspn(text, separators); *text && !status; text += strspn(text, separators)) {
        char word[WORD_MOST] = "";
        size_t length = strcspn(text, separators);
        memcpy(word, text, length < sizeof word ? length : sizeof word - 1);
        status = read_word(overrides, desc, word);
        text += length;
    }
    return status;
}

/* ---- writing ------------------------------------------------------------------------------- */

void attn_strategy_write_word(attn_strategy_word word, int64_t value, attn_text_buffer *words)
{
    const attn_strategy *s = &table[word];
    if (s->kind == ATTN_STRATEGY_CHOICE)
        attn_say(words, "%s=%s", s->name, s->alternatives[value]);
    else if (value == s->off)
        attn_say(words, "no-%s", s->name);
    else if (s->kind == ATTN_STRATEGY_SWITCH)
        attn_say(words, "%s", s->name);
    else
        attn_say(words, "%s=%" PRId64, s->name, value);
}

void attn_strategy_write(const attn_overrides *overrides, attn_text_buffer *words)
{
    bool first = true;
    for (int i = 0; i < ATTN_STRATEGIES; i++) {
        if (!overrides->set[i]) continue;
        if (!first) attn_say(words, ",");
        attn_strategy_write_word((attn_strategy_word)i, overrides->value[i], words);
        first = false;
    }
}
