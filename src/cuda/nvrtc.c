/* Contract: nvrtc.h. The cache's key is the compiler's version, the options and every text. */
#include "cuda/nvrtc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/error.h"
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
static int version[2];
static bool found;
static char why_not[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *open_library(void)
{
    static const char *const names[] = { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                         "/usr/local/cuda/lib64/libnvrtc.so" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
    }
    return NULL;
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
    void *library = open_library();
    if (!library) {
        snprintf(why_not, sizeof why_not, "libnvrtc.so.13 or .12 cannot be loaded");
        return;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(library, functions[i].symbol);
        if (!address) {
            snprintf(why_not, sizeof why_not, "libnvrtc has no %s", functions[i].symbol);
            return;
        }
        memcpy(functions[i].member, &address, sizeof address);
    }
    found = nvrtc.nvrtcVersion(&version[0], &version[1]) == 0;
    if (!found) snprintf(why_not, sizeof why_not, "libnvrtc does not say its version");
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
    attn_hash hash = attn_hash_more(attn_hash_start(), version, sizeof version);
    for (int i = 0; i < p->option_count; i++)
        hash = hash_text(hash, p->options[i]);
    hash = hash_text(hash_text(hash, p->source.name), p->source.text);
    for (int i = 0; i < p->header_count; i++)
        hash = hash_text(hash_text(hash, p->headers[i].name), p->headers[i].text);
    return hash;
}

static attn_status refused(nvrtcProgram program, const char *name)
{
    size_t size = 0;
    char *log = NULL;
    if (!nvrtc.nvrtcGetProgramLogSize(program, &size) && size > 0) log = calloc(size + 1, 1);
    if (log) nvrtc.nvrtcGetProgramLog(program, log);
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

static attn_status compile(const attn_cuda_program *p, void **cubin, size_t *size)
{
    const char **headers = calloc(2 * (size_t)p->header_count + 1, sizeof *headers);
    if (!headers) return attn_fail(ATTN_NO_MEMORY, "no memory to compile %s", p->source.name);
    const char **names = headers + p->header_count;
    for (int i = 0; i < p->header_count; i++)
        headers[i] = p->headers[i].text, names[i] = p->headers[i].name;
    nvrtcProgram program;
    int failed = nvrtc.nvrtcCreateProgram(&program, p->source.text, p->source.name, p->header_count, headers, names);
    free(headers);
    if (failed) return attn_fail(ATTN_NO_MEMORY, "NVRTC does not begin: its status is %d", failed);
    attn_status status = nvrtc.nvrtcCompileProgram(program, p->option_count, p->options)
                             ? refused(program, p->source.name)
                             : take_cubin(program, p->source.name, cubin, size);
    nvrtc.nvrtcDestroyProgram(&program);
    return status;
}

attn_status attn_cuda_compile(const attn_cuda_program *program, void **cubin, size_t *size)
{
    if (!attn_cuda_nvrtc_version()) return ATTN_UNSUPPORTED;
    attn_hash key = key_of(program);
    *cubin = attn_cache_read(key, size);
    if (*cubin) return ATTN_OK;
    attn_status status = compile(program, cubin, size);
    if (!status) attn_cache_write(key, *cubin, *size);
    return status;
}
