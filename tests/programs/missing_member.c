/* Three ranks of which the last never asks for the group that the others make. Exit 0 when the two got
 * PSD_ERR_TIMEOUT; they print its sentence. Run with a PSD_TIMEOUT_MS of a second or two. */
#include <psd.h>

#include <stdio.h>

int main(void)
{
    psd_ctx *ctx = NULL;
    psd_group group;
    psd_opts patient;
    const int32_t all[] = {0, 1, 2};
    psd_opts_init(&patient);
    patient.timeout_ms = 30000;
    if (psd_init(NULL, &ctx) != PSD_OK) {
        printf("did not join: %s\n", psd_last_error());
        return 1;
    }
    psd_status status = PSD_ERR_TIMEOUT;
    if (psd_rank(ctx) != 2) {
        status = psd_group_new(ctx, all, 3, &group);
        printf("rank %d: %s\n", psd_rank(ctx), psd_last_error());
    }
    if (psd_barrier(ctx, PSD_WORLD, &patient) != PSD_OK)
        status = PSD_ERR_INTERNAL;
    psd_finalize(&ctx);
    return status == PSD_ERR_TIMEOUT ? 0 : 1;
}
