/* Greedy, after AETG (Cohen et al., 1997): each row starts from an uncovered pair and takes, factor after factor in
 * random order, the level that covers most new pairs with those taken before; the best of a few such rows stays. A
 * level that covers nothing new gives way to the default. */
#include "check/cover.h"

#include <string.h>

#include "check/random.h"

enum { CANDIDATES = 12, ATTEMPTS = 200 };

typedef struct search {
    const cover_factors *factors;
    uint64_t state;
    int base[COVER_FACTORS + 1];              /* first number of a factor's levels */
    bool covered[COVER_LEVELS][COVER_LEVELS]; /* by level numbers, both ways */
} search;

static int gain_of(const search *s, const cover_row *row, int factor, int level)
{
    int gain = 0, id = s->base[factor] + level;
    for (int f = 0; f < s->factors->count; f++)
        if (f != factor && row->level[f] != COVER_UNSET) gain += !s->covered[id][s->base[f] + row->level[f]];
    return gain;
}

static bool allowed_with(const search *s, cover_row *row, int factor, int level)
{
    uint8_t before = row->level[factor];
    row->level[factor] = (uint8_t)level;
    bool yes = s->factors->allowed(row->level);
    row->level[factor] = before;
    return yes;
}

/* The best allowed level of a factor: most new pairs if `greedy`, ties by lot; else the first. -1: none is allowed. */
static int choose(search *s, cover_row *row, int factor, bool greedy)
{
    int best = -1, best_gain = 0, ties = 0;
    for (int l = 0; l < s->factors->levels[factor]; l++) {
        if (!allowed_with(s, row, factor, l)) continue;
        int gain = greedy ? gain_of(s, row, factor, l) : 0;
        if (best < 0 || gain > best_gain)
            best = l, best_gain = gain, ties = 1;
        else if (gain == best_gain && gain > 0 && check_below(&s->state, ++ties) == 0)
            best = l;
    }
    return best;
}

static bool complete(search *s, cover_row *row, bool greedy)
{
    int order[COVER_FACTORS], n = s->factors->count;
    for (int f = 0; f < n; f++) {
        int at = greedy ? (int)check_below(&s->state, f + 1) : f;
        order[f] = order[at];
        order[at] = f;
    }
    for (int i = 0; i < n; i++) {
        int f = order[i];
        if (row->level[f] != COVER_UNSET) continue;
        int level = choose(s, row, f, greedy);
        if (level < 0) return false;
        row->level[f] = (uint8_t)level;
    }
    return true;
}

static int mark(search *s, const cover_row *row, bool keep)
{
    int fresh = 0;
    for (int f = 0; f < s->factors->count; f++)
        for (int g = 0; g < f; g++) {
            int a = s->base[f] + row->level[f], b = s->base[g] + row->level[g];
            fresh += !s->covered[a][b];
            if (keep) s->covered[a][b] = s->covered[b][a] = true;
        }
    return fresh;
}

static cover_row row_with(int f, int level_f, int g, int level_g)
{
    cover_row row;
    memset(row.level, COVER_UNSET, sizeof row.level);
    row.level[f] = (uint8_t)level_f;
    row.level[g] = (uint8_t)level_g;
    return row;
}

/* The best of a few rows with this pair. */
static bool search_row(search *s, int f, int level_f, int g, int level_g, cover_row *best)
{
    int best_fresh = 0;
    for (int found = 0, attempt = 0; attempt < ATTEMPTS && found < CANDIDATES; attempt++) {
        cover_row row = row_with(f, level_f, g, level_g);
        if (!complete(s, &row, true)) continue;
        found++;
        int fresh = mark(s, &row, false);
        if (fresh > best_fresh) best_fresh = fresh, *best = row;
    }
    return best_fresh > 0;
}

static int create_single(search *s, cover_row *rows, int most)
{
    int count = 0;
    for (int f = 0; f < s->factors->count; f++)
        for (int l = f ? 1 : 0; l < s->factors->levels[f] && count < most; l++) {
            cover_row row = row_with(f, l, f, l);
            if (!complete(s, &row, false)) continue;
            mark(s, &row, true);
            rows[count++] = row;
        }
    return count;
}

int cover_create(const cover_factors *factors, uint64_t seed, cover_row *rows, int most, int *abandoned)
{
    static search s; /* large; not for two threads at once */
    s = (search){ .factors = factors, .state = seed };
    for (int f = 0; f < factors->count; f++)
        s.base[f + 1] = s.base[f] + factors->levels[f];
    int count = create_single(&s, rows, most);
    *abandoned = 0;
    for (int f = 0; f < factors->count; f++)
        for (int g = 0; g < f; g++)
            for (int l = 0; l < factors->levels[f]; l++)
                for (int m = 0; m < factors->levels[g]; m++) {
                    cover_row row = row_with(f, l, g, m);
                    if (s.covered[s.base[f] + l][s.base[g] + m] || !factors->allowed(row.level) || count == most)
                        continue;
                    if (search_row(&s, f, l, g, m, &rows[count]))
                        mark(&s, &rows[count++], true);
                    else
                        ++*abandoned;
                }
    return count;
}
