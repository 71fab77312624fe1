/* Non-blocking point-to-point, as torch.distributed.isend and irecv: start both, do something else, wait.
 * Each rank exchanges a tensor with its partner (0 with 1, 2 with 3, ...). With blocking calls in this order
 * both would wait in the send.
 *
 *     psrun --standalone -n 2 -- isend_irecv
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

enum { COUNT = 1 << 20 };

static float out[COUNT], in[COUNT];

int main(void)
{
    psd_ctx *ctx = NULL;
    CHECK(psd_init(NULL, &ctx));
    int32_t rank = psd_rank(ctx);
    int32_t world = psd_world_size(ctx);
    int32_t partner = rank ^ 1;
    int wrong = 0;

    if (partner < world) {
        psd_work works[2];
        psd_tensor host_out = psd_tensor_1d(out, COUNT, PSD_F32, "out");
        psd_tensor host_in = psd_tensor_1d(in, COUNT, PSD_F32, "in");
        psd_tensor send, recv; /* in the memory that the backend moves, the host's or a GPU's */
        CHECK(psd_tensor_alloc(ctx, host_out.shape, 1, PSD_F32, "out", &send));
        CHECK(psd_tensor_alloc(ctx, host_in.shape, 1, PSD_F32, "in", &recv));
        for (int i = 0; i < COUNT; i++)
            out[i] = (float)(i % 1000 + rank);
        CHECK(psd_tensor_copy(ctx, &send, &host_out, NULL));
        CHECK(psd_isend(ctx, PSD_WORLD, &send, partner, NULL, &works[0]));
        CHECK(psd_irecv(ctx, PSD_WORLD, &recv, partner, NULL, &works[1]));

        /* Here the rank is free to compute; it must leave both buffers alone until the wait. */

        CHECK(psd_waitall(ctx, works, 2, 0));
        CHECK(psd_tensor_copy(ctx, &host_in, &recv, NULL));
        for (int i = 0; i < COUNT; i++)
            wrong += in[i] != (float)(i % 1000 + partner);
        CHECK(psd_tensor_free(ctx, &send));
        CHECK(psd_tensor_free(ctx, &recv));
    }
    printf("isend_irecv: rank %d of %d done, %d wrong elements\n", rank, world, wrong);
    CHECK(psd_finalize(&ctx));
    return wrong == 0 ? 0 : 1;
}
