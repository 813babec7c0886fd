/* Contract: keys.h. */
#include "problem/keys.h"

#include "problem/sequence.h"

const int32_t *attn_pages_of(const attn_desc *desc, const attn_args *args, int64_t batch, int64_t *room)
{
    int64_t start = desc->table_width ? batch * desc->table_width : args->page_starts[batch];
    *room = desc->table_width ? desc->table_width : args->page_starts[batch + 1] - start;
    return args->page_table + start;
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
