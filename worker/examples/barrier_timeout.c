/* The two things that keep a program from hanging without a word. Every rank here first wants to receive from
 * its left and only then sends to its right: with blocking calls, the classic deadlock.
 *
 * A timeout on a wait ends the waiting only: the receive stays valid, so the program can do what is missing
 * (send) and wait again. A barrier then holds everybody until the slowest rank has come, so that no rank
 * leaves, or goes on to the next phase, while another still needs it.
 *
 * This is for backends that match messages on the host. On nccl a receive that has been waited for holds its group's
 * stream until the message comes, and a barrier on the same group stands behind it.
 *
 *     psrun --standalone -n 2 -- barrier_timeout
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
    int32_t rank = psd_rank(ctx), world = psd_world_size(ctx);
    int32_t right = (rank + 1) % world, left = (rank + world - 1) % world;
    int32_t mine = rank, got = -1;
    psd_tensor out = psd_tensor_1d(&mine, 1, PSD_I32, "mine");
    psd_tensor in = psd_tensor_1d(&got, 1, PSD_I32, "got");
    psd_work receive, send;

    CHECK(psd_irecv(ctx, PSD_WORLD, &in, left, NULL, &receive));
    CHECK(psd_barrier(ctx, PSD_WORLD, NULL)); /* all ranks are in the same place: nobody has sent */
    psd_status first = psd_wait(ctx, receive, 100);
    printf("rank %d: %s\n", rank,
           first == PSD_ERR_TIMEOUT ? psd_last_error() : "received before anybody waited in vain");
    CHECK(psd_barrier(ctx, PSD_WORLD, NULL)); /* all ranks have seen that it does not work like this */

    CHECK(psd_isend(ctx, PSD_WORLD, &out, right, NULL, &send));
    CHECK(psd_wait(ctx, receive, 0));
    CHECK(psd_wait(ctx, send, 0));
    CHECK(psd_barrier(ctx, PSD_WORLD, NULL));

    int right_result = first == PSD_ERR_TIMEOUT && got == left;
    printf("barrier_timeout: rank %d of %d done, received %d from rank %d, %s\n", rank, world, got, left,
           right_result ? "as expected" : "WRONG");
    CHECK(psd_finalize(&ctx));
    return right_result ? 0 : 1;
}
