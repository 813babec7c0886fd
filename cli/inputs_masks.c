/* See inputs_masks.h. */
#include "inputs_masks.h"

#include "problem/desc.h"
#include "base/error.h"

static attn_status load_lens(attn_inputs *inputs, const char *option, const char *path, int64_t count,
                             attn_array *array)
{
    attn_status status = attn_inputs_load(inputs, option, path, array);
    if (!status) status = attn_inputs_expect_table(inputs, option, array, 1, &count, 0);
    return status;
}

/* The longest sequence, at most `total`: what else may be wrong with the starts shows when running. */
static int64_t longest(const attn_array *starts, int64_t total)
{
    const int32_t *s = starts->data;
    int64_t most = 0;
    for (int64_t i = 1; i < starts->count; i++) {
        int64_t length = (int64_t)s[i] - s[i - 1];
        if (length > most) most = length;
    }
    return most < total ? most : total;
}

static attn_status open_packed(attn_inputs *inputs, const attn_input_options *options)
{
    attn_desc *desc = &inputs->desc;
    attn_array q, kv;
    if (!options->cu_lens_q) return ATTN_OK;
    if (desc->batch != 1)
        return attn_fail(ATTN_INVALID,
                         "q has a batch of %lld: with --cu-lens-q it takes (row, head, dim) or (1, row, head, dim)",
                         (long long)desc->batch);
    attn_status status = attn_inputs_load(inputs, "cu-lens-q", options->cu_lens_q, &q);
    if (status) return status;
    int64_t starts = ATTN_OR_MORE(2);
    status = attn_inputs_expect_table(inputs, "cu-lens-q", &q, 1, &starts, 0);
    if (!status && options->cu_lens_kv) status = load_lens(inputs, "cu-lens-kv", options->cu_lens_kv, q.count, &kv);
    if (status) return status;
    desc->flags |= ATTN_VARLEN;
    desc->batch = q.count - 1;
    desc->total_q = desc->len_q;
    desc->len_q = longest(&q, desc->total_q);
    inputs->args.cu_lens_q = q.data;
    if (!options->cu_lens_kv) return ATTN_OK;
    desc->total_kv = desc->len_kv;
    desc->len_kv = longest(&kv, desc->total_kv);
    inputs->args.cu_lens_kv = kv.data;
    return ATTN_OK;
}

/* A sequence may have as many keys as its entries of the table have slots. */
static attn_status open_pages(attn_inputs *inputs, const attn_input_options *options)
{
    attn_desc *desc = &inputs->desc;
    attn_array table;
    char shape[ATTN_SHAPE_TEXT];
    if (!options->page_table) return ATTN_OK;
    attn_status status = attn_inputs_load(inputs, "page-table", options->page_table, &table);
    if (status) return status;
    int64_t extent[] = { desc->batch, ATTN_OR_MORE(1) };
    status = attn_inputs_expect_table(inputs, "page-table", &table, 2, extent, 0);
    if (status) return status;
    desc->pages = inputs->k.extent[0];
    desc->page_size = inputs->k.extent[1];
    desc->table_width = table.extent[1];
    inputs->args.page_table = table.data;
    if (__builtin_mul_overflow(desc->page_size, desc->table_width, &desc->len_kv))
        return attn_fail(ATTN_INVALID, "--page-table has shape %s: with %lld slots to a page, too many keys",
                         attn_shape_text(table.extent, table.rank, shape), (long long)desc->page_size);
    return ATTN_OK;
}

static attn_status check_pages_hold(const attn_inputs *inputs)
{
    const attn_desc *desc = &inputs->desc;
    const int32_t *lens = inputs->args.lens_kv;
    for (int64_t i = 0; i < desc->batch; i++)
        if (lens[i] > desc->len_kv)
            return attn_fail(
                ATTN_INVALID,
                "--lens-kv: lens_kv[%lld] = %d, and a sequence's %lld pages in --page-table hold %lld keys",
                (long long)i, (int)lens[i], (long long)desc->table_width, (long long)desc->len_kv);
    return ATTN_OK;
}

static attn_status open_lens(attn_inputs *inputs, const attn_input_options *options)
{
    attn_array lens;
    attn_status status = ATTN_OK;
    if (options->lens_q) {
        status = load_lens(inputs, "lens-q", options->lens_q, inputs->desc.batch, &lens);
        inputs->desc.flags |= ATTN_LENS_Q;
        inputs->args.lens_q = lens.data;
    }
    if (!status && options->lens_kv) {
        status = load_lens(inputs, "lens-kv", options->lens_kv, inputs->desc.batch, &lens);
        inputs->desc.flags |= ATTN_LENS_KV;
        inputs->args.lens_kv = lens.data;
    }
    return !status && inputs->desc.page_size > 0 ? check_pages_hold(inputs) : status;
}

static attn_status fill_prefix(attn_inputs *inputs, const attn_input_options *options)
{
    const attn_desc *desc = &inputs->desc;
    int64_t prefix = options->problem.prefix;
    if (prefix < 0) return ATTN_OK;
    if (prefix > desc->len_kv || prefix > INT32_MAX)
        return attn_fail(ATTN_INVALID, "--prefix %lld is more than the %lld keys of a sequence", (long long)prefix,
                         (long long)desc->len_kv);
    int32_t *each = attn_inputs_buffer(inputs, desc->batch, sizeof *each);
    if (!each) return ATTN_NO_MEMORY;
    for (int64_t i = 0; i < desc->batch; i++)
        each[i] = (int32_t)prefix;
    inputs->args.prefix = each;
    return ATTN_OK;
}

static attn_status open_alibi(attn_inputs *inputs, const attn_input_options *options)
{
    attn_desc *desc = &inputs->desc;
    attn_array slopes;
    if (!options->alibi) return ATTN_OK;
    attn_status status = attn_inputs_load(inputs, "alibi", options->alibi, &slopes);
    if (status) return status;
    int64_t extent[] = { desc->batch, desc->heads_q };
    bool shared = slopes.rank == 1;
    status = attn_inputs_expect("alibi", &slopes, ATTN_TAKES_F32, shared ? 1 : 2, extent + shared, shared ? 0 : 1);
    desc->flags |= ATTN_ALIBI;
    desc->alibi_batch = shared ? 1 : slopes.extent[0];
    inputs->alibi = slopes;
    inputs->args.alibi = slopes.data;
    return status;
}

static attn_status open_bias(attn_inputs *inputs, const attn_input_options *options)
{
    attn_desc *desc = &inputs->desc;
    attn_array bias;
    if (!options->bias) return ATTN_OK;
    attn_status status = attn_inputs_load(inputs, "bias", options->bias, &bias);
    if (status) return status;
    int64_t extent[] = { desc->batch, desc->heads_q, desc->len_q, desc->len_kv };
    status = attn_inputs_expect("bias", &bias, ATTN_TAKES_F32 | ATTN_TAKES_F16, 4, extent, 15);
    desc->flags |= ATTN_BIAS;
    desc->bias_dtype = attn_element_dtype(bias.element);
    for (int i = 0; i < 4; i++)
        desc->bias_extent[i] = bias.extent[i];
    inputs->bias = bias;
    inputs->args.bias = bias.data;
    return status;
}

static attn_status open_sink(attn_inputs *inputs, const attn_input_options *options)
{
    attn_array sink;
    if (!options->sink) return ATTN_OK;
    attn_status status = attn_inputs_load(inputs, "sink", options->sink, &sink);
    if (!status) status = attn_inputs_expect("sink", &sink, ATTN_TAKES_F32, 1, &inputs->desc.heads_q, 0);
    inputs->desc.flags |= ATTN_SINK;
    inputs->args.sink = sink.data;
    return status;
}

static attn_status open_intervals(attn_inputs *inputs, const attn_input_options *options)
{
    attn_desc *desc = &inputs->desc;
    attn_array table;
    if (!options->intervals) return ATTN_OK;
    attn_status status = attn_inputs_load(inputs, "intervals", options->intervals, &table);
    if (status) return status;
    int64_t extent[] = { desc->batch, desc->heads_kv, desc->len_kv, ATTN_OR_MORE(1) };
    status = attn_inputs_expect_table(inputs, "intervals", &table, 4, extent, 2);
    int64_t vectors = table.extent[3];
    if (!status && vectors != 1 && vectors != 2 && vectors != 4)
        return attn_fail(ATTN_INVALID, "--intervals has %lld vectors: takes 1 or 2 with --causal, 2 or 4 without",
                         (long long)vectors);
    desc->flags |= ATTN_INTERVALS;
    desc->interval_vectors = vectors;
    desc->interval_heads = table.extent[1];
    inputs->args.intervals = table.data;
    return status;
}

/* The size of a block, from how many there are. */
static attn_status block_size(const char *what, int64_t length, int64_t blocks, int64_t *size)
{
    *size = blocks ? attn_ceil_div(length, blocks) : 0;
    if (*size == 0) *size = 1;
    int64_t fitting = attn_ceil_div(length, *size);
    if (fitting == blocks) return ATTN_OK;
    return attn_fail(ATTN_INVALID, "--block-mask has %lld blocks for %lld %s: blocks of %lld make %lld",
                     (long long)blocks, (long long)length, what, (long long)*size, (long long)fitting);
}

static attn_status fill_blocks(attn_inputs *inputs, const attn_array *mask)
{
    int64_t rows = mask->extent[0] * mask->extent[1] * mask->extent[2], columns = mask->extent[3];
    const uint8_t *visible = mask->data;
    int32_t *counts = attn_inputs_buffer(inputs, rows, sizeof *counts);
    int32_t *lists = counts ? attn_inputs_buffer(inputs, mask->count, sizeof *lists) : NULL;
    if (!lists) return ATTN_NO_MEMORY;
    for (int64_t row = 0; row < rows; row++) {
        counts[row] = 0;
        for (int64_t column = 0; column < columns; column++) {
            if (visible[row * columns + column]) lists[row * columns + counts[row]++] = (int32_t)column;
        }
    }
    inputs->args.block_full_count = counts;
    inputs->args.block_full = lists;
    return ATTN_OK;
}

static attn_status open_blocks(attn_inputs *inputs, const attn_input_options *options)
{
    attn_desc *desc = &inputs->desc;
    attn_array mask;
    if (!options->block_mask) return ATTN_OK;
    attn_status status = attn_inputs_load(inputs, "block-mask", options->block_mask, &mask);
    if (status) return status;
    int64_t extent[] = { desc->batch, desc->heads_q, ATTN_OR_MORE(0), ATTN_OR_MORE(0) };
    status = attn_inputs_expect("block-mask", &mask, ATTN_TAKES_MASK, 4, extent, 3);
    if (!status) status = block_size("rows", desc->len_q, mask.extent[2], &desc->block_rows);
    if (!status) status = block_size("keys", desc->len_kv, mask.extent[3], &desc->block_keys);
    desc->flags |= ATTN_BLOCKS;
    desc->block_batch = mask.extent[0];
    desc->block_heads = mask.extent[1];
    return status ? status : fill_blocks(inputs, &mask);
}

/* One bit a key, from one bool. */
static attn_status pack_bits(attn_inputs *inputs, attn_array *mask)
{
    int64_t keys = mask->extent[3], bytes = attn_ceil_div(keys, 8), rows = 1;
    const uint8_t *visible = mask->data;
    for (int i = 0; i < 3; i++)
        rows *= mask->extent[i];
    uint8_t *bits = keys ? attn_inputs_buffer(inputs, rows, bytes) : attn_inputs_buffer(inputs, 1, 1);
    if (!bits) return ATTN_NO_MEMORY;
    for (int64_t row = 0; keys && row < rows; row++)
        for (int64_t byte = 0; byte < bytes; byte++) {
            unsigned set = 0;
            for (int64_t j = 8 * byte; j < keys && j < 8 * byte + 8; j++)
                set |= (unsigned)(visible[row * keys + j] != 0) << j % 8;
            bits[row * bytes + byte] = (uint8_t)set;
        }
    mask->data = bits;
    return ATTN_OK;
}

static attn_status open_mask(attn_inputs *inputs, const attn_input_options *options)
{
    attn_desc *desc = &inputs->desc;
    attn_array mask;
    if (!options->mask) return ATTN_OK;
    attn_status status = attn_inputs_load(inputs, "mask", options->mask, &mask);
    if (status) return status;
    bool bits = mask.element == ATTN_ELEMENT_U8, plain = mask.rank == 2;
    int64_t extent[] = { desc->batch, desc->heads_q, desc->len_q,
                         bits ? attn_ceil_div(desc->len_kv, 8) : desc->len_kv };
    status = attn_inputs_expect(bits ? "mask (uint8: a bit per key)" : "mask", &mask, ATTN_TAKES_MASK, plain ? 2 : 4,
                                extent + 2 * plain, plain ? 0 : 3);
    if (status) return status;
    if (plain) {
        mask.extent[3] = mask.extent[1], mask.extent[2] = mask.extent[0];
        mask.extent[0] = mask.extent[1] = 1;
    }
    desc->flags |= ATTN_BITS;
    desc->bits_batch = mask.extent[0];
    desc->bits_heads = mask.extent[1];
    if (!bits) status = pack_bits(inputs, &mask);
    inputs->args.bits = mask.data;
    return status;
}

attn_status attn_inputs_open_masks(attn_inputs *inputs, const attn_input_options *options)
{
    attn_status status = open_packed(inputs, options);
    if (!status) status = open_pages(inputs, options);
    if (!status) status = open_lens(inputs, options);
    if (!status) status = fill_prefix(inputs, options);
    if (!status) status = open_alibi(inputs, options);
    if (!status) status = open_bias(inputs, options);
    if (!status) status = open_sink(inputs, options);
    if (!status) status = open_intervals(inputs, options);
    if (!status) status = open_blocks(inputs, options);
    if (!status) status = open_mask(inputs, options);
    return status;
}
