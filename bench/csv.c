/* Results as rows of a CSV file. Its columns only grow, at the end: rows of a file that has fewer are filled up. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn_commit.h"
#include "base/text_buffer.h"
#include "bench/bench.h"
#include "problem/desc.h"

static const char columns[] =
    "commit,suite,device,kernel,pass,dtype,head_dim,mask,batch,heads_q,heads_kv,len_q,len_kv,"
    "threads,ms,spread,tflops,gbps,limit_fraction,peer,peer_ms,ratio,predicted_ms,"
    "predicted_bytes,peak_bytes,counted_bytes,peer_peak_bytes,peer_counted_bytes,"
    "level1_predicted,level1_counted,level2_predicted,level2_counted,level3_predicted,"
    "level3_counted,dim_v,kv_dtype,page_size,variant,plain_share,rank_share,sent_bytes,error_ratio";

enum {
    CSV_COLUMNS_LEAST = 24,
    CSV_KEY_FIRST = 1,
    CSV_KEY_LAST = 13,
    CSV_PEER = 19,
    CSV_DIM_V = 34,
    CSV_VARIANT = 37,
    CSV_ROW = 1024
};

static void csv_number(FILE *file, double value, double scale)
{
    if (value > 0.0 && isfinite(value)) fprintf(file, "%.6g", value * scale);
}

const char *attn_bench_variant(const attn_bench_case *item, char text[ATTN_BENCH_VARIANT])
{
    const attn_desc *d = &item->desc;
    attn_text_buffer w = { text, ATTN_BENCH_VARIANT, 0 };
    static const struct {
        uint32_t flag;
        const char *name;
    } changes[] = {
        { ATTN_SOFTCAP, "softcap" }, { ATTN_ALIBI, "alibi" },         { ATTN_BIAS, "bias" },
        { ATTN_SINK, "sink" },       { ATTN_DROPOUT, "dropout" },     { ATTN_OUT_F32, "out-f32" },
        { ATTN_FIRST_KV, "first" },  { ATTN_POSITIONS, "positions" }, { ATTN_DETERMINISTIC, "deterministic" },
    };
    text[0] = 0;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        if (!(d->flags & changes[i].flag)) continue;
        attn_say(&w, "%s%s", w.length ? "+" : "", changes[i].name);
        if (changes[i].flag != ATTN_BIAS) continue;
        attn_say(&w, ":%s%s%s", attn_dtype_name(d->bias_dtype), d->bias_extent[2] == 1 ? ":keys" : "",
                 d->bias_extent[0] > 1 && d->bias_extent[2] > 1 ? ":batch" : "");
    }
    if (d->q_scale_rows) attn_say(&w, "%sblock-scales", w.length ? "+" : "");
    if (item->gradients) attn_say(&w, "+gradient");
    if (item->shift) attn_say(&w, "%soff:%d", w.length ? "+" : "", item->shift);
    return text;
}

static void csv_row(FILE *file, const char *machine, const attn_bench_case *item, const attn_bench_result *r)
{
    const attn_desc *d = &item->desc;
    char variant[ATTN_BENCH_VARIANT];
    double seconds = r->subject.median;
    fprintf(file, "%s,%s,%s,%s,%s,%s,%lld,%s,%lld,%lld,%lld,%lld,%lld,%d,", ATTN_COMMIT, item->suite, machine,
            r->kernel, attn_bench_pass_name(item->pass), attn_dtype_name(d->dtype), (long long)d->dim_qk, item->mask,
            (long long)d->batch, (long long)d->heads_q, (long long)d->heads_kv, (long long)d->len_q,
            (long long)d->len_kv, d->threads);
    double values[] = { seconds, attn_bench_spread(r->subject), r->flops / seconds,
                        r->read > 0 ? r->kv_bytes / seconds : 0.0, r->limit / seconds };
    double scales[] = { 1e3, 1.0, 1e-12, 1e-9, 1.0 };
    for (int i = 0; i < 5; i++) {
        csv_number(file, values[i], scales[i]);
        fputc(',', file);
    }
    fprintf(file, "%s,", r->peer_name ? r->peer_name : "");
    csv_number(file, r->peer.median, 1e3);
    fputc(',', file);
    csv_number(file, attn_bench_ratio(item, r), 1.0);
    fputc(',', file);
    if (item->kind == ATTN_BENCH_PLANNED ||
        item->kind == ATTN_BENCH_MEMORY) { /* what it is about: the bytes of the workspace */
        fprintf(file, ",%llu", (unsigned long long)r->workspace);
    } else {
        csv_number(file, r->predicted_seconds, 1e3);
        fputc(',', file);
        csv_number(file, r->predicted_bytes, 1.0);
    }
    double bytes[] = { r->memory.peak, r->memory.counted, r->peer_memory.peak, r->peer_memory.counted };
    for (int i = 0; i < 4; i++) {
        fputc(',', file);
        csv_number(file, bytes[i], 1.0);
    }
    for (int i = 0; i < ATTN_BENCH_LEVELS; i++) {
        fputc(',', file);
        csv_number(file, r->level[i].predicted, 1.0);
        fputc(',', file);
        csv_number(file, r->level[i].counted, 1.0);
    }
    fprintf(file, ",%lld,%s,%lld,", (long long)(d->dim_v ? d->dim_v : d->dim_qk), attn_dtype_name(attn_kv_dtype(d)),
            (long long)d->page_size);
    fprintf(file, "%s,", attn_bench_variant(item, variant));
    csv_number(file, attn_bench_plain_share(r), 1.0);
    double over_ranks[] = { attn_bench_rank_share(r), r->sent_bytes, r->error_ratio };
    for (int i = 0; i < 3; i++) {
        fputc(',', file);
        csv_number(file, over_ranks[i], 1.0);
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

/* A row of a version that had no dim_v yet, nor what follows it: it stands for any. */
static bool is_older(const char *row)
{
    size_t length;
    csv_column(row, CSV_DIM_V, &length);
    return length == 0;
}

/* Whether two rows measure the same: all but the commit and the figures. */
static bool same_measurement(const char *a, const char *b)
{
    for (int i = CSV_KEY_FIRST; i <= CSV_KEY_LAST; i++)
        if (!same_column(a, b, i)) return false;
    for (int i = CSV_DIM_V; i <= CSV_VARIANT && !is_older(a) && !is_older(b); i++)
        if (!same_column(a, b, i)) return false;
    return same_column(a, b, CSV_PEER);
}

static int count_columns(const char *line)
{
    int count = 1;
    for (; *line; line++)
        count += *line == ',';
    return count;
}

/* Whether `line` is the first of a results file, of this version or an older one. */
static bool is_header(const char *line)
{
    size_t length = strlen(line);
    return count_columns(line) >= CSV_COLUMNS_LEAST && strncmp(line, columns, length) == 0 &&
           (columns[length] == ',' || !columns[length]);
}

static bool copy_old_rows(FILE *old, FILE *to, const char *path, char (*rows)[CSV_ROW], int count)
{
    char line[CSV_ROW];
    if (!fgets(line, sizeof line, old)) return true;
    line[strcspn(line, "\r\n")] = 0;
    if (!is_header(line)) return attn_bench_fail("%s: the first line is not that of a results file", path);
    while (fgets(line, sizeof line, old)) {
        bool replaced = false;
        line[strcspn(line, "\r\n")] = 0;
        for (int i = 0; i < count && !replaced; i++)
            replaced = same_measurement(line, rows[i]);
        if (replaced) continue;
        fputs(line, to);
        for (int i = count_columns(line); i < count_columns(columns); i++)
            fputc(',', to);
        fputc('\n', to);
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

char *attn_bench_csv_text(const char *path, const char *machine, const attn_bench_case *items,
                          const attn_bench_result *results, int count, size_t *size)
{
    char(*rows)[CSV_ROW] = calloc((size_t)count + 1, sizeof *rows);
    if (!rows) return attn_bench_fail("out of memory"), NULL;
    for (int i = 0; i < count; i++) {
        FILE *row = fmemopen(rows[i], sizeof rows[i], "w");
        if (row) csv_row(row, machine, &items[i], &results[i]), fclose(row);
    }
    char *text = NULL;
    FILE *to = open_memstream(&text, size);
    bool good = to ? write_rows(to, path, rows, count) : attn_bench_fail("out of memory");
    free(rows);
    if (to && fclose(to) && good) good = attn_bench_fail("out of memory");
    if (good) return text;
    free(text);
    return NULL;
}
