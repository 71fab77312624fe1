#include "worker/optim.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Elements summed at a time: the sums stay in the first-level cache. */
#define BLOCK 1024

bool optim_make(int kind, double lr, double momentum, bool average, optim *out, char *why, size_t why_bytes)
{
    if (kind != PSD_OPT_SGD && kind != PSD_OPT_MOMENTUM) {
        snprintf(why, why_bytes, "unknown optimizer %d", kind);
        return false;
    }
    if (!isfinite((float)lr) || !isfinite((float)momentum)) {
        snprintf(why, why_bytes, "lr %g or momentum %g is not a finite f32 number", lr, momentum);
        return false;
    }
    out->kind = (psd_optimizer)kind;
    out->lr = (float)lr;
    out->momentum = (float)momentum;
    out->average = average;
    return true;
}

bool optim_has_state(const optim *o)
{
    return o->kind == PSD_OPT_MOMENTUM;
}

static void add_grads(float *sum, const float *const *grads, int n, size_t at, size_t count, bool average)
{
    memcpy(sum, grads[0] + at, count * sizeof(*sum));
    for (int r = 1; r < n; r++) {
        const float *g = grads[r] + at;
        for (size_t i = 0; i < count; i++)
            sum[i] += g[i];
    }
    if (average) {
        for (size_t i = 0; i < count; i++)
            sum[i] /= (float)n;
    }
}

static void sgd(const optim *o, float *param, const float *g, size_t count)
{
    for (size_t i = 0; i < count; i++)
        param[i] -= o->lr * g[i];
}

static void momentum(const optim *o, float *param, float *velocity, const float *g, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        velocity[i] = o->momentum * velocity[i] + g[i];
        param[i] -= o->lr * velocity[i];
    }
}

void optim_apply(const optim *o, float *param, float *velocity, const float *const *grads, int n,
                 size_t count)
{
    float sum[BLOCK];
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t some = count - at < BLOCK ? count - at : BLOCK;
        add_grads(sum, grads, n, at, some, o->average);
        if (o->kind == PSD_OPT_MOMENTUM)
            momentum(o, param + at, velocity + at, sum, some);
        else
            sgd(o, param + at, sum, some);
    }
}
