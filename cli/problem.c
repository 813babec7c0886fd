/* See problem.h. */
#include "problem.h"

void attn_problem_apply(const attn_problem *problem, attn_desc *desc)
{
    if (problem->causal) desc->flags |= ATTN_CAUSAL;
    if (problem->deterministic) desc->flags |= ATTN_DETERMINISTIC;
    if (problem->window[0] != -2) {
        desc->flags |= ATTN_WINDOW;
        desc->window_left = problem->window[0];
        desc->window_right = problem->window[1];
    }
    if (problem->chunk) desc->flags |= ATTN_CHUNK;
    if (problem->prefix >= 0) desc->flags |= ATTN_PREFIX;
    if (problem->softcap > 0) desc->flags |= ATTN_SOFTCAP;
    if (problem->dropout >= 0) {
        desc->flags |= ATTN_DROPOUT;
        desc->dropout_p = problem->dropout;
    }
    desc->chunk = problem->chunk;
    desc->scale = problem->scale;
    desc->softcap = problem->softcap;
    desc->device = problem->device;
    desc->isa = problem->isa;
    desc->threads = problem->threads;
    desc->kernel = problem->kernel;
    desc->strategy = problem->strategy;
}

void attn_json_plan(attn_json *json, const attn_plan_info *info)
{
    attn_json_string(json, "kernel", info->kernel);
    attn_json_string(json, "isa", info->isa);
    attn_json_string(json, "why", info->why);
    attn_json_string(json, "strategy", info->strategy);
    attn_json_integer(json, "threads", info->threads);
    attn_json_integer(json, "splits", info->splits);
    attn_json_integer(json, "q_tile", info->q_tile);
    attn_json_integer(json, "kv_tile", info->kv_tile);
    attn_json_integer(json, "packed_kv_heads", info->packed_kv_heads);
    attn_json_integer(json, "workspace_bytes", (int64_t)info->workspace_bytes);
    attn_json_integer(json, "packed_kv_bytes", (int64_t)info->packed_kv_bytes);
    attn_json_number(json, "pairs", info->pairs);
    attn_json_number(json, "flops", info->flops);
    attn_json_number(json, "predicted_memory_bytes", info->memory_bytes);
    attn_json_number(json, "predicted_cache_bytes", info->cache_bytes);
    attn_json_number(json, "predicted_seconds", info->seconds);
}
