/* A decode kernel of sm90/decode/variants.txt: its row's columns are macros. */
#include "common/decode/kernel.h"

#define SYMBOL_(name) attn_sm90_decode_##name
#define SYMBOL(name) SYMBOL_(name)

extern "C" __global__ void __launch_bounds__(ATTN_DECODE_THREADS, 1)
    SYMBOL(ATTN_NAME)(const __grid_constant__ attn_decode_params params)
{
    enum { OWN = ATTN_DTYPE }; /* k and v have q's */
    decode<decode_config<ATTN_DTYPE, ATTN_KV, ATTN_DIM, ATTN_DIM_V, ATTN_KV_TILE, ATTN_STAGES>>(&params);
}
