/* What NVRTC makes of the CUDA kernels: compiles every unit as a library built without nvcc does at a plan, in several
 * processes, and reads what the compiler says of each. Needs NVRTC (ATTN_NVRTC says where) and no GPU;
 * script/test-nvrtc builds and runs it.
 *
 *     attn_test_nvrtc [PROCESSES [UNIT]]     (one for each processor; all units)
 *
 * Failures: NVRTC refuses a unit or warns of it; the assembler ignores setmaxnreg or serialises wgmma; a kernel spills
 * more than is allowed, or takes more registers than its threads can have; a kernel of the table is in no unit. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda/unit.h"

enum { REGISTERS = 65536, KERNELS_MOST = 320, UNITS_MOST = 320, SYMBOL_SIZE = 128 };

typedef struct unit {
    const char *name;
    const attn_cuda_kernel *kernel; /* NULL: the unit is the file `name` */
} unit;

static unit units[UNITS_MOST];
static int unit_count;

/* Of all processes. */
static struct shared {
    atomic_int begun, done, failures;
    atomic_bool found[KERNELS_MOST]; /* by kernel of the table: a unit's code has it */
} * shared;

/* ---- what is allowed ----------------------------------------------------------------------- */

/* Bytes of spilled registers: what the tables allow nvcc, but for what NVRTC, whose code is a little different, needs
 * more of. */
static int allowed_spills(const char *symbol)
{
    static const struct {
        const char *symbol;
        int bytes;
    } allowed[] = {
        { "attn_sm90_bf16_d64_128x128_masks", 136 },
        { "attn_sm90_bf16_d128_128x96_masks", 12 },
        { "attn_sm90_bf16_d256_128x64_score_mod", 304 },
        { "attn_sm90_bf16_d256_128x64_score_mod_paged", 304 },
        { "attn_sm90_f16_d128_192x64", 76 },
        { "attn_sm90_f16_d64_128x128_masks", 52 },
        { "attn_sm90_f16_d256_128x64_masks", 472 },
        { "attn_sm90_f16_d256_128x64_score_mod", 304 },
        { "attn_sm90_f16_d256_128x64_score_mod_paged", 304 },
        { "attn_sm90_bf16_d64_128x128_ranges", 68 },
        { "attn_sm90_bf16_d128_128x128_ranges", 52 },
        { "attn_sm90_backward_bf16_d256_64_2cta", 20 },
        { "attn_sm90_backward_bf16_d256_64_2cta_final_dq", 16 },
        { "attn_sm90_backward_bf16_d256_64_2cta_spans", 40 },
        { "attn_sm90_backward_f16_d256_64_2cta_spans", 40 },
        { "attn_sm90_backward_f16_d128_128_spans", 108 },
        { "attn_sm90_backward_bf16_d192_dv128_64_masks", 4 },
        { "attn_sm90_backward_bf16_d256_64_masks", 16 },
        { "attn_sm90_backward_bf16_d256_64_score_mod", 224 },
        { "attn_sm90_backward_f16_d256_64_2cta", 20 },
        { "attn_sm90_backward_f16_d256_64_2cta_final_dq", 16 },
        { "attn_sm90_backward_f16_d192_dv128_64_masks", 4 },
        { "attn_sm90_backward_f16_d256_64_masks", 16 },
        { "attn_sm90_backward_f16_d256_64_score_mod", 224 },
        { "attn_sm90_bf16_d128_192x64_runs", 80 },
        { "attn_sm90_bf16_d128_192x64_spans", 20 },
        { "attn_sm90_f16_d64_256x64_spans", 20 },
        { "attn_sm90_bf16_d64_256x64_spans_softcap", 36 },
        { "attn_sm90_bf16_d128_192x64_spans_softcap", 108 },
        { "attn_sm90_bf16_d64_256x64_softcap", 56 },
        { "attn_sm90_bf16_d128_192x64_softcap", 44 },
        { "attn_sm90_bf16_d64_256x64_alibi", 24 },
        { "attn_sm90_bf16_d128_192x64_alibi", 116 },
        { "attn_sm90_e4m3_d256_128x128", 104 },
        { "attn_sm90_e4m3_d256_128x128_softcap", 108 },
        { "attn_sm90_e4m3_d256_128x128_transposed", 56 },
        { "attn_sm90_f16_d128_192x64_runs", 120 },
        { "attn_sm90_bf16_d64_192x64_bits", 12 },
        { "attn_sm90_f16_d64_192x64_bits", 132 },
        { "attn_sm90_bf16_d128_192x64_bits", 164 },
        { "attn_sm90_f16_d128_192x64_bits", 292 },
        { "attn_sm90_bf16_d192_dv128_128x80_masks", 4 },
        { "attn_sm90_f16_d192_dv128_128x80_masks", 4 },
        { "attn_sm90_bf16_d128_128x96_ranges_dropout", 12 },
        { "attn_sm90_bf16_d256_128x64_ranges_dropout", 88 },
        { "attn_sm90_bf16_d256_128x64_bits_alibi", 20 },
        { "attn_sm90_bf16_d256_128x64_bits_dropout", 60 },
        { "attn_sm90_bf16_d128_128x96_bits_bias", 32 },
        { "attn_sm90_bf16_d256_128x64_bits_bias", 32 },
        { "attn_sm90_backward_bf16_d256_64_masks_alibi", 16 },
        { "attn_sm90_backward_bf16_d256_64_masks_dropout", 16 },
        { "attn_sm90_fallback_f16", 16 },
        { "attn_sm90_fallback_f32", 12 },
        { "attn_pages_append_f32_16", 8 },
        { "attn_quant_stream_f16", 16 },
        { "attn_sm90_backward_fallback_kv_bf16", 28 },
        { "attn_sm90_backward_fallback_kv_f16", 28 },
        { "attn_sm90_backward_fallback_bias_bf16", 8 },
        { "attn_sm90_backward_fallback_bias_f16", 8 },
        { "attn_sm90_backward_fallback_bias_f32", 8 },
    };
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        if (strcmp(symbol, allowed[i].symbol) == 0) return allowed[i].bytes;
    for (int i = 0; i < count; i++)
        if (strcmp(symbol, kernels[i].symbol) == 0) return kernels[i].spills;
    return 0;
}

/* ---- a unit -------------------------------------------------------------------------------- */

static void fail(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void fail(const char *name, const char *format, ...)
{
    char text[400];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    atomic_fetch_add(&shared->failures, 1);
    printf("FAILED: %s: %s\n", name, text);
}

static void check_registers(const char *symbol, int registers)
{
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (int i = 0; i < count; i++) {
        if (strcmp(kernels[i].symbol, symbol) != 0) continue;
        atomic_store(&shared->found[i], true);
        if (registers * kernels[i].threads > REGISTERS)
            fail(symbol, "%d registers a thread, but it has %u threads", registers, kernels[i].threads);
    }
}

/* What the compiler said, line by line; `said` takes it up in a few words. */
static void check_log(const char *name, char *log, char *said, size_t size)
{
    char symbol[SYMBOL_SIZE] = "", *rest = NULL;
    int kernels = 0, most_registers = 0, most_spills = 0;
    for (char *line = strtok_r(log, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        const char *at;
        int stores, loads, registers;
        if ((at = strstr(line, "Compiling entry function '"))) {
            sscanf(at, "Compiling entry function '%127[^']", symbol);
            kernels++;
        } else if ((at = strstr(line, "bytes stack frame, ")) &&
                   sscanf(at, "bytes stack frame, %d bytes spill stores, %d bytes spill loads", &stores, &loads) == 2) {
            int spills = stores > loads ? stores : loads;
            if (spills > allowed_spills(symbol))
                fail(symbol, "%d bytes spilled, above the %d that are allowed", spills, allowed_spills(symbol));
            if (spills > most_spills) most_spills = spills;
        } else if ((at = strstr(line, "Used ")) && sscanf(at, "Used %d registers", &registers) == 1) {
            check_registers(symbol, registers);
            if (registers > most_registers) most_registers = registers;
        } else if (strstr(line, "Potential Performance Loss") || strstr(line, "warning")) {
            fail(name, "%s", line);
        }
    }
    snprintf(said, size, "%d kernel%s, %d registers, %d bytes spilled", kernels, kernels == 1 ? "" : "s",
             most_registers, most_spills);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The library's own program, but that the assembler is asked to say what it did. */
static void compile(const unit *u)
{
    attn_cuda_program program;
    char *log, said[100] = "refused";
    void *cubin;
    size_t size;
    double begin = now();
    attn_status status = attn_cuda_unit_program(u->kernel, u->name, &program);
    if (!status) {
        program.options[program.option_count++] = "--ptxas-options=-v";
        status = attn_cuda_compile_anew(&program, &cubin, &size, &log);
    }
    if (status) {
        fail(u->name, "%s", attn_error());
    } else {
        if (size < 4 || memcmp(cubin, "\177ELF", 4) != 0) fail(u->name, "its code is no cubin");
        check_log(u->name, log, said, sizeof said);
        free(cubin);
        free(log);
    }
    printf("%3d/%d  %s: %s, %.1f s\n", atomic_fetch_add(&shared->done, 1) + 1, unit_count, u->name, said,
           now() - begin);
}

/* ---- all ----------------------------------------------------------------------------------- */

static void add(const char *only, const char *name, const attn_cuda_kernel *kernel)
{
    if (only && strcmp(only, name) != 0) return;
    if (unit_count == UNITS_MOST) abort();
    units[unit_count++] = (unit){ name, kernel };
}

/* Of the variants each ATTN_TEST_SHARE-th alone, from the ATTN_TEST_TURN-th on. */
static bool left_out(const attn_cuda_kernel *kernels, int i)
{
    const char *share = getenv("ATTN_TEST_SHARE"), *turn = getenv("ATTN_TEST_TURN");
    int shares = share ? atoi(share) : 1;
    return shares > 1 && attn_cuda_is_variant(&kernels[i]) && i % shares != (turn ? atoi(turn) : 0) % shares;
}

static void list_units(const char *only)
{
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    if (count > KERNELS_MOST) abort();
    for (int i = 0; i < count; i++)
        if (attn_cuda_is_variant(&kernels[i]) && !left_out(kernels, i)) add(only, kernels[i].symbol, &kernels[i]);
    for (int i = 0; i < attn_cuda_text_count; i++)
        if (attn_cuda_unit_arch(attn_cuda_texts[i].name)) add(only, attn_cuda_texts[i].name, NULL);
}

static void work(void)
{
    for (int i; (i = atomic_fetch_add(&shared->begun, 1)) < unit_count;)
        compile(&units[i]);
}

static void run(int processes)
{
    for (int i = 0; i < processes; i++) {
        pid_t child = fork();
        if (child < 0) fail("fork", "no process can be had");
        if (child != 0) continue;
        work();
        fflush(stdout);
        _exit(0);
    }
    for (int status; wait(&status) > 0;)
        if (status) fail("a process", "it ended with status %#x", (unsigned)status);
}

static void check_found(void)
{
    int count;
    const attn_cuda_kernel *kernels = attn_cuda_kernels(&count);
    for (int i = 0; i < count; i++)
        if (!left_out(kernels, i) && !atomic_load(&shared->found[i])) fail(kernels[i].symbol, "no unit has it");
}

int main(int argc, char **argv)
{
    int processes = argc > 1 ? atoi(argv[1]) : (int)sysconf(_SC_NPROCESSORS_ONLN), version = attn_cuda_nvrtc_version();
    const char *only = argc > 2 ? argv[2] : NULL;
    double begin = now();
    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("CUDA_CACHE_DISABLE", "1", 1); /* where there is a driver, NVRTC asks it for code that it made before */
    if (!version) return printf("FAILED: %s\n", attn_error()), 1;
    list_units(only);
    if (unit_count == 0 || processes < 1) return puts("FAILED: nothing to compile"), 1;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return perror("mmap"), 1;
    run(processes);
    if (!only) check_found();
    int done = atomic_load(&shared->done), failures = atomic_load(&shared->failures);
    if (done < unit_count) failures++;
    printf("NVRTC %d.%d: %d of %d units compiled in %.0f s, %d failures\n", version / 1000, version % 1000 / 10, done,
           unit_count, now() - begin, failures);
    return failures > 0;
}
