#include "check/gpu/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "problem/args.h"
#include "problem/desc.h"
#include "base/error.h"
#include "device/device.h"
#include "check/gpu/reference_host.h"
#include "cuda/driver.h"

/* Pairs whose scores are in memory at a time. */
enum { PAIRS_MOST = 1 << 23 };
static int64_t pairs_most = PAIRS_MOST;

/* In multiply-adds: about what a visible pair costs the CPU's reference besides; what it does before a GPU would have
 * begun; what either may spend on further draws of a problem; what either does while an element is drawn. */
static const double pair_work = 64, small_work = 1.2e7, host_work_most = 8e6, gpu_work_most = 1e8, element_work = 4,
                    gpu_element_work = 64;

/* ---- the GPU, or its stand-in ---------------------------------------------------------------- */

#ifdef CHECK_GPU_CUBIN
__asm__(".pushsection .rodata\n.balign 64\ncheck_gpu_cubin:\n.incbin \"" CHECK_GPU_CUBIN "\"\n.byte 0\n.popsection");
extern const unsigned char check_gpu_cubin[];
#endif

enum { BLOCKS = 64, ALIGN = 256, BLOCK_LEAST = 64 << 20 };

/* Memory that serves all problems, one after another, and grows. */
typedef struct memory {
    bool host;
    int blocks, block;
    uint64_t at, size[BLOCKS]; /* at: of the block that is being given away */
    char *start[BLOCKS];       /* addresses there */
} memory;

static const attn_cuda_driver *driver;
static CUmodule module;
static memory device_memory, host_memory = { .host = true };

static void expect(CUresult result, const char *doing)
{
    if (result == 0) return;
    attn_cuda_fail(result, doing);
    fprintf(stderr, "check: the GPU's reference: %s\n", attn_error());
    exit(2);
}

attn_status check_gpu_open(void)
{
    attn_status status = device_open();
    if (status || module) return status;
    if (strncmp(attn_cuda_machine_get()->device[0].name, "Fake", 4) == 0)
        return attn_fail(ATTN_UNSUPPORTED, "this is a stand-in of the tests, not a GPU");
#ifdef CHECK_GPU_CUBIN
    driver = &attn_cuda_machine_get()->driver;
    CUresult result = driver->cuModuleLoadDataEx(&module, check_gpu_cubin, 0, NULL, NULL);
    return result ? attn_cuda_fail(result, "the reference's kernels") : ATTN_OK;
#else
    return attn_fail(ATTN_UNSUPPORTED, "this build has no reference for the GPU: it was made without nvcc");
#endif
}

static void *take(memory *m, uint64_t size)
{
    size = (size + ALIGN - 1) / ALIGN * ALIGN;
    while (m->block < m->blocks && m->at + size > m->size[m->block])
        m->block++, m->at = 0;
    if (m->block == BLOCKS) abort();
    if (m->block == m->blocks) {
        CUdeviceptr start = 0;
        uint64_t all = size > BLOCK_LEAST ? size : BLOCK_LEAST;
        if (!m->host) expect(driver->cuMemAlloc(&start, all), "memory");
        m->start[m->blocks] = m->host ? check_allocate(all) : (void *)(uintptr_t)start;
        m->size[m->blocks++] = all;
    }
    char *taken = m->start[m->block] + m->at;
    m->at += size;
    return taken;
}

static void *take_zeros(memory *m, uint64_t size)
{
    void *taken = take(m, size);
    if (m->host)
        memset(taken, 0, size);
    else if (size)
        expect(driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)taken, 0, size, NULL), "memory");
    return taken;
}

static void copy_in(const memory *m, void *to, const void *from, uint64_t size)
{
    if (m->host)
        memcpy(to, from, size);
    else if (size)
        expect(driver->cuMemcpyHtoD((CUdeviceptr)(uintptr_t)to, from, size), "copying a tensor");
}

static void copy_out(const memory *m, void *to, const void *from, uint64_t size)
{
    if (m->host)
        memcpy(to, from, size);
    else if (size)
        expect(driver->cuMemcpyDtoH(to, (CUdeviceptr)(uintptr_t)from, size), "copying the reference");
}

/* Starts so many CTAs of a kernel, each of `threads`. */
static void launch(const memory *m, const char *symbol, int64_t ctas, int threads, check_gpu_params *params)
{
    if (ctas == 0) return;
    if (m->host) {
        check_gpu_host_launch(symbol, ctas, params);
        return;
    }
    CUfunction function;
    void *arguments[] = { params };
    CUlaunchConfig config = { (unsigned)ctas, 1, 1, (unsigned)threads, 1, 1, 0, NULL, NULL, 0 };
    if (ctas > INT32_MAX) abort();
    expect(driver->cuModuleGetFunction(&function, module, symbol), symbol);
    expect(driver->cuLaunchKernelEx(&config, function, arguments, NULL), symbol);
}

/* ---- a problem on it ------------------------------------------------------------------------- */

typedef struct job {
    memory *memory;
    int threads; /* of a CTA */
    int64_t rows, tiles, tiles_at_once;
    check_gpu_params params;
} job;

static int64_t all_pairs(const attn_desc *d)
{
    return d->batch * d->heads_q * d->len_q * d->len_kv;
}

bool check_gpu_takes(const check_problem *problem)
{
    const attn_desc *d = &problem->resolved;
    if (d->flags & (ATTN_DROPOUT_BASES | ATTN_DELTA | ATTN_ADD)) return false;
    bool own_types = d->kv_dtype || d->dtype == ATTN_E4M3 || attn_out_dtype(d) == ATTN_E4M3 ||
                     (attn_out_dtype(d) != d->dtype && attn_out_dtype(d) != ATTN_F32);
    if (own_types) return false; /* it computes types of 16 and 32 bits alone */
    if (problem->options.by != CHECK_BY_GPU_LARGE) return problem->options.by != CHECK_BY_CPU;
    double each = pair_work + (double)(d->dim_qk + d->dim_v) * (d->direction == ATTN_BACKWARD ? 4 : 1);
    return (double)all_pairs(d) * each > small_work;
}

double check_gpu_work_most(const check_problem *problem)
{
    return problem->options.by == CHECK_BY_GPU_LARGE && check_gpu_takes(problem) ? gpu_work_most : host_work_most;
}

double check_gpu_draw_work(const check_problem *problem)
{
    const attn_desc *d = &problem->resolved;
    int64_t keys = d->batch * d->heads_kv * d->len_kv, rows = d->batch * d->heads_q * d->len_q;
    if (!problem->options.fast) return 0;
    return (check_gpu_takes(problem) ? gpu_element_work : element_work) *
           (double)((keys + rows) * (d->dim_qk + d->dim_v));
}

void check_gpu_at_once(int64_t pairs)
{
    pairs_most = pairs ? pairs : PAIRS_MOST;
}

/* Copies what a problem of this direction reads, and makes room for what both directions compute. */
static job begin(const check_problem *problem, attn_direction direction)
{
    job j = { .memory = problem->options.by == CHECK_BY_GPU_CODE ? &host_memory : &device_memory };
    check_gpu_params *p = &j.params;
    j.memory->block = 0, j.memory->at = 0;
    j.threads = j.memory->host ? check_gpu_host_threads : CHECK_GPU_THREADS;
    p->desc = problem->resolved;
    p->desc.direction = direction;
    attn_args_array arrays[ATTN_ARGS_INPUTS];
    int count = attn_args_inputs(arrays, &p->desc, &problem->args);
    p->args = (attn_args){ .seed = attn_seed_of(&problem->args), .seed_offset = attn_seed_offset_of(&problem->args) };
    for (int i = 0; i < count; i++) {
        const attn_args_array *a = &arrays[i];
        if (!a->base) continue;
        char *there = take(j.memory, (uint64_t)(a->hi - a->lo));
        copy_in(j.memory, there, (const char *)a->base + a->lo, (uint64_t)(a->hi - a->lo));
        there -= a->lo;
        memcpy((char *)&p->args + a->field, &there, sizeof there);
    }

    const attn_desc *d = &p->desc;
    p->tile_rows = d->len_q < CHECK_GPU_ROWS ? d->len_q : CHECK_GPU_ROWS;
    if (p->tile_rows == 0) p->tile_rows = 1;
    j.rows = d->batch * d->heads_q * d->len_q;
    j.tiles = d->batch * d->heads_q * attn_ceil_div(d->len_q, p->tile_rows);
    j.tiles_at_once = pairs_most / (p->tile_rows * (d->len_kv + 1)) + 1;
    if (j.tiles_at_once > j.tiles) j.tiles_at_once = j.tiles;
    uint64_t pairs = (uint64_t)(j.tiles_at_once * p->tile_rows * d->len_kv), rows = (uint64_t)j.rows;
    p->m = take(j.memory, pairs * sizeof(double));
    p->m_naive = take(j.memory, pairs * sizeof(float));
    p->lse = take(j.memory, rows * sizeof(double));
    p->o = take(j.memory, rows * (uint64_t)d->dim_v * sizeof(double));
    return j;
}

/* The next tiles, the first ones to begin with. False: there are none. */
static bool next_tiles(job *j)
{
    check_gpu_params *p = &j->params;
    p->first += p->tiles;
    int64_t left = j->tiles - p->first;
    p->tiles = left < j->tiles_at_once ? left : j->tiles_at_once;
    return left > 0;
}

static void rewind_tiles(job *j)
{
    j->params.first = j->params.tiles = 0;
}

static void set_product(check_gpu_params *p, const void *tensor, attn_dtype dtype, const int64_t stride[4], int64_t dim)
{
    p->tensor = tensor, p->tensor_dtype = dtype, p->dim = dim;
    p->by_kept = 0, p->rounded = (attn_dtype)0;
    memcpy(p->stride, stride, sizeof p->stride);
}

/* o and LSE, and unfused attention's o. */
static void run_forward(job *j, float *naive)
{
    check_gpu_params *p = &j->params;
    const attn_desc *d = &p->desc;
    set_product(p, p->args.v, d->dtype, d->v_stride, d->dim_v);
    p->sum = p->o, p->sum_naive = naive, p->rounded = attn_out_dtype(d);
    for (rewind_tiles(j); next_tiles(j);) {
        launch(j->memory, "check_gpu_scores", p->tiles * attn_ceil_div(d->len_kv, j->threads), j->threads, p);
        launch(j->memory, "check_gpu_softmax", p->tiles * p->tile_rows, j->threads, p);
        launch(j->memory, "check_gpu_over_keys", p->tiles * attn_ceil_div(p->dim, j->threads), j->threads, p);
    }
}

void check_gpu_forward(const check_problem *problem, double *o, float *naive, double *lse)
{
    job j = begin(problem, ATTN_FORWARD);
    uint64_t rows = (uint64_t)j.rows, dim = (uint64_t)j.params.desc.dim_v;
    float *naive_there = take(j.memory, rows * dim * sizeof(float));
    run_forward(&j, naive_there);
    copy_out(j.memory, o, j.params.o, rows * dim * sizeof *o);
    copy_out(j.memory, naive, naive_there, rows * dim * sizeof *naive);
    copy_out(j.memory, lse, j.params.lse, rows * sizeof *lse);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static void add_over_rows(job *j, const check_gpu_sum *there, const void *tensor, attn_dtype dtype,
                          const int64_t stride[4], int64_t dim, bool by_kept)
{
    check_gpu_params *p = &j->params;
    const attn_desc *d = &p->desc;
    int64_t key_tiles = attn_ceil_div(d->len_kv, CHECK_GPU_SUM_KEYS);
    set_product(p, tensor, dtype, stride, dim);
    p->sum = there->ref, p->sum_naive = there->naive, p->noise = there->noise, p->by_kept = by_kept;
    launch(j->memory, "check_gpu_over_rows", d->batch * d->heads_kv * key_tiles * attn_ceil_div(dim, j->threads),
           j->threads, p);
}

static void add_table(job *j, const char *symbol, const check_gpu_sum *there)
{
    check_gpu_params *p = &j->params;
    if (!there->ref) return;
    p->sum = there->ref, p->sum_naive = there->naive, p->noise = there->noise;
    launch(j->memory, symbol, attn_ceil_div(there->count, j->threads), j->threads, p);
}

/* Room there for the sums, 0 to begin with. */
static void make_room(memory *m, const check_gpu_sum sums[CHECK_GRADIENTS], check_gpu_sum there[CHECK_GRADIENTS])
{
    for (int g = 0; g < CHECK_GRADIENTS; g++) {
        uint64_t count = (uint64_t)sums[g].count;
        there[g] = (check_gpu_sum){ .count = sums[g].count };
        if (!sums[g].ref) continue;
        there[g].ref = take_zeros(m, count * sizeof(double));
        there[g].naive = take_zeros(m, count * sizeof(float));
        if (sums[g].noise) there[g].noise = take_zeros(m, count * sizeof(double));
    }
}

void check_gpu_gradients(const check_problem *problem, const check_gpu_sum sums[CHECK_GRADIENTS])
{
    job j = begin(problem, ATTN_BACKWARD);
    memory *m = j.memory;
    check_gpu_params *p = &j.params;
    const attn_desc *d = &p->desc;
    attn_dtype out = attn_out_dtype(d);
    check_gpu_sum there[CHECK_GRADIENTS];
    uint64_t rows = (uint64_t)j.rows, pairs = (uint64_t)(j.tiles_at_once * p->tile_rows * d->len_kv);
    run_forward(&j, take(m, rows * (uint64_t)d->dim_v * sizeof(float)));
    make_room(m, sums, there);
    p->delta = take(m, rows * sizeof(double)), p->delta_naive = take(m, rows * sizeof(float));
    p->sink_share = take(m, rows * sizeof(double)), p->sink_share_naive = take(m, rows * sizeof(float));
    p->kept = take(m, pairs * sizeof(double)), p->kept_naive = take(m, pairs * sizeof(float));
    if (there[CHECK_GRAD_BIAS].ref || there[CHECK_GRAD_ALIBI].ref)
        p->ds = take(m, pairs * sizeof(double)), p->ds_naive = take(m, pairs * sizeof(float));

    launch(m, "check_gpu_delta", attn_ceil_div(j.rows, j.threads), j.threads, p);
    for (rewind_tiles(&j); next_tiles(&j);) {
        launch(m, "check_gpu_pairs", p->tiles * attn_ceil_div(d->len_kv, j.threads), j.threads, p);
        set_product(p, p->args.k, d->dtype, d->k_stride, d->dim_qk);
        p->sum = there[CHECK_GRAD_Q].ref, p->sum_naive = there[CHECK_GRAD_Q].naive;
        launch(m, "check_gpu_over_keys", p->tiles * attn_ceil_div(p->dim, j.threads), j.threads, p);
        add_over_rows(&j, &there[CHECK_GRAD_K], p->args.q, d->dtype, d->q_stride, d->dim_qk, false);
        add_over_rows(&j, &there[CHECK_GRAD_V], p->args.grad_o, out, d->grad_o_stride, d->dim_v, true);
        add_table(&j, "check_gpu_bias", &there[CHECK_GRAD_BIAS]);
        add_table(&j, "check_gpu_alibi", &there[CHECK_GRAD_ALIBI]);
    }
    add_table(&j, "check_gpu_sink", &there[CHECK_GRAD_SINK]);
    for (int g = 0; g < CHECK_GRADIENTS; g++) {
        uint64_t count = (uint64_t)sums[g].count;
        if (!sums[g].ref) continue;
        copy_out(m, sums[g].ref, there[g].ref, count * sizeof(double));
        copy_out(m, sums[g].naive, there[g].naive, count * sizeof(float));
        if (sums[g].noise) copy_out(m, sums[g].noise, there[g].noise, count * sizeof(double));
    }
}
