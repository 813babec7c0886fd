/* A causal problem over four ranks, which are threads here. Each holds two chunks of the rows and of the keys. */
#include "guide.h"

#include <pthread.h>

#include <attn_parallel.h>

enum { LEN = 256, HEADS = 2, DIM = 16, ROW = HEADS * DIM, RANKS = 4, CHUNKS = 2 * RANKS };

static float *q, *k, *v, o[LEN * ROW];
static char picture[RANKS][CHUNKS + 1];

/* What a rank does: a plan of the whole, its own rows, a run. */
static void *run_rank(void *argument)
{
    const attn_engine *engine = argument;
    attn_desc whole = { .dtype = ATTN_F32,
                        .flags = ATTN_CAUSAL,
                        .batch = 1,
                        .heads_q = HEADS,
                        .len_q = LEN,
                        .len_kv = LEN,
                        .dim_qk = DIM,
                        .threads = 1 };
    attn_parallel_desc how = { .layout = ATTN_ZIGZAG };
    attn_parallel_plan *plan;
    attn_parallel_info info;
    must(attn_parallel_plan_create(&plan, &whole, &how, engine));
    must(attn_parallel_plan_get_info(plan, &info));

    int64_t elements = info.rows * ROW, n = 0;
    float *mine = take(4 * (size_t)elements * sizeof *mine), *my_o = mine + 3 * elements;
    for (int c = 0; c < info.chunks; c++)
        for (int64_t i = info.row_begin[c] * ROW; i < info.row_end[c] * ROW; i++, n++)
            mine[n] = q[i], mine[elements + n] = k[i], mine[2 * elements + n] = v[i];

    void *workspace = take(info.workspace_bytes);
    attn_args args = { .q = mine, .k = mine + elements, .v = mine + 2 * elements, .o = my_o };
    must(attn_parallel_run(plan, &args, workspace, NULL));

    memset(picture[info.rank], '.', CHUNKS);
    for (int c = 0; c < info.chunks; c++) {
        int64_t rows = info.row_end[c] - info.row_begin[c];
        memcpy(o + info.row_begin[c] * ROW, my_o + (c ? elements - rows * ROW : 0), (size_t)(rows * ROW) * sizeof *o);
        picture[info.rank][info.row_begin[c] * CHUNKS / LEN] = '#';
    }
    attn_parallel_plan_destroy(plan);
    free(workspace), free(mine);
    return NULL;
}

int main(void)
{
    attn_thread_group *group;
    pthread_t thread[RANKS];
    q = random_floats(LEN * ROW, 1), k = random_floats(LEN * ROW, 2), v = random_floats(LEN * ROW, 3);
    must(attn_thread_group_create(&group, RANKS, 60));
    for (int r = 0; r < RANKS; r++)
        if (pthread_create(&thread[r], NULL, run_rank, (void *)attn_thread_group_engine(group, r))) return 1;
    for (int r = 0; r < RANKS; r++)
        pthread_join(thread[r], NULL), printf("rank %d  %s\n", r, picture[r]);
    attn_thread_group_destroy(group);

    double difference = 0, simple[DIM];
    for (int i = 0; i < LEN; i++)
        for (int h = 0; h < HEADS; h++) {
            simple_row(q + i * ROW + h * DIM, k + h * DIM, v + h * DIM, 0, i + 1, ROW, DIM, NULL, -INFINITY, simple);
            difference = fmax(difference, row_difference(o + i * ROW + h * DIM, simple, DIM));
        }
    free(q), free(k), free(v);
    return report("causal over ranks", difference, 1e-5);
}
