/* The built-in machines, and which one serves. Contract: machine.h. */
#include "planner/machine.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/detect.h"
#include "planner/machine_read.h"

/* ---- built in ------------------------------------------------------------------------------ */

/* attn_machines.def, which the build writes, lists MACHINE(label, "path"); bases come before what is based on them. */
#define MACHINE(label, path)                                                                                   \
    __asm__(".pushsection .rodata\n" #label ":\n.incbin \"" path "\"\n" #label "_end:\n.byte 0\n.popsection"); \
    extern const char label[], label##_end[];
#include "attn_machines.def"
#undef MACHINE

static const struct {
    const char *name, *text, *end;
} texts[] = {
#define MACHINE(label, path) { #label, label, label##_end },
#include "attn_machines.def"
#undef MACHINE
};

enum { BUILTIN = sizeof texts / sizeof *texts };

static attn_machine builtin[BUILTIN];
static int ready; /* of them, while they are read */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const attn_machine *find(const char *name)
{
    for (int i = 0; i < ready; i++)
        if (strcmp(builtin[i].name, name) == 0) return &builtin[i];
    return NULL;
}

static void read_builtin(void)
{
    for (int i = 0; i < BUILTIN; i++)
        if (!attn_machine_read(texts[i].name, texts[i].text, (size_t)(texts[i].end - texts[i].text), find,
                               &builtin[ready]))
            ready++;
}

const attn_machine *attn_machine_builtin(int index)
{
    pthread_once(&once, read_builtin);
    return index < ready ? &builtin[index] : NULL;
}

const attn_machine *attn_machine_named(const char *name)
{
    pthread_once(&once, read_builtin);
    return find(name);
}

attn_status attn_machine_parse(const char *where, const char *text, size_t length, attn_machine *machine)
{
    pthread_once(&once, read_builtin);
    return attn_machine_read(where, text, length, find, machine);
}

/* ---- which one serves ---------------------------------------------------------------------- */

/* Named to the library. A plan may be reading one while another takes its place: none is ever freed. */
typedef struct named {
    attn_machine machine;
    struct named *before;
} named;

static _Atomic(named *) current[ATTN_CUDA + 1];

static bool matches(const attn_machine *m, attn_device device, const char *identity)
{
    for (int i = 0; i < m->matches && m->device == device; i++)
        if (strstr(identity, m->match[i])) return true;
    return false;
}

const attn_machine *attn_machine_for(attn_device device, const char *identity)
{
    const named *given = atomic_load(&current[device]);
    if (given) return &given->machine;
    const attn_machine *m;
    for (int i = 0; (m = attn_machine_builtin(i)); i++)
        if (matches(m, device, identity)) return m;
    return attn_machine_named(device == ATTN_CUDA ? "h200" : "cpu");
}

void attn_machine_identity(char *text, size_t size)
{
    attn_cpu_info info;
    attn_cpu_detect(&info);
    snprintf(text, size, "%s family %d model %d: %s", info.vendor, info.family, info.number, info.model);
}

/* No built-in machine, and no file. */
static void refuse_name(const char *name)
{
    char list[256] = "";
    size_t length = 0;
    const char *why = strerror(errno);
    const attn_machine *m;
    for (int i = 0; (m = attn_machine_builtin(i)) && length < sizeof list; i++)
        length += (size_t)snprintf(list + length, sizeof list - length, "%s%s", i ? ", " : "", m->name);
    attn_fail(ATTN_INVALID, "%.200s: %s; built in are %s", name, why, list);
}

/* The whole file, to be freed; NULL and a message. */
static char *read_file(const char *path, size_t *length)
{
    enum { MOST = 1 << 20 };
    errno = 0;
    FILE *file = fopen(path, "rb");
    char *text = file ? malloc(MOST + 1) : NULL;
    *length = text ? fread(text, 1, MOST + 1, file) : 0;
    bool failed = !text || ferror(file);
    if (!file && errno == ENOENT)
        refuse_name(path);
    else if (failed)
        attn_fail(ATTN_INVALID, "%s: %s", path, errno ? strerror(errno) : "cannot be read");
    else if (*length > MOST)
        attn_fail(ATTN_INVALID, "%s: is longer than a machine's text may be, 1 MiB", path), failed = true;
    if (file) fclose(file);
    if (!failed) return text;
    free(text);
    return NULL;
}

attn_status attn_machine_load(const char *name, attn_machine *machine)
{
    const attn_machine *known = attn_machine_named(name);
    if (known) {
        *machine = *known;
        return ATTN_OK;
    }
    size_t length;
    char *text = read_file(name, &length);
    attn_status status = text ? attn_machine_parse(name, text, length, machine) : ATTN_INVALID;
    free(text);
    return status;
}

attn_status attn_machine_use(const char *path)
{
    if (!path) {
        for (int device = 0; device <= ATTN_CUDA; device++)
            atomic_store(&current[device], NULL);
        return ATTN_OK;
    }
    named *given = calloc(1, sizeof *given);
    if (!given) return attn_fail(ATTN_NO_MEMORY, "no memory for a machine (%zu bytes)", sizeof *given);
    attn_status status = attn_machine_load(path, &given->machine);
    if (status) {
        free(given);
        return status;
    }
    static _Atomic(named *) all;
    given->before = atomic_load(&all);
    while (!atomic_compare_exchange_weak(&all, &given->before, given))
        continue;
    atomic_store(&current[given->machine.device], given);
    return ATTN_OK;
}

/* ---- what it says -------------------------------------------------------------------------- */

const attn_machine_level *attn_machine_level_named(const attn_machine *m, const char *name)
{
    for (int i = 0; i < m->levels; i++)
        if (strcmp(m->level[i].name, name) == 0) return &m->level[i];
    return NULL;
}

const attn_machine_kernel *attn_machine_kernel_named(const attn_machine *m, const char *name)
{
    for (int i = 0; i < m->kernels; i++)
        if (strcmp(m->kernel[i].name, name) == 0) return &m->kernel[i];
    return NULL;
}

double attn_machine_memory(const attn_machine *m)
{
    const attn_machine_level *level = m->device == ATTN_CUDA ? attn_machine_level_named(m, "l2") : &m->level[1];
    return level ? level->all : 0;
}

void attn_machine_rates(const attn_machine *m, attn_model_rates *rates)
{
    for (int i = 0; i < m->levels; i++)
        rates->bandwidth[i] = m->level[i].all;
    for (int i = 0; i < ATTN_UNITS; i++)
        rates->unit[i] = m->unit[i] * m->cores * m->hertz;
}
