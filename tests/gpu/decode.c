/* What decode kernels do besides: lengths around their tiles, rings and warps, rows up to all that share keys; with
 * split-keys the same bits whatever else is in the batch; workspaces of any content. */
#include <string.h>
#include <unistd.h>

#include "../scale.h"
#include "base/error.h"
#include "device/device.h"
#include "gpu.h"
#include "num/half.h"

void decode_lengths(const attn_cuda_kernel *k)
{
    static const uint32_t flags[] = { 0, ATTN_CAUSAL, ATTN_LENS_Q | ATTN_LENS_KV | ATTN_CAUSAL, ATTN_VARLEN };
    static const int64_t tiles[] = { 0, 1, 2, 7, 8, 9, 16, 17, 24, 33 }, rows[] = { 1, 2, 5, 8 };
    int number = 0, scale = test_scale();
    for (int t = 0; t < 10; t++)
        for (int64_t beside = -1; beside <= 1; beside++)
            for (int r = 0; r < 4; r++, number++) {
                int64_t keys = tiles[t] * k->kv_tile + beside;
                if (keys < 1 || number % scale) continue;
                attn_desc desc = { .flags = flags[number % 4],
                                   .batch = 3,
                                   .heads_q = number % 3 ? 4 : 2,
                                   .heads_kv = 2,
                                   .len_q = rows[r],
                                   .len_kv = keys };
                if (number % 5 == 4) desc.heads_q = 32 / rows[r]; /* all the packed rows that there may be */
                if (desc.flags & ATTN_VARLEN) desc.total_q = 3 * rows[r], desc.total_kv = 3 * keys + 1;
                check_kernel(k, desc, options_of(number), false);
            }
}

/* One team per CTA and more; fewer heads than teams, and more, of which the last team has fewer; lengths that are alike
 * and not, of more sequences than a warp keeps. */
void decode_sequences(const attn_cuda_kernel *k)
{
    static const char *strategies[] = { "ctas=4", "ctas=4,teams=2", "ctas=3" };
    static const int64_t batches[] = { 3, 5, 7, 33, 70, 131 };
    for (int number = 0; number < 36; number++) {
        attn_desc desc = { .flags = number % 2 ? ATTN_LENS_KV : 0,
                           .batch = batches[number / 6],
                           .heads_q = 4,
                           .heads_kv = 1,
                           .len_q = 1,
                           .len_kv = (number % 4 < 2 ? 3 : 9) * k->kv_tile + 5,
                           .strategy = strategies[number % 3] };
        check_kernel(k, desc, options_of(number), false);
    }
}

/* ---- the batch ------------------------------------------------------------------------------- */

enum { BATCH = 5, HEADS_Q = 6, HEADS_KV = 2, KEYS = 1500, DIM = 64, ROWS = 2 };
enum { Q_SIZE = ROWS * HEADS_Q * DIM, KV_SIZE = KEYS * HEADS_KV * DIM, LSES = HEADS_Q * ROWS };

typedef struct world {
    _Alignas(16) uint16_t q[BATCH * Q_SIZE];
    _Alignas(16) uint16_t k[BATCH * KV_SIZE]; /* and v: of as many bytes as kv_dtype has */
    _Alignas(16) uint16_t v[BATCH * KV_SIZE];
    _Alignas(16) uint16_t o[BATCH * Q_SIZE];
    float lse[BATCH * LSES];
    int32_t lens_kv[BATCH];
} world;

static world drawn, together, alone;

static attn_dtype kv_dtype_of(const attn_cuda_kernel *k)
{
    return attn_cuda_kv_dtype(k) ? attn_cuda_kv_dtype(k) : k->dtype;
}

static void draw(const attn_cuda_kernel *k)
{
    static const int32_t lens[] = { 700, 1, 1500, 33, 1024 };
    uint64_t random = 11;
    for (int i = 0; i < BATCH * Q_SIZE; i++)
        attn_store_scalar(k->dtype, drawn.q, i, check_normal(&random));
    for (int i = 0; i < BATCH * KV_SIZE; i++) {
        attn_store_scalar(kv_dtype_of(k), drawn.k, i, check_normal(&random) * (kv_dtype_of(k) == ATTN_I8 ? 50 : 1));
        attn_store_scalar(kv_dtype_of(k), drawn.v, i, check_normal(&random) * (kv_dtype_of(k) == ATTN_I8 ? 50 : 1));
    }
    memcpy(drawn.lens_kv, lens, sizeof lens);
}

/* `count` sequences from the one numbered `from` on, in w. */
static bool run_sequences(const attn_cuda_kernel *k, const char *strategy, int from, int count, world *w)
{
    int64_t at = from * KV_SIZE * attn_dtype_size(kv_dtype_of(k));
    attn_desc desc = { .dtype = k->dtype,
                       .kv_dtype = attn_cuda_kv_dtype(k),
                       .device = ATTN_CUDA,
                       .flags = ATTN_CAUSAL | ATTN_LENS_KV,
                       .batch = count,
                       .heads_q = HEADS_Q,
                       .heads_kv = HEADS_KV,
                       .len_q = ROWS,
                       .len_kv = KEYS,
                       .dim_qk = DIM,
                       .strategy = strategy };
    attn_args args = { .q = w->q + from * Q_SIZE,
                       .k = (const char *)w->k + at,
                       .v = (const char *)w->v + at,
                       .o = w->o + from * Q_SIZE,
                       .lse = w->lse + from * LSES,
                       .lens_kv = w->lens_kv + from };
    device_run run;
    alarm(WATCHDOG_SECONDS);
    bool good = !device_begin(&run, &desc, &args, 0);
    good = good && !device_start(&run);
    good = good && !device_end(&run, true);
    alarm(0);
    result(good, "%s, %s: %s", k->name, strategy, attn_error());
    return good;
}

/* With the planner's kernel, as a caller asks for it. */
void decode_batches(const attn_cuda_kernel *k)
{
    static const struct {
        const char *together, *alone;
    } ways[] = { { "split-keys=64", "split-keys=64" },
                 { "split-keys=512", "split-keys=512" },
                 { "split-keys=64,ctas=1", "split-keys=64" },
                 { "split-keys=512,ctas=3", "split-keys=512" },
                 { "split-keys=64,teams=2,ctas=3", "split-keys=64,teams=2" } };
    draw(k);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        together = alone = drawn;
        bool good = run_sequences(k, ways[i].together, 0, BATCH, &together);
        for (int b = 0; b < BATCH && good; b++)
            good = run_sequences(k, ways[i].alone, b, 1, &alone);
        result(good && !memcmp(together.o, alone.o, sizeof alone.o) &&
                   !memcmp(together.lse, alone.lse, sizeof alone.lse),
               "%s, %s: other bits in another batch", k->name, ways[i].together);
    }
}
