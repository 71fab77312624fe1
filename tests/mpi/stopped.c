/* Rank 0 stops rank 1 in the middle of a transfer. Rank 0's deadline passes, what MPI has cannot be taken back from
 * it, and the process ends with a sentence (status 1); a psd_wait that returns is a failure (status 3). To be run with
 * a small PSD_MPI_PIECE, so that the transfer is long. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "psd.h"

#define COUNT (INT64_C(256) << 20)

static int receive(psd_ctx *ctx, psd_tensor *data, pid_t other)
{
    psd_opts opts;
    psd_work work;
    const volatile char *first = data->data;
    psd_opts_init(&opts);
    opts.timeout_ms = 2000;
    if (psd_irecv(ctx, PSD_WORLD, data, 1, &opts, &work) != PSD_OK)
        return 2;
    bool is_done = false;
    while (*first == 0 && !is_done)
        if (psd_test(ctx, work, &is_done) != PSD_OK)
            return 2;
    if (is_done || kill(other, SIGSTOP) != 0)
        return 2;
    psd_status status = psd_wait(ctx, work, 60000);
    fprintf(stderr, "stopped: psd_wait gave %d: %s\n", (int)status, psd_last_error());
    return 3;
}

int main(void)
{
    psd_ctx *ctx = NULL;
    int64_t pid = getpid();
    psd_tensor about = psd_tensor_1d(&pid, 1, PSD_I64, "pid");
    char *data = malloc(COUNT);
    if (data == NULL || psd_init(NULL, &ctx) != PSD_OK) {
        fprintf(stderr, "stopped: %s\n", psd_last_error());
        return 2;
    }
    memset(data, psd_rank(ctx), COUNT);
    psd_tensor t = psd_tensor_1d(data, COUNT, PSD_U8, "data");
    if (psd_broadcast(ctx, PSD_WORLD, &about, 1, NULL) != PSD_OK)
        return 2;
    if (psd_rank(ctx) == 0)
        return receive(ctx, &t, (pid_t)pid);
    return psd_send(ctx, PSD_WORLD, &t, 0, NULL) == PSD_OK ? 0 : 2;
}
