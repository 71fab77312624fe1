/* A program that starts MPI itself and uses it beside psd: own_mpi single|multiple. */
#include <stdio.h>
#include <string.h>

#include <mpi.h>

#include "psd.h"

static int use_both(psd_ctx *ctx)
{
    int mine = psd_rank(ctx) + 1, sum = 0;
    int32_t psd_sum = mine;
    psd_tensor t = psd_tensor_1d(&psd_sum, 1, PSD_I32, "sum");
    psd_work work;
    psd_status status = psd_iall_reduce(ctx, PSD_WORLD, &t, &t, PSD_SUM, NULL, &work);
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (status == PSD_OK)
        status = psd_wait(ctx, work, 0);
    if (status != PSD_OK || psd_sum != sum) {
        fprintf(stderr, "own_mpi: MPI's sum is %d, psd's %d: %s\n", sum, (int)psd_sum, psd_last_error());
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    int provided = 0, result = 0;
    bool multiple = argc > 1 && strcmp(argv[1], "multiple") == 0;
    psd_ctx *ctx = NULL;
    MPI_Init_thread(&argc, &argv, multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
    psd_status status = psd_init(NULL, &ctx);
    if (status == PSD_OK)
        result = use_both(ctx);
    else
        fprintf(stderr, "own_mpi: %s\n", psd_last_error());
    psd_finalize(&ctx);
    MPI_Finalize();
    if (status == PSD_OK && result == 0)
        puts("own_mpi: both sums agree");
    return status == PSD_OK ? result : 4;
}
