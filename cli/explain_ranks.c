/* See explain_ranks.h. */
#include "explain_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "json.h"

enum { MOST_RANKS = 1024 };

static const char *const layouts[] = { "contiguous", "zigzag" };
static const char *const schedules[] = { "auto", "all-gather", "ring" };

static bool read_name(const char *text, const char *const *names, int count, int32_t *value)
{
    for (*value = 0; *value < count; ++*value)
        if (!strcmp(text, names[*value])) return true;
    return false;
}

attn_status attn_parse_layout(const char *text, void *value)
{
    return read_name(text, layouts, 2, value) ? ATTN_OK : attn_fail(ATTN_INVALID, "takes contiguous or zigzag");
}

attn_status attn_parse_schedule(const char *text, void *value)
{
    return read_name(text, schedules, 3, value) ? ATTN_OK : attn_fail(ATTN_INVALID, "takes auto, all-gather or ring");
}

attn_status attn_rank_values_check(const attn_rank_values *v)
{
    const char *said = v->rank >= 0       ? "--rank"
                       : v->layout >= 0   ? "--layout"
                       : v->schedule >= 0 ? "--schedule"
                       : v->link > 0      ? "--link"
                                          : NULL;
    if (!v->ranks && said) return attn_fail(ATTN_INVALID, "%s: goes with --ranks", said);
    if (v->ranks > MOST_RANKS)
        return attn_fail(ATTN_INVALID, "--ranks %lld: takes 1 to %d", (long long)v->ranks, MOST_RANKS);
    if (v->ranks && v->rank >= v->ranks)
        return attn_fail(ATTN_INVALID, "--rank %lld: of %lld ranks it takes 0 to %lld", (long long)v->rank,
                         (long long)v->ranks, (long long)v->ranks - 1);
    return ATTN_OK;
}

/* Seconds of one rank that has the whole problem. */
static attn_status predict_alone(const attn_desc *desc, double *seconds)
{
    attn_parallel_plan *plan;
    attn_parallel_info info;
    attn_parallel_desc how = { .ranks = 1 };
    attn_status status = attn_parallel_plan_create(&plan, desc, &how, NULL);
    if (status) return status;
    status = attn_parallel_plan_get_info(plan, &info);
    *seconds = info.seconds;
    attn_parallel_plan_destroy(plan);
    return status;
}

static void print_json(const attn_parallel_info *info, double share)
{
    attn_json json = { .out = stdout };
    attn_json_open(&json, NULL, '{');
    attn_json_integer(&json, "ranks", info->ranks);
    attn_json_integer(&json, "rank", info->rank);
    attn_json_string(&json, "layout", layouts[info->chunks - 1]);
    attn_json_string(&json, "schedule", schedules[info->schedule]);
    attn_json_string(&json, "why", info->why);
    attn_json_integer(&json, "rows", info->rows);
    attn_json_integer(&json, "keys", info->keys);
    attn_json_integer(&json, "workspace_bytes", (int64_t)info->workspace_bytes);
    attn_json_number(&json, "pairs", info->pairs);
    attn_json_number(&json, "predicted_sent_bytes", info->sent_bytes);
    attn_json_number(&json, "predicted_seconds", info->seconds);
    attn_json_number(&json, "predicted_share", share);
    attn_json_close(&json, '}');
}

static attn_status print_words(const attn_parallel_plan *plan, double share)
{
    size_t length = attn_parallel_plan_describe(plan, NULL, 0);
    char *text = malloc(length + 1);
    if (!text) return attn_fail(ATTN_NO_MEMORY, "no memory for the plan's words");
    attn_parallel_plan_describe(plan, text, length + 1);
    printf("%sshare      %.3f of the speed that one rank alone has\n", text, share);
    free(text);
    return ATTN_OK;
}

attn_status attn_explain_ranks(const attn_rank_values *v, const attn_desc *desc, bool json)
{
    attn_parallel_plan *plan;
    attn_parallel_info info;
    attn_parallel_desc how = { .ranks = (int32_t)v->ranks,
                               .rank = v->rank >= 0 ? (int32_t)v->rank : 0,
                               .layout = v->layout >= 0 ? (attn_layout)v->layout : ATTN_ZIGZAG,
                               .schedule = v->schedule >= 0 ? (attn_schedule)v->schedule : ATTN_SCHEDULE_AUTO,
                               .link = 1e9 * v->link };
    double alone = 0;
    attn_status status = predict_alone(desc, &alone);
    if (!status) status = attn_parallel_plan_create(&plan, desc, &how, NULL);
    if (status) return status;
    status = attn_parallel_plan_get_info(plan, &info);
    double share = info.seconds > 0 ? alone / (double)info.ranks / info.seconds : 0;
    if (!status && json) print_json(&info, share);
    if (!status && !json) status = print_words(plan, share);
    attn_parallel_plan_destroy(plan);
    return status;
}
