/* The first program: every rank gives its rank, all get the sum. The tensor that travels is in the memory that the
 * backend moves, the host's or a GPU's: psd_tensor_alloc gives it, psd_tensor_copy fills and reads it. (On backend
 * host any memory of the program will do as well, without copies.)
 *
 *     psrun --standalone -n 4 -- hello_all_reduce
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

int main(void)
{
    psd_ctx *ctx = NULL;
    CHECK(psd_init(NULL, &ctx));
    int32_t rank = psd_rank(ctx);
    int32_t world = psd_world_size(ctx);

    float sum[4];
    for (int i = 0; i < 4; i++)
        sum[i] = (float)rank;
    psd_tensor host = psd_tensor_1d(sum, 4, PSD_F32, "sum");
    psd_tensor t;
    CHECK(psd_tensor_alloc(ctx, host.shape, 1, PSD_F32, "sum", &t));
    CHECK(psd_tensor_copy(ctx, &t, &host, NULL));
    CHECK(psd_all_reduce(ctx, PSD_WORLD, &t, &t, PSD_SUM, NULL));
    CHECK(psd_tensor_copy(ctx, &host, &t, NULL));
    CHECK(psd_tensor_free(ctx, &t));

    float expected = (float)world * (float)(world - 1) / 2;
    printf("hello from rank %d of %d: the sum of the ranks is %g, expected %g\n", rank, world, (double)sum[0],
           (double)expected);
    CHECK(psd_finalize(&ctx));
    return sum[0] == expected && sum[3] == expected ? 0 : 1;
}
