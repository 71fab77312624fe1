/* Placing tensors on a mesh. */
#include "common/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensor.h"

void psd_model_free(psd_model *model)
{
    free(model->tensors);
    free(model->names);
    memset(model, 0, sizeof *model);
}

int64_t psd_model_tensor_bytes(const psd_model_tensor *tensor)
{
    int64_t bytes = (int64_t)psd_dtype_bytes(tensor->dtype);
    for (int32_t d = 0; d < tensor->ndim; d++)
        bytes *= tensor->shape[d];
    return bytes;
}

void psd_layout_free(psd_layout *layout)
{
    for (uint32_t i = 0; i < layout->rule_count; i++)
        free(layout->rules[i].match);
    free(layout->rules);
    memset(layout, 0, sizeof *layout);
}

bool psd_layout_finish(psd_layout *layout)
{
    int64_t ranks = 1;
    for (int32_t a = layout->axis_count - 1; a >= 0; a--) {
        layout->axes[a].stride = (int32_t)ranks;
        ranks *= layout->axes[a].size;
        if (layout->axes[a].size < 1 || ranks > PSD_LAYOUT_RANKS)
            return false;
    }
    layout->ranks = (int32_t)ranks;
    return layout->first_rank >= 0 && layout->first_rank <= PSD_LAYOUT_RANKS - ranks;
}

/* --------------------------------------------------------------------------------------------------- parsing */

/* The inside of "Name(inside)"; NULL: it is not that. */
static const char *inside(const char *text, const char *name, size_t *length)
{
    size_t n = strlen(name), all = strlen(text);
    if (strncmp(text, name, n) != 0 || all < n + 2 || text[n] != '(' || text[all - 1] != ')')
        return NULL;
    *length = all - n - 2;
    return text + n + 1;
}

bool psd_place_parse(const char *text, psd_place_rule *out, char *why, size_t why_bytes)
{
    size_t length = 0;
    psd_place_rule place = {.kind = PSD_PLACE_REPLICATE};
    const char *in = inside(text, "Replicate", &length);
    if (in != NULL && length == 0) {
        *out = place;
        return true;
    }
    in = inside(text, "Shard", &length);
    if (in != NULL && length == 1 && *in >= '0' && *in < '0' + PSD_MAX_DIMS) {
        place.kind = PSD_PLACE_SHARD;
        place.dim = *in - '0';
        *out = place;
        return true;
    }
    in = inside(text, "Own", &length);
    if (in != NULL && length < sizeof place.own) {
        place.kind = PSD_PLACE_OWN;
        memcpy(place.own, in, length);
        if (!psd_own_check(place.own, why, why_bytes))
            return false;
        *out = place;
        return true;
    }
    (void)snprintf(
        why, why_bytes,
        "\"%.60s\" is not a placement: Replicate(), Shard(0) to Shard(%d), or Own(an expression of less "
        "than %d bytes)",
        text, PSD_MAX_DIMS - 1, PSD_MAX_OWN);
    return false;
}

/* A star is retried one character further on; only the last star matters. */
bool psd_glob_match(const char *glob, const char *text)
{
    const char *star = NULL, *mark = NULL;
    while (*text != '\0') {
        if (*glob == '*') {
            star = glob++;
            mark = text;
        } else if (*glob == '?' || (*glob != '\0' && *glob == *text)) {
            glob++;
            /* One character may be several bytes of UTF-8. */
            for (text++; glob[-1] == '?' && ((unsigned char)*text & 0xc0) == 0x80;)
                text++;
        } else if (star != NULL) {
            glob = star + 1;
            text = ++mark;
        } else {
            return false;
        }
    }
    while (*glob == '*')
        glob++;
    return *glob == '\0';
}

/* --------------------------------------------------------------------------------------------------- placing */

/* The first two parts of the name, cut at its dots, that are all digits. */
static bool name_numbers(const char *name, psd_own_vars *vars)
{
    int64_t *next[2] = {&vars->layer, &vars->expert};
    int found = 0;
    vars->layer = vars->expert = -1;
    for (const char *part = name; found < 2;) {
        size_t length = strcspn(part, ".");
        int64_t value = 0;
        size_t i = 0;
        for (; i < length && part[i] >= '0' && part[i] <= '9'; i++) {
            if (__builtin_mul_overflow(value, 10, &value) ||
                __builtin_add_overflow(value, part[i] - '0', &value))
                return false;
        }
        if (length > 0 && i == length)
            *next[found++] = value;
        if (part[length] == '\0')
            break;
        part += length + 1;
    }
    return true;
}

static bool place_axis(const psd_layout *layout, const psd_layout_axis *axis, const psd_place_rule *rule,
                       const psd_model_tensor *tensor, psd_place *out, char *why, size_t why_bytes)
{
    char reason[PSD_MAX_OWN + 128];
    *out = (psd_place){.kind = (uint8_t)rule->kind, .value = rule->dim};
    if (rule->kind == PSD_PLACE_SHARD && rule->dim >= tensor->ndim) {
        (void)snprintf(
            why, why_bytes, "group %s: tensor %s has %d dimension%s, so Shard(%d) on axis %s cannot be",
            layout->group, tensor->name, tensor->ndim, tensor->ndim == 1 ? "" : "s", rule->dim, axis->name);
        return false;
    }
    if (rule->kind != PSD_PLACE_OWN)
        return true;
    psd_own_vars vars = {.n = axis->size};
    int64_t owner = 0;
    bool fine = name_numbers(tensor->name, &vars);
    vars.n = axis->size;
    if (!fine)
        (void)snprintf(reason, sizeof reason, "a number in its name is too large");
    else
        fine = psd_own_value(rule->own, &vars, &owner, reason, sizeof reason);
    if (fine && owner >= axis->size) {
        (void)snprintf(reason, sizeof reason, "Own(%s) is %lld, and the axis has %d coordinates", rule->own,
                       (long long)owner, axis->size);
        fine = false;
    }
    if (!fine)
        (void)snprintf(why, why_bytes, "group %s: tensor %s on axis %s: %s", layout->group, tensor->name,
                       axis->name, reason);
    else
        out->value = (int32_t)owner;
    return fine;
}

bool psd_layout_place(const psd_layout *layout, const psd_model_tensor *tensor, psd_place *out, char *why,
                      size_t why_bytes)
{
    for (uint32_t r = 0; r < layout->rule_count; r++) {
        const psd_layout_rule *rule = &layout->rules[r];
        if (!psd_glob_match(rule->match, tensor->name))
            continue;
        for (int32_t a = 0; a < layout->axis_count; a++) {
            if (!place_axis(layout, &layout->axes[a], &rule->place[a], tensor, &out[a], why, why_bytes))
                return false;
        }
        return true;
    }
    (void)snprintf(why, why_bytes, "group %s: no rule matches tensor %s; a last rule \"*\" would",
                   layout->group, tensor->name);
    return false;
}

void psd_layout_chunk(int64_t length, int32_t n, int32_t i, int64_t *lo, int64_t *hi)
{
    int64_t chunk = length / n + (length % n != 0);
    *lo = i * chunk < length ? i * chunk : length;
    *hi = length - *lo < chunk ? length : *lo + chunk;
}

bool psd_layout_box(const psd_layout *layout, const psd_place *place, const psd_model_tensor *tensor,
                    int32_t rank, psd_box *out)
{
    psd_box box = {0};
    int32_t at = rank - layout->first_rank;
    if (at < 0 || at >= layout->ranks)
        return false;
    for (int32_t d = 0; d < tensor->ndim; d++)
        box.hi[d] = tensor->shape[d];
    for (int32_t a = 0; a < layout->axis_count; a++) {
        int32_t coordinate = at / layout->axes[a].stride % layout->axes[a].size;
        if (place[a].kind == PSD_PLACE_OWN && place[a].value != coordinate)
            return false;
        if (place[a].kind == PSD_PLACE_SHARD) {
            int32_t d = place[a].value;
            int64_t lo = 0, hi = 0;
            psd_layout_chunk(box.hi[d] - box.lo[d], layout->axes[a].size, coordinate, &lo, &hi);
            box.hi[d] = box.lo[d] + hi;
            box.lo[d] += lo;
        }
    }
    for (int32_t d = 0; d < tensor->ndim; d++) {
        if (box.lo[d] >= box.hi[d])
            return false;
    }
    *out = box;
    return true;
}
