/* Only where the max is checked at every KV tile (!config::unchecked_max: f16, score changes): the look at scores that
 * need no mask. */
#ifndef ATTN_CUDA_SM90_FORWARD_CHECKED_MAX_H
#define ATTN_CUDA_SM90_FORWARD_CHECKED_MAX_H

#include "sm90/forward/config.h"
#include "sm90/forward/softmax.h"

/* Some score of the warp is above its row's limit. Compares bits as integers, three at a time: the order of negative
 * numbers is wrong, but they stay below all others. */
DEVICE bool exceeds_limit(const softmax *m, const float *s)
{
    int top[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        top[j] = __float_as_int(s[j]);
#pragma unroll
        for (int i = j + 4; i + 4 < config::keys / 2; i += 8)
            top[j] = __vimax3_s32(top[j], __float_as_int(s[i]), __float_as_int(s[i + 4]));
        top[j] = max(top[j], __float_as_int(s[config::keys / 2 - 4 + j]));
    }
    return __any_sync(~0u, max(top[0], top[1]) > __float_as_int(m->limit[0]) ||
                               max(top[2], top[3]) > __float_as_int(m->limit[1]));
}

#endif
