/* Steps that leave something of a problem out or make it smaller. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>
#include <time.h>

#include "check/random_problem.h"

typedef enum size_step { TO_ONE, HALVED, TO_MULTIPLE, ONE_LESS, SIZE_STEPS } size_step;

static int64_t smaller(int64_t x, size_step how)
{
    switch (how) {
    case TO_ONE:
        return x > 1 ? 1 : x;
    case HALVED:
        return x > 1 ? x / 2 : x;
    case TO_MULTIPLE:
        return x > 16 ? x / 16 * 16 : x;
    default:
        return x > 1 ? x - 1 : x;
    }
}

static int64_t heads_kv_of(const attn_desc *d)
{
    return d->heads_kv ? d->heads_kv : d->heads_q;
}

/* X(name, what it does to d and o), cheapest problems first. `how` stands for each size_step. */
#define SIZES(X)                                                                      \
    X(batch, d->batch = smaller(d->batch, how))                                       \
    X(heads, set_heads(d, smaller(heads_kv_of(d), how), d->heads_q / heads_kv_of(d))) \
    X(group, set_heads(d, heads_kv_of(d), smaller(d->heads_q / heads_kv_of(d), how))) \
    X(len_q, d->len_q = smaller(d->len_q, how))                                       \
    X(len_kv, d->len_kv = smaller(d->len_kv, how))                                    \
    X(page_size, d->page_size = smaller(d->page_size, how))                           \
    X(pages, d->pages = smaller(d->pages, how))                                       \
    X(dim_qk, set_dims(d, smaller(d->dim_qk, how), d->dim_v ? d->dim_v : d->dim_qk))  \
    X(dim_v, set_dims(d, d->dim_qk, smaller(d->dim_v ? d->dim_v : d->dim_qk, how)))   \
    X(dims, set_dims(d, smaller(d->dim_qk, how), smaller(d->dim_v ? d->dim_v : d->dim_qk, how)))

#define CHOICES(X)                                                                   \
    X(strategy, o->strategy[0] = '\0')                                               \
    X(first_word, drop_word(o, false))                                               \
    X(last_word, drop_word(o, true))                                                 \
    X(strides, o->strides = 0)                                                       \
    X(layout, o->layout = CHECK_PACKED)                                              \
    X(shift, o->shift = 0)                                                           \
    X(data, o->data = CHECK_PLAIN)                                                   \
    X(few, o->few = true)                                                            \
    X(no_lse, o->no_lse = true)                                                      \
    X(front, o->front = false)                                                       \
    X(kv_dtype, d->kv_dtype = (attn_dtype)0)                                         \
    X(out_dtype, d->out_dtype = (attn_dtype)0)                                       \
    X(q_scales, set_scales(d->q_scale_stride, &d->q_scale_rows))                     \
    X(k_scales, set_scales(d->k_scale_stride, &d->k_scale_rows))                     \
    X(v_scales, set_scales(d->v_scale_stride, &d->v_scale_rows))                     \
    X(scale_heads, d->q_scale_heads = 0)                                             \
    X(infinite, o->bias_infinite = false)                                            \
    X(scale, d->scale = 0)                                                           \
    X(threads, d->threads = d->threads ? 1 : 0)                                      \
    X(pool, d->parallel_for = NULL)                                                  \
    X(distance, memset(d->bias_stride, 0, sizeof d->bias_stride))                    \
    X(bits_keys, d->bits_keys = 0)                                                   \
    X(bias_batch, d->bias_extent[0] = d->bias_extent[0] > 1 ? 1 : d->bias_extent[0]) \
    X(bias_heads, d->bias_extent[1] = d->bias_extent[1] > 1 ? 1 : d->bias_extent[1]) \
    X(bias_rows, d->bias_extent[2] = d->bias_extent[2] > 1 ? 1 : d->bias_extent[2])  \
    X(bias_keys, d->bias_extent[3] = d->bias_extent[3] > 1 ? 1 : d->bias_extent[3])  \
    X(grad_dtype, d->grad_dtype = (attn_dtype)0)                                     \
    X(alignment, d->alignment = 0)

enum { FLAGS = 25 };

#define ENUM(name, change) STEP_##name,
enum { CHOICES(ENUM) CHOICE_STEPS };
enum { SIZES(ENUM) SIZES_COUNT };

static void set_heads(attn_desc *d, int64_t heads_kv, int64_t group)
{
    d->heads_q = heads_kv * group;
    if (d->heads_kv) d->heads_kv = heads_kv;
}

/* One for the whole tensor. */
static void set_scales(int64_t stride[4], int64_t *rows)
{
    *rows = 0;
    memset(stride, 0, 4 * sizeof *stride);
}

static void set_dims(attn_desc *d, int64_t dim_qk, int64_t dim_v)
{
    d->dim_qk = dim_qk;
    d->dim_v = dim_v == dim_qk ? 0 : dim_v;
}

static void drop_word(check_options *o, bool last)
{
    char *comma = last ? strrchr(o->strategy, ',') : strchr(o->strategy, ',');
    if (!comma) return;
    if (last)
        *comma = '\0';
    else
        memmove(o->strategy, comma + 1, strlen(comma));
}

/* The rest of the text's room holds nothing, so that problems can be compared byte by byte. */
static void end_strategy(check_options *o)
{
    size_t length = strlen(o->strategy);
    memset(o->strategy + length, 0, sizeof o->strategy - length);
}

int check_shrink_steps(void)
{
    return FLAGS + CHOICE_STEPS + SIZES_COUNT * SIZE_STEPS;
}

static void resize(int which, size_step how, attn_desc *d)
{
    switch (which) {
#define CASE(name, change) \
    case STEP_##name:      \
        change;            \
        break;
        SIZES(CASE)
    }
}

static void choose(int which, attn_desc *d, check_options *o)
{
    switch (which) {
        CHOICES(CASE)
    }
}

bool check_shrink_step(int step, attn_desc *d, check_options *o)
{
    attn_desc d_was = *d;
    check_options o_was = *o;
    int sizes = SIZES_COUNT * SIZE_STEPS;
    if (step < 0 || step >= check_shrink_steps()) return false;
    if (step < sizes)
        resize(step % SIZES_COUNT, (size_step)(step / SIZES_COUNT), d);
    else if (step < sizes + FLAGS)
        d->flags &= ~((uint32_t)1 << (step - sizes));
    else
        choose(step - sizes - FLAGS, d, o);
    end_strategy(o);
    check_random_settle(d, o);
    return memcmp(d, &d_was, sizeof *d) != 0 || memcmp(o, &o_was, sizeof *o) != 0;
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int check_shrink(attn_desc *desc, check_options *options, double seconds, check_is_wrong *wrong, void *context,
                 int *steps)
{
    double end = seconds_now() + seconds;
    int count = 0;
    bool again = true;
    while (again) {
        again = false;
        for (int step = 0; step < check_shrink_steps() && seconds_now() < end && count < CHECK_SHRINK_MOST;) {
            attn_desc d = *desc;
            check_options o = *options;
            if (!check_shrink_step(step, &d, &o) || !wrong(context, &d, &o)) {
                step++;
                continue;
            }
            *desc = d, *options = o, steps[count++] = step;
            again = true;
        }
    }
    return count;
}
