#include "check/strategies.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/random.h"

enum { WORDS_FIRST = 3, WORDS_MOST = 5, ITEMS = ATTN_STRATEGIES * ATTN_STRATEGY_TRIES };

/* ---- drawing ------------------------------------------------------------------------------- */

typedef struct item {
    int word, index, taken;
    uint64_t lot;
} item;

static int compare_items(const void *a, const void *b)
{
    const item *x = a, *y = b;
    if (x->taken != y->taken) return x->taken < y->taken ? -1 : 1;
    return (x->lot > y->lot) - (x->lot < y->lot);
}

static int list_items(const check_strategies *counts, const attn_desc *desc, uint64_t seed, item list[ITEMS])
{
    int words, count = 0;
    const attn_strategy *table = attn_strategies(&words);
    unsigned plan = attn_strategy_plan(desc->device, desc->direction);
    bool few = check_chance(&seed, 50); /* CTAs: without, a small problem has no last wave, and less than a first one */
    for (int w = 0; w < words; w++)
        for (int i = 0; i < table[w].try_count && table[w].plans & plan; i++)
            list[count++] =
                (item){ w, i, few && w == ATTN_STRATEGY_CTAS ? -1 : counts->taken[w][i], check_bits(&seed) };
    qsort(list, (size_t)count, sizeof *list, compare_items);
    return count;
}

static bool is_legal(const attn_desc *desc, const attn_overrides *overrides)
{
    char text[ATTN_STRATEGY_TEXT] = "";
    attn_text_buffer words = { text, sizeof text, 0 };
    attn_desc with = *desc;
    attn_plan *plan;
    attn_strategy_write(overrides, &words);
    with.strategy = text;
    if (attn_plan_create(&plan, &with) != ATTN_OK) return false;
    attn_plan_destroy(plan);
    return true;
}

/* A word may be legal because of another one: those that are not set yet are tried twice. */
void check_strategy_draw(check_strategies *counts, const attn_desc *desc, uint64_t seed, bool always,
                         char text[ATTN_STRATEGY_TEXT])
{
    check_strategies after = *counts;
    bool wanted = always;
    item list[ITEMS];
    int words, set_count = 0, count = list_items(counts, desc, seed, list);
    const attn_strategy *table = attn_strategies(&words);
    attn_overrides overrides = { .set = { false } };
    for (int n = 0; n < 2 * count; n++) {
        const item *at = &list[n % count];
        attn_overrides with = overrides;
        if (overrides.set[at->word] || (n >= count && set_count == WORDS_MOST)) continue;
        attn_override(&with, (attn_strategy_word)at->word, table[at->word].tries[at->index]);
        if (!is_legal(desc, &with)) continue;
        counts->legal[at->word][at->index]++;
        if (set_count >= (n < count ? WORDS_FIRST : WORDS_MOST)) continue;
        wanted |= after.taken[at->word][at->index]++ < CHECK_STRATEGY_FLOOR;
        overrides = with, set_count++;
    }
    attn_text_buffer out = { text, ATTN_STRATEGY_TEXT, 0 };
    text[0] = '\0';
    if (!wanted) return;
    attn_strategy_write(&overrides, &out);
    memcpy(counts->taken, after.taken, sizeof counts->taken);
}

/* ---- back again ---------------------------------------------------------------------------- */

/* What a plan says of itself, but for the kernel and why it was taken. */
static void say_plan(const attn_plan *plan, char *text, size_t size)
{
    attn_plan_describe(plan, text, size);
    char *line = strstr(text, "\nkernel "), *end = line ? strchr(line + 1, '\n') : NULL;
    if (end) memmove(line, end, strlen(end) + 1);
}

static bool same(const attn_plan_info *a, const attn_plan_info *b)
{
    return strcmp(a->kernel, b->kernel) == 0 && a->threads == b->threads && a->splits == b->splits &&
           a->q_tile == b->q_tile && a->kv_tile == b->kv_tile && a->packed_kv_heads == b->packed_kv_heads &&
           a->workspace_bytes == b->workspace_bytes && a->memory_bytes == b->memory_bytes &&
           a->cache_bytes == b->cache_bytes && a->seconds == b->seconds && strcmp(a->strategy, b->strategy) == 0;
}

bool check_strategy_returns(const attn_desc *desc, char *message, size_t size)
{
    attn_plan *plan = NULL, *again = NULL;
    attn_plan_info info, info_again;
    char text[2][2048];
    attn_desc with = *desc;
    if (attn_plan_create(&plan, desc) != ATTN_OK || attn_plan_get_info(plan, &info) != ATTN_OK) {
        snprintf(message, size, "refused: %s", attn_error());
        return false;
    }
    with.kernel = info.kernel, with.strategy = info.strategy;
    bool ok = attn_plan_create(&again, &with) == ATTN_OK && attn_plan_get_info(again, &info_again) == ATTN_OK;
    if (!ok) {
        snprintf(message, size, "planned as %s, which is refused: %s", info.strategy, attn_error());
    } else {
        say_plan(plan, text[0], sizeof text[0]), say_plan(again, text[1], sizeof text[1]);
        ok = same(&info, &info_again) && strcmp(text[0], text[1]) == 0;
        if (!ok) snprintf(message, size, "planned as %s, and from that as %s", info.strategy, info_again.strategy);
    }
    attn_plan_destroy(again);
    attn_plan_destroy(plan);
    return ok;
}
