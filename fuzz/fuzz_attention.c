/* Bytes -> descriptor and options of a tiny problem, forward or backward -> plan -> run -> reference. Any status will
 * do; a crash, a touched guard page or a wrong result will not. */
#include "problem/args.h"
#include "problem/desc.h"
#include "check/compare.h"
#include "cpu/kernel.h"
#include "input.h"

static void take_sizes(input *in, attn_desc *desc)
{
    desc->dtype = (attn_dtype)wild(in, 1 + below(in, 3));
    desc->batch = wild(in, below(in, 4));
    desc->heads_kv = 1 + below(in, 3);
    desc->heads_q = wild(in, desc->heads_kv * (1 + below(in, 3)));
    desc->len_q = wild(in, below(in, 40));
    desc->len_kv = wild(in, below(in, 80));
    desc->dim_qk = wild(in, 1 + below(in, 40));
    desc->dim_v = wild(in, below(in, 40));
    desc->threads = (int32_t)below(in, 4);
    desc->scale = (float)below(in, 8) * 0.04f;
}

/* One of the two: 1, or the extent. */
static int64_t one_or(input *in, int64_t extent)
{
    return wild(in, below(in, 2) ? extent : 1);
}

/* Elements of a byte, with any scales. */
static void take_bytes(input *in, attn_desc *desc)
{
    int64_t *strides[] = { desc->q_scale_stride, desc->k_scale_stride, desc->v_scale_stride };
    if (below(in, 3)) return;
    desc->dtype = (attn_dtype)wild(in, below(in, 2) ? (int64_t)desc->dtype : ATTN_E4M3);
    desc->kv_dtype = (attn_dtype)wild(in, below(in, 8)), desc->out_dtype = (attn_dtype)wild(in, below(in, 6));
    if (below(in, 2)) desc->flags |= ATTN_SCALES_KV;
    if (below(in, 2)) desc->flags |= ATTN_SCALES_Q;
    if (desc->flags & ATTN_SCALES_Q) desc->q_scale_rows = wild(in, below(in, 2)), desc->q_scale_heads = below(in, 4);
    if (desc->flags & ATTN_SCALES_KV)
        desc->k_scale_rows = wild(in, below(in, 3) * 64), desc->v_scale_rows = wild(in, below(in, 2));
    for (int i = 0; i < 3; i++)
        for (int axis = 0; axis < 4 && desc->flags & (i ? ATTN_SCALES_KV : ATTN_SCALES_Q); axis++)
            strides[i][axis] = below(in, 2) * wild(in, below(in, 60) - 30);
}

static void take_masks(input *in, attn_desc *desc)
{
    desc->flags = (uint32_t)(take(in) | take(in) << 8 | take(in) << 16) & 0xfffff;
    if (desc->flags & ATTN_VARLEN)
        desc->total_q = wild(in, times(desc->len_q, 2)), desc->total_kv = wild(in, times(desc->len_kv, 2));
    if (desc->flags & ATTN_PAGED) {
        desc->total_kv = wild(in, 0), desc->page_size = wild(in, 1 + below(in, 20));
        desc->pages = wild(in, below(in, 40)), desc->table_width = wild(in, below(in, 2) * (1 + below(in, 80)));
        desc->table_total = wild(in, desc->table_width ? 0 : 80 + below(in, 80));
    }
    if (desc->flags & ATTN_WINDOW)
        desc->window_left = wild(in, below(in, 50)), desc->window_right = wild(in, below(in, 50));
    if (desc->flags & ATTN_CHUNK) desc->chunk = wild(in, 1 + below(in, 50));
    if (desc->flags & ATTN_INTERVALS)
        desc->interval_vectors = wild(in, 1 << below(in, 3)), desc->interval_heads = one_or(in, desc->heads_kv);
    if (desc->flags & ATTN_BLOCKS) {
        desc->block_rows = wild(in, 1 + below(in, 50)), desc->block_keys = wild(in, 1 + below(in, 50));
        desc->block_batch = one_or(in, desc->batch), desc->block_heads = one_or(in, desc->heads_q);
    }
    if (desc->flags & ATTN_BITS)
        desc->bits_batch = one_or(in, desc->batch), desc->bits_heads = one_or(in, desc->heads_q),
        desc->bits_keys = wild(in, below(in, 2) * below(in, 80));
}

static void take_scores(input *in, attn_desc *desc)
{
    if (desc->flags & ATTN_SOFTCAP) desc->softcap = (float)below(in, 30);
    if (desc->flags & ATTN_DROPOUT) desc->dropout_p = (float)below(in, 11) * 0.1f;
    if (desc->flags & ATTN_ALIBI) desc->alibi_batch = one_or(in, desc->batch);
    if (desc->flags & ATTN_BIAS) {
        const int64_t extents[4] = { desc->batch, desc->heads_q, desc->len_q, desc->len_kv };
        desc->bias_dtype = (attn_dtype)(1 + below(in, 3));
        for (int i = 0; i < 4; i++)
            desc->bias_extent[i] = one_or(in, extents[i]);
    }
}

/* Whether the tensors and tables take little memory: the descriptor's check comes before this, the work after. */
static bool is_tiny(const attn_desc *d)
{
    int64_t sizes[] = { d->batch,     d->heads_q,     d->heads_kv,       d->len_q,        d->len_kv,
                        d->dim_qk,    d->dim_v,       d->total_q / 2,    d->total_kv / 2, d->pages,
                        d->page_size, d->table_width, d->table_total / 4 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] < 0 || sizes[i] > 100) return false;
    for (int i = 0; i < 4; i++)
        if (llabs(d->q_scale_stride[i]) > 100 || llabs(d->k_scale_stride[i]) > 100 || llabs(d->v_scale_stride[i]) > 100)
            return false;
    return true;
}

static void check_kernel(const check_problem *problem, const check_reference *reference, const char *kernel)
{
    attn_desc desc = problem->desc;
    desc.kernel = kernel;
    if (check_problem_run(problem, &desc, NULL) != ATTN_OK) return;
    check_error error = check_compare(problem, reference);
    if (error.message[0] == '\0') return;
    char text[512];
    check_problem_print(&desc, &problem->options, text, sizeof text);
    fprintf(stderr, "%s: %s\n%s\n", kernel ? kernel : "planner", error.message, text);
    abort();
}

/* One pointer without its flag is an error, whatever the problem. */
static void check_stray(input *in, const check_problem *problem)
{
    static const struct {
        size_t offset;
        uint32_t flag;
        attn_direction direction;
    } pointers[] = {
#define POINTER(name, flag, direction) { offsetof(attn_args, name), flag, direction },
        ATTN_FLAGGED_LIST(POINTER)
#undef POINTER
    };
    int64_t i = below(in, (int64_t)(sizeof pointers / sizeof *pointers));
    check_problem stray = *problem;
    if (problem->desc.flags & pointers[i].flag || problem->desc.direction < pointers[i].direction) return;
    if (check_problem_run(problem, &problem->desc, NULL) != ATTN_OK) return;
    memcpy((char *)&stray.args + pointers[i].offset, &(const void *){ &stray }, sizeof(void *));
    if (check_problem_run(&stray, &problem->desc, NULL) != ATTN_INVALID) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = { data, data + size };
    attn_desc desc = { 0 };
    take_sizes(&in, &desc);
    take_masks(&in, &desc);
    take_bytes(&in, &desc);
    take_scores(&in, &desc);
    check_options options = {
        .data = (check_data)below(&in, CHECK_DATA_COUNT),
        .layout = (check_layout)below(&in, CHECK_LAYOUT_COUNT),
        .blocks = (check_blocks)below(&in, CHECK_BLOCKS_COUNT),
        .bias_infinite = below(&in, 2),
        .no_lse = below(&in, 2),
        .front = below(&in, 2),
        .seed = (uint64_t)take(&in),
    };
    desc.direction = (attn_direction)wild(&in, below(&in, 2));
    options.few = below(&in, 2);
    desc.flags |= (uint32_t)take(&in) << 22 & (ATTN_DROPOUT_BASES | ATTN_DELTA | ATTN_ADD);
    desc.grad_dtype = (attn_dtype)wild(&in, below(&in, 2));
    attn_plan *plan;
    if (attn_plan_create(&plan, &desc) == ATTN_OK) attn_plan_destroy(plan);
    if (!is_tiny(&desc)) return 0;
    check_problem problem;
    if (check_problem_create(&problem, &desc, &options) != ATTN_OK) return 0;
    check_reference reference = check_reference_create(&problem);
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    check_kernel(&problem, &reference, NULL);
    for (int i = 0; i < count; i++)
        check_kernel(&problem, &reference, kernels[i].name);
    check_reference_destroy(&reference);
    check_stray(&in, &problem);
    check_problem_destroy(&problem);
    return 0;
}
