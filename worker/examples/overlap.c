/* Overlap of compute and communication: a started transfer goes on by itself while the caller computes,
 * without a psd call between the start and the wait, though it is far larger (64 MiB) than any buffer inside.
 * Even ranks compute; each first sends to the odd rank behind it, then receives from it, and the odd rank
 * just waits. Prints the time of the computation alone (a), of the transfer alone (b), of both together, and
 * the ideal, which is max(a, b); without overlap it would be a + b. Moving memory takes a core as well: where
 * the computing ranks and the moving find no core each, because there are too few or others use them, the
 * ideal cannot be met. On a GPU the device moves it.
 *
 *     psrun --standalone -n 2 -- overlap
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */

#include <psd.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Every psd call returns a status; the sentence of a failure is psd_last_error(). */
#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        if ((call) != PSD_OK) {                                                                              \
            fprintf(stderr, "%s\n", psd_last_error());                                                       \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static const int64_t COUNT = 16 << 20; /* f32: 64 MiB */
enum { RUNS = 5 };

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Works in registers only, so that it does not compete with the transfer for memory. The volatile ends keep
 * the compiler from moving it out of the time that is measured. */
static void compute(long rounds)
{
    static volatile double ends = 1;
    double x = ends;
    for (long i = 0; i < rounds; i++)
        x = x * 0.999999 + 1e-6;
    ends = x;
}

static double time_of_compute(long rounds)
{
    double best = 1e9;
    for (int run = 0; run < RUNS; run++) {
        double begun = now();
        compute(rounds);
        double took = now() - begun;
        best = took < best ? took : best;
    }
    return best;
}

/* The best of a few runs of a transfer with `rounds` of computation between its start and the wait. */
static double transfer(psd_ctx *ctx, psd_tensor *data, int is_send, int32_t peer, long rounds)
{
    double best = 1e9;
    for (int run = 0; run < RUNS; run++) {
        psd_work work;
        CHECK(psd_barrier(ctx, PSD_WORLD, NULL));
        if (peer >= psd_world_size(ctx))
            continue; /* an odd one out */
        double begun = now();
        if (is_send)
            CHECK(psd_isend(ctx, PSD_WORLD, data, peer, NULL, &work));
        else
            CHECK(psd_irecv(ctx, PSD_WORLD, data, peer, NULL, &work));
        compute(rounds);
        CHECK(psd_synchronize(ctx, work, 0));
        double took = now() - begun;
        best = took < best ? took : best;
    }
    return best;
}

static void measure(psd_ctx *ctx, psd_tensor *data, int is_send)
{
    int32_t rank = psd_rank(ctx), peer = rank ^ 1;
    double b = transfer(ctx, data, is_send, peer, 0);
    long rounds = 0;
    double a = 0;
    int computes = rank % 2 == 0 && peer < psd_world_size(ctx);
    if (computes) { /* about as long as the transfer */
        const long trial = 100000;
        rounds = (long)(b / time_of_compute(trial) * (double)trial) + 1;
        a = time_of_compute(rounds);
    }
    double both = transfer(ctx, data, is_send, peer, rounds);
    if (computes)
        printf("rank %d, %s: compute a %.1f ms, transfer b %.1f ms, both %.1f ms, ideal max(a,b) %.1f ms, "
               "a+b %.1f ms\n",
               rank, is_send ? "send" : "receive", a * 1e3, b * 1e3, both * 1e3, (a > b ? a : b) * 1e3,
               (a + b) * 1e3);
}

int main(void)
{
    psd_ctx *ctx = NULL;
    psd_tensor out, in;
    CHECK(psd_init(NULL, &ctx));
    int32_t rank = psd_rank(ctx), world = psd_world_size(ctx);
    CHECK(psd_tensor_alloc(ctx, &COUNT, 1, PSD_F32, "out", &out));
    CHECK(psd_tensor_alloc(ctx, &COUNT, 1, PSD_F32, "in", &in));
    float *x = malloc((size_t)COUNT * sizeof(*x));
    if (x == NULL)
        return perror("overlap"), 1;
    psd_tensor host = psd_tensor_1d(x, COUNT, PSD_F32, "host");
    for (int64_t i = 0; i < COUNT; i++)
        x[i] = (float)(i % 1000 + rank);
    CHECK(psd_tensor_copy(ctx, &out, &host,
                          NULL)); /* to the memory that the backend moves: the host's or a GPU's */

    int first_is_send = rank % 2 == 0;
    measure(ctx, first_is_send ? &out : &in, first_is_send);
    measure(ctx, first_is_send ? &in : &out, !first_is_send);

    int64_t wrong = 0;
    CHECK(psd_tensor_copy(ctx, &host, &in, NULL));
    for (int64_t i = 0; i < COUNT && (rank ^ 1) < world; i++)
        wrong += x[i] != (float)(i % 1000 + (rank ^ 1));
    printf("overlap: rank %d of %d done, %lld wrong elements\n", rank, world, (long long)wrong);
    CHECK(psd_tensor_free(ctx, &out));
    CHECK(psd_tensor_free(ctx, &in));
    free(x);
    CHECK(psd_finalize(&ctx));
    return wrong == 0 ? 0 : 1;
}
