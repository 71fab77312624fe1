/* One message of more elements than an int counts, from rank 0 to rank 1. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "psd.h"

#define COUNT ((INT64_C(1) << 31) + 12345)

static unsigned char value_at(int64_t i)
{
    return (unsigned char)((uint64_t)i * 0x9e3779b97f4a7c15u >> 56);
}

/* At every page, around the cuts, and at the end. */
static int64_t first_wrong(const unsigned char *data)
{
    for (int64_t i = 0; i < COUNT; i += i % 4096 == 4095 ? 1 : 4095)
        if (data[i] != value_at(i))
            return i;
    for (int64_t i = COUNT - 4096; i < COUNT; i++)
        if (data[i] != value_at(i))
            return i;
    return -1;
}

int main(void)
{
    psd_ctx *ctx = NULL;
    unsigned char *data = calloc((size_t)COUNT, 1);
    if (data == NULL || psd_init(NULL, &ctx) != PSD_OK) {
        fprintf(stderr, "large: %s\n", data == NULL ? "out of memory" : psd_last_error());
        return 2;
    }
    psd_tensor t = psd_tensor_1d(data, COUNT, PSD_U8, "large");
    psd_status status;
    if (psd_rank(ctx) == 0) {
        for (int64_t i = 0; i < COUNT; i++)
            data[i] = value_at(i);
        status = psd_send(ctx, PSD_WORLD, &t, 1, NULL);
    } else {
        status = psd_recv(ctx, PSD_WORLD, &t, 0, NULL, NULL);
    }
    int64_t wrong = status == PSD_OK ? first_wrong(data) : -1;
    if (status != PSD_OK || wrong >= 0)
        fprintf(stderr, "large: status %d, first wrong at %" PRId64 ": %s\n", (int)status, wrong,
                psd_last_error());
    else if (psd_rank(ctx) == 1)
        printf("large: %" PRId64 " elements, all as sent\n", (int64_t)COUNT);
    psd_finalize(&ctx);
    free(data);
    return status == PSD_OK && wrong < 0 ? 0 : 1;
}
