/* What this processor and its operating system run: CPUID and XGETBV. NEON belongs to every aarch64. */
#ifndef ATTN_BASE_DETECT_H
#define ATTN_BASE_DETECT_H

#include <stdbool.h>

#include "attn.h"

enum { ATTN_ISAS = ATTN_ISA_NEON + 1 }; /* arrays by attn_isa have as many elements */

typedef struct attn_cpu_info {
    char model[64];
    char vendor[16];    /* "AuthenticAMD"; "" unknown */
    int family, number; /* of the model; 0 unknown */
    int64_t l1, l2, l3; /* data caches a core sees, bytes; 0 unknown */
    int processors;     /* that the caller may use */
    /* Measured on AMD's Zen 4 and Intel's Sapphire Rapids; others are taken for the latter. */
    bool fetches_l2; /* fetching far ahead into L2 leaves the loads from L2 alone */
} attn_cpu_info;

void attn_cpu_detect(attn_cpu_info *info);

enum { ATTN_THREADS_MOST = 1024 };

/* Processors that the calling thread may use, at least 1 and at most ATTN_THREADS_MOST. */
int attn_processors_available(void);

#endif
