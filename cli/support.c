/* Contract: support.h. Each cell asks what a plan asks: whether the description is taken (problem/desc.h), which
 * kernels of the table compute it, and whether they may be planned so. The best of those that can decides. */
#include "support.h"

#include <stdio.h>
#include <string.h>

#include "base/text_buffer.h"
#include "command.h"
#include "cpu/cpu.h"
#include "cuda/inner.h"
#include "planner/attention.h"
#include "num/half.h"
#include "problem/desc.h"

/* From the worst to the best. */
typedef enum verdict { REFUSED, SLOW, ASKED, FAST } verdict;

enum { DIM_MOST = 1024, DIM_STEP = 8, CELL = 96, PASSES = 3, DTYPES = 5 };

/* A forward of many rows, one of a single row, a backward. */
static const char *const pass_names[PASSES] = { "forward", "forward of a row", "backward" };
static const attn_dtype dtypes[DTYPES] = { ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64, ATTN_E4M3 };

typedef struct table_row {
    const char *name;
    uint32_t flags;
    int dim, dim_v; /* 0: all */
    int bits_keys;
    attn_dtype kv_dtype;
    int k_scale_rows;
} table_row;

/* A problem of the row. Sizes decide nothing: they are those of a small model. */
static attn_desc problem_of(attn_device device, attn_dtype dtype, int pass, const table_row *row, int dim, int dim_v)
{
    const uint32_t flags = row->flags;
    attn_desc d = { .device = device, .dtype = dtype, .flags = flags, .dim_qk = dim, .dim_v = dim_v, .threads = 1 };
    d.direction = pass == 2 ? ATTN_BACKWARD : ATTN_FORWARD;
    d.batch = 2, d.heads_q = 8, d.heads_kv = 2, d.len_kv = 1024, d.len_q = pass == 1 ? 1 : 1024;
    if (device == ATTN_CUDA) d.threads = 0;
    if (flags & ATTN_VARLEN) d.total_q = d.batch * d.len_q, d.total_kv = d.batch * d.len_kv;
    if (flags & ATTN_WINDOW) d.window_left = 256;
    if (flags & ATTN_CHUNK) d.chunk = 256;
    if (flags & ATTN_INTERVALS) d.interval_vectors = d.interval_heads = 1;
    if (flags & ATTN_INTERVALS && !(flags & ATTN_CAUSAL)) d.interval_vectors = 2;
    if (flags & ATTN_BLOCKS) d.block_rows = d.block_keys = 64, d.block_batch = d.block_heads = 1;
    if (flags & ATTN_BITS) d.bits_batch = d.bits_heads = 1;
    d.bits_keys = row->bits_keys;
    if (flags & ATTN_SOFTCAP) d.softcap = 30;
    if (flags & ATTN_ALIBI) d.alibi_batch = 1;
    if (flags & ATTN_BIAS) d.bias_extent[0] = d.bias_extent[1] = 1;
    if (flags & ATTN_BIAS) d.bias_extent[2] = d.len_q, d.bias_extent[3] = d.len_kv;
    if (flags & ATTN_BIAS) d.bias_dtype = dtype == ATTN_E4M3 ? ATTN_BF16 : dtype;
    d.kv_dtype = row->kv_dtype, d.k_scale_rows = row->k_scale_rows;
    if (flags & ATTN_DROPOUT) d.dropout_p = 0.1f;
    if (flags & ATTN_PAGED) d.pages = 64, d.page_size = 64, d.table_width = 16;
    if (flags & ATTN_ADD && pass == 2 && dtype != ATTN_F64) d.grad_dtype = ATTN_F32;
    return d;
}

/* ---- verdicts -------------------------------------------------------------------------------- */

static verdict on_cpu(const attn_desc *d)
{
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    verdict best = d->dtype == ATTN_F64 ? SLOW : REFUSED; /* the reference computes all of f64 */
    for (int i = 0; i < count; i++) {
        verdict of = kernels[i].isa == ATTN_ISA_PORTABLE ? SLOW : FAST;
        if (of > best && !attn_cpu_cannot(&kernels[i], d)) best = of;
    }
    return best;
}

static verdict on_gpu(const attn_desc *d, const attn_cuda_arch *arch)
{
    static const attn_cuda_device device = { .name = "NVIDIA H100",
                                             .major = 9,
                                             .multiprocessors = 132,
                                             .shared_bytes = 232448,
                                             .l2_bytes = 50 << 20,
                                             .clock_khz = 1980000 };
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    attn_desc typical = attn_typical(d);
    attn_cuda_problem problem = { d, &device, attn_typical_pairs(&typical), NULL };
    verdict best = REFUSED;
    for (int i = 0; i < count; i++) {
        attn_cuda_choice choice;
        attn_desc inner;
        const attn_cuda_kernel *k = &kernels[i];
        verdict of = !attn_cuda_is_variant(k) ? SLOW : k->asked ? ASKED : FAST;
        if (of > best && k->arch == arch && !attn_cuda_obstacle(k, attn_cuda_problem_of(k, d, &inner)) &&
            attn_cuda_pass_for(k, d)->predict(&problem, k, &choice))
            best = of;
    }
    return best;
}

/* arch: NULL: the CPU. */
static verdict verdict_of(const attn_cuda_arch *arch, attn_desc d)
{
    attn_desc resolved;
    if (attn_desc_resolve(&resolved, &d, sizeof d)) return REFUSED;
    return arch ? on_gpu(&resolved, arch) : on_cpu(&resolved);
}

/* ---- cells ----------------------------------------------------------------------------------- */

static const char *verdict_name(verdict v)
{
    static const char *const names[] = { "refused", "slow", "fast ¹", "fast" };
    return names[v];
}

/* "fast to 256, slow to 512": over head dims, the same of keys and values. */
static void say_dims(const attn_cuda_arch *arch, attn_dtype dtype, int pass, const table_row *row, char cell[CELL])
{
    attn_text_buffer words = { cell, CELL, 0 };
    verdict last = REFUSED;
    cell[0] = 0;
    const bool bytes = row->kv_dtype || attn_dtype_size(dtype) == 1;
    const int step = bytes ? 2 * DIM_STEP : DIM_STEP; /* of whole 16 bytes */
    for (int dim = step; dim <= DIM_MOST; dim += step) {
        verdict v = verdict_of(arch, problem_of(arch ? ATTN_CUDA : ATTN_CPU, dtype, pass, row, dim, dim));
        if (v != last && last) attn_say(&words, "%s%s to %d", cell[0] ? ", " : "", verdict_name(last), dim - step);
        last = v;
    }
    if (!cell[0]) attn_say(&words, "%s", verdict_name(last));
}

/* ---- tables ---------------------------------------------------------------------------------- */

enum { ROWS_MOST = 40, LINE = 100 };

static int list_rows(table_row rows[ROWS_MOST])
{
    static const table_row others[] = {
        { "bit mask of fewer keys", ATTN_BITS, 0, 0, 512, 0, 0 },
        { "causal intervals", ATTN_INTERVALS | ATTN_CAUSAL, 0, 0, 0, 0, 0 },
        { "causal ALiBi", ATTN_ALIBI | ATTN_CAUSAL, 0, 0, 0, 0, 0 },
        { "softcap and bit mask", ATTN_SOFTCAP | ATTN_BITS, 0, 0, 0, 0, 0 },
        { "causal paged keys", ATTN_PAGED | ATTN_LENS_KV | ATTN_CAUSAL, 0, 0, 0, 0, 0 },
        { "paged keys, bit mask and bias", ATTN_PAGED | ATTN_LENS_KV | ATTN_BITS | ATTN_BIAS, 0, 0, 0, 0, 0 },
        { "dims 192 and 128", 0, 192, 128, 0, 0, 0 },
        { "dims 576 and 512", 0, 576, 512, 0, 0, 0 },
        { "dims 65 and 65", 0, 65, 65, 0, 0, 0 },
        { "keys of e4m3", 0, 0, 0, 0, ATTN_E4M3, 0 },
        { "scales of blocks of keys", ATTN_SCALES_KV, 0, 0, 0, ATTN_E4M3, 64 },
        { "keys of i8", 0, 0, 0, 0, ATTN_I8, 0 },
        { "paged keys of i8 with scales", ATTN_PAGED | ATTN_LENS_KV | ATTN_SCALES_KV, 0, 0, 0, ATTN_I8, 0 },
    };
    const attn_feature *features;
    int count = attn_features(&features), n = 0;
    rows[n++] = (table_row){ "none", 0, 0, 0, 0, 0, 0 };
    for (int i = 0; i < count; i++) {
        uint32_t flag = features[i].flag, with = 0; /* a page table goes with the keys that are used */
        if (flag & ATTN_PAGED) with = ATTN_LENS_KV;
        if (flag & ATTN_DROPOUT_BASES) with = ATTN_DROPOUT;
        rows[n++] =
            (table_row){ features[i].name, flag | with, 0, 0, 0, flag & ATTN_SCALES_KV ? ATTN_E4M3 : (attn_dtype)0, 0 };
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        rows[n++] = others[i];
    return n;
}

/* One more of a list, in lines that end before column 120. */
static void say_wrapped(const char *name, int *column)
{
    bool first = *column == 0, wraps = *column > LINE - (int)strlen(name);
    *column = (wraps ? 0 : *column) + (int)strlen(name) + 2;
    printf("%s%s%s", first ? "" : ",", wraps ? "\n" : " ", name);
}

typedef char cells[ROWS_MOST][PASSES][CELL];

static void fill(const attn_cuda_arch *arch, attn_dtype dtype, const table_row *rows, int count, cells to)
{
    for (int i = 0; i < count; i++)
        for (int pass = 0; pass < PASSES; pass++) {
            const table_row *r = &rows[i];
            attn_desc d = problem_of(arch ? ATTN_CUDA : ATTN_CPU, dtype, pass, r, r->dim, r->dim_v);
            if (r->dim)
                snprintf(to[i][pass], CELL, "%s", verdict_name(verdict_of(arch, d)));
            else
                say_dims(arch, dtype, pass, r, to[i][pass]);
        }
}

/* Those that are what the first is, `none`, in a sentence below. */
static void print_rows(const table_row *rows, cells of, int count)
{
    int column = 0;
    for (int i = 0; i < count; i++)
        if (i == 0 || memcmp(of[i], of[0], sizeof of[0]))
            printf("| %s | %s | %s | %s |\n", rows[i].name, of[i][0], of[i][1], of[i][2]);
    printf("\nAs none:");
    for (int i = 1; i < count; i++) {
        if (!memcmp(of[i], of[0], sizeof of[0])) say_wrapped(rows[i].name, &column);
    }
    printf(".\n");
}

/* One table for all dtypes whose cells are the same. */
static void print_device(const attn_cuda_arch *arch)
{
    static cells of[DTYPES];
    table_row rows[ROWS_MOST];
    int count = list_rows(rows);
    bool printed[DTYPES] = { false };
    memset(of, 0, sizeof of);
    for (int t = 0; t < DTYPES; t++)
        fill(arch, dtypes[t], rows, count, of[t]);
    for (int t = 0; t < DTYPES; t++) {
        if (printed[t]) continue;
        printf("\n## %s: ", arch ? arch->isa : "CPU");
        for (int same = t; same < DTYPES; same++) {
            if (memcmp(of[t], of[same], sizeof of[t])) continue;
            printf("%s%s", same > t ? ", " : "", attn_dtype_name(dtypes[same]));
            printed[same] = true;
        }
        printf("\n\n| feature |");
        for (int pass = 0; pass < PASSES; pass++)
            printf(" %s |", pass_names[pass]);
        printf("\n|---|---|---|---|\n");
        print_rows(rows, of[t], count);
    }
}

void attn_support_print(void)
{
    int count;
    const attn_cuda_arch *const *archs = attn_cuda_archs(&count);
    puts("# What is computed, and what of it is fast\n\n"
         "`script/support >docs/SUPPORT.md` writes this page: this part by `attn kernels --support`, from the\n"
         "tables of kernels and from what plans ask of them, the last one from measurements. A row is a\n"
         "problem that asks for this feature and nothing else, a cell what becomes of it, by head dim: \"fast\n"
         "to 256, slow to 512\" are dims 1 to 256 and 257 to 512; above that it is refused, with an error that\n"
         "says why. Features can be combined; some that are combined are rows, too.\n\n"
         "- **fast**: by a kernel that is written for it; on a CPU, for its vector instructions.\n"
         "- **fast ¹**: so, by a kernel that nvcc does not compile into the library. NVRTC compiles it when a\n"
         "  plan first takes it, and keeps it on disk. Where there is no NVRTC it is slow, and the plan says\n"
         "  so.\n"
         "- **slow**: by the kernels that compute everything; in f64 by the reference, on one thread.\n\n"
         "A forward of a row is what decoding asks for. `attn explain` says which of the fast kernels a plan\n"
         "takes.");
    print_device(NULL);
    for (int i = 0; i < count; i++)
        print_device(archs[i]);
}
