/* broadcast and all_reduce: rank 0's weights go to everybody, everybody adds something, all get the mean;
 * then a group of the even ranks does the same on its own.
 *
 *     psrun --standalone -n 4 -- broadcast_all_reduce
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

enum { COUNT = 10000 };

static double w[COUNT];

/* Of 0, 1, ... broadcast by group rank 0, plus each member's `add`: the mean is i + mean(add). */
static int share(psd_ctx *ctx, psd_group group, double add, double mean)
{
    int32_t rank = 0;
    int wrong = 0;
    psd_tensor host = psd_tensor_1d(w, COUNT, PSD_F64, "w");
    psd_tensor t; /* what travels: in the memory that the backend moves, the host's or a GPU's */
    CHECK(psd_tensor_alloc(ctx, host.shape, 1, PSD_F64, "w", &t));
    CHECK(psd_group_rank(ctx, group, &rank));
    for (int i = 0; i < COUNT; i++)
        w[i] = rank == 0 ? i : -1;
    CHECK(psd_tensor_copy(ctx, &t, &host, NULL));
    CHECK(psd_broadcast(ctx, group, &t, 0, NULL));
    CHECK(psd_tensor_copy(ctx, &host, &t, NULL));
    for (int i = 0; i < COUNT; i++)
        w[i] += add;
    CHECK(psd_tensor_copy(ctx, &t, &host, NULL));
    CHECK(psd_all_reduce(ctx, group, &t, &t, PSD_AVG, NULL));
    CHECK(psd_tensor_copy(ctx, &host, &t, NULL));
    CHECK(psd_tensor_free(ctx, &t));
    for (int i = 0; i < COUNT; i++)
        wrong += w[i] < i + mean - 1e-9 || w[i] > i + mean + 1e-9;
    return wrong;
}

int main(void)
{
    psd_ctx *ctx = NULL;
    CHECK(psd_init(NULL, &ctx));
    int32_t rank = psd_rank(ctx);
    int32_t world = psd_world_size(ctx);
    int wrong = share(ctx, PSD_WORLD, rank, (world - 1) / 2.0);

    psd_group even;
    CHECK(psd_group_split(ctx, PSD_WORLD, rank % 2 == 0 ? 0 : -1, rank, &even));
    if (rank % 2 == 0) {
        int32_t last = (world - 1) / 2 * 2; /* the ranks are 0, 2, ..., last */
        wrong += share(ctx, even, rank, last / 2.0);
        CHECK(psd_group_destroy(ctx, even));
    }
    printf("broadcast_all_reduce: rank %d of %d done, %d wrong elements\n", rank, world, wrong);
    CHECK(psd_finalize(&ctx));
    return wrong == 0 ? 0 : 1;
}
