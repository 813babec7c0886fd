/* Operations on KV pages: drawn cases against their meaning, to the last byte that
 * must not change, at addresses that take wide accesses and at others; and what is out of range: it is not written, the
 * rest is, and `fault` is set. */
#include <string.h>
#include <unistd.h>

#include "../scale.h"
#include "base/error.h"
#include "check/kv_case.h"
#include "device/device.h"
#include "gpu.h"
#include "num/half.h"

#define COUNT(table) (int)(sizeof(table) / sizeof *(table))

/* ---- device memory ----------------------------------------------------------------------------- */

enum { PIECES = 2 * CHECK_KV_ARRAYS };

/* Host bytes and where they lie on the device. */
typedef struct piece {
    void *host;
    size_t size;
    CUdeviceptr memory, at;
} piece;

typedef struct device_case {
    check_kv_case *c;
    piece pieces[PIECES];
    int count;
} device_case;

static void add(device_case *d, void *host, size_t size, size_t shift)
{
    piece *p = &d->pieces[d->count++];
    *p = (piece){ .host = host, .size = size };
    bool good = driver->cuMemAlloc(&p->memory, size + shift + 16) == 0;
    p->at = p->memory + shift;
    if (size > 0) good = good && driver->cuMemcpyHtoD(p->at, host, size) == 0;
    result(good, "memory of the GPU");
}

/* shift: bytes by which tensors miss what wide accesses take. */
static device_case to_device(check_kv_case *c, size_t shift)
{
    device_case d = { .c = c };
    for (int i = 0; i < c->arrays; i++)
        add(&d, c->array[i].actual, c->array[i].size, shift);
    for (int i = 0; i < c->tables; i++)
        if (c->table[i]) add(&d, c->table[i], c->table_size[i], 0);
    return d;
}

static void *on_device(const device_case *d, const void *at)
{
    for (int i = 0; i < d->count && at; i++) {
        const char *host = d->pieces[i].host;
        if (at == host || ((const char *)at > host && (const char *)at < host + d->pieces[i].size))
            return (void *)(uintptr_t)(d->pieces[i].at + (CUdeviceptr)((const char *)at - host));
    }
    return NULL;
}

static attn_kv_args args_on_device(const device_case *d)
{
    attn_kv_args a = d->c->args;
    a.k = on_device(d, a.k), a.v = on_device(d, a.v), a.q = on_device(d, a.q), a.q_out = on_device(d, a.q_out);
    a.k_pages = on_device(d, a.k_pages), a.v_pages = on_device(d, a.v_pages);
    a.k_out = on_device(d, a.k_out), a.v_out = on_device(d, a.v_out);
    a.k_from = on_device(d, a.k_from), a.v_from = on_device(d, a.v_from);
    a.slots = on_device(d, a.slots), a.positions = on_device(d, a.positions), a.cu_lens = on_device(d, a.cu_lens);
    a.lens_kv = on_device(d, a.lens_kv), a.page_table = on_device(d, a.page_table);
    a.page_starts = on_device(d, a.page_starts), a.pairs = on_device(d, a.pairs);
    a.cos = on_device(d, a.cos), a.sin = on_device(d, a.sin);
    a.k_scale = on_device(d, a.k_scale), a.v_scale = on_device(d, a.v_scale);
    a.k_scale_from = on_device(d, a.k_scale_from), a.v_scale_from = on_device(d, a.v_scale_from);
    return a;
}

/* Runs the case there, and brings its tensors back. Whether `fault` was set. */
static bool run_on_device(check_kv_case *c, size_t shift)
{
    attn_kv_plan *plan;
    uint32_t fault = 0;
    device_case d = to_device(c, shift);
    add(&d, &fault, sizeof fault, 0);
    attn_kv_args args = args_on_device(&d);
    args.fault = on_device(&d, &fault);
    c->desc.device = ATTN_CUDA, c->desc.threads = 0;
    bool good = attn_kv_plan_create(&plan, &c->desc) == ATTN_OK;
    if (good) {
        good = attn_kv_run(plan, &args, NULL) == ATTN_OK && device_wait() == ATTN_OK;
        attn_kv_plan_destroy(plan);
    }
    result(good, "an operation on pages: %s", attn_error());
    for (int i = 0; i < d.count; i++) {
        if (i < c->arrays || d.pieces[i].host == &fault)
            driver->cuMemcpyDtoH(d.pieces[i].host, d.pieces[i].at, d.pieces[i].size);
        driver->cuMemFree(d.pieces[i].memory);
    }
    return fault != 0;
}

/* ---- tests ------------------------------------------------------------------------------------- */

static void random_cases(void)
{
    for (uint64_t seed = 1; seed <= 3000; seed += (uint64_t)test_scale()) {
        uint64_t random = seed;
        check_kv_case c;
        int array;
        if (!check_kv_draw(&c, &random)) {
            result(false, "pages, seed %llu: not drawn: %s", (unsigned long long)seed, attn_error());
            continue;
        }
        int64_t element = c.desc.flags & ATTN_KV_SCALES ? 4 : attn_dtype_size(c.desc.dtype);
        bool fault = run_on_device(&c, seed % 4 ? 0 : (size_t)element);
        result(!fault, "pages, seed %llu: fault", (unsigned long long)seed);
        int64_t at = check_kv_compare(&c, &array);
        result(at == -1, "pages, seed %llu: op %d, tensor %d, byte %lld", (unsigned long long)seed, (int)c.desc.op,
               array, (long long)at);
        check_kv_destroy(&c);
    }
}

/* Two rows to one page of two slots, or back; what `bad` names is out of range, and only the other one counts. */
typedef struct small_case {
    check_kv_case c;
    float k[4], v[4], pages_k[4], pages_v[4], out_k[4], out_v[4], cosines[2], sines[2];
    int64_t slots[2], positions[2];
    int32_t cu[3], lens[2], table[2], pairs[4];
} small_case;

static void keep(small_case *s, void *host, size_t size, bool tensor)
{
    check_kv_case *c = &s->c;
    if (tensor) {
        c->array[c->arrays++] = (check_kv_array){ .actual = host, .size = size };
        return;
    }
    c->table_size[c->tables] = size;
    c->table[c->tables++] = host;
}

static void set_up(small_case *s, attn_kv_op op, uint32_t flags)
{
    *s = (small_case){ .k = { 1, 2, 3, 4 },
                       .v = { 5, 6, 7, 8 },
                       .pages_k = { -1, -2, -3, -4 },
                       .pages_v = { -5, -6, -7, -8 },
                       .cosines = { 1, 1 },
                       .slots = { 0, 1 },
                       .cu = { 0, 1, 2 },
                       .lens = { 1, 1 },
                       .table = { 0, 1 },
                       .pairs = { 0, 0, 1, 1 } };
    attn_kv_args *a = &s->c.args;
    s->c.desc = (attn_kv_desc){
        .op = op, .dtype = ATTN_F32, .flags = flags, .pages = 2, .page_size = 1, .heads_kv = 1, .dim_qk = 2
    };
    void *const tensors[] = { s->k, s->v, s->pages_k, s->pages_v, s->out_k, s->out_v };
    for (int i = 0; i < COUNT(tensors); i++)
        keep(s, tensors[i], sizeof s->k, true);
    keep(s, s->cosines, sizeof s->cosines, false), keep(s, s->sines, sizeof s->sines, false);
    keep(s, s->slots, sizeof s->slots, false), keep(s, s->positions, sizeof s->positions, false);
    keep(s, s->cu, sizeof s->cu, false), keep(s, s->lens, sizeof s->lens, false);
    keep(s, s->table, sizeof s->table, false), keep(s, s->pairs, sizeof s->pairs, false);
    a->k_pages = s->pages_k, a->v_pages = s->pages_v;
    if (op == ATTN_KV_COPY) {
        s->c.desc.pages_from = s->c.desc.copies = a->count = 2;
        a->k_from = s->k, a->v_from = s->v, a->pairs = s->pairs;
        return;
    }
    if (op == ATTN_KV_GATHER) {
        a->k_out = s->out_k, a->v_out = s->out_v, s->c.desc.len_kv = 1;
    } else {
        a->k = s->k, a->v = s->v, s->c.desc.tokens = 2;
        if (flags & ATTN_KV_ROTARY) a->cos = s->cosines, a->sin = s->sines, s->c.desc.positions = 2;
        if (flags & ATTN_KV_POSITIONS) a->positions = s->positions;
    }
    if (flags & ATTN_KV_SLOTS) {
        a->slots = s->slots, a->count = 2;
        return;
    }
    s->c.desc.batch = 2, s->c.desc.table_width = 1;
    a->lens_kv = s->lens, a->page_table = s->table;
    if (op == ATTN_KV_APPEND) a->cu_lens = s->cu;
}

/* written: of the first and of the second row. */
static void expect(small_case *s, bool fault, bool first, bool second, int line)
{
    bool gather = s->c.desc.op == ATTN_KV_GATHER;
    const float *to = gather ? s->out_k : s->pages_k, *to_v = gather ? s->out_v : s->pages_v;
    float *from = gather ? s->pages_k : s->k, *from_v = gather ? s->pages_v : s->v;
    bool set = run_on_device(&s->c, 0);
    result(set == fault, "pages.c:%d: fault is %d", line, set);
    for (int i = 0; i < 4; i++) {
        bool written = i < 2 ? first : second;
        result((to[i] == from[i]) == written && (to_v[i] == from_v[i]) == written, "pages.c:%d: element %d is %g", line,
               i, (double)to[i]);
    }
}

#define CASE(op_, flags_, change_, fault_, first_, second_) \
    do {                                                    \
        small_case s;                                       \
        set_up(&s, op_, flags_);                            \
        change_;                                            \
        expect(&s, fault_, first_, second_, __LINE__);      \
    } while (0)

static void out_of_range(void)
{
    const uint32_t turned = ATTN_KV_ROTARY | ATTN_KV_POSITIONS;
    CASE(ATTN_KV_APPEND, ATTN_KV_SLOTS, (void)0, false, true, true);
    CASE(ATTN_KV_APPEND, ATTN_KV_SLOTS, s.slots[0] = -1, false, false, true);
    CASE(ATTN_KV_APPEND, ATTN_KV_SLOTS, s.slots[0] = -2, true, false, true);
    CASE(ATTN_KV_APPEND, ATTN_KV_SLOTS, s.slots[1] = 2, true, true, false);
    CASE(ATTN_KV_APPEND, ATTN_KV_SLOTS, s.slots[1] = INT64_MAX, true, true, false);
    CASE(ATTN_KV_APPEND, ATTN_KV_SLOTS | turned, s.positions[1] = 2, true, true, false);
    CASE(ATTN_KV_APPEND, ATTN_KV_SLOTS | turned, s.positions[0] = -1, true, false, true);
    CASE(ATTN_KV_APPEND, 0, (void)0, false, true, true);
    CASE(ATTN_KV_APPEND, 0, s.table[0] = 2, true, false, true);
    CASE(ATTN_KV_APPEND, 0, s.table[1] = -1, true, true, false);
    CASE(ATTN_KV_APPEND, 0, s.lens[1] = 0, true, true, false);
    CASE(ATTN_KV_APPEND, 0, s.lens[1] = 2, true, true, false); /* more than its table has */
    CASE(ATTN_KV_APPEND, 0, s.cu[2] = 1, false, true, false);  /* a row that pads the batch */
    CASE(ATTN_KV_APPEND, ATTN_KV_ROTARY, s.c.desc.positions = 0, true, false, false);
    CASE(ATTN_KV_GATHER, 0, (void)0, false, true, true);
    CASE(ATTN_KV_GATHER, 0, s.table[0] = -1, false, false, true);
    CASE(ATTN_KV_GATHER, 0, s.table[0] = -2, true, false, true);
    CASE(ATTN_KV_GATHER, 0, s.table[1] = 2, true, true, false);
    CASE(ATTN_KV_GATHER, 0, s.lens[0] = 2, true, false, true);
    CASE(ATTN_KV_GATHER, 0, s.lens[1] = -1, true, true, false);
    CASE(ATTN_KV_COPY, 0, (void)0, false, true, true);
    CASE(ATTN_KV_COPY, 0, s.pairs[0] = -1, false, false, true);
    CASE(ATTN_KV_COPY, 0, s.pairs[0] = 2, true, false, true);
    CASE(ATTN_KV_COPY, 0, s.pairs[3] = -1, true, true, false);
    CASE(ATTN_KV_COPY, 0, s.pairs[3] = 2, true, true, false);
}

static void refused(const small_case *s, attn_status status)
{
    attn_kv_plan *plan = NULL;
    attn_status is = attn_kv_plan_create(&plan, &s->c.desc);
    result(is == status && !plan, "pages: %s, not %s", attn_status_name(is), attn_status_name(status));
}

/* A plan is of one context, and says so; sizes beyond what kernels count are refused. */
static void contexts_and_sizes(void)
{
    small_case s;
    attn_kv_plan *plan;
    CUcontext context;
    set_up(&s, ATTN_KV_COPY, 0);
    s.c.desc.device = ATTN_CUDA;
    if (attn_kv_plan_create(&plan, &s.c.desc) || driver->cuCtxGetCurrent(&context)) {
        result(false, "pages: %s", attn_error());
        return;
    }
    driver->cuCtxSetCurrent(NULL);
    attn_status status = attn_kv_run(plan, &s.c.args, NULL);
    result(status == ATTN_INVALID && strstr(attn_error(), "no CUDA context is current"),
           "pages: a run without a context");
    refused(&s, ATTN_INVALID);
    driver->cuCtxSetCurrent(context);
    attn_kv_plan_destroy(plan);
    s.c.desc.page_size = INT32_MAX;
    refused(&s, ATTN_UNSUPPORTED);
    s.c.desc.page_size = 1, s.c.desc.threads = 1;
    refused(&s, ATTN_INVALID);
}

void operations_on_pages(void)
{
    alarm(WATCHDOG_SECONDS);
    out_of_range();
    contexts_and_sizes();
    alarm(0);
    random_cases();
}
