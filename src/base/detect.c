/* Contract: detect.h; and attn_isa_available of attn.h. */
#if defined(__linux__)
#define _GNU_SOURCE /* syscall, sched_getaffinity */
#endif
#include "base/detect.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

/* The register states that the operating system saves: XCR0. */
static uint64_t saved_states(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
    __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (uint64_t)d << 32 | a;
}

/* Asks Linux for the tiles' state, 8 KiB per thread that uses them: for all of the process, and for good. */
static int tiles_permitted(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
#if defined(__linux__)
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return 0;
#endif
}

static int x86_runs(attn_isa isa)
{
    unsigned a, b, c, d, c1;
    uint64_t states = saved_states();
    if (!__get_cpuid(1, &a, &b, &c1, &d) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    int avx2 = (states & 6) == 6 && (c1 & bit_FMA) && (c1 & bit_F16C) && (b & bit_AVX2);
    if (isa == ATTN_ISA_AVX2) return avx2;
    unsigned avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    int runs = avx2 && (states & 0xe6) == 0xe6 && (b & avx512) == avx512;
    if (isa == ATTN_ISA_AVX512) return runs;
    unsigned a1, b1, d1;
    runs = runs && __get_cpuid_count(7, 1, &a1, &b1, &c, &d1) && (a1 & 1u << 5);
    if (isa == ATTN_ISA_AVX512BF16) return runs;
    unsigned amx = 1u << 24 | 1u << 22; /* AMX-TILE, AMX-BF16 */
    return runs && (d & amx) == amx && (states >> 17 & 3) == 3 && tiles_permitted();
}

/* Vendor, family and model as the vendor counts them: extended ones added in. */
static void identify(attn_cpu_info *info)
{
    unsigned a, b, c, d;
    if (__get_cpuid(0, &a, &b, &c, &d)) {
        const unsigned vendor[] = { b, d, c };
        memcpy(info->vendor, vendor, sizeof vendor);
    }
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    info->family = (int)(a >> 8 & 15), info->number = (int)(a >> 4 & 15);
    if (info->family >= 6) info->number += (int)(a >> 12 & 0xf0);
    if (info->family == 15) info->family += (int)(a >> 20 & 0xff);
}

/* Of a core, as the processor lists them: AMD's leaf has Intel's layout. */
static void find_caches(attn_cpu_info *info)
{
    unsigned leaf = strcmp(info->vendor, "AuthenticAMD") == 0 ? 0x8000001d : 4, a, b, c, d;
    for (unsigned i = 0; i < 8 && __get_cpuid_count(leaf, i, &a, &b, &c, &d) && a & 31; i++) {
        int64_t bytes = (int64_t)((b >> 22) + 1) * ((b >> 12 & 0x3ff) + 1) * ((b & 0xfff) + 1) * ((int64_t)c + 1);
        if ((a & 31) == 2) continue; /* of instructions */
        if ((a >> 5 & 7) == 1) info->l1 = bytes;
        if ((a >> 5 & 7) == 2) info->l2 = bytes;
        if ((a >> 5 & 7) == 3) info->l3 = bytes;
    }
}

static void model_name(char name[64])
{
    unsigned a, b, c, d;
    if (!__get_cpuid(0x80000000u, &a, &b, &c, &d) || a < 0x80000004u) return;
    for (unsigned i = 0; i < 3; i++) {
        unsigned part[4];
        __get_cpuid(0x80000002u + i, &part[0], &part[1], &part[2], &part[3]);
        memcpy(name + 16 * i, part, 16);
    }
    size_t lead = strspn(name, " ");
    memmove(name, name + lead, strlen(name + lead) + 1);
}
#else
static int x86_runs(attn_isa isa)
{
    (void)isa;
    return 0;
}

static void identify(attn_cpu_info *info)
{
    (void)info;
}

static void find_caches(attn_cpu_info *info)
{
    (void)info;
}

#if defined(__aarch64__)
#include <stdio.h>
#include <sys/auxv.h>

static void model_name(char name[64])
{
    uint64_t id;
    strcpy(name, "64-bit Arm");
    if (!(getauxval(AT_HWCAP) & HWCAP_CPUID)) return;
    __asm__("mrs %0, midr_el1" : "=r"(id));
    snprintf(name, 64, "64-bit Arm, implementer 0x%02x, part 0x%03x", (int)(id >> 24 & 0xff), (int)(id >> 4 & 0xfff));
}
#else
static void model_name(char name[64])
{
    strcpy(name, "unknown");
}
#endif
#endif

/* What does not change while the process lives: asked once, for a virtual machine answers CPUID slowly. */
static struct {
    int runs[ATTN_ISAS]; /* by attn_isa */
    attn_cpu_info info;
} machine;

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void detect(void)
{
    machine.runs[ATTN_ISA_AUTO] = machine.runs[ATTN_ISA_PORTABLE] = 1;
    machine.runs[ATTN_ISA_AVX2] = x86_runs(ATTN_ISA_AVX2);
    machine.runs[ATTN_ISA_AVX512] = x86_runs(ATTN_ISA_AVX512);
    machine.runs[ATTN_ISA_AVX512BF16] = x86_runs(ATTN_ISA_AVX512BF16);
    machine.runs[ATTN_ISA_AMX] = x86_runs(ATTN_ISA_AMX);
#if defined(__aarch64__)
    machine.runs[ATTN_ISA_NEON] = 1;
#endif
    model_name(machine.info.model);
    identify(&machine.info);
    machine.info.fetches_l2 = strcmp(machine.info.vendor, "AuthenticAMD") == 0;
    find_caches(&machine.info);
#ifdef _SC_LEVEL1_DCACHE_SIZE
    if (machine.info.l1) return;
    long l1 = sysconf(_SC_LEVEL1_DCACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE), l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    machine.info.l1 = l1 > 0 ? l1 : 0, machine.info.l2 = l2 > 0 ? l2 : 0, machine.info.l3 = l3 > 0 ? l3 : 0;
#endif
}

int attn_isa_available(attn_isa isa)
{
    pthread_once(&once, detect);
    return (unsigned)isa < ATTN_ISAS ? machine.runs[isa] : 0;
}

const char *attn_isa_name(attn_isa isa)
{
    static const char *const names[ATTN_ISAS] = { "auto", "portable", "avx2", "avx512", "avx512bf16", "amx", "neon" };
    return (unsigned)isa < ATTN_ISAS ? names[isa] : NULL;
}

void attn_cpu_detect(attn_cpu_info *info)
{
    pthread_once(&once, detect);
    *info = machine.info;
    info->processors = attn_processors_available();
}

int attn_processors_available(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count < 1 ? 1 : count > ATTN_THREADS_MOST ? ATTN_THREADS_MOST : count;
}
