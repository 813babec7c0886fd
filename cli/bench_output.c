/* Results as a table, as JSON, and as rows of a CSV file. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attn_commit.h"
#include "bench.h"
#include "command.h"

/* ---- table --------------------------------------------------------------------------------------- */

void attn_bench_table_header(FILE *file)
{
    fprintf(file, "%-7s %-4s %4s %-10s %5s %6s %3s  %-17s %10s %6s %9s %7s %6s  %-22s %10s %6s %10s\n", "suite", "type",
            "dim", "mask", "heads", "len", "thr", "kernel", "ms", "spread", "GFLOP/s", "GB/s", "limit", "peer",
            "peer ms", "ratio", "predicted");
}

static double spread(attn_bench_times times)
{
    return (times.max - times.min) / times.median;
}

void attn_bench_table_row(FILE *file, const attn_bench_case *item, const attn_bench_result *r)
{
    const attn_desc *d = &item->desc;
    char heads[32], peer[48];
    snprintf(heads, sizeof heads, d->heads_q == d->heads_kv ? "%lld" : "%lld/%lld", (long long)d->heads_q,
             (long long)d->heads_kv);
    fprintf(file, "%-7s %-4s %4lld %-10s %5s %6lld %3d  %-17s ", item->suite, attn_dtype_name(d->dtype),
            (long long)d->dim_qk, item->mask, heads, (long long)d->len_kv, d->threads, r->kernel);
    if (item->plan_only) {
        fprintf(file, "workspace %.0f KiB: packed keys and values %.0f KiB, the rest %.0f KiB\n",
                (double)r->workspace / 1024, (double)r->packed / 1024, (double)(r->workspace - r->packed) / 1024);
        return;
    }
    fprintf(file, "%10.4g %5.1f%% %9.4g ", 1e3 * r->subject.median, 100 * spread(r->subject),
            1e-9 * r->flops / r->subject.median);
    if (r->read > 0.0)
        fprintf(file, "%7.4g ", 1e-9 * r->kv_bytes / r->subject.median);
    else
        fprintf(file, "%7s ", "");
    fprintf(file, "%5.1f%%  ", 100 * r->limit / r->subject.median);
    if (r->peer_name) {
        snprintf(peer, sizeof peer, r->peer_form[0] ? "%s, %s" : "%s", r->peer_name, r->peer_form);
        fprintf(file, "%-22s %10.4g %5.2fx ", peer, 1e3 * r->peer.median, r->peer.median / r->subject.median);
    } else {
        fprintf(file, "%-22s %10s %6s ", "", "", "");
    }
    fprintf(file, "%10.4g\n", 1e3 * r->predicted_seconds);
    if (r->read_far > 0.0)
        fprintf(file,
                "        reads %.4g GB/s of these keys and values, %.4g GB/s of a buffer of %lld MiB; peak %.4g "
                "GFLOP/s\n",
                1e-9 * r->read, 1e-9 * r->read_far, (long long)(r->far_bytes >> 20), 1e-9 * r->peak);
    if (strcmp(item->suite, "window") == 0)
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

void attn_bench_json_row(FILE *file, const attn_bench_case *item, const attn_bench_result *r)
{
    const attn_desc *d = &item->desc;
    fprintf(file, "{\"commit\": \"%s\", \"suite\": \"%s\", \"pass\": \"%s\", \"dtype\": \"%s\", \"mask\": \"%s\", ",
            ATTN_COMMIT, item->suite, attn_bench_pass_name(item->pass), attn_dtype_name(d->dtype), item->mask);
    fprintf(file, "\"isa\": \"%s\", \"kernel\": \"%s\", \"splits\": %d, \"threads\": %d, ", r->isa, r->kernel,
            r->splits, d->threads);
    fprintf(file, "\"batch\": %lld, \"heads_q\": %lld, \"heads_kv\": %lld, \"len_q\": %lld, \"len_kv\": %lld, ",
            (long long)d->batch, (long long)d->heads_q, (long long)d->heads_kv, (long long)d->len_q,
            (long long)d->len_kv);
    fprintf(file,
            "\"dim_qk\": %lld, \"dim_v\": %lld, \"flops\": %.0f, \"workspace_bytes\": %llu, \"packed_bytes\": %llu",
            (long long)d->dim_qk, (long long)d->dim_v, r->flops, (unsigned long long)r->workspace,
            (unsigned long long)r->packed);
    json_number(file, "seconds", r->subject.median);
    json_number(file, "seconds_min", r->subject.min);
    json_number(file, "seconds_max", r->subject.max);
    json_number(file, "limit_seconds", r->limit);
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
    json_number(file, "ratio", item->plan_only ? 0.0 : r->peer.median / r->subject.median);
    json_number(file, "predicted_seconds", r->predicted_seconds);
    json_number(file, "predicted_bytes", r->predicted_bytes);
    fputc('}', file);
}

/* ---- CSV ----------------------------------------------------------------------------------------- */

static const char columns[] = "commit,suite,device,kernel,pass,dtype,head_dim,mask,batch,heads_q,heads_kv,len_q,len_kv,"
                              "threads,ms,spread,tflops,gbps,limit_fraction,peer,peer_ms,ratio,predicted_ms,"
                              "predicted_bytes";

enum { CSV_COLUMNS = 24, CSV_KEY_FIRST = 1, CSV_KEY_LAST = 13, CSV_PEER = 19, CSV_ROW = 1024 };

static void csv_number(FILE *file, double value, double scale)
{
    if (value > 0.0 && isfinite(value)) fprintf(file, "%.6g", value * scale);
}

static void csv_row(FILE *file, const char *machine, const attn_bench_case *item, const attn_bench_result *r)
{
    const attn_desc *d = &item->desc;
    double seconds = r->subject.median;
    fprintf(file, "%s,%s,%s,%s,%s,%s,%lld,%s,%lld,%lld,%lld,%lld,%lld,%d,", ATTN_COMMIT, item->suite, machine,
            r->kernel, attn_bench_pass_name(item->pass), attn_dtype_name(d->dtype), (long long)d->dim_qk, item->mask,
            (long long)d->batch, (long long)d->heads_q, (long long)d->heads_kv, (long long)d->len_q,
            (long long)d->len_kv, d->threads);
    double values[] = { seconds, spread(r->subject), r->flops / seconds, r->read > 0 ? r->kv_bytes / seconds : 0.0,
                        r->limit / seconds };
    double scales[] = { 1e3, 1.0, 1e-12, 1e-9, 1.0 };
    for (int i = 0; i < 5; i++) {
        csv_number(file, item->plan_only ? 0.0 : values[i], scales[i]);
        fputc(',', file);
    }
    fprintf(file, "%s,", r->peer_name ? r->peer_name : "");
    csv_number(file, r->peer.median, 1e3);
    fputc(',', file);
    csv_number(file, r->peer_name ? r->peer.median / seconds : 0.0, 1.0);
    fputc(',', file);
    if (item->plan_only) { /* what it is about: the bytes of the workspace */
        fprintf(file, ",%llu", (unsigned long long)r->workspace);
    } else {
        csv_number(file, r->predicted_seconds, 1e3);
        fputc(',', file);
        csv_number(file, r->predicted_bytes, 1.0);
    }
    fputc('\n', file);
}

/* Where column `index` of a row starts, and its length. */
static const char *csv_column(const char *row, int index, size_t *length)
{
    for (; index > 0 && row; index--) {
        row = strchr(row, ',');
        if (row) row++;
    }
    *length = row ? strcspn(row, ",\n") : 0;
    return row;
}

static bool same_column(const char *a, const char *b, int index)
{
    size_t a_length, b_length;
    const char *x = csv_column(a, index, &a_length), *y = csv_column(b, index, &b_length);
    return x && y && a_length == b_length && memcmp(x, y, a_length) == 0;
}

/* Whether two rows measure the same: all but the commit and the figures. */
static bool same_measurement(const char *a, const char *b)
{
    for (int i = CSV_KEY_FIRST; i <= CSV_KEY_LAST; i++)
        if (!same_column(a, b, i)) return false;
    return same_column(a, b, CSV_PEER);
}

static bool copy_old_rows(FILE *old, FILE *to, const char *path, char (*rows)[CSV_ROW], int count)
{
    char line[CSV_ROW];
    if (!fgets(line, sizeof line, old)) return true;
    line[strcspn(line, "\r\n")] = 0;
    if (strcmp(line, columns) != 0) return attn_bench_fail("%s: the first line is not that of a results file", path);
    while (fgets(line, sizeof line, old)) {
        bool replaced = false;
        for (int i = 0; i < count && !replaced; i++)
            replaced = same_measurement(line, rows[i]);
        if (!replaced) fputs(line, to);
    }
    return !ferror(old);
}

static bool write_rows(FILE *to, const char *path, char (*rows)[CSV_ROW], int count)
{
    fprintf(to, "%s\n", columns);
    errno = 0;
    FILE *old = fopen(path, "r");
    if (!old && errno != ENOENT) return attn_bench_fail("%s: %s", path, strerror(errno));
    bool good = !old || copy_old_rows(old, to, path, rows, count);
    if (old) fclose(old);
    for (int i = 0; i < count; i++)
        fputs(rows[i], to);
    return good;
}

bool attn_bench_csv_write(const char *path, const char *machine, const attn_bench_case *items,
                          const attn_bench_result *results, int count)
{
    char temporary[4096];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid()) >= sizeof temporary)
        return attn_bench_fail("%s: the name is too long", path);
    char(*rows)[CSV_ROW] = calloc((size_t)count + 1, sizeof *rows);
    if (!rows) return attn_bench_fail("out of memory");
    for (int i = 0; i < count; i++) {
        FILE *row = fmemopen(rows[i], sizeof rows[i], "w");
        if (row) csv_row(row, machine, &items[i], &results[i]), fclose(row);
    }
    FILE *to = fopen(temporary, "w");
    bool good = to ? write_rows(to, path, rows, count) : attn_bench_fail("%s: %s", temporary, strerror(errno));
    free(rows);
    if (!to) return false;
    if ((fclose(to) || (good && rename(temporary, path))) && good)
        good = attn_bench_fail("%s: %s", path, strerror(errno));
    if (!good) remove(temporary);
    return good;
}
