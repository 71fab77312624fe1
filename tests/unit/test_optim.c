/* Optimizers against values worked out by hand and against PyTorch's definition in double. */
#include <math.h>
#include <string.h>

#include "tests/lib/psd_test.h"
#include "worker/optim.h"

#define COUNT 3001 /* more than two blocks, odd */

static optim make(psd_optimizer kind, double lr, double momentum, bool average)
{
    optim o;
    char why[128];
    cr_assert(optim_make((int)kind, lr, momentum, average, &o, why, sizeof(why)), "%s", why);
    return o;
}

PSD_TEST(optim, sgd_by_hand)
{
    optim o = make(PSD_OPT_SGD, 0.5, 0, false);
    float p[3] = {1, 2, 3};
    const float a[3] = {1, 0, -1};
    const float b[3] = {1, 2, 3};
    const float *grads[] = {a, b};
    optim_apply(&o, p, NULL, grads, 2, 3);
    cr_assert_eq(p[0], 0.0f);
    cr_assert_eq(p[1], 1.0f);
    cr_assert_eq(p[2], 2.0f);
}

PSD_TEST(optim, average_divides_the_sum)
{
    optim o = make(PSD_OPT_SGD, 1, 0, true);
    float p[1] = {0};
    const float a[1] = {1}, b[1] = {2}, c[1] = {6};
    const float *grads[] = {a, b, c};
    optim_apply(&o, p, NULL, grads, 3, 1);
    cr_assert_eq(p[0], -3.0f);
}

/* PyTorch: the first step's velocity is the gradient itself. */
PSD_TEST(optim, momentum_by_hand)
{
    optim o = make(PSD_OPT_MOMENTUM, 0.5, 0.5, true);
    float p[1] = {10}, v[1] = {0};
    const float g[1] = {4};
    const float *grads[] = {g};
    const float expected[3] = {8, 5, 1.5f}; /* v = 4, 6, 7 */
    for (int step = 0; step < 3; step++) {
        optim_apply(&o, p, v, grads, 1, 1);
        cr_assert_eq(p[0], expected[step]);
    }
    cr_assert(optim_has_state(&o));
}

PSD_TEST(optim, many_elements_agree_with_double)
{
    static float p[COUNT], v[COUNT], g[4][COUNT];
    static double dp[COUNT], dv[COUNT];
    const float *grads[] = {g[0], g[1], g[2], g[3]};
    optim o = make(PSD_OPT_MOMENTUM, 0.02, 0.9, true);
    for (int i = 0; i < COUNT; i++) {
        p[i] = (float)(i % 17) - 8;
        dp[i] = (double)p[i];
    }
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < COUNT; i++) {
            double sum = 0;
            for (int r = 0; r < 4; r++) {
                g[r][i] = sinf((float)(i + 7 * r + 31 * step));
                sum += (double)g[r][i];
            }
            dv[i] = 0.9 * dv[i] + sum / 4;
            dp[i] -= 0.02 * dv[i];
        }
        optim_apply(&o, p, v, grads, 4, COUNT);
    }
    for (int i = 0; i < COUNT; i++)
        cr_assert(fabs((double)p[i] - dp[i]) < 1e-5, "element %d: %g, expected %g", i, (double)p[i], dp[i]);
}

/* Rank order matters in f32: (big + -big) + small is not big + (-big + small). */
PSD_TEST(optim, adds_in_rank_order)
{
    optim o = make(PSD_OPT_SGD, 1, 0, false);
    const float big[1] = {1e8f}, minus[1] = {-1e8f}, small[1] = {1};
    const float *first[] = {big, minus, small};
    const float *second[] = {big, small, minus};
    float p[1] = {0}, q[1] = {0};
    optim_apply(&o, p, NULL, first, 3, 1);
    optim_apply(&o, q, NULL, second, 3, 1);
    cr_assert_eq(p[0], -1.0f);
    cr_assert_eq(q[0], 0.0f);
}

PSD_TEST(optim, nothing_to_do)
{
    optim o = make(PSD_OPT_SGD, 1, 0, true);
    const float *grads[] = {NULL};
    optim_apply(&o, NULL, NULL, grads, 1, 0);
    cr_assert_not(optim_has_state(&o));
}

PSD_TEST(optim, refuses_what_it_does_not_know)
{
    optim o;
    char why[128];
    memset(&o, 0x5a, sizeof(o));
    optim before = o;
    cr_assert_not(optim_make(0, 0.1, 0, true, &o, why, sizeof(why)));
    cr_assert_not(optim_make(3, 0.1, 0, true, &o, why, sizeof(why)));
    cr_assert_not(optim_make(PSD_OPT_SGD, (double)NAN, 0, true, &o, why, sizeof(why)));
    cr_assert_not(optim_make(PSD_OPT_SGD, 1e300, 0, true, &o, why, sizeof(why)));
    cr_assert_not(optim_make(PSD_OPT_MOMENTUM, 0.1, (double)INFINITY, true, &o, why, sizeof(why)));
    cr_assert_eq(memcmp(&o, &before, sizeof(o)), 0);
}
