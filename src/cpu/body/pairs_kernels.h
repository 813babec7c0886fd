/* The kernel bodies in products of bf16 pairs: included once by a file, after its vectors' vocabulary and their words
 * for pairs, with BLOCK_ROWS; it then includes its products and pairs_prefill.h. */
#include <math.h>
#include <string.h>

#include "cpu/kernel.h"
#include "cpu/ops.h"
#include "cpu/score.h"
#include "mask/parts.h"
#include "num/half.h"
#include "num/philox.h"

#include "cpu/body/loads.h"
#include "cpu/body/softmax.h"
#include "cpu/body/dropout.h"
#include "cpu/body/rows.h"
#include "cpu/body/gradients.h"
#include "cpu/body/pairs.h"
