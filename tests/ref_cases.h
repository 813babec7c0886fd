/* Small problems for the tests of the reference. */
#ifndef TESTS_REF_CASES_H
#define TESTS_REF_CASES_H

#include "support.h"

#include "problem/desc.h"

static inline attn_desc resolved(attn_desc desc)
{
    attn_desc out;
    assert_ok(attn_desc_resolve(&out, &desc, sizeof desc));
    return out;
}

/* One head of dimension 1 and scale 1. */
static inline attn_desc single(int64_t len_q, int64_t len_kv, uint32_t flags)
{
    return (attn_desc){ .dtype = ATTN_F32,
                        .flags = flags,
                        .batch = 1,
                        .heads_q = 1,
                        .dim_qk = 1,
                        .scale = 1,
                        .len_q = len_q,
                        .len_kv = len_kv };
}

#endif
