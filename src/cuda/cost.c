/* Contract: cost.h. */
#include "cuda/cost.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "planner/attention.h"
#include "problem/desc.h"

static const double ordered_tiles =
    1.5;                               /* of a group of heads, per CTA, at least: longest first, or in a fixed order, */
static const double unknown_tiles = 8; /* and where nobody knows which are the longest */

const attn_machine *attn_cuda_machine_of(const attn_cuda_device *device)
{
    return attn_machine_for(ATTN_CUDA, device->name);
}

const attn_machine *attn_machine_of_gpu(void)
{
    const attn_cuda_machine *gpus = attn_cuda_machine_get();
    CUdevice device = 0;
    if (!gpus) return NULL;
    if (gpus->driver.cuCtxGetDevice(&device) || device < 0 || device >= gpus->devices) device = 0;
    return attn_cuda_machine_of(&gpus->device[device]);
}

double attn_cuda_converting_seconds(const attn_cuda_device *device, double bytes, bool looks)
{
    const double launch = 3e-6, look = 4e-6; /* assumed, beside other kernels; look: a word cleared, and looked at */
    const double share = 0.4;                /* of memory's bandwidth; [m] 0.28 to 0.38 with half as many CTAs an SM */
    return launch + (looks ? look : 0) + bytes / (share * attn_cuda_bandwidth(device, "l2"));
}

double attn_cuda_bandwidth(const attn_cuda_device *device, const char *name)
{
    const attn_machine_level *level = attn_machine_level_named(attn_cuda_machine_of(device), name);
    double all = level && level->all > 0 ? level->all : INFINITY;
    return level && level->count > 1 ? all * device->multiprocessors / level->count : all;
}

/* What keys would replace may have to be written first; of more keys, keeping it costs more than that [m]. */
int64_t attn_cuda_passing_bytes(const attn_cuda_device *device)
{
    return 6 * (int64_t)device->l2_bytes;
}

const attn_machine_kernel *attn_cuda_constants(const attn_cuda_device *device, const attn_cuda_kernel *k)
{
    const attn_machine *m = attn_cuda_machine_of(device);
    const attn_machine_kernel *own = attn_machine_kernel_named(m, k->name);
    char name[ATTN_MACHINE_NAME], bf16[ATTN_MACHINE_NAME];
    int size = (int)(strlen(k->name) - strlen(k->paged ? "_paged" : ""));
    snprintf(name, sizeof name, "%.*s", size, k->name);
    if (!own) own = attn_machine_kernel_named(m, name);
    const char *f16 = strstr(name, "_f16_");
    if (own || !f16) return own;
    snprintf(bf16, sizeof bf16, "%.*s_bf16_%s", (int)(f16 - name), name, f16 + strlen("_f16_"));
    return attn_machine_kernel_named(m, bf16);
}

int64_t attn_cuda_head_group(const attn_desc *d, int64_t all, double fit, int64_t tiles, int ctas, bool ordered)
{
    const uint32_t unknown = (ATTN_CUDA_MASKS & ~(uint32_t)ATTN_CAUSAL) | ATTN_CUDA_LENGTHS;
    double several = d->flags & unknown ? unknown_tiles : d->flags & ATTN_CAUSAL || ordered ? ordered_tiles : 0;
    int64_t least = (int64_t)max_of(max_of(1, fit), ceil(several * ctas / max_of(1, (double)tiles)));
    if (all <= least) return all;
    return several > 0 ? attn_ceil_div(all, all / least) : least;
}

double attn_cuda_change_clocks(const attn_cuda_kernel *k)
{
    const struct {
        uint32_t flag;
        double clocks;
    } alone[] = { { ATTN_SOFTCAP, 0.12 }, { ATTN_ALIBI, 0.02 }, { ATTN_DROPOUT, 0.06 }, { ATTN_BIAS, 0.02 } };
    double all = 0;
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++)
        if (k->needs & alone[i].flag) all += alone[i].clocks;
    return all > 0 ? all : k->features & ATTN_CUDA_SCORES ? 0.15 : 0;
}

double attn_cuda_asked_clocks(const attn_cuda_kernel *k, const attn_desc *d)
{
    static const struct {
        uint32_t flag;
        double clocks[2]; /* by attn_direction */
    } asked[] = { { ATTN_SOFTCAP, { 0.5, 0.7 } },
                  { ATTN_ALIBI, { 0.19, 0.58 } },
                  { ATTN_DROPOUT, { 0.5, 2.1 } },
                  { ATTN_BIAS, { 0.5, 0.62 } } };
    double all = 0;
    if (!k->tma || k->needs & ATTN_CUDA_SCORES) return 0;
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        if (d->flags & asked[i].flag) all += asked[i].clocks[d->direction == ATTN_BACKWARD];
    return all;
}

int64_t attn_cuda_common(int64_t a, int64_t b)
{
    return b ? attn_cuda_common(b, a % b) : a;
}

double attn_cuda_blocks_of_tile(int64_t block, int64_t size)
{
    return (double)(block + size - attn_cuda_common(block, size)) / (double)block;
}

double attn_cuda_spread_share(const attn_desc *d)
{
    double share = (d->flags & ATTN_MASK_TABLES) == ATTN_BITS ? (double)d->visible_share : 1;
    return share > 0 ? share : 1;
}

void attn_cuda_set_time(const attn_cuda_device *device, double clocks, double start, attn_choice *c)
{
    double computing = clocks / attn_cuda_machine_of(device)->hertz;
    double memory = c->level[0].bytes / attn_cuda_bandwidth(device, "l2"),
           l2 = c->level[1].bytes / attn_cuda_bandwidth(device, "shared");
    c->seconds = start + max_of(computing, max_of(memory, l2));
    c->bound = computing >= max_of(memory, l2) ? "arithmetic" : memory >= l2 ? "memory" : "L2";
}

double attn_cuda_fallback_clocks(const attn_cuda_device *device, double heads, int64_t rows, double each, double dims,
                                 const attn_cuda_fallback *m)
{
    enum { WARPS = 8, LANES = 32, CTAS = 8 };
    double of_head = (double)attn_ceil_div(rows, WARPS), ctas = ceil(heads * of_head / device->multiprocessors);
    double alone = (m->alone + m->alone_dim * dims) * ceil(ctas / CTAS);
    double together = (m->pair + m->pair_dim * dims) * ctas * (double)rows / max_of(1, of_head);
    return max_of(ceil(each / LANES) * alone, each * together);
}

const char *attn_cuda_not_legal(const attn_cuda_device *device, const attn_cuda_kernel *k, const attn_overrides *s)
{
    static const attn_strategy_word counted[] = { ATTN_STRATEGY_SCHEDULER, ATTN_STRATEGY_HEAD_GROUP,
                                                  ATTN_STRATEGY_CTAS },
                                    extra[] = { ATTN_STRATEGY_SPLIT_KV,    ATTN_STRATEGY_SPLIT_TAIL,
                                                ATTN_STRATEGY_PACK_GQA,    ATTN_STRATEGY_SPLIT_KEYS,
                                                ATTN_STRATEGY_TEAMS,       ATTN_STRATEGY_SPLIT_GQA,
                                                ATTN_STRATEGY_STREAM_K,    ATTN_STRATEGY_HEAD_PERSISTENT_DQ,
                                                ATTN_STRATEGY_DQ_SEMAPHORE };
    int count;
    if (!s) return NULL;
    if (s->set[ATTN_STRATEGY_CTAS] &&
        (s->value[ATTN_STRATEGY_CTAS] > device->multiprocessors || s->value[ATTN_STRATEGY_CTAS] % k->cluster))
        return "ctas: it is above the multiprocessors, or does not fill the kernel's clusters";
    if (attn_cuda_is_variant(k)) return NULL;
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
        if (s->set[counted[i]]) return "scheduler, head-group, ctas: the fallback kernels have a block per tile";
    for (size_t i = 0; i < sizeof extra / sizeof *extra; i++)
        if (!attn_overrides_allow(s, extra[i], attn_strategies(&count)[extra[i]].off))
            return "only the kernels for 16-bit tensors have strategies, not the fallback kernels";
    return attn_overrides_allow(s, ATTN_STRATEGY_DQ_POSTPROCESS, ATTN_DQ_NONE) && !s->set[ATTN_STRATEGY_DQ_LATE]
               ? NULL
               : "dq-postprocess: the fallback kernels have no dQ accumulator";
}

attn_cuda_device attn_cuda_device_of(const attn_cuda_device *device, const attn_overrides *overrides)
{
    attn_cuda_device as = *device;
    as.multiprocessors = (int)attn_override_or(overrides, ATTN_STRATEGY_CTAS, device->multiprocessors);
    return as;
}
