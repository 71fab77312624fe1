/* Optimizers: what a server does with the gradients of one clock. Plain f32 arithmetic in a fixed order, so
 * that equal inputs give equal bits on every machine (the build forbids fused multiply-add). */
#ifndef PSD_OPTIM_H
#define PSD_OPTIM_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/psd.h"

typedef struct optim {
    psd_optimizer kind;
    float lr;
    float momentum;
    bool average; /* divide the sum of the gradients by their number */
} optim;

/* Checks and converts; false, with a sentence in `why`, for an unknown optimizer or a number that is not
 * finite. */
bool optim_make(int kind, double lr, double momentum, bool average, optim *out, char *why, size_t why_bytes);

/* Does it keep a value of its own per element (the velocity)? */
bool optim_has_state(const optim *o);

/* One update of `count` elements in one pass over memory: g = grads[0][i] + grads[1][i] + ... in this order,
 * divided by n if averaging; then
 *
 *     SGD        p -= lr * g
 *     momentum   v = momentum * v + g; p -= lr * v     (PyTorch's SGD; v starts at zero)
 *
 * `velocity` may be NULL for an optimizer without state. */
void optim_apply(const optim *o, float *param, float *velocity, const float *const *grads, int n,
                 size_t count);

#endif
