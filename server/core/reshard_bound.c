/* The lower bounds, straight from their definitions (server/LAYOUT.md, sections 3 and 4): for each kind of tensor, the
 * boxes of all ranks; the grid of all their cut points; for each cell the ranks whose boxes hold it. Nothing of the
 * compiler is used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "common/map.h"
#include "common/tensor.h"
#include "server/core/reshard.h"
#include "server/core/reshard_hall.h"

#define MOST_CELLS (UINT64_C(1) << 24) /* of one kind of tensor */

/* Ranks as bits. `words` of them follow each other in a mask. */
typedef struct mask_list {
    uint64_t *bits;
    uint32_t words;
    uint32_t count;
    uint64_t capacity; /* masks */
} mask_list;

/* The distinct boxes that the ranks of a group hold of one kind of tensor. */
typedef struct holding {
    psd_box *boxes;
    mask_list masks; /* of the ranks of each box */
} holding;

typedef struct demand {
    int64_t direct;  /* w(A) */
    int64_t forward; /* w1(A) */
} demand;

typedef struct bounder {
    const reshard_input *input;
    reshard_bounds *out;
    char *why;
    size_t why_bytes;
    uint32_t words;
    int32_t ranks;
    int64_t *in; /* by rank */
    mask_list holders;
    demand *demands; /* by holders mask */
    uint64_t demand_capacity;
    psd_map known; /* hash of a holders mask -> its index + 1 */
    holding src, dst;
} bounder;

static psd_status no_memory(const bounder *b)
{
    (void)snprintf(b->why, b->why_bytes, "no memory to compute the bounds");
    return PSD_ERR_NOMEM;
}

static uint64_t *mask_at(const mask_list *list, uint32_t index)
{
    return list->bits + (size_t)index * list->words;
}

/* A zeroed mask at the end. */
static uint64_t *add_mask(mask_list *list)
{
    if (list->count == list->capacity) {
        uint64_t wanted = list->capacity == 0 ? 16 : 2 * list->capacity;
        uint64_t *grown = realloc(list->bits, wanted * list->words * sizeof *grown);
        if (grown == NULL)
            return NULL;
        list->bits = grown;
        list->capacity = wanted;
    }
    uint64_t *mask = mask_at(list, list->count++);
    memset(mask, 0, list->words * sizeof *mask);
    return mask;
}

/* ---------------------------------------------------------------------------------------------- what ranks hold */

static psd_status find_holding(bounder *b, const psd_layout *layout, const psd_place *place,
                               const psd_model_tensor *tensor, holding *out)
{
    out->masks.count = 0;
    for (int32_t rank = layout->first_rank; rank < layout->first_rank + layout->ranks; rank++) {
        psd_box box;
        uint32_t i = 0;
        if (!psd_layout_box(layout, place, tensor, rank, &box))
            continue;
        while (i < out->masks.count && memcmp(&out->boxes[i], &box, sizeof box) != 0)
            i++;
        if (i == out->masks.count) {
            psd_box *grown = realloc(out->boxes, ((size_t)i + 1) * sizeof *grown);
            if (grown == NULL)
                return no_memory(b);
            out->boxes = grown;
            if (add_mask(&out->masks) == NULL)
                return no_memory(b);
            out->boxes[i] = box;
        }
        mask_at(&out->masks, i)[rank / 64] |= UINT64_C(1) << (rank % 64);
    }
    return PSD_OK;
}

static bool holds(const psd_box *box, const int64_t *point, int32_t ndim)
{
    for (int32_t d = 0; d < ndim; d++) {
        if (point[d] < box->lo[d] || point[d] >= box->hi[d])
            return false;
    }
    return true;
}

/* The box of a group that holds a point: there is at most one. */
static const uint64_t *holders_of(const holding *h, const int64_t *point, int32_t ndim)
{
    for (uint32_t i = 0; i < h->masks.count; i++) {
        if (holds(&h->boxes[i], point, ndim))
            return mask_at(&h->masks, i);
    }
    return NULL;
}

/* ----------------------------------------------------------------------------------------------------- demands */

static psd_status find_demand(bounder *b, const uint64_t *mask, demand **out)
{
    size_t bytes = b->words * sizeof *mask;
    uint64_t hash = XXH64(mask, bytes, 0);
    for (;; hash++) {
        uint32_t at = (uint32_t)(uintptr_t)psd_map_get(&b->known, hash);
        if (at == 0)
            break;
        if (memcmp(mask_at(&b->holders, at - 1), mask, bytes) == 0) {
            *out = &b->demands[at - 1];
            return PSD_OK;
        }
    }
    uint32_t index = b->holders.count;
    uint64_t *copy = add_mask(&b->holders);
    if (copy == NULL)
        return no_memory(b);
    memcpy(copy, mask, bytes);
    if (index == b->demand_capacity) {
        uint64_t wanted = index == 0 ? 16 : 2 * (uint64_t)index;
        demand *grown = realloc(b->demands, wanted * sizeof *grown);
        if (grown == NULL)
            return no_memory(b);
        b->demands = grown;
        b->demand_capacity = wanted;
    }
    if (!psd_map_put(&b->known, hash, (void *)(uintptr_t)(index + 1)))
        return no_memory(b);
    b->demands[index] = (demand){0};
    *out = &b->demands[index];
    return PSD_OK;
}

/* One atom of `members` tensors, `bytes` each. */
static psd_status count_cell(bounder *b, const uint64_t *held, const uint64_t *wanted, int64_t bytes,
                             int64_t members)
{
    int64_t receivers = 0, all = bytes * members, moved = 0;
    int64_t local = 0;
    for (uint32_t w = 0; w < b->words; w++) {
        uint64_t missing = wanted[w] & ~held[w];
        local += __builtin_popcountll(wanted[w] & held[w]);
        receivers += __builtin_popcountll(missing);
        for (; missing != 0; missing &= missing - 1)
            b->in[64 * w + (uint32_t)__builtin_ctzll(missing)] += all;
    }
    if (__builtin_mul_overflow(all, receivers, &moved) ||
        __builtin_add_overflow(b->out->moved, moved, &b->out->moved) || b->out->moved > PSD_MODEL_BYTES) {
        (void)snprintf(b->why, b->why_bytes, "the plan would move more than 2^60 bytes");
        return PSD_ERR_LIMIT;
    }
    b->out->atoms += (uint64_t)members;
    b->out->deliveries += (uint64_t)(members * receivers);
    b->out->local += all * local;
    if (receivers == 0)
        return PSD_OK;
    demand *d = NULL;
    psd_status status = find_demand(b, held, &d);
    if (status == PSD_OK) {
        d->direct += moved;
        d->forward += all;
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------------- cells */

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Where the boxes begin and end in a dimension, each once, in order. */
static int64_t *cut_points(const bounder *b, int32_t d, uint32_t *count)
{
    const holding *groups[2] = {&b->src, &b->dst};
    uint32_t n = 0, kept = 0;
    int64_t *cuts = malloc((2 * ((size_t)b->src.masks.count + b->dst.masks.count) + 1) * sizeof *cuts);
    if (cuts == NULL)
        return NULL;
    for (int g = 0; g < 2; g++) {
        for (uint32_t i = 0; i < groups[g]->masks.count; i++) {
            cuts[n++] = groups[g]->boxes[i].lo[d];
            cuts[n++] = groups[g]->boxes[i].hi[d];
        }
    }
    qsort(cuts, n, sizeof *cuts, by_value);
    for (uint32_t i = 0; i < n; i++) {
        if (kept == 0 || cuts[kept - 1] != cuts[i])
            cuts[kept++] = cuts[i];
    }
    *count = kept;
    return cuts;
}

static psd_status walk_cells(bounder *b, const psd_model_tensor *tensor, int64_t *const *cuts,
                             const uint32_t *counts, int64_t members)
{
    uint32_t at[PSD_MAX_DIMS] = {0};
    uint64_t cells = 1;
    psd_status status = PSD_OK;
    for (int32_t d = 0; d < tensor->ndim; d++) {
        cells *= counts[d] > 0 ? counts[d] - 1 : 0;
        if (cells > MOST_CELLS) {
            (void)snprintf(b->why, b->why_bytes, "tensor %s is cut into more than %llu atoms", tensor->name,
                           (unsigned long long)MOST_CELLS);
            return PSD_ERR_LIMIT;
        }
    }
    for (uint64_t i = 0; i < cells && status == PSD_OK; i++) {
        int64_t point[PSD_MAX_DIMS] = {0}, bytes = (int64_t)psd_dtype_bytes(tensor->dtype);
        for (int32_t d = 0; d < tensor->ndim; d++) {
            point[d] = cuts[d][at[d]];
            bytes *= cuts[d][at[d] + 1] - point[d];
        }
        const uint64_t *held = holders_of(&b->src, point, tensor->ndim);
        const uint64_t *wanted = holders_of(&b->dst, point, tensor->ndim);
        if (held != NULL && wanted != NULL)
            status = count_cell(b, held, wanted, bytes, members);
        for (int32_t d = tensor->ndim - 1; d >= 0 && ++at[d] == counts[d] - 1; d--)
            at[d] = 0;
    }
    return status;
}

static psd_status count_tensor(bounder *b, const psd_model_tensor *tensor, const psd_place *src,
                               const psd_place *dst, int64_t members)
{
    int64_t *cuts[PSD_MAX_DIMS] = {0};
    uint32_t counts[PSD_MAX_DIMS] = {0};
    psd_status status = find_holding(b, b->input->src, src, tensor, &b->src);
    if (status == PSD_OK)
        status = find_holding(b, b->input->dst, dst, tensor, &b->dst);
    for (int32_t d = 0; d < tensor->ndim && status == PSD_OK; d++) {
        cuts[d] = cut_points(b, d, &counts[d]);
        status = cuts[d] == NULL ? no_memory(b) : PSD_OK;
    }
    if (status == PSD_OK)
        status = walk_cells(b, tensor, cuts, counts, members);
    for (int d = 0; d < PSD_MAX_DIMS; d++)
        free(cuts[d]);
    return status;
}

/* ----------------------------------------------------------------------------------------------- like tensors */

/* Tensors that differ only in their names' other parts are counted once. */
typedef struct likeness {
    int64_t shape[PSD_MAX_DIMS];
    int64_t ndim;
    int64_t item;
    int64_t src[PSD_LAYOUT_AXES];
    int64_t dst[PSD_LAYOUT_AXES];
    uint32_t tensor;
} likeness;

static int by_likeness(const void *a, const void *b)
{
    return memcmp(a, b, offsetof(likeness, tensor));
}

static psd_status describe(const bounder *b, uint32_t t, likeness *out, psd_place *src, psd_place *dst)
{
    const psd_model_tensor *tensor = &b->input->model->tensors[t];
    if (!psd_layout_place(b->input->src, tensor, src, b->why, b->why_bytes) ||
        !psd_layout_place(b->input->dst, tensor, dst, b->why, b->why_bytes))
        return PSD_ERR_INVAL;
    memset(out, 0, sizeof *out);
    memcpy(out->shape, tensor->shape, (size_t)tensor->ndim * sizeof out->shape[0]);
    out->ndim = tensor->ndim;
    out->item = (int64_t)psd_dtype_bytes(tensor->dtype);
    for (int32_t a = 0; a < b->input->src->axis_count; a++)
        out->src[a] = (int64_t)src[a].kind << 32 | src[a].value;
    for (int32_t a = 0; a < b->input->dst->axis_count; a++)
        out->dst[a] = (int64_t)dst[a].kind << 32 | dst[a].value;
    out->tensor = t;
    return PSD_OK;
}

static psd_status count_all(bounder *b)
{
    uint32_t count = b->input->model->count;
    likeness *list = malloc(((size_t)count + 1) * sizeof *list);
    psd_place src[PSD_LAYOUT_AXES], dst[PSD_LAYOUT_AXES];
    psd_status status = list == NULL ? no_memory(b) : PSD_OK;
    for (uint32_t t = 0; t < count && status == PSD_OK; t++)
        status = describe(b, t, &list[t], src, dst);
    if (status == PSD_OK)
        qsort(list, count, sizeof *list, by_likeness);
    for (uint32_t t = 0, next = 0; t < count && status == PSD_OK; t = next) {
        likeness ignored;
        for (next = t + 1; next < count && by_likeness(&list[t], &list[next]) == 0;)
            next++;
        status = describe(b, list[t].tensor, &ignored, src, dst);
        if (status == PSD_OK)
            status = count_tensor(b, &b->input->model->tensors[list[t].tensor], src, dst, next - t);
    }
    free(list);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- bounds */

static psd_status bound_out(bounder *b)
{
    uint32_t count = b->holders.count;
    hall_set *sets = calloc((size_t)count + 1, sizeof *sets);
    int32_t *ranks = malloc(((size_t)count * (size_t)b->ranks + 1) * sizeof *ranks), *next = ranks;
    int32_t *ignored = NULL, ignored_count = 0;
    psd_status status = sets == NULL || ranks == NULL ? no_memory(b) : PSD_OK;
    for (uint32_t s = 0; s < count && status == PSD_OK; s++) {
        sets[s] = (hall_set){.ranks = next, .weight = b->demands[s].direct};
        for (int32_t r = 0; r < b->ranks; r++) {
            if ((mask_at(&b->holders, s)[r / 64] >> (r % 64) & 1) != 0)
                *next++ = r;
        }
        sets[s].rank_count = (int32_t)(next - sets[s].ranks);
    }
    if (status == PSD_OK && hall_bound(sets, count, b->ranks, &b->out->out, &b->out->out_ranks,
                                       &b->out->out_rank_count) != PSD_OK)
        status = no_memory(b);
    for (uint32_t s = 0; s < count && status == PSD_OK; s++)
        sets[s].weight = b->demands[s].forward;
    if (status == PSD_OK &&
        hall_bound(sets, count, b->ranks, &b->out->out_forward, &ignored, &ignored_count) != PSD_OK)
        status = no_memory(b);
    free(ignored);
    free(sets);
    free(ranks);
    return status;
}

void reshard_bounds_free(reshard_bounds *bounds)
{
    free(bounds->out_ranks);
    memset(bounds, 0, sizeof *bounds);
}

psd_status reshard_bound(const reshard_input *input, reshard_bounds *out, char *why, size_t why_bytes)
{
    reshard_bounds bounds = {.in_rank = -1};
    int32_t src_end = input->src->first_rank + input->src->ranks;
    int32_t dst_end = input->dst->first_rank + input->dst->ranks;
    bounder b = {.input = input, .out = &bounds, .why = why, .why_bytes = why_bytes};
    b.ranks = src_end > dst_end ? src_end : dst_end;
    b.words = (uint32_t)b.ranks / 64 + 1;
    b.holders.words = b.src.masks.words = b.dst.masks.words = b.words;
    b.in = calloc((size_t)b.words * 64, sizeof *b.in);
    psd_status status = b.in == NULL ? no_memory(&b) : count_all(&b);
    for (int32_t r = 0; r < b.ranks && status == PSD_OK; r++) {
        if (b.in[r] > bounds.in) {
            bounds.in = b.in[r];
            bounds.in_rank = r;
        }
    }
    if (status == PSD_OK)
        status = bound_out(&b);
    free(b.in);
    free(b.holders.bits);
    free(b.demands);
    psd_map_free(&b.known);
    free(b.src.boxes);
    free(b.src.masks.bits);
    free(b.dst.boxes);
    free(b.dst.masks.bits);
    if (status == PSD_OK)
        *out = bounds;
    else
        reshard_bounds_free(&bounds);
    return status;
}
