/* Data-parallel training without servers, as torch.nn.parallel.DistributedDataParallel: Linear(10, 10), batch
 * 64 over all workers, mean squared error, SGD with learning rate 0.001, 100 iterations. Each worker computes
 * the gradient of its share of the batch; one all_reduce of both gradients gives the mean; every worker makes
 * the same step. ddp_linear.sh runs it with 1, 2 and 4 workers and prints a table.
 *
 *     psrun --standalone -n 2 -- ddp_linear
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

enum { IN = 10, OUT = 10, BATCH = 64, ITERATIONS = 100 };

static const float RATE = 0.001f;

typedef struct linear {
    float weight[OUT][IN];
    float bias[OUT];
} linear;

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* The same numbers in [-1, 1) on every worker: a linear congruential generator. */
static float uniform(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 23) - 1;
}

/* The loss of images [begin, end) of the batch, and its gradient. */
static double gradient(const linear *l, float x[][IN], float y[][OUT], int begin, int end, linear *g)
{
    double loss = 0;
    *g = (linear){.bias = {0}};
    for (int b = begin; b < end; b++) {
        for (int o = 0; o < OUT; o++) {
            float error = l->bias[o] - y[b][o];
            for (int i = 0; i < IN; i++)
                error += l->weight[o][i] * x[b][i];
            loss += (double)(error * error) / (OUT * (end - begin));
            error *= 2.0f / (float)(OUT * (end - begin));
            g->bias[o] += error;
            for (int i = 0; i < IN; i++)
                g->weight[o][i] += error * x[b][i];
        }
    }
    return loss;
}

static void step(linear *l, const linear *g)
{
    for (int o = 0; o < OUT; o++) {
        l->bias[o] -= RATE * g->bias[o];
        for (int i = 0; i < IN; i++)
            l->weight[o][i] -= RATE * g->weight[o][i];
    }
}

/* Combines `count` host tensors of all workers, in the memory that the backend moves: the host's or a GPU's. */
static void all_reduce(psd_ctx *ctx, psd_tensor *host, psd_tensor *moved, int count, psd_redop redop)
{
    for (int i = 0; i < count; i++)
        CHECK(psd_tensor_copy(ctx, &moved[i], &host[i], NULL));
    CHECK(psd_all_reduce_coalesced(ctx, PSD_WORLD, moved, count, redop, 0, NULL));
    for (int i = 0; i < count; i++)
        CHECK(psd_tensor_copy(ctx, &host[i], &moved[i], NULL));
}

static psd_tensor like(psd_ctx *ctx, const psd_tensor *host)
{
    psd_tensor moved;
    CHECK(psd_tensor_alloc(ctx, host->shape, host->ndim, host->dtype, host->name, &moved));
    return moved;
}

int main(void)
{
    psd_ctx *ctx = NULL;
    static float x[BATCH][IN], y[BATCH][OUT];
    linear l, g;
    uint32_t state = 1;
    CHECK(psd_init(NULL, &ctx));
    int32_t rank = psd_rank(ctx), world = psd_world_size(ctx);
    if (BATCH % world != 0)
        return fprintf(stderr, "ddp_linear: a batch of %d cannot be shared by %d workers\n", BATCH, world), 1;
    for (int i = 0; i < OUT * IN; i++)
        l.weight[i / IN][i % IN] = uniform(&state);
    for (int i = 0; i < OUT; i++)
        l.bias[i] = uniform(&state);
    for (int b = 0; b < BATCH; b++) {
        for (int i = 0; i < IN; i++)
            x[b][i] = uniform(&state);
        for (int o = 0; o < OUT; o++)
            y[b][o] = uniform(&state);
    }

    psd_tensor grads[] = {psd_tensor_nd(g.weight, (const int64_t[]){OUT, IN}, 2, PSD_F32, "weight.grad"),
                          psd_tensor_1d(g.bias, OUT, PSD_F32, "bias.grad")};
    psd_tensor moved[] = {like(ctx, &grads[0]), like(ctx, &grads[1])};
    double losses[2] = {0, 0}; /* first and last, of this worker's share, then of the batch */
    CHECK(psd_barrier(ctx, PSD_WORLD, NULL));
    double begun = now();
    for (int i = 0; i < ITERATIONS; i++) {
        double loss = gradient(&l, x, y, rank * BATCH / world, (rank + 1) * BATCH / world, &g);
        losses[i > 0] = loss;
        all_reduce(ctx, grads, moved, 2, PSD_AVG);
        step(&l, &g);
    }
    double seconds = now() - begun;

    psd_tensor mean = psd_tensor_1d(losses, 2, PSD_F64, "losses");
    psd_tensor moved_mean = like(ctx, &mean);
    all_reduce(ctx, &mean, &moved_mean, 1, PSD_AVG);
    linear most = l;
    psd_tensor same = psd_tensor_nd(most.weight, (const int64_t[]){OUT, IN}, 2, PSD_F32, "weight");
    all_reduce(ctx, &same, &moved[0], 1, PSD_MAX);
    int wrong = losses[1] >= losses[0];
    for (int i = 0; i < OUT * IN; i++) /* every worker has the same weights, bit by bit */
        wrong += most.weight[i / IN][i % IN] != l.weight[i / IN][i % IN];
    if (rank == 0)
        printf("ddp_linear: workers=%d seconds=%.6f first_loss=%.6f last_loss=%.6f\n", world, seconds,
               losses[0], losses[1]);
    if (wrong != 0)
        fprintf(stderr, "ddp_linear: rank %d: the loss did not fall or the weights differ\n", rank);
    CHECK(psd_tensor_free(ctx, &moved[0]));
    CHECK(psd_tensor_free(ctx, &moved[1]));
    CHECK(psd_tensor_free(ctx, &moved_mean));
    CHECK(psd_finalize(&ctx));
    return wrong == 0 ? 0 : 1;
}
