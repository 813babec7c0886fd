/* The kernels beside those of attention, on the CPU: they summarise masks, copy tensors and keys, and merge. What they
 * are launched with is compared with the contract (sm90/params.h, common/widen_params.h, common/merge_params.h), and
 * then done. */
#include "emulate.h"

#include <math.h>
#include <string.h>

#include "num/half.h"
#include "problem/desc.h"

#include "cuda/common/merge_params.h"
#include "cuda/common/widen_params.h"

/* ---- sequences ----------------------------------------------------------------------------- */

/* Row 0 in its plane of the tensor, and how many rows count. */
typedef struct sequence {
    int64_t plane, start, length;
} sequence;

static sequence sequence_of(const int *cu_lens, const int *lens, int64_t len, int64_t batch)
{
    sequence s = { cu_lens ? 0 : batch, cu_lens ? cu_lens[batch] : 0, cu_lens ? cu_lens[batch + 1] : len };
    s.length -= s.start;
    if (lens && lens[batch] < s.length) s.length = lens[batch] > 0 ? lens[batch] : 0;
    return s;
}

static sequence queries_of(const attn_cuda_shape *p, int64_t batch)
{
    return sequence_of(p->cu_lens_q, p->lens_q, p->len_q, batch);
}

static sequence keys_of(const attn_cuda_shape *p, int64_t batch)
{
    return sequence_of(p->cu_lens_kv, p->lens_kv, p->len_kv, batch);
}

/* ---- summaries of masks -------------------------------------------------------------------- */

/* count: of summaries of a head. */
static void summarise(const char *symbol, const CUlaunchConfig *config, const attn_sm90_params *p, unsigned count)
{
    fake_expect(config->gridDimY == (unsigned)p->mask.interval_heads && config->gridDimZ == (unsigned)p->shape.batch,
                symbol, "grid");
    fake_map map;
    memcpy(&map, &p->k_map, sizeof map);
    bool mapped = !(p->shape.flags & ATTN_PAGED) && !p->spans.unfit; /* by the variant that reads the summaries */
    int keys = mapped ? (int)map.box[2] : p->mask.summary_keys;
    fake_expect(count == (unsigned)ATTN_CUDA_SUMMARIES(p->shape.len_kv, keys), symbol, "grid");
    size_t ints = 8 * (size_t)count * config->gridDimY * config->gridDimZ;
    for (size_t i = 0; i < ints; i++)
        p->mask.summaries[i] = keys;
    size_t tiles = ((size_t)p->shape.len_kv + (size_t)keys - 1) / (size_t)keys,
           words = 2 * (size_t)keys * ATTN_CUDA_INTERVAL_PAIRS(p->mask.interval_vectors);
    for (size_t i = 0; p->mask.interval_tiles && i < tiles * words * config->gridDimY * config->gridDimZ; i++)
        p->mask.interval_tiles[i] = (unsigned)keys;
}

/* Of either pass of spans. */
static void check_planes(const char *symbol, const CUlaunchConfig *config, const attn_sm90_params *p, int64_t most)
{
    const attn_sm90_spans *s = &p->spans;
    bool intervals = p->shape.flags & ATTN_INTERVALS;
    int64_t blocks = attn_ceil_div(most, ATTN_SM90_SPAN_ROWS);
    if (blocks > ATTN_SM90_SPAN_BLOCKS) blocks = ATTN_SM90_SPAN_BLOCKS;
    fake_expect(s->blocks == blocks && config->gridDimY == (unsigned)s->heads &&
                    config->gridDimZ == (unsigned)s->batch && config->blockDimX == ATTN_SM90_SPAN_ROWS,
                symbol, "grid");
    fake_expect(s->heads == (intervals ? p->mask.interval_heads : 1), symbol, "heads");
    fake_expect(s->batch == p->shape.batch || (s->batch == 1 && !intervals), symbol, "batch");
    fake_expect((uintptr_t)s->of % 16 == 0 && (uintptr_t)s->unfit % 16 == 0, symbol, "alignment");
}

/* Where another variant is there for them, spans fit an even number of rows. */
static void mark_fit(const attn_sm90_params *p)
{
    const attn_sm90_spans *s = &p->spans;
    if (s->counter) *s->counter = 0;
    if (s->unfit) memset(s->unfit, p->shape.len_q % 2, (size_t)ATTN_SM90_SPAN_FLAGS(s->batch * s->heads * s->blocks));
}

/* Marks its memory, from end to end. */
static void find_spans(const char *symbol, const CUlaunchConfig *config, const attn_sm90_params *p)
{
    const attn_sm90_spans *s = &p->spans;
    bool intervals = p->shape.flags & ATTN_INTERVALS;
    int64_t most = intervals && p->shape.len_kv > p->shape.len_q ? p->shape.len_kv : p->shape.len_q;
    check_planes(symbol, config, p, most);
    fake_expect(s->pitch == ATTN_SM90_SPAN_PITCH(p->shape.len_q), symbol, "pitch");
    fake_expect(intervals == (s->unfit != NULL), symbol, "unfit");
    int64_t planes = (int64_t)s->batch * s->heads, bytes = ATTN_SM90_SPAN_BYTES(p->schedule.rows * p->schedule.pack);
    for (int64_t i = 0; i < 2 * planes * s->pitch + bytes / 4; i++)
        s->of[i] = s->pitch;
    fake_expect(!p->schedule.counter || p->schedule.counter == s->counter, symbol, "counter");
    if (intervals) summarise(symbol, config, p, config->gridDimX - (unsigned)s->blocks);
    if (!intervals) fake_expect(config->gridDimX == (unsigned)s->blocks, symbol, "grid");
    mark_fit(p);
}

/* The same of keys, whose rows lie apart only if they have two ends between rows. */
static void find_key_spans(const char *symbol, const CUlaunchConfig *config, const attn_sm90_params *p)
{
    const attn_sm90_spans *s = &p->spans;
    int vectors = p->shape.flags & ATTN_INTERVALS ? p->mask.interval_vectors : 0;
    bool apart = vectors == 4 || (vectors == 2 && p->shape.flags & ATTN_CAUSAL);
    check_planes(symbol, config, p, p->shape.len_kv);
    fake_expect(config->gridDimX == (unsigned)s->blocks, symbol, "grid");
    fake_expect(s->pitch == ATTN_SM90_KEY_SPANS(p->shape.len_kv), symbol, "pitch");
    fake_expect(apart == (s->unfit != NULL), symbol, "unfit");
    for (int64_t i = 0; i < (int64_t)s->batch * s->heads * ATTN_SM90_KEY_SPAN_BYTES(p->shape.len_kv) / 4; i++)
        s->of[i] = s->pitch;
    mark_fit(p);
}

bool fake_stands_aside(const char *symbol, const attn_cuda_kernel *k, const attn_sm90_params *p)
{
    fake_expect(!k->spans || (p->spans.of && p->spans.of[0] == p->spans.pitch), symbol, "spans were not found");
    return p->spans.unfit && !*p->spans.unfit != k->spans;
}

/* Only marks its memory, from end to end. */
static void find_bit_tiles(const char *symbol, const CUlaunchConfig *config, const attn_sm90_params *p)
{
    const attn_cuda_mask *m = &p->mask;
    int64_t pairs = ATTN_CUDA_BIT_TILES(p->shape.len_q, p->shape.len_kv, m->summary_keys);
    fake_expect(p->shape.flags & ATTN_BITS && !(p->shape.flags & ATTN_BLOCKS) && m->bits, symbol, "bits");
    fake_expect(m->summary_keys % 16 == 0 && m->summary_keys <= 128, symbol, "keys of a tile");
    fake_expect(config->gridDimX == pairs && config->gridDimY == (unsigned)m->bits_heads &&
                    config->gridDimZ == (unsigned)m->bits_batch && config->blockDimX == 256,
                symbol, "grid");
    for (int64_t i = 0; i < 2 * pairs * m->bits_heads * m->bits_batch; i++)
        m->bit_tiles[i] = (unsigned)m->summary_keys;
}

void fake_check_bit_tiles(const char *symbol, const attn_cuda_kernel *k, const attn_sm90_params *p)
{
    bool wanted = p->shape.len_q > k->q_tile && !k->paged;
    if ((p->shape.flags & (ATTN_BITS | ATTN_BLOCKS)) != ATTN_BITS) return;
    fake_expect(!wanted == !p->mask.bit_tiles, symbol, "the summary of bits is missing, or not wanted");
    fake_expect(!wanted || p->mask.bit_tiles[0] == (unsigned)k->kv_tile, symbol, "bits were not summarised");
}

/* Row by row. Keys that have no bit have a one. */
static void widen_bits(const char *symbol, const CUlaunchConfig *config, const attn_sm90_widen_params *p)
{
    const attn_cuda_shape *s = &p->shape;
    int64_t heads = config->gridDimY, pitch = attn_ceil_div(s->len_kv, 8), known = attn_ceil_div(p->bits_keys, 8);
    fake_expect(config->gridDimX == attn_ceil_div(s->len_q, 8) && config->blockDimX == 256, symbol, "grid");
    fake_expect(p->bits && p->out && p->bits_keys > 0, symbol, "bits");
    for (int64_t line = 0; line < config->gridDimZ * heads * s->len_q; line++) {
        int64_t number = line / (heads * s->len_q), of_plane = line % (heads * s->len_q);
        const unsigned char *bits = p->bits + ((p->bits_batch == 1 ? 0 : number) * heads * s->len_q + of_plane) * known;
        int64_t len_kv = keys_of(s, number).length;
        memset(p->out + line * pitch, 0xff, (size_t)pitch);
        for (int64_t bit = 0; bit < p->bits_keys; bit++) {
            int64_t key = len_kv - p->bits_keys + bit;
            if (key >= 0 && !(bits[bit / 8] >> bit % 8 & 1))
                p->out[line * pitch + key / 8] &= (unsigned char)~(1u << key % 8);
        }
    }
}

/* ---- copies of tensors and keys ------------------------------------------------------------ */

static float widening_scale(const attn_cuda_scale *s, int64_t plane, int64_t row, int64_t head, int64_t dim)
{
    if (!s->at) return 1;
    int64_t block = s->rows ? row / s->rows : 0;
    return s->at[plane * s->stride[0] + block * s->stride[1] + head * s->stride[2] + dim * s->stride[3]];
}

/* A head of a key, which is slot `row` of page `plane`, or row `row` of sequence `batch`, to line `to` of the copy. */
static void widen_head(const attn_cuda_widen_params *p, const attn_cuda_widened *w, attn_dtype dtype, int64_t batch,
                       int64_t plane, int64_t line, int64_t row, int64_t head, int64_t to)
{
    int64_t at = plane * w->stride[0] + line * w->stride[1] + head * w->stride[2],
            out = (to * w->heads + head) * w->pieces * ATTN_CUDA_WIDEN_COLUMNS,
            group = p->queries && w->scale.of_kv_heads ? p->shape.heads_q / p->shape.heads_kv : 1;
    bool of_page = p->shape.flags & ATTN_PAGED && w->scale.rows;
    float most = dtype == ATTN_F16 ? 128
                 : w == &p->of[1]  ? 0x1p40f
                                   : 0x1p100f,
          least = dtype == ATTN_F16 ? 0x1p-16f : 0x1p-100f;
    for (int64_t i = 0; i < w->pieces * ATTN_CUDA_WIDEN_COLUMNS; i++) {
        float scale = widening_scale(&w->scale, of_page ? plane : batch, row, head / group, i < w->dim ? i : 0), x = 0;
        if (i < w->dim) x = attn_load_scalar((attn_dtype)p->in_dtype, w->in, at + i);
        if (scale != 1 && (fabsf(scale) > most || (fabsf(scale) < least && x != 0))) *p->unfit = 1;
        attn_store_scalar(dtype, w->out, out + i, i < w->dim ? x * scale : 0);
    }
}

/* The rows of q that a sequence has. */
static void widen_rows(const attn_cuda_widen_params *p, attn_dtype dtype, int64_t batch)
{
    sequence s = queries_of(&p->shape, batch);
    for (int64_t i = 0; i < s.length * p->shape.heads_q; i++)
        widen_head(p, &p->of[0], dtype, batch, s.plane, s.start + i / p->shape.heads_q, i / p->shape.heads_q,
                   i % p->shape.heads_q, s.plane * p->shape.len_q + s.start + i / p->shape.heads_q);
}

/* All keys of a sequence, whatever its rows see, but for those in no page. */
static void widen_sequence(const attn_cuda_widen_params *p, attn_dtype dtype, int64_t batch)
{
    const attn_page_table *t = &p->table;
    bool paged = p->shape.flags & ATTN_PAGED;
    sequence s = keys_of(&p->shape, batch);
    int64_t entry0 = !paged ? 0 : t->width ? batch * t->width : t->starts[batch];
    for (int64_t key = 0; key < s.length; key++) {
        int64_t plane = s.plane, line = s.start + key, row = key, to = plane * p->shape.len_kv + line;
        if (paged) {
            int64_t entry = entry0 + key / t->page_size;
            plane = t->ids[entry], line = row = key % t->page_size, to = entry * t->page_size + row;
            bool there = plane >= 0 && plane < t->pages;
            p->ids[entry] = there ? (int)entry : -1;
            if (!there) continue;
        }
        for (int64_t i = 0; i < 2 * p->shape.heads_kv; i++)
            widen_head(p, &p->of[i % 2], dtype, batch, plane, line, row, i / 2, to);
    }
}

static void widen(const char *symbol, const CUlaunchConfig *config, const attn_cuda_widen_params *p)
{
    int tensors = p->queries ? 1 : 2;
    fake_expect(config->gridDimY == (unsigned)p->shape.batch && config->gridDimZ == (unsigned)tensors &&
                    config->blockDimX == ATTN_CUDA_WIDEN_THREADS,
                symbol, "grid");
    bool scales = p->of[0].scale.at || p->of[1].scale.at;
    fake_expect((!scales || *p->unfit == 0) && p->tile > 0 && p->tile <= 256, symbol, "parameters");
    for (int i = 0; i < tensors; i++) {
        int64_t of_row = (int64_t)p->of[i].heads * p->of[i].pieces;
        fake_expect(p->of[i].heads == (p->queries ? p->shape.heads_q : p->shape.heads_kv), symbol, "heads");
        fake_expect(p->of[i].pieces == attn_ceil_div(p->of[i].dim, ATTN_CUDA_WIDEN_COLUMNS) &&
                        (uintptr_t)p->of[i].out % 16 == 0,
                    symbol, "pieces");
        fake_expect(p->block_rows == 1 || p->block_rows * of_row <= ATTN_CUDA_WIDEN_PIECES, symbol, "rows of a block");
    }
    for (int64_t b = 0; b < p->shape.batch && fake_computes(); b++)
        (p->queries ? widen_rows : widen_sequence)(p, fake_dtype_of(symbol), b);
}

static void narrow(const char *symbol, const CUlaunchConfig *config, const attn_cuda_narrow_params *p)
{
    fake_expect(config->gridDimY == (unsigned)p->shape.batch && config->gridDimZ == 1 &&
                    config->blockDimX == ATTN_CUDA_WIDEN_THREADS,
                symbol, "grid");
    fake_expect(p->pieces == attn_ceil_div(p->shape.dim_v, ATTN_CUDA_NARROW_COLUMNS) && (uintptr_t)p->in % 16 == 0,
                symbol, "pieces");
    for (int64_t b = 0; b < p->shape.batch && fake_computes(); b++) {
        sequence s = queries_of(&p->shape, b);
        for (int64_t i = 0; i < s.length * p->shape.heads_q * p->shape.dim_v; i++) {
            int64_t c = i % p->shape.dim_v, head = i / p->shape.dim_v % p->shape.heads_q,
                    row = s.start + i / p->shape.dim_v / p->shape.heads_q,
                    at = ((s.plane * p->shape.len_q + row) * p->shape.heads_q + head) * p->shape.dim_v + c,
                    o = s.plane * p->shape.o_stride[0] + row * p->shape.o_stride[1] + head * p->shape.o_stride[2] + c;
            attn_store_scalar(fake_dtype_of(symbol), p->shape.o, o, p->in[at] / (p->scale ? *p->scale : 1));
        }
    }
}

static void copy_tensor(const char *symbol, const attn_sm90_copy *c)
{
    unsigned char *out = c->out;
    size_t pitch = 16 * (size_t)c->pieces;
    fake_expect(c->pieces == (c->bytes + 15) / 16 && (uintptr_t)out % 16 == 0, symbol, "pieces");
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t r = 0; r < c->rows; r++)
            for (int64_t h = 0; h < c->heads; h++, out += pitch) {
                const unsigned char *in = c->in + b * c->stride[0] + r * c->stride[1] + h * c->stride[2];
                fake_expect(in >= c->begin && in + c->bytes <= c->end, symbol, "ends of a tensor");
                memset(out, 0, pitch);
                memcpy(out, in, (size_t)c->bytes);
            }
}

static void repack(const char *symbol, const CUlaunchConfig *config, const attn_sm90_repack_params *p)
{
    fake_expect(config->gridDimZ > 0 && config->gridDimZ <= 3 && config->blockDimX == 256, symbol, "grid");
    for (unsigned i = 0; i < config->gridDimZ; i++) {
        const attn_sm90_copy *c = &p->of[i];
        fake_expect((int64_t)config->gridDimX * c->block_rows >= c->rows && config->gridDimY >= (unsigned)c->batch,
                    symbol, "grid");
        fake_expect(c->block_rows == 1 || c->block_rows * c->heads * c->pieces <= ATTN_SM90_COPY_PIECES, symbol,
                    "rows of a block");
        copy_tensor(symbol, c);
    }
}

/* ---- V, transposed -------------------------------------------------------------------------- */

static int64_t transposed_column(const attn_sm90_params *p, int64_t batch, int64_t key, int tile)
{
    bool varlen = p->shape.flags & ATTN_VARLEN;
    int64_t start = varlen ? ATTN_SM90_TRANSPOSED_START(keys_of(&p->shape, batch).start, batch, tile) : 0, k = key % 16;
    return start + key - k + k % 8 / 2 * 4 + k / 8 * 2 + k % 2;
}

static void transpose(const char *symbol, const CUlaunchConfig *config, const attn_sm90_transpose_params *p)
{
    const attn_sm90_params of = { .shape = p->shape };
    bool varlen = p->shape.flags & ATTN_VARLEN;
    int64_t heads = p->shape.heads_kv, dim = p->shape.dim_v, keys = attn_round_up(p->shape.len_kv, p->tile);
    fake_expect(config->gridDimX == (unsigned)attn_ceil_div(keys, ATTN_SM90_TRANSPOSE_KEYS) &&
                    config->gridDimY == (unsigned)heads && config->gridDimZ == (unsigned)p->shape.batch &&
                    config->blockDimX == 256,
                symbol, "grid");
    fake_expect(p->pitch % 16 == 0 && (uintptr_t)p->out % 16 == 0, symbol, "alignment");
    const bool read[] = { !varlen && p->shape.batch > 1, (varlen ? p->shape.total_kv : p->shape.len_kv) > 1,
                          heads > 1 }; /* strides that are */
    bool wide = (uintptr_t)p->in % 16 == 0;
    for (int i = 0; i < 3; i++)
        wide = wide && (!read[i] || p->stride[i] % 16 == 0);
    fake_expect(wide || !p->wide, symbol, "v is not at multiples of 16");
    for (int64_t b = 0; b < p->shape.batch; b++) {
        sequence s = keys_of(&p->shape, b);
        for (int64_t key = 0; key < attn_round_up(s.length, p->tile); key++) {
            int64_t column = transposed_column(&of, b, key, p->tile);
            if (column >= p->pitch) continue;
            const unsigned char *in = p->in + s.plane * p->stride[0] + (s.start + key) * p->stride[1];
            for (int64_t i = 0; i < heads * dim; i++)
                p->out[(s.plane * heads * dim + i) * p->pitch + column] =
                    key < s.length ? in[i / dim * p->stride[2] + i % dim] : 0;
        }
    }
}

void fake_untranspose(const attn_sm90_params *p, const unsigned char *copy, int64_t pitch, int tile, unsigned char *v)
{
    int64_t heads = p->shape.heads_kv, dim = p->shape.dim_v;
    for (int64_t b = 0; b < p->shape.batch; b++) {
        sequence s = keys_of(&p->shape, b);
        for (int64_t key = 0; key < s.length; key++)
            for (int64_t i = 0; i < heads * dim; i++)
                v[((s.plane * p->shape.len_kv + s.start + key) * heads) * dim + i] =
                    copy[(s.plane * heads * dim + i) * pitch + transposed_column(p, b, key, tile)];
    }
}

/* ---- merging ------------------------------------------------------------------------------- */

/* Parts that are merged, or added up. */
static void merge(const char *symbol, const CUlaunchConfig *config, const attn_cuda_merge_params *p)
{
    attn_merge_desc d = { .dtype = fake_dtype_of(symbol),
                          .out_dtype = (attn_dtype)p->out_dtype,
                          .parts = p->parts,
                          .batch = p->lines / ((int64_t)p->rows * p->heads),
                          .rows = p->rows,
                          .heads = p->heads,
                          .dim = p->dim,
                          .part_stride[3] = 1,
                          .o_stride[3] = 1,
                          .threads = 1,
                          .sums = p->sums };
    attn_merge_args a = { .part_o = p->part_o, .part_lse = p->sums ? NULL : p->part_lse, .o = p->o, .lse = p->lse };
    attn_merge_plan *plan;
    fake_expect(config->gridDimX == attn_ceil_div(p->lines, 8) && config->blockDimX == 256, symbol, "grid");
    for (int i = 0; i < p->parts; i++)
        fake_expect(!p->part_rows[i], symbol, "parts with numbers of rows are not merged here");
    for (int i = 0; i < 3; i++)
        d.part_stride[i] = p->part_stride[i], d.o_stride[i] = p->o_stride[i];
    if (attn_merge_plan_create(&plan, &d) || attn_merge_run(plan, &a, NULL)) fake_die("%s: %s", symbol, attn_error());
    attn_merge_plan_destroy(plan);
}

/* ---- all of them --------------------------------------------------------------------------- */

size_t fake_around_params_size(const char *symbol)
{
    if (strcmp(symbol, "attn_sm90_transpose") == 0) return sizeof(attn_sm90_transpose_params);
    if (strcmp(symbol, "attn_sm90_repack") == 0) return sizeof(attn_sm90_repack_params);
    if (strcmp(symbol, "attn_sm90_widen_bits") == 0) return sizeof(attn_sm90_widen_params);
    if (strncmp(symbol, "attn_sm90_widen_", 16) == 0) return sizeof(attn_cuda_widen_params);
    if (strncmp(symbol, "attn_sm90_narrow_", 17) == 0) return sizeof(attn_cuda_narrow_params);
    if (strncmp(symbol, "attn_merge_", 11) == 0) return sizeof(attn_cuda_merge_params);
    return 0;
}

bool fake_launch_around(const char *symbol, const CUlaunchConfig *config, const void *params)
{
    if (strcmp(symbol, "attn_sm90_interval_summary") == 0)
        summarise(symbol, config, params, config->gridDimX);
    else if (strcmp(symbol, "attn_sm90_find_spans") == 0)
        find_spans(symbol, config, params);
    else if (strcmp(symbol, "attn_sm90_find_key_spans") == 0)
        find_key_spans(symbol, config, params);
    else if (strcmp(symbol, "attn_sm90_bit_tiles") == 0)
        find_bit_tiles(symbol, config, params);
    else if (strcmp(symbol, "attn_sm90_widen_bits") == 0)
        widen_bits(symbol, config, params);
    else if (strncmp(symbol, "attn_sm90_widen_", 16) == 0)
        widen(symbol, config, params);
    else if (strncmp(symbol, "attn_sm90_narrow_", 17) == 0)
        narrow(symbol, config, params);
    else if (strcmp(symbol, "attn_sm90_transpose") == 0)
        transpose(symbol, config, params);
    else if (strcmp(symbol, "attn_sm90_repack") == 0)
        repack(symbol, config, params);
    else if (strncmp(symbol, "attn_merge_", 11) == 0)
        merge(symbol, config, params);
    else
        return false;
    return true;
}
