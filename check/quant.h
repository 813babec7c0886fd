/* Quantisation (attn_quant.h) against its definition, in double precision. */
#ifndef CHECK_QUANT_H
#define CHECK_QUANT_H

#include "attn_quant.h"

/* What a run wrote that is not what it must be, within rounding: NULL, or a message that lives until the next call.
 * desc: resolved, as a plan has it (api/quant.h). x: of no numbers
 * that float sums may overflow or not, by their order. */
const char *check_quant_wrong(const attn_quant_desc *desc, const attn_quant_args *args);

#endif
