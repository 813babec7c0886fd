/* An engine's step on a GPU: sequences in all phases in one batch, their keys and values in pages. Prompts come in
 * chunks, answers token by token, and one prompt is answered twice. The pool works on the host, kernels on the device:
 * what it says goes there in one copy per step, for all layers. */
#include "cuda_driver.h"

#include <attn_kv.h>

enum { LAYERS = 2, HEADS_Q = 4, HEADS_KV = 2, DIM = 64, ROW_Q = HEADS_Q * DIM, ROW = HEADS_KV * DIM };
enum { PAGES = 24, PAGE_SIZE = 16, WIDTH = 8, CAPACITY = WIDTH * PAGE_SIZE }; /* of the pool */
enum { BATCH = 3, CHUNK = 32, TOKENS = 48, STEPS = 8 };                       /* of a step */

/* What kernels read of the pool in a step: on the host as it is written, on the device as they read it. */
typedef struct step_tables {
    int32_t cu_lens[BATCH + 1], lens[BATCH], table[BATCH][WIDTH], pairs[BATCH][2];
    uint32_t fault;
} step_tables;

typedef struct layer {
    uint16_t *q, *k, *v;          /* of a step's tokens, */
    float *o;                     /* their output, */
    uint16_t *k_pages, *v_pages;  /* and the keys and values so far: on the device */
    float (*keys)[CAPACITY][ROW]; /* the same of each sequence on the host, without pages: to compare with */
    float (*values)[CAPACITY][ROW];
} layer;

typedef struct engine {
    attn_pool *pool;
    attn_page_copies copies;
    attn_kv_plan *append, *copy;
    attn_plan *attention;
    void *memory, *workspace; /* of the pool, on the host; of attention, on the device */
    step_tables host, *device;
    CUstream stream;
    layer layers[LAYERS];
} engine;

static void make_pool(engine *e)
{
    attn_pool_desc desc = { .pages = PAGES, .page_size = PAGE_SIZE, .sequences = BATCH, .width = WIDTH };
    size_t size = attn_pool_memory(&desc);
    e->memory = take(size);
    must(attn_pool_create(&e->pool, &desc, e->memory, size));
    e->copies = (attn_page_copies){ .pairs = e->host.pairs[0], .room = BATCH };
}

static void make_plans(engine *e)
{
    attn_desc desc = { .device = ATTN_CUDA,
                       .dtype = ATTN_BF16,
                       .flags = ATTN_CAUSAL | ATTN_VARLEN | ATTN_LENS_KV | ATTN_PAGED | ATTN_OUT_F32,
                       .batch = BATCH,     /* most sequences of a step */
                       .len_q = CHUNK,     /* most new tokens of a sequence, */
                       .total_q = TOKENS,  /* and of all */
                       .len_kv = CAPACITY, /* most keys of a sequence; total_kv stays 0 */
                       .heads_q = HEADS_Q,
                       .heads_kv = HEADS_KV,
                       .dim_qk = DIM,
                       .pages = PAGES, /* this and the next two as in the pool */
                       .page_size = PAGE_SIZE,
                       .table_width = WIDTH };
    e->attention = cuda_plan(&desc);

    attn_kv_desc pages = { .op = ATTN_KV_APPEND,
                           .device = ATTN_CUDA,
                           .dtype = ATTN_BF16,
                           .batch = BATCH,
                           .tokens = TOKENS,
                           .heads_kv = HEADS_KV,
                           .dim_qk = DIM,
                           .pages = PAGES,
                           .page_size = PAGE_SIZE,
                           .table_width = WIDTH };
    must(attn_kv_plan_create(&e->append, &pages));
    pages.op = ATTN_KV_COPY, pages.batch = pages.tokens = pages.table_width = 0;
    pages.pages_from = PAGES, pages.copies = BATCH; /* within the pool: at most one pair per sequence */
    must(attn_kv_plan_create(&e->copy, &pages));
}

static void make_arrays(engine *e)
{
    e->workspace = on_device(NULL, attn_plan_workspace(e->attention));
    e->device = on_device(NULL, sizeof *e->device);
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &e->layers[i];
        l->q = on_device(NULL, TOKENS * ROW_Q * sizeof *l->q), l->o = on_device(NULL, TOKENS * ROW_Q * sizeof *l->o);
        l->k = on_device(NULL, TOKENS * ROW * sizeof *l->k), l->v = on_device(NULL, TOKENS * ROW * sizeof *l->v);
        l->k_pages = on_device(NULL, (size_t)PAGES * PAGE_SIZE * ROW * sizeof *l->k_pages);
        l->v_pages = on_device(NULL, (size_t)PAGES * PAGE_SIZE * ROW * sizeof *l->v_pages);
        l->keys = take(BATCH * sizeof *l->keys), l->values = take(BATCH * sizeof *l->values);
    }
}

static void finish(engine *e)
{
    const void *memory[6 * LAYERS + 2] = { e->workspace, e->device };
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &e->layers[i];
        const void *const its[] = { l->q, l->k, l->v, l->o, l->k_pages, l->v_pages };
        memcpy(&memory[2 + 6 * i], its, sizeof its);
        free(l->keys), free(l->values);
    }
    for (int i = 0; i < 6 * LAYERS + 2; i++)
        CUDA(cuMemFree((CUdeviceptr)(uintptr_t)memory[i]));
    attn_plan_destroy(e->attention);
    attn_kv_plan_destroy(e->append), attn_kv_plan_destroy(e->copy);
    free(e->memory);
}

/* ---- a step --------------------------------------------------------------------------------- */

static void run_step(engine *e, const attn_seq *seqs, const int *count)
{
    step_tables *host = &e->host, *device = e->device;
    for (int i = 0; i < BATCH; i++) {
        if (count[i] > 0) must(attn_seq_append(e->pool, seqs[i], NULL, count[i], &e->copies));
        host->cu_lens[i + 1] = host->cu_lens[i] + count[i];
    }
    must(attn_pool_tables(e->pool, seqs, BATCH, host->table[0], WIDTH, host->lens));
    CUDA(cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)device, host, sizeof *host, e->stream)); /* clears fault, too */

    for (int i = 0; i < LAYERS; i++) {
        layer *l = &e->layers[i];
        attn_kv_args pages = { .k_pages = l->k_pages, .v_pages = l->v_pages, .fault = &device->fault };
        attn_kv_args copy = pages, append = pages;
        copy.k_from = l->k_pages, copy.v_from = l->v_pages;
        copy.pairs = device->pairs[0], copy.count = e->copies.count;
        must(attn_kv_run(e->copy, &copy, e->stream)); /* pages that a fork writes into */
        append.k = l->k, append.v = l->v;             /* a model projects them, and q, before */
        append.cu_lens = device->cu_lens, append.lens_kv = device->lens, append.page_table = device->table[0];
        must(attn_kv_run(e->append, &append, e->stream));

        attn_args args = { .q = l->q, .k = l->k_pages, .v = l->v_pages, .o = l->o, .fault = &device->fault };
        args.cu_lens_q = device->cu_lens, args.lens_kv = device->lens, args.page_table = device->table[0];
        must(attn_run(e->attention, &args, e->workspace, e->stream));
    }
    e->copies.count = 0;
    CUDA(cuMemcpyDtoHAsync(&host->fault, (CUdeviceptr)(uintptr_t)&device->fault, sizeof host->fault, e->stream));
    CUDA(cuStreamSynchronize(e->stream)); /* and sample; only now may the host's tables change */
    if (host->fault) fprintf(stderr, "a length or page id was out of range\n"), exit(1);
}

/* A step of made-up queries, keys and values: on the device for run_step, on the host for what it is compared with. */
static double step(engine *e, const attn_seq *seqs, const int *count, int number)
{
    float *q[LAYERS], o[ROW_Q];
    double difference = 0, simple[DIM];
    int64_t length[BATCH];
    for (int i = 0; i < BATCH; i++)
        length[i] = seqs[i].generation ? attn_seq_length(e->pool, seqs[i]) : 0;
    for (int n = 0; n < LAYERS; n++) {
        layer *l = &e->layers[n];
        uint32_t seed = (uint32_t)(number * LAYERS + n) * 3;
        float *k = random_floats(TOKENS * ROW, seed + 1), *v = random_floats(TOKENS * ROW, seed + 2);
        q[n] = random_floats(TOKENS * ROW_Q, seed);
        uint16_t *q16 = to_bf16(q[n], TOKENS * ROW_Q), *k16 = to_bf16(k, TOKENS * ROW), *v16 = to_bf16(v, TOKENS * ROW);
        CUDA(cuMemcpyHtoD((CUdeviceptr)(uintptr_t)l->q, q16, TOKENS * ROW_Q * sizeof *q16));
        CUDA(cuMemcpyHtoD((CUdeviceptr)(uintptr_t)l->k, k16, TOKENS * ROW * sizeof *k16));
        CUDA(cuMemcpyHtoD((CUdeviceptr)(uintptr_t)l->v, v16, TOKENS * ROW * sizeof *v16));
        for (int i = 0, at = 0; i < BATCH; at += count[i++]) {
            memcpy(l->keys[i][length[i]], k + at * ROW, (size_t)(count[i] * ROW) * sizeof *k);
            memcpy(l->values[i][length[i]], v + at * ROW, (size_t)(count[i] * ROW) * sizeof *v);
        }
        free(k), free(v), free(q16), free(k16), free(v16);
    }

    run_step(e, seqs, count);
    for (int n = 0; n < LAYERS; n++) {
        layer *l = &e->layers[n];
        for (int i = 0, row = 0; i < BATCH; i++)
            for (int t = 0; t < count[i]; t++, row++) {
                CUDA(cuMemcpyDtoH(o, (CUdeviceptr)(uintptr_t)(l->o + row * ROW_Q), sizeof o));
                for (int h = 0; h < HEADS_Q; h++) {
                    int head = h / (HEADS_Q / HEADS_KV) * DIM;
                    simple_row(q[n] + row * ROW_Q + h * DIM, l->keys[i][0] + head, l->values[i][0] + head, 0,
                               length[i] + t + 1, ROW, DIM, NULL, -INFINITY, simple);
                    difference = fmax(difference, row_difference(o + h * DIM, simple, DIM));
                }
            }
        free(q[n]);
    }
    return difference;
}

int main(void)
{
    CUdevice gpu = cuda_begin();
    engine e = { 0 };
    make_pool(&e), make_plans(&e), make_arrays(&e);
    CUDA(cuStreamCreate(&e.stream, CU_STREAM_NON_BLOCKING));

    int left[BATCH] = { 70, 40, 0 }; /* of the prompts; the third sequence begins as a fork of the second */
    attn_seq seqs[BATCH] = { { 0 } };
    double difference = 0;
    must(attn_seq_create(e.pool, 0, &seqs[0])), must(attn_seq_create(e.pool, 0, &seqs[1]));
    for (int number = 0; number < STEPS; number++) {
        int count[BATCH], room = TOKENS;
        for (int i = 0; i < BATCH; i++) { /* a chunk of the prompt, or the token that was sampled last */
            int most = left[i] < CHUNK ? left[i] : CHUNK;
            count[i] = seqs[i].generation == 0 ? 0 : left[i] == 0 ? 1 : most < room ? most : room;
            left[i] -= left[i] ? count[i] : 0, room -= count[i];
        }
        difference = fmax(difference, step(&e, seqs, count, number));
        printf("step %d: %2d, %2d, %2d new tokens\n", number, count[0], count[1], count[2]);
        if (left[1] || seqs[2].generation) continue;
        must(attn_seq_fork(e.pool, seqs[1], &seqs[2]));
        for (int n = 0; n < LAYERS; n++) {
            layer *l = &e.layers[n];
            memcpy(l->keys[2], l->keys[1], sizeof *l->keys), memcpy(l->values[2], l->values[1], sizeof *l->values);
        }
    }
    CUDA(cuStreamDestroy(e.stream));
    finish(&e);
    CUDA(cuDevicePrimaryCtxRelease(gpu));
    return report("chunks and single tokens over pages on a GPU", difference, 2e-2);
}
