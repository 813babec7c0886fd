/* Reading a machine's text. Contract: machine.h. */
#include "planner/machine_read.h"

#include <string.h>

#include "base/error.h"
#include "num/decimal.h"

static const char *const unit_names[] = { "tensor16", "tensor8", "fma", "exp" };
static const char *const constant_names[] = { "product", "score", "pack", "byte",  "far",
                                              "step",    "tile",  "edge", "mixed", "run" };

const char *attn_unit_name(int unit)
{
    return (unsigned)unit < ATTN_UNITS ? unit_names[unit] : NULL;
}

const char *attn_constant_name(int constant)
{
    return (unsigned)constant < ATTN_CONSTANTS ? constant_names[constant] : NULL;
}

/* ---- reading ------------------------------------------------------------------------------- */

typedef struct reader {
    const char *where, *line, *at, *end; /* end: of the line, without its comment */
    int number;
    attn_machine *machine;
    const attn_machine *(*find)(const char *name);
} reader;

typedef struct word {
    const char *text;
    size_t length; /* 0: the line ends here */
} word;

static attn_status fail_at(const reader *r, const char *at, const char *what, word w)
{
    int shown = w.length < 32 ? (int)w.length : 32;
    return attn_fail(ATTN_INVALID, "%s:%d:%d: %s%s%.*s%s", r->where, r->number, (int)(at - r->line) + 1, what,
                     w.length ? ", not '" : "", shown, w.length ? w.text : "", w.length ? "'" : "");
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static word next_word(reader *r)
{
    while (r->at < r->end && is_blank(*r->at))
        r->at++;
    word w = { r->at, 0 };
    while (r->at < r->end && !is_blank(*r->at))
        r->at++;
    w.length = (size_t)(r->at - w.text);
    return w;
}

static bool is(word w, const char *text)
{
    return strlen(text) == w.length && memcmp(w.text, text, w.length) == 0;
}

static attn_status take_number(reader *r, double *value)
{
    word w = next_word(r);
    if (!attn_read_decimal(w.text, w.length, value) || !(*value >= 0))
        return fail_at(r, w.text, "takes a number, 0 or more", w);
    return ATTN_OK;
}

static attn_status take_name(reader *r, char *name, size_t size)
{
    word w = next_word(r);
    if (w.length == 0 || w.length >= size) return fail_at(r, w.text, "takes a name of at most 47 characters", w);
    memcpy(name, w.text, w.length);
    name[w.length] = 0;
    return ATTN_OK;
}

/* The rest of the line. */
static attn_status take_match(reader *r)
{
    attn_machine *m = r->machine;
    word first = next_word(r);
    while (r->end > first.text && is_blank(r->end[-1]))
        r->end--;
    size_t length = (size_t)(r->end - first.text);
    if (length == 0 || length >= sizeof m->match[0])
        return fail_at(r, first.text, "takes a text of at most 47 characters", (word){ NULL, 0 });
    if (m->matches == ATTN_MACHINE_MATCHES) return fail_at(r, first.text, "is one match too many", (word){ NULL, 0 });
    memcpy(m->match[m->matches], first.text, length);
    m->match[m->matches++][length] = 0;
    r->at = r->end;
    return ATTN_OK;
}

static attn_status take_device(reader *r)
{
    word w = next_word(r);
    if (!is(w, "cpu") && !is(w, "cuda")) return fail_at(r, w.text, "takes cpu or cuda", w);
    r->machine->device = is(w, "cpu") ? ATTN_CPU : ATTN_CUDA;
    return ATTN_OK;
}

static attn_status take_base(reader *r)
{
    char name[ATTN_MACHINE_NAME], own[ATTN_MACHINE_NAME];
    const char *at = r->at;
    attn_status status = take_name(r, name, sizeof name);
    if (status) return status;
    const attn_machine *base = r->find(name);
    if (!base) return fail_at(r, at + 1, "takes the name of a built-in machine", (word){ name, strlen(name) });
    memcpy(own, r->machine->name, sizeof own);
    *r->machine = *base;
    memcpy(r->machine->name, own, sizeof own);
    r->machine->matches = 0;
    return ATTN_OK;
}

static attn_status take_unit(reader *r)
{
    word w = next_word(r);
    for (int i = 0; i < ATTN_UNITS; i++)
        if (is(w, unit_names[i])) return take_number(r, &r->machine->unit[i]);
    return fail_at(r, w.text, "takes tensor16, tensor8, fma or exp", w);
}

/* Pairs of a key and a number until the line ends. */
static attn_status take_pairs(reader *r, const char *const *keys, int count, double *const *values, const char *takes)
{
    for (word w = next_word(r); w.length > 0; w = next_word(r)) {
        int key = 0;
        while (key < count && !is(w, keys[key]))
            key++;
        if (key == count) return fail_at(r, w.text, takes, w);
        attn_status status = take_number(r, values[key]);
        if (status) return status;
    }
    return ATTN_OK;
}

static attn_status take_level(reader *r)
{
    static const char *const keys[] = { "bytes", "count", "one", "all" };
    attn_machine *m = r->machine;
    attn_machine_level level = { .count = 1 };
    const char *at = r->at;
    attn_status status = take_name(r, level.name, sizeof level.name);
    if (status) return status;
    double *const values[] = { &level.bytes, &level.count, &level.one, &level.all };
    if ((status = take_pairs(r, keys, 4, values, "takes bytes, count, one or all"))) return status;
    int i = 0;
    while (i < m->levels && strcmp(m->level[i].name, level.name) != 0)
        i++;
    if (i == ATTN_MODEL_LEVELS) return fail_at(r, at + 1, "is one level too many", (word){ NULL, 0 });
    m->level[i] = level;
    if (i == m->levels) m->levels++;
    return ATTN_OK;
}

static attn_status take_kernel(reader *r)
{
    attn_machine *m = r->machine;
    attn_machine_kernel kernel = { .name = "" };
    double *values[ATTN_CONSTANTS];
    const char *at = r->at;
    attn_status status = take_name(r, kernel.name, sizeof kernel.name);
    for (int i = 0; i < ATTN_CONSTANTS; i++)
        values[i] = &kernel.clocks[i];
    if (!status)
        status = take_pairs(r, constant_names, ATTN_CONSTANTS, values,
                            "takes product, score, pack, byte, far, step, tile, edge or run");
    if (status) return status;
    int i = 0;
    while (i < m->kernels && strcmp(m->kernel[i].name, kernel.name) != 0)
        i++;
    if (i == ATTN_MACHINE_KERNELS) return fail_at(r, at + 1, "is one kernel too many", (word){ NULL, 0 });
    m->kernel[i] = kernel;
    if (i == m->kernels) m->kernels++;
    return ATTN_OK;
}

static attn_status take_link(reader *r)
{
    static const char *const keys[] = { "send", "put", "beside" };
    attn_machine *m = r->machine;
    double *const values[] = { &m->link_send, &m->link_put, &m->link_beside };
    return take_pairs(r, keys, 3, values, "takes send, put or beside");
}

static attn_status take_line(reader *r)
{
    attn_machine *m = r->machine;
    word w = next_word(r);
    if (w.length == 0) return ATTN_OK;
    if (is(w, "machine") != !m->name[0])
        return fail_at(r, w.text, m->name[0] ? "'machine' comes once, and first" : "takes 'machine NAME' first", w);
    attn_status status =
        is(w, "machine")     ? take_name(r, m->name, sizeof m->name)
        : is(w, "base")      ? take_base(r)
        : is(w, "device")    ? take_device(r)
        : is(w, "match")     ? take_match(r)
        : is(w, "cores")     ? take_number(r, &m->cores)
        : is(w, "clock")     ? take_number(r, &m->hertz)
        : is(w, "sustained") ? take_number(r, &m->sustained)
        : is(w, "start")     ? take_number(r, &m->start)
        : is(w, "link")      ? take_link(r)
        : is(w, "unit")      ? take_unit(r)
        : is(w, "level")     ? take_level(r)
        : is(w, "kernel")
            ? take_kernel(r)
            : fail_at(r, w.text,
                      "takes base, device, match, cores, clock, sustained, level, unit, start, link or kernel", w);
    if (status) return status;
    w = next_word(r);
    return w.length ? fail_at(r, w.text, "takes nothing more", w) : ATTN_OK;
}

attn_status attn_machine_read(const char *where, const char *text, size_t length,
                              const attn_machine *(*find)(const char *name), attn_machine *machine)
{
    reader r = { .where = where, .line = text, .machine = machine, .find = find };
    *machine = (attn_machine){ .name = "" };
    for (const char *end = text + length; r.line < end;) {
        const char *newline = memchr(r.line, '\n', (size_t)(end - r.line));
        const char *stop = newline ? newline : end, *comment = memchr(r.line, '#', (size_t)(stop - r.line));
        r.at = r.line, r.end = comment ? comment : stop, r.number++;
        attn_status status = take_line(&r);
        if (status) return status;
        r.line = newline ? newline + 1 : end;
    }
    r.at = r.end = r.line, r.number++;
    word nothing = { NULL, 0 };
    if (!machine->name[0]) return fail_at(&r, r.line, "'machine NAME' is missing", nothing);
    if (machine->cores < 1 || machine->hertz <= 0) return fail_at(&r, r.line, "cores or clock is missing", nothing);
    return machine->levels < 2 ? fail_at(&r, r.line, "takes two levels at least", nothing) : ATTN_OK;
}
