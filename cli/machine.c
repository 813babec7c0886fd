/* `attn machine`: the machine that plans use; with --measure, this one measured. */
#define _POSIX_C_SOURCE 200809L
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "attn_commit.h"
#include "command.h"
#include "device/device.h"
#include "base/detect.h"
#include "cuda/driver.h"
#include "file.h"
#include "json.h"
#include "machine.h"
#include "options.h"

typedef struct values {
    bool measure, json;
    attn_device device;
    const char *machine, *output, *only;
} values;

static const attn_option options[] = {
    { "device", 0, "NAME", attn_parse_device, offsetof(values, device), "cpu, or cuda: the first GPU; default cpu" },
    { "machine", 'm', "NAME", attn_parse_text, offsetof(values, machine),
      "a built-in machine or a file; default: the one that plans use" },
    { "measure", 0, NULL, attn_parse_switch, offsetof(values, measure), "measure this machine: a minute or so" },
    { "only", 0, "TEXT", attn_parse_text, offsetof(values, only),
      "with --measure: of the kernels those whose name holds it" },
    { "output", 'o', "FILE", attn_parse_text, offsetof(values, output), "write it there; default: print it" },
    { "json", 0, NULL, attn_parse_switch, offsetof(values, json), "print JSON" },
};

static const attn_command command = {
    "machine",
    "what is known of a machine, or measure this one",
    "[--measure] [options]",
    options,
    sizeof options / sizeof *options,
    "Levels of memory (bytes; bytes per second into one by itself, into all), units (operations per clock and core), "
    "and\n"
    "clocks of every kernel: what plans, predictions and attn napkin use. --machine and attn_machine_use take a file\n"
    "that is written so. Measure on a machine that does nothing else.\n"
    "\n"
    "  attn machine\n"
    "  attn machine --measure -o here.machine\n"
    "  attn machine --measure --device cuda -o gpu.machine\n"
    "  attn explain --len 4096 --dim 64 --machine here.machine\n",
};

void attn_machine_print(FILE *f, const attn_machine *m)
{
    fprintf(f, "machine %s\ndevice %s\n", m->name, m->device == ATTN_CUDA ? "cuda" : "cpu");
    for (int i = 0; i < m->matches; i++)
        fprintf(f, "match %s\n", m->match[i]);
    fprintf(f, "cores %.9g\nclock %.6g\nstart %.3g\n", m->cores, m->hertz, m->start);
    if (m->sustained > 0) fprintf(f, "sustained %.6g\n", m->sustained);
    if (m->link_send > 0 || m->link_put > 0)
        fprintf(f, "link send %.4g put %.4g beside %.4g\n", m->link_send, m->link_put, m->link_beside);
    for (int i = 0; i < m->levels; i++) {
        const attn_machine_level *l = &m->level[i];
        fprintf(f, "level %s bytes %.12g count %.9g one %.4g all %.4g\n", l->name, l->bytes, l->count, l->one, l->all);
    }
    for (int i = 0; i < ATTN_UNITS; i++)
        if (m->unit[i] > 0) fprintf(f, "unit %s %.4g\n", attn_unit_name(i), m->unit[i]);
    for (int i = 0; i < m->kernels; i++) {
        fprintf(f, "kernel %s", m->kernel[i].name);
        for (int c = 0; c < ATTN_CONSTANTS; c++)
            if (m->kernel[i].clocks[c] > 0) fprintf(f, " %s %.4g", attn_constant_name(c), m->kernel[i].clocks[c]);
        fprintf(f, "\n");
    }
}

static void print_json(const attn_machine *m)
{
    attn_json json = { .out = stdout };
    attn_json_open(&json, NULL, '{');
    attn_json_string(&json, "machine", m->name);
    attn_json_string(&json, "device", m->device == ATTN_CUDA ? "cuda" : "cpu");
    attn_json_number(&json, "cores", m->cores);
    attn_json_number(&json, "clock", m->hertz);
    attn_json_number(&json, "start", m->start);
    attn_json_number(&json, "sustained", m->sustained);
    attn_json_number(&json, "link_send", m->link_send);
    attn_json_number(&json, "link_put", m->link_put);
    attn_json_number(&json, "link_beside", m->link_beside);
    attn_json_open(&json, "levels", '[');
    for (int i = 0; i < m->levels; i++) {
        attn_json_open(&json, NULL, '{');
        attn_json_string(&json, "name", m->level[i].name);
        attn_json_number(&json, "bytes", m->level[i].bytes);
        attn_json_number(&json, "count", m->level[i].count);
        attn_json_number(&json, "one", m->level[i].one);
        attn_json_number(&json, "all", m->level[i].all);
        attn_json_close(&json, '}');
    }
    attn_json_close(&json, ']');
    attn_json_open(&json, "units", '{');
    for (int i = 0; i < ATTN_UNITS; i++)
        attn_json_number(&json, attn_unit_name(i), m->unit[i]);
    attn_json_close(&json, '}');
    attn_json_open(&json, "kernels", '{');
    for (int i = 0; i < m->kernels; i++) {
        attn_json_open(&json, m->kernel[i].name, '{');
        for (int c = 0; c < ATTN_CONSTANTS; c++)
            attn_json_number(&json, attn_constant_name(c), m->kernel[i].clocks[c]);
        attn_json_close(&json, '}');
    }
    attn_json_close(&json, '}');
    attn_json_close(&json, '}');
}

static attn_status fail_at(const char *path, attn_status status)
{
    char where[300];
    snprintf(where, sizeof where, "-o %.200s", path);
    return status ? attn_fail_in(status, where) : ATTN_OK;
}

/* Whether a file can be written there: asked before a minute of measuring. */
static attn_status try_file(const char *path)
{
    attn_output output;
    attn_status status = attn_output_create(&output, path, 1);
    if (!status) attn_output_discard(&output);
    return fail_at(path, status);
}

static attn_status write_file(const char *path, const attn_machine *m)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (!file) return attn_fail(ATTN_NO_MEMORY, "no memory for a text");
    fprintf(file, "# Measured by attn machine --measure, commit %s.\n", ATTN_COMMIT);
    attn_machine_print(file, m);
    attn_status status = fclose(file) ? attn_fail(ATTN_NO_MEMORY, "no memory for a text") : ATTN_OK;
    if (!status) status = attn_output_text(path, text, size);
    free(text);
    return fail_at(path, status);
}

static attn_status measure(const values *v, attn_machine *m)
{
    m->matches = 0; /* it is this one alone */
    snprintf(m->name, sizeof m->name, "measured");
    attn_status status = m->device == ATTN_CUDA ? attn_measure_gpu(m) : attn_measure_cpu(m);
    return status ? status : attn_measure_kernels(m, v->only, isatty(STDERR_FILENO) || v->output);
}

static attn_status choose(const values *v, attn_machine *m)
{
    char identity[128];
    if (v->measure && v->machine) return attn_fail(ATTN_INVALID, "--measure is of this machine: it takes no --machine");
    if (!v->measure && v->only) return attn_fail(ATTN_INVALID, "--only needs --measure");
    if (v->machine) return attn_machine_load(v->machine, m);
    attn_machine_identity(identity, sizeof identity);
    if (v->device == ATTN_CUDA) snprintf(identity, sizeof identity, "%s", attn_cuda_machine_get()->device[0].name);
    *m = *attn_machine_for(v->device, identity);
    return ATTN_OK;
}

int attn_cmd_machine(int argc, char **argv)
{
    static attn_machine m;
    values v = { .measure = false };
    int code = attn_options_start(&command, argc, argv, &v);
    if (code != ATTN_OPTIONS_READY) return code;
    if (v.device == ATTN_CUDA && !v.machine && device_open()) return attn_report_failure("machine");
    if (choose(&v, &m)) return attn_report_usage("machine");
    if (v.output && try_file(v.output)) return attn_report_failure("machine");
    if (v.measure && measure(&v, &m)) return attn_report_failure("machine");
    if (v.output && write_file(v.output, &m)) return attn_report_failure("machine");
    if (v.json)
        print_json(&m);
    else if (!v.output)
        attn_machine_print(stdout, &m);
    return ATTN_EXIT_OK;
}
