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
    float part[PART];
    psd_tensor mine, sum;
    psd_tensor piece = psd_tensor_1d(part, PART, PSD_F32, "part");
    CHECK(psd_tensor_alloc(ctx, &whole, 1, PSD_F32, "mine", &mine));
    CHECK(psd_tensor_alloc(ctx, &whole, 1, PSD_F32, "sum", &sum));

    float *x = mine.data;
    for (int64_t i = 0; i < whole; i++)
        x[i] = (float)(i % 100 * (rank + 1));
    CHECK(psd_reduce(ctx, PSD_WORLD, &mine, &sum, PSD_SUM, 0, NULL)); /* rank 0: i % 100 * n(n+1)/2 */
    CHECK(psd_scatter(ctx, PSD_WORLD, &sum, &piece, 0, NULL));        /* part i to rank i */
    for (int i = 0; i < PART; i++)
        part[i] += (float)rank;
    CHECK(psd_gather(ctx, PSD_WORLD, &piece, &sum, 0, NULL)); /* the parts back to rank 0 */

    int64_t wrong = 0;
    const float *y = sum.data;
    float ranks = (float)(world * (world + 1) / 2);
    for (int64_t i = 0; i < whole && rank == 0; i++)
        wrong += y[i] != (float)(i % 100) * ranks + (float)(i / PART);
    printf("reduce_scatter_gather: rank %d of %d done, %lld wrong elements\n", rank, world, (long long)wrong);
    CHECK(psd_tensor_free(ctx, &mine));
    CHECK(psd_tensor_free(ctx, &sum));
    CHECK(psd_finalize(&ctx));
    return wrong == 0 ? 0 : 1;
}
