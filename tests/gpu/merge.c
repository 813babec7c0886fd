/* Merging of partial results: on the GPU what it is on the CPU, rounding aside; empty parts, which are full of NaN, and
 * rows of nothing else; into one of the parts. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "device/device.h"
#include "gpu.h"
#include "num/half.h"

enum { BATCH = 2, ROWS = 13, HEADS = 3, PARTS_MOST = 64, DIM_MOST = 150, PITCH = DIM_MOST + 3 };
enum { LSES = BATCH * ROWS * HEADS, ELEMENTS = LSES * PITCH };

/* o of all parts, then of the result; so the LSEs. */
typedef struct state {
    float o[PARTS_MOST + 1][ELEMENTS], lse[PARTS_MOST + 1][LSES];
} state;

static state drawn, cpu, gpu;

static attn_merge_desc describe(int number, int parts)
{
    return (attn_merge_desc){ .dtype = (attn_dtype)(1 + number % 3),
                              .out_dtype = (attn_dtype)(1 + number / 3 % 3),
                              .parts = parts,
                              .batch = BATCH,
                              .rows = ROWS,
                              .heads = HEADS,
                              .dim = number % 2 ? DIM_MOST : 40,
                              .part_stride = { ROWS * HEADS * PITCH, PITCH, ROWS * PITCH, 1 },
                              .o_stride = { HEADS * ROWS * PITCH, HEADS * PITCH, PITCH, 1 } };
}

/* Row i of every seventh sees nothing anywhere; elsewhere each third part is empty. */
static void draw(attn_dtype dtype, int parts)
{
    uint64_t random = 5;
    memset(&drawn, 0xff, sizeof drawn); /* NaN */
    for (int p = 0; p < parts; p++)
        for (int line = 0; line < LSES; line++) {
            int i = line % ROWS, plane = line / ROWS;
            bool empty = i % 7 == 3 || (p + i) % 3 == 2;
            drawn.lse[p][line] = empty ? -INFINITY : 40 * check_normal(&random);
            for (int d = 0; d < PITCH && !empty; d++)
                attn_store_scalar(dtype, drawn.o[p], (plane * ROWS + i) * PITCH + d, check_normal(&random));
        }
}

/* Merges the parts at `at` into its part `into`. */
static bool merge(const attn_merge_desc *desc, state *at, int into, bool with_lse)
{
    const void *part_o[PARTS_MOST];
    const float *part_lse[PARTS_MOST];
    attn_merge_plan *plan;
    for (int p = 0; p < desc->parts; p++)
        part_o[p] = at->o[p], part_lse[p] = at->lse[p];
    attn_merge_args args = { part_o, part_lse, at->o[into], with_lse ? at->lse[into] : NULL };
    bool good = attn_merge_plan_create(&plan, desc) == ATTN_OK;
    if (!good) return false;
    good = attn_merge_run(plan, &args, NULL) == ATTN_OK;
    attn_merge_plan_destroy(plan);
    return good;
}

static bool merge_on_gpu(attn_merge_desc desc, int into, bool with_lse)
{
    CUdeviceptr there;
    desc.device = ATTN_CUDA;
    if (driver->cuMemAlloc(&there, sizeof gpu)) return false;
    bool good = driver->cuMemcpyHtoD(there, &drawn, sizeof gpu) == 0;
    good = good && merge(&desc, (state *)(uintptr_t)there, into, with_lse) && device_wait() == ATTN_OK;
    good = good && driver->cuMemcpyDtoH(&gpu, there, sizeof gpu) == 0;
    driver->cuMemFree(there);
    return good;
}

static bool near(float a, float b, float bound)
{
    return a == b || (isnan(a) && isnan(b)) || fabsf(a - b) <= bound * (1 + fabsf(b));
}

/* What neither wrote is NaN on both sides. */
static void compare(const attn_merge_desc *desc, int into, const char *name)
{
    attn_dtype dtype = desc->out_dtype;
    float bound = dtype == ATTN_BF16 ? 0x1p-7f : dtype == ATTN_F16 ? 0x1p-10f : 4e-6f;
    int elements = ELEMENTS * 4 / (int)attn_dtype_size(dtype), wrong = -1;
    for (int i = 0; i < elements && wrong < 0; i++)
        if (!near(attn_load_scalar(dtype, gpu.o[into], i), attn_load_scalar(dtype, cpu.o[into], i), bound)) wrong = i;
    result(wrong < 0, "%s: o differs at %d", name, wrong);
    for (int i = 0; i < LSES && wrong < 0; i++)
        if (!near(gpu.lse[into][i], cpu.lse[into][i], 1e-6f)) wrong = i;
    result(wrong < 0, "%s: the LSE differs at %d", name, wrong);
}

static void check(int number, int parts, bool in_place, bool with_lse)
{
    attn_merge_desc desc = describe(number, parts);
    char name[80];
    snprintf(name, sizeof name, "merge, %d parts, dtypes %d to %d", parts, (int)desc.dtype, (int)desc.out_dtype);
    if (in_place) desc.out_dtype = desc.dtype, memcpy(desc.o_stride, desc.part_stride, sizeof desc.o_stride);
    int into = in_place ? parts - 1 : PARTS_MOST;
    draw(desc.dtype, parts);
    cpu = drawn;
    result(merge(&desc, &cpu, into, with_lse) && merge_on_gpu(desc, into, with_lse), "%s: %s", name, attn_error());
    compare(&desc, into, name);
    bool apart = memcmp(gpu.o, drawn.o, (size_t)into * sizeof drawn.o[0]) == 0;
    result(apart, "%s: a part has changed", name);
}

/* NaN and infinity show. */
static void what_is_no_number(void)
{
    const float values[] = { NAN, INFINITY };
    for (int i = 0; i < 4; i++) {
        attn_merge_desc desc = describe(0, 33);
        draw(ATTN_F32, 33);
        drawn.lse[i < 2 ? 0 : 32][5] = values[i % 2];
        result(merge_on_gpu(desc, PARTS_MOST, true), "merge: %s", attn_error());
        result(!isfinite(gpu.lse[PARTS_MOST][5]) && isnan(gpu.o[PARTS_MOST][5 * HEADS * PITCH]),
               "merge: an LSE of %g does not show", (double)values[i % 2]);
    }
}

void merges(void)
{
    static const int counts[] = { 1, 2, 5, 32, 33, PARTS_MOST };
    alarm(WATCHDOG_SECONDS);
    for (int n = 0; n < 6; n++) {
        for (int dtypes = 0; dtypes < 9; dtypes++)
            check(n + dtypes, counts[n], false, (n + dtypes) % 4 != 0);
        check(n, counts[n], true, true);
    }
    what_is_no_number();
    attn_merge_desc desc = describe(0, 2);
    desc.rows = 0;
    result(merge_on_gpu(desc, PARTS_MOST, true), "merge of no rows: %s", attn_error());
    alarm(0);
}
