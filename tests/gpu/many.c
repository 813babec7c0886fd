#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "problem/args.h"
#include "gpu.h"
#include "many.h"

const attn_args_array *many_output(const many *m, int i)
{
    return &m->run.arrays[m->run.inputs + i];
}

size_t many_size(const attn_args_array *a)
{
    return a->base ? (size_t)(a->hi - a->lo) : 0;
}

/* Where an output begins in the memory that arguments name. */
static CUdeviceptr begin_of(const attn_args_array *a, const attn_args *args)
{
    void *base;
    memcpy(&base, (const char *)args + a->field, sizeof base);
    return (CUdeviceptr)(uintptr_t)base + (CUdeviceptr)a->lo;
}

bool many_begin(many *m, const attn_desc *desc)
{
    attn_desc cpu = *desc;
    cpu.device = ATTN_CPU;
    check_options options = { .seed = 4 };
    snprintf(m->name, sizeof m->name, "%s, dim %lld, flags 0x%x", desc->direction ? "backward" : "forward",
             (long long)desc->dim_qk, desc->flags);
    if (check_problem_create(&m->problem, &cpu, &options) || device_begin(&m->run, desc, &m->problem.args, 0)) {
        result(false, "%s: %s", m->name, attn_error());
        return false;
    }
    m->outputs = m->run.count - m->run.inputs;
    for (int i = 0; i < m->outputs; i++)
        m->first[i] = check_allocate(many_size(many_output(m, i)) + 1);
    return true;
}

void many_first(many *m)
{
    result(!device_start(&m->run) && !device_wait(), "%s: %s", m->name, attn_error());
    for (int i = 0; i < m->outputs; i++) {
        const attn_args_array *a = many_output(m, i);
        if (many_size(a)) driver->cuMemcpyDtoH(m->first[i], begin_of(a, &m->run.device), many_size(a));
    }
}

void many_end(many *m)
{
    for (int i = 0; i < m->outputs; i++)
        free(m->first[i]);
    result(!device_end(&m->run, true), "%s: %s", m->name, attn_error());
    check_problem_destroy(&m->problem);
}

void many_poison(const many *m, const attn_args *args, void *workspace, int value, CUstream stream)
{
    size_t size = attn_plan_workspace(m->run.plan);
    for (int i = 0; i < m->outputs; i++) {
        const attn_args_array *a = many_output(m, i);
        if (many_size(a)) driver->cuMemsetD8Async(begin_of(a, args), CHECK_FRESH, many_size(a), stream);
    }
    if (size) driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)workspace, (unsigned char)value, size, stream);
}

bool many_same(const many *m, const attn_args *args)
{
    bool equal = true;
    for (int i = 0; i < m->outputs; i++) {
        const attn_args_array *a = many_output(m, i);
        size_t size = many_size(a);
        unsigned char *now = check_allocate(size + 1);
        if (size)
            equal = equal && driver->cuMemcpyDtoH(now, begin_of(a, args), size) == 0 && !memcmp(now, m->first[i], size);
        free(now);
    }
    return equal;
}
