/* Contract: load.h. What is loaded stays until its context goes: two lists that only grow, under one lock. Ids and
 * strings are compared, a few dozen at most, in less than a microsecond. */
#include "cuda/load.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text_buffer.h"
#include "cuda/unit.h"
#include "problem/desc.h"

typedef struct loaded_module {
    struct loaded_module *next;
    unsigned long long context;
    const char *unit;
    CUmodule module;
} loaded_module;

typedef struct loaded_function {
    struct loaded_function *next;
    unsigned long long context;
    char symbol[64];
    unsigned shared; /* the most that a launch may ask for */
    CUfunction function;
} loaded_function;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static loaded_module *modules;
static loaded_function *functions;

static const attn_cuda_arch *arch_of(const attn_cuda_device *device)
{
    int count;
    const attn_cuda_arch *const *archs = attn_cuda_archs(&count);
    for (int i = 0; i < count; i++)
        if (device->major == archs[i]->major && device->minor == archs[i]->minor) return archs[i];
    return NULL;
}

attn_status attn_cuda_context_get(attn_cuda_context *context)
{
    CUcontext current = NULL;
    CUdevice device = 0;
    context->machine = attn_cuda_machine_get();
    if (!context->machine) return ATTN_UNSUPPORTED;
    const attn_cuda_driver *driver = &context->machine->driver;
    CUresult result = driver->cuCtxGetCurrent(&current);
    if (!result && !current)
        return attn_fail(ATTN_INVALID, "no CUDA context is current on this thread: cuCtxSetCurrent sets one, and any "
                                       "call of the CUDA runtime, such as cudaFree(0), makes one");
    if (!result) result = driver->cuCtxGetId(current, &context->id);
    if (!result) result = driver->cuCtxGetDevice(&device);
    if (result) return attn_cuda_fail(result, "the current CUDA context");
    if (device < 0 || device >= context->machine->devices)
        return attn_fail(ATTN_UNSUPPORTED, "CUDA device %d is not one of the first %d", device,
                         context->machine->devices);
    context->device = &context->machine->device[device];
    context->arch = arch_of(context->device);
    return ATTN_OK;
}

attn_status attn_cuda_context_with_kernels(attn_cuda_context *context)
{
    attn_status status = attn_cuda_context_get(context);
    if (status || context->arch) return status;
    int count;
    char known[64] = "";
    const attn_cuda_arch *const *archs = attn_cuda_archs(&count);
    attn_text_buffer words = { known, sizeof known, 0 };
    for (int i = 0; i < count; i++)
        attn_say(&words, "%s%d.%d", i ? ", " : "", archs[i]->major, archs[i]->minor);
    return attn_fail(ATTN_UNSUPPORTED, "%s has compute capability %d.%d: the CUDA kernels take %s",
                     context->device->name, context->device->major, context->device->minor, known);
}

attn_status attn_cuda_check_context(const attn_cuda_driver *driver, unsigned long long made_in)
{
    CUcontext context = NULL;
    unsigned long long id = 0;
    CUresult result = driver->cuCtxGetCurrent(&context);
    if (!result && context) result = driver->cuCtxGetId(context, &id);
    if (result) return attn_cuda_fail(result, "the current CUDA context");
    if (id == made_in) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "%s: the plan runs in the one it was made in",
                     context ? "another CUDA context is current on this thread"
                             : "no CUDA context is current on this thread");
}

/* ---- images -------------------------------------------------------------------------------- */

static attn_status compile(const attn_cuda_kernel *kernel, const char *unit, void **image)
{
    attn_cuda_program program;
    size_t size;
    attn_status status = attn_cuda_unit_program(kernel, unit, &program);
    return status ? status : attn_cuda_compile(&program, image, &size);
}

static attn_status load_module(const attn_cuda_context *context, const attn_cuda_kernel *kernel, const char *unit,
                               CUmodule *loaded)
{
    const attn_cuda_image *image = attn_cuda_image_of(unit);
    void *compiled = NULL;
    attn_status status = image ? ATTN_OK : compile(kernel, unit, &compiled);
    if (status) return status;
    CUresult result =
        context->machine->driver.cuModuleLoadDataEx(loaded, image ? image->data : compiled, 0, NULL, NULL);
    free(compiled);
    return result ? attn_cuda_fail(result, unit) : ATTN_OK;
}

/* Under the lock. */
static attn_status module_of(const attn_cuda_context *context, const attn_cuda_kernel *kernel, const char *unit,
                             CUmodule *loaded)
{
    for (const loaded_module *m = modules; m; m = m->next)
        if (m->context == context->id && strcmp(m->unit, unit) == 0) return *loaded = m->module, ATTN_OK;
    loaded_module *added = malloc(sizeof *added);
    if (!added) return attn_fail(ATTN_NO_MEMORY, "no memory for a module");
    attn_status status = load_module(context, kernel, unit, loaded);
    if (status) {
        free(added);
        return status;
    }
    *added = (loaded_module){ modules, context->id, unit, *loaded };
    modules = added;
    return ATTN_OK;
}

bool attn_cuda_can_load(const attn_cuda_kernel *kernel)
{
    return attn_cuda_image_of(kernel->unit) || attn_cuda_nvrtc_version();
}

/* ---- functions ----------------------------------------------------------------------------- */

enum { NOT_FOUND = 500 };

/* Whether the symbol's name has that of the unit's file in it: then this unit is looked at first. Where NVRTC compiles,
 * the others are not compiled for it. */
static bool is_named_in(const char *unit, const char *symbol)
{
    char stem[64];
    const char *slash = strrchr(unit, '/');
    snprintf(stem, sizeof stem, "%s", slash ? slash + 1 : unit);
    char *dot = strrchr(stem, '.');
    if (dot) *dot = 0;
    return strstr(symbol, stem) != NULL;
}

static attn_status find(const attn_cuda_context *context, const attn_cuda_kernel *kernel, const char *symbol,
                        CUfunction *found)
{
    const attn_cuda_driver *driver = &context->machine->driver;
    CUmodule in;
    CUresult result = NOT_FOUND;
    if (kernel) {
        attn_status status = module_of(context, kernel, kernel->unit, &in);
        if (status) return status;
        result = driver->cuModuleGetFunction(found, in, symbol);
    }
    for (int i = 0; i < 2 * attn_cuda_text_count && !kernel && result == NOT_FOUND; i++) {
        const char *unit = attn_cuda_texts[i % attn_cuda_text_count].name;
        if (!context->arch || attn_cuda_unit_arch(unit) != context->arch) continue;
        if (is_named_in(unit, symbol) != (i < attn_cuda_text_count)) continue;
        attn_status status = module_of(context, NULL, unit, &in);
        if (status) return status;
        result = driver->cuModuleGetFunction(found, in, symbol);
    }
    return result ? attn_cuda_fail(result, symbol) : ATTN_OK;
}

static loaded_function *loaded_before(const attn_cuda_context *context, const char *symbol)
{
    for (loaded_function *f = functions; f; f = f->next)
        if (f->context == context->id && strcmp(f->symbol, symbol) == 0) return f;
    return NULL;
}

/* Launches of the function may ask for so much shared memory, and for less. Never lowered: what the driver is told last
 * holds for all launches, also of plans from before, even below the 48 KB that nobody has to ask for. */
static attn_status allow(const attn_cuda_driver *driver, loaded_function *f, unsigned shared)
{
    if (shared <= f->shared) return ATTN_OK;
    CUresult result =
        driver->cuFuncSetAttribute(f->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared);
    if (result) return attn_cuda_fail(result, f->symbol);
    f->shared = shared;
    return ATTN_OK;
}

/* Under the lock. */
static attn_status load(const attn_cuda_context *context, const attn_cuda_kernel *kernel, const char *symbol,
                        unsigned shared, CUfunction *loaded)
{
    const attn_cuda_driver *driver = &context->machine->driver;
    loaded_function *f = loaded_before(context, symbol);
    if (!f) {
        attn_status status = find(context, kernel, symbol, loaded);
        if (status) return status;
        CUresult result = driver->cuFuncLoad(*loaded);
        if (result) return attn_cuda_fail(result, symbol);
        if (!(f = malloc(sizeof *f))) return attn_fail(ATTN_NO_MEMORY, "no memory for a kernel");
        *f = (loaded_function){ .next = functions, .context = context->id, .function = *loaded };
        snprintf(f->symbol, sizeof f->symbol, "%s", symbol);
        functions = f;
    }
    *loaded = f->function;
    return allow(driver, f, shared);
}

attn_status attn_cuda_load(const attn_cuda_context *context, const attn_cuda_kernel *kernel, const char *symbol,
                           unsigned shared, CUfunction *function)
{
    pthread_mutex_lock(&lock);
    attn_status status = load(context, kernel, symbol, shared, function);
    pthread_mutex_unlock(&lock);
    return status;
}

attn_status attn_cuda_load_dtype(const attn_cuda_context *context, attn_dtype dtype, const char *stem,
                                 CUfunction *function)
{
    char symbol[64]; /* as the macros COMBINE and KERNELS_OF of sm90/around_*.cu and sm90/fallback.cu write it */
    snprintf(symbol, sizeof symbol, "attn_%s_%s_%s", context->arch->name, stem, attn_dtype_name(dtype));
    return attn_cuda_load(context, NULL, symbol, 0, function);
}
