/* Texts and machine code, taken into the object by the assembler. embedded.def, which the build writes, lists them:
 * TEXT(label, "name", "path") and IMAGE(label, "unit", "path"). */
#include "cuda/kernel.h"

/* From `label` to label_end; then a zero byte, which ends a text. */
#define TAKE(label, name, path)                                                                               \
    __asm__(".pushsection .rodata\n.balign 64\n" #label ":\n.incbin \"" path "\"\n" #label "_end:\n.byte 0\n" \
            ".popsection");                                                                                   \
    extern const unsigned char label[], label##_end[];
#define TEXT TAKE
#define IMAGE TAKE
#include "embedded.def"
#undef TEXT
#undef IMAGE

const attn_cuda_text attn_cuda_texts[] = {
#define TEXT(label, name, path) { name, (const char *)label },
#define IMAGE(label, name, path)
#include "embedded.def"
#undef TEXT
#undef IMAGE
    { NULL, NULL },
};

const attn_cuda_image attn_cuda_images[] = {
#define TEXT(label, name, path)
#define IMAGE(label, name, path) { name, label, label##_end },
#include "embedded.def"
#undef TEXT
#undef IMAGE
    { NULL, NULL, NULL },
};

const int attn_cuda_text_count = (int)(sizeof attn_cuda_texts / sizeof *attn_cuda_texts) - 1;
const int attn_cuda_image_count = (int)(sizeof attn_cuda_images / sizeof *attn_cuda_images) - 1;
