/* The forward kernel: persistent CTAs of one producer warpgroup, of which one warp schedules, one loads and two may
 * copy for it, of consumer warpgroups of 64 rows each, which keep S, P and O in registers, and it may be of a last one
 * that transposes V. One variant: config.h. */
#include "common/gpu.h"
#include "sm90/common/ptx.h"
#include "sm90/forward/config.h"
#include "sm90/forward/copy_keys.h"
#include "sm90/forward/gathered.h"
#include "sm90/forward/interleaved.h"
#include "sm90/forward/pingpong.h"
#include "sm90/forward/producer.h"
#include "sm90/forward/scheduler.h"
#include "sm90/forward/scores.h"
#include "sm90/forward/shared.h"
#include "sm90/forward/transpose.h"

extern "C" __global__ void __launch_bounds__(config::threads, 1)
    PASTE(attn_sm90_, ATTN_NAME)(const __grid_constant__ kv_source::params params)
{
    const attn_sm90_params *p = (const attn_sm90_params *)&params;
    if (config::walks && is_left_nothing(p)) return;
    SHARED_MEMORY(memory);
    shared s = shared_layout(memory);
    if constexpr (config::ones) write_ones(&s);
    init_shared(&s, config::paged ? paged_source::arrivals(p) : kv_source::lanes);
    if (threadIdx.x < 128) {
        REGISTERS_DROP(config::producer_registers);
        u32 warp = uniform(threadIdx.x / 32);
        if (warp == 0) produce<mask>(p, &s);
        if (warp == 1) schedule<mask>(p, &s);
        if constexpr (config::copies_keys) copy_ordered_keys(p, &s, warp);
        if constexpr (config::transposes && !config::transposers) transpose_values(&s, warp - 2);
    } else if (config::transposers && threadIdx.x >= config::threads - 128) {
        REGISTERS_DROP(config::producer_registers);
        transpose_values(&s, uniform(threadIdx.x / 32) % 4);
    } else {
        REGISTERS_TAKE(config::consumer_registers);
        if constexpr (config::gathers)
            consume_gathered(p, &s);
        else if constexpr (config::pingpong)
            consume_pingpong(p, &s);
        else
            consume_interleaved(p, &s);
        if (config::o_by_tma) bulk_wait_read(); /* shared memory is the CTA's only while it lasts */
    }
}
