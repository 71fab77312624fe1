#include "worker/table_layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensor.h"

static size_t slice_begin(size_t count, uint32_t servers, uint32_t server)
{
    size_t each = count / servers + (count % servers != 0);
    return server * each < count ? server * each : count;
}

static size_t slice_count(size_t count, uint32_t servers, uint32_t server)
{
    return slice_begin(count, servers, server + 1) - slice_begin(count, servers, server);
}

/* The limit leaves room for (servers + 1) * ceil(n / servers) and for bytes. */
static psd_status count_params(const psd_param *params, table_layout *layout, char *why, size_t why_bytes)
{
    for (uint32_t p = 0; p < layout->params; p++) {
        if (params[p].dtype != PSD_F32) {
            snprintf(why, why_bytes, "parameter %u \"%s\" is %s; tables hold f32", p, params[p].name,
                     psd_dtype_name((psd_dtype)params[p].dtype));
            return PSD_ERR_UNSUPPORTED;
        }
        if (params[p].count < 0 || (uint64_t)params[p].count > SIZE_MAX / 64 - layout->total) {
            snprintf(why, why_bytes, "parameter %u \"%s\" has %lld elements", p, params[p].name,
                     (long long)params[p].count);
            return PSD_ERR_LIMIT;
        }
        layout->counts[p] = (size_t)params[p].count;
        layout->total += layout->counts[p];
    }
    return PSD_OK;
}

psd_status table_layout_make(const psd_param *params, uint32_t param_count, uint32_t servers,
                             table_layout *out, char *why, size_t why_bytes)
{
    table_layout layout = {.servers = servers, .params = param_count};
    psd_status status = PSD_ERR_NOMEM;
    layout.counts = calloc(param_count > 0 ? param_count : 1, sizeof(size_t));
    layout.offsets = calloc((size_t)servers + 1, sizeof(size_t));
    if (layout.counts == NULL || layout.offsets == NULL) {
        snprintf(why, why_bytes, "out of memory for the layout of %u parameters", param_count);
        goto fail;
    }
    status = count_params(params, &layout, why, why_bytes);
    if (status != PSD_OK)
        goto fail;
    for (uint32_t s = 0; s < servers; s++) {
        layout.offsets[s + 1] = layout.offsets[s];
        for (uint32_t p = 0; p < param_count; p++)
            layout.offsets[s + 1] += slice_count(layout.counts[p], servers, s);
    }
    *out = layout;
    return PSD_OK;
fail:
    table_layout_free(&layout);
    return status;
}

void table_layout_free(table_layout *layout)
{
    free(layout->counts);
    free(layout->offsets);
    *layout = (table_layout){.servers = 0};
}

void table_layout_pack(const table_layout *layout, const float *const *params, float *packed)
{
    for (uint32_t s = 0; s < layout->servers; s++) {
        for (uint32_t p = 0; p < layout->params; p++) {
            size_t some = slice_count(layout->counts[p], layout->servers, s);
            if (some > 0)
                memcpy(packed, params[p] + slice_begin(layout->counts[p], layout->servers, s),
                       some * sizeof(float));
            packed += some;
        }
    }
}

void table_layout_unpack(const table_layout *layout, const float *packed, float *const *params)
{
    for (uint32_t s = 0; s < layout->servers; s++) {
        for (uint32_t p = 0; p < layout->params; p++) {
            size_t some = slice_count(layout->counts[p], layout->servers, s);
            if (some > 0)
                memcpy(params[p] + slice_begin(layout->counts[p], layout->servers, s), packed,
                       some * sizeof(float));
            packed += some;
        }
    }
}

psd_status table_layout_each(const table_layout *layout, table_layout_copy *copy, void *arg)
{
    psd_status status = PSD_OK;
    size_t packed_at = 0;
    for (uint32_t s = 0; s < layout->servers; s++) {
        for (uint32_t p = 0; p < layout->params && status == PSD_OK; p++) {
            size_t some = slice_count(layout->counts[p], layout->servers, s);
            if (some > 0)
                status = copy(arg, p, slice_begin(layout->counts[p], layout->servers, s), packed_at, some);
            packed_at += some;
        }
    }
    return status;
}
