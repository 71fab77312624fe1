/* A manifest and a layout pair from any bytes; what can be read is compiled, checked and bounded, and the three must
 * agree. The input is the model's file, a NUL, the pair's file. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/tensor.h"
#include "server/core/reshard.h"
#include "server/model/model.h"

/* Beyond these a single input takes seconds, which is no finding. */
enum { MOST_RANKS = 64, MOST_ELEMENTS = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int put(const uint8_t *data, size_t bytes, char *path, size_t path_bytes)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
        abort();
    snprintf(path, path_bytes, "/proc/self/fd/%d", fd);
    return fd;
}

static bool small(const psd_model *model, const model_pair *pair)
{
    for (uint32_t t = 0; t < model->count; t++) {
        if (psd_model_tensor_bytes(&model->tensors[t]) > MOST_ELEMENTS)
            return false;
    }
    return pair->src.ranks <= MOST_RANKS && pair->dst.ranks <= MOST_RANKS && model->count <= 64;
}

static void compile(const psd_model *model, const model_pair *pair, reshard_forwarding forwarding)
{
    const reshard_input input = {model, &pair->src, &pair->dst};
    char text[2048];
    reshard_plan plan;
    reshard_bounds bounds;
    psd_status status = reshard_compile(&input, forwarding, &plan, text, sizeof text);
    psd_status bound = reshard_bound(&input, &bounds, text, sizeof text);
    if (status != bound)
        abort();
    if (status != PSD_OK)
        return;
    if (reshard_check(&input, &plan, text, sizeof text) != PSD_OK || plan.bytes != bounds.moved ||
        plan.load < reshard_t_star(&bounds, plan.forwards))
        abort();
    reshard_plan_free(&plan);
    reshard_bounds_free(&bounds);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char text[2048], path[64];
    const model_why why = {text, sizeof text};
    const uint8_t *end = bytes > 0 ? memchr(data, 0, bytes) : NULL;
    size_t first = end != NULL ? (size_t)(end - data) : bytes;
    psd_model model = {0};
    model_pair pair = {0};
    int fd = put(data, first, path, sizeof path);
    psd_status status = model_read(path, &model, &why);
    close(fd);
    size_t rest = end != NULL ? bytes - first - 1 : 0;
    fd = put(data + bytes - rest, rest, path, sizeof path);
    psd_status other = model_read_pair(path, &pair, &why);
    close(fd);
    if (status == PSD_OK && other == PSD_OK && small(&model, &pair)) {
        compile(&model, &pair, RESHARD_DIRECT);
        compile(&model, &pair, RESHARD_FORWARD);
    }
    psd_model_free(&model);
    model_pair_free(&pair);
    return 0;
}
