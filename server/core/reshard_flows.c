/* The traffic between pairs of ranks that lanes amount to. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/reshard_emit.h"

/* Rounding each pair's traffic up to whole quanta makes the busiest line at most 1/FINENESS longer. */
#define FINENESS 128

#define MOST_PAIRS (UINT32_C(1) << 20) /* of ranks; rounds for more take minutes */

void reshard_flows_free(reshard_flows *flows)
{
    free(flows->hops);
    free(flows->matrix);
    free(flows->pairs);
    memset(flows, 0, sizeof *flows);
}

static int32_t hop_source(const reshard_atoms *atoms, const lane *l, uint32_t index)
{
    return index == 0 ? l->src : atoms->set_ranks[l->chain + index - 1];
}

static int by_pair_lane(const void *a, const void *b)
{
    const hop *x = a, *y = b;
    if (x->src != y->src)
        return x->src < y->src ? -1 : 1;
    if (x->dst != y->dst)
        return x->dst < y->dst ? -1 : 1;
    if (x->lane != y->lane)
        return x->lane < y->lane ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* Bytes of a lane in one period: whole elements. */
static int64_t slot_bytes(const lane *l, uint32_t periods, int64_t align)
{
    int64_t bytes = l->hi - l->lo;
    if (periods == 1)
        return bytes;
    int64_t slot = bytes / periods + (bytes % periods != 0);
    return (slot + align - 1) / align * align;
}

static bool list_hops(const reshard_atoms *atoms, const reshard_lanes *lanes, uint32_t periods,
                      reshard_flows *f)
{
    for (uint64_t i = 0; i < lanes->count; i++)
        f->hop_count += lanes->lanes[i].length;
    f->hops = malloc((f->hop_count + 1) * sizeof *f->hops);
    if (f->hops == NULL)
        return false;
    uint64_t at = 0;
    for (uint32_t i = 0; i < lanes->count; i++) {
        const lane *l = &lanes->lanes[i];
        int64_t slot = slot_bytes(l, periods, atoms->align);
        for (uint32_t h = 0; h < l->length; h++)
            f->hops[at++] = (hop){hop_source(atoms, l, h), atoms->set_ranks[l->chain + h], i, h, slot};
    }
    qsort(f->hops, f->hop_count, sizeof *f->hops, by_pair_lane);
    return true;
}

static bool list_pairs(reshard_flows *f)
{
    f->pairs = calloc(f->hop_count + 1, sizeof *f->pairs);
    f->matrix = calloc(f->hop_count + 1, sizeof *f->matrix);
    if (f->pairs == NULL || f->matrix == NULL || f->hop_count > UINT32_MAX / 4)
        return false;
    for (uint32_t i = 0; i < f->hop_count; i++) {
        const hop *h = &f->hops[i];
        if (i == 0 || h->src != h[-1].src || h->dst != h[-1].dst) {
            f->matrix[f->pair_count] = (traffic){h->src, h->dst, 0};
            f->pairs[f->pair_count++] = (pair_traffic){.first_hop = i};
        }
        pair_traffic *p = &f->pairs[f->pair_count - 1];
        p->hop_count++;
        p->bytes += h->slot;
    }
    return true;
}

void reshard_flows_quantize(reshard_flows *flows, int64_t quantum)
{
    flows->quantum = quantum;
    for (uint32_t i = 0; i < flows->pair_count; i++)
        flows->matrix[i].units = (flows->pairs[i].bytes + quantum - 1) / quantum;
}

static bool choose_quantum(const reshard_atoms *atoms, reshard_flows *f)
{
    size_t ranks = (size_t)atoms->ranks;
    int64_t *sums = calloc(2 * ranks + 1, sizeof *sums);
    int64_t *degrees = calloc(2 * ranks + 1, sizeof *degrees);
    int64_t longest = 0, degree = 1;
    if (sums != NULL && degrees != NULL) {
        for (uint32_t i = 0; i < f->pair_count; i++) {
            size_t line[2] = {(size_t)f->matrix[i].src, ranks + (size_t)f->matrix[i].dst};
            for (int k = 0; k < 2; k++) {
                sums[line[k]] += f->pairs[i].bytes;
                degrees[line[k]]++;
                longest = sums[line[k]] > longest ? sums[line[k]] : longest;
                degree = degrees[line[k]] > degree ? degrees[line[k]] : degree;
            }
        }
        int64_t quantum = longest / (degree * FINENESS);
        reshard_flows_quantize(f, quantum > 1 ? quantum : 1);
    }
    bool fine = sums != NULL && degrees != NULL;
    free(sums);
    free(degrees);
    return fine;
}

psd_status reshard_flows_make(const reshard_atoms *atoms, const reshard_lanes *lanes, uint32_t periods,
                              reshard_flows *out, const reshard_why *why)
{
    reshard_flows f = {.periods = periods, .tail = lanes->longest > 1 ? lanes->longest - 1 : 0};
    psd_status status = PSD_OK;
    if (!list_hops(atoms, lanes, periods, &f) || !list_pairs(&f) || !choose_quantum(atoms, &f))
        status = reshard_no_memory(why);
    if (status == PSD_OK && f.pair_count > MOST_PAIRS) {
        (void)snprintf(why->text, why->bytes, "%u pairs of ranks would exchange data; at most %u are planned",
                       f.pair_count, MOST_PAIRS);
        status = PSD_ERR_LIMIT;
    }
    if (status != PSD_OK) {
        reshard_flows_free(&f);
        return status;
    }
    *out = f;
    return PSD_OK;
}

psd_status reshard_flows_load(const reshard_atoms *atoms, const reshard_lanes *lanes, int64_t *sends,
                              int64_t *receives, const reshard_why *why)
{
    size_t ranks = (size_t)atoms->ranks;
    int64_t *sums = calloc(2 * ranks + 1, sizeof *sums);
    if (sums == NULL)
        return reshard_no_memory(why);
    int64_t most[2] = {0, 0};
    for (uint64_t i = 0; i < lanes->count; i++) {
        const lane *l = &lanes->lanes[i];
        for (uint32_t h = 0; h < l->length; h++) {
            size_t line[2] = {(size_t)hop_source(atoms, l, h),
                              ranks + (size_t)atoms->set_ranks[l->chain + h]};
            for (int k = 0; k < 2; k++) {
                sums[line[k]] += l->hi - l->lo;
                most[k] = sums[line[k]] > most[k] ? sums[line[k]] : most[k];
            }
        }
    }
    free(sums);
    *sends = most[0];
    *receives = most[1];
    return PSD_OK;
}
