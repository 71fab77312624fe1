/* Rounds of all_reduce and barrier, small and large, each result checked; rank 0 says so at the end. */
#include <psd.h>
#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 12
#define MOST   20000

static int fail(void)
{
    fprintf(stderr, "%s\n", psd_last_error());
    return 1;
}

/* Elements that are not what they should be; -1: the call failed. */
static int64_t round_of(psd_ctx *ctx, float *data, int64_t count, int round)
{
    int32_t world = psd_world_size(ctx);
    int64_t wrong = 0;
    for (int64_t k = 0; k < count; k++)
        data[k] = (float)(psd_rank(ctx) + round);
    psd_tensor t = psd_tensor_1d(data, count, PSD_F32, "rounds");
    if (psd_all_reduce(ctx, PSD_WORLD, &t, &t, PSD_SUM, NULL) != PSD_OK ||
        psd_barrier(ctx, PSD_WORLD, NULL) != PSD_OK)
        return -1;
    float want = (float)(world * (world - 1) / 2 + world * round);
    for (int64_t k = 0; k < count; k++)
        wrong += data[k] != want;
    return wrong;
}

int main(void)
{
    static const int64_t counts[] = {1, 1000, MOST};
    psd_ctx *ctx = NULL;
    int64_t wrong = 0;
    float *data = malloc(MOST * sizeof(*data));
    if (data == NULL || psd_init(NULL, &ctx) != PSD_OK)
        return fail();
    for (int i = 0; i < ROUNDS && wrong == 0; i++)
        wrong = round_of(ctx, data, counts[i % 3], i);
    if (wrong < 0)
        return fail();
    if (psd_rank(ctx) == 0)
        printf("rounds: %s\n", wrong == 0 ? "all as expected" : "wrong sums");
    free(data);
    if (psd_finalize(&ctx) != PSD_OK)
        return fail();
    return wrong == 0 ? 0 : 1;
}
