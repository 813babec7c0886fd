/* A compiler to go with the driver of this folder, built as libnvrtc.so.13: its cubins say what they were made of. It
 * takes a source only if all that it includes was handed over, and only where its second library (builtins.c) was
 * loaded before it asks, as NVRTC 13 from a Python wheel. A source that holds FAKE_NVRTC_REFUSES is refused. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct program {
    char *source;
    int headers;
    char (*names)[64]; /* of the headers */
    const char *log;
    char *cubin;
} program;

#define API __attribute__((visibility("default")))

API int nvrtcVersion(int *major, int *minor);
API int nvrtcCreateProgram(program **, const char *, const char *, int, const char *const *, const char *const *);
API int nvrtcCompileProgram(program *, int, const char *const *);
API int nvrtcGetProgramLogSize(program *, size_t *);
API int nvrtcGetProgramLog(program *, char *);
API int nvrtcGetCUBINSize(program *, size_t *);
API int nvrtcGetCUBIN(program *, char *);
API int nvrtcDestroyProgram(program **);

int nvrtcVersion(int *major, int *minor)
{
    *major = 13, *minor = 0;
    return 0;
}

int nvrtcCreateProgram(program **made, const char *source, const char *name, int headers, const char *const *text,
                       const char *const *names)
{
    program *p = calloc(1, sizeof *p);
    (void)name, (void)text;
    p->source = strdup(source);
    p->names = calloc((size_t)headers, sizeof *p->names);
    for (; p->headers < headers; p->headers++)
        snprintf(p->names[p->headers], sizeof p->names[0], "%s", names[p->headers]);
    *made = p;
    return 0;
}

static int has(const program *p, const char *name)
{
    for (int i = 0; i < p->headers; i++)
        if (strcmp(p->names[i], name) == 0) return 1;
    return 0;
}

int nvrtcCompileProgram(program *p, int options, const char *const *option)
{
    const char *refuses = getenv("FAKE_NVRTC_REFUSES");
    char name[64];
    p->log = "failed to open libnvrtc-builtins.so.13.0";
    if (!dlopen("libnvrtc-builtins.so.13.0", RTLD_NOW | RTLD_NOLOAD)) return 7;
    p->log = "the fake compiler refuses";
    if (refuses && strstr(p->source, refuses)) return 6;
    for (const char *at = p->source; (at = strstr(at, "#include \"")); at++)
        if (sscanf(at, "#include \"%63[^\"]", name) != 1 || !has(p, name)) return 6;
    p->log = "";
    size_t size = 16;
    for (int i = 0; i < options; i++)
        size += strlen(option[i]) + 1;
    p->cubin = calloc(size, 1);
    strcpy(p->cubin, "fake cubin");
    for (int i = 0; i < options; i++)
        strcat(strcat(p->cubin, " "), option[i]);
    return 0;
}

int nvrtcGetProgramLogSize(program *p, size_t *size)
{
    *size = strlen(p->log) + 1;
    return 0;
}

int nvrtcGetProgramLog(program *p, char *log)
{
    strcpy(log, p->log);
    return 0;
}

int nvrtcGetCUBINSize(program *p, size_t *size)
{
    *size = strlen(p->cubin) + 1;
    return 0;
}

int nvrtcGetCUBIN(program *p, char *cubin)
{
    strcpy(cubin, p->cubin);
    return 0;
}

int nvrtcDestroyProgram(program **made)
{
    free((*made)->source);
    free((*made)->cubin);
    free((*made)->names);
    free(*made);
    *made = NULL;
    return 0;
}
