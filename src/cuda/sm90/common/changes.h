/* What a variant changes of scores and of P, always: its row's column score, a set. SCORE_MOD: all of it, as flags say
 * when running. BLOCK_SCALES: nothing, but E4M3 has scales of blocks of rows, and of channels of V. */
#ifndef ATTN_CUDA_SM90_CHANGES_H
#define ATTN_CUDA_SM90_CHANGES_H

enum {
    PLAIN = 0,
    SOFTCAP = 1,
    ALIBI = 2,
    BIAS = 4,
    DROPOUT = 8,
    SCORE_MOD = 16,
    BLOCK_SCALES = 32,
    SOFTCAP_ALIBI = SOFTCAP | ALIBI,
    SOFTCAP_DROPOUT = SOFTCAP | DROPOUT,
    ALIBI_DROPOUT = ALIBI | DROPOUT,
    BIAS_DROPOUT = BIAS | DROPOUT
};

#endif
