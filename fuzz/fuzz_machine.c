/* Machines' texts: any bytes are read or refused with a place. */
#include <stdlib.h>
#include <string.h>

#include "planner/machine.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    static attn_machine machine;
    char *text = malloc(size + 1); /* exactly as long as it says: reading past it shows */
    if (!text) return 0;
    memcpy(text, data, size);
    attn_status status = attn_machine_parse("fuzz", text, size, &machine);
    if (status && strncmp(attn_error(), "fuzz:", 5) != 0) abort();
    if (!status && (!machine.name[0] || machine.kernels > ATTN_MACHINE_KERNELS || machine.levels > ATTN_MODEL_LEVELS))
        abort();
    free(text);
    return 0;
}
