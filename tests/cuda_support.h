/* What tests of the CUDA backend on the driver of fake_cuda/ share. */
#ifndef TESTS_CUDA_SUPPORT_H
#define TESTS_CUDA_SUPPORT_H

#include "support.h"

#include <dlfcn.h>
#include <unistd.h>

#include "device/device.h"
#include "cuda/sm90/host/backward.h"
#include "fake_cuda/fake.h"

static char cache[] = "/tmp/attn-cache-XXXXXX";
static fake_cuda_fail_next *fail_next;
static fake_cuda_calls *calls;
static fake_cuda_events_pend *events_pend;
static fake_cuda_context_create *context_create;
static fake_cuda_context_destroy *context_destroy;

/* Loaded by their paths, they are what "libcuda.so.1" and "libnvrtc.so.13" name from then on. */
static inline void find_fake(void)
{
    void *library = dlopen(FAKE_CUDA, RTLD_NOW), *symbol;
    assert_non_null(library);
    assert_non_null(dlopen(FAKE_NVRTC, RTLD_NOW));
#define TAKE(name, to)             \
    symbol = dlsym(library, name); \
    assert_non_null(symbol);       \
    memcpy(&to, &symbol, sizeof to)
    TAKE("fake_cuda_fail", fail_next);
    TAKE("fake_cuda_count", calls);
    TAKE("fake_cuda_pend", events_pend);
    TAKE("fake_cuda_create", context_create);
    TAKE("fake_cuda_destroy", context_destroy);
}

static inline const attn_cuda_driver *driver(void)
{
    const attn_cuda_machine *machine = attn_cuda_machine_get();
    assert_non_null(machine);
    return &machine->driver;
}

/* bf16, 2 sequences, 4 heads over 2, 200 rows and keys, dim 64. */
static inline attn_desc small(void)
{
    return (attn_desc){ .dtype = ATTN_BF16,
                        .device = ATTN_CUDA,
                        .batch = 2,
                        .heads_q = 4,
                        .heads_kv = 2,
                        .len_q = 200,
                        .len_kv = 200,
                        .dim_qk = 64 };
}

enum { ELEMENTS = 2 * 200 * 4 * 64 };

/* Any bytes do as bf16 tensors but for NaN and infinity: zeros. */
typedef struct tensors {
    _Alignas(64) uint16_t q[ELEMENTS + 8], k[ELEMENTS + 8], v[ELEMENTS + 8], o[ELEMENTS + 8], grad_o[ELEMENTS + 8],
        grad_q[ELEMENTS + 8], grad_k[ELEMENTS + 8], grad_v[ELEMENTS + 8];
    float lse[2 * 200 * 4];
} tensors;

static inline attn_args args_of(tensors *t)
{
    return (attn_args){ .q = t->q,
                        .k = t->k,
                        .v = t->v,
                        .o = t->o,
                        .lse = t->lse,
                        .grad_o = t->grad_o,
                        .grad_q = t->grad_q,
                        .grad_k = t->grad_k,
                        .grad_v = t->grad_v };
}

static inline void refused(attn_status status, attn_status wanted, const char *text)
{
    if (status != wanted || strstr(attn_error(), text) == NULL)
        fail_msg("%s \"%s\", not %s \"%s\"", attn_status_name(status), attn_error(), attn_status_name(wanted), text);
}

/* Whether the plan's description has the words, or has not. */
static inline void expect_words(const attn_desc *desc, const char *words, bool has)
{
    attn_plan *plan;
    char text[2000];
    assert_ok(attn_plan_create(&plan, desc));
    attn_plan_describe(plan, text, sizeof text);
    if (!strstr(text, words) == has) fail_msg("%s \"%s\" in %s", has ? "no" : "a", words, text);
    attn_plan_destroy(plan);
}

static inline void expect_why(const attn_desc *desc, const char *kernel, const char *why)
{
    assert_string_equal(info_of(desc).kernel, kernel);
    expect_words(desc, why, true);
}

static inline CUcontext fresh_context(CUdevice device)
{
    CUcontext context;
    assert_int_equal(context_create(&context, device), 0);
    assert_int_equal(driver()->cuCtxSetCurrent(context), 0);
    return context;
}

static inline void end_context(CUcontext context)
{
    assert_int_equal(driver()->cuCtxSetCurrent(NULL), 0);
    context_destroy(context);
}

/* Around all tests: the fake driver and compiler, and a cache of its own. */
static inline void cuda_begin(void)
{
    if (!mkdtemp(cache)) abort();
    setenv("ATTN_CACHE_DIR", cache, 1);
    unsetenv("ATTN_NVRTC");
    find_fake();
}

static inline int cuda_end(int failed)
{
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", cache);
    return system(command) != 0 ? 1 : failed;
}

#endif
