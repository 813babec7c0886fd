/* PyTorch as a peer: a child process (bench/peers/torch_sdpa.py) holds the tensors and answers one request a line, so
 * that it can take its turn between the library's rounds. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "problem/desc.h"

extern char **environ;

struct attn_bench_torch {
    pid_t pid;
    FILE *requests, *answers;
    char line[512];
};

static const char *const scripts[] = { "bench/peers/torch_sdpa.py", "bench/peers/torch_gpu.py" };

#ifndef ATTN_DATA_FOLDER
#define ATTN_DATA_FOLDER "share"
#endif

/* Where scripts lie below a prefix: the source tree, or what was installed. */
static const char *const homes[] = { "", ATTN_DATA_FOLDER "/attn/" };

/* The script, below the command's folder or one that holds it, up to the root; else below the working folder. So the
 * command finds it from any folder, built or installed. */
static bool find_script(const char *name, char *path, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    for (path[length < 0 ? 0 : length] = 0; path[0];) {
        char *slash = strrchr(path, '/');
        if (!slash) break;
        for (size_t i = 0; i < sizeof homes / sizeof *homes; i++) {
            size_t left = size - (size_t)(slash + 1 - path);
            int wanted = snprintf(slash + 1, left, "%s%s", homes[i], name);
            if (wanted >= 0 && (size_t)wanted < left && access(path, R_OK) == 0) return true;
        }
        *slash = 0;
    }
    snprintf(path, size, "%s", name);
    return access(path, R_OK) == 0;
}

/* The child's next line, without its end; false when it has ended. */
static bool answer(attn_bench_torch *torch)
{
    if (!fgets(torch->line, sizeof torch->line, torch->answers)) return false;
    torch->line[strcspn(torch->line, "\n")] = 0;
    return true;
}

static bool spawn(attn_bench_torch *torch, const char *python, const char *script)
{
    int to[2], from[2];
    if (pipe(to)) return false;
    if (pipe(from)) {
        close(to[0]), close(to[1]);
        return false;
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    for (int i = 0; i < 2; i++) {
        posix_spawn_file_actions_addclose(&actions, to[i]);
        posix_spawn_file_actions_addclose(&actions, from[i]);
    }
    char *argv[] = { (char *)(uintptr_t)python, (char *)(uintptr_t)script, NULL };
    int failed = posix_spawnp(&torch->pid, python, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]), close(from[1]);
    if (failed) torch->pid = 0;
    torch->requests = fdopen(to[1], "w");
    torch->answers = fdopen(from[0], "r");
    errno = failed;
    return !failed && torch->requests && torch->answers;
}

attn_bench_torch *attn_bench_torch_start(const char *python, attn_device on, char *text, size_t size)
{
    char script[4096];
    if (!find_script(scripts[on == ATTN_CUDA], script, sizeof script)) {
        snprintf(text, size, "%s was found neither near the command nor here", scripts[on == ATTN_CUDA]);
        return NULL;
    }
    attn_bench_torch *torch = calloc(1, sizeof *torch);
    signal(SIGPIPE, SIG_IGN); /* a child that ends shows as an end of file */
    if (!torch || !spawn(torch, python, script)) {
        snprintf(text, size, "%s cannot be started: %s", python, strerror(errno));
    } else if (!answer(torch)) {
        snprintf(text, size, "%s ended without a word", python);
    } else if (strncmp(torch->line, "ready ", 6) != 0) {
        snprintf(text, size, "%s: %s", python, torch->line);
    } else {
        snprintf(text, size, "%s", torch->line + 6);
        return torch;
    }
    attn_bench_torch_stop(torch);
    return NULL;
}

void attn_bench_torch_stop(attn_bench_torch *torch)
{
    if (!torch) return;
    if (torch->requests) fclose(torch->requests);
    if (torch->answers) fclose(torch->answers);
    if (torch->pid) waitpid(torch->pid, NULL, 0);
    free(torch);
}

static bool failed(attn_bench_torch *torch)
{
    return attn_bench_fail("PyTorch: %s", torch->line[0] ? torch->line : "the process has ended");
}

bool attn_bench_torch_takes(const attn_bench_case *item)
{
    const uint32_t as_masks = ATTN_CAUSAL | ATTN_WINDOW | ATTN_CHUNK | ATTN_PREFIX | ATTN_INTERVALS | ATTN_BITS |
                              ATTN_BLOCKS | ATTN_FIRST_KV | ATTN_POSITIONS | ATTN_BIAS | ATTN_ALIBI;
    const attn_desc *d = &item->desc;
    bool features = d->flags & ~(as_masks | ATTN_DROPOUT) || d->bits_keys;
    bool corner = d->flags & ATTN_CAUSAL && d->len_q != d->len_kv;
    return !corner && !(attn_bench_is_feature(item) && features);
}

/* What a case has besides the mask that a request names, as words. */
static void ask_features(FILE *requests, const attn_bench_case *item)
{
    const attn_desc *d = &item->desc;
    const int64_t *e = d->bias_extent;
    const uint32_t places = ATTN_FIRST_KV | ATTN_POSITIONS | ATTN_LENS_Q;
    if (!attn_bench_is_feature(item)) return;
    if (!(d->flags & ATTN_CAUSAL)) fprintf(requests, " full=1");
    if (d->flags & ATTN_WINDOW) fprintf(requests, " window=%lld", (long long)d->window_left);
    if (d->flags & ATTN_CHUNK) fprintf(requests, " chunk=%lld", (long long)d->chunk);
    if (d->flags & ATTN_PREFIX) fprintf(requests, " prefix=%lld", (long long)item->prefix);
    if (d->flags & ATTN_BITS)
        fprintf(requests, " bits=%g:%lld:%lld", item->share, (long long)d->bits_batch, (long long)d->bits_heads);
    if (d->flags & ATTN_BLOCKS) fprintf(requests, " blocks=%lld:%g", (long long)d->block_rows, item->share);
    if (d->flags & ATTN_SOFTCAP) fprintf(requests, " softcap=%g", (double)d->softcap);
    if (d->flags & ATTN_ALIBI) fprintf(requests, " alibi=1");
    if (d->flags & ATTN_DROPOUT) fprintf(requests, " dropout=%g", (double)d->dropout_p);
    if (d->flags & ATTN_BIAS)
        fprintf(requests, " bias=%s:%lld:%lld:%lld:%lld:%d", attn_dtype_name(d->bias_dtype), (long long)e[0],
                (long long)e[1], (long long)e[2], (long long)e[3], item->gradients);
    if (d->flags & places || d->bits_keys || item->shift) fprintf(requests, " places=1");
    if (d->q_scale_rows) fprintf(requests, " block-scales=1");
}

/* What the CPU's peer makes a mask of, too. */
static void ask_places(FILE *requests, const attn_bench_case *item)
{
    if (item->desc.flags & ATTN_INTERVALS) fprintf(requests, " documents=%d", (int)item->lens[0]);
    if (item->desc.flags & ATTN_FIRST_KV) fprintf(requests, " first=%lld", (long long)item->first);
    if (item->desc.flags & ATTN_POSITIONS) fprintf(requests, " position=%lld", (long long)item->position);
}

bool attn_bench_torch_setup(attn_bench_torch *torch, const attn_bench_case *item, char *form, size_t size)
{
    const attn_desc *desc = &item->desc;
    fprintf(torch->requests, "setup %s %s %lld %lld %lld %lld %lld %lld %lld %d %d", attn_bench_pass_name(item->pass),
            attn_dtype_name(desc->dtype), (long long)desc->batch, (long long)desc->heads_q, (long long)desc->heads_kv,
            (long long)desc->len_q, (long long)desc->len_kv, (long long)desc->dim_qk, (long long)desc->dim_v,
            (desc->flags & ATTN_CAUSAL) != 0, desc->threads);
    ask_features(torch->requests, item);
    if (attn_bench_is_feature(item)) ask_places(torch->requests, item);
    if (attn_bench_of_processor(item)) fputs(" clock=processor", torch->requests);
    fputc('\n', torch->requests);
    fflush(torch->requests);
    torch->line[0] = 0;
    if (!answer(torch) || strncmp(torch->line, "ok ", 3) != 0) return failed(torch);
    snprintf(form, size, "%s", torch->line + 3);
    return true;
}

bool attn_bench_torch_setup_gpu(attn_bench_torch *torch, const char *backend, const char *fa3,
                                const attn_bench_case *item)
{
    const attn_desc *d = &item->desc;
    const char *mask = d->flags & ATTN_SINK        ? "sink"
                       : d->flags & ATTN_INTERVALS ? "documents"
                       : d->flags & ATTN_WINDOW    ? "window"
                       : d->flags & ATTN_CAUSAL    ? "causal"
                                                   : "full";
    fprintf(torch->requests, "setup %s %s %s %lld %lld %lld %lld %lld %lld %lld %s %lld %s ", backend,
            attn_bench_pass_name(item->pass), attn_dtype_name(d->dtype), (long long)d->batch, (long long)d->heads_q,
            (long long)d->heads_kv, (long long)d->len_q, (long long)d->len_kv, (long long)d->dim_qk,
            (long long)d->dim_v, mask, (long long)d->window_left, fa3 ? fa3 : "-");
    if (d->flags & ATTN_PAGED)
        fprintf(torch->requests, "%s:%lld", item->kind == ATTN_BENCH_CASCADE ? "cascade" : "pages",
                (long long)d->page_size);
    else
        fprintf(torch->requests, d->flags & ATTN_VARLEN ? "packed" : "apart");
    for (int i = 0; i < item->sequences; i++)
        fprintf(torch->requests, " %d", (int)item->lens[i]);
    ask_features(torch->requests, item);
    fputc('\n', torch->requests);
    fflush(torch->requests);
    torch->line[0] = 0;
    return (answer(torch) && strcmp(torch->line, "ok") == 0) || failed(torch);
}

/* The number above 0 that a request is answered by; -1 after a failure. */
static double ask(attn_bench_torch *torch, const char *request, int value)
{
    fprintf(torch->requests, "%s %d\n", request, value);
    fflush(torch->requests);
    torch->line[0] = 0;
    char *end = torch->line;
    double number = answer(torch) ? strtod(torch->line, &end) : -1.0;
    if (end == torch->line || number <= 0.0) {
        failed(torch);
        return -1.0;
    }
    return number;
}

double attn_bench_torch_run(void *torch, int calls)
{
    return ask(torch, "run", calls);
}

double attn_bench_torch_memory(attn_bench_torch *torch)
{
    double bytes = ask(torch, "memory", 1);
    return bytes > 0.0 ? bytes : 0.0;
}
