/* Blocking point-to-point, as torch.distributed.send and recv: rank 0 sends a tensor to every other rank, and
 * each sends it back.
 *
 *     psrun --standalone -n 2 -- send_recv
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

enum { COUNT = 1000 };

int main(void)
{
    psd_ctx *ctx = NULL;
    CHECK(psd_init(NULL, &ctx));
    int32_t rank = psd_rank(ctx);
    int32_t world = psd_world_size(ctx);
    static int64_t data[COUNT];
    psd_tensor host = psd_tensor_1d(data, COUNT, PSD_I64, "data");
    psd_tensor t; /* what travels: in the memory that the backend moves, the host's or a GPU's */
    int wrong = 0;
    CHECK(psd_tensor_alloc(ctx, host.shape, 1, PSD_I64, "data", &t));

    if (rank == 0) {
        for (int32_t peer = 1; peer < world; peer++) {
            for (int i = 0; i < COUNT; i++)
                data[i] = i;
            CHECK(psd_tensor_copy(ctx, &t, &host, NULL));
            CHECK(psd_send(ctx, PSD_WORLD, &t, peer, NULL));
            CHECK(psd_recv(ctx, PSD_WORLD, &t, peer, NULL, NULL));
            CHECK(psd_tensor_copy(ctx, &host, &t, NULL));
            for (int i = 0; i < COUNT; i++)
                wrong += data[i] != i + peer;
        }
    } else {
        CHECK(psd_recv(ctx, PSD_WORLD, &t, 0, NULL, NULL));
        CHECK(psd_tensor_copy(ctx, &host, &t, NULL));
        for (int i = 0; i < COUNT; i++)
            data[i] += rank;
        CHECK(psd_tensor_copy(ctx, &t, &host, NULL));
        CHECK(psd_send(ctx, PSD_WORLD, &t, 0, NULL));
    }
    printf("send_recv: rank %d of %d done, %d wrong elements\n", rank, world, wrong);
    CHECK(psd_tensor_free(ctx, &t));
    CHECK(psd_finalize(&ctx));
    return wrong == 0 ? 0 : 1;
}
