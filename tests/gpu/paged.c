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
#include "num/half.h"

enum { SEQUENCES = 3, PAGES = 5, SLOTS = 8, WIDTH = 4, DIM = 64, FRESH = 99 }; /* SLOTS: of a page at most */

/* As f32, or as bf16 or bytes in the first part. Aligned, as the variants want it. */
typedef struct world {
    _Alignas(16) float q[SEQUENCES * DIM];
    _Alignas(16) float k[PAGES * SLOTS * DIM];
    _Alignas(16) float v[PAGES * SLOTS * DIM];
    _Alignas(16) float o[SEQUENCES * DIM];
    float lse[SEQUENCES];
    int32_t lens_q[SEQUENCES], lens_kv[SEQUENCES], prefix[SEQUENCES];
    int32_t table[SEQUENCES * WIDTH], starts[SEQUENCES + 1];
    uint32_t fault;
} world;

/* Where it runs: the fallback kernels leave out the keys of a page that is none, variants all keys of its rows. */
typedef struct way {
    attn_dtype dtype, kv_dtype;
    const char *kernel;
    bool by_starts;
    int slots;       /* of a page */
    uint32_t window; /* ATTN_WINDOW: as many keys as a page has, the last ones, and those of the prefix */
} way;

static const int32_t ids[SEQUENCES][3] = { { 4, 0, 2 }, { 1, 3, 0 }, { 2, 4, -9 } };

static void set_slot(float *pool, const way *at, int page, int slot, float x)
{
    for (int d = 0; d < DIM; d++)
        attn_store_scalar(at->kv_dtype, pool, (page * at->slots + slot) * DIM + d, x);
}

/* 10 i + j in slot j of page i, as the type holds it. */
static float value_of(const way *at, int page, int slot)
{
    unsigned char stored[4];
    attn_store_scalar(at->kv_dtype, stored, 0, (float)(10 * page + slot));
    return attn_load_scalar(at->kv_dtype, stored, 0);
}

/* Sequences of two pages and 4 keys, three pages, and a page and a key, in pages 4, 0, 2; 1, 3, 0 and 2, 4. */
static world fresh(const way *at)
{
    int n = at->slots;
    world w = { .lens_q = { 1, 1, 1 }, .lens_kv = { 2 * n + 4, 3 * n, n + 1 } };
    int32_t start = 0;
    for (int i = 0; i < PAGES * n; i++)
        set_slot(w.v, at, i / n, i % n, value_of(at, i / n, i % n));
    for (int i = 0; i < SEQUENCES * WIDTH; i++)
        w.table[i] = INT_MIN + i; /* which nobody may look at */
    for (int i = 0; i < SEQUENCES * DIM; i++)
        w.o[i] = FRESH;
    for (int b = 0; b < SEQUENCES; b++) {
        w.lse[b] = FRESH;
        memcpy(&w.table[at->by_starts ? start : b * WIDTH], ids[b], sizeof ids[b]);
        w.starts[b + 1] = start += 3;
    }
    return w;
}

static attn_desc describe(const way *at)
{
    return (attn_desc){ .dtype = at->dtype,
                        .kv_dtype = at->kv_dtype,
                        .device = ATTN_CUDA,
                        .flags = ATTN_PAGED | ATTN_LENS_Q | ATTN_LENS_KV | ATTN_OUT_F32 | at->window |
                                 (at->window ? ATTN_PREFIX : 0),
                        .batch = SEQUENCES,
                        .heads_q = 1,
                        .len_q = 1,
                        .len_kv = 3 * at->slots,
                        .dim_qk = DIM,
                        .window_left = at->window ? at->slots - 1 : 0,
                        .kernel = at->kernel,
                        .pages = PAGES,
                        .page_size = at->slots,
                        .table_width = at->by_starts ? 0 : WIDTH,
                        .table_total = at->by_starts ? SEQUENCES * WIDTH : 0 };
}

static void run(world *w, const way *at, bool told)
{
    attn_plan *plan;
    CUdeviceptr there = 0, workspace = 0;
    attn_desc desc = describe(at);
#define THERE(field) (void *)(uintptr_t)(there + offsetof(world, field))
    bool good = driver->cuMemAlloc(&there, sizeof *w) == 0 && driver->cuMemcpyHtoD(there, w, sizeof *w) == 0;
    attn_args args = { .q = THERE(q), .k = THERE(k), .v = THERE(v), .o = THERE(o), .lse = THERE(lse) };
    args.lens_q = THERE(lens_q), args.lens_kv = THERE(lens_kv), args.prefix = at->window ? THERE(prefix) : NULL;
    args.page_table = THERE(table), args.page_starts = at->by_starts ? THERE(starts) : NULL;
    args.fault = told ? THERE(fault) : NULL;
    if (good && attn_plan_create(&plan, &desc) == ATTN_OK) {
        size_t size = attn_plan_workspace(plan) + 1;
        good = driver->cuMemAlloc(&workspace, size) == 0;
        good = good && driver->cuMemsetD8Async(workspace, DEVICE_FRESH, size, NULL) == 0;
        good = good && attn_run(plan, &args, (void *)(uintptr_t)workspace, NULL) == ATTN_OK && device_wait() == ATTN_OK;
        attn_plan_destroy(plan);
    } else {
        good = false;
    }
    result(good && driver->cuMemcpyDtoH(w, there, sizeof *w) == 0, "paged keys: %s", attn_error());
    if (there) driver->cuMemFree(there);
    if (workspace) driver->cuMemFree(workspace);
}

/* Keys as bits: of the first `count`, of a page of the sequence. */
#define FIRST(count) ((1 << (count)) - 1)
#define PAGE(entry) (FIRST(n) << n * (entry))

/* Sequence b sees those of its keys whose bits are set; NOTHING_WRITTEN: its row is none. */
enum { NOTHING_WRITTEN = -1 };

static bool sees(const world *w, const way *at, int b, int keys)
{
    double sum = 0, count = 0, o[2] = { (double)w->o[b * DIM], (double)w->o[b * DIM + DIM - 1] };
    if (keys < 0) return o[0] == FRESH && w->lse[b] == FRESH;
    for (int j = 0; j < 3 * at->slots; j++)
        if (keys >> j & 1) sum += (double)value_of(at, ids[b][j / at->slots], j % at->slots), count++;
    if (count == 0) return o[0] == 0 && o[1] == 0 && w->lse[b] == -INFINITY;
    bool mean = fabs(o[0] - sum / count) < 1e-4 && fabs(o[1] - sum / count) < 1e-4;
    return mean && fabs((double)w->lse[b] - log(count)) < 1e-5;
}

static void expect(const world *w, const way *at, uint32_t fault, const int keys[SEQUENCES], int line)
{
    for (int told = 0; told < 2; told++) {
        world here = *w;
        run(&here, at, told);
        result(here.fault == (told ? fault : w->fault), "paged.c:%d, %s, pages of %d: fault is %u", line, at->kernel,
               at->slots, here.fault);
        for (int b = 0; b < SEQUENCES; b++)
            result(sees(&here, at, b, keys[b]), "paged.c:%d, %s, pages of %d: sequence %d: o %g, lse %g", line,
                   at->kernel, at->slots, b, (double)here.o[b * DIM], (double)here.lse[b]);
    }
}

#define CASE(change, fault, first, second, third)                               \
    do {                                                                        \
        world w = fresh(at);                                                    \
        change;                                                                 \
        expect(&w, at, fault, (const int[]){ first, second, third }, __LINE__); \
    } while (0)

static void out_of_range(const way *at)
{
    int n = at->slots, all[SEQUENCES] = { FIRST(2 * n + 4), FIRST(3 * n), FIRST(n + 1) };
    int second = at->by_starts ? 3 : WIDTH, third = at->by_starts ? 6 : 2 * WIDTH; /* their entries */
    int others = at->dtype == ATTN_F32 ? ~0 : 0; /* keys of rows that see a page that is none */
    CASE((void)0, 0, all[0], all[1], all[2]);
    CASE(w.fault = 7, 7, all[0], all[1], all[2]); /* what is set stays */
    CASE(w.table[1] = PAGES, 1, all[0] & ~PAGE(1) & others, all[1], all[2]);
    CASE(w.table[second] = -1, 1, all[0], all[1] & ~PAGE(0) & others, all[2]);
    CASE(w.table[third] = w.table[third + 1] = INT_MAX, 1, all[0], all[1], 0);
    CASE(w.lens_kv[1] = -1, 1, all[0], 0, all[2]);
    CASE(w.lens_kv[1] = 3 * n + 1, 1, all[0], 0, all[2]);
    CASE(w.lens_kv[0] = 0, 0, 0, all[1], all[2]);
    CASE((w.lens_kv[0] = w.lens_q[0] = 0, w.table[0] = -1), 0, NOTHING_WRITTEN, all[1], all[2]); /* pads a batch */
    CASE((w.lens_q[1] = 0, w.table[second] = -1), 0, all[0], NOTHING_WRITTEN, all[2]);
    CASE((w.lens_kv[2] = 1, set_slot(w.k, at, 2, n - 1, NAN), set_slot(w.v, at, 2, n - 1, NAN)), 0, all[0], all[1],
         1); /* behind two lengths; and of k behind a key's last dim */
    if (!at->by_starts) return;
    CASE(w.starts[1] = -1, 1, 0, 0, all[2]);
    CASE(w.starts[3] = SEQUENCES * WIDTH + 1, 1, all[0], all[1], 0);
    CASE((w.starts[2] = 5, w.table[5] = 2, w.table[6] = 4), 1, all[0], 0, all[2]); /* two pages for three */
    CASE(w.starts[3] = 7, 1, all[0], all[1], 0);
}

/* A window of a page of keys and a prefix: what neither shows is gone. */
static void gone(const way *at)
{
    int n = at->slots, others = at->dtype == ATTN_F32 ? ~0 : 0, third = FIRST(n + 1) & ~1;
    int last = FIRST(2 * n + 4) & ~FIRST(n + 4), end = FIRST(3 * n) & ~FIRST(2 * n);
    CASE((void)0, 0, last, end, third);
    CASE((w.table[0] = -1, w.table[4] = w.table[5] = INT_MAX), 0, last, end, third);
    CASE((w.table[0] = -1, w.prefix[0] = 1), 1, last & others, end, third);
    CASE((w.table[4] = 1, w.table[5] = -1, w.prefix[1] = n), 0, last, end | PAGE(0), third);
    CASE((w.table[4] = 1, w.table[5] = -1, w.prefix[1] = n + 1), 1, last, (end | PAGE(0)) & others, third);
    CASE((w.table[4] = -1, set_slot(w.v, at, 3, 0, NAN)), 0, last, end, third); /* nor read */
    CASE(w.table[1] = -1, 1, last & ~PAGE(1) & others, end, third);
}

void paged_keys(void)
{
    static const char *const kernels[] = { "sm90_fallback_f32", "sm90_bf16_d64_128x128_paged",
                                           "sm90_bf16_d128_128x128_paged", "sm90_bf16_d256_128x64_paged",
                                           "sm90_bf16_d128_128x64_score_mod_paged" };
    alarm(WATCHDOG_SECONDS);
    for (int n = 0; n < 40; n++) {
        attn_dtype dtype = n % 20 < 4 ? ATTN_F32 : ATTN_BF16;
        way at = { dtype, n < 20 ? dtype : ATTN_I8, kernels[n % 20 / 4], n % 2, n / 2 % 2 ? 5 : SLOTS, 0 };
        out_of_range(&at);
        at.window = ATTN_WINDOW;
        if (n % 2 == 0 && (n % 20 < 4 || n % 20 >= 16)) gone(&at);
    }
    for (int n = 0; n < 4; n++) {
        static const char *const of_bytes[] = { "sm90_e4m3_d64_192x128_paged", "sm90_e4m3_d256_128x128_paged" };
        way at = { ATTN_E4M3, ATTN_E4M3, of_bytes[n / 2], n % 2, SLOTS, 0 };
        out_of_range(&at);
    }
    alarm(0);
}
