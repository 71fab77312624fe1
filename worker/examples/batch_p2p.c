/* A list of sends and receives started together, as torch.distributed.batch_isend_irecv: every rank sends its
 * own number to every other rank. The order of the list does not matter; a batch cannot deadlock against the
 * others'.
 *
 *     psrun --standalone -n 4 -- batch_p2p
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

enum { MOST = 256 }; /* ranks */

int main(void)
{
    psd_ctx *ctx = NULL;
    CHECK(psd_init(NULL, &ctx));
    int32_t rank = psd_rank(ctx);
    int32_t world = psd_world_size(ctx);
    int32_t mine[1] = {100 + rank}, theirs[MOST] = {0};
    psd_tensor host_mine = psd_tensor_1d(mine, 1, PSD_I32, "mine");
    psd_tensor host_theirs = psd_tensor_1d(theirs, MOST, PSD_I32, "theirs");
    psd_tensor out, in; /* what travels: in the memory that the backend moves, the host's or a GPU's */
    psd_p2p ops[2 * MOST];
    int32_t count = 0, wrong = 0;
    if (world > MOST)
        return fprintf(stderr, "batch_p2p: %d ranks are more than the %d of this example\n", world, MOST), 1;

    CHECK(psd_tensor_alloc(ctx, host_mine.shape, 1, PSD_I32, "mine", &out));
    CHECK(psd_tensor_alloc(ctx, host_theirs.shape, 1, PSD_I32, "theirs", &in));
    CHECK(psd_tensor_copy(ctx, &out, &host_mine, NULL));
    for (int32_t peer = 0; peer < world; peer++) {
        if (peer == rank)
            continue;
        ops[count++] = (psd_p2p){PSD_OP_SEND, out, peer, 0};
        ops[count++] = (psd_p2p){PSD_OP_RECV, psd_tensor_slice(&in, peer, 1), peer, 0};
    }
    if (count > 0)
        CHECK(psd_batch(ctx, PSD_WORLD, ops, count, NULL));
    CHECK(psd_tensor_copy(ctx, &host_theirs, &in, NULL));

    for (int32_t peer = 0; peer < world; peer++)
        wrong += peer != rank && theirs[peer] != 100 + peer;
    printf("batch_p2p: rank %d of %d done, %d operations, %d wrong\n", rank, world, count, wrong);
    CHECK(psd_tensor_free(ctx, &out));
    CHECK(psd_tensor_free(ctx, &in));
    CHECK(psd_finalize(&ctx));
    return wrong == 0 ? 0 : 1;
}
