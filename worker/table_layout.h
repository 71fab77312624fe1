/* How a table's parameters lie on its servers: each parameter is cut flat and evenly, server s of S holding
 * elements [min(s*c, n), min((s+1)*c, n)) with c = ceil(n / S). A server's shard is its slices of all
 * parameters, one behind the other in the order of the parameters: one message between a trainer and a
 * server. Pure computation. */
#ifndef PSD_TABLE_LAYOUT_H
#define PSD_TABLE_LAYOUT_H

#include <stdbool.h>

#include "common/msg.h"

typedef struct table_layout {
    uint32_t servers;
    uint32_t params;
    size_t total;   /* elements of all parameters */
    size_t *counts; /* [params] */
    /* [servers + 1] elements: where each server's shard begins when all lie behind each other. */
    size_t *offsets;
} table_layout;

/* PSD_ERR_UNSUPPORTED for a parameter that is not f32, PSD_ERR_LIMIT when the sizes overflow, with a
 * sentence. */
psd_status table_layout_make(const psd_param *params, uint32_t param_count, uint32_t servers,
                             table_layout *out, char *why, size_t why_bytes);
void table_layout_free(table_layout *layout);

static inline size_t table_shard_count(const table_layout *layout, uint32_t server)
{
    return layout->offsets[server + 1] - layout->offsets[server];
}

/* Copies all parameters into `packed`, of layout->total elements, shard behind shard; and back. */
void table_layout_pack(const table_layout *layout, const float *const *params, float *packed);
void table_layout_unpack(const table_layout *layout, const float *packed, float *const *params);

/* The same where the processor cannot reach the memory: calls copy() for each run of `count` elements, which are
 * behind each other from element `at` of parameter `param` and from element `packed_at` of the packed ones, until one
 * is not PSD_OK. */
typedef psd_status table_layout_copy(void *arg, uint32_t param, size_t at, size_t packed_at, size_t count);
psd_status table_layout_each(const table_layout *layout, table_layout_copy *copy, void *arg);

#endif
