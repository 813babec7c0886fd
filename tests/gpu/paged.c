/* Attention over pages, as generated problems do not have it: what is out of range is not visible, all else is, and
 * `fault` is set; what nobody may look at changes nothing. All scores are 0, so that a row of O is the mean of what it
 * sees. */
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "device/device.h"
#include "gpu.h"

enum { SEQUENCES = 3, PAGES = 5, SLOTS = 2, KEYS = 6, WIDTH = 4, FRESH = 99 };

/* Sequences of 5, 6 and 3 keys in pages 4, 0, 2; 1, 3, 0 and 2, 4. Key j of page i has v = 10 i + j. */
typedef struct world {
    float q[SEQUENCES], k[PAGES * SLOTS], v[PAGES * SLOTS], o[SEQUENCES], lse[SEQUENCES];
    int32_t lens_q[SEQUENCES], lens_kv[SEQUENCES], first_kv[SEQUENCES];
    int32_t table[SEQUENCES * WIDTH], starts[SEQUENCES + 1];
    uint32_t fault;
} world;

static const int32_t ids[SEQUENCES][3] = { { 4, 0, 2 }, { 1, 3, 0 }, { 2, 4, -9 } };

static world fresh(bool by_starts)
{
    world w = { .lens_q = { 1, 1, 1 }, .lens_kv = { 5, 6, 3 } };
    int32_t at = 0;
    for (int i = 0; i < PAGES * SLOTS; i++)
        w.v[i] = (float)(10 * (i / SLOTS) + i % SLOTS);
    for (int i = 0; i < SEQUENCES * WIDTH; i++)
        w.table[i] = INT_MIN + i; /* which nobody may look at */
    for (int b = 0; b < SEQUENCES; b++) {
        w.o[b] = w.lse[b] = FRESH;
        memcpy(&w.table[by_starts ? at : b * WIDTH], ids[b], sizeof ids[b]);
        w.starts[b + 1] = at += 3;
    }
    return w;
}

static attn_desc describe(bool by_starts)
{
    return (attn_desc){ .dtype = ATTN_F32,
                        .device = ATTN_CUDA,
                        .flags = ATTN_PAGED | ATTN_LENS_Q | ATTN_LENS_KV | ATTN_FIRST_KV,
                        .batch = SEQUENCES,
                        .heads_q = 1,
                        .len_q = 1,
                        .len_kv = KEYS,
                        .dim_qk = 1,
                        .pages = PAGES,
                        .page_size = SLOTS,
                        .table_width = by_starts ? 0 : WIDTH,
                        .table_total = by_starts ? SEQUENCES * WIDTH : 0 };
}

static void run(world *w, bool by_starts, bool told)
{
    attn_plan *plan;
    CUdeviceptr there = 0;
    attn_desc desc = describe(by_starts);
#define THERE(field) (void *)(uintptr_t)(there + offsetof(world, field))
    bool good = driver->cuMemAlloc(&there, sizeof *w) == 0 && driver->cuMemcpyHtoD(there, w, sizeof *w) == 0;
    attn_args args = { .q = THERE(q), .k = THERE(k), .v = THERE(v), .o = THERE(o), .lse = THERE(lse) };
    args.lens_q = THERE(lens_q), args.lens_kv = THERE(lens_kv), args.first_kv = THERE(first_kv);
    args.page_table = THERE(table), args.page_starts = by_starts ? THERE(starts) : NULL;
    args.fault = told ? THERE(fault) : NULL;
    if (good && attn_plan_create(&plan, &desc) == ATTN_OK) {
        good = attn_run(plan, &args, NULL, NULL) == ATTN_OK && device_wait() == ATTN_OK;
        attn_plan_destroy(plan);
    } else {
        good = false;
    }
    result(good && driver->cuMemcpyDtoH(w, there, sizeof *w) == 0, "paged keys: %s", attn_error());
    if (there) driver->cuMemFree(there);
}

/* Sequence b sees those of its keys whose bits are set; -1: its row is none and nothing was written. */
static bool sees(const world *w, int b, int keys)
{
    double sum = 0, count = 0;
    if (keys < 0) return w->o[b] == FRESH && w->lse[b] == FRESH;
    for (int j = 0; j < KEYS; j++)
        if (keys >> j & 1) sum += 10 * ids[b][j / SLOTS] + j % SLOTS, count++;
    if (count == 0) return w->o[b] == 0 && w->lse[b] == -INFINITY;
    return fabs((double)w->o[b] - sum / count) < 1e-4 && fabs((double)w->lse[b] - log(count)) < 1e-5;
}

static void expect(world *w, bool by_starts, uint32_t fault, const int keys[SEQUENCES], int line)
{
    for (int told = 0; told < 2; told++) {
        world run_here = *w;
        run(&run_here, by_starts, told);
        result(run_here.fault == (told ? fault : w->fault), "paged.c:%d: fault is %u", line, run_here.fault);
        for (int b = 0; b < SEQUENCES; b++)
            result(sees(&run_here, b, keys[b]), "paged.c:%d: sequence %d: o %g, lse %g", line, b, (double)run_here.o[b],
                   (double)run_here.lse[b]);
    }
}

#define CASE(by_starts, change, fault, first, second, third)                           \
    do {                                                                               \
        world w = fresh(by_starts);                                                    \
        change;                                                                        \
        expect(&w, by_starts, fault, (const int[]){ first, second, third }, __LINE__); \
    } while (0)

void paged_keys(void)
{
    alarm(WATCHDOG_SECONDS);
    for (int starts = 0; starts < 2; starts++) {
        int second = starts ? 3 : WIDTH, third = starts ? 6 : 2 * WIDTH; /* their entries */
        CASE(starts, (void)0, 0, 31, 63, 7);
        CASE(starts, w.fault = 7, 7, 31, 63, 7); /* what is set stays */
        CASE(starts, w.table[1] = PAGES, 1, 31 - 12, 63, 7);
        CASE(starts, w.table[second] = -1, 1, 31, 63 - 3, 7);
        CASE(starts, w.table[third] = w.table[third + 1] = INT_MAX, 1, 31, 63, 0);
        CASE(starts, (w.table[0] = -1, w.first_kv[0] = 2), 0, 31 - 3, 63, 7); /* gone */
        CASE(starts, (w.table[0] = -1, w.first_kv[0] = 1), 1, 31 - 3, 63, 7);
        CASE(starts, w.first_kv[1] = -5, 0, 31, 63, 7);
        CASE(starts, w.first_kv[1] = KEYS + 1, 0, 31, 0, 7);
        CASE(starts, w.lens_kv[1] = -1, 1, 31, 0, 7);
        CASE(starts, w.lens_kv[1] = KEYS + 1, 1, 31, 0, 7);
        CASE(starts, w.lens_kv[0] = 0, 0, 0, 63, 7);
        CASE(starts, (w.lens_kv[0] = w.lens_q[0] = 0, w.table[0] = -1), 0, -1, 63, 7); /* pads a graph's batch */
        CASE(starts, (w.lens_q[1] = 0, w.table[second] = -1), 0, 31, -1, 7);
        CASE(starts, (w.lens_kv[2] = 1, w.v[5] = w.k[5] = NAN), 0, 31, 63, 1); /* a slot behind two lengths */
    }
    CASE(true, w.starts[1] = -1, 1, 0, 0, 7);
    CASE(true, w.starts[3] = SEQUENCES * WIDTH + 1, 1, 31, 63, 0);
    CASE(true, (w.starts[2] = 5, w.table[5] = 2, w.table[6] = 4), 1, 31, 0, 7); /* two pages for 6 keys */
    CASE(true, w.starts[3] = 5, 1, 31, 63, 0);
    alarm(0);
}
