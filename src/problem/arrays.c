/* See arrays.h. */
#include "problem/arrays.h"

#include <string.h>
/* A step of |stride| bytes that may be taken 0 to `most` times. */
typedef struct step {
    int64_t stride, most;
} step;

enum { STEPS_OF_ARRAY = 5, STEPS = 2 * STEPS_OF_ARRAY }; /* along its axes, then within an element */

/* Whether steps, the longest first, can go exactly `distance`. A step is tried only as often as shorter ones can make
 * up for the rest: once or twice where axes lie within axes. After *tries the answer is yes, which refuses the run. */
static bool can_go(const step *steps, int count, int64_t distance, int *tries)
{
    int64_t rest = 0;
    if (count == 0) return distance == 0;
    if (--*tries < 0) return true;
    for (int i = 1; i < count; i++)
        rest += steps[i].stride * steps[i].most;
    int64_t first = distance > rest ? attn_ceil_div(distance - rest, steps->stride) : 0;
    int64_t last = distance / steps->stride;
    for (int64_t n = first; distance >= 0 && n <= last && n <= steps->most; n++)
        if (can_go(steps + 1, count - 1, distance - n * steps->stride, tries)) return true;
    return false;
}

static step step_of(const attn_args_array *a, int i)
{
    if (!a->stride) return (step){ 1, i < 4 ? 0 : a->hi - a->lo - 1 };
    int64_t along = i < 4 ? a->stride[i] * a->size : 1;
    return (step){ along < 0 ? -along : along, (i < 4 ? a->extent[i] : a->size) - 1 };
}

/* From b's lowest byte, steps of b go up to some byte of b. From a's highest, steps of a go down to some byte of a.
 * They meet where all steps together go from b's lowest to a's highest. */
bool attn_arrays_share(const attn_args_array *a, const attn_args_array *b)
{
    enum { TRIES = 10000 };
    step steps[STEPS];
    int count = 0, tries = TRIES;
    int64_t distance = (int64_t)((uintptr_t)a->base - (uintptr_t)b->base) + a->lo - b->lo;
    for (int i = 0; i < STEPS; i++) {
        const attn_args_array *of = i < STEPS_OF_ARRAY ? a : b;
        step s = step_of(of, i % STEPS_OF_ARRAY);
        if (of == a) distance += s.stride * s.most;
        if (s.stride == 0 || s.most == 0) continue;
        int at = count++;
        for (; at > 0 && steps[at - 1].stride < s.stride; at--)
            steps[at] = steps[at - 1];
        steps[at] = s;
    }
    for (int i = 1; i < count; i++)
        if (steps[i].stride == steps[i - 1].stride) {
            steps[i - 1].most += steps[i].most;
            memmove(&steps[i], &steps[i + 1], (size_t)(--count - i) * sizeof *steps);
            i--;
        }
    return can_go(steps, count, distance, &tries);
}
