/* Contract: processor.h. */
#define _POSIX_C_SOURCE 200809L
#include "processor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/detect.h"

static const struct processor {
    const char *name;
    attn_isa best;
    attn_cpu_info info;
} processors[] = {
    { "zen3", ATTN_ISA_AVX2, { "Zen 3", "AuthenticAMD", 25, 1, 32 << 10, 512 << 10, 32 << 20, 16, true } },
    { "zen4", ATTN_ISA_AVX512BF16, { "Zen 4", "AuthenticAMD", 25, 17, 32 << 10, 1 << 20, 32 << 20, 16, true } },
    { "sapphire_rapids",
      ATTN_ISA_AMX,
      { "Sapphire Rapids", "GenuineIntel", 6, 143, 48 << 10, 2 << 20, 105 << 20, 16, false } },
    { "emerald_rapids",
      ATTN_ISA_AMX,
      { "Emerald Rapids", "GenuineIntel", 6, 207, 48 << 10, 2 << 20, 260 << 20, 16, false } },
    /* No built-in machine is its own. */
    { "cpu", ATTN_ISA_AMX, { "another Xeon", "GenuineIntel", 6, 173, 48 << 10, 2 << 20, 480 << 20, 2, false } },
};

static const struct processor *chosen;

void __real_attn_cpu_detect(attn_cpu_info *info);
void __wrap_attn_cpu_detect(attn_cpu_info *info);
int __real_attn_isa_available(attn_isa isa);
int __wrap_attn_isa_available(attn_isa isa);

const char *test_processor_name(int index)
{
    return index < (int)(sizeof processors / sizeof *processors) ? processors[index].name : NULL;
}

attn_isa test_processor_best(int index)
{
    return processors[index].best;
}

void test_processor(const char *name, const char *isa)
{
    chosen = NULL;
    for (int i = 0; name && test_processor_name(i); i++)
        if (strcmp(processors[i].name, name) == 0) chosen = &processors[i];
    if (name && !chosen) {
        fprintf(stderr, "%s is no processor of tests/processor.c\n", name);
        exit(2);
    }
    if (isa)
        setenv("ATTN_ISA", isa, 1);
    else
        unsetenv("ATTN_ISA");
}

int test_processor_asked(void **state)
{
    (void)state;
    const char *asked = getenv("ATTN_TEST_PROCESSOR");
    test_processor(asked ? asked : "zen4", getenv("ATTN_TEST_ISA"));
    return 0;
}

int test_processor_here(void **state)
{
    (void)state;
    test_processor(NULL, NULL);
    return 0;
}

void __wrap_attn_cpu_detect(attn_cpu_info *info)
{
    __real_attn_cpu_detect(info);
    if (chosen) *info = chosen->info;
}

/* Each has those before its best in attn_isa; NEON comes last there. */
int __wrap_attn_isa_available(attn_isa isa)
{
    return chosen ? isa <= chosen->best : __real_attn_isa_available(isa);
}
