/* Another build of libattn as a peer, in this process: loaded by itself, so that each has its own code, threads and
 * errors. On a GPU the run's plans name it (gpu.c); here are the CPU's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "bench/bench.h"
#include "problem/args.h"

struct attn_bench_library {
    void *handle;
    device_library calls;
    const char *path;    /* as it was given */
    attn_plan *plans[2]; /* in the order in which they run; NULL: none */
    attn_args args;
    void *workspace;
};

static bool find_calls(attn_bench_library *library)
{
    const struct {
        const char *symbol;
        void *at;
    } calls[] = {
        { "attn_plan_create_sized", &library->calls.create },
        { "attn_plan_destroy", &library->calls.destroy },
        { "attn_plan_workspace", &library->calls.workspace },
        { "attn_run_sized", &library->calls.run },
        { "attn_error", &library->calls.error },
        { "attn_version", &library->calls.version },
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *found = dlsym(library->handle, calls[i].symbol);
        if (!found)
            return attn_bench_fail("--peer-library %s: it is no libattn: %s is not in it", library->path,
                                   calls[i].symbol);
        memcpy(calls[i].at, &found, sizeof found);
    }
    return true;
}

attn_bench_library *attn_bench_library_load(const char *path)
{
    char whole[PATH_MAX]; /* a bare name would be looked for in the system's folders */
    attn_bench_library *library = calloc(1, sizeof *library);
    if (!library) return attn_bench_fail("out of memory"), NULL;
    library->path = path;
    if (!realpath(path, whole)) {
        attn_bench_fail("--peer-library %s: %s", path, strerror(errno));
    } else if (!(library->handle = dlopen(whole, RTLD_NOW | RTLD_LOCAL))) {
        attn_bench_fail("--peer-library %s: %s", path, dlerror());
    } else if (find_calls(library)) {
        return library;
    }
    attn_bench_library_free(library);
    return NULL;
}

static void clear(attn_bench_library *library)
{
    for (int i = 0; i < 2; i++)
        if (library->plans[i]) library->calls.destroy(library->plans[i]), library->plans[i] = NULL;
    free(library->workspace);
    library->workspace = NULL;
}

void attn_bench_library_free(attn_bench_library *library)
{
    if (!library) return;
    clear(library);
    free(library); /* it stays loaded: its threads may be waiting in its code */
}

const char *attn_bench_library_name(const attn_bench_library *library)
{
    const char *slash = strrchr(library->path, '/');
    return slash ? slash + 1 : library->path;
}

const char *attn_bench_library_version(const attn_bench_library *library)
{
    return library->calls.version();
}

const device_library *attn_bench_library_calls(const attn_bench_library *library)
{
    return library ? &library->calls : NULL;
}

bool attn_bench_library_setup(attn_bench_library *library, const attn_desc *desc, attn_bench_pass pass,
                              const attn_bench_tensors *tensors)
{
    size_t size = 0;
    clear(library);
    for (int i = 0; i < 2; i++) {
        attn_desc d = *desc;
        d.direction = i == 0 ? ATTN_FORWARD : ATTN_BACKWARD;
        if (i == 0 ? pass == ATTN_BENCH_BACKWARD : pass < ATTN_BENCH_BACKWARD) continue;
        if (device_library_failed(&library->calls, library->calls.create(&library->plans[i], &d, sizeof d)))
            return attn_bench_fail("%s", attn_error());
        size_t wanted = library->calls.workspace(library->plans[i]);
        if (wanted > size) size = wanted;
    }
    library->args = attn_bench_tensors_args(tensors);
    attn_args_keep(desc->flags, &library->args);
    library->workspace = attn_bench_alloc((int64_t)size);
    return library->workspace;
}

double attn_bench_library_run(void *self, int calls)
{
    attn_bench_library *library = self;
    double start = attn_bench_now();
    for (int n = 0; n < calls; n++)
        for (int i = 0; i < 2; i++) {
            if (!library->plans[i]) continue;
            attn_status status =
                library->calls.run(library->plans[i], &library->args, sizeof library->args, library->workspace, NULL);
            if (device_library_failed(&library->calls, status)) return attn_bench_fail("%s", attn_error()), -1.0;
        }
    return (attn_bench_now() - start) / calls;
}
