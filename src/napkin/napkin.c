/* Contract: attn_napkin.h. */
#include "napkin/napkin.h"

#include <stdlib.h>

#include "base/error.h"

static attn_status find_machine(const char *name, attn_machine *machine)
{
    char identity[256];
    if (name) return attn_machine_load(name, machine);
    attn_machine_identity(identity, sizeof identity);
    *machine = *attn_machine_for(ATTN_CPU, identity);
    return ATTN_OK;
}

attn_status attn_napkin_derive(attn_napkin **napkin, const char *where, const char *text, size_t size,
                               const char *machine)
{
    attn_napkin *n = calloc(1, sizeof *n);
    *napkin = NULL;
    if (!n) return attn_fail(ATTN_NO_MEMORY, "no memory for a derivation");
    attn_status status = attn_diagram_parse(where, text, size, &n->diagram);
    if (!status) status = find_machine(machine, &n->machine);
    if (!status) status = attn_derive(&n->derivation, n->diagram, &n->machine);
    if (!status)
        *napkin = n;
    else
        attn_napkin_destroy(n);
    return status;
}

attn_status attn_napkin_create(attn_napkin **napkin, const char *text, size_t size, const char *machine)
{
    if (!napkin) return attn_fail(ATTN_INVALID, "napkin is NULL");
    *napkin = NULL;
    if (!text) return attn_fail(ATTN_INVALID, "text is NULL");
    return attn_napkin_derive(napkin, "diagram", text, size, machine);
}

void attn_napkin_destroy(attn_napkin *napkin)
{
    if (napkin) free(napkin->diagram);
    free(napkin);
}

size_t attn_napkin_describe(const attn_napkin *napkin, attn_napkin_part part, const char *name, char *text, size_t size)
{
    attn_text_buffer words;
    if (!attn_text_buffer_begin(&words, text, size, napkin, "napkin", "attn_napkin_create")) return 0;
    const attn_derivation *v = &napkin->derivation;
    if (!name) name = "napkin";
    if (part == ATTN_NAPKIN_STEPS) attn_nap_report(&words, v);
    if (part == ATTN_NAPKIN_PSEUDOCODE) attn_nap_pseudocode(&words, v);
    if (part == ATTN_NAPKIN_C) attn_nap_emit(&words, v, name);
    if (part == ATTN_NAPKIN_SVG) attn_nap_draw(&words, v, name);
    return words.length;
}

double attn_napkin_seconds(const attn_napkin *napkin)
{
    if (napkin) return napkin->derivation.seconds;
    attn_fail(ATTN_INVALID, "napkin = NULL: it takes a napkin from attn_napkin_create");
    return 0;
}
