// psd.h from C++: it compiles, links, and can be used as in C.
#include "worker/psd.h"

#include <cstdio>
#include <cstring>

int main()
{
    psd_config config;
    psd_config_init(&config);
    psd_ctx *ctx = nullptr;
    float data[4] = {1, 2, 3, 4};
    psd_tensor tensor = psd_tensor_1d(data, 4, PSD_F32, "x");
    psd_group world = PSD_WORLD;
    psd_work work = {0, 0};
    if (psd_all_reduce(ctx, world, &tensor, &tensor, PSD_SUM, nullptr) != PSD_ERR_INVAL)
        return 1;
    if (psd_wait(ctx, work, 0) != PSD_ERR_INVAL || psd_finalize(&ctx) != PSD_OK)
        return 1;
    if (std::strstr(psd_last_error(), "psd_h_cxx.cc:") == nullptr) {
        std::fprintf(stderr, "%s\n", psd_last_error());
        return 1;
    }
    return psd_tensor_count(&tensor) == 4 ? 0 : 1;
}
