/* What attn_desc_resolve accepts, completes and refuses, and the messages it leaves. */
#include "support.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>

#include "problem/desc.h"
#include "base/error.h"

static attn_desc plain(void)
{
    return (attn_desc){
        .dtype = ATTN_F32, .batch = 2, .heads_q = 12, .heads_kv = 4, .len_q = 5, .len_kv = 7, .dim_qk = 16
    };
}

/* Every flag at once. */
static attn_desc loaded(void)
{
    attn_desc d = plain();
    d.flags = (((ATTN_POSITIONS << 1) - 1) & ~ATTN_PAGED) | ATTN_DROPOUT_BASES;
    d.total_q = 9, d.total_kv = 11, d.dim_v = 8, d.scale = 0.5f, d.softcap = 30, d.dropout_p = 0.25f;
    d.window_left = 3, d.window_right = -1, d.chunk = 4, d.interval_vectors = 2, d.interval_heads = 4;
    d.block_rows = 2, d.block_keys = 3, d.block_batch = 1, d.block_heads = 12, d.bits_batch = 2, d.bits_heads = 1;
    d.alibi_batch = 2, d.bias_dtype = ATTN_F16, d.isa = ATTN_ISA_PORTABLE, d.threads = 3;
    d.bias_extent[0] = 1, d.bias_extent[1] = 12, d.bias_extent[2] = 5, d.bias_extent[3] = 7;
    return d;
}

static attn_desc paged(void)
{
    attn_desc d = plain();
    d.flags = ATTN_PAGED | ATTN_LENS_KV, d.pages = 10, d.page_size = 3, d.table_width = 3;
    return d;
}

static attn_desc backward(void)
{
    attn_desc d = plain();
    d.direction = ATTN_BACKWARD;
    return d;
}

static void expect(int line, const attn_desc *desc, size_t size, attn_status status, const char *text)
{
    attn_desc out, untouched;
    memset(&out, 0x5a, sizeof out);
    memset(&untouched, 0x5a, sizeof untouched);
    attn_status got = attn_desc_resolve(&out, desc, size);
    if (got != status || !strstr(attn_error(), text))
        fail_msg("line %d: %s \"%s\", not %s \"%s\"", line, attn_status_name(got), attn_error(),
                 attn_status_name(status), text);
    if (memcmp(&out, &untouched, sizeof out)) fail_msg("line %d: written in spite of its failure", line);
}

/* A descriptor, changed, is refused with this message. */
#define REFUSED(desc, status, text, ...)                     \
    do {                                                     \
        attn_desc d = desc();                                \
        __VA_ARGS__;                                         \
        expect(__LINE__, &d, sizeof d, ATTN_##status, text); \
    } while (0)

#define ACCEPTED(desc, ...)                               \
    do {                                                  \
        attn_desc d = desc(), out;                        \
        __VA_ARGS__;                                      \
        assert_ok(attn_desc_resolve(&out, &d, sizeof d)); \
    } while (0)

static void set4(int64_t to[4], int64_t a, int64_t b, int64_t c, int64_t d)
{
    to[0] = a, to[1] = b, to[2] = c, to[3] = d;
}

/* ---- what is accepted ---------------------------------------------------------------------- */

static void defaults_are_filled_in(void **state)
{
    (void)state;
    attn_desc d = plain(), out;
    d.heads_kv = 0;
    assert_ok(attn_desc_resolve(&out, &d, sizeof d));
    assert_int_equal(out.heads_kv, 12);
    assert_int_equal(out.dim_v, 16);
    assert_true(out.scale == 0.25f);
    assert_in_range(out.threads, 1, 1024);
    static const int64_t q[4] = { 5 * 12 * 16, 12 * 16, 16, 1 }, k[4] = { 7 * 12 * 16, 12 * 16, 16, 1 };
    assert_memory_equal(out.q_stride, q, sizeof q);
    assert_memory_equal(out.k_stride, k, sizeof k);
    assert_memory_equal(out.v_stride, k, sizeof k);
    assert_memory_equal(out.o_stride, q, sizeof q);

    d = loaded();
    assert_ok(attn_desc_resolve(&out, &d, sizeof d));
    static const int64_t v[4] = { 11 * 4 * 8, 4 * 8, 8, 1 }, bias[4] = { 12 * 5 * 7, 5 * 7, 7, 1 }, none[4];
    assert_memory_equal(out.v_stride, v, sizeof v);
    assert_memory_equal(out.bias_stride, bias, sizeof bias);
    assert_memory_equal(out.grad_q_stride, none, sizeof none);
    assert_memory_equal(out.grad_v_stride, none, sizeof none);
    assert_int_equal(out.threads, 3);
    assert_true(out.scale == 0.5f);
}

/* Gradients are packed by themselves, however their tensors are laid out. */
static void gradients_are_laid_out(void **state)
{
    (void)state;
    attn_desc d = backward(), out;
    set4(d.q_stride, -1000, 0, 16, 1), set4(d.k_stride, 0, 0, 0, 1), set4(d.o_stride, 0, 0, 0, 1);
    d.dim_v = 8;
    assert_ok(attn_desc_resolve(&out, &d, sizeof d));
    static const int64_t q[4] = { 5 * 12 * 16, 12 * 16, 16, 1 }, o[4] = { 5 * 12 * 8, 12 * 8, 8, 1 },
                         k[4] = { 7 * 4 * 16, 4 * 16, 16, 1 }, v[4] = { 7 * 4 * 8, 4 * 8, 8, 1 };
    assert_memory_equal(out.grad_o_stride, o, sizeof o);
    assert_memory_equal(out.grad_q_stride, q, sizeof q);
    assert_memory_equal(out.grad_k_stride, k, sizeof k);
    assert_memory_equal(out.grad_v_stride, v, sizeof v);
}

static void resolving_twice_changes_nothing(void **state)
{
    (void)state;
    attn_desc empty = plain(), same = loaded(), given[6] = { plain(), loaded(), empty, same, backward(), backward() };
    given[2].batch = given[2].len_q = 0;
    given[3].bias_extent[1] = given[3].bias_extent[2] = given[3].bias_extent[3] = 1;
    given[5].dtype = ATTN_BF16, given[5].grad_dtype = ATTN_F32, given[5].flags = ATTN_ADD;
    for (int i = 0; i < COUNT(given); i++) {
        attn_desc once, twice;
        assert_ok(attn_desc_resolve(&once, &given[i], sizeof once));
        assert_ok(attn_desc_resolve(&twice, &once, sizeof once));
        assert_memory_equal(&once, &twice, sizeof once);
    }
}

static void edges_are_accepted(void **state)
{
    (void)state;
    ACCEPTED(loaded, (void)0);
    ACCEPTED(plain, d.batch = 0);
    ACCEPTED(plain, d.len_q = 0);
    ACCEPTED(plain, d.len_kv = 0);
    ACCEPTED(plain, d.batch = d.len_q = d.len_kv = 0);
    ACCEPTED(plain, d.dim_qk = 1, d.dim_v = 512);
    ACCEPTED(plain, d.batch = 1, d.heads_q = d.heads_kv = 1, d.len_q = d.len_kv = INT32_MAX - 64);
    ACCEPTED(plain, d.batch = 0, d.heads_q = d.heads_kv = 1 << 20);
    ACCEPTED(plain, d.flags = ATTN_WINDOW, d.window_left = d.window_right = -1);
    ACCEPTED(plain, d.flags = ATTN_WINDOW, d.window_left = d.window_right = INT64_MAX);
    ACCEPTED(plain, d.flags = ATTN_WINDOW);
    ACCEPTED(plain, d.flags = ATTN_CHUNK, d.chunk = INT64_MAX);
    ACCEPTED(plain, d.flags = ATTN_DROPOUT);
    ACCEPTED(plain, d.flags = ATTN_DROPOUT, d.dropout_p = 255.4f / 256);
    ACCEPTED(plain, d.scale = 1e-30f);
    ACCEPTED(plain, d.threads = 1024);
    ACCEPTED(plain, d.device = ATTN_CUDA);
    ACCEPTED(plain, set4(d.q_stride, -1000, 0, 16, 1)); /* inputs may run backwards and repeat */
    ACCEPTED(plain, set4(d.k_stride, 0, 0, 0, 1));
    ACCEPTED(plain, set4(d.o_stride, -960, 192, -16, 1));
    ACCEPTED(plain, set4(d.o_stride, 960, 16, 80, 1)); /* (batch, head, row, dim) */
    ACCEPTED(plain, d.batch = 1, set4(d.o_stride, 0, 192, 16, 1));
    ACCEPTED(plain, d.flags = ATTN_BIAS, d.bias_dtype = ATTN_BF16, set4(d.bias_extent, 2, 12, 5, 7),
             set4(d.bias_stride, 0, -7, 3, 2));
    ACCEPTED(plain, d.flags = ATTN_INTERVALS, d.interval_heads = 1, d.interval_vectors = 4);
    ACCEPTED(plain, d.flags = ATTN_INTERVALS | ATTN_CAUSAL, d.interval_heads = 1, d.interval_vectors = 1);
}

/* ---- what is refused ----------------------------------------------------------------------- */

static void kinds_are_checked(void **state)
{
    (void)state;
    REFUSED(plain, INVALID, "dtype = 0 is not ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64 or ATTN_E4M3",
            d.dtype = (attn_dtype)0);
    REFUSED(plain, INVALID,
            "dtype = 6 is not ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64 or ATTN_E4M3: the library does not",
            d.dtype = (attn_dtype)6);
    REFUSED(plain, INVALID, "ATTN_I8 is of k and v alone (kv_dtype)", d.dtype = ATTN_I8);
    REFUSED(plain, INVALID, "direction = 2 is not ATTN_FORWARD or ATTN_BACKWARD", d.direction = (attn_direction)2);
    REFUSED(plain, INVALID, "device = 7 is not ATTN_CPU", d.device = (attn_device)7);
    REFUSED(plain, INVALID, "threads is set: ATTN_CUDA takes none", d.device = ATTN_CUDA, d.threads = 1);
    REFUSED(plain, INVALID, "isa is set: ATTN_CUDA takes none", d.device = ATTN_CUDA, d.isa = ATTN_ISA_PORTABLE);
    REFUSED(plain, INVALID, "flags = 0x2000001 has unknown bits 0x2000000", d.flags = 0x2000001);
    REFUSED(plain, INVALID, "flags = 0x80000000 has unknown bits 0x80000000", d.flags = 0x80000000);
    REFUSED(plain, INVALID, "isa = 9 is not an attn_isa", d.isa = (attn_isa)9);
    REFUSED(plain, INVALID, "threads = -1 is not in 0 to 1024", d.threads = -1);
    REFUSED(plain, INVALID, "threads = 1025 is not in 0 to 1024", d.threads = 1025);
    REFUSED(plain, INVALID, "parallel_context needs parallel_for", d.parallel_context = &d);
    for (attn_isa isa = ATTN_ISA_PORTABLE; isa <= ATTN_ISA_NEON; isa++) {
        if (attn_isa_available(isa))
            ACCEPTED(plain, d.isa = isa);
        else
            REFUSED(plain, UNSUPPORTED, attn_isa_name(isa), d.isa = isa);
    }
}

static attn_desc bytes(void)
{
    attn_desc d = plain();
    d.dtype = ATTN_E4M3, d.flags |= ATTN_SCALES_KV | ATTN_SCALES_Q;
    return d;
}

static void elements_of_a_byte_are_checked(void **state)
{
    (void)state;
    attn_desc in = bytes(), full;
    assert_ok(attn_desc_resolve(&full, &in, sizeof in));
    assert_int_equal(attn_kv_dtype(&full), ATTN_E4M3);
    assert_int_equal(attn_out_dtype(&full), ATTN_BF16);
    assert_int_equal(full.q_scale_heads, full.heads_q);
    in = plain(), in.dtype = ATTN_F16, in.out_dtype = ATTN_F32;
    assert_ok(attn_desc_resolve(&full, &in, sizeof in));
    assert_true(full.flags & ATTN_OUT_F32);

    ACCEPTED(bytes, d.q_scale_heads = d.heads_kv, d.q_scale_rows = d.k_scale_rows = 64, d.v_scale_rows = 1);
    ACCEPTED(bytes, d.out_dtype = ATTN_E4M3, set4(d.v_scale_stride, 640, 0, 64, 1));
    ACCEPTED(plain, d.dtype = ATTN_BF16, d.kv_dtype = ATTN_I8, d.flags |= ATTN_SCALES_KV, d.k_scale_rows = 1);
    ACCEPTED(plain, d.kv_dtype = ATTN_E4M3, d.out_dtype = ATTN_F16);
    REFUSED(plain, INVALID, "bias_dtype = 5 is not", d.flags |= ATTN_BIAS, d.bias_dtype = ATTN_E4M3,
            set4(d.bias_extent, 1, 1, 1, 1));
    REFUSED(plain, INVALID, "kv_dtype = 3 is not 0, dtype = f32, ATTN_E4M3 or ATTN_I8", d.kv_dtype = ATTN_BF16);
    REFUSED(bytes, INVALID, "kv_dtype = 7 is not 0, dtype = e4m3, ATTN_E4M3 or ATTN_I8, and ATTN_I8 needs",
            d.kv_dtype = ATTN_I8);
    REFUSED(plain, INVALID, "with ATTN_F64 not of one byte", d.dtype = ATTN_F64, d.kv_dtype = ATTN_E4M3);
    REFUSED(plain, INVALID, "out_dtype = 7 is not 0, ATTN_F32, ATTN_F16", d.out_dtype = ATTN_I8);
    REFUSED(plain, INVALID, "out_dtype = 1 is not 0, as ATTN_F64 needs it", d.dtype = ATTN_F64, d.out_dtype = ATTN_F32);
    REFUSED(bytes, INVALID, "out_dtype = f16 contradicts ATTN_OUT_F32", d.out_dtype = ATTN_F16,
            d.flags |= ATTN_OUT_F32);
    REFUSED(plain, INVALID, "ATTN_SCALES_Q needs dtype = ATTN_E4M3, not f32", d.flags |= ATTN_SCALES_Q);
    REFUSED(plain, INVALID, "ATTN_SCALES_KV needs k and v of one byte, not f32", d.flags |= ATTN_SCALES_KV);
    REFUSED(bytes, UNSUPPORTED, "k and v of e4m3 are computed forward only", d.direction = ATTN_BACKWARD);
    REFUSED(plain, UNSUPPORTED, "out_dtype = f16 is neither", d.direction = ATTN_BACKWARD, d.out_dtype = ATTN_F16);
    ACCEPTED(bytes, d.device = ATTN_CUDA, d.out_dtype = ATTN_F16);
    ACCEPTED(plain, d.device = ATTN_CUDA, d.kv_dtype = ATTN_I8);
    REFUSED(plain, UNSUPPORTED, "out_dtype = f16 beside dtype = f32", d.device = ATTN_CUDA, d.out_dtype = ATTN_F16);
    REFUSED(bytes, INVALID, "k_scale_rows = 65 is not 0, 1, 64 or 128", d.k_scale_rows = 65);
    REFUSED(bytes, INVALID, "v_scale_rows = 64 is not in 0 to 1", d.v_scale_rows = 64);
    REFUSED(bytes, INVALID, "q_scale_stride[3] = 1 is not 0", set4(d.q_scale_stride, 0, 0, 1, 1));
    REFUSED(bytes, INVALID, "v_scale_stride[3] = 1 is not 0, as v_scale_rows = 1 needs it", d.v_scale_rows = 1,
            set4(d.v_scale_stride, 0, 1, 1, 1));
    REFUSED(bytes, INVALID, "k_scale_stride[1] = 7 is not 0, as k_scale_rows = 0", set4(d.k_scale_stride, 0, 7, 1, 0));
    REFUSED(bytes, INVALID, "v_scale: the offsets of its elements overflow",
            set4(d.v_scale_stride, 0, 0, INT64_MAX / 8, 1));
    REFUSED(bytes, INVALID, "q_scale_heads = 3 is neither heads_q", d.q_scale_heads = 3);
    REFUSED(plain, INVALID, "q_scale_rows = 64 needs ATTN_SCALES_Q", d.q_scale_rows = 64);
    REFUSED(plain, INVALID, "v_scale_stride[3] = 1 needs ATTN_SCALES_KV", d.v_scale_stride[3] = 1);
}

static void sizes_are_checked(void **state)
{
    (void)state;
    REFUSED(plain, INVALID, "batch = -1 is not in 0 to 2147483647", d.batch = -1);
    REFUSED(plain, INVALID, "batch = 2147483648 is not in 0 to 2147483647", d.batch = INT64_C(1) << 31);
    REFUSED(plain, INVALID, "heads_q = 0 is not in 1 to 1048576", d.heads_q = 0);
    REFUSED(plain, INVALID, "heads_q = -3 is not in 1 to 1048576", d.heads_q = -3, d.heads_kv = 0);
    REFUSED(plain, INVALID, "heads_q = 1048577 is not in 1 to 1048576", d.heads_q = 1048577);
    REFUSED(plain, INVALID, "heads_kv = -4 is not in 1 to 1048576", d.heads_kv = -4);
    REFUSED(plain, INVALID, "heads_q = 12 is not a multiple of heads_kv = 5", d.heads_kv = 5);
    REFUSED(plain, INVALID, "heads_q = 12 is not a multiple of heads_kv = 24", d.heads_kv = 24);
    REFUSED(plain, INVALID, "len_q = -1 is not in 0 to 2147483583", d.len_q = -1);
    REFUSED(plain, INVALID, "len_q = 2147483584 is not in 0 to 2147483583", d.len_q = INT32_MAX - 63);
    REFUSED(plain, INVALID, "len_kv = -9 is not in 0 to 2147483583", d.len_kv = -9);
    REFUSED(plain, INVALID, "len_kv = 9223372036854775807 is not in 0 to 2147483583", d.len_kv = INT64_MAX);
    REFUSED(plain, INVALID, "dim_qk = 0 is not in 1 to 512", d.dim_qk = 0);
    REFUSED(plain, INVALID, "dim_qk = 513 is not in 1 to 512", d.dim_qk = 513);
    REFUSED(plain, INVALID, "dim_v = -1 is not in 1 to 512", d.dim_v = -1);
    REFUSED(plain, INVALID, "dim_v = 513 is not in 1 to 512", d.dim_v = 513);
    REFUSED(plain, INVALID, "total_q = 9 needs ATTN_VARLEN", d.total_q = 9);
    REFUSED(plain, INVALID, "total_kv = 9 needs ATTN_VARLEN", d.total_kv = 9);
    REFUSED(loaded, INVALID, "total_q = 2147483584 is not in 0 to", d.total_q = INT32_MAX - 63);
    REFUSED(loaded, INVALID, "total_kv = -1 is not in 0 to", d.total_kv = -1);
}

/* Lengths of packed sequences are bounds: the totals count where they are less, and tables keep their layouts. */
static void lengths_are_any_bound(void **state)
{
    (void)state;
    attn_desc d = plain(), r, again;
    d.flags = ATTN_VARLEN, d.total_q = 9, d.total_kv = 11, d.len_q = 1000, d.len_kv = 1 << 30;
    assert_ok(attn_desc_resolve(&r, &d, sizeof d));
    assert_int_equal(r.len_q, 9);
    assert_int_equal(r.len_kv, 11);
    assert_ok(attn_desc_resolve(&again, &r, sizeof r));
    assert_memory_equal(&again, &r, sizeof r);

    d.flags |= ATTN_BITS, d.bits_batch = d.bits_heads = 1, d.len_kv = 3000;
    assert_ok(attn_desc_resolve(&r, &d, sizeof d));
    assert_int_equal(r.len_q, 1000);
    assert_int_equal(r.len_kv, 3000);
    d.flags = ATTN_VARLEN | ATTN_BIAS, d.bits_batch = d.bits_heads = 0, d.bias_dtype = ATTN_F32;
    d.bias_extent[0] = d.bias_extent[1] = d.bias_extent[2] = 1, d.bias_extent[3] = 3000;
    assert_ok(attn_desc_resolve(&r, &d, sizeof d));
    assert_int_equal(r.len_q, 9);
    assert_int_equal(r.len_kv, 3000);
    d = plain(), d.flags = ATTN_VARLEN | ATTN_PAGED | ATTN_LENS_KV, d.total_q = 9, d.len_q = 1000, d.len_kv = 64;
    d.pages = 8, d.page_size = 16, d.table_width = 4;
    assert_ok(attn_desc_resolve(&r, &d, sizeof d));
    assert_int_equal(r.len_q, 9);
    assert_int_equal(r.len_kv, 64);
}

static void numbers_are_checked(void **state)
{
    (void)state;
    REFUSED(plain, INVALID, "scale = -1 is not a finite number above 0", d.scale = -1);
    REFUSED(plain, INVALID, "scale = nan is not a finite number above 0", d.scale = NAN);
    REFUSED(plain, INVALID, "scale = nan is not a finite number above 0", d.scale = -NAN);
    REFUSED(plain, INVALID, "scale = inf is not a finite number above 0", d.scale = INFINITY);
    REFUSED(plain, INVALID, "softcap = 30 needs ATTN_SOFTCAP", d.softcap = 30);
    REFUSED(plain, INVALID, "softcap = nan needs ATTN_SOFTCAP", d.softcap = NAN);
    REFUSED(loaded, INVALID, "softcap = 0 is not a finite number above 0", d.softcap = 0);
    REFUSED(loaded, INVALID, "softcap = -2.5 is not a finite number above 0", d.softcap = -2.5f);
    REFUSED(loaded, INVALID, "softcap = inf is not a finite number above 0", d.softcap = INFINITY);
    REFUSED(plain, INVALID, "dropout_p = 0.5 needs ATTN_DROPOUT", d.dropout_p = 0.5f);
    REFUSED(plain, INVALID,
            "visible_share = 0.5 needs ATTN_INTERVALS, ATTN_BLOCKS, ATTN_BITS, ATTN_LENS_Q or ATTN_LENS_KV",
            d.visible_share = 0.5);
    REFUSED(loaded, INVALID, "visible_share = 1.5 is not in 0 to 1", d.visible_share = 1.5);
    REFUSED(loaded, INVALID, "visible_share = nan is not in 0 to 1", d.visible_share = NAN);
    REFUSED(loaded, INVALID, "dropout_p = 1 is not at least 0 and below 1", d.dropout_p = 1);
    REFUSED(loaded, INVALID, "dropout_p = -0.5 is not at least 0 and below 1", d.dropout_p = -0.5f);
    REFUSED(loaded, INVALID, "dropout_p = nan is not at least 0 and below 1", d.dropout_p = NAN);
    REFUSED(loaded, INVALID, "dropout_p = 0.999 drops everything", d.dropout_p = 0.999f);
    REFUSED(plain, INVALID, "batch * heads_q = 4294967304 exceeds 2^32", d.flags = ATTN_DROPOUT, d.len_q = 0,
            d.heads_q = 24, d.heads_kv = 1, d.batch = 178956971);
}

/* ATTN_F64 has a scale of its own precision, whichever field says it. */
static void f64_has_a_double_scale(void **state)
{
    (void)state;
    attn_desc given = plain(), r, again;
    given.dtype = ATTN_F64, given.dim_qk = 7;
    for (int i = 0; i < 3; i++) {
        given.scale = i == 1 ? 0.3f : 0, given.scale_f64 = i == 2 ? 0.1 : 0;
        assert_ok(attn_desc_resolve(&r, &given, sizeof given));
        assert_true(r.scale_f64 == (i == 0 ? 1 / sqrt(7.0) : i == 1 ? 0.3f : 0.1) && r.scale == (float)r.scale_f64);
        assert_ok(attn_desc_resolve(&again, &r, sizeof r));
        assert_memory_equal(&again, &r, sizeof r);
    }
    REFUSED(plain, INVALID, "needs dtype = ATTN_F64", d.scale_f64 = 0.1);
    REFUSED(plain, INVALID, "is not a finite number above 0", d.dtype = ATTN_F64, d.scale_f64 = -1);
    REFUSED(plain, INVALID, "is not a finite number above 0", d.dtype = ATTN_F64, d.scale_f64 = 1e-300);
    REFUSED(plain, INVALID, "neither 0 nor scale_f64", d.dtype = ATTN_F64, d.scale_f64 = 0.1, d.scale = 0.2f);
}

static void masks_are_checked(void **state)
{
    (void)state;
    REFUSED(plain, INVALID, "window_left = -1 needs ATTN_WINDOW", d.window_left = -1);
    REFUSED(plain, INVALID, "window_right = 8 needs ATTN_WINDOW", d.window_right = 8);
    REFUSED(loaded, INVALID, "window_left = -2 is not in -1 to", d.window_left = -2);
    REFUSED(loaded, INVALID, "window_right = -9223372036854775808 is not in -1 to", d.window_right = INT64_MIN);
    REFUSED(plain, INVALID, "chunk = 16 needs ATTN_CHUNK", d.chunk = 16);
    REFUSED(loaded, INVALID, "chunk = 0 is not in 1 to", d.chunk = 0);
    REFUSED(plain, INVALID, "interval_vectors = 2 needs ATTN_INTERVALS", d.interval_vectors = 2);
    REFUSED(plain, INVALID, "interval_heads = 1 needs ATTN_INTERVALS", d.interval_heads = 1);
    REFUSED(loaded, INVALID, "interval_vectors = 0 is not in 1 to 4", d.interval_vectors = 0);
    REFUSED(loaded, INVALID, "interval_vectors = 5 is not in 1 to 4", d.interval_vectors = 5);
    REFUSED(loaded, INVALID, "interval_vectors = 4 is not 1 or 2, as ATTN_CAUSAL takes", d.interval_vectors = 4);
    REFUSED(loaded, INVALID, "interval_vectors = 3 is not 1 or 2, as ATTN_CAUSAL takes", d.interval_vectors = 3);
    REFUSED(loaded, INVALID, "interval_vectors = 1 is not 2 or 4", d.interval_vectors = 1, d.flags &= ~ATTN_CAUSAL);
    REFUSED(loaded, INVALID, "interval_vectors = 3 is not 2 or 4", d.interval_vectors = 3, d.flags &= ~ATTN_CAUSAL);
    REFUSED(loaded, INVALID, "interval_heads = 12 is neither 1 nor heads_kv = 4", d.interval_heads = 12);
    REFUSED(plain, INVALID, "block_rows = 4 needs ATTN_BLOCKS", d.block_rows = 4);
    REFUSED(plain, INVALID, "block_keys = 4 needs ATTN_BLOCKS", d.block_keys = 4);
    REFUSED(plain, INVALID, "block_batch = 1 needs ATTN_BLOCKS", d.block_batch = 1);
    REFUSED(plain, INVALID, "block_heads = 1 needs ATTN_BLOCKS", d.block_heads = 1);
    REFUSED(loaded, INVALID, "block_rows = 0 is not in 1 to", d.block_rows = 0);
    REFUSED(loaded, INVALID, "block_keys = -5 is not in 1 to", d.block_keys = -5);
    REFUSED(loaded, INVALID, "block_batch = 3 is neither 1 nor batch = 2", d.block_batch = 3);
    REFUSED(loaded, INVALID, "block_heads = 4 is neither 1 nor heads_q = 12", d.block_heads = 4);
    REFUSED(plain, INVALID, "bits_batch = 2 needs ATTN_BITS", d.bits_batch = 2);
    REFUSED(plain, INVALID, "bits_heads = 1 needs ATTN_BITS", d.bits_heads = 1);
    REFUSED(loaded, INVALID, "bits_batch = 0 is neither 1 nor batch = 2", d.bits_batch = 0);
    REFUSED(loaded, INVALID, "bits_heads = -1 is neither 1 nor heads_q = 12", d.bits_heads = -1);
}

static void pages_are_checked(void **state)
{
    (void)state;
    static const int64_t packed[4] = { 3 * 4 * 16, 4 * 16, 16, 1 };
    attn_desc given = paged(), whole;
    assert_ok(attn_desc_resolve(&whole, &given, sizeof given));
    assert_memory_equal(whole.k_stride, packed, sizeof packed);
    assert_memory_equal(whole.v_stride, packed, sizeof packed);
    ACCEPTED(paged, d.pages = 0, d.page_size = INT32_MAX - 64, d.table_width = 1);
    ACCEPTED(paged, d.pages = INT32_MAX, d.page_size = 1, d.table_width = 7);
    ACCEPTED(paged, d.table_width = 0, d.table_total = 3);
    ACCEPTED(paged, d.len_kv = 0, d.table_width = 0);
    ACCEPTED(paged, d.flags |= ATTN_VARLEN, d.total_q = 9);
    ACCEPTED(paged, set4(d.k_stride, 4 * 3 * 16, 16, 3 * 16, 1)); /* heads before slots */
    REFUSED(plain, INVALID, "pages = 1 needs ATTN_PAGED", d.pages = 1);
    REFUSED(plain, INVALID, "page_size = 1 needs ATTN_PAGED", d.page_size = 1);
    REFUSED(plain, INVALID, "table_width = 1 needs ATTN_PAGED", d.table_width = 1);
    REFUSED(plain, INVALID, "table_total = 1 needs ATTN_PAGED", d.table_total = 1);
    REFUSED(plain, INVALID, "bits_keys = 1 needs ATTN_BITS", d.bits_keys = 1);
    REFUSED(loaded, INVALID, "bits_keys = 8 exceeds len_kv = 7", d.bits_keys = 8);
    REFUSED(loaded, INVALID, "bits_keys = -1 is not in 0 to", d.bits_keys = -1);
    REFUSED(paged, INVALID, "pages = -1 is not in 0 to 2147483647", d.pages = -1);
    REFUSED(paged, INVALID, "page_size = 0 is not in 1 to 2147483583", d.page_size = 0);
    REFUSED(paged, INVALID, "table_width = -1 is not in 0 to", d.table_width = -1);
    REFUSED(paged, INVALID, "ATTN_PAGED needs ATTN_LENS_KV", d.flags &= ~ATTN_LENS_KV);
    REFUSED(paged, INVALID, "table_width = 2 pages of 3 keys hold less than len_kv = 7 keys", d.table_width = 2);
    REFUSED(paged, INVALID, "table_total = 2 pages of 3 keys hold less", d.table_width = 0, d.table_total = 2);
    REFUSED(paged, INVALID, "table_width = 0 pages of 3 keys hold less", d.table_width = 0);
    REFUSED(paged, INVALID, "table_total = 9 is not 0, as table_width = 3 needs it", d.table_total = 9);
    REFUSED(paged, INVALID, "total_kv = 7 is not 0: with ATTN_PAGED no keys are packed", d.flags |= ATTN_VARLEN,
            d.total_q = 9, d.total_kv = 7);
    REFUSED(paged, UNSUPPORTED, "direction = ATTN_BACKWARD: ATTN_PAGED is", d.direction = ATTN_BACKWARD);
    REFUSED(paged, INVALID, "k: the offsets of its 2147483647 x", d.pages = INT32_MAX, d.page_size = INT32_MAX - 64);
}

static void biases_are_checked(void **state)
{
    (void)state;
    REFUSED(plain, INVALID, "alibi_batch = 1 needs ATTN_ALIBI", d.alibi_batch = 1);
    REFUSED(loaded, INVALID, "alibi_batch = 4 is neither 1 nor batch = 2", d.alibi_batch = 4);
    REFUSED(plain, INVALID, "bias_dtype = 1 needs ATTN_BIAS", d.bias_dtype = ATTN_F32);
    REFUSED(loaded, INVALID, "bias_dtype = 0 is not ATTN_F32, ATTN_F16, ATTN_BF16 or ATTN_F64",
            d.bias_dtype = (attn_dtype)0);
    REFUSED(loaded, INVALID, "bias_dtype = ATTN_F64 needs dtype = ATTN_F64", d.bias_dtype = ATTN_F64);
    REFUSED(plain, INVALID, "dtype = ATTN_F64 does not take ATTN_OUT_F32", d.dtype = ATTN_F64, d.flags = ATTN_OUT_F32);
    REFUSED(plain, UNSUPPORTED, "dtype = f64 is computed on the CPU", d.dtype = ATTN_F64, d.device = ATTN_CUDA);
    REFUSED(plain, INVALID, "bias_extent[0] = 1 needs ATTN_BIAS", d.bias_extent[0] = 1);
    REFUSED(plain, INVALID, "bias_extent[3] = 7 needs ATTN_BIAS", d.bias_extent[3] = 7);
    REFUSED(plain, INVALID, "bias_stride[2] = 7 needs ATTN_BIAS", d.bias_stride[2] = 7);
    REFUSED(loaded, INVALID, "bias_extent[0] = 3 is neither 1 nor batch = 2", d.bias_extent[0] = 3);
    REFUSED(loaded, INVALID, "bias_extent[1] = 4 is neither 1 nor heads_q = 12", d.bias_extent[1] = 4);
    REFUSED(loaded, INVALID, "bias_extent[2] = 0 is neither 1 nor len_q = 5", d.bias_extent[2] = 0);
    REFUSED(loaded, INVALID, "bias_extent[3] = 8 is neither 1 nor len_kv = 7", d.bias_extent[3] = 8);
    REFUSED(loaded, INVALID, "bias: the offsets of its 1 x 12 x 5 x 7 elements overflow 64 bits",
            set4(d.bias_stride, 0, INT64_MAX / 11, 7, 1));
}

static void strides_are_checked(void **state)
{
    (void)state;
    REFUSED(plain, INVALID, "q_stride[3] = 2 is not 1", set4(d.q_stride, 1920, 384, 32, 2));
    REFUSED(plain, INVALID, "q_stride[3] = 2 is not 1", set4(d.q_stride, 0, 0, 0, 2));
    REFUSED(plain, INVALID, "k_stride[3] = 0 is not 1", set4(d.k_stride, 0, 0, 16, 0));
    REFUSED(plain, INVALID, "v_stride[3] = -1 is not 1", set4(d.v_stride, 448, 64, 16, -1));
    REFUSED(plain, INVALID, "o_stride[3] = 16 is not 1", set4(d.o_stride, 960, 192, 1, 16));
    REFUSED(plain, INVALID, "q: the offsets of its 2 x 5 x 12 x 16 elements", set4(d.q_stride, INT64_MAX, 192, 16, 1));
    REFUSED(plain, INVALID, "k: the offsets of its 2 x 7 x 4 x 16 elements", set4(d.k_stride, 448, INT64_MIN, 16, 1));
    REFUSED(plain, INVALID, "v: the offsets of its 2 x 7 x 4 x 16 elements", set4(d.v_stride, -INT64_MAX, 64, 16, 1));
    REFUSED(plain, INVALID, "o: the offsets of its 2 x 5 x 12 x 16 elements",
            set4(d.o_stride, INT64_MAX / 4, 192, 16, 1));
    REFUSED(plain, INVALID, "overflow 64 bits", d.batch = INT32_MAX, d.len_q = INT32_MAX - 64, d.dim_qk = 512);
    REFUSED(plain, INVALID, "o_stride[1] = 0 makes elements of o overlap", set4(d.o_stride, 960, 0, 16, 1));
    REFUSED(plain, INVALID, "o_stride[2] = 15 makes elements of o overlap: it must step over 16 elements",
            set4(d.o_stride, 960, 192, 15, 1));
    REFUSED(plain, INVALID, "o_stride[1] = -191 makes elements of o overlap: it must step over 192 elements",
            set4(d.o_stride, 960, -191, 16, 1));
    REFUSED(plain, INVALID, "o_stride[0] = 900 makes elements of o overlap: it must step over 960 elements",
            set4(d.o_stride, 900, 192, 16, 1));
    REFUSED(plain, INVALID, "intervals: the offsets", d.flags = ATTN_INTERVALS, d.interval_vectors = 2, d.len_q = 0,
            d.batch = INT32_MAX, d.len_kv = INT32_MAX - 64, d.heads_q = d.heads_kv = d.interval_heads = 64,
            set4(d.k_stride, 0, 0, 0, 1), set4(d.v_stride, 0, 0, 0, 1));
    REFUSED(plain, INVALID, "bits: the offsets", d.flags = ATTN_BITS, d.bits_batch = 1, d.bits_heads = 12, d.batch = 0,
            d.len_q = d.len_kv = INT32_MAX - 64);
    REFUSED(plain, INVALID, "blocks: the offsets", d.flags = ATTN_BLOCKS, d.block_batch = 1, d.block_heads = 12,
            d.block_rows = d.block_keys = 1, d.batch = 0, d.len_q = d.len_kv = INT32_MAX - 64);
}

/* What parts of a sequence ask for. */
static void parts_are_checked(void **state)
{
    (void)state;
    REFUSED(plain, INVALID, "flags: ATTN_DROPOUT_BASES needs ATTN_DROPOUT", d.flags = ATTN_DROPOUT_BASES);
    REFUSED(plain, INVALID, "flags: ATTN_DELTA needs direction = ATTN_BACKWARD", d.flags = ATTN_DELTA);
    REFUSED(plain, INVALID, "flags: ATTN_ADD needs direction = ATTN_BACKWARD", d.flags = ATTN_ADD);
    REFUSED(plain, INVALID, "grad_dtype = 1 needs direction = ATTN_BACKWARD", d.grad_dtype = ATTN_F32);
    REFUSED(plain, INVALID, "alignment = 12 is no power of two", d.alignment = 12);
    REFUSED(plain, INVALID, "alignment = 32 is not in 0 to 16", d.alignment = 32);
    ACCEPTED(plain, d.alignment = 1);
    REFUSED(backward, INVALID, "grad_dtype = 3 is neither 0 nor ATTN_F32", d.dtype = d.grad_dtype = ATTN_BF16);
    REFUSED(backward, INVALID, "grad_dtype = ATTN_F32: with dtype = ATTN_F64 it is 0", d.dtype = ATTN_F64,
            d.grad_dtype = ATTN_F32);
    REFUSED(backward, INVALID, "flags: ATTN_ADD needs gradients of f32: grad_dtype = ATTN_F32", d.dtype = ATTN_BF16,
            d.flags = ATTN_ADD);
    ACCEPTED(backward, d.dtype = ATTN_BF16, d.flags = ATTN_ADD, d.grad_dtype = ATTN_F32);
    ACCEPTED(backward, d.dtype = ATTN_F16, d.flags = ATTN_ADD | ATTN_OUT_F32 | ATTN_DELTA);
    ACCEPTED(backward, d.flags = ATTN_ADD | ATTN_DROPOUT | ATTN_DROPOUT_BASES);
    ACCEPTED(backward, d.dtype = ATTN_F64, d.flags = ATTN_ADD | ATTN_DELTA);
    attn_desc given = backward(), out;
    given.grad_dtype = ATTN_F32;
    assert_ok(attn_desc_resolve(&out, &given, sizeof given));
    assert_int_equal(out.grad_dtype, 0); /* f32 anyway */
    assert_int_equal(attn_grad_dtype(&out), ATTN_F32);
    given.dtype = ATTN_F16;
    assert_ok(attn_desc_resolve(&out, &given, sizeof given));
    assert_int_equal(attn_grad_dtype(&out), ATTN_F32);
    assert_int_equal(attn_out_dtype(&out), ATTN_F16);
}

static void gradients_are_checked(void **state)
{
    (void)state;
    REFUSED(plain, INVALID, "grad_o_stride[3] = 1 needs direction = ATTN_BACKWARD", set4(d.grad_o_stride, 0, 0, 0, 1));
    REFUSED(plain, INVALID, "grad_q_stride[0] = -7 needs direction = ATTN_BACKWARD",
            set4(d.grad_q_stride, -7, 0, 0, 0));
    REFUSED(plain, INVALID, "grad_k_stride[1] = 64 needs direction = ATTN_BACKWARD",
            set4(d.grad_k_stride, 0, 64, 16, 1));
    REFUSED(plain, INVALID, "grad_v_stride[2] = 16 needs direction = ATTN_BACKWARD",
            set4(d.grad_v_stride, 0, 0, 16, 1));
    ACCEPTED(backward, set4(d.grad_o_stride, -960, 0, 16, 1)); /* inputs here: they may repeat */
    ACCEPTED(backward, set4(d.o_stride, 0, 0, 0, 1));
    ACCEPTED(backward, set4(d.grad_q_stride, -960, 192, -16, 1));
    ACCEPTED(backward, set4(d.grad_k_stride, 448, 16, 112, 1), set4(d.grad_v_stride, 448, -64, 16, 1));
    REFUSED(backward, INVALID, "grad_o_stride[3] = 2 is not 1", set4(d.grad_o_stride, 1920, 384, 32, 2));
    REFUSED(backward, INVALID, "grad_q_stride[3] = 0 is not 1", set4(d.grad_q_stride, 960, 192, 16, 0));
    REFUSED(backward, INVALID, "grad_o: the offsets of its 2 x 5 x 12 x 16 elements",
            set4(d.grad_o_stride, INT64_MAX / 4, 192, 16, 1));
    REFUSED(backward, INVALID, "grad_k: the offsets of its 2 x 7 x 4 x 16 elements",
            set4(d.grad_k_stride, 448, INT64_MIN, 16, 1));
    REFUSED(backward, INVALID, "grad_q_stride[1] = 0 makes elements of grad_q overlap",
            set4(d.grad_q_stride, 960, 0, 16, 1));
    REFUSED(backward, INVALID, "grad_k_stride[2] = 15 makes elements of grad_k overlap: it must step over 16 elements",
            set4(d.grad_k_stride, 448, 64, 15, 1));
    REFUSED(backward, INVALID, "grad_v_stride[0] = 0 makes elements of grad_v overlap",
            set4(d.grad_v_stride, 0, 64, 16, 1));
    REFUSED(backward, INVALID, "grad_bias: the offsets", d.flags = ATTN_BIAS, d.bias_dtype = ATTN_F32,
            d.batch = 1 << 20, d.heads_q = d.heads_kv = 1, d.len_q = d.len_kv = 1 << 21,
            set4(d.bias_extent, 1 << 20, 1, 1 << 21, 1 << 21), set4(d.bias_stride, 0, 0, 0, 1));
}

/* Whatever strides o has: if they are accepted, no two of its elements are one. */
static void accepted_outputs_never_overlap(void **state)
{
    (void)state;
    uint32_t random = 1;
    int accepted = 0;
    for (int n = 0; n < 20000; n++) {
        attn_desc d = { .dtype = ATTN_F32, .batch = 2, .heads_q = 3, .len_q = 4, .len_kv = 1, .dim_qk = 2 }, out;
        for (int i = 0; i < 3; i++) {
            random = random * 1664525 + 1013904223;
            d.o_stride[i] = (int64_t)(random >> 16) % 61 - 30;
        }
        d.o_stride[3] = 1;
        if (attn_desc_resolve(&out, &d, sizeof d)) continue;
        bool taken[512] = { false };
        accepted++;
        for (int i = 0; i < 2 * 3 * 4 * 2; i++) {
            int64_t at = 256 + i / 24 * d.o_stride[0] + i / 6 % 4 * d.o_stride[1] + i / 2 % 3 * d.o_stride[2] + i % 2;
            assert_false(taken[at]);
            taken[at] = true;
        }
    }
    assert_in_range(accepted, 500, 19000);
}

/* ---- sizes of the struct, messages --------------------------------------------------------- */

static void older_and_newer_headers_work(void **state)
{
    (void)state;
    struct {
        attn_desc desc;
        unsigned char more[24];
    } newer = { .desc = plain() };
    attn_desc d = plain(), out, whole;
    assert_ok(attn_desc_resolve(&whole, &d, sizeof d));
    d.threads = 5000; /* past the end of the older header's struct */
    assert_ok(attn_desc_resolve(&out, &d, offsetof(attn_desc, threads)));
    assert_memory_equal(&out, &whole, sizeof out);
    assert_ok(attn_desc_resolve(&out, &newer.desc, sizeof newer));
    assert_memory_equal(&out, &whole, sizeof out);
    newer.more[23] = 1;
    expect(__LINE__, &newer.desc, sizeof newer, ATTN_UNSUPPORTED, "of desc is set, but version 0.2.0 knows its first");
    expect(__LINE__, &d, 0, ATTN_INVALID, "desc_size = 0 is not the size of an attn_desc");
    expect(__LINE__, &d, sizeof(void *), ATTN_INVALID, "desc_size = 8 is not the size of an attn_desc");
    expect(__LINE__, &d, SIZE_MAX, ATTN_INVALID, "is not the size of an attn_desc");
    expect(__LINE__, NULL, sizeof d, ATTN_INVALID, "desc is NULL");
}

static void *say_something(void *arg)
{
    assert_string_equal(attn_error(), "");
    attn_fail(ATTN_INVALID, "from thread %d", 2);
    strcpy(arg, attn_error());
    return NULL;
}

static void messages_belong_to_their_thread(void **state)
{
    (void)state;
    pthread_t thread;
    char heard[64] = "", large[2000];
    errno = EINTR;
    assert_int_equal(attn_fail(ATTN_NO_MEMORY, "from thread %d", 1), ATTN_NO_MEMORY);
    assert_int_equal(errno, EINTR);
    assert_int_equal(pthread_create(&thread, NULL, say_something, heard), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(heard, "from thread 2");
    assert_string_equal(attn_error(), "from thread 1");
    memset(large, 'x', sizeof large - 1), large[sizeof large - 1] = '\0';
    attn_fail(ATTN_INVALID, "%s", large);
    assert_in_range(strlen(attn_error()), 200, sizeof large - 2);
}

static void words_and_numbers(void **state)
{
    (void)state;
    char text[ATTN_DECIMAL_SIZE];
    assert_string_equal(attn_status_name(ATTN_OK), "ATTN_OK");
    assert_string_equal(attn_status_name(ATTN_INVALID), "ATTN_INVALID");
    assert_string_equal(attn_status_name(ATTN_UNSUPPORTED), "ATTN_UNSUPPORTED");
    assert_string_equal(attn_status_name(ATTN_NO_MEMORY), "ATTN_NO_MEMORY");
    assert_string_equal(attn_status_name(ATTN_POOL_FULL), "ATTN_POOL_FULL");
    assert_string_equal(attn_status_name((attn_status)99), "unknown status");
    assert_string_equal(attn_version(), "0.2.0");
    assert_string_equal(attn_decimal(text, 0.1f), "0.1");
    assert_string_equal(attn_decimal(text, -1.5e-300), "-1.5e-300");
    assert_string_equal(attn_decimal(text, -INFINITY), "-inf");
    assert_string_equal(attn_decimal(text, -NAN), "nan");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_filled_in),
        cmocka_unit_test(gradients_are_laid_out),
        cmocka_unit_test(resolving_twice_changes_nothing),
        cmocka_unit_test(edges_are_accepted),
        cmocka_unit_test(kinds_are_checked),
        cmocka_unit_test(elements_of_a_byte_are_checked),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(lengths_are_any_bound),
        cmocka_unit_test(numbers_are_checked),
        cmocka_unit_test(f64_has_a_double_scale),
        cmocka_unit_test(masks_are_checked),
        cmocka_unit_test(pages_are_checked),
        cmocka_unit_test(biases_are_checked),
        cmocka_unit_test(strides_are_checked),
        cmocka_unit_test(parts_are_checked),
        cmocka_unit_test(gradients_are_checked),
        cmocka_unit_test(accepted_outputs_never_overlap),
        cmocka_unit_test(older_and_newer_headers_work),
        cmocka_unit_test(messages_belong_to_their_thread),
        cmocka_unit_test(words_and_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
