/* Which reductions can run along an axis, chunk after chunk, keeping only what they have come to: streamability.
 *
 * f is streamable if there is an accumulator B with B(f(x), y) = f(x + y), + for one stream after the other. Known
 * ones (the registry): a sum, a maximum, a minimum, whatever their terms, as long as these do not depend on other
 * reductions of the same stream, for those change while it runs. A sum whose terms depend on one streams nevertheless
 * if it does so in the exponent alone, exp(u - m) with u of the element and m of the reductions: by the rescaling
 * lemma, when m becomes m', the sum becomes exp(m - m') times what it was. (Factors that do not span the stream have
 * left the sum by then: normal.c.) And accumulators that the diagram brings along.
 *
 * What the registry says is then tested: B(f(x), y) against f(x + y), on random data. */
#ifndef ATTN_NAPKIN_STREAM_H
#define ATTN_NAPKIN_STREAM_H

#include "napkin/diagram.h"

typedef struct attn_nap_accrual {
    int node;  /* the reduction */
    int shift; /* the sum is rescaled by exp(shift now - shift before); -1: it is not */
    int pass;  /* over the stream, from 0 */
} attn_nap_accrual;

enum { ATTN_NAP_WHY = 320 };

/* Whether a reduction in normal form accrues along the axis while those marked `running` do; else why not. */
bool attn_nap_accrues(attn_diagram *d, int node, const bool *running, attn_nap_accrual *accrual,
                      char why[ATTN_NAP_WHY]);

/* Tests accruals, in the order of their nodes; `worst`: the greatest deviation, relative to the values (or to 1);
 * infinite where f was undefined on all that was tried. */
attn_status attn_nap_prove(const attn_diagram *d, int axis, const attn_nap_accrual *accrual, int count, double *worst);

/* Tests an accumulator of the diagram against its meaning. ATTN_INVALID where it is another reduction. */
attn_status attn_nap_prove_accumulator(const attn_diagram *d, int accumulator, double *worst);

/* exp(now - before), for shifts that may both be infinite: nothing was accrued yet. */
double attn_nap_rescale(double before, double now);

#endif
