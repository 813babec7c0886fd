/* One case: its tensors, its runners, and what comes of them. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "base/detect.h"

enum { SUBJECT, PEAK, READ, READ_FAR, PEER, PLAIN, RUNNERS };

typedef struct bench {
    attn_bench_tensors tensors, plain_tensors;
    attn_bench_subject subject, baseline, plain;
    attn_bench_limit *peak, *read, *read_far;
    attn_bench_openblas *openblas;
    attn_bench_runner runners[RUNNERS];
} bench;

static bool add_limit(bench *b, int which, attn_bench_limit **at, attn_bench_limit *limit)
{
    *at = limit;
    b->runners[which] = (attn_bench_runner){ attn_bench_limit_run, limit };
    return limit;
}

/* Twice the last-level cache, where a quarter of memory allows it. */
static bool far_buffer(void **buffer, int64_t *bytes)
{
    static void *memory; /* one for all cases: a fresh one would be gigabytes to touch */
    static int64_t size;
    if (!memory) {
        attn_cpu_info cpu;
        attn_cpu_detect(&cpu);
        int64_t wanted = 2 * (cpu.l3 > 32 << 20 ? cpu.l3 : 32 << 20);
        int64_t quarter = (int64_t)sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE) / 4;
        size = (wanted < quarter ? wanted : quarter) & ~(int64_t)0xfffff;
        memory = attn_bench_alloc(size);
        if (memory) memset(memory, 1, (size_t)size);
    }
    *buffer = memory, *bytes = size;
    return memory;
}

static bool add_limits(bench *b, const attn_bench_options *options, const attn_bench_case *item,
                       attn_bench_result *result)
{
    const attn_bench_simd *simd = attn_bench_simd_of(b->subject.isa);
    int threads = item->desc.threads;
    if (!add_limit(b, PEAK, &b->peak, attn_bench_peak(b->subject.isa, threads))) return false;
    if (item->pass != ATTN_BENCH_DECODE) return true;
    const void *near[2] = { b->tensors.k, b->tensors.v }, *far[2] = { NULL, NULL };
    int64_t far_bytes[2] = { 0, 0 }, near_bytes[2] = { b->tensors.k_bytes, b->tensors.v_bytes };
    double share = attn_bench_kv_bytes(item) / (double)(near_bytes[0] + near_bytes[1]); /* that a window leaves */
    for (int i = 0; i < 2 && share < 1; i++)
        near_bytes[i] = (int64_t)(share * (double)near_bytes[i]);
    void *buffer;
    if (!add_limit(b, READ, &b->read, attn_bench_read(simd, threads, near, near_bytes))) return false;
    if (options->smoke) return true;
    if (!far_buffer(&buffer, &far_bytes[0])) return false;
    far[0] = buffer;
    result->far_bytes = far_bytes[0];
    return add_limit(b, READ_FAR, &b->read_far, attn_bench_read(simd, threads, far, far_bytes));
}

/* False: no memory, or a peer with another answer. A peer that cannot compute this leaves no row. */
static bool add_peer(bench *b, const attn_bench_case *item, const attn_bench_peers *peers, attn_bench_result *result)
{
    attn_bench_runner *runner = &b->runners[PEER];
    const attn_desc *desc = &item->desc;
    if (peers->library) {
        if (!attn_bench_library_setup(peers->library, desc, item->pass, &b->tensors)) return false;
        *runner = (attn_bench_runner){ attn_bench_library_run, peers->library };
        result->peer_name = attn_bench_library_name(peers->library);
    } else if (item->baseline_name) {
        if (!attn_bench_subject_init(&b->baseline, &item->baseline, item->pass, &b->tensors)) return false;
        *runner = (attn_bench_runner){ attn_bench_subject_run, &b->baseline };
        result->peer_name = item->baseline_name;
        result->baseline_flops = b->baseline.info.flops;
    } else if (peers->torch && attn_bench_torch_takes(item)) {
        if (!attn_bench_torch_setup(peers->torch, item, result->peer_form, sizeof result->peer_form)) return false;
        *runner = (attn_bench_runner){ attn_bench_torch_run, peers->torch };
        result->peer_name = "torch";
    } else if (peers->openblas && desc->dtype == ATTN_F32 && !attn_bench_is_feature(item)) {
        if (attn_bench_subject_run(&b->subject, 1) < 0.0) return false;
        b->openblas = attn_bench_openblas_create(desc, item->pass, &b->tensors, attn_bench_simd_of(b->subject.isa));
        if (!b->openblas) return false;
        *runner = (attn_bench_runner){ attn_bench_openblas_run, b->openblas };
        result->peer_name = attn_bench_openblas_name();
        attn_bench_openblas_form(b->openblas, result->peer_form, sizeof result->peer_form);
    }
    return true;
}

static bool add_plain(bench *b, const attn_bench_case *item)
{
    if (!attn_bench_is_feature(item)) return true;
    b->runners[PLAIN] = (attn_bench_runner){ attn_bench_subject_run, &b->plain };
    return attn_bench_tensors_init(&b->plain_tensors, &item->plain, item->pass) &&
           attn_bench_subject_init(&b->plain, &item->plain, item->pass, &b->plain_tensors);
}

static double rate(const attn_bench_limit *limit, attn_bench_times times)
{
    return limit ? attn_bench_limit_work(limit) / times.median : 0.0;
}

static void fill_result(const bench *b, const attn_bench_case *item, const attn_bench_times times[RUNNERS],
                        attn_bench_result *result)
{
    const attn_plan_info *info = &b->subject.info;
    snprintf(result->kernel, sizeof result->kernel, "%s", info->kernel);
    snprintf(result->isa, sizeof result->isa, "%s", info->isa);
    result->splits = info->splits;
    result->flops = attn_bench_is_feature(item) ? attn_bench_tensors_flops(&b->tensors, item, info->flops)
                                                : attn_bench_decode_flops(item, info->flops);
    result->plain = times[PLAIN], result->plain_flops = b->plain.info.flops;
    if (item->pass == ATTN_BENCH_DECODE) result->kv_bytes = attn_bench_kv_bytes(item);
    result->predicted_seconds = info->seconds;
    result->predicted_bytes = info->memory_bytes;
    result->workspace = info->workspace_bytes;
    result->packed = info->packed_kv_bytes;
    result->subject = times[SUBJECT];
    result->peer = times[PEER];
    result->peak = rate(b->peak, times[PEAK]);
    result->read = rate(b->read, times[READ]);
    result->read_far = rate(b->read_far, times[READ_FAR]);
    if (b->peak) result->limit = result->flops / result->peak;
    if (b->read) result->limit = fmax(result->limit, result->kv_bytes / result->read);
}

static void bench_free(bench *b)
{
    attn_bench_openblas_free(b->openblas);
    attn_bench_limit_free(b->peak);
    attn_bench_limit_free(b->read);
    attn_bench_limit_free(b->read_far);
    attn_bench_subject_free(&b->subject);
    attn_bench_subject_free(&b->baseline);
    attn_bench_subject_free(&b->plain);
    attn_bench_tensors_free(&b->tensors);
    attn_bench_tensors_free(&b->plain_tensors);
}

bool attn_bench_measure(const attn_bench_options *options, const attn_bench_case *item, const attn_bench_peers *peers,
                        attn_bench_result *result)
{
    bench b = { 0 };
    attn_bench_times times[RUNNERS] = { 0 };
    *result = (attn_bench_result){ 0 };
    bool done = false;
    attn_bench_clock(attn_bench_of_processor(item));
    if (item->kind == ATTN_BENCH_TILES) return attn_bench_tiles(options, item, result);
    if (item->kind == ATTN_BENCH_BYTES) return attn_bench_bytes(options, item, result);
    if (item->kind == ATTN_BENCH_THEOREM) return attn_bench_theorem(item, result);
    if (item->kind == ATTN_BENCH_POOL) return attn_bench_pool(options, item, result);
    if (item->kind == ATTN_BENCH_CASCADE) return attn_bench_cascade(options, item, peers, result);
    if (item->kind == ATTN_BENCH_APPEND) return attn_bench_append(options, item, result);
    if (item->kind == ATTN_BENCH_QUANT) return attn_bench_quant(options, item, result);
    if (item->kind == ATTN_BENCH_RING) return attn_bench_ring(options, item, result);
    if (item->kind != ATTN_BENCH_TIMED) {
        done = attn_bench_subject_plan(&b.subject, &item->desc, item->pass) &&
               (item->kind == ATTN_BENCH_PLANNED ||
                attn_bench_memory(item, peers, b.subject.info.workspace_bytes, result));
    } else if (attn_bench_tensors_of(&b.tensors, item) &&
               attn_bench_subject_init(&b.subject, &item->desc, item->pass, &b.tensors)) {
        b.runners[SUBJECT] = (attn_bench_runner){ attn_bench_subject_run, &b.subject };
        done = add_limits(&b, options, item, result) && add_peer(&b, item, peers, result) && add_plain(&b, item) &&
               attn_bench_take_turns(options, b.runners, times, RUNNERS);
    }
    if (done) fill_result(&b, item, times, result);
    bench_free(&b);
    return done;
}
