/* What the programs of docs/GUIDE.md share: made-up inputs, attention in its simplest form, and a comparison with it.
 */
#ifndef GUIDE_H
#define GUIDE_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <attn.h>

/* Ends the program with the library's own words if a call failed. */
static inline void must(attn_status status)
{
    if (status == ATTN_OK) return;
    fprintf(stderr, "%s: %s\n", attn_status_name(status), attn_error());
    exit(1);
}

/* `bytes` of memory; the program ends where there are none. malloc may return NULL for 0 bytes, so it gets one more. */
static inline void *take(size_t bytes)
{
    void *memory = malloc(bytes + 1);
    if (!memory) fprintf(stderr, "no memory\n"), exit(1);
    return memory;
}

/* `count` floats between -1 and 1, always the same for the same seed. */
static inline float *random_floats(int64_t count, uint32_t seed)
{
    float *x = take((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
    return x;
}

/* One row of one head in double precision: o = sum of softmax(q.k / sqrt(dim) + bias) v over the keys [begin, end).
 * k and v: this head's first key and value; `stride` floats from one key to the next. bias: one float per key, or NULL.
 * sink: one more logit in the denominator, -INFINITY for none. At most 4096 keys. */
static inline void simple_row(const float *q, const float *k, const float *v, int64_t begin, int64_t end,
                              int64_t stride, int dim, const float *bias, double sink, double *o)
{
    double score[4096], max = sink, sum = 0;
    for (int64_t j = begin; j < end; j++) {
        double dot = 0;
        for (int d = 0; d < dim; d++)
            dot += (double)q[d] * (double)k[j * stride + d];
        score[j - begin] = dot / sqrt(dim) + (bias ? (double)bias[j] : 0);
        max = fmax(max, score[j - begin]);
    }
    if (sink > -INFINITY) sum = exp(sink - max);
    for (int d = 0; d < dim; d++)
        o[d] = 0;
    for (int64_t j = begin; j < end; j++) {
        double p = exp(score[j - begin] - max);
        sum += p;
        for (int d = 0; d < dim; d++)
            o[d] += p * (double)v[j * stride + d];
    }
    for (int d = 0; d < dim && sum > 0; d++)
        o[d] /= sum;
}

/* The largest difference between a row of the library and one of simple_row. NaN if the library's has one. */
static inline double row_difference(const float *row, const double *simple, int dim)
{
    double most = 0;
    for (int d = 0; d < dim; d++) {
        double difference = fabs((double)row[d] - simple[d]);
        if (!(difference <= most)) most = difference;
    }
    return most;
}

/* Prints a line and returns main's status: 0 if `difference` is at most `most`. NaN is not. */
static inline int report(const char *what, double difference, double most)
{
    int good = difference <= most;
    printf("%s: largest difference %.1e: %s\n", what, difference, good ? "good" : "WRONG");
    return good ? 0 : 1;
}

#endif
