/* Contract: nvrtc.h. The cache's key is the compiler's version and file, the options and every text. */
#define _GNU_SOURCE
#include "cuda/nvrtc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "cuda/cache.h"

typedef struct nvrtc_program *nvrtcProgram;

#define NVRTC_FUNCTIONS(X)                                                                    \
    X(nvrtcVersion, (int *major, int *minor))                                                 \
    X(nvrtcCreateProgram, (nvrtcProgram *, const char *source, const char *name, int headers, \
                           const char *const *header, const char *const *header_name))        \
    X(nvrtcCompileProgram, (nvrtcProgram, int options, const char *const *option))            \
    X(nvrtcGetProgramLogSize, (nvrtcProgram, size_t * size))                                  \
    X(nvrtcGetProgramLog, (nvrtcProgram, char *log))                                          \
    X(nvrtcGetCUBINSize, (nvrtcProgram, size_t * size))                                       \
    X(nvrtcGetCUBIN, (nvrtcProgram, char *cubin))                                             \
    X(nvrtcDestroyProgram, (nvrtcProgram *))

static struct {
#define MEMBER(name, arguments) int(*name) arguments;
    NVRTC_FUNCTIONS(MEMBER)
#undef MEMBER
} nvrtc;
enum { PATH_MOST = 4096 };

static int version[2];
static long long file[3]; /* what tells the library from others of its version: size, seconds and nanoseconds */
static bool found;
static char why_not[400];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *const names[] = { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                     "/usr/local/cuda/lib64/libnvrtc.so" };

/* Writes the path of the folder's library; false: it has none. */
static bool find_in(const char *folder, char path[PATH_MOST])
{
    for (int i = 0; i < 3; i++) {
        int length = snprintf(path, PATH_MOST, "%s/%s", folder, names[i]);
        if (length < PATH_MOST && access(path, F_OK) == 0) return true;
    }
    return false;
}

/* What ATTN_NVRTC names: the library or its folder. */
static void *open_named(const char *named)
{
    char path[PATH_MOST];
    struct stat status;
    bool folder = stat(named, &status) == 0 && S_ISDIR(status.st_mode);
    if (folder && !find_in(named, path)) {
        snprintf(why_not, sizeof why_not, "ATTN_NVRTC: the folder %.300s has no libnvrtc.so.13 or .12", named);
        return NULL;
    }
    void *library = dlopen(folder ? path : named, RTLD_NOW | RTLD_LOCAL);
    if (!library) snprintf(why_not, sizeof why_not, "ATTN_NVRTC, the path of libnvrtc or its folder: %s", dlerror());
    return library;
}

/* Where ATTN_NVRTC is set, no other library will do. */
static void *open_library(const char *named)
{
    if (named) return open_named(named);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
    }
    snprintf(why_not, sizeof why_not, "libnvrtc.so.13 or .12 cannot be loaded; ATTN_NVRTC can name its path");
    return NULL;
}

/* NVRTC loads its second library by name, and only some releases look for it beside themselves: here it is loaded
 * from there before they ask. Where it is not, NVRTC looks elsewhere, and says if it finds none. */
static void load_builtins(const char *path)
{
    char beside[PATH_MOST];
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) : 0;
    int length =
        snprintf(beside, sizeof beside, "%.*s/libnvrtc-builtins.so.%d.%d", folder, path, version[0], version[1]);
    if (slash && length < (int)sizeof beside) dlopen(beside, RTLD_NOW | RTLD_LOCAL);
}

static void know_file(const char *path)
{
    struct stat status;
    if (stat(path, &status)) return;
    file[0] = status.st_size, file[1] = status.st_mtim.tv_sec, file[2] = status.st_mtim.tv_nsec;
}

static void look(void)
{
    static const struct {
        const char *symbol;
        void *member;
    } functions[] = {
#define FUNCTION(name, arguments) { #name, &nvrtc.name },
        NVRTC_FUNCTIONS(FUNCTION)
#undef FUNCTION
    };
    const char *named = getenv("ATTN_NVRTC");
    if (named && !*named) named = NULL;
    void *library = open_library(named), *address = NULL;
    if (!library) return;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        address = dlsym(library, functions[i].symbol);
        if (!address) {
            snprintf(why_not, sizeof why_not, "%s%.300s has no %s", named ? "ATTN_NVRTC: " : "",
                     named ? named : "libnvrtc", functions[i].symbol);
            return;
        }
        memcpy(functions[i].member, &address, sizeof address);
    }
    if (nvrtc.nvrtcVersion(&version[0], &version[1])) {
        snprintf(why_not, sizeof why_not, "libnvrtc does not say its version");
        return;
    }
    Dl_info info;
    if (dladdr(address, &info) && info.dli_fname) {
        load_builtins(info.dli_fname);
        know_file(info.dli_fname);
    }
    found = true;
}

int attn_cuda_nvrtc_version(void)
{
    pthread_once(&once, look);
    if (found) return 1000 * version[0] + 10 * version[1];
    attn_fail(ATTN_UNSUPPORTED, "%s", why_not);
    return 0;
}

/* A text with its end, so that what follows cannot be taken for a part of it. */
static attn_hash hash_text(attn_hash hash, const char *text)
{
    return attn_hash_more(hash, text, strlen(text) + 1);
}

static attn_hash key_of(const attn_cuda_program *p)
{
    const int counts[] = { p->option_count, p->header_count };
    attn_hash hash = attn_hash_more(attn_hash_more(attn_hash_start(), version, sizeof version), file, sizeof file);
    hash = attn_hash_more(hash, counts, sizeof counts);
    for (int i = 0; i < p->option_count; i++)
        hash = hash_text(hash, p->options[i]);
    hash = hash_text(hash_text(hash, p->source.name), p->source.text);
    for (int i = 0; i < p->header_count; i++)
        hash = hash_text(hash_text(hash, p->headers[i].name), p->headers[i].text);
    return hash;
}

/* What the compiler said, to be freed; NULL: nothing can be had. */
static char *log_of(nvrtcProgram program)
{
    size_t size = 0;
    if (nvrtc.nvrtcGetProgramLogSize(program, &size)) return NULL;
    char *log = calloc(size + 1, 1);
    if (!log || !nvrtc.nvrtcGetProgramLog(program, log)) return log;
    free(log);
    return NULL;
}

static attn_status refused(nvrtcProgram program, const char *name)
{
    char *log = log_of(program);
    attn_fail(ATTN_DEVICE_FAILED, "NVRTC %d.%d refuses %s: %.300s", version[0], version[1], name, log ? log : "");
    free(log);
    return ATTN_DEVICE_FAILED;
}

static attn_status take_cubin(nvrtcProgram program, const char *name, void **cubin, size_t *size)
{
    if (nvrtc.nvrtcGetCUBINSize(program, size) || *size == 0)
        return attn_fail(ATTN_DEVICE_FAILED, "NVRTC %d.%d makes no code of %s", version[0], version[1], name);
    *cubin = malloc(*size);
    if (!*cubin) return attn_fail(ATTN_NO_MEMORY, "no memory for a kernel of %zu bytes", *size);
    if (!nvrtc.nvrtcGetCUBIN(program, *cubin)) return ATTN_OK;
    free(*cubin);
    return attn_fail(ATTN_DEVICE_FAILED, "NVRTC %d.%d does not give its code of %s", version[0], version[1], name);
}

attn_status attn_cuda_compile_anew(const attn_cuda_program *p, void **cubin, size_t *size, char **log)
{
    if (!attn_cuda_nvrtc_version()) return ATTN_UNSUPPORTED;
    const char **headers = calloc(2 * (size_t)p->header_count + 1, sizeof *headers);
    if (!headers) return attn_fail(ATTN_NO_MEMORY, "no memory to compile %s", p->source.name);
    const char **header_names = headers + p->header_count;
    for (int i = 0; i < p->header_count; i++)
        headers[i] = p->headers[i].text, header_names[i] = p->headers[i].name;
    nvrtcProgram program;
    int failed =
        nvrtc.nvrtcCreateProgram(&program, p->source.text, p->source.name, p->header_count, headers, header_names);
    free(headers);
    if (failed) return attn_fail(ATTN_NO_MEMORY, "NVRTC does not begin: its status is %d", failed);
    attn_status status = nvrtc.nvrtcCompileProgram(program, p->option_count, p->options)
                             ? refused(program, p->source.name)
                             : take_cubin(program, p->source.name, cubin, size);
    if (!status && log && !(*log = log_of(program))) {
        free(*cubin);
        status = attn_fail(ATTN_DEVICE_FAILED, "NVRTC %d.%d does not say how it compiled", version[0], version[1]);
    }
    nvrtc.nvrtcDestroyProgram(&program);
    return status;
}

attn_status attn_cuda_compile(const attn_cuda_program *program, void **cubin, size_t *size)
{
    if (!attn_cuda_nvrtc_version()) return ATTN_UNSUPPORTED;
    attn_hash key = key_of(program);
    *cubin = attn_cache_read(key, size);
    if (*cubin) return ATTN_OK;
    attn_status status = attn_cuda_compile_anew(program, cubin, size, NULL);
    if (!status) attn_cache_write(key, *cubin, *size);
    return status;
}
