/* Contract: counters.h. */
#define _GNU_SOURCE
#include "bench/counters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#endif

#include "base/error.h"

/* ---- GPU ----------------------------------------------------------------------------------- */

/* ncu's metrics, bytes of one of each, and the level that they are of. */
static const struct metric {
    const char *name;
    double bytes;
    int level;
} metrics[] = { { "dram__bytes_read.sum", 1, 0 },
                { "dram__bytes_write.sum", 1, 0 },
                { "l1tex__m_xbar2l1tex_read_bytes.sum", 1, 1 },
                { "l1tex__m_l1tex2xbar_write_bytes.sum", 1, 1 },
                { "l1tex__data_bank_reads.sum", 4, 2 } };

enum { METRICS = sizeof metrics / sizeof *metrics, COLUMNS = 4096, WORDS = 128, LAUNCHES = 16 };

/* The child: ncu, its CSV into the pipe. */
static void run_ncu(int count, char **words, const char *kernels, int out)
{
    static char list[512], self[] = "/proc/self/exe", path[4096], wanted[64];
    char *call[WORDS + 16] = { "ncu",  "--csv",         "--page", "raw",       "--print-units",
                               "base", "--kernel-name", wanted,   "--metrics", list };
    int n = 10;
    snprintf(wanted, sizeof wanted, "%s", kernels);
    ssize_t length = readlink(self, path, sizeof path - 1);
    for (int i = 0; i < METRICS; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? "," : "", metrics[i].name);
    call[n++] = length > 0 ? path : self;
    for (int i = 0; i < count && n < WORDS; i++)
        if (strcmp(words[i], "--json") != 0 && strcmp(words[i], "--measure") != 0) call[n++] = words[i];
    call[n++] = "--once";
    dup2(out, STDOUT_FILENO);
    if (!freopen("/dev/null", "w", stderr)) _exit(127);
    execvp("ncu", call);
    execv("/usr/local/cuda/bin/ncu", call);
    _exit(127);
}

/* The next field of a line of CSV, its quotes taken off; NULL at the end. */
static char *next_field(char **at)
{
    char *field = *at;
    if (!field || !*field || *field == '\n') return NULL;
    bool quoted = *field == '"';
    char *end = field += quoted;
    while (*end && *end != (quoted ? '"' : ',') && *end != '\n')
        end++;
    *at = *end ? end + 1 : end;
    if (quoted && **at == ',') ++*at;
    *end = 0;
    return field;
}

/* "1,234" as ncu writes numbers. */
static double number_of(const char *text)
{
    char digits[64];
    int n = 0;
    for (; *text && n < 63; text++)
        if (*text != ',') digits[n++] = *text;
    digits[n] = 0;
    return strtod(digits, NULL);
}

int attn_counters_read(FILE *file, double (*bytes)[ATTN_CHOICE_LEVELS], int most)
{
    int column[COLUMNS], columns = 0, rows = 0;
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, file) > 0) {
        char *at = line, *field = next_field(&at);
        bool names = field && strcmp(field, "ID") == 0;
        if (!field || (!names && (columns == 0 || field[0] < '0' || field[0] > '9'))) continue;
        rows += !names;
        if (rows > most) continue;
        if (!names) memset(bytes[rows - 1], 0, sizeof bytes[rows - 1]);
        for (int i = 0; field && i < COLUMNS; i++, field = next_field(&at)) {
            if (names) column[i] = -1, columns = i + 1;
            for (int m = 0; names && m < METRICS; m++)
                if (strcmp(field, metrics[m].name) == 0) column[i] = m;
            if (!names && i < columns && column[i] >= 0)
                bytes[rows - 1][metrics[column[i]].level] += metrics[column[i]].bytes * number_of(field);
        }
    }
    free(line);
    return rows;
}

attn_status attn_count_launches(int count, char **words, const char *kernels, double (*bytes)[ATTN_CHOICE_LEVELS],
                                int most, int *launches)
{
    int ends[2], code = 0;
    if (pipe(ends)) return attn_fail(ATTN_UNSUPPORTED, "no pipe to ncu");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) run_ncu(count, words, kernels, ends[1]);
    close(ends[1]);
    FILE *file = fdopen(ends[0], "r");
    *launches = child > 0 && file ? attn_counters_read(file, bytes, most) : 0;
    if (file)
        fclose(file);
    else
        close(ends[0]);
    if (child > 0) waitpid(child, &code, 0);
    if (*launches > 0) return ATTN_OK;
    return attn_fail(ATTN_UNSUPPORTED, child > 0 && WIFEXITED(code) && WEXITSTATUS(code) == 127
                                           ? "ncu (Nsight Compute) was not found"
                                           : "ncu counted nothing: it may not be permitted here");
}

attn_status attn_count_gpu(int count, char **words, double bytes[ATTN_CHOICE_LEVELS])
{
    double each[LAUNCHES][ATTN_CHOICE_LEVELS];
    int launches;
    attn_status status = attn_count_launches(count, words, "regex:attn_sm90", each, LAUNCHES, &launches);
    memset(bytes, 0, ATTN_CHOICE_LEVELS * sizeof *bytes);
    for (int i = 0; !status && i < launches && i < LAUNCHES; i++)
        for (int level = 0; level < ATTN_CHOICE_LEVELS; level++)
            bytes[level] += each[i][level];
    return status;
}

/* ---- CPU ----------------------------------------------------------------------------------- */

enum { LAST_LEVEL, FIRST_LEVEL, COUNTERS, LINE_BYTES = 64 };

struct attn_counters {
    int file[COUNTERS];
};

#if defined(__linux__)
static int open_counter(uint64_t cache)
{
    struct perf_event_attr attr = { .size = sizeof attr,
                                    .type = PERF_TYPE_HW_CACHE,
                                    .config = cache | PERF_COUNT_HW_CACHE_OP_READ << 8 |
                                              PERF_COUNT_HW_CACHE_RESULT_MISS << 16,
                                    .disabled = 1,
                                    .inherit = 1,
                                    .exclude_kernel = 1,
                                    .exclude_hv = 1 };
    return (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
}

attn_counters *attn_counters_open(void)
{
    attn_counters *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->file[LAST_LEVEL] = open_counter(PERF_COUNT_HW_CACHE_LL);
    c->file[FIRST_LEVEL] = open_counter(PERF_COUNT_HW_CACHE_L1D);
    if (c->file[LAST_LEVEL] >= 0 || c->file[FIRST_LEVEL] >= 0) return c;
    free(c);
    return NULL;
}

void attn_counters_start(attn_counters *c)
{
    for (int i = 0; i < COUNTERS; i++)
        if (c->file[i] >= 0) ioctl(c->file[i], PERF_EVENT_IOC_RESET, 0), ioctl(c->file[i], PERF_EVENT_IOC_ENABLE, 0);
}

static double read_counter(int file)
{
    uint64_t count = 0;
    if (file < 0) return 0;
    ioctl(file, PERF_EVENT_IOC_DISABLE, 0);
    return read(file, &count, sizeof count) == sizeof count ? (double)count * LINE_BYTES : 0;
}

void attn_counters_stop(attn_counters *c, double bytes[ATTN_CHOICE_LEVELS])
{
    memset(bytes, 0, ATTN_CHOICE_LEVELS * sizeof *bytes);
    bytes[0] = read_counter(c->file[LAST_LEVEL]);
    bytes[2] = read_counter(c->file[FIRST_LEVEL]);
}

void attn_counters_close(attn_counters *c)
{
    for (int i = 0; c && i < COUNTERS; i++)
        if (c->file[i] >= 0) close(c->file[i]);
    free(c);
}
#else
attn_counters *attn_counters_open(void)
{
    return NULL;
}

void attn_counters_start(attn_counters *c)
{
    (void)c;
}

void attn_counters_stop(attn_counters *c, double bytes[ATTN_CHOICE_LEVELS])
{
    (void)c, (void)bytes;
}

void attn_counters_close(attn_counters *c)
{
    (void)c;
}
#endif
