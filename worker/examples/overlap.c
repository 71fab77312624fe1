/* Overlap of compute and communication: a started transfer goes on by itself while the caller computes,
 * without a psd call between the start and the wait, though it is far larger than any buffer inside. Each
 * rank sends 64 MiB to its right and receives as much from its left. Prints the time of the computation alone
 * (a), of the transfer alone (b), of both together, and the ideal, which is max(a, b); without overlap it
 * would be a + b. Moving memory takes a core too: with fewer cores than ranks and their progress threads
 * need, the ideal cannot be met.
 *
 *     psrun --standalone -n 2 -- overlap
 */
#include <psd.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Every psd call returns a status; the sentence of a failure is psd_last_error(). */
#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        if ((call) != PSD_OK) {                                                                              \
            fprintf(stderr, "%s\\n", psd_last_error());                                                      \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static const int64_t COUNT = 16 << 20; /* f32: 64 MiB */

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Works in registers only, so that it does not compete with the transfer for memory. */
static double compute(long rounds)
{
    double x = 1;
    for (long i = 0; i < rounds; i++)
        x = x * 0.999999 + 1e-6;
    return x;
}

static void start(psd_ctx *ctx, const psd_tensor *out, psd_tensor *in, psd_work works[2])
{
    int32_t rank = psd_rank(ctx), world = psd_world_size(ctx);
    CHECK(psd_irecv(ctx, PSD_WORLD, in, (rank + world - 1) % world, NULL, &works[0]));
    CHECK(psd_isend(ctx, PSD_WORLD, out, (rank + 1) % world, NULL, &works[1]));
}

int main(void)
{
    psd_ctx *ctx = NULL;
    psd_tensor out, in;
    psd_work works[2];
    CHECK(psd_init(NULL, &ctx));
    int32_t rank = psd_rank(ctx), world = psd_world_size(ctx);
    CHECK(psd_tensor_alloc(ctx, &COUNT, 1, PSD_F32, "out", &out));
    CHECK(psd_tensor_alloc(ctx, &COUNT, 1, PSD_F32, "in", &in));
    float *x = out.data;
    for (int64_t i = 0; i < COUNT; i++)
        x[i] = (float)(i % 1000 + rank);

    double b = 0;
    for (int run = 0; run < 2; run++) { /* the first touches the memory */
        CHECK(psd_barrier(ctx, PSD_WORLD, NULL));
        double begun = now();
        start(ctx, &out, &in, works);
        CHECK(psd_waitall(ctx, works, 2, 0));
        b = now() - begun;
    }

    long rounds = 1000000;
    double begun = now();
    double result = compute(rounds);
    rounds =
        (long)((double)rounds * b / (now() - begun)) + 1; /* a computation about as long as the transfer */
    CHECK(psd_barrier(ctx, PSD_WORLD, NULL));
    begun = now();
    result += compute(rounds);
    double a = now() - begun;

    CHECK(psd_barrier(ctx, PSD_WORLD, NULL));
    begun = now();
    start(ctx, &out, &in, works);
    result += compute(rounds);
    CHECK(psd_waitall(ctx, works, 2, 0));
    double both = now() - begun;

    int64_t wrong = 0;
    const float *y = in.data;
    for (int64_t i = 0; i < COUNT; i++)
        wrong += y[i] != (float)(i % 1000 + (rank + world - 1) % world);
    printf("overlap: rank %d of %d: compute a %.1f ms, transfer b %.1f ms, both %.1f ms, ideal max(a,b) %.1f "
           "ms, a+b %.1f "
           "ms, %lld wrong elements (%g)\n",
           rank, world, a * 1e3, b * 1e3, both * 1e3, (a > b ? a : b) * 1e3, (a + b) * 1e3, (long long)wrong,
           result);
    CHECK(psd_tensor_free(ctx, &out));
    CHECK(psd_tensor_free(ctx, &in));
    CHECK(psd_finalize(&ctx));
    return wrong == 0 ? 0 : 1;
}
