/* The language model: hashing, one-hot values, bits and drawing. See model.h. */
#include "model.h"

#include <math.h>
#include <string.h>

static uint64_t mix(uint64_t x) /* splitmix64 */
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void model_feature(const uint8_t *text, int64_t i, float feature[MODEL_DIM])
{
    float weight = 1.6f / sqrtf((float)MODEL_DIM);
    uint64_t ngram = 0;
    memset(feature, 0, MODEL_DIM * sizeof *feature);
    for (int64_t n = 1; n <= 6 && n <= i; n++, weight *= 0.8f) {
        ngram = mix(ngram + text[i - n] + 0x9e3779b97f4a7c15u);
        for (int word = 0; word < MODEL_DIM / 64; word++) {
            uint64_t signs = mix(ngram + (uint64_t)word);
            for (int bit = 0; bit < 64; bit++)
                feature[64 * word + bit] += signs >> bit & 1 ? weight : -weight;
        }
    }
}

void model_value(uint8_t byte, float value[MODEL_BYTES])
{
    memset(value, 0, MODEL_BYTES * sizeof *value);
    value[byte] = 1.0f;
}

double model_bits(const float output[MODEL_BYTES], uint8_t byte)
{
    return -log2((1.0 - MODEL_UNIFORM) * (double)output[byte] + MODEL_UNIFORM / MODEL_BYTES);
}

uint8_t model_draw(const float output[MODEL_BYTES], uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    double at = (double)(mix(*state) >> 11) * 0x1p-53, sum = 0.0;
    int byte = 0, last = 0;
    for (; byte < MODEL_BYTES; byte++) {
        if (output[byte] > 0.0f) last = byte;
        sum += (double)output[byte];
        if (sum > at) break;
    }
    return (uint8_t)(byte < MODEL_BYTES ? byte : last);
}
