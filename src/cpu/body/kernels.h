/* All kernel bodies of one instruction set: included once by its file, after its vocabulary. */
#include <math.h>
#include <string.h>

#include "cpu/kernel.h"
#include "cpu/ops.h"
#include "cpu/score.h"
#include "mask/parts.h"
#include "num/half.h"

#include "cpu/body/loads.h"
#include "cpu/body/pack.h"
#include "cpu/body/gemm.h"
#include "cpu/body/softmax.h"
#include "cpu/body/rows.h"
#include "cpu/body/prefill.h"
#include "cpu/body/decode.h"
#include "cpu/body/backward.h"
