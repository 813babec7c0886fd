/* `attn napkin`: from a diagram to an algorithm, its costs, a drawing, C. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "command.h"
#include "file.h"
#include "json.h"
#include "napkin/napkin.h"
#include "options.h"

typedef struct values {
    const char *file, *machine, *draw;
    attn_napkin_part emit; /* 0: all of it */
    bool json;
} values;

static attn_status parse_emission(const char *text, void *value)
{
    attn_napkin_part *part = value;
    if (strcmp(text, "c") && strcmp(text, "pseudocode")) return attn_fail(ATTN_INVALID, "takes c or pseudocode");
    *part = *text == 'c' ? ATTN_NAPKIN_C : ATTN_NAPKIN_PSEUDOCODE;
    return ATTN_OK;
}

#define PREFIX "napkin_"
#define AT(member) offsetof(values, member)

static const attn_option options[] = {
    { "file", ATTN_OPERAND, "FILE", attn_parse_text, AT(file), "the diagram" },
    { "machine", 'm', "NAME", attn_parse_text, AT(machine), "a built-in machine or a file; default: this one" },
    { "draw", 0, "FILE", attn_parse_text, AT(draw), "write a drawing of the three stages there, SVG" },
    { "emit", 0, "WHAT", parse_emission, AT(emit), "print c or pseudocode alone" },
    { "json", 0, NULL, attn_parse_switch, AT(json), "print JSON" },
};

static const attn_command command = {
    "napkin",
    "derive an algorithm from a diagram: streams, kernels, tiles, bytes, time",
    "FILE [options]",
    options,
    sizeof options / sizeof *options,
    "FILE says what is to be computed, and not how: docs/NAPKIN.md has the language, examples/napkin diagrams.\n"
    "\n"
    "  attn napkin examples/napkin/attention.nap --machine h200\n"
    "  attn napkin examples/napkin/attention_backward.nap --draw backward.svg\n"
    "  attn napkin examples/napkin/layer_norm.nap --emit c > layer_norm.c\n",
};

/* ---- texts -------------------------------------------------------------------------------------- */

/* The file's name, without folders and ending, as far as it is a name in C. */
static void name_of(const char *path, char *name, size_t size)
{
    const char *slash = strrchr(path, '/'), *start = slash ? slash + 1 : path;
    size_t length = strcspn(start, "."), at = (size_t)snprintf(name, size, PREFIX);
    for (size_t i = 0; i < length && at + 1 < size; i++) {
        bool good = strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", start[i]) != NULL;
        name[at++] = good ? start[i] : '_';
    }
    name[at] = 0;
}

/* The caller frees it. */
static attn_status make_text(const attn_napkin *napkin, attn_napkin_part part, const char *name,
                             attn_text_buffer *words)
{
    size_t length = attn_napkin_describe(napkin, part, name, NULL, 0);
    *words = (attn_text_buffer){ malloc(length + 1), length + 1, length };
    if (!words->text) return attn_fail(ATTN_NO_MEMORY, "no memory for a text");
    attn_napkin_describe(napkin, part, name, words->text, words->size);
    return ATTN_OK;
}

static attn_status print_text(const attn_napkin *napkin, attn_napkin_part part, const char *name)
{
    attn_text_buffer words;
    attn_status status = make_text(napkin, part, name, &words);
    if (!status) fwrite(words.text, 1, words.length, stdout);
    free(words.text);
    return status;
}

static attn_status draw(const attn_napkin *napkin, const char *path, const char *title)
{
    attn_text_buffer words;
    attn_status status = make_text(napkin, ATTN_NAPKIN_SVG, title, &words);
    if (!status) status = attn_output_text(path, words.text, words.length);
    free(words.text);
    return status ? attn_fail_in(status, path) : ATTN_OK;
}

/* ---- JSON --------------------------------------------------------------------------------------- */

static void print_levels(attn_json *json, const attn_derivation *v, const attn_nap_kernel *k)
{
    attn_json_open(json, "levels", '[');
    for (int level = 1; level < v->levels; level++) {
        attn_model m = attn_nap_model_at(k, level);
        attn_json_open(json, NULL, '{');
        attn_json_string(json, "name", v->machine->level[v->level[level]].name);
        attn_json_number(json, "bytes_moved", attn_model_transfer(&m, &k->partition, level));
        attn_json_number(json, "bytes_held", attn_model_live(&k->model, &k->partition, level));
        attn_json_open(json, "tiles", '{');
        for (int a = 0; a < k->model.axes; a++)
            attn_json_integer(json, k->model.axis[a].name, k->partition.tile[level][a]);
        attn_json_close(json, '}');
        attn_json_close(json, '}');
    }
    attn_json_close(json, ']');
}

static void print_kernel(attn_json *json, const attn_derivation *v, const attn_nap_kernel *k)
{
    const attn_diagram *d = v->diagram;
    attn_json_open(json, NULL, '{');
    attn_json_open(json, "stores", '[');
    for (int i = 0; i < k->targets; i++) {
        int tile = attn_nap_tile_of(k, k->target[i]), output = attn_nap_output_of(v, k->target[i]);
        attn_json_string(json, NULL, output >= 0 ? d->definition[output].array.name : k->tile[tile].name);
    }
    attn_json_close(json, ']');
    attn_json_open(json, "groups", '[');
    for (int a = 0; a < d->axes; a++)
        if (k->groups >> a & 1) attn_json_string(json, NULL, d->axis[a].name);
    attn_json_close(json, ']');
    if (k->stream >= 0) attn_json_string(json, "stream", d->axis[k->stream].name);
    if (k->inner >= 0) attn_json_string(json, "inner", d->axis[k->inner].name);
    attn_json_integer(json, "passes", k->passes);
    attn_json_number(json, "deviation", k->deviation);
    print_levels(json, v, k);
    attn_json_number(json, "seconds", k->time.seconds);
    attn_json_close(json, '}');
}

static void print_json(const attn_derivation *v)
{
    attn_json json = { .out = stdout };
    attn_json_open(&json, NULL, '{');
    attn_json_string(&json, "machine", v->machine->name);
    attn_json_number(&json, "seconds", v->seconds);
    attn_json_number(&json, "bytes_unfused", v->unfused_bytes);
    attn_json_open(&json, "kernels", '[');
    for (int i = 0; i < v->kernels; i++)
        print_kernel(&json, v, &v->kernel[i]);
    attn_json_close(&json, ']');
    attn_json_open(&json, "breaks", '[');
    for (int i = 0; i < v->breaks; i++) {
        attn_json_open(&json, NULL, '{');
        attn_json_string(&json, "axis", v->diagram->axis[v->broken[i].axis].name);
        attn_json_string(&json, "why", v->broken[i].why);
        attn_json_close(&json, '}');
    }
    attn_json_close(&json, ']');
    if (v->storing.seconds > 0 && v->again.seconds > 0) {
        attn_json_open(&json, "recomputation", '{');
        attn_json_bool(&json, "stored", attn_nap_way_of(v).stored > 0);
        attn_json_number(&json, "stored_bytes", v->storing.stored);
        attn_json_number(&json, "seconds_stored", v->storing.seconds);
        attn_json_number(&json, "seconds_computed_again", v->again.seconds);
        attn_json_number(&json, "pays_below_bytes_per_second", attn_nap_again_pays(v));
        attn_json_close(&json, '}');
    }
    attn_json_close(&json, '}');
}

/* ---- the command -------------------------------------------------------------------------------- */

static attn_status derive(const values *asked, attn_napkin **napkin)
{
    attn_file file = { 0 };
    attn_status status = attn_file_open(&file, asked->file, NULL);
    if (status) return attn_fail_in(status, asked->file);
    status = attn_napkin_derive(napkin, asked->file, (const char *)file.bytes, file.size, asked->machine);
    attn_file_close(&file);
    return status;
}

static attn_status answer(const values *asked, const attn_napkin *napkin)
{
    char name[64];
    name_of(asked->file, name, sizeof name);
    if (asked->draw && draw(napkin, asked->draw, name + strlen(PREFIX))) return ATTN_INVALID;
    if (!asked->json) return print_text(napkin, asked->emit ? asked->emit : ATTN_NAPKIN_STEPS, name);
    print_json(&napkin->derivation);
    return ATTN_OK;
}

int attn_cmd_napkin(int argc, char **argv)
{
    values v = { 0 };
    attn_napkin *napkin = NULL;
    int code = attn_options_start(&command, argc, argv, &v);
    if (code != ATTN_OPTIONS_READY) return code;
    if (!v.file) attn_fail(ATTN_INVALID, "FILE is missing");
    if (v.json && v.emit) attn_fail(ATTN_INVALID, "--json and --emit exclude each other");
    if (!v.file || (v.json && v.emit)) return attn_report_usage("napkin");
    attn_status status = derive(&v, &napkin);
    if (!status) status = answer(&v, napkin);
    attn_napkin_destroy(napkin);
    return status ? attn_report_failure("napkin") : ATTN_EXIT_OK;
}
