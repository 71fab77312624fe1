#include "tests/lib/random_layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/map.h"
#include "common/tensor.h"

uint64_t random_next(random_state *s)
{
    return psd_hash_u64(s->x++);
}

int64_t random_below(random_state *s, int64_t n)
{
    return (int64_t)(random_next(s) % (uint64_t)n);
}

void random_model(random_state *s, psd_model *out)
{
    static const psd_dtype dtypes[] = {PSD_F64, PSD_F32, PSD_BF16, PSD_U8};
    uint32_t count = 1 + (uint32_t)random_below(s, 6);
    *out = (psd_model){
        .tensors = calloc(count, sizeof *out->tensors), .count = count, .names = calloc(count, 32)};
    for (uint32_t i = 0; i < count; i++) {
        psd_model_tensor *t = &out->tensors[i];
        char *name = out->names + 32 * i;
        snprintf(name, 32, "layers.%u.experts.%d.w", i, (int)random_below(s, 5));
        t->name = name;
        t->dtype = dtypes[random_below(s, 4)];
        t->ndim = (int32_t)random_below(s, 4);
        for (int32_t d = 0; d < t->ndim; d++)
            t->shape[d] = random_below(s, 12) == 0 ? 0 : 1 + random_below(s, 9);
        out->bytes += psd_model_tensor_bytes(t);
    }
}

static void random_rule(random_state *s, const psd_model_tensor *tensor, const psd_layout *layout,
                        psd_layout_rule *rule)
{
    rule->match = strdup(tensor->name);
    for (int32_t a = 0; a < layout->axis_count; a++) {
        psd_place_rule *place = &rule->place[a];
        place->kind = (psd_place_kind)random_below(s, 3);
        if (place->kind == PSD_PLACE_SHARD && tensor->ndim == 0)
            place->kind = PSD_PLACE_REPLICATE;
        if (place->kind == PSD_PLACE_SHARD)
            place->dim = (int32_t)random_below(s, tensor->ndim);
        if (place->kind == PSD_PLACE_OWN)
            snprintf(place->own, sizeof place->own,
                     random_below(s, 2) ? "(layer + expert) %% n" : "layer*%d%%n",
                     1 + (int)random_below(s, 3));
    }
}

void random_layout(random_state *s, const psd_model *model, const char *group, int32_t first_rank,
                   psd_layout *out)
{
    memset(out, 0, sizeof *out);
    snprintf(out->group, sizeof out->group, "%s", group);
    out->first_rank = first_rank;
    out->axis_count = 1 + (int32_t)random_below(s, 3);
    for (int32_t a = 0, left = 12; a < out->axis_count; a++) {
        snprintf(out->axes[a].name, sizeof out->axes[a].name, "a%d", a);
        out->axes[a].size = 1 + (int32_t)random_below(s, left < 5 ? left : 5);
        left /= out->axes[a].size;
    }
    psd_layout_finish(out);
    out->rules = calloc(model->count, sizeof *out->rules);
    out->rule_count = model->count;
    for (uint32_t i = 0; i < model->count; i++)
        random_rule(s, &model->tensors[i], out, &out->rules[i]);
}
