/* Contract: machine.h. What a warp computes by itself: products and transposed matrices. */
#include "inside.h"

#include <cstring>

extern "C" {
#include "attn.h"
#include "num/half.h"
}

/* The words of all lanes, at one operation of the warp. They stay until the next but one: no lane is further. */
typedef const uint32_t (*lane_words)[6];

static lane_words exchange(gpu_vote operation, const uint32_t *words, int count)
{
    uint32_t(*place)[6] = running->crew->words[running->exchanges++ % 2];
    memcpy(place[running->place.lane], words, (size_t)count * sizeof *words);
    gpu_warp(operation, 0, 0);
    return place;
}

static float element(int dtype, uint32_t word, int half)
{
    uint16_t x = (uint16_t)(word >> 16 * half);
    return dtype == ATTN_BF16 ? attn_bf16_to_float(x) : attn_f16_to_float(x);
}

/* Lane 4g + t has A's words of rows g, g + 8, g, g + 8 at k = 2t, 2t, 2t + 8, 2t + 8, B's of column g at k = 2t, 2t +
 * 8, and sums of rows g, g, g + 8, g + 8, columns 2t, 2t + 1 (PTX ISA, mma.m16n8k16). */
void gpu_warp_product(int dtype, float *sums, const uint32_t *a, const uint32_t *b)
{
    gpu_fence_async(); /* as a warpgroup's product has it */
    const uint32_t mine[6] = { a[0], a[1], a[2], a[3], b[0], b[1] };
    lane_words words = exchange(GPU_MULTIPLY, mine, 6);
    int group = running->place.lane / 4, four = running->place.lane % 4;
    float rows[2][16], columns[2][16];
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 16; k++) {
            const uint32_t *left = words[4 * group + k % 8 / 2], *right = words[4 * (2 * four + i) + k % 8 / 2];
            rows[i][k] = element(dtype, left[i + k / 8 * 2], k % 2);
            columns[i][k] = element(dtype, right[4 + k / 8], k % 2);
        }
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++)
            sums[i] += rows[i / 2][k] * columns[i % 2][k];
}

/* Lane 8m + r names row r of matrix m; lane 4c + i gets rows 2i, 2i + 1 of column c. As where matrices are not
 * transposed, no lane waits until the others have read: who overwrites them has to. */
void gpu_load_transposed(uint32_t address, uint32_t *words)
{
    lane_words rows = exchange(GPU_LOAD, &address, 1);
    int column = running->place.lane / 4, row = running->place.lane % 4 * 2;
    for (int m = 0; m < 4; m++) {
        uint16_t x[2];
        for (int i = 0; i < 2; i++)
            memcpy(&x[i], (const unsigned char *)gpu_load(rows[8 * m + row + i][0], 16) + 2 * column, 2);
        memcpy(&words[m], x, 4);
    }
}
