/* Two ranks, one of which does not call an all_reduce: it ends by its own deadline, with an error on both, and a new group
 * works afterwards. Exit: 0 so it was, 1 not, 3 an operation failed, 4 did not join. On any backend that can abort. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */

#include <psd.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { DEADLINE_MS = 2000, MOST_SECONDS = 20 };

/* The rest cannot be judged. */
#define MUST(call)                                                                                           \
    do {                                                                                                     \
        if ((call) != PSD_OK)                                                                                \
            exit((printf("hang: %s\n", psd_last_error()), 3));                                               \
    } while (0)

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static float sum_of(psd_ctx *ctx, psd_group group, psd_tensor *t, float value)
{
    psd_tensor host = psd_tensor_1d(&value, 1, PSD_F32, "value");
    MUST(psd_tensor_copy(ctx, t, &host, NULL));
    MUST(psd_all_reduce(ctx, group, t, t, PSD_SUM, NULL));
    MUST(psd_tensor_copy(ctx, &host, t, NULL));
    return value;
}

int main(void)
{
    psd_ctx *ctx = NULL;
    psd_group hung, fresh;
    psd_tensor t, u;
    psd_opts opts;
    psd_status ended = PSD_OK;
    double seconds = 0;
    const int32_t both[2] = {0, 1};
    if (psd_init(NULL, &ctx) != PSD_OK)
        return printf("hang: %s\n", psd_last_error()), 4;
    int32_t rank = psd_rank(ctx);
    if (psd_world_size(ctx) != 2)
        return printf("hang: needs 2 ranks\n"), 4;
    MUST(psd_tensor_alloc(ctx, (const int64_t[]){1}, 1, PSD_F32, "t", &t));
    MUST(psd_tensor_alloc(ctx, (const int64_t[]){1}, 1, PSD_F32, "u", &u));
    MUST(psd_group_dup(ctx, PSD_WORLD, &hung));
    int right = sum_of(ctx, hung, &t, (float)(rank + 1)) == 3.0f;

    psd_opts_init(&opts);
    opts.timeout_ms = DEADLINE_MS;
    if (rank == 0) {
        psd_work work;
        double begun = now();
        ended = psd_iall_reduce(ctx, hung, &t, &t, PSD_SUM, &opts, &work);
        if (ended == PSD_OK)
            ended = psd_synchronize(ctx, work, 0);
        seconds = now() - begun;
        printf("hang: %s\n", psd_last_error());
    }
    /* Rank 1 waits here, where rank 0 comes once its operation has ended. */
    MUST(psd_group_new(ctx, both, 2, &fresh));
    if (rank == 1)
        ended = psd_all_reduce(ctx, hung, &t, &t, PSD_SUM, &opts);
    right = right && ended < PSD_OK && seconds < MOST_SECONDS;
    right = right && sum_of(ctx, fresh, &u, (float)(rank + 1)) == 3.0f;
    if (rank == 0)
        printf("hang: ended after %.1f s of %.1f allowed, a new group %s\n", seconds, DEADLINE_MS * 1e-3,
               right ? "works" : "does not work, or the hang was not told");
    psd_tensor_free(ctx, &t);
    psd_tensor_free(ctx, &u);
    MUST(psd_finalize(&ctx));
    return right ? 0 : 1;
}
