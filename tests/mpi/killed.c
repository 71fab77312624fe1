/* Rank 1 is killed while rank 0 waits for a message from it: rank 0 is told at once, not by mpirun's end of all. */
#include <signal.h>
#include <stdio.h>

#include "psd.h"

int main(void)
{
    psd_ctx *ctx = NULL;
    int32_t value = 0;
    psd_tensor t = psd_tensor_1d(&value, 1, PSD_I32, "value");
    if (psd_init(NULL, &ctx) != PSD_OK)
        return 2;
    if (psd_rank(ctx) == 1)
        raise(SIGKILL);
    psd_status status = psd_recv(ctx, PSD_WORLD, &t, 1, NULL, NULL);
    fprintf(stderr, "killed: rank 0: %s\n", psd_last_error());
    return status == PSD_ERR_PEER_FAILED ? 1 : 3;
}
