/* More than 2^31 elements: strides and sparse memory make them cheap. */
#define _GNU_SOURCE
#include "support.h"

#include <sys/mman.h>

#include "num/half.h"

/* Address space for n elements, of which only those written take memory; reads find 0. */
static void *sparse(int64_t n, attn_dtype dtype, size_t *size)
{
    *size = (size_t)(n * attn_dtype_size(dtype));
    void *memory = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

typedef struct tensor {
    void *data;
    size_t size;
} tensor;

/* A copy of a packed tensor with other strides. */
static tensor spread(attn_dtype dtype, const void *packed, const int64_t extent[4], const int64_t stride[4])
{
    tensor t;
    int64_t reach = 1;
    for (int a = 0; a < 4; a++)
        reach += (extent[a] - 1) * stride[a];
    t.data = sparse(reach, dtype, &t.size);
    if (t.data == NULL) return t;
    int64_t from = 0;
    for (int64_t b = 0; b < extent[0]; b++)
        for (int64_t i = 0; i < extent[1]; i++)
            for (int64_t h = 0; h < extent[2]; h++)
                for (int64_t d = 0; d < extent[3]; d++, from++) {
                    int64_t to = b * stride[0] + i * stride[1] + h * stride[2] + d;
                    attn_store_scalar(dtype, t.data, to, attn_load_scalar(dtype, packed, from));
                }
    return t;
}

enum { ROWS = 40, KEYS = 60, DIM = 16, HEADS = 2, BATCH = 2 };
static const int64_t GIANT = (int64_t)1 << 31;

/* Whether a spread tensor holds what the packed one does. */
static bool same_rows(const tensor *t, const void *packed, int64_t rows, const int64_t stride[4])
{
    for (int64_t i = 0; i < BATCH * rows * HEADS; i++) {
        int64_t at = i / HEADS / rows * stride[0] + i / HEADS % rows * stride[1] + i % HEADS * stride[2];
        if (memcmp((const uint16_t *)t->data + at, (const uint16_t *)packed + i * DIM, DIM * sizeof(uint16_t)) != 0)
            return false;
    }
    return true;
}

/* Each axis in turn strides over 2^31 elements. The result must be that of the packed tensors, bit by bit. */
static void offsets_are_64_bit(void **state)
{
    (void)state;
    const int64_t strides[][4] = {
        { GIANT + 5000, HEADS * DIM, DIM, 1 },
        { KEYS * HEADS * DIM, HEADS * DIM, 2 * GIANT + 48, 1 },
        { 7 * DIM, GIANT / 16 + 1000, 3 * DIM, 1 },
    };
    const int64_t extent_k[4] = { BATCH, KEYS, HEADS, DIM };
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int n = 0; n < count * COUNT(strides); n++) {
        const attn_cpu_kernel *kernel = &kernels[n % count];
        const int64_t *stride = strides[n / count];
        if (!runs(kernel)) continue;
        int64_t rows = kernel->form == ATTN_DECODE ? 6 : ROWS;
        attn_desc desc = { .dtype = ATTN_BF16,
                           .batch = BATCH,
                           .heads_q = HEADS,
                           .len_q = rows,
                           .len_kv = KEYS,
                           .dim_qk = DIM,
                           .threads = 2,
                           .kernel = kernel->name };
        check_problem problem;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 21 }));
        assert_ok(check_problem_run(&problem, &desc, NULL));
        const int64_t extent[4] = { BATCH, rows, HEADS, DIM };
        tensor q = spread(desc.dtype, problem.args.q, extent, stride),
               o = spread(desc.dtype, problem.args.q, extent, stride);
        tensor k = spread(desc.dtype, problem.args.k, extent_k, stride),
               v = spread(desc.dtype, problem.args.v, extent_k, stride);
        if (!q.data || !k.data || !v.data || !o.data) skip(); /* this system has no such address space */
        attn_args args = problem.args;
        args.q = q.data, args.k = k.data, args.v = v.data, args.o = o.data;
        size_t bytes = 4 * sizeof *stride;
        memcpy(desc.q_stride, stride, bytes), memcpy(desc.k_stride, stride, bytes);
        memcpy(desc.v_stride, stride, bytes), memcpy(desc.o_stride, stride, bytes);
        attn_plan *plan;
        assert_ok(attn_plan_create(&plan, &desc));
        void *workspace = check_allocate(attn_plan_workspace(plan));
        assert_ok(attn_run(plan, &args, workspace, NULL));
        assert_true(same_rows(&o, problem.args.o, rows, stride));
        free(workspace);
        attn_plan_destroy(plan);
        munmap(q.data, q.size), munmap(k.data, k.size), munmap(v.data, v.size), munmap(o.data, o.size);
        check_problem_destroy(&problem);
    }
}

/* The same for the backward: its inputs, and what it writes. */
static void gradients_have_64_bit_offsets(void **state)
{
    (void)state;
    const int64_t strides[][4] = { { GIANT + 5000, HEADS * DIM, DIM, 1 }, { 7 * DIM, GIANT / 16 + 1000, 3 * DIM, 1 } };
    const int64_t extent_q[4] = { BATCH, ROWS, HEADS, DIM }, extent_k[4] = { BATCH, KEYS, HEADS, DIM };
    enum { INPUTS = 5, TENSORS = 8 };
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int n = 0; n < count * COUNT(strides); n++) {
        const attn_cpu_kernel *kernel = &kernels[n % count];
        const int64_t *stride = strides[n / count];
        if (!runs_backward(kernel)) continue;
        attn_desc desc = { .dtype = ATTN_BF16,
                           .direction = ATTN_BACKWARD,
                           .batch = BATCH,
                           .heads_q = HEADS,
                           .len_q = ROWS,
                           .len_kv = KEYS,
                           .dim_qk = DIM,
                           .threads = 2,
                           .kernel = kernel->name };
        check_problem problem;
        assert_ok(check_problem_create(&problem, &desc, &(check_options){ .seed = 22 }));
        assert_ok(check_problem_run(&problem, &desc, NULL));
        const attn_args *a = &problem.args;
        const void *packed[TENSORS] = { a->q, a->o, a->grad_o, a->k, a->v, a->grad_q, a->grad_k, a->grad_v };
        int64_t *to[TENSORS] = { desc.q_stride, desc.o_stride,      desc.grad_o_stride, desc.k_stride,
                                 desc.v_stride, desc.grad_q_stride, desc.grad_k_stride, desc.grad_v_stride };
        tensor t[TENSORS];
        for (int i = 0; i < TENSORS; i++) {
            bool of_keys = i == 3 || i == 4 || i > INPUTS;
            const void *from = i < INPUTS ? packed[i] : of_keys ? a->k : a->q;
            t[i] = spread(desc.dtype, from, of_keys ? extent_k : extent_q, stride);
            if (t[i].data == NULL) skip(); /* this system has no such address space */
            memcpy(to[i], stride, 4 * sizeof *stride);
        }
        attn_args args = *a;
        args.q = t[0].data, args.o = t[1].data, args.grad_o = t[2].data, args.k = t[3].data, args.v = t[4].data;
        args.grad_q = t[5].data, args.grad_k = t[6].data, args.grad_v = t[7].data;
        attn_plan *plan;
        assert_ok(attn_plan_create(&plan, &desc));
        void *workspace = check_allocate(attn_plan_workspace(plan));
        assert_ok(attn_run(plan, &args, workspace, NULL));
        for (int i = INPUTS; i < TENSORS; i++)
            if (!same_rows(&t[i], packed[i], i == INPUTS ? ROWS : KEYS, stride))
                fail_msg("%s: gradient %d with strides %d", kernel->name, i - INPUTS, n / count);
        for (int i = 0; i < TENSORS; i++)
            munmap(t[i].data, t[i].size);
        free(workspace);
        attn_plan_destroy(plan);
        check_problem_destroy(&problem);
    }
}

/* More than 2^31 scores, of which a window leaves few; bits and bias have as many places. */
static void score_matrix_is_large(void **state)
{
    (void)state;
    enum { LEN = 50000 };
    attn_desc desc = { .dtype = ATTN_F32,
                       .flags = ATTN_WINDOW | ATTN_BIAS,
                       .batch = 1,
                       .heads_q = 1,
                       .len_q = LEN,
                       .len_kv = LEN,
                       .dim_qk = 1,
                       .window_left = 3,
                       .window_right = 0,
                       .bias_dtype = ATTN_F32,
                       .bias_extent = { 1, 1, LEN, LEN },
                       .threads = 2 };
    float *q = check_allocate(LEN * sizeof *q), *k = check_allocate(LEN * sizeof *k),
          *v = check_allocate(LEN * sizeof *v);
    float *o = check_allocate(LEN * sizeof *o);
    size_t size;
    float *bias = sparse((int64_t)LEN * LEN, ATTN_F32, &size);
    if (bias == NULL) skip();
    for (int i = 0; i < LEN; i++)
        q[i] = 0, k[i] = 1, v[i] = (float)(i % 7);
    bias[(int64_t)(LEN - 1) * LEN + LEN - 2] = 100; /* the last row sees its key but one alone */
    attn_plan *plan;
    assert_ok(attn_plan_create(&plan, &desc));
    void *workspace = check_allocate(attn_plan_workspace(plan));
    assert_ok(attn_run(plan, &(attn_args){ .q = q, .k = k, .v = v, .o = o, .bias = bias }, workspace, NULL));
    for (int i = 3; i < LEN - 1; i++) {
        float mean = (v[i] + v[i - 1] + v[i - 2] + v[i - 3]) / 4;
        if (!(o[i] - mean < 1e-5f && mean - o[i] < 1e-5f))
            fail_msg("row %d: %g, not %g", i, (double)o[i], (double)mean);
    }
    assert_true(o[LEN - 1] == v[LEN - 2]);
    munmap(bias, size);
    attn_plan_destroy(plan);
    free(workspace), free(q), free(k), free(v), free(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offsets_are_64_bit),
        cmocka_unit_test(gradients_have_64_bit_offsets),
        cmocka_unit_test(score_matrix_is_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
