/* A library that nvcc compiled some kernels into (src/cuda/budget.txt): what plans take of the others, with NVRTC and
 * without. The fake driver takes any machine code: here of every unit but those that are made when they are asked for.
 */
#define _GNU_SOURCE
#include "cuda_support.h"

#include "base/error.h"

static bool nvrtc_is_there;

const attn_cuda_image *__wrap_attn_cuda_image_of(const char *unit);
int __wrap_attn_cuda_nvrtc_version(void);
int __real_attn_cuda_nvrtc_version(void);

const attn_cuda_image *__wrap_attn_cuda_image_of(const char *unit)
{
    static const unsigned char code[] = "\177ELF";
    static const attn_cuda_image image = { "", code, code + sizeof code };
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (int i = 0; i < count; i++)
        if (strcmp(kernels[i].unit, unit) == 0 && kernels[i].asked) return NULL;
    return &image;
}

int __wrap_attn_cuda_nvrtc_version(void)
{
    if (nvrtc_is_there) return __real_attn_cuda_nvrtc_version();
    attn_fail(ATTN_UNSUPPORTED, "none is here");
    return 0;
}

/* The plan takes the kernel, and says so. */
static void takes(const attn_desc *desc, const char *kernel, const char *why)
{
    attn_plan *plan;
    char text[2000];
    assert_ok(attn_plan_create(&plan, desc));
    attn_plan_describe(plan, text, sizeof text);
    attn_plan_destroy(plan);
    if (!strstr(text, kernel) || !strstr(text, why)) fail_msg("no \"%s\" and \"%s\" in %s", kernel, why, text);
}

static attn_desc blocks(attn_dtype dtype, attn_direction direction)
{
    attn_desc desc = small();
    desc.dtype = dtype, desc.direction = direction, desc.flags = ATTN_CHUNK, desc.chunk = 64;
    return desc;
}

static void with_nvrtc_they_are_compiled(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    nvrtc_is_there = true;
    attn_desc desc = blocks(ATTN_F16, ATTN_FORWARD);
    takes(&desc, "sm90_f16_d64_128x64_ranges", "those that compute this; NVRTC compiled it");
    desc = blocks(ATTN_F16, ATTN_BACKWARD);
    takes(&desc, "sm90_backward_f16_d64_128_spans", "those that compute this; NVRTC compiled it");
    desc = small();
    desc.dtype = ATTN_F16;
    takes(&desc, "sm90_f16_d64_", "those that compute this\n");
    end_context(context);
}

static void without_it_plans_take_the_fallback_and_say_so(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    nvrtc_is_there = false;
    attn_desc desc = blocks(ATTN_F16, ATTN_FORWARD);
    takes(&desc, "sm90_fallback_f16", "predicted the fastest without NVRTC, which compiles sm90_f16_d64_128x64_ranges");
    desc = blocks(ATTN_F16, ATTN_BACKWARD);
    takes(&desc, "sm90_backward_fallback_f16", "without NVRTC, which compiles sm90_backward_f16_d64_128_spans when");
    desc = small();
    desc.dtype = ATTN_F16, desc.flags = ATTN_SOFTCAP, desc.softcap = 30;
    takes(&desc, "sm90_fallback_f16", "without NVRTC, which compiles sm90_f16_d64_128x64_score_mod when");
    desc.batch = 1, desc.len_q = 1, desc.len_kv = 1 << 16; /* what is made ahead of time and is fast */
    takes(&desc, "sm90_decode_f16_d64", "those that compute this\n");
    desc = blocks(ATTN_BF16, ATTN_FORWARD);
    takes(&desc, "sm90_bf16_d64_128x64_ranges", "those that compute this\n");
    desc = small(); /* two changes of scores: by the kernel for all of them */
    desc.flags = ATTN_CAUSAL | ATTN_SOFTCAP | ATTN_DROPOUT, desc.softcap = 30, desc.dropout_p = 0.1f;
    takes(&desc, "sm90_bf16_d64_128x64_score_mod",
          "without NVRTC, which compiles sm90_bf16_d64_128x128_softcap_dropout when");
    nvrtc_is_there = true;
    takes(&desc, "sm90_bf16_d64_128x128_softcap_dropout", "those that compute this; NVRTC compiled it");
    end_context(context);
}

static void without_it_they_are_refused_by_name(void **state)
{
    (void)state;
    CUcontext context = fresh_context(0);
    attn_plan *plan;
    nvrtc_is_there = false;
    attn_desc desc = blocks(ATTN_F16, ATTN_FORWARD);
    desc.kernel = "sm90_f16_d64_128x128_masks";
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED,
            "kernel = sm90_f16_d64_128x128_masks: NVRTC compiles it when it is asked for: none is here");
    desc.kernel = NULL, desc.strategy = "ctas=4"; /* which the fallback does not have */
    refused(attn_plan_create(&plan, &desc), ATTN_UNSUPPORTED, "NVRTC compiles it when it is asked for: none is here");
    end_context(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_nvrtc_they_are_compiled),
        cmocka_unit_test(without_it_plans_take_the_fallback_and_say_so),
        cmocka_unit_test(without_it_they_are_refused_by_name),
    };
    cuda_begin();
    return cuda_end(cmocka_run_group_tests(tests, NULL, NULL));
}
