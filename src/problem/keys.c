/* Contract: keys.h. */
#include "problem/keys.h"

#include "problem/sequence.h"

const int32_t *attn_pages_of(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t *room)
{
    int64_t start = desc->table_width ? batch * desc->table_width : args->page_starts[batch];
    *room = desc->table_width ? desc->table_width : args->page_starts[batch + 1] - start;
    return args->page_table + start;
}

/* rows: of a block; 0: all keys of a sequence are one. */
static attn_key_scales scales_of(const attn_desc *desc, const float *scale, int64_t rows, const int64_t stride[4],
                                 int64_t batch, int64_t kv_head)
{
    if (!scale || !rows) return (attn_key_scales){ .base = NULL };
    int64_t plane = desc->flags & ATTN_PAGED ? 0 : batch;
    return (attn_key_scales){ .base = scale + plane * stride[0] + kv_head * stride[2],
                              .rows = rows,
                              .block = stride[1],
                              .page = stride[0],
                              .head = stride[2] };
}

attn_keys attn_keys_of(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t kv_head)
{
    attn_dtype dtype = attn_kv_dtype(desc);
    int64_t size = attn_dtype_size(dtype), room;
    attn_ranges ranges = attn_ranges_of(desc, args, batch);
    attn_keys keys = { .k_row = desc->k_stride[1] * size,
                       .v_row = desc->v_stride[1] * size,
                       .seen = attn_ranges_hull(&ranges, 0, ranges.len_q) };
    int64_t start = 0, plane = 0;
    if (desc->flags & ATTN_PAGED) {
        keys.pages = attn_pages_of(desc, args, batch, &room), keys.page_size = desc->page_size;
        keys.k_page = desc->k_stride[0] * size, keys.v_page = desc->v_stride[0] * size;
    } else {
        start = attn_sequence_of(desc, args, batch).start_kv, plane = attn_tensor_batch(desc, batch);
    }
    keys.k = attn_bind(dtype, args->k, desc->k_stride, plane, start, kv_head);
    keys.v = attn_bind(dtype, args->v, desc->v_stride, plane, start, kv_head);
    if (!(desc->flags & ATTN_SCALES_KV)) return keys;
    keys.k_scale = scales_of(desc, args->k_scale, desc->k_scale_rows, desc->k_scale_stride, batch, kv_head);
    keys.v_scale = scales_of(desc, args->v_scale, desc->v_scale_rows, desc->v_scale_stride, batch, kv_head);
    return keys;
}

static void fill(const void **rows, int64_t count, const char *first, int64_t step)
{
    for (int64_t i = 0; i < count; i++)
        rows[i] = first + i * step;
}

/* Keys [key, end), all of which may be read. */
static void fill_seen(const attn_keys *keys, int64_t key, int64_t end, const void **k, const void **v)
{
    if (!keys->pages) {
        fill(k, end - key, keys->k + key * keys->k_row, keys->k_row);
        fill(v, end - key, keys->v + key * keys->v_row, keys->v_row);
        return;
    }
    int64_t page = key / keys->page_size, slot = key % keys->page_size;
    while (key < end) {
        int64_t count = keys->page_size - slot < end - key ? keys->page_size - slot : end - key, id = keys->pages[page];
        fill(k, count, keys->k + id * keys->k_page + slot * keys->k_row, keys->k_row);
        fill(v, count, keys->v + id * keys->v_page + slot * keys->v_row, keys->v_row);
        key += count, k += count, v += count;
        page++, slot = 0;
    }
}

/* The run that holds `key`: its end; 0 if none does, and then in *next where one begins behind it, or INT64_MAX. */
static int64_t run_end(const attn_runs *seen, int64_t key, int64_t *next)
{
    int64_t end = 0;
    *next = INT64_MAX;
    for (int i = 0; i < 2; i++) {
        if (seen->lo[i] >= seen->hi[i]) continue;
        if (seen->lo[i] <= key && key < seen->hi[i] && seen->hi[i] > end) end = seen->hi[i];
        if (key < seen->lo[i] && seen->lo[i] < *next) *next = seen->lo[i];
    }
    return end;
}

void attn_keys_rows(const attn_keys *keys, int64_t key, int64_t count, const void **k, const void **v)
{
    static const char zeros[ATTN_KEYS_ZEROS];
    for (int64_t end = key + count, to; key < end; k += to - key, v += to - key, key = to) {
        int64_t next, seen = run_end(&keys->seen, key, &next);
        to = seen ? seen : next;
        if (to > end) to = end;
        if (seen)
            fill_seen(keys, key, to, k, v);
        else
            fill(k, to - key, zeros, 0), fill(v, to - key, zeros, 0);
    }
}

/* Scales of rows [row, row + count) of a sequence, or of slots of a page, whose first one has *first. */
static void fill_scales(const attn_key_scales *scales, const float *first, int64_t row, int64_t count, float *out)
{
    if (scales->rows == 1) {
        for (int64_t i = 0; i < count; i++)
            out[i] = first[(row + i) * scales->block];
        return;
    }
    for (int64_t i = 0, end; i < count; i = end) {
        int64_t block = (row + i) / scales->rows;
        end = (block + 1) * scales->rows - row < count ? (block + 1) * scales->rows - row : count;
        for (int64_t j = i; j < end; j++)
            out[j] = first[block * scales->block];
    }
}

static void list_scales(const attn_keys *keys, const attn_key_scales *scales, int64_t head, int64_t key, int64_t count,
                        float *out)
{
    const float *first = scales->base + head * scales->head;
    for (int64_t end = key + count, to; key < end; out += to - key, key = to) {
        int64_t next, seen = run_end(&keys->seen, key, &next), page = keys->pages ? key / keys->page_size : 0;
        to = seen > 0 ? seen : next;
        if (seen && keys->pages && to > (page + 1) * keys->page_size) to = (page + 1) * keys->page_size;
        to = to < end ? to : end;
        if (!seen)
            for (int64_t i = 0; i < to - key; i++)
                out[i] = 1;
        else if (keys->pages)
            fill_scales(scales, first + keys->pages[page] * scales->page, key - page * keys->page_size, to - key, out);
        else
            fill_scales(scales, first, key, to - key, out);
    }
}

void attn_keys_scales(const attn_keys *keys, int64_t head, int64_t key, int64_t count, float *k, float *v)
{
    if (keys->k_scale.base) list_scales(keys, &keys->k_scale, head, key, count, k);
    if (keys->v_scale.base) list_scales(keys, &keys->v_scale, head, key, count, v);
}
