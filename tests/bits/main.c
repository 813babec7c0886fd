/* Which two ways to compute a row give the same bits: measured for every kernel of the forward that this machine runs,
 * and compared with the table of docs/SAME-BITS.md. A cell that says yes and is not fails, and so does one that says no
 * and is.
 *
 *     attn_test_bits DOCUMENT DEVICE [NAME ...]
 *
 * DEVICE: cpu, or cuda. NAME: these kernels alone, where they are emulated. Rows are printed as they are found to be.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/kernel.h"
#include "cuda/kernel.h"
#include "device/device.h"
#include "way.h"

enum { BATCH, PAGES, PAGE_SIZE, CHUNKS, SPLITS, PREFILL, CELLS };
enum { ROWS = 16 }; /* that are compared */

/* Ordered: a row of several kernels says the greatest. */
typedef enum cell { NOTHING, YES, NO } cell;

/* A line of the table, in the making. */
typedef struct row {
    const char *name, *strategy; /* by the planner's choice: NULL */
    cell cells[CELLS];
} row;

/* A kernel, and what its ways are compared with. */
typedef struct subject {
    way base;    /* alone; contiguous, unless it takes pages alone */
    bool decode; /* takes most rows at once, else CHUNK_MOST */
    int64_t most;
    const char *paged;    /* the kernel for the same keys in pages; NULL: none has its tiles */
    const char *prefill;  /* what computes many rows on the device; NULL: itself */
    const char *split[2]; /* strategies that differ in where keys are split; NULL: the row's fixes it */
} subject;

static bool failed;
static char **names; /* of the kernels that are asked for; count 0: all */
static int name_count;

static bool asked(const char *name)
{
    for (int i = 0; i < name_count; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return name_count == 0;
}

static void compute(const way *w, way_result *r)
{
    if (!way_compute(w, r)) failed = true;
}

/* How b compares with a, which is computed: in b's rows. */
static void compare(row *to, int column, const way_result *a, const way *b)
{
    static way_result r;
    compute(b, &r);
    cell found = way_same(b, a, &r) ? YES : NO;
    if (found > to->cells[column]) to->cells[column] = found;
}

static void measure(row *to, const subject *s)
{
    static way_result one, other;
    way w = s->base;
    compute(&s->base, &one);
    w.batch = 4;
    compare(to, BATCH, &one, &w);
    if (s->paged) {
        w = s->base, w.kernel = s->paged, w.page_size = 16;
        if (!s->base.page_size) compare(to, PAGES, &one, &w);
        compute(&w, &other);
        static const int64_t sizes[2][3] = { { 1, 7, 64 }, { 8, 24, 64 } }; /* the latter of E4M3 */
        for (int i = 0; i < 3; i++)
            w.page_size = sizes[w.dtype == ATTN_E4M3][i], compare(to, PAGE_SIZE, &other, &w);
    }
    w = s->base, w.chunk = s->most;
    if (!s->decode) w.rows = CHUNK_MOST;
    compute(&w, &other);
    for (int64_t chunk = 1; chunk < s->most; chunk *= 16)
        w = s->base, w.chunk = chunk, compare(to, CHUNKS, &other, &w);
    if (s->split[0]) {
        w = s->base, w.strategy = s->split[0];
        compute(&w, &other);
        w.strategy = s->split[1];
        compare(to, SPLITS, &other, &w);
    }
    w = s->base, w.kernel = s->prefill, w.strategy = NULL;
    if (s->prefill) compare(to, PREFILL, &one, &w);
    w = s->base, w.flags &= ~(uint32_t)ATTN_DETERMINISTIC;
    if (w.device == ATTN_CPU) return; /* there it decides what the planner knows of the machine */
    compute(&w, &other);
    if (way_same(&w, &one, &other)) return;
    printf("FAILED: %s has other bits without ATTN_DETERMINISTIC\n", w.kernel);
    failed = true;
}

/* ---- the document ---------------------------------------------------------------------------- */

static const char *document;

/* The document's line of a row; false: it has none. */
static bool line_of(const char *name, char *line, size_t size)
{
    FILE *file = fopen(document, "r");
    char begin[160];
    bool found = false;
    snprintf(begin, sizeof begin, "| `%s` |", name);
    while (file && !found && fgets(line, (int)size, file))
        found = strncmp(line, begin, strlen(begin)) == 0;
    if (!file) printf("%s cannot be read\n", document);
    if (file) fclose(file);
    if (found) line[strcspn(line, "\n")] = 0;
    return found;
}

static void check(const row *is)
{
    static const char *const words[] = { "-", "yes", "no" };
    char name[128], want[256], line[512];
    snprintf(name, sizeof name, is->strategy ? "%s, %s" : "%s", is->name, is->strategy);
    int at = snprintf(want, sizeof want, "| `%s` |", name);
    for (int i = 0; i < CELLS; i++)
        at += snprintf(want + at, sizeof want - (size_t)at, " %s |", words[is->cells[i]]);
    puts(want);
    if (!line_of(name, line, sizeof line)) {
        printf("FAILED: %s has no such row\n", document);
        failed = true;
    } else if (strcmp(line, want) != 0) {
        printf("FAILED: but %s says\n%s\n", document, line);
        failed = true;
    }
}

/* ---- kernels of CPUs ------------------------------------------------------------------------- */

enum { CPU_TO = 522 }; /* from before a multiple of all KV tiles to after it */

static void check_cpu(const attn_cpu_kernel *kernels, int count, const attn_cpu_kernel *k, const char *strategy)
{
    row r = { .name = k->name, .strategy = strategy };
    bool decode = k->form == ATTN_DECODE;
    subject s = { .base = { .device = ATTN_CPU,
                            .kernel = k->name,
                            .strategy = strategy,
                            .flags = ATTN_DETERMINISTIC,
                            .dim = 64,
                            .to = CPU_TO,
                            .rows = ROWS,
                            .chunk = decode ? ATTN_DECODE_ROWS : ROWS,
                            .batch = 1 },
                  .decode = decode,
                  .most = decode ? ATTN_DECODE_ROWS : CHUNK_MOST,
                  .paged = k->name };
    if (decode && !strategy) s.split[0] = "split-kv=1", s.split[1] = "split-kv=3";
    for (int i = 0; i < count && decode; i++)
        if (kernels[i].form == ATTN_PREFILL && kernels[i].isa == k->isa) s.prefill = kernels[i].name;
    for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++) {
        s.base.dtype = (attn_dtype)dtype;
        if (k->dtypes >> dtype & 1) measure(&r, &s);
    }
    check(&r);
}

static void check_cpus(void)
{
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (const attn_cpu_kernel *k = kernels; k < kernels + count; k++) {
        char line[512];
        if (k->form == ATTN_GRADIENT || !asked(k->name)) continue;
        if (k->ops && attn_isa_available(k->isa)) {
            check_cpu(kernels, count, k, NULL);
            if (k->form == ATTN_DECODE) check_cpu(kernels, count, k, "kv-tile=16,split-kv=1");
        } else if (!line_of(k->name, line, sizeof line)) {
            printf("FAILED: %s has no row of %s\n", document, k->name);
            failed = true;
        } else {
            printf("SKIPPED: %s, which this machine does not run\n", k->name);
        }
    }
}

/* ---- kernels of GPUs ------------------------------------------------------------------------- */

enum { GPU_TO = 650 }; /* likewise, of most */

static const struct family {
    const char *name, *strategy;
} rows[] = { { "plain", "split-kv=1" },           { "masks", "split-kv=1" }, { "score_mod", "split-kv=1" },
             { "softcap", "split-kv=1" },         { "alibi", "split-kv=1" }, { "paged", "split-kv=1" },
             { "score_mod_paged", "split-kv=1" }, { "decode", NULL },        { "decode", "split-keys=64" },
             { "decode", "split-keys=640" },      { "fallback", NULL } };

/* What follows the tiles in a variant's name. */
static const char *family_of(const attn_cuda_kernel *k)
{
    if (k->form != ATTN_CUDA_FORWARD) return k->form == ATTN_CUDA_DECODE ? "decode" : "fallback";
    const char *tail = strrchr(k->name, 'x') + 1;
    while (isdigit((unsigned char)*tail))
        tail++;
    return *tail ? tail + 1 : "plain";
}

static const attn_cuda_kernel *named(const char *name)
{
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (int i = 0; i < count; i++)
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
    return NULL;
}

static const char *plain_prefill(const attn_cuda_kernel *like, int64_t dim)
{
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (int i = 0; i < count; i++)
        if (kernels[i].form == ATTN_CUDA_FORWARD && kernels[i].dtype == like->dtype && kernels[i].dim == dim)
            return kernels[i].name;
    return NULL;
}

static void measure_gpu(row *to, const attn_cuda_kernel *k)
{
    if (attn_cuda_kv_dtype(k)) return; /* of keys of a byte: its decode's promises are those of 16 bits */
    char paged[128];
    bool decode = k->form == ATTN_CUDA_DECODE, variant = k->form == ATTN_CUDA_FORWARD;
    int64_t most = decode ? 16 * HEADS_KV / HEADS_Q : CHUNK_MOST;
    int64_t dim = attn_cuda_is_variant(k) ? k->dim_v : 64;
    subject s = { .base = { .device = ATTN_CUDA,
                            .kernel = k->name,
                            .strategy = to->strategy,
                            .dtype = k->dtype,
                            .flags = ATTN_DETERMINISTIC | (k->needs & (ATTN_SOFTCAP | ATTN_ALIBI)),
                            .dim = dim,
                            .to = GPU_TO,
                            .rows = ROWS,
                            .chunk = decode ? most : ROWS,
                            .batch = 1,
                            .page_size = k->paged ? 16 : 0 },
                  .decode = decode,
                  .most = most,
                  .paged = k->name,
                  .prefill = variant ? NULL : plain_prefill(k, dim) };
    snprintf(paged, sizeof paged, "%s_paged", k->name);
    if (variant && !k->paged) s.paged = named(paged) ? paged : NULL;
    if (attn_cuda_is_variant(k))
        s.split[0] = decode ? "split-keys=64" : "split-kv=1", s.split[1] = decode ? "split-keys=640" : "split-kv=3";
    measure(to, &s);
}

static void check_gpu(const char *family, const char *strategy)
{
    int count, measured = 0;
    row r = { .name = family, .strategy = strategy };
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (const attn_cuda_kernel *k = kernels; k < kernels + count; k++)
        if (attn_cuda_direction(k) == ATTN_FORWARD && strcmp(family_of(k), family) == 0 && asked(k->name))
            measure_gpu(&r, k), measured++;
    if (measured) check(&r);
}

static void check_gpus(void)
{
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++)
        check_gpu(rows[i].name, rows[i].strategy);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 3) return 2;
    document = argv[1], names = argv + 3, name_count = argc - 3;
    if (strcmp(argv[2], "cpu") == 0) {
        check_cpus();
    } else if (device_open()) {
        printf("SKIPPED: %s\n", attn_error());
    } else {
        check_gpus();
    }
    return failed;
}
