/* reduce, scatter and gather through a root: rank 0 gets everybody's sum, deals it out in equal parts, each
 * rank works on its part, and rank 0 collects the parts.
 *
 *     psrun --standalone -n 4 -- reduce_scatter_gather
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

enum { PART = 1000 };

int main(void)
{
    psd_ctx *ctx = NULL;
    CHECK(psd_init(NULL, &ctx));
    int32_t rank = psd_rank(ctx);
    int32_t world = psd_world_size(ctx);
    int64_t whole = (int64_t)PART * world;
    float part[PART], *all = malloc((size_t)whole * sizeof(*all));
    if (all == NULL)
        return perror("reduce_scatter_gather"), 1;
    psd_tensor host_all = psd_tensor_1d(all, whole, PSD_F32, "all");
    psd_tensor host_part = psd_tensor_1d(part, PART, PSD_F32, "part");
    psd_tensor mine, sum,
        piece; /* what travels: in the memory that the backend moves, the host's or a GPU's */
    CHECK(psd_tensor_alloc(ctx, host_part.shape, 1, PSD_F32, "part", &piece));
    CHECK(psd_tensor_alloc(ctx, &whole, 1, PSD_F32, "mine", &mine));
    CHECK(psd_tensor_alloc(ctx, &whole, 1, PSD_F32, "sum", &sum));

    for (int64_t i = 0; i < whole; i++)
        all[i] = (float)(i % 100 * (rank + 1));
    CHECK(psd_tensor_copy(ctx, &mine, &host_all, NULL));
    CHECK(psd_reduce(ctx, PSD_WORLD, &mine, &sum, PSD_SUM, 0, NULL)); /* rank 0: i % 100 * n(n+1)/2 */
    CHECK(psd_scatter(ctx, PSD_WORLD, &sum, &piece, 0, NULL));        /* part i to rank i */
    CHECK(psd_tensor_copy(ctx, &host_part, &piece, NULL));
    for (int i = 0; i < PART; i++)
        part[i] += (float)rank;
    CHECK(psd_tensor_copy(ctx, &piece, &host_part, NULL));
    CHECK(psd_gather(ctx, PSD_WORLD, &piece, &sum, 0, NULL)); /* the parts back to rank 0 */

    int64_t wrong = 0;
    CHECK(psd_tensor_copy(ctx, &host_all, &sum, NULL));
    float ranks = (float)(world * (world + 1) / 2);
    for (int64_t i = 0; i < whole && rank == 0; i++)
        wrong += all[i] != (float)(i % 100) * ranks + (float)(i / PART);
    printf("reduce_scatter_gather: rank %d of %d done, %lld wrong elements\n", rank, world, (long long)wrong);
    CHECK(psd_tensor_free(ctx, &mine));
    CHECK(psd_tensor_free(ctx, &sum));
    CHECK(psd_tensor_free(ctx, &piece));
    free(all);
    CHECK(psd_finalize(&ctx));
    return wrong == 0 ? 0 : 1;
}
