/* A KV cache of one byte an element: keys and values are stored as E4M3, with a scale for each token and head that the
 * append finds. A page has the keys of its slots, then the values, then their scales. */
#include "guide.h"

#include <attn_kv.h>

enum { PAGES = 8, SLOTS = 16, HEADS_Q = 4, HEADS_KV = 2, DIM = 64, ROW = HEADS_KV * DIM, TOKENS = 100 };
enum { SCALES = SLOTS * HEADS_KV, PAGE_BYTES = 2 * SLOTS * ROW + 2 * SCALES * 4 };

int main(void)
{
    float *q = random_floats(HEADS_Q * DIM, 1), *o = take(HEADS_Q * DIM * sizeof *o);
    float *k = random_floats(TOKENS * ROW, 2), *v = random_floats(TOKENS * ROW, 3);
    float *k_back = take(TOKENS * ROW * sizeof *k), *v_back = take(TOKENS * ROW * sizeof *v);
    int32_t table[PAGES] = { 5, 0, 3, 7, 1, 6, 2 }, lens[] = { TOKENS }, starts[] = { 0, TOKENS };

    unsigned char *pages = take(PAGES * PAGE_BYTES);
    float *scales = (float *)(void *)(pages + 2 * SLOTS * ROW); /* of the first page */
    attn_kv_desc append = { .op = ATTN_KV_APPEND,
                            .dtype = ATTN_F32,
                            .pages_dtype = ATTN_E4M3,
                            .flags = ATTN_KV_SCALES | ATTN_KV_TOKEN_SCALES,
                            .pages = PAGES,
                            .page_size = SLOTS,
                            .heads_kv = HEADS_KV,
                            .dim_qk = DIM,
                            .tokens = TOKENS,
                            .batch = 1,
                            .table_width = PAGES,
                            .k_pages_stride = { PAGE_BYTES, ROW, DIM, 1 },
                            .v_pages_stride = { PAGE_BYTES, ROW, DIM, 1 },
                            .k_scale_rows = 1, /* as many slots to a scale */
                            .v_scale_rows = 1,
                            .k_scale_stride = { PAGE_BYTES / 4, HEADS_KV, 1, 0 }, /* in floats */
                            .v_scale_stride = { PAGE_BYTES / 4, HEADS_KV, 1, 0 } };
    attn_kv_args args = { .k_pages = pages, .v_pages = pages + SLOTS * ROW };
    args.lens_kv = lens, args.page_table = table, args.k_scale = scales, args.v_scale = scales + SCALES;
    attn_kv_args fresh = args;
    fresh.k = k, fresh.v = v, fresh.cu_lens = starts;
    attn_kv_plan *plan;
    must(attn_kv_plan_create(&plan, &append));
    must(attn_kv_run(plan, &fresh, NULL));
    attn_kv_plan_destroy(plan);

    attn_desc desc = { .dtype = ATTN_F32,
                       .kv_dtype = ATTN_E4M3,
                       .flags = ATTN_PAGED | ATTN_LENS_KV | ATTN_SCALES_KV,
                       .batch = 1,
                       .heads_q = HEADS_Q,
                       .heads_kv = HEADS_KV,
                       .len_q = 1,
                       .len_kv = PAGES * SLOTS,
                       .dim_qk = DIM,
                       .pages = PAGES,
                       .page_size = SLOTS,
                       .table_width = PAGES,
                       .k_scale_rows = 1,
                       .v_scale_rows = 1 };
    memcpy(desc.k_stride, append.k_pages_stride, sizeof desc.k_stride);
    memcpy(desc.v_stride, append.v_pages_stride, sizeof desc.v_stride);
    memcpy(desc.k_scale_stride, append.k_scale_stride, sizeof desc.k_scale_stride);
    memcpy(desc.v_scale_stride, append.v_scale_stride, sizeof desc.v_scale_stride);
    attn_args run = { .q = q, .k = args.k_pages, .v = args.v_pages, .o = o, .lens_kv = lens, .page_table = table };
    run.k_scale = args.k_scale, run.v_scale = args.v_scale;
    attn_plan *attention;
    must(attn_plan_create(&attention, &desc));
    void *workspace = take(attn_plan_workspace(attention));
    must(attn_run(attention, &run, workspace, NULL));
    attn_plan_destroy(attention);

    attn_kv_desc gather = append; /* as floats again: byte times scale */
    gather.op = ATTN_KV_GATHER, gather.flags = ATTN_KV_SCALES, gather.tokens = 0, gather.len_kv = TOKENS;
    args.k_out = k_back, args.v_out = v_back;
    must(attn_kv_plan_create(&plan, &gather));
    must(attn_kv_run(plan, &args, NULL));
    attn_kv_plan_destroy(plan);

    double difference = 0, lost = 0, simple[DIM];
    for (int h = 0; h < HEADS_Q; h++) {
        int64_t first = h / (HEADS_Q / HEADS_KV) * DIM;
        simple_row(q + h * DIM, k_back + first, v_back + first, 0, TOKENS, ROW, DIM, NULL, -INFINITY, simple);
        difference = fmax(difference, row_difference(o + h * DIM, simple, DIM));
        simple_row(q + h * DIM, k + first, v + first, 0, TOKENS, ROW, DIM, NULL, -INFINITY, simple);
        lost = fmax(lost, row_difference(o + h * DIM, simple, DIM));
    }
    printf("%d bytes a token, where floats take %d\n", PAGE_BYTES / SLOTS, 8 * ROW);
    free(workspace), free(q), free(o), free(k), free(v), free(k_back), free(v_back), free(pages);
    int bad = report("against the values that the pages hold", difference, 1e-5);
    return report("against the keys and values before they were rounded", lost, 0.02) | bad;
}
