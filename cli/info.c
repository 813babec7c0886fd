/* `attn info`: this machine and this build. */
#include <stddef.h>
#include <stdio.h>

#include "command.h"
#include "base/detect.h"
#include "cpu/kernel.h"
#include "cuda/driver.h"
#include "cuda/kernel.h"
#include "json.h"
#include "options.h"

typedef struct values {
    bool json;
} values;

static const attn_option options[] = {
    { "json", 0, NULL, attn_parse_switch, offsetof(values, json), "print JSON" },
};

static const attn_command command = {
    "info",
    "this machine and what is built in",
    "[--json]",
    options,
    1,
    "An instruction set is available where both this build and this machine have it. The best is chosen, unless --isa\n"
    "or the environment variable ATTN_ISA names another.\n",
};

typedef struct machine {
    attn_cpu_info cpu;
    attn_plan *plan; /* of a small problem: the library's own choice; NULL: why not is in `error` */
    char error[512];
    attn_plan_info info;
} machine;

static bool built(attn_isa isa)
{
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++) {
        if (kernels[i].isa == isa && kernels[i].ops) return true;
    }
    return false;
}

static void print_cuda_json(attn_json *json)
{
    const attn_cuda_machine *cuda = attn_cuda_machine_get();
    attn_json_open(json, "cuda", '{');
    if (!cuda) attn_json_string(json, "error", attn_error());
    if (cuda) attn_json_integer(json, "driver_cuda", cuda->version);
    attn_json_integer(json, "nvrtc", attn_cuda_nvrtc_version());
    attn_json_open(json, "devices", '[');
    for (int i = 0; cuda && i < cuda->devices; i++) {
        const attn_cuda_device *d = &cuda->device[i];
        attn_json_open(json, NULL, '{');
        attn_json_string(json, "name", d->name);
        attn_json_integer(json, "compute_capability", 10 * d->major + d->minor);
        attn_json_integer(json, "multiprocessors", d->multiprocessors);
        attn_json_integer(json, "memory_bytes", (int64_t)d->memory_bytes);
        attn_json_integer(json, "l2_bytes", d->l2_bytes);
        attn_json_close(json, '}');
    }
    attn_json_close(json, ']');
    attn_json_close(json, '}');
}

static void print_cuda_text(void)
{
    const attn_cuda_machine *cuda = attn_cuda_machine_get();
    int kernels;
    attn_cuda_kernels(&kernels);
    if (!cuda) printf("GPU         %s\n", attn_error());
    for (int i = 0; cuda && i < cuda->devices; i++) {
        const attn_cuda_device *d = &cuda->device[i];
        printf("GPU         %s, compute capability %d.%d, %d SMs, %lld MiB, L2 %d MiB, CUDA %d.%d\n", d->name, d->major,
               d->minor, d->multiprocessors, (long long)(d->memory_bytes >> 20), d->l2_bytes >> 20,
               cuda->version / 1000, cuda->version % 1000 / 10);
    }
    int nvrtc = attn_cuda_nvrtc_version();
    printf("GPU kernels %d, of which %d units compiled in; ", kernels, attn_cuda_image_count);
    if (nvrtc)
        printf("NVRTC %d.%d compiles the others\n", nvrtc / 1000, nvrtc % 1000 / 10);
    else
        printf("no NVRTC: %s\n", attn_error());
}

static int print_json(const machine *m)
{
    attn_json json = { .out = stdout };
    attn_json_open(&json, NULL, '{');
    attn_json_string(&json, "version", attn_version());
    attn_json_open(&json, "cpu", '{');
    attn_json_string(&json, "model", m->cpu.model);
    attn_json_integer(&json, "processors", m->cpu.processors);
    attn_json_integer(&json, "l1_bytes", m->cpu.l1);
    attn_json_integer(&json, "l2_bytes", m->cpu.l2);
    attn_json_integer(&json, "l3_bytes", m->cpu.l3);
    attn_json_close(&json, '}');
    print_cuda_json(&json);
    attn_json_open(&json, "isas", '[');
    for (int i = ATTN_ISA_PORTABLE; attn_isa_name((attn_isa)i); i++) {
        if (attn_isa_available((attn_isa)i)) attn_json_string(&json, NULL, attn_isa_name((attn_isa)i));
    }
    attn_json_close(&json, ']');
    if (m->plan)
        attn_json_string(&json, "chosen", m->info.isa);
    else
        attn_json_string(&json, "error", m->error);
    attn_json_open(&json, "built_in", '{');
    attn_json_open(&json, "isas", '[');
    for (int i = ATTN_ISA_PORTABLE; attn_isa_name((attn_isa)i); i++) {
        if (built((attn_isa)i)) attn_json_string(&json, NULL, attn_isa_name((attn_isa)i));
    }
    attn_json_close(&json, ']');
    attn_json_open(&json, "kernels", '[');
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    for (int i = 0; i < count; i++) {
        if (kernels[i].ops) attn_json_string(&json, NULL, kernels[i].name);
    }
    attn_json_close(&json, ']');
    attn_json_close(&json, '}');
    attn_json_close(&json, '}');
    return ATTN_EXIT_OK;
}

static int print_text(const machine *m)
{
    int count;
    const attn_cpu_kernel *kernels = attn_cpu_kernels(&count);
    printf("attn        %s\n", attn_version());
    printf("CPU         %s\n", m->cpu.model);
    printf("processors  %d\n", m->cpu.processors);
    printf("caches      L1 %lld KiB, L2 %lld KiB, L3 %lld KiB (0: unknown)\n", (long long)m->cpu.l1 / 1024,
           (long long)m->cpu.l2 / 1024, (long long)m->cpu.l3 / 1024);
    print_cuda_text();
    printf("isas       ");
    for (int i = ATTN_ISA_PORTABLE; attn_isa_name((attn_isa)i); i++) {
        const char *state = attn_isa_available((attn_isa)i) ? ""
                            : built((attn_isa)i)            ? " (not on this machine)"
                                                            : " (not built in)";
        printf(" %s%s", attn_isa_name((attn_isa)i), state);
    }
    printf("\nchosen      %s\n", m->plan ? m->info.isa : m->error);
    printf("built in    on the CPU:");
    for (int i = 0; i < count; i++) {
        if (kernels[i].ops) printf(" %s", kernels[i].name);
    }
    putchar('\n');
    return ATTN_EXIT_OK;
}

int attn_cmd_info(int argc, char **argv)
{
    values v = { .json = false };
    machine m = { .plan = NULL };
    attn_desc desc = { .dtype = ATTN_F32, .batch = 1, .heads_q = 1, .len_q = 64, .len_kv = 64, .dim_qk = 64 };
    int code = attn_options_start(&command, argc, argv, &v);
    if (code != ATTN_OPTIONS_READY) return code;
    attn_cpu_detect(&m.cpu);
    if (!attn_plan_create(&m.plan, &desc))
        attn_plan_get_info(m.plan, &m.info);
    else
        snprintf(m.error, sizeof m.error, "%s", attn_error());
    code = v.json ? print_json(&m) : print_text(&m);
    attn_plan_destroy(m.plan);
    return code;
}
