/* Simultaneous send and receive around a ring: in each of n - 1 steps every rank passes on to its right what
 * it got from its left, so that every rank sees every rank's tensor. This is how ring attention moves its
 * blocks.
 *
 *     psrun --standalone -n 4 -- ring
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

enum { COUNT = 1 << 18 };

static int32_t block[COUNT];

int main(void)
{
    psd_ctx *ctx = NULL;
    CHECK(psd_init(NULL, &ctx));
    int32_t rank = psd_rank(ctx);
    int32_t world = psd_world_size(ctx);
    int32_t right = (rank + 1) % world, left = (rank + world - 1) % world;
    int64_t wrong = 0;
    psd_tensor host = psd_tensor_1d(block, COUNT, PSD_I32, "block");
    psd_tensor turn[2]; /* what travels: in the memory that the backend moves, the host's or a GPU's */
    CHECK(psd_tensor_alloc(ctx, host.shape, 1, PSD_I32, "block", &turn[0]));
    CHECK(psd_tensor_alloc(ctx, host.shape, 1, PSD_I32, "next block", &turn[1]));

    for (int i = 0; i < COUNT; i++)
        block[i] = rank;
    CHECK(psd_tensor_copy(ctx, &turn[0], &host, NULL));
    for (int32_t step = 0; step + 1 < world; step++) {
        psd_tensor *in = &turn[(step + 1) % 2];
        CHECK(psd_sendrecv(ctx, PSD_WORLD, &turn[step % 2], right, in, left, NULL));
        CHECK(psd_tensor_copy(ctx, &host, in, NULL));
        int32_t origin = (rank + world - 1 - step) % world; /* whose block is here now */
        for (int i = 0; i < COUNT; i++)
            wrong += block[i] != origin;
    }
    printf("ring: rank %d of %d done, %lld wrong elements\n", rank, world, (long long)wrong);
    CHECK(psd_tensor_free(ctx, &turn[0]));
    CHECK(psd_tensor_free(ctx, &turn[1]));
    CHECK(psd_finalize(&ctx));
    return wrong == 0 ? 0 : 1;
}
