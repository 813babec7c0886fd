/* Contract: unit.h. */
#include "cuda/unit.h"

#include <string.h>

#include "base/error.h"

const attn_cuda_arch *attn_cuda_unit_arch(const char *text)
{
    const char *dot = strrchr(text, '.');
    int count, arch_count;
    const attn_cuda_arch *const *archs = attn_cuda_archs(&arch_count);
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (int i = 0; i < count; i++)
        if (attn_cuda_is_variant(&kernels[i]) && strcmp(text, kernels[i].source) == 0) return NULL;
    for (int i = 0; i < arch_count && dot && strcmp(dot, ".cu") == 0; i++)
        if (strncmp(text, archs[i]->folder, strlen(archs[i]->folder)) == 0) return archs[i];
    return NULL;
}

const attn_cuda_image *attn_cuda_image_of(const char *unit)
{
    for (int i = 0; i < attn_cuda_image_count; i++)
        if (strcmp(attn_cuda_images[i].unit, unit) == 0) return &attn_cuda_images[i];
    return NULL;
}

static const char *text_of(const char *name)
{
    for (int i = 0; i < attn_cuda_text_count; i++)
        if (strcmp(attn_cuda_texts[i].name, name) == 0) return attn_cuda_texts[i].text;
    return NULL;
}

attn_status attn_cuda_unit_program(const attn_cuda_kernel *kernel, const char *text, attn_cuda_program *program)
{
    static const char *const always[] = {
        "--std=c++17",
#ifdef ATTN_CUDA_DELAYS
        "-DATTN_DELAYS",
#endif
    };
    const attn_cuda_arch *arch = kernel ? kernel->arch : attn_cuda_unit_arch(text);
    *program = (attn_cuda_program){ .source.name = kernel ? kernel->source : text,
                                    .headers = attn_cuda_texts,
                                    .header_count = attn_cuda_text_count };
    program->source.text = text_of(program->source.name);
    if (!program->source.text || !arch)
        return attn_fail(ATTN_UNSUPPORTED, "%s is not built into this library", program->source.name);
    program->options[program->option_count++] = arch->compile;
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        program->options[program->option_count++] = always[i];
    for (int i = 0; kernel && i < ATTN_CUDA_OPTIONS && kernel->options[i]; i++)
        program->options[program->option_count++] = kernel->options[i];
    return ATTN_OK;
}
