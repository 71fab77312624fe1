#include "worker/optim.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "worker/backend/elements.h"

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
    if (lr < 0 || momentum < 0 || momentum >= 1) {
        if (lr < 0)
            snprintf(why, why_bytes, "lr is %g; it is 0 or more", lr);
        else
            snprintf(why, why_bytes, "momentum is %g; it is 0 to less than 1", momentum);
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

/* The loops below are inlined twice: with the constant count of a whole block, which lets the compiler use
 * vector instructions, and with that of the rest. Each element is computed in the same way in both. */
#define INLINE static inline __attribute__((always_inline))

INLINE void add(float *restrict sum, const float *restrict g, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum[i] = element_add(sum[i], g[i]);
}

INLINE void divide(float *sum, float by, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum[i] = element_mean(sum[i], by);
}

INLINE void sgd(float *restrict param, const float *restrict g, float lr, size_t count)
{
    for (size_t i = 0; i < count; i++)
        param[i] = element_step(param[i], g[i], lr);
}

INLINE void decay_and_add(float *restrict velocity, const float *restrict g, float momentum, size_t count)
{
    for (size_t i = 0; i < count; i++)
        velocity[i] = element_velocity(velocity[i], g[i], momentum);
}

INLINE void apply(const optim *o, float *param, float *velocity, const float *const *grads, int n, size_t at,
                  size_t count)
{
    float sum[BLOCK];
    memcpy(sum, grads[0] + at, count * sizeof(*sum));
    for (int r = 1; r < n; r++)
        add(sum, grads[r] + at, count);
    if (o->average && n > 1)
        divide(sum, (float)n, count);
    if (o->kind == PSD_OPT_MOMENTUM) {
        decay_and_add(velocity + at, sum, o->momentum, count);
        sgd(param + at, velocity + at, o->lr, count);
    } else {
        sgd(param + at, sum, o->lr, count);
    }
}

void optim_apply(const optim *o, float *param, float *velocity, const float *const *grads, int n,
                 size_t count)
{
    size_t at = 0;
    for (; count - at >= BLOCK; at += BLOCK)
        apply(o, param, velocity, grads, n, at, BLOCK);
    if (at < count)
        apply(o, param, velocity, grads, n, at, count - at);
}
