/* A process is one rank of MPI: a second context is refused while there is one, and can follow it. */
#include <stdio.h>
#include <string.h>

#include "psd.h"

static bool use(psd_ctx *ctx)
{
    int32_t one = 1;
    psd_tensor t = psd_tensor_1d(&one, 1, PSD_I32, "one");
    return psd_all_reduce(ctx, PSD_WORLD, &t, &t, PSD_SUM, NULL) == PSD_OK && one == psd_world_size(ctx);
}

static int fail(const char *what)
{
    fprintf(stderr, "contexts: %s: %s\n", what, psd_last_error());
    return 1;
}

int main(void)
{
    psd_ctx *first = NULL, *second = NULL;
    psd_config config;
    psd_config_init(&config);
    config.job = "first";
    if (psd_init(&config, &first) != PSD_OK || !use(first))
        return fail("the first context");
    config.job = "second";
    if (psd_init(&config, &second) != PSD_ERR_EXISTS ||
        strstr(psd_last_error(), "has a context already") == NULL)
        return fail("a second context beside it");
    if (!use(first) || psd_finalize(&first) != PSD_OK)
        return fail("the first context, afterwards");
    if (psd_init(&config, &second) != PSD_OK || !use(second) || psd_finalize(&second) != PSD_OK)
        return fail("a second context after it");
    puts("contexts: one after the other");
    return 0;
}
