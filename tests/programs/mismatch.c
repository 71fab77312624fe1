/* Ranks that disagree about one operation, each kind on its own source line.
 *   mismatch KIND     count dtype redop root kind splits gather p2p-count p2p-dtype leave bucket
 * Rank 0 calls the odd form. Every rank prints "rank R STATUS TEXT"; a rank whose own call had already
 * completed gets the error at its next call, a barrier. Exit 0 when each rank saw PSD_ERR_MISMATCH, else 1.
 * "leave" is p2p-count with a sender that leaves at once, and never learns of it. */
#include <psd.h>

#include <stdio.h>
#include <string.h>

static float a[4096], b[4096];

static psd_status collective(psd_ctx *ctx, const char *kind, bool odd)
{
    psd_tensor in = psd_tensor_1d(a, 100, PSD_F32, "grad");
    psd_tensor out = psd_tensor_1d(b, 100, PSD_F32, "grad");
    int32_t n = psd_world_size(ctx);
    if (strcmp(kind, "count") == 0 && odd) {
        in.shape[0] = out.shape[0] = 101;
        return psd_all_reduce(ctx, PSD_WORLD, &in, &out, PSD_SUM, NULL);
    }
    if (strcmp(kind, "dtype") == 0 && odd) {
        in.dtype = out.dtype = PSD_I32;
        return psd_all_reduce(ctx, PSD_WORLD, &in, &out, PSD_SUM, NULL);
    }
    if (strcmp(kind, "redop") == 0 && odd)
        return psd_all_reduce(ctx, PSD_WORLD, &in, &out, PSD_MAX, NULL);
    if (strcmp(kind, "root") == 0)
        return psd_broadcast(ctx, PSD_WORLD, &out, odd ? 0 : n - 1, NULL);
    if (strcmp(kind, "kind") == 0 && odd)
        return psd_barrier(ctx, PSD_WORLD, NULL);
    if (strcmp(kind, "gather") == 0) {
        in.shape[0] = odd ? 7 : 8;
        out.shape[0] = in.shape[0] * n;
        return psd_all_gather(ctx, PSD_WORLD, &in, &out, NULL);
    }
    return psd_all_reduce(ctx, PSD_WORLD, &in, &out, PSD_SUM, NULL);
}

/* The same tensors in another order: all buckets are of one size. */
static psd_status bucket(psd_ctx *ctx, bool odd)
{
    psd_tensor list[] = {psd_tensor_1d(a, 50, PSD_F32, "w"), psd_tensor_1d(b, odd ? 1 : 100, PSD_F32, "x"),
                         psd_tensor_1d(b + 200, odd ? 100 : 1, PSD_F32, "y")};
    return psd_all_reduce_coalesced(ctx, PSD_WORLD, list, 3, PSD_SUM, 0, NULL);
}

static psd_status splits(psd_ctx *ctx, bool odd)
{
    int64_t in_splits[64], out_splits[64];
    int32_t n = psd_world_size(ctx);
    for (int32_t i = 0; i < n; i++)
        in_splits[i] = out_splits[i] = 4;
    if (odd)
        in_splits[n - 1] = 5;
    psd_tensor in = psd_tensor_1d(a, 4 * n + (odd ? 1 : 0), PSD_F32, "tokens");
    psd_tensor out = psd_tensor_1d(b, 4 * n, PSD_F32, "tokens");
    return psd_all_to_all_v(ctx, PSD_WORLD, &in, in_splits, &out, out_splits, NULL);
}

static psd_status p2p(psd_ctx *ctx, const char *kind, int32_t rank)
{
    psd_tensor t = psd_tensor_1d(a, 3, PSD_F32, "activation");
    if (rank == 0)
        return psd_send(ctx, PSD_WORLD, &t, 1, NULL);
    if (strcmp(kind, "p2p-dtype") != 0)
        t.shape[0] = 5;
    else
        t.dtype = PSD_I32;
    return rank == 1 ? psd_recv(ctx, PSD_WORLD, &t, 0, NULL, NULL) : PSD_OK;
}

int main(int argc, char **argv)
{
    psd_ctx *ctx = NULL;
    psd_status status;
    const char *kind = argc > 1 ? argv[1] : "count";
    if (psd_init(NULL, &ctx) != PSD_OK) {
        printf("did not join: %s\n", psd_last_error());
        return 4;
    }
    int32_t rank = psd_rank(ctx);
    bool leaves = strcmp(kind, "leave") == 0;
    if (strcmp(kind, "bucket") == 0)
        status = bucket(ctx, rank == 0);
    else if (strcmp(kind, "splits") == 0)
        status = splits(ctx, rank == 0);
    else if (strncmp(kind, "p2p", 3) == 0 || leaves)
        status = p2p(ctx, kind, rank);
    else
        status = collective(ctx, kind, rank == 0);
    if (status == PSD_OK && !leaves)
        status = psd_barrier(ctx, PSD_WORLD, NULL);
    printf("rank %d %s %s\n", rank, status == PSD_ERR_MISMATCH ? "PSD_ERR_MISMATCH" : psd_status_text(status),
           psd_last_error());
    psd_finalize(&ctx);
    return status == PSD_ERR_MISMATCH || (leaves && rank == 0) ? 0 : 1;
}
