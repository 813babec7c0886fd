/* Contract: machine.h. Copies and products, which happen later. */
#include "inside.h"

#include <cstring>

#include "fake_driver.h"

extern "C" {
#include "num/half.h"
}

/* ---- copies -------------------------------------------------------------------------------- */

enum later_kind { TENSOR, BULK, SEND, COPY, STORE, ADD, STORE_TENSOR };

struct later {
    later_kind kind;
    thread *by;
    uint32_t to, barrier, bytes; /* from STORE on: `to` is read */
    const void *from;            /* STORE: written to; ADD: added to */
    int at[4];
    std::vector<unsigned char> data; /* SEND; from STORE on: what was read already */
    fake_map map;
    uint64_t due;       /* turn */
    uint64_t number;    /* in the order in which they were asked for; COPY: its group */
    uint32_t whole = 0; /* COPY: bytes that are written */
};

static std::vector<later> waiting;

/* 16-byte pieces of a line of 128, 64 or 32 bytes are permuted by the low bits of what stands above 128 bytes. */
static uint32_t swizzled(uint32_t address, uint32_t line)
{
    return address ^ (address >> 7 & (line / 16 - 1)) << 4;
}

/* Where a line of a box lies in the tensor, from its first column on; NULL: outside of it. */
static unsigned char *line_in_tensor(const later *l, uint32_t line)
{
    const fake_map *m = &l->map;
    int64_t y = l->at[1] + line % m->box[1], z = l->at[2] + line / m->box[1] % m->box[2];
    int64_t at[] = { y, z, l->at[3] + line / m->box[1] / m->box[2] };
    uint64_t address = m->address;
    for (int i = 0; i < 3; i++) {
        if (at[i] < 0 || at[i] >= (int64_t)m->extent[i + 1]) return nullptr;
        address += (uint64_t)at[i] * m->stride[i];
    }
    return (unsigned char *)address;
}

static const void *source_of(const later *l)
{
    return l->data.empty() ? memory_at(l->by->home, l->to, l->bytes, 16) : l->data.data();
}

/* Bytes of an element, and of a box's line. */
static uint32_t element_bytes(const fake_map *m)
{
    return m->type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2;
}

static uint32_t line_bytes(const fake_map *m)
{
    return m->box[0] * element_bytes(m);
}

/* A box: lines as long as the swizzle's. What is outside the tensor is read as zeros, and not written. */
static void copy_tensor(const later *l)
{
    bool writes = l->kind == STORE_TENSOR;
    const unsigned char *from = writes ? (const unsigned char *)source_of(l) : nullptr;
    uint32_t size = element_bytes(&l->map), length = line_bytes(&l->map);
    for (uint32_t line = 0; line < l->bytes / length; line++) {
        unsigned char *row = line_in_tensor(l, line);
        for (uint32_t x = 0; x < l->map.box[0]; x++) {
            int64_t column = l->at[0] + (int64_t)x;
            uint32_t at = swizzled(l->to + length * line + size * x, length);
            bool inside = row && column >= 0 && column < (int64_t)l->map.extent[0];
            const uint16_t outside = 0;
            if (writes && inside)
                memcpy(row + column * size, from + (at - l->to), size);
            else if (!writes)
                memcpy(memory_at(l->by->home, at, size, size),
                       inside ? row + column * size : (const unsigned char *)&outside, size);
        }
    }
}

static void add(const later *l)
{
    const float *x = (const float *)source_of(l);
    float *sums = (float *)l->from;
    for (uint32_t i = 0; i < l->bytes / 4; i++)
        sums[i] += x[i];
}

/* Copies to shared memory must not overtake loads from there. */
static void check_loads(const later *l, const block *b)
{
    for (const thread &t : b->threads)
        for (uint32_t at : t.loads)
            if (at - l->to < l->bytes)
                die("a copy comes to %u where thread %u loads, which has not fenced", at, t.place.thread.x);
}

static void perform(const later *l)
{
    block *b = l->by->home;
    switch (l->kind) {
    case TENSOR:
        check_loads(l, b);
        copy_tensor(l);
        break;
    case BULK:
        check_loads(l, b);
        memcpy(memory_at(b, l->to, l->bytes, 16), l->from, l->bytes);
        break;
    case SEND:
        memcpy(memory_at(b, l->to, l->bytes, 16), l->data.data(), l->bytes);
        break;
    case COPY:
        memcpy(memory_at(b, l->to, l->whole, l->whole), l->from, l->bytes);
        memset(memory_at(b, l->to, l->whole, l->whole) + l->bytes, 0, l->whole - l->bytes);
        return;
    case STORE:
        memcpy((void *)l->from, source_of(l), l->bytes);
        return;
    case ADD:
        add(l);
        return;
    case STORE_TENSOR:
        copy_tensor(l);
        return;
    }
    bytes_came(barrier_at(b, l->barrier), l->bytes);
}

static void perform_at(size_t i)
{
    later l = std::move(waiting[i]);
    waiting[i] = std::move(waiting.back());
    waiting.pop_back();
    perform(&l);
}

bool do_one_later(bool now)
{
    if (waiting.empty()) return false;
    size_t i = random_below((uint32_t)waiting.size());
    if (now || waiting[i].due <= turn) perform_at(i);
    return true;
}

/* Most things happen soon, some late. */
static void put_off(later l)
{
    static uint64_t numbers;
    l.due = turn + (random_below(4) ? 0 : random_below(3000));
    if (l.kind != COPY) l.number = ++numbers;
    waiting.push_back(std::move(l));
}

void gpu_wait_bulk(int newer)
{
    for (;;) {
        size_t count = 0, first = 0;
        for (size_t i = 0; i < waiting.size(); i++)
            if (waiting[i].by == running && waiting[i].kind >= STORE)
                if (count++ == 0 || waiting[i].number < waiting[first].number) first = i;
        if (count <= (size_t)newer) return;
        perform_at(first);
    }
}

void gpu_wait_bulk_read()
{
    for (later &l : waiting)
        if (l.by == running && l.kind >= STORE && l.data.empty()) {
            const unsigned char *from = (const unsigned char *)source_of(&l);
            l.data.assign(from, from + l.bytes);
        }
}

static void put_off_tensor(later_kind kind, const void *map, uint32_t shared, uint32_t barrier, const int at[4])
{
    fake_map m;
    memcpy(&m, map, sizeof m);
    uint32_t line = m.swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? 128 : m.swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64 : 0;
    if (m.magic != FAKE_MAP_MAGIC || line_bytes(&m) != line) die("no map of boxes as wide as the swizzle");
    uint32_t bytes = line * m.box[1] * m.box[2] * m.box[3];
    gpu_at(shared, bytes, 8 * line); /* where the swizzle begins anew */
    put_off({ kind, running, shared, barrier, bytes, nullptr, { at[0], at[1], at[2], at[3] }, {}, m, 0, 0 });
}

void gpu_load_tensor(uint32_t to, const void *map, uint32_t barrier, const int at[4])
{
    put_off_tensor(TENSOR, map, to, barrier, at);
}

void gpu_store_tensor(const void *map, uint32_t from, const int at[4])
{
    put_off_tensor(STORE_TENSOR, map, from, 0, at);
}

void gpu_load_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    if ((uintptr_t)from % 16 || bytes % 16) die("%u bytes from %p: no multiples of 16", bytes, from);
    gpu_at(to, bytes, 16);
    put_off({ BULK, running, to, barrier, bytes, from, {}, {}, {}, 0, 0 });
}

void gpu_send(uint32_t to, const void *data, uint32_t bytes, uint32_t barrier)
{
    const unsigned char *from = (const unsigned char *)data;
    gpu_at(to, bytes, 16);
    put_off({ SEND, running, to, barrier, bytes, nullptr, {}, { from, from + bytes }, {}, 0, 0 });
}

static void put_off_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t whole)
{
    if ((uintptr_t)from % whole || bytes > whole) die("a copy of %u bytes from %p", bytes, from);
    memset(gpu_at(to, whole, whole), 0xff, whole);
    put_off({ COPY, running, to, 0, bytes, from, {}, {}, {}, 0, running->copy_groups, whole });
}

void gpu_copy(uint32_t to, const void *from, uint32_t bytes)
{
    put_off_copy(to, from, bytes, 16);
}

void gpu_copy_word(uint32_t to, const void *from, uint32_t bytes)
{
    put_off_copy(to, from, bytes, 4);
}

void gpu_commit_copies(void)
{
    running->copy_groups++;
}

void gpu_wait_copies(int newer)
{
    dawdle(true);
    for (size_t i = waiting.size(); i-- > 0;)
        if (waiting[i].by == running && waiting[i].kind == COPY &&
            waiting[i].number + (uint64_t)newer < running->copy_groups)
            perform_at(i);
}

static void put_off_write(later_kind kind, float *to, uint32_t from, uint32_t bytes)
{
    if ((uintptr_t)to % 16 || bytes % 16) die("%u bytes to %p: no multiples of 16", bytes, (void *)to);
    gpu_at(from, bytes, 16);
    put_off({ kind, running, from, 0, bytes, to, {}, {}, {}, 0, 0 });
}

void gpu_store_bulk(float *to, uint32_t from, uint32_t bytes)
{
    put_off_write(STORE, to, from, bytes);
}

void gpu_add_bulk(float *to, uint32_t from, uint32_t bytes)
{
    put_off_write(ADD, to, from, bytes);
}

/* ---- products ------------------------------------------------------------------------------ */

static float to_float(int dtype, uint16_t x)
{
    return dtype == ATTN_BF16 ? attn_bf16_to_float(x) : attn_f16_to_float(x);
}

/* How long a line of an operand's panel is, by its descriptor. */
static uint32_t line_of(uint64_t descriptor)
{
    const uint32_t bytes[] = { 0, 128, 64, 32 };
    if (!(descriptor >> 62)) die("an operand that is not swizzled");
    return bytes[descriptor >> 62];
}

/* Elements (line + i, k) of an operand in shared memory, i < 8, or (line, k + i) if its lines run along k; by its
 * descriptor (tile.h). `along`: lines run along the 128 bytes, in panels of 64. */
static void load_eight(block *b, const product *p, uint64_t descriptor, bool along, uint32_t line, uint32_t k,
                       float *out)
{
    uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4, panel = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    uint32_t eight = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    uint32_t at = along ? start + line / 64 * panel + k / 8 * eight + k % 8 * 128 + line % 64 * 2
                        : start + line / 8 * eight + line % 8 * 128 + k * 2;
    if (line_of(descriptor) != 128) die("16-bit operands in lines of other than 128 bytes");
    const uint16_t *x = (const uint16_t *)memory_at(b, swizzled(at, 128), 16, 16);
    for (int i = 0; i < 8; i++)
        out[i] = to_float(p->dtype, x[i]);
}

/* The same as 32 rows of k: E4M3. */
static void load_bytes(block *b, uint64_t descriptor, int lines, float (*out)[256])
{
    uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4, length = line_of(descriptor);
    uint32_t eight = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    for (uint32_t line = 0; line < (uint32_t)lines; line++)
        for (uint32_t k = 0; k < 32; k += 16) {
            uint32_t at = start + line / 8 * eight + line % 8 * length + k;
            const unsigned char *x = memory_at(b, swizzled(at, length), 16, 16);
            for (int i = 0; i < 16; i++)
                out[k + i][line] = attn_e4m3_to_float(x[i]);
        }
}

/* Lines of an operand as 16 rows of k. */
static void load_operand(block *b, const product *p, uint64_t descriptor, bool along, int lines, float (*out)[256])
{
    float x[8];
    for (int line = 0; line < lines && along; line += 8)
        for (int k = 0; k < 16; k++)
            load_eight(b, p, descriptor, along, (uint32_t)line, (uint32_t)k, out[k] + line);
    for (int line = 0; line < lines && !along; line++)
        for (int k = 0; k < 16; k += 8) {
            load_eight(b, p, descriptor, along, (uint32_t)line, (uint32_t)k, x);
            for (int i = 0; i < 8; i++)
                out[k + i][line] = x[i];
        }
}

static int row_of(int lane, int i)
{
    return lane / LANES * 16 + lane % LANES / 4 + i / 2 % 2 * 8;
}

static int column_of(int lane, int i)
{
    return i / 4 * 8 + lane % 4 * 2 + i % 2;
}

#ifdef __x86_64__
__attribute__((target_clones("avx2", "default")))
#endif
static void
add_products(float (*sums)[256], const float (*left)[256], const float (*right)[256], int n)
{
    for (int r = 0; r < 64; r++)
        for (int k = 0; k < 16; k++)
            for (int c = 0; c < n; c++)
                sums[r][c] += left[k][r] * right[k][c];
}

/* E4M3: products and the sum so far are cut to multiples of 2^-13 of the greatest's power of two, as tensor cores do.
 * What is no number stays so. */
#ifdef __x86_64__
__attribute__((target_clones("avx2", "default")))
#endif
static void
add_bytes(float (*sums)[256], const float (*left)[256], const float (*right)[256], int n)
{
    for (int r = 0; r < 64; r++) {
        float whole[256], unit[256], inverse[256];
        int32_t units[256];
        for (int c = 0; c < n; c++)
            whole[c] = sums[r][c], unit[c] = fabsf(whole[c]);
        for (int k = 0; k < 32; k++)
            for (int c = 0; c < n; c++) {
                float x = left[k][r] * right[k][c];
                whole[c] += x, unit[c] = fabsf(x) > unit[c] ? fabsf(x) : unit[c];
            }
        for (int c = 0; c < n; c++) {
            bool cut = unit[c] >= 0x1p-60f && fabsf(whole[c]) < 0x1p60f;
            float power = attn_bits_to_float(attn_float_to_bits(unit[c]) & 0x7f800000u);
            inverse[c] = cut ? 0x1p13f / power : 0, unit[c] = cut ? power * 0x1p-13f : 0;
            units[c] = cut ? (int32_t)(sums[r][c] * inverse[c]) : 0;
        }
        for (int k = 0; k < 32; k++)
            for (int c = 0; c < n; c++) {
                float x = left[k][r] * right[k][c] * inverse[c];
                units[c] += (int32_t)(x == x ? x : 0);
            }
        for (int c = 0; c < n; c++)
            sums[r][c] = unit[c] ? (float)units[c] * unit[c] : whole[c];
    }
}

/* A lane's sums, four by four: two columns of its row, and of the row 8 further. */
static void move_sums(const product *p, int lane, float (*sums)[256], bool in)
{
    float *own = p->sums[lane], *line = &sums[row_of(lane, 0)][column_of(lane, 0)];
    for (int i = 0; i < p->n / 2; i += 4)
        for (int j = 0; j < 4; j++) {
            float *place = line + j / 2 * 8 * 256 + 2 * i + j % 2;
            if (in)
                *place = p->keep ? own[i + j] : 0;
            else
                own[i + j] = *place;
        }
}

static void multiply(block *b, const product *p)
{
    static float left[32][256], right[32][256], sums[64][256];
    bool bytes = p->dtype == ATTN_E4M3;
    if (bytes && p->form & (GPU_A_ALONG | GPU_B_ALONG)) die("E4M3 operands that are not K-major");
    if (bytes) {
        if (!(p->form & GPU_A_REGISTERS)) load_bytes(b, p->a, 64, left);
        load_bytes(b, p->b, p->n, right);
    } else {
        if (!(p->form & GPU_A_REGISTERS)) load_operand(b, p, p->a, p->form & GPU_A_ALONG, 64, left);
        load_operand(b, p, p->b, p->form & GPU_B_ALONG, p->n, right);
    }
    for (int lane = 0; lane < GROUP_LANES; lane++) {
        for (int i = 0; i < 16 && bytes && p->form & GPU_A_REGISTERS; i++)
            left[i / 8 * 16 + lane % 4 * 4 + i % 4][row_of(lane, i / 4 % 2 * 2)] =
                attn_e4m3_to_float((uint8_t)(p->words[lane][i / 4] >> i % 4 * 8));
        for (int i = 0; i < 8 && !bytes && p->form & GPU_A_REGISTERS; i++)
            left[column_of(lane, i)][row_of(lane, i)] =
                to_float(p->dtype, (uint16_t)(p->words[lane][i / 2] >> i % 2 * 16));
        move_sums(p, lane, sums, true);
    }
    if (bytes)
        add_bytes(sums, left, right, p->n);
    else
        add_products(sums, left, right, p->n);
    for (int lane = 0; lane < GROUP_LANES; lane++)
        move_sums(p, lane, sums, false);
}

static void multiply_until(block *b, group *g, uint64_t end)
{
    for (; g->done < end; g->done++) {
        if (g->products.front().lanes != GROUP_LANES) die("a product without all of its warpgroup");
        multiply(b, &g->products.front());
        g->products.pop_front();
    }
}

void gpu_product(int form, int dtype, int n, float *sums, uint64_t a, const uint32_t *words, uint64_t b, int keep)
{
    gpu_fence_async(); /* what it loaded is in its registers by now */
    group *g = group_of(running);
    int lane = group_lane(running);
    size_t at = g->issued[lane]++ - g->done;
    if (at == g->products.size()) {
        g->products.emplace_back();
        product *made = &g->products.back();
        made->form = form, made->dtype = dtype, made->n = n, made->keep = keep != 0, made->lanes = 0;
        made->a = a, made->b = b;
    }
    product *p = &g->products[at];
    if (p->form != form || p->n != n || p->keep != (keep != 0) || p->a != a || p->b != b)
        die("its warpgroup's warps are at different products");
    p->sums[lane] = sums;
    if (words) memcpy(p->words[lane], words, sizeof p->words[lane]);
    p->lanes++;
}

void gpu_commit(void)
{
    group *g = group_of(running);
    int lane = group_lane(running);
    uint64_t number = g->committed[lane]++;
    if (number == g->commits.size()) g->commits.push_back({ g->issued[lane], 0 });
    group::commit *c = &g->commits[number];
    if (c->end != g->issued[lane]) die("its warpgroup's warps commit different products");
    if (++c->lanes == GROUP_LANES && random_below(2)) multiply_until(running->home, g, c->end);
}

void gpu_wait(int pending)
{
    dawdle(true);
    group *g = group_of(running);
    uint64_t number = g->committed[group_lane(running)];
    if (g->waiting && g->pending != pending) die("its warpgroup's warps wait for different products");
    g->pending = pending;
    if (++g->waiting < GROUP_LANES) {
        wait_here("its warpgroup's products, pending", (uint32_t)pending);
        return;
    }
    g->waiting = 0;
    if (number > (uint64_t)pending) multiply_until(running->home, g, g->commits[number - (uint64_t)pending - 1].end);
    for (int i = 0; i < 4; i++) {
        warp *w = &running->home->warps[running->place.warp / 4 * 4 + i];
        w->ready |= w->live;
    }
    leave();
}

/* ---- matrices ------------------------------------------------------------------------------ */

/* Lane 8m + r names row r of matrix m; a row is 16 bytes, of which lane 4r + i has word i. */
void gpu_store_matrices(uint32_t address, const uint32_t *words)
{
    int lane = running->place.lane;
    for (int m = 0; m < 4; m++) {
        uint32_t row = gpu_warp(GPU_SHUFFLE, address, 8 * m + lane / 4);
        memcpy(gpu_at(row + (uint32_t)lane % 4 * 4, 4, 4), &words[m], 4);
    }
    gpu_warp(GPU_SYNC, 0, 0);
}

void gpu_load_matrices(uint32_t address, uint32_t *words)
{
    int lane = running->place.lane;
    for (int m = 0; m < 4; m++) {
        uint32_t row = gpu_warp(GPU_SHUFFLE, address, 8 * m + lane / 4);
        memcpy(&words[m], gpu_load(row + (uint32_t)lane % 4 * 4, 4), 4);
    }
}
