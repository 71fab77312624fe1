/* A rank that dies and comes back under its name, and a group made after the world broke.
 *   rejoin first     rank 1's first life: joins, then kills itself
 *   rejoin           rank 0, and rank 1's second life: the world answers only its error; a new group works
 * Prints "rank R again 3" at the end. Exit: 0 as expected, else 1. */
#include <psd.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>

/* The other may not be back yet: psd refuses a group with a rank that is lost. */
static psd_status make_group(psd_ctx *ctx, psd_group *group)
{
    const int32_t both[] = {0, 1};
    psd_status status = PSD_ERR_PEER_FAILED;
    for (int i = 0; i < 20000 && status == PSD_ERR_PEER_FAILED; i++) {
        psd_work idle = {UINT32_MAX, 0};
        (void)psd_wait(ctx, idle, 1);
        status = psd_group_new(ctx, both, 2, group);
    }
    return status;
}

static int go_on(psd_ctx *ctx)
{
    psd_group group;
    float x = psd_rank(ctx) == 0 ? 1.0f : 2.0f;
    psd_tensor t = psd_tensor_1d(&x, 1, PSD_F32, "x");
    psd_status status = psd_barrier(ctx, PSD_WORLD, NULL);
    if (status != PSD_ERR_ABORTED && status != PSD_ERR_PEER_FAILED) {
        printf("rank %d: the world's barrier gave %s\n", psd_rank(ctx), psd_status_text(status));
        return 1;
    }
    printf("rank %d world: %s\n", psd_rank(ctx), psd_last_error());
    if (make_group(ctx, &group) != PSD_OK || psd_all_reduce(ctx, group, &t, &t, PSD_SUM, NULL) != PSD_OK) {
        printf("rank %d: %s\n", psd_rank(ctx), psd_last_error());
        return 1;
    }
    printf("rank %d again %g\n", psd_rank(ctx), (double)x);
    return x == 3.0f ? 0 : 1;
}

int main(int argc, char **argv)
{
    psd_ctx *ctx = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (psd_init(NULL, &ctx) != PSD_OK) {
        printf("did not join: %s\n", psd_last_error());
        return 1;
    }
    printf("rank %d ready\n", psd_rank(ctx));
    if (argc > 1 && strcmp(argv[1], "first") == 0)
        raise(SIGKILL);
    int code = go_on(ctx);
    psd_finalize(&ctx);
    return code;
}
