/* A worker that does the same collective again and again, for tests that kill, stop and restart things around
 * it. loop [--iters N] [--elements N] [--tcp] Prints "rank R ready" once joined, "rank R done" at the end.
 * Exit: 0 done, 3 an operation failed, 4 did not join. */
#include <psd.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int run(psd_ctx *ctx, long iters, float *data, int64_t elements)
{
    psd_tensor t = psd_tensor_1d(data, elements, PSD_F32, "loop");
    for (long i = 0; i < iters; i++) {
        for (int64_t k = 0; k < elements; k++)
            data[k] = 1.0f;
        if (psd_all_reduce(ctx, PSD_WORLD, &t, &t, PSD_SUM, NULL) != PSD_OK) {
            printf("rank %d failed: %s\n", psd_rank(ctx), psd_last_error());
            return 3;
        }
        if (data[elements - 1] != (float)psd_world_size(ctx)) {
            printf("rank %d: wrong sum %g\n", psd_rank(ctx), (double)data[elements - 1]);
            return 5;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    long iters = 1000;
    long elements = 1000;
    psd_ctx *ctx = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--iters") == 0)
            iters = atol(argv[i + 1]);
        else if (strcmp(argv[i], "--elements") == 0)
            elements = atol(argv[i + 1]);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    float *data = calloc((size_t)elements, sizeof *data);
    if (!data)
        return 5;
    if (psd_init(NULL, &ctx) != PSD_OK) {
        printf("did not join: %s\n", psd_last_error());
        free(data);
        return 4;
    }
    printf("rank %d ready\n", psd_rank(ctx));
    int code = run(ctx, iters, data, elements);
    if (code == 0)
        printf("rank %d done\n", psd_rank(ctx));
    psd_finalize(&ctx);
    free(data);
    return code;
}
