/* The suites "bytes" and "theorem": what the planner says crosses into each level, beside what was counted: on a GPU by
 * ncu, which runs this command once more with --once and sees one launch a case, on the CPU by walking through the
 * plan's tiles (replay.h). "theorem" walks through attention over a memory of M bytes and no more, its tiles the
 * optimum of the model. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "bench/bench.h"
#include "device/device.h"
#include "bench/counters.h"
#include "planner/attention.h"
#include "num/half.h"
#include "bench/point.h"
#include "bench/replay.h"

enum { CASES_MOST = 512, CHUNK = 16 };

static double counted[CASES_MOST][ATTN_CHOICE_LEVELS]; /* by ncu, in the order of the cases */
static int counted_cases, taken;

bool attn_bench_bytes_prepare(const attn_bench_case *cases, int count, int words, char **word)
{
    int wanted = 0;
    for (int i = 0; i < count; i++)
        wanted += cases[i].kind == ATTN_BENCH_BYTES && cases[i].desc.device == ATTN_CUDA;
    if (wanted == 0) return true;
    if (wanted > CASES_MOST) return attn_bench_fail("bytes are counted of at most %d cases", CASES_MOST);
    if (attn_count_launches(words, word, "regex:attn_sm90_b?f16", counted, CASES_MOST, &counted_cases))
        return attn_bench_fail("%s", attn_error());
    return counted_cases == wanted || attn_bench_fail("ncu counted %d launches for %d cases", counted_cases, wanted);
}

bool attn_bench_once(const attn_bench_case *cases, int count)
{
    for (int i = 0; i < count; i++) {
        attn_bench_tensors tensors;
        attn_args args;
        device_run run;
        if (cases[i].kind != ATTN_BENCH_BYTES) continue;
        if (attn_point_data(&cases[i].desc, &tensors, &args)) return attn_bench_fail("%s", attn_error());
        attn_status status = device_begin(&run, &cases[i].desc, &args, 0);
        if (!status) {
            status = device_start(&run);
            attn_status ended = device_end(&run, false);
            status = status ? status : ended;
        }
        attn_bench_tensors_free(&tensors);
        if (status) return attn_bench_fail("%s", attn_error());
    }
    return true;
}

static void fill_levels(const attn_choice *c, const double *bytes, attn_bench_result *r)
{
    for (int i = 0; i < c->levels && i < ATTN_BENCH_LEVELS; i++) {
        r->level[i].name = c->level[i].name;
        r->level[i].predicted = c->level[i].bytes;
        r->level[i].counted = bytes[i];
    }
}

bool attn_bench_bytes(const attn_bench_options *options, const attn_bench_case *item, attn_bench_result *r)
{
    attn_point point;
    double bytes[ATTN_CHOICE_LEVELS] = { 0 };
    *r = (attn_bench_result){ 0 };
    attn_status status = attn_point_measure(&item->desc, NULL, (double)options->min_time, &point);
    if (!status && item->desc.device == ATTN_CPU) {
        attn_plan *plan;
        status = attn_plan_create(&plan, &item->desc);
        if (!status) {
            status = attn_replay_here(plan, 0, bytes);
            attn_plan_destroy(plan);
        }
    } else if (!status) {
        memcpy(bytes, counted[taken++], sizeof bytes);
    }
    if (status) return attn_bench_fail("%s", attn_error());
    snprintf(r->kernel, sizeof r->kernel, "%s", point.kernel);
    r->subject = (attn_bench_times){ point.seconds, point.seconds, point.seconds };
    r->flops = point.choice.flops, r->splits = point.choice.splits;
    r->predicted_seconds = point.choice.seconds, r->predicted_bytes = attn_choice_memory(&point.choice);
    r->peak = r->flops / point.seconds, r->limit = point.seconds;
    fill_levels(&point.choice, bytes, r);
    return true;
}

/* ---- the theorem --------------------------------------------------------------------------- */

static double share;

/* Blocks that an even spread of numbers leaves. */
static bool kept(int64_t row_block, int64_t key_block)
{
    uint64_t x = (uint64_t)(row_block * 1000003 + key_block + 1) * 0x9e3779b97f4a7c15u;
    return (double)(x >> 11) * 0x1p-53 < share;
}

/* item->mask: "memory:BYTES", and after it, where blocks are left out, " kept:SHARE". */
bool attn_bench_theorem(const attn_bench_case *item, attn_bench_result *r)
{
    const attn_desc *d = &item->desc;
    double memory = strtod(item->mask + strlen("memory:"), NULL);
    double size = (double)attn_dtype_size(d->dtype); /* of everything: sums as well */
    const char *blocks = strstr(item->mask, "kept:");
    share = blocks ? strtod(blocks + strlen("kept:"), NULL) : 1;
    attn_model m = attn_model_attention(d, 1, size, size, 1);
    m.column[0] &= ~(1u << ATTN_ARRAY_S); /* chunk by chunk in registers */
    m.axis[ATTN_AXIS_ROW].multiple = m.axis[ATTN_AXIS_KEY].multiple = CHUNK;
    for (int i = 0; i < m.arrays; i++)
        m.array[i].bytes[1] = size;
    attn_partition p = attn_model_attention_tiles(&m, 0, CHUNK);
    *r = (attn_bench_result){ 0 };
    if (!attn_model_optimum(&m, &p, 1, memory)) return attn_bench_fail("%s is too small for a tile", item->mask);
    int64_t rows = p.tile[1][ATTN_AXIS_ROW];
    m.array[ATTN_ARRAY_K].density = m.array[ATTN_ARRAY_V].density = share;
    attn_model_closed closed = attn_model_close(&m, &p);
    snprintf(r->kernel, sizeof r->kernel, "tile %d", (int)rows);
    r->level[0].name = "closed form";
    r->level[0].predicted = closed.least + closed.alpha * pow(memory, -closed.beta);
    r->level[1].name = "tiles";
    r->level[1].predicted = attn_model_transfer(&m, &p, 1);
    r->level[1].counted = attn_replay_theorem(d->len_q, d->dim_qk, size, rows, CHUNK, memory, blocks ? kept : NULL);
    r->level[0].counted = r->level[1].counted;
    r->subject = (attn_bench_times){ 0, 0, 0 };
    return r->level[1].counted > 0 || attn_bench_fail("no memory to count accesses");
}
