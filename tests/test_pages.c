/* Attention over pages reads what sequences have there, and nothing else: NaN in slots beyond a length or before
 * first_kv and in pages that no sequence names, and ids that are no page's beyond a length and in pages that a window,
 * a chunk or first_kv hides whole, leave every bit as it was. */
#include "support.h"

#include <limits.h>
#include <math.h>

#include "num/half.h"
#include "problem/keys.h"
#include "problem/sequence.h"
#include "ref/ref.h"

enum {
    BATCH = 4,
    HEADS_Q = 4,
    HEADS_KV = 2,
    DIM = 24,
    KEYS = 192,
    PAGES = 1024,
    SLOTS_MOST = 64,
    ROW = HEADS_KV * DIM
};

static const int32_t lens[BATCH] = { 150, 37, 0, 192 }, first[BATCH] = { 5, 20, 0, 130 };
static const int64_t position_q[BATCH] = { 1040, 7, -3, 500 }, position_kv[BATCH] = { 905, -11, 4, 340 };

typedef struct masked {
    const char *name;
    uint32_t flags;
    int64_t window_left, chunk;
} masked;

typedef struct problem {
    attn_desc desc, resolved;
    attn_args args;
    int32_t table[BATCH * (KEYS + 3)], starts[BATCH + 1]; /* three entries too many for each sequence */
    int32_t clean[BATCH * (KEYS + 3)];                    /* the table, with ids of pages in every entry */
    char *k, *v;                                          /* pools */
    bool used[PAGES][SLOTS_MOST];
} problem;

static bool some_row_sees(const problem *p, int64_t batch, int64_t key)
{
    for (int64_t row = 0; row < p->desc.len_q; row++)
        if (attn_ref_visible(&p->resolved, &p->args, batch, 0, row, key)) return true;
    return false;
}

/* Gives each entry a page of its own, in no order; marks the slots in use; and ids that nobody may read are no page's.
 */
static void fill_table(problem *p, bool by_starts)
{
    static const int32_t garbage[] = { -1, PAGES, INT_MAX, INT_MIN };
    int64_t size = p->desc.page_size, width = attn_ceil_div(KEYS, size) + 3;
    p->desc.pages = PAGES;
    if (by_starts)
        p->desc.table_total = BATCH * width, p->args.page_starts = p->starts;
    else
        p->desc.table_width = width;
    p->args.page_table = p->table;
    assert_ok(attn_desc_resolve(&p->resolved, &p->desc, sizeof p->desc));
    for (int64_t i = 0; i < BATCH * width; i++) {
        int64_t batch = i / width, page = i % width;
        bool needed = false;
        p->clean[i] = (int32_t)(i * 389 % PAGES);
        for (int64_t key = page * size; key < (page + 1) * size && key < lens[batch]; key++)
            needed = some_row_sees(p, batch, key) || needed;
        for (int64_t slot = 0; slot < size && needed; slot++) {
            int64_t key = page * size + slot;
            p->used[p->clean[i]][slot] = first[batch] <= key && key < lens[batch];
        }
        p->table[i] = needed ? p->clean[i] : garbage[i % COUNT(garbage)];
        p->starts[batch + 1] = (int32_t)((batch + 1) * width);
    }
}

/* NaN into every slot that is not in use. */
static void poison(const problem *p)
{
    for (int64_t i = 0; i < PAGES * p->desc.page_size; i++)
        for (int64_t j = 0; j < ROW && !p->used[i / p->desc.page_size][i % p->desc.page_size]; j++) {
            attn_store_scalar(p->desc.dtype, p->k, i * ROW + j, NAN);
            attn_store_scalar(p->desc.dtype, p->v, i * ROW + j, NAN);
        }
}

static void run(const problem *p, float *o, float *lse)
{
    attn_plan *plan;
    attn_args args = p->args;
    int64_t rows = BATCH * p->desc.len_q * HEADS_Q;
    memset(o, 0xff, (size_t)(rows * DIM) * sizeof *o), memset(lse, 0xff, (size_t)rows * sizeof *lse);
    args.o = o, args.lse = lse;
    assert_ok(attn_plan_create(&plan, &p->desc));
    size_t size = attn_plan_workspace(plan);
    void *workspace = check_allocate(size + 1);
    memset(workspace, 0xff, size);
    assert_ok(attn_run(plan, &args, workspace, NULL));
    free(workspace);
    attn_plan_destroy(plan);
}

static void *random_elements(attn_dtype dtype, int64_t count, uint64_t *state)
{
    char *elements = check_allocate((size_t)(count * attn_dtype_size(dtype)));
    for (int64_t i = 0; i < count; i++)
        attn_store_scalar(dtype, elements, i, (float)check_normal(state));
    return elements;
}

/* Returns how many slots and ids were poisoned that a sequence has. */
static int64_t check_kernel(const attn_cpu_kernel *kernel, const masked *mask, int64_t page_size, const char *strategy,
                            bool by_starts)
{
    problem *p = check_allocate(sizeof *p);
    uint64_t state = 5;
    int64_t rows = kernel->form == ATTN_DECODE ? 3 : 40, outputs = BATCH * rows * HEADS_Q, gone = 0;
    memset(p, 0, sizeof *p);
    p->desc = (attn_desc){ .dtype = dtype_of(kernel),
                           .flags = ATTN_PAGED | ATTN_LENS_KV | ATTN_FIRST_KV | ATTN_OUT_F32 | mask->flags,
                           .batch = BATCH,
                           .heads_q = HEADS_Q,
                           .heads_kv = HEADS_KV,
                           .len_q = rows,
                           .len_kv = KEYS,
                           .dim_qk = DIM,
                           .page_size = page_size,
                           .window_left = mask->window_left,
                           .chunk = mask->chunk,
                           .threads = 2,
                           .kernel = kernel->name,
                           .strategy = strategy };
    void *q = random_elements(p->desc.dtype, outputs * DIM, &state);
    p->k = random_elements(p->desc.dtype, PAGES * page_size * ROW, &state);
    p->v = random_elements(p->desc.dtype, PAGES * page_size * ROW, &state);
    p->args = (attn_args){ .q = q, .k = p->k, .v = p->v, .lens_kv = lens, .first_kv = first };
    if (mask->flags & ATTN_POSITIONS) p->args.position_q = position_q, p->args.position_kv = position_kv;
    fill_table(p, by_starts);
    float *o[2], *lse[2];
    for (int i = 0; i < 2; i++) {
        o[i] = check_allocate((size_t)(outputs * DIM) * sizeof(float));
        lse[i] = check_allocate((size_t)outputs * sizeof(float));
        p->args.page_table = i ? p->table : p->clean;
        if (i) poison(p);
        run(p, o[i], lse[i]);
    }
    if (memcmp(o[0], o[1], (size_t)(outputs * DIM) * sizeof(float)) != 0 ||
        memcmp(lse[0], lse[1], (size_t)outputs * sizeof(float)) != 0)
        fail_msg("%s, %s, pages of %d, %s", kernel->name, mask->name, (int)page_size, strategy ? strategy : "planned");
    for (int64_t i = 0; i < outputs * DIM; i++)
        assert_true(isfinite(o[0][i]));
    for (int64_t i = 0; i < p->starts[BATCH]; i++)
        gone += p->table[i] != p->clean[i] && i % (p->starts[1]) * page_size < lens[i / p->starts[1]];
    void *all[] = { q, p->k, p->v, o[0], o[1], lse[0], lse[1], p };
    for (int i = 0; i < COUNT(all); i++)
        free(all[i]);
    return gone;
}

static void only_keys_of_sequences_are_read(void **state)
{
    (void)state;
    static const masked masks[] = { { "no mask", 0, 0, 0 },
                                    { "causal", ATTN_CAUSAL, 0, 0 },
                                    { "window", ATTN_CAUSAL | ATTN_WINDOW, 25, 0 },
                                    { "chunk", ATTN_CHUNK, 0, 48 },
                                    { "positions", ATTN_CAUSAL | ATTN_WINDOW | ATTN_CHUNK | ATTN_POSITIONS, 50, 64 } };
    static const int64_t sizes[] = { 1, 3, 16, 64 };
    static const char *const strategies[] = { NULL, "split-kv=2,kv-tile=16,kv-heads=2" };
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int k = 0; k < count; k++) {
        int64_t gone = 0;
        for (int m = 0; m < COUNT(masks); m++)
            for (int s = 0; s < COUNT(sizes) && runs(&kernels[k]); s++)
                for (int i = 0; i < (kernels[k].form == ATTN_DECODE ? 2 : 1); i++)
                    gone += check_kernel(&kernels[k], &masks[m], sizes[s], strategies[i], (m + s + i) % 2);
        assert_true(gone > 0 || !runs(&kernels[k]));
    }
}

/* Exactly the keys that are asked for are listed, in pages or not, where runs of seen keys end before, in and behind
 * them; those that no row sees are rows of zeros. */
static void exactly_so_many_rows_are_listed(void **state)
{
    (void)state;
    enum { ALL = 24, SLOTS = 5 };
    static const int32_t ids[] = { 3, 0, 4, 1, 2 };
    static const char pool[ALL + 1];
    static const char nothing[1];
    for (int paged = 0; paged < 2; paged++)
        for (int64_t lo = 0; lo < ALL; lo++)
            for (int64_t count = 0; lo + count <= ALL; count++) {
                const void *k[ALL + 1], *v[ALL + 1];
                attn_keys keys = { .k = pool,
                                   .v = pool,
                                   .k_row = 1,
                                   .v_row = 1,
                                   .pages = paged ? ids : NULL,
                                   .page_size = SLOTS,
                                   .k_page = SLOTS,
                                   .v_page = SLOTS,
                                   .seen = { .lo = { 2, 11 }, .hi = { 7, 22 } } };
                for (int64_t i = 0; i <= ALL; i++)
                    k[i] = v[i] = nothing;
                attn_keys_rows(&keys, lo, count, k, v);
                for (int64_t i = 0; i <= ALL; i++) {
                    int64_t key = lo + i, at = paged && key < ALL ? ids[key / SLOTS] * SLOTS + key % SLOTS : key;
                    bool seen = (key >= 2 && key < 7) || (key >= 11 && key < 22);
                    assert_ptr_equal(k[i], v[i]);
                    if (i >= count)
                        assert_ptr_equal(k[i], nothing);
                    else if (seen)
                        assert_ptr_equal(k[i], pool + at);
                    else
                        assert_memory_equal(k[i], ((char[ATTN_KEYS_ZEROS]){ 0 }), ATTN_KEYS_ZEROS);
                }
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(exactly_so_many_rows_are_listed),
                                        cmocka_unit_test(only_keys_of_sequences_are_read) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
