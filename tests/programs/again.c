/* Joins, reduces once and leaves, ROUNDS times in one process: each world begins while the last one may still
 * be leaving.
 *   again ROUNDS
 * Prints "ended ROUNDS rounds". Exit: 0 as expected, else 1. */
#include <psd.h>

#include <stdio.h>
#include <stdlib.h>

static int play_round(int round)
{
    psd_ctx *ctx = NULL;
    float x = 1.0f;
    psd_tensor t = psd_tensor_1d(&x, 1, PSD_F32, "x");
    psd_status status = psd_init(NULL, &ctx);
    if (status == PSD_OK)
        status = psd_all_reduce(ctx, PSD_WORLD, &t, &t, PSD_SUM, NULL);
    if (status != PSD_OK || x != (float)psd_world_size(ctx))
        printf("round %d: %s: %s\n", round, psd_status_text(status), psd_last_error());
    psd_status left = ctx != NULL ? psd_finalize(&ctx) : PSD_OK;
    return status == PSD_OK && left == PSD_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 1;
    for (int round = 0; round < rounds; round++)
        if (play_round(round) != 0)
            return 1;
    printf("ended %d rounds\n", rounds);
    return 0;
}
