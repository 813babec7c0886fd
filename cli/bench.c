/* attn bench: peers, and the walk over the cases. */
#define _POSIX_C_SOURCE 200809L
#include "bench_options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/plan.h"
#include "attn_commit.h"
#include "attn_parallel.h"
#include "base/text_buffer.h"
#include "command.h"
#include "file.h"
#include "base/detect.h"
#include "cuda/driver.h"
#include "device/clock.h"
#include "options.h"
#include "problem/desc.h"

/* ---- the walk ------------------------------------------------------------------------------------ */

static bool asks_for(const attn_bench_options *o, attn_bench_peer peer)
{
    for (int i = 0; i < o->peers.count; i++)
        if (o->peers.values[i] == peer) return true;
    return false;
}

/* PyTorch's child, which all of its peers share. */
static void start_torch(const attn_bench_options *o, attn_bench_peers *peers, FILE *notes)
{
    char text[512];
    peers->torch = attn_bench_torch_start(o->python ? o->python : "python3", o->on, text, sizeof text);
    for (int i = 0; i < o->peers.count; i++) {
        attn_bench_peer peer = (attn_bench_peer)o->peers.values[i];
        if (peer == ATTN_PEER_TORCH) fprintf(notes, peers->torch ? "peer: PyTorch %s\n" : "no peer: %s\n", text);
        if (peer > ATTN_PEER_NONE)
            fprintf(notes, peers->torch ? "peer: %s of PyTorch %s\n" : "no peer: %s: %s\n", attn_bench_peer_name(peer),
                    text);
    }
}

static void start_peers(const attn_bench_options *o, attn_bench_peers *peers, FILE *notes)
{
    const char *reason;
    bool torch = false;
    if (peers->library) {
        fprintf(notes, "peer: libattn %s, %s\n", attn_bench_library_version(peers->library), o->peer_library);
        return;
    }
    for (int i = 0; i < o->peers.count; i++)
        torch = torch || o->peers.values[i] == ATTN_PEER_TORCH || o->peers.values[i] > ATTN_PEER_NONE;
    if (asks_for(o, ATTN_PEER_OPENBLAS)) {
        peers->openblas = attn_bench_openblas_load(o->isa, &reason);
        if (!peers->openblas) fprintf(notes, "no peer: %s\n", reason);
    }
    if (torch) start_torch(o, peers, notes);
}

/* How many times a case is measured: once beside each peer, but for those whose peer is their own. */
static int turns_of(const attn_bench_options *o, const attn_bench_peers *peers, const attn_bench_case *item)
{
    return item->kind == ATTN_BENCH_TIMED && !item->baseline_name && !peers->library ? o->peers.count : 1;
}

/* The peers of one turn, and in o->peer which of them it is of. A case of a single turn sees all of them. */
static attn_bench_peers take_turn(attn_bench_options *o, const attn_bench_peers *all, int turn, int turns)
{
    attn_bench_peers one = *all;
    o->peer = (attn_bench_peer)o->peers.values[turn];
    if (turns == 1 && asks_for(o, ATTN_PEER_FLASHINFER)) o->peer = ATTN_PEER_FLASHINFER; /* of cascades */
    if (turns == 1) return one;
    one.openblas = one.openblas && o->peer == ATTN_PEER_OPENBLAS;
    if (o->peer == ATTN_PEER_OPENBLAS || o->peer == ATTN_PEER_NONE) one.torch = NULL;
    return one;
}

/* A guess at a case's seconds, for the time left: what was predicted of all cases so far, beside what they took,
 * corrects it. */
static double guess(const attn_bench_options *o, const attn_bench_case *item)
{
    static const double forwards[] = {
        [ATTN_BENCH_FORWARD] = 1, [ATTN_BENCH_DECODE] = 1, [ATTN_BENCH_BACKWARD] = 3, [ATTN_BENCH_BOTH] = 4
    };
    enum { RUNNERS = 3 }; /* subject, peer, limit */
    attn_plan *plan;
    double call = 0;
    if (item->pass == ATTN_BENCH_KV) return RUNNERS * ((double)o->repeat + 2) * (o->min_time + o->pause);
    if (item->kind == ATTN_BENCH_PLANNED || item->kind == ATTN_BENCH_THEOREM) return 0.01;
    if (o->on == ATTN_CPU && attn_plan_create(&plan, &item->desc) == ATTN_OK) {
        call = forwards[item->pass] * plan->choice.seconds;
        attn_plan_destroy(plan);
    }
    if (item->kind == ATTN_BENCH_MEMORY) return 0.1 + 2 * call;
    return RUNNERS * ((double)o->repeat + 2) * (fmax(call, o->min_time) + o->pause);
}

static void show_progress(const attn_bench_case *item, int number, int count, double left)
{
    char text[ATTN_NUMBER_TEXT];
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r\033[K%s %d/%d, about %s left", item->suite, number, count, attn_seconds_text(ceil(left), text));
    fflush(stderr);
}

static void hide_progress(void)
{
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
}

/* What --smoke asks: is every figure there and a number? */
static bool sound(const attn_bench_case *item, const attn_bench_result *r)
{
    if (r->refused[0]) return true;
    if (attn_bench_is_feature(item) && !(attn_bench_plain_share(r) > 0.0)) return false;
    if (item->kind == ATTN_BENCH_PLANNED) return r->workspace > 0;
    if (item->kind == ATTN_BENCH_THEOREM) return r->level[0].counted > 0.0;
    if (item->kind == ATTN_BENCH_MEMORY) return r->memory.peak > 0.0 && r->peer_memory.counted > 0.0;
    if (item->kind == ATTN_BENCH_POOL) return r->subject.min > 0.0;
    if (item->kind == ATTN_BENCH_RING)
        return attn_bench_rank_share(r) > 0.0 && r->sent_bytes > 0.0 && r->error_ratio > 0.0 && r->error_ratio < 2.0;
    if (item->kind == ATTN_BENCH_CASCADE)
        return r->subject.min > 0.0 && r->peer.min > 0.0 && r->flops > 0.0 && r->kv_bytes > 0.0;
    if (item->kind == ATTN_BENCH_APPEND || item->kind == ATTN_BENCH_QUANT)
        return r->subject.min > 0.0 && r->peer.min > 0.0 && isfinite(r->read);
    double share = r->limit / r->subject.median;
    return isfinite(share) && share > 0.0 && isfinite(r->peak) && r->peak > 0.0 && r->subject.min > 0.0 &&
           (!r->peer_name || r->peer.min > 0.0);
}

/* Writes the CSV file, if there is to be one, with these results among its rows. */
static bool keep(const attn_bench_options *o, const attn_bench_case *cases, const attn_bench_result *results, int count)
{
    size_t size;
    char *text = o->csv ? attn_bench_csv_text(o->csv, o->device, cases, results, count, &size) : NULL;
    if (!text) return !o->csv;
    attn_status status = attn_output_text(o->csv, text, size);
    free(text);
    return !status || attn_bench_fail("%s: %s", o->csv, attn_error());
}

static void say_no_result(const attn_bench_case *item)
{
    const attn_desc *d = &item->desc;
    attn_bench_fail("no result for %s, %s, %s, dim %lld, %s, %lld keys, %d threads", item->suite,
                    attn_bench_pass_name(item->pass), attn_dtype_name(d->dtype), (long long)d->dim_qk, item->mask,
                    (long long)d->len_kv, d->threads);
}

static bool measure(const attn_bench_options *o, const attn_bench_case *item, const attn_bench_peers *peers,
                    attn_bench_result *result)
{
    *result = (attn_bench_result){ 0 };
    if (attn_bench_refused(item, result)) return true;
    bool good = (o->on == ATTN_CUDA ? attn_bench_gpu_measure : attn_bench_measure)(o, item, peers, result);
    hide_progress();
    if (good && o->smoke && !sound(item, result))
        good = attn_bench_fail("%s: a figure is missing or not a number", item->suite);
    if (!good) say_no_result(item);
    return good;
}

static void show(const attn_bench_options *o, const attn_bench_case *item, const attn_bench_result *result, bool first)
{
    if (o->json && !first) fputs(",\n  ", stdout);
    (o->json ? attn_bench_json_row : attn_bench_table_row)(stdout, item, result);
    fflush(stdout);
}

/* ---- the slowest ------------------------------------------------------------------------------------ */

enum { SLOWEST = 10 };

/* Features by their share of plain, the least first. */
typedef struct slowest {
    int count, all;
    struct slow {
        const attn_bench_case *item;
        double share;
    } list[SLOWEST];
} slowest;

static void note_share(slowest *s, const attn_bench_case *item, const attn_bench_result *r)
{
    double share = attn_bench_plain_share(r);
    if (!(share > 0.0)) return;
    int at = s->count;
    for (; at > 0 && s->list[at - 1].share > share; at--)
        if (at < SLOWEST) s->list[at] = s->list[at - 1];
    if (at < SLOWEST) s->list[at] = (struct slow){ item, share };
    if (s->count < SLOWEST) s->count++;
    s->all++;
}

static void show_slowest(FILE *notes, const slowest *s)
{
    if (s->count) fprintf(notes, "the slowest of %d, in shares of plain's speed over as many visible pairs:\n", s->all);
    for (int i = 0; i < s->count; i++) {
        char variant[ATTN_BENCH_VARIANT], text[ATTN_NUMBER_TEXT];
        const attn_bench_case *item = s->list[i].item;
        const attn_desc *d = &item->desc;
        attn_bench_variant(item, variant);
        fprintf(notes, "%8s  %s %s, dims %lld and %lld, %lld heads over %lld, %s%s%s",
                attn_number_text(s->list[i].share, text), attn_bench_pass_name(item->pass), attn_dtype_name(d->dtype),
                (long long)d->dim_qk, (long long)d->dim_v, (long long)d->heads_q, (long long)d->heads_kv, item->mask,
                variant[0] ? ", " : "", variant);
        if (d->threads) fprintf(notes, ", threads %d", d->threads);
        fputc('\n', notes);
    }
}

/* Measures the cases, each beside its peers one after the other, and keeps each result at once: what ends it midway
 * loses none. Returns whether there is one of all. */
static bool walk(const attn_bench_options *o, const attn_bench_peers *peers, const attn_bench_case *cases, int count,
                 slowest *slow)
{
    bool all = true;
    int rows = 0;
    double start = attn_seconds(), passed = 0, left = 0;
    for (int i = 0; i < count; i++)
        left += turns_of(o, peers, &cases[i]) * guess(o, &cases[i]);
    for (int i = 0; i < count; i++) {
        int turns = turns_of(o, peers, &cases[i]), of_case = 0;
        for (int turn = 0; turn < turns; turn++) {
            attn_bench_result result;
            attn_bench_options now = *o;
            attn_bench_peers beside = take_turn(&now, peers, turn, turns);
            double scale = passed > 0 ? (attn_seconds() - start) / passed : 1, share = guess(o, &cases[i]);
            show_progress(&cases[i], i + 1, count, scale * left);
            passed += share, left -= share;
            if (!measure(&now, &cases[i], &beside, &result)) {
                all = false;
            } else if (result.peer_name || !of_case) { /* a row without a peer is no news after another one */
                show(o, &cases[i], &result, rows == 0);
                if (!of_case) note_share(slow, &cases[i], &result);
                if (!result.refused[0] && !keep(o, &cases[i], &result, 1)) return false;
                rows++, of_case++;
            }
        }
    }
    return all;
}

/* Has all cases run that kernel; false, and said so, where one is more than a forward. */
static bool force_kernel(const char *kernel, attn_bench_case *cases, int count)
{
    for (int i = 0; i < count; i++) {
        bool forward = cases[i].pass == ATTN_BENCH_FORWARD || cases[i].pass == ATTN_BENCH_DECODE;
        if (!forward || cases[i].kind != ATTN_BENCH_TIMED)
            return attn_bench_fail("--kernel: the suite %s is not of forwards alone; leave it out", cases[i].suite);
        cases[i].desc.kernel = kernel;
    }
    return true;
}

/* Leaves the cases that --only is in the text of. Returns how many. */
static int leave(const char *only, attn_bench_case *cases, int count)
{
    int left = 0;
    for (int i = 0; i < count; i++) {
        char text[256], variant[ATTN_BENCH_VARIANT];
        attn_bench_variant(&cases[i], variant);
        snprintf(text, sizeof text, "%s %s %s", attn_bench_pass_name(cases[i].pass), cases[i].mask, variant);
        if (strstr(text, only)) cases[left++] = cases[i];
    }
    return left;
}

static int measure_all(const attn_bench_options *o, const attn_bench_case *cases, int count)
{
    attn_cpu_info cpu;
    attn_bench_peers peers = { 0 };
    FILE *notes = o->json ? stderr : stdout;
    if (o->peer_library && !(peers.library = attn_bench_library_load(o->peer_library))) return ATTN_EXIT_FAILURE;
    attn_cpu_detect(&cpu);
    fprintf(notes, "%s, commit %s\n", o->on == ATTN_CUDA ? attn_cuda_machine_get()->device[0].name : cpu.model,
            ATTN_COMMIT);
    start_peers(o, &peers, notes);
    if (o->json)
        printf("{\"commit\": \"%s\", \"device\": \"%s\", \"results\": [\n  ", ATTN_COMMIT, o->device);
    else
        attn_bench_table_header(stdout);
    fflush(stdout);
    slowest slow = { 0 };
    bool all = walk(o, &peers, cases, count, &slow);
    if (o->json) printf("\n]}\n");
    show_slowest(notes, &slow);
    attn_bench_torch_stop(peers.torch);
    attn_bench_library_free(peers.library);
    return all ? ATTN_EXIT_OK : ATTN_EXIT_FAILURE;
}

int attn_cmd_bench(int argc, char **argv)
{
    attn_bench_options o;
    int code = attn_bench_options_start(argc, argv, &o);
    if (code != ATTN_OPTIONS_READY) return code;
    if (attn_bench_ring_engine() && attn_bench_ring_engine()->rank) o.csv = NULL; /* rank 0 keeps them */
    /* Written once without rows: that it cannot be written is better known before than after. */
    if (!keep(&o, NULL, NULL, 0)) return ATTN_EXIT_FAILURE;
    int count;
    attn_bench_case *cases = (o.on == ATTN_CUDA ? attn_bench_gpu_cases : attn_bench_cases)(&o, &count);
    if (!cases) return ATTN_EXIT_FAILURE;
    if (o.only && count > 0) count = leave(o.only, cases, count);
    code = ATTN_EXIT_FAILURE;
    if (o.kernel && !force_kernel(o.kernel, cases, count))
        code = ATTN_EXIT_USAGE;
    else if (o.once)
        code = attn_bench_once(cases, count) ? ATTN_EXIT_OK : ATTN_EXIT_FAILURE;
    else if (count > 0 && attn_bench_bytes_prepare(cases, count, argc, argv))
        code = measure_all(&o, cases, count);
    else if (count == 0 && o.only)
        attn_bench_fail("nothing to measure: --only %s: no case has that in its pass, mask and changes", o.only);
    else if (count == 0)
        attn_bench_fail(o.on == ATTN_CUDA ? "nothing to measure: the suites threads and ring need the CPU"
                                          : "nothing to measure: the threads suite takes more than one thread");
    free(cases);
    return code;
}
