/* AdamW with gradient clipping, and the schedule of its learning rate. The norm is summed in double over parts of fixed
 * size, so that it does not depend on the threads. */
#include <math.h>
#include <stdlib.h>

#include "gpt.h"

enum { PART = 1 << 14 };

static const float beta1 = 0.9f, beta2 = 0.95f, decay = 0.1f, epsilon = 1e-8f;

float gpt_rate(float peak, int64_t step, int64_t steps)
{
    double warm = (double)steps / 20.0 + 1.0, done = (double)(step + 1);
    if (done < warm) return (float)(peak * done / warm);
    double along = (done - warm) / fmax((double)steps - warm, 1.0); /* 0 to 1 */
    return (float)(peak * (0.1 + 0.45 * (1.0 + cos(acos(-1.0) * fmin(along, 1.0)))));
}

typedef struct update {
    float *w, *m, *v;
    const float *g;
    float clip, rate, shrink, bias1, bias2; /* shrink: what decay leaves of a weight */
    double *sums;
} update;

static void square_part(void *arg, int64_t begin, int64_t end)
{
    const update *u = arg;
    double sum = 0.0;
    for (int64_t i = begin; i < end; i++)
        sum += (double)u->g[i] * (double)u->g[i];
    u->sums[begin / PART] = sum;
}

static double norm_of(const gpt_weights *grad)
{
    int64_t parts = (grad->count + PART - 1) / PART;
    double sum = 0.0;
    update u = { .g = grad->data, .sums = gpt_allocate(parts, sizeof *u.sums) };
    gpt_each(grad->count, PART, square_part, &u);
    for (int64_t i = 0; i < parts; i++)
        sum += u.sums[i];
    free(u.sums);
    return sqrt(sum);
}

static void update_part(void *arg, int64_t begin, int64_t end)
{
    const update *u = arg;
    for (int64_t i = begin; i < end; i++) {
        float g = u->clip * u->g[i];
        u->m[i] = beta1 * u->m[i] + (1.0f - beta1) * g;
        u->v[i] = beta2 * u->v[i] + (1.0f - beta2) * g * g;
        u->w[i] = u->shrink * u->w[i] - u->rate * (u->m[i] / u->bias1) / (sqrtf(u->v[i] / u->bias2) + epsilon);
    }
}

double gpt_adamw(gpt_weights *weights, const gpt_weights *grad, gpt_weights *mean, gpt_weights *square,
                 const gpt_shape *shape, float rate, int64_t step)
{
    gpt_tensor list[GPT_TENSORS_MOST];
    int count = gpt_tensors(shape, list);
    double norm = norm_of(grad);
    for (int i = 0; i < count; i++) {
        const gpt_tensor *t = &list[i];
        update u = { .w = weights->data + t->offset,
                     .m = mean->data + t->offset,
                     .v = square->data + t->offset,
                     .g = grad->data + t->offset,
                     .clip = norm > 1.0 ? (float)(1.0 / norm) : 1.0f,
                     .rate = rate,
                     .shrink = t->rows ? 1.0f - rate * decay : 1.0f,
                     .bias1 = 1.0f - powf(beta1, (float)(step + 1)),
                     .bias2 = 1.0f - powf(beta2, (float)(step + 1)) };
        gpt_each((t->rows ? t->rows : 1) * t->cols, PART, update_part, &u);
    }
    return norm;
}
