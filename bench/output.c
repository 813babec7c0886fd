/* Results as a table and as JSON, and failures. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "attn_commit.h"
#include "base/text_buffer.h"
#include "bench/bench.h"
#include "problem/desc.h"

bool attn_bench_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("attn bench: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return false;
}

/* ---- table --------------------------------------------------------------------------------------- */

void attn_bench_table_header(FILE *file)
{
    fprintf(file, "%-10s %-4s %4s %-19s %5s %6s %3s  %-17s %10s %6s %9s %7s %6s  %-36s %10s %6s %10s\n", "suite",
            "type", "dim", "mask", "heads", "len", "thr", "kernel", "ms", "spread", "GFLOP/s", "GB/s", "limit", "peer",
            "peer ms", "ratio", "predicted");
}

double attn_bench_spread(attn_bench_times times)
{
    return (times.max - times.min) / times.median;
}

/* The peer's memory over ours: of the peaks where both were measured, of the counts otherwise. */
static double memory_ratio(const attn_bench_result *r)
{
    if (r->peer_memory.peak > 0.0) return r->peer_memory.peak / r->memory.peak;
    return r->peer_memory.counted / r->memory.counted;
}

double attn_bench_ratio(const attn_bench_case *item, const attn_bench_result *r)
{
    if (item->kind == ATTN_BENCH_MEMORY) return memory_ratio(r);
    return r->peer_name ? r->peer.median / r->subject.median : 0.0;
}

static void memory_row(FILE *file, const attn_bench_result *r)
{
    const double mib = 1 << 20;
    fprintf(file, "peak %.4g MiB (counted %.4g, workspace %.3g in it); standard ", r->memory.peak / mib,
            r->memory.counted / mib, (double)r->workspace / mib);
    if (r->peer_memory.peak > 0.0)
        fprintf(file, "%.4g MiB (counted %.4g)", r->peer_memory.peak / mib, r->peer_memory.counted / mib);
    else
        fprintf(file, "counted %.4g MiB", r->peer_memory.counted / mib);
    fprintf(file, ": %.4gx\n", memory_ratio(r));
}

static void levels_row(FILE *file, const attn_bench_result *r)
{
    fprintf(file, "       ");
    for (int i = 0; i < ATTN_BENCH_LEVELS && r->level[i].name; i++)
        fprintf(file, "%s %s %.4g MiB counted, %.4g predicted (%+.1f %%)", i ? ";" : "", r->level[i].name,
                r->level[i].counted / (1 << 20), r->level[i].predicted / (1 << 20),
                100 * (r->level[i].predicted / r->level[i].counted - 1));
    fprintf(file, "\n");
}

void attn_bench_table_row(FILE *file, const attn_bench_case *item, const attn_bench_result *r)
{
    const attn_desc *d = &item->desc;
    char heads[32], types[16], peer[72], text[ATTN_NUMBER_TEXT], variant[ATTN_BENCH_VARIANT];
    attn_bench_variant(item, variant);
    snprintf(heads, sizeof heads, d->heads_q == d->heads_kv ? "%lld" : "%lld/%lld", (long long)d->heads_q,
             (long long)d->heads_kv);
    snprintf(types, sizeof types, attn_kv_dtype(d) != d->dtype ? "%s/%s" : "%s", attn_dtype_name(d->dtype),
             attn_dtype_name(attn_kv_dtype(d)));
    fprintf(file, "%-10s %-4s %4lld %-19s %5s %6lld %3d  %-17s ", item->suite, types, (long long)d->dim_qk, item->mask,
            heads, (long long)d->len_kv, d->threads, r->kernel);
    if (r->refused[0]) {
        fprintf(file, "%s%s%s refused: %s\n", variant, variant[0] ? ": " : "", attn_bench_pass_name(item->pass),
                r->refused);
        return;
    }
    if (item->kind == ATTN_BENCH_MEMORY) {
        memory_row(file, r);
        return;
    }
    if (item->kind == ATTN_BENCH_THEOREM) {
        fprintf(file, "\n");
        levels_row(file, r);
        return;
    }
    if (item->kind == ATTN_BENCH_POOL) {
        fprintf(file, "%.3g ns: %.3g million a second\n", 1e9 * r->subject.median, 1e-6 / r->subject.median);
        return;
    }
    if (item->kind == ATTN_BENCH_PLANNED) {
        fprintf(file, "workspace %.0f KiB: packed keys and values %.0f KiB, the rest %.0f KiB\n",
                (double)r->workspace / 1024, (double)r->packed / 1024, (double)(r->workspace - r->packed) / 1024);
        return;
    }
    fprintf(file, "%10s %5.1f%% ", attn_number_text(1e3 * r->subject.median, text),
            100 * attn_bench_spread(r->subject));
    fprintf(file, "%9s ", attn_number_text(1e-9 * r->flops / r->subject.median, text));
    if (r->read > 0.0)
        fprintf(file, "%7.4g ", 1e-9 * r->kv_bytes / r->subject.median);
    else
        fprintf(file, "%7s ", "");
    if (r->limit > 0.0)
        fprintf(file, "%5.1f%%  ", 100 * r->limit / r->subject.median);
    else
        fprintf(file, "%6s  ", "");
    if (r->peer_name) {
        snprintf(peer, sizeof peer, r->peer_form[0] ? "%s, %s" : "%s", r->peer_name, r->peer_form);
        fprintf(file, "%-36s %10s %5.2fx ", peer, attn_number_text(1e3 * r->peer.median, text),
                r->peer.median / r->subject.median);
    } else {
        fprintf(file, "%-36s %10s %6s ", "", "", "");
    }
    fprintf(file, "%10s\n", attn_number_text(1e3 * r->predicted_seconds, text));
    if (r->level[0].name) levels_row(file, r);
    if (r->launch > 0.0) {
        fprintf(file, "        floor %s ms at %.4g GB/s, ", attn_number_text(1e3 * r->limit, text), 1e-9 * r->read);
        if (r->predicted_seconds > 0.0)
            fprintf(file, "predicted %+.1f %%, ", 100 * (r->predicted_seconds / r->subject.median - 1));
        fprintf(file, "a graph that sets 4 bytes %.3g us\n", 1e6 * r->launch);
    }
    if (r->plain.median > 0.0)
        fprintf(file, "        %s%sof as many visible pairs plain takes %.3f of the time\n", variant,
                variant[0] ? ": " : "", attn_bench_plain_share(r));
    if (r->ranks)
        fprintf(file,
                "        each of %d ranks has %.3f of one's speed; sends %.4g MB, %.3g GB/s; error %.4g times one's; "
                "workspace %.4g MB\n",
                (int)r->ranks, attn_bench_rank_share(r), 1e-6 * r->sent_bytes, 1e-9 * r->sent_bytes / r->subject.median,
                r->error_ratio, 1e-6 * (double)r->workspace);
    if (r->watts > 0.0) fprintf(file, "        just after: %.0f MHz, %.0f W\n", r->megahertz, r->watts);
    if (r->read_far > 0.0)
        fprintf(file,
                "        reads %.4g GB/s of these keys and values, %.4g GB/s of a buffer of %lld MiB; peak %.4g "
                "GFLOP/s\n",
                1e-9 * r->read, 1e-9 * r->read_far, (long long)(r->far_bytes >> 20), 1e-9 * r->peak);
    if (strcmp(item->suite, "window") == 0 && r->baseline_flops > 0.0)
        fprintf(file, "        time per visible pair: %.3f of the full mask's\n",
                r->subject.median / r->flops * r->baseline_flops / r->peer.median);
}

/* ---- JSON ---------------------------------------------------------------------------------------- */

/* A number, or null where none was measured. */
static void json_number(FILE *file, const char *name, double value)
{
    if (value > 0.0 && isfinite(value))
        fprintf(file, ", \"%s\": %.9g", name, value);
    else
        fprintf(file, ", \"%s\": null", name);
}

/* Why the library refuses a case: its messages have no control characters. */
static void json_refused(FILE *file, const char *why)
{
    fputs(", \"refused\": \"", file);
    for (; *why; why++) {
        if (*why == '"' || *why == '\\') fputc('\\', file);
        fputc(*why, file);
    }
    fputc('"', file);
}

double attn_bench_rank_share(const attn_bench_result *r)
{
    return r->ranks ? r->peer.median / r->subject.median / r->ranks : 0.0;
}

void attn_bench_json_row(FILE *file, const attn_bench_case *item, const attn_bench_result *r)
{
    const attn_desc *d = &item->desc;
    char variant[ATTN_BENCH_VARIANT];
    fprintf(file, "{\"commit\": \"%s\", \"suite\": \"%s\", \"pass\": \"%s\", \"dtype\": \"%s\", \"mask\": \"%s\", ",
            ATTN_COMMIT, item->suite, attn_bench_pass_name(item->pass), attn_dtype_name(d->dtype), item->mask);
    fprintf(file, "\"isa\": \"%s\", \"kernel\": \"%s\", \"splits\": %d, \"threads\": %d, ", r->isa, r->kernel,
            r->splits, d->threads);
    fprintf(file, "\"batch\": %lld, \"heads_q\": %lld, \"heads_kv\": %lld, \"len_q\": %lld, \"len_kv\": %lld, ",
            (long long)d->batch, (long long)d->heads_q, (long long)d->heads_kv, (long long)d->len_q,
            (long long)d->len_kv);
    fprintf(file,
            "\"dim_qk\": %lld, \"dim_v\": %lld, \"flops\": %.0f, \"workspace_bytes\": %llu, \"packed_kv_bytes\": %llu",
            (long long)d->dim_qk, (long long)d->dim_v, r->flops, (unsigned long long)r->workspace,
            (unsigned long long)r->packed);
    fprintf(file, ", \"kv_dtype\": \"%s\", \"variant\": \"%s\"", attn_dtype_name(attn_kv_dtype(d)),
            attn_bench_variant(item, variant));
    if (r->refused[0]) json_refused(file, r->refused);
    json_number(file, "kv_bytes", r->kv_bytes);
    json_number(file, "seconds", r->subject.median);
    json_number(file, "seconds_min", r->subject.min);
    json_number(file, "seconds_max", r->subject.max);
    json_number(file, "limit_seconds", r->limit);
    json_number(file, "launch_seconds", r->launch);
    json_number(file, "peak_flops", r->peak);
    json_number(file, "read_bytes_per_second", r->read);
    json_number(file, "far_read_bytes_per_second", r->read_far);
    json_number(file, "far_bytes", (double)r->far_bytes);
    if (r->peer_name)
        fprintf(file, ", \"peer\": \"%s\", \"peer_form\": \"%s\"", r->peer_name, r->peer_form);
    else
        fprintf(file, ", \"peer\": null, \"peer_form\": null");
    json_number(file, "peer_seconds", r->peer.median);
    json_number(file, "peer_seconds_min", r->peer.min);
    json_number(file, "peer_seconds_max", r->peer.max);
    json_number(file, "ratio", attn_bench_ratio(item, r));
    json_number(file, "plain_seconds", r->plain.median);
    json_number(file, "plain_seconds_min", r->plain.min);
    json_number(file, "plain_flops", r->plain_flops);
    json_number(file, "plain_share", attn_bench_plain_share(r));
    json_number(file, "peak_bytes", r->memory.peak);
    json_number(file, "counted_bytes", r->memory.counted);
    json_number(file, "peer_peak_bytes", r->peer_memory.peak);
    json_number(file, "peer_counted_bytes", r->peer_memory.counted);
    json_number(file, "predicted_seconds", r->predicted_seconds);
    json_number(file, "predicted_bytes", r->predicted_bytes);
    if (r->level[0].name) fprintf(file, ", \"levels\": [");
    for (int i = 0; i < ATTN_BENCH_LEVELS && r->level[i].name; i++) {
        fprintf(file, "%s{\"name\": \"%s\"", i ? ", " : "", r->level[i].name);
        json_number(file, "predicted_bytes", r->level[i].predicted);
        json_number(file, "counted_bytes", r->level[i].counted);
        fputc('}', file);
    }
    if (r->level[0].name) fputc(']', file);
    json_number(file, "ranks", r->ranks);
    json_number(file, "rank_share", attn_bench_rank_share(r));
    json_number(file, "sent_bytes", r->sent_bytes);
    json_number(file, "error_ratio", r->error_ratio);
    json_number(file, "megahertz", r->megahertz);
    json_number(file, "watts", r->watts);
    fputc('}', file);
}
