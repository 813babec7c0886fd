/* What is known of a device. Contract: attn.h. */
#include "base/error.h"
#include "planner/machine.h"
#include "problem/desc.h"

attn_status attn_machine_get_info_sized(attn_device device, attn_machine_info *info, size_t info_size)
{
    char identity[256];
    if (!info) return attn_fail(ATTN_INVALID, "info = NULL");
    if (device != ATTN_CPU && device != ATTN_CUDA)
        return attn_fail(ATTN_INVALID, "device = %d is not ATTN_CPU or ATTN_CUDA", (int)device);
    attn_machine_identity(identity, sizeof identity);
    const attn_machine *m = device == ATTN_CUDA ? attn_machine_of_gpu() : attn_machine_for(ATTN_CPU, identity);
    if (!m) return ATTN_UNSUPPORTED;
    attn_machine_info full = { .clock = m->hertz,
                               .sustained = m->sustained > 0 ? m->sustained : m->hertz,
                               .memory = attn_machine_memory(m),
                               .link_send = m->link_send,
                               .link_put = m->link_put,
                               .link_beside = m->link_beside };
    attn_struct_fill(info, info_size, &full, sizeof full);
    return ATTN_OK;
}
