/* A planned transfer: the coordinator compiles, once, the steps that bring every rank's tensor to the rank
 * `shift` further on; all ranks agree on the plan's hash; then it is run as often as needed, without asking
 * again. `psctl plans` shows it.
 *
 *     psrun --standalone -n 4 -- ring_plan
 */
#include <psd.h>
#include <stdio.h>
#include <stdlib.h>

/* Every psd call returns a status; the sentence of a failure is psd_last_error(). */
#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        if ((call) != PSD_OK) {                                                                              \
            fprintf(stderr, "%s\n", psd_last_error());                                                       \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

enum { COUNT = 1 << 20, RUNS = 3, SHIFT = 1 };

static float block[COUNT];

int main(void)
{
    psd_ctx *ctx = NULL;
    psd_plan plan;
    CHECK(psd_init(NULL, &ctx));
    int32_t rank = psd_rank(ctx), world = psd_world_size(ctx);
    int64_t wrong = 0;
    psd_tensor host = psd_tensor_1d(block, COUNT, PSD_F32, "block");
    psd_tensor turn[2]; /* what travels: in the memory that the backend moves, the host's or a GPU's */
    CHECK(psd_tensor_alloc(ctx, host.shape, 1, PSD_F32, "block", &turn[0]));
    CHECK(psd_tensor_alloc(ctx, host.shape, 1, PSD_F32, "next block", &turn[1]));

    CHECK(psd_plan_ring_shift(ctx, PSD_WORLD, PSD_F32, COUNT, SHIFT, &plan));
    for (int i = 0; i < COUNT; i++)
        block[i] = (float)(rank * 1000 + i % 1000);
    CHECK(psd_tensor_copy(ctx, &turn[0], &host, NULL));
    for (int run = 0; run < RUNS; run++)
        CHECK(psd_plan_run(ctx, plan, &turn[run % 2], &turn[(run + 1) % 2]));
    CHECK(psd_tensor_copy(ctx, &host, &turn[RUNS % 2], NULL));
    CHECK(psd_plan_destroy(ctx, plan));

    int32_t origin = ((rank - RUNS * SHIFT) % world + world) % world;
    for (int i = 0; i < COUNT; i++)
        wrong += block[i] != (float)(origin * 1000 + i % 1000);
    printf("ring_plan: rank %d of %d done, %d runs, has the tensor of rank %d, %lld wrong elements\n", rank,
           world, RUNS, origin, (long long)wrong);
    CHECK(psd_tensor_free(ctx, &turn[0]));
    CHECK(psd_tensor_free(ctx, &turn[1]));
    CHECK(psd_finalize(&ctx));
    return wrong == 0 ? 0 : 1;
}
