/* All kernel bodies of one instruction set: included once by its file, after its vocabulary. */
#include <math.h>
#include <string.h>

#include "cpu/kernel.h"
#include "cpu/ops.h"
#include "cpu/score.h"
#include "mask/parts.h"
#include "num/half.h"
#include "num/philox.h"

#include "cpu/body/loads.h"
#include "cpu/body/pack.h"
#include "cpu/body/gemm.h"
#include "cpu/body/softmax.h"
#include "cpu/body/dropout.h"
#include "cpu/body/rows.h"
#include "cpu/body/prefill.h"
#include "cpu/body/decode_state.h"
#include "cpu/body/decode_floats.h"
#include "cpu/body/decode.h"
#include "cpu/body/gradients.h"
#include "cpu/body/backward.h"
#include "cpu/body/rotary.h"
#include "cpu/body/convert.h"
#include "cpu/body/quant.h"

static void decode_keys(const attn_decode_task *task)
{
    switch (task->kv_dtype) {
    case ATTN_F32:
        decode_as(task, ATTN_F32);
        break;
    case ATTN_F16:
        decode_as(task, ATTN_F16);
        break;
    case ATTN_BF16:
        decode_as(task, ATTN_BF16);
        break;
    case ATTN_E4M3:
        decode_as(task, ATTN_E4M3);
        break;
    case ATTN_I8:
        decode_as(task, ATTN_I8);
        break;
    case ATTN_F64: /* the reference's */
        break;
    }
}
