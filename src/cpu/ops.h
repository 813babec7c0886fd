/* The kernels of each instruction set, from the table. */
#ifndef ATTN_CPU_OPS_H
#define ATTN_CPU_OPS_H

#include "cpu/kernel.h"

#define ATTN_ISA(name, NAME, source, flags) extern const attn_cpu_ops attn_cpu_ops_##name;
#include "cpu/kernels.def"
#undef ATTN_ISA

#endif
