/* Fuzzes diagrams: what is taken can be derived for a machine or is refused with words, and its texts have the length
 * that was announced. */
#include <stdlib.h>
#include <string.h>

#include "napkin/derive.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check_text(void (*say)(attn_text_buffer *, const attn_derivation *), const attn_derivation *derivation)
{
    attn_text_buffer words = { 0 };
    say(&words, derivation);
    size_t length = words.length;
    words = (attn_text_buffer){ malloc(length + 1), length + 1, 0 };
    if (!words.text) return;
    say(&words, derivation);
    if (words.length != length || strlen(words.text) != length) abort();
    free(words.text);
}

static void emit(attn_text_buffer *words, const attn_derivation *derivation)
{
    attn_nap_emit(words, derivation, "fuzzed");
}

static void draw(attn_text_buffer *words, const attn_derivation *derivation)
{
    attn_nap_draw(words, derivation, "fuzzed");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    attn_diagram *diagram;
    attn_derivation *derivation = malloc(sizeof *derivation);
    if (!derivation) return 0;
    if (attn_diagram_parse("fuzzed", (const char *)bytes, size, &diagram)) {
        if (diagram || strncmp(attn_error(), "fuzzed:", 7)) abort();
    } else if (!attn_derive(derivation, diagram, attn_machine_named("h200"))) {
        check_text(attn_nap_report, derivation);
        check_text(emit, derivation);
        check_text(draw, derivation);
    } else if (!*attn_error())
        abort();
    free(diagram);
    free(derivation);
    return 0;
}
