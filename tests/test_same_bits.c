/* Which two ways to compute a row give the same bits: measured for every kernel of the forward that this machine runs,
 * with ATTN_DETERMINISTIC, and compared with the table of docs/SAME-BITS.md. A cell that says yes and is not fails, and
 * so does one that says no and is. `test_same_bits table` prints the rows as they are. */
#include "support.h"

#include "check/random.h"
#include "num/half.h"

enum { LEN = 700, HEADS_Q = 4, HEADS_KV = 2, DIM = 64, OTHERS = 3, LAST = 64, PAGES = 800 };
enum { ROW_Q = HEADS_Q * DIM, ROW_KV = HEADS_KV * DIM, SLOTS = PAGES * 64 };

/* One sequence's tensors, as f32 and in the dtype of the run; o and lse of rows [from, LEN) of one way and of another.
 */
typedef struct sequence {
    attn_dtype dtype;
    size_t size; /* of an element */
    char *q, *k, *v;
} sequence;

typedef struct result {
    float o[LEN][ROW_Q], lse[HEADS_Q][LEN];
} result;

/* How a run computes rows [LEN - rows, LEN): `chunk` at a time. */
typedef struct way {
    const char *kernel, *strategy;
    int64_t rows, chunk, batch, page_size;
} way;

static void put(char *to, attn_dtype dtype, int64_t i, float x)
{
    if (dtype == ATTN_F32)
        memcpy(to + 4 * i, &x, 4);
    else {
        uint16_t bits = dtype == ATTN_F16 ? attn_float_to_f16(x) : attn_float_to_bf16(x);
        memcpy(to + 2 * i, &bits, 2);
    }
}

static char *draw(attn_dtype dtype, size_t size, int64_t count, uint64_t seed, float times)
{
    char *made = malloc(size * (size_t)count);
    for (int64_t i = 0; i < count; i++)
        put(made, dtype, i, (float)(check_below(&seed, 4001) - 2000) * 1e-3f * times);
    return made;
}

static sequence make(attn_dtype dtype)
{
    size_t size = dtype == ATTN_F32 ? 4 : 2;
    return (sequence){ dtype, size, draw(dtype, size, LEN * ROW_Q, 1, 4) /* maxima that move */,
                       draw(dtype, size, LEN * ROW_KV, 2, 1), draw(dtype, size, LEN * ROW_KV, 3, 1) };
}

static void destroy(sequence *s)
{
    free(s->q), free(s->k), free(s->v);
}

/* The keys in pages of `size` slots, in no order; ids to table. */
static char *paged(const sequence *s, const char *keys, int64_t size, int32_t *table)
{
    size_t row = s->size * ROW_KV;
    char *pages = calloc(SLOTS, row);
    for (int64_t j = 0; j < LEN; j++) {
        int32_t id = table[j / size] = (int32_t)(j / size * 389 % PAGES);
        memcpy(pages + ((size_t)(id * size + j % size)) * row, keys + (size_t)j * row, row);
    }
    return pages;
}

/* The sequence is the last of `batch`; the others have the same tensors and other lengths. */
static void compute(const sequence *s, const way *w, result *r)
{
    static int32_t table[1 + OTHERS][LEN];
    char *k = w->page_size ? paged(s, s->k, w->page_size, table[0]) : s->k;
    char *v = w->page_size ? paged(s, s->v, w->page_size, table[0]) : s->v;
    attn_desc desc = { .dtype = s->dtype,
                       .batch = w->batch,
                       .heads_q = HEADS_Q,
                       .heads_kv = HEADS_KV,
                       .len_q = w->chunk,
                       .len_kv = LEN,
                       .dim_qk = DIM,
                       .threads = 2,
                       .kernel = w->kernel,
                       .strategy = w->strategy,
                       .flags = ATTN_CAUSAL | ATTN_LENS_Q | ATTN_LENS_KV | ATTN_OUT_F32 | ATTN_DETERMINISTIC };
    desc.q_stride[1] = ROW_Q, desc.q_stride[2] = DIM, desc.q_stride[3] = 1;
    desc.k_stride[1] = desc.v_stride[1] = ROW_KV, desc.k_stride[2] = desc.v_stride[2] = DIM;
    desc.k_stride[3] = desc.v_stride[3] = 1;
    if (w->page_size) {
        desc.flags |= ATTN_PAGED, desc.pages = PAGES, desc.page_size = w->page_size, desc.table_width = LEN;
        desc.k_stride[0] = desc.v_stride[0] = w->page_size * ROW_KV;
        for (int b = 1; b < w->batch; b++)
            memcpy(table[b], table[0], sizeof table[0]);
    }
    attn_plan *plan;
    assert_ok(attn_plan_create(&plan, &desc));
    void *workspace = malloc(attn_plan_workspace(plan));
    float *o = malloc(sizeof *o * (size_t)(w->batch * w->chunk * ROW_Q));
    float *lse = malloc(sizeof *lse * (size_t)(w->batch * w->chunk * HEADS_Q));
    for (int64_t at = LEN - w->rows; at < LEN; at += w->chunk) {
        int64_t rows = LEN - at < w->chunk ? LEN - at : w->chunk, last = w->batch - 1;
        int32_t lens_q[1 + OTHERS], lens_kv[1 + OTHERS];
        for (int b = 0; b < w->batch; b++) {
            lens_q[b] = (int32_t)(b == last ? rows : rows < 2 ? rows : rows - b % 2);
            lens_kv[b] = (int32_t)(at + rows) / (b == last ? 1 : b + 2);
        }
        /* The rows of a shorter chunk are the buffer's first; reading q from row `at` on stays within the sequence. */
        attn_args args = { .q = s->q + s->size * (size_t)(at * ROW_Q),
                           .k = k,
                           .v = v,
                           .o = o,
                           .lse = lse,
                           .lens_q = lens_q,
                           .lens_kv = lens_kv,
                           .page_table = w->page_size ? table[0] : NULL };
        assert_ok(attn_run(plan, &args, workspace, NULL));
        memcpy(r->o[at], o + last * w->chunk * ROW_Q, sizeof(float) * (size_t)(rows * ROW_Q));
        for (int h = 0; h < HEADS_Q; h++)
            memcpy(&r->lse[h][at], lse + (last * HEADS_Q + h) * w->chunk, sizeof(float) * (size_t)rows);
    }
    free(o), free(lse), free(workspace);
    attn_plan_destroy(plan);
    if (w->page_size) free(k), free(v);
}

/* Whether both ways give the same rows [LEN - rows, LEN), in all dtypes of the kernel. */
static bool same(const attn_cpu_kernel *kernel, const way *a, const way *b)
{
    static result left, right;
    int64_t rows = a->rows < b->rows ? a->rows : b->rows, from = LEN - rows;
    bool equal = true;
    for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++) {
        if (!(kernel->dtypes >> dtype & 1)) continue;
        sequence s = make((attn_dtype)dtype);
        compute(&s, a, &left), compute(&s, b, &right);
        destroy(&s);
        equal = equal && memcmp(left.o[from], right.o[from], sizeof left.o[0] * (size_t)rows) == 0;
        for (int h = 0; h < HEADS_Q; h++)
            equal = equal && memcmp(&left.lse[h][from], &right.lse[h][from], sizeof(float) * (size_t)rows) == 0;
    }
    return equal;
}

enum { CELLS = 6 };

/* "yes", "no", or "-" where there is nothing to compare: as the columns of the document. */
static void measure(const attn_cpu_kernel *kernels, int count, int k, const char *strategy, const char *cell[CELLS])
{
    const attn_cpu_kernel *kernel = &kernels[k];
    bool decode = kernel->form == ATTN_DECODE;
    int64_t most = decode ? 16 : 512;
    const way one = { kernel->name, strategy, decode ? 16 : LAST, decode ? 16 : LAST, 1, 0 };
    way other = one, pages = one;
    bool answer;
    other.batch = 1 + OTHERS;
    cell[0] = same(kernel, &one, &other) ? "yes" : "no";
    pages.page_size = 16;
    cell[1] = same(kernel, &one, &pages) ? "yes" : "no";
    other = pages, answer = true;
    for (int i = 0; i < 3; i++)
        other.page_size = (const int64_t[]){ 1, 7, 64 }[i], answer = same(kernel, &pages, &other) && answer;
    cell[2] = answer ? "yes" : "no";
    way whole = { kernel->name, strategy, decode ? LAST : LEN, most, 1, 0 };
    answer = true;
    for (int64_t chunk = 1; chunk < most; chunk *= 16)
        other = whole, other.chunk = chunk, other.rows = LAST, answer = same(kernel, &whole, &other) && answer;
    cell[3] = answer ? "yes" : "no";
    other = one, other.strategy = "split-kv=3", whole = one, whole.strategy = "split-kv=1";
    cell[4] = !decode || strategy ? "-" : same(kernel, &whole, &other) ? "yes" : "no";
    cell[5] = "-";
    for (int i = 0; decode && i < count; i++)
        if (kernels[i].form == ATTN_PREFILL && kernels[i].isa == kernel->isa)
            other = one, other.strategy = NULL, other.kernel = kernels[i].name,
            cell[5] = same(kernel, &one, &other) ? "yes" : "no";
}

/* The document's row of the kernel, without spaces; false: it has none. */
static bool row_of(const char *kernel, char *row, size_t size)
{
    FILE *file = fopen(DOCUMENT, "r");
    char line[512], begin[160];
    if (!file) fail_msg("%s cannot be read", DOCUMENT);
    snprintf(begin, sizeof begin, "| `%s` |", kernel);
    bool found = false;
    while (!found && fgets(line, sizeof line, file))
        found = strncmp(line, begin, strlen(begin)) == 0;
    fclose(file);
    if (found) snprintf(row, size, "%.*s", (int)strcspn(line, "\n"), line);
    return found;
}

static bool print_table;

/* The kernel by the planner's choice, or by a strategy; false: the table's row is another. */
static bool row_is_true(const attn_cpu_kernel *kernels, int count, int k, const char *strategy)
{
    char name[128], want[256], row[512];
    const char *cell[CELLS];
    snprintf(name, sizeof name, strategy ? "%s, %s" : "%s", kernels[k].name, strategy);
    bool listed = row_of(name, row, sizeof row);
    if (!listed && !print_table) {
        print_message("SKIPPED: %s, of which the table says nothing\n", name);
        return true;
    }
    measure(kernels, count, k, strategy, cell);
    snprintf(want, sizeof want, "| `%s` | %s | %s | %s | %s | %s | %s |", name, cell[0], cell[1], cell[2], cell[3],
             cell[4], cell[5]);
    if (print_table) {
        puts(want);
        return true;
    }
    bool right = strcmp(row, want) == 0;
    if (!right) print_error("%s says\n    %s\nbut it is\n    %s\n", DOCUMENT, row, want);
    return right;
}

static void the_table_is_true(void **state)
{
    (void)state;
    int count;
    bool right = true;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int k = 0; k < count; k++) {
        if (!runs(&kernels[k])) continue;
        right = row_is_true(kernels, count, k, NULL) && right;
        if (kernels[k].form == ATTN_DECODE) right = row_is_true(kernels, count, k, "kv-tile=16,split-kv=1") && right;
    }
    assert_true(right);
}

int main(int argc, char **argv)
{
    print_table = argc > 1 && strcmp(argv[1], "table") == 0;
    const struct CMUnitTest tests[] = { cmocka_unit_test(the_table_is_true) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
