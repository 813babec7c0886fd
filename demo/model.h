/* A language model without weights, in one attention call. For a text of bytes:
 *
 *   feature i   what the last 1 to 6 bytes before byte i are, hashed: for each n the signs of a hash of these n bytes,
 *               times 1.6 * 0.8^(n-1) / sqrt(DIM). Equal n-grams give equal vectors, others nearly orthogonal ones.
 *   query i, key i  feature i. So q.k counts, weighted, the bytes in which two places' pasts agree.
 *   value j     byte j, one-hot.
 *
 * Attending to strictly earlier keys, output i is a distribution of byte i: bytes that followed a similar past. */
#ifndef ATTN_DEMO_MODEL_H
#define ATTN_DEMO_MODEL_H

#include <stdint.h>

enum { MODEL_DIM = 128, MODEL_BYTES = 256 };

/* Tuned on other texts (two plays and poems), as the weights above were. */
#define MODEL_SCALE 2.5f
#define MODEL_UNIFORM 0.005 /* share of the uniform distribution that is mixed in */

/* Feature of place i: text[0 .. i) is all it looks at. */
void model_feature(const uint8_t *text, int64_t i, float feature[MODEL_DIM]);

void model_value(uint8_t byte, float value[MODEL_BYTES]);

/* Bits that coding `byte` takes under the model's output. */
double model_bits(const float output[MODEL_BYTES], uint8_t byte);

/* A byte drawn from the output, which is not mixed with anything. *state: any seed but 0. */
uint8_t model_draw(const float output[MODEL_BYTES], uint64_t *state);

#endif
