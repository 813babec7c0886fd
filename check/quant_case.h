/* Quantisation (attn_quant.h), drawn: a descriptor of any layout, and what it quantises. */
#ifndef CHECK_QUANT_CASE_H
#define CHECK_QUANT_CASE_H

#include "attn_quant.h"

enum {
    CHECK_QUANT_MOST = 1 << 17, /* elements that any array of a case takes; x: floats */
    CHECK_QUANT_STARTS = 8,
    CHECK_QUANT_CANARY = 0xa5 /* bytes that arrays hold before a run */
};

/* A case's arrays. mean holds numbers before, too. */
typedef struct check_quant_arrays {
    float x[CHECK_QUANT_MOST], scale[CHECK_QUANT_MOST], mean[CHECK_QUANT_MOST], dot[CHECK_QUANT_MOST];
    uint8_t out[CHECK_QUANT_MOST];
    int32_t cu_lens[CHECK_QUANT_STARTS];
} check_quant_arrays;

/* Draws a descriptor, whose cu_lens are written, and then what x and mean hold; all else becomes canaries. */
void check_quant_draw(uint64_t *state, attn_quant_desc *desc, check_quant_arrays *arrays);

/* Those that the descriptor takes. */
attn_quant_args check_quant_args(const attn_quant_desc *desc, check_quant_arrays *arrays);

/* Rows of a sequence. */
int64_t check_quant_rows(const attn_quant_desc *desc, const check_quant_arrays *arrays, int64_t sequence);

#endif
