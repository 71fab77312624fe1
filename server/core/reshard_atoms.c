/* From manifest and layouts to atoms, classes and bundles. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "common/map.h"
#include "common/tensor.h"
#include "server/core/reshard_parts.h"

#define MOST_CELLS (UINT64_C(1) << 26) /* atoms of classes; beyond, memory would be the limit */

psd_status reshard_no_memory(const reshard_why *why)
{
    (void)snprintf(why->text, why->bytes, "no memory to compile the plan");
    return PSD_ERR_NOMEM;
}

void *reshard_room(void *array, uint64_t count, uint64_t *capacity, size_t size)
{
    if (count < *capacity)
        return array;
    uint64_t wanted = *capacity == 0 ? 64 : 2 * *capacity;
    void *grown = realloc(array, wanted * size);
    if (grown != NULL)
        *capacity = wanted;
    return grown;
}

void reshard_atoms_free(reshard_atoms *atoms)
{
    free(atoms->members);
    free(atoms->classes);
    free(atoms->atoms);
    free(atoms->cells);
    free(atoms->sets);
    free(atoms->set_ranks);
    free(atoms->bundles);
    memset(atoms, 0, sizeof *atoms);
}

/* What decides where a tensor's atoms are. Compared as bytes, so all of it is set. */
typedef struct class_key {
    int64_t shape[PSD_MAX_DIMS];
    int32_t ndim;
    int32_t item;
    int32_t src[PSD_LAYOUT_AXES][2]; /* kind, value */
    int32_t dst[PSD_LAYOUT_AXES][2];
} class_key;

/* One interval of a dimension and what it adds to the rank that holds it. */
typedef struct interval {
    int64_t lo;
    int64_t hi;
    int32_t offset;
} interval;

typedef struct interval_list {
    interval *items;
    uint32_t count;
} interval_list;

/* A piece of a dimension in both layouts. */
typedef struct segment {
    int64_t lo;
    int64_t hi;
    int32_t src_offset;
    int32_t dst_offset;
} segment;

typedef struct maker {
    const reshard_input *input;
    const reshard_why *why;
    reshard_atoms *atoms;
    class_key *keys;    /* of the classes */
    uint32_t *class_of; /* tensor -> class */
    psd_map classes;    /* hash -> class index + 1 */
    psd_map sets;       /* group, replicated axes, base -> set index + 1 */
    psd_map bundles;    /* holders, destinations -> bundle index + 1, or NOTHING_MOVES */
    uint64_t set_capacity, rank_capacity, cell_capacity, atom_capacity, bundle_capacity, class_capacity,
        key_capacity;
} maker;

#define NOTHING_MOVES ((void *)UINTPTR_MAX)

/* --------------------------------------------------------------------------------------------------- classes */

static void set_places(int32_t (*out)[2], const psd_place *places, int32_t count)
{
    for (int32_t a = 0; a < count; a++) {
        out[a][0] = places[a].kind;
        out[a][1] = places[a].value;
    }
}

static psd_status key_of(maker *m, const psd_model_tensor *tensor, class_key *key)
{
    psd_place places[PSD_LAYOUT_AXES];
    memset(key, 0, sizeof *key);
    memcpy(key->shape, tensor->shape, (size_t)tensor->ndim * sizeof key->shape[0]);
    key->ndim = tensor->ndim;
    key->item = (int32_t)psd_dtype_bytes(tensor->dtype);
    if (!psd_layout_place(m->input->src, tensor, places, m->why->text, m->why->bytes))
        return PSD_ERR_INVAL;
    set_places(key->src, places, m->input->src->axis_count);
    if (!psd_layout_place(m->input->dst, tensor, places, m->why->text, m->why->bytes))
        return PSD_ERR_INVAL;
    set_places(key->dst, places, m->input->dst->axis_count);
    return PSD_OK;
}

/* The class of this key, made if new. Equal hashes of different keys are told apart by trying the next hash. */
static psd_status find_class(maker *m, const class_key *key, uint32_t tensor, uint32_t *out)
{
    reshard_atoms *a = m->atoms;
    uint64_t hash = XXH64(key, sizeof *key, 0);
    for (;; hash++) {
        uint32_t at = (uint32_t)(uintptr_t)psd_map_get(&m->classes, hash);
        if (at == 0)
            break;
        if (memcmp(&m->keys[at - 1], key, sizeof *key) == 0) {
            *out = at - 1;
            return PSD_OK;
        }
    }
    void *grown = reshard_room(a->classes, a->class_count, &m->class_capacity, sizeof *a->classes);
    if (grown == NULL)
        return reshard_no_memory(m->why);
    a->classes = grown;
    grown = reshard_room(m->keys, a->class_count, &m->key_capacity, sizeof *m->keys);
    if (grown == NULL)
        return reshard_no_memory(m->why);
    m->keys = grown;
    if (!psd_map_put(&m->classes, hash, (void *)(uintptr_t)(a->class_count + 1)))
        return reshard_no_memory(m->why);
    m->keys[a->class_count] = *key;
    a->classes[a->class_count] = (tensor_class){.tensor = tensor};
    *out = a->class_count++;
    return PSD_OK;
}

static psd_status sort_into_classes(maker *m)
{
    reshard_atoms *a = m->atoms;
    uint32_t count = m->input->model->count;
    psd_status status = PSD_OK;
    m->class_of = malloc(((size_t)count + 1) * sizeof *m->class_of);
    a->members = malloc(((size_t)count + 1) * sizeof *a->members);
    if (m->class_of == NULL || a->members == NULL)
        return reshard_no_memory(m->why);
    for (uint32_t t = 0; t < count && status == PSD_OK; t++) {
        class_key key;
        status = key_of(m, &m->input->model->tensors[t], &key);
        if (status == PSD_OK)
            status = find_class(m, &key, t, &m->class_of[t]);
    }
    if (status != PSD_OK)
        return status;
    for (uint32_t t = 0; t < count; t++)
        a->classes[m->class_of[t]].member_count++;
    uint32_t next = 0;
    for (uint32_t c = 0; c < a->class_count; c++) {
        a->classes[c].first_member = next;
        next += a->classes[c].member_count;
        a->classes[c].member_count = 0;
    }
    for (uint32_t t = 0; t < count; t++) {
        tensor_class *c = &a->classes[m->class_of[t]];
        a->members[c->first_member + c->member_count++] = t;
    }
    return PSD_OK;
}

/* ------------------------------------------------------------------------------------------------------ sets */

static psd_status add_set(maker *m, const int32_t *ranks, uint32_t count, uint32_t *out)
{
    reshard_atoms *a = m->atoms;
    void *grown = reshard_room(a->sets, a->set_count, &m->set_capacity, sizeof *a->sets);
    if (grown == NULL)
        return reshard_no_memory(m->why);
    a->sets = grown;
    uint32_t first = (uint32_t)a->set_rank_count;
    if (a->set_rank_count + count > UINT32_MAX)
        return reshard_no_memory(m->why);
    for (uint32_t i = 0; i < count; i++) {
        grown = reshard_room(a->set_ranks, a->set_rank_count, &m->rank_capacity, sizeof *a->set_ranks);
        if (grown == NULL)
            return reshard_no_memory(m->why);
        a->set_ranks = grown;
        a->set_ranks[a->set_rank_count++] = ranks[i];
    }
    a->sets[a->set_count] = (rank_set){first, count};
    *out = (uint32_t)a->set_count++;
    return PSD_OK;
}

/* The ranks that differ from rank `base` only in the axes on which the tensor is replicated. */
static psd_status replica_set(maker *m, const psd_layout *layout, const int32_t (*places)[2], int32_t base,
                              uint32_t *out)
{
    uint64_t replicated = 0;
    for (int32_t a = 0; a < layout->axis_count; a++)
        replicated |= (uint64_t)(places[a][0] == PSD_PLACE_REPLICATE) << a;
    uint64_t key = (uint64_t)(layout == m->input->dst) << 62 | replicated << 32 | (uint32_t)base;
    uint32_t known = (uint32_t)(uintptr_t)psd_map_get(&m->sets, key);
    if (known != 0) {
        *out = known - 1;
        return PSD_OK;
    }
    int32_t *ranks = malloc((size_t)layout->ranks * sizeof *ranks);
    if (ranks == NULL)
        return reshard_no_memory(m->why);
    uint32_t count = 1;
    ranks[0] = base;
    for (int32_t a = layout->axis_count - 1; a >= 0; a--) { /* innermost first, so that ranks stay in order */
        if (places[a][0] != PSD_PLACE_REPLICATE)
            continue;
        uint32_t before = count;
        for (int32_t c = 1; c < layout->axes[a].size; c++) {
            for (uint32_t i = 0; i < before; i++)
                ranks[count++] = ranks[i] + c * layout->axes[a].stride;
        }
    }
    psd_status status = add_set(m, ranks, count, out);
    free(ranks);
    if (status == PSD_OK && !psd_map_put(&m->sets, key, (void *)(uintptr_t)(*out + 1)))
        status = reshard_no_memory(m->why);
    return status;
}

/* Of `from`, those that are not in `held`. */
static psd_status difference(maker *m, uint32_t from, uint32_t held, uint32_t *out)
{
    const reshard_atoms *a = m->atoms;
    rank_set f = a->sets[from], h = a->sets[held];
    int32_t *left = malloc(((size_t)f.count + 1) * sizeof *left);
    if (left == NULL)
        return reshard_no_memory(m->why);
    uint32_t count = 0, j = 0;
    for (uint32_t i = 0; i < f.count; i++) {
        int32_t rank = a->set_ranks[f.first + i];
        while (j < h.count && a->set_ranks[h.first + j] < rank)
            j++;
        if (j == h.count || a->set_ranks[h.first + j] != rank)
            left[count++] = rank;
    }
    psd_status status = PSD_OK;
    if (count == f.count)
        *out = from;
    else
        status = add_set(m, left, count, out);
    free(left);
    return status;
}

/* NULL in *out: nothing of it moves. */
static psd_status find_bundle(maker *m, uint32_t holders, uint32_t destinations, bundle **out)
{
    reshard_atoms *a = m->atoms;
    uint64_t key = (uint64_t)holders << 32 | destinations;
    void *known = psd_map_get(&m->bundles, key);
    if (known != NULL) {
        *out = known == NOTHING_MOVES ? NULL : &a->bundles[(uintptr_t)known - 1];
        return PSD_OK;
    }
    uint32_t receivers = 0;
    psd_status status = difference(m, destinations, holders, &receivers);
    if (status != PSD_OK)
        return status;
    void *grown = reshard_room(a->bundles, a->bundle_count, &m->bundle_capacity, sizeof *a->bundles);
    if (grown == NULL)
        return reshard_no_memory(m->why);
    a->bundles = grown;
    bool moves = a->sets[receivers].count > 0;
    if (!psd_map_put(&m->bundles, key, moves ? (void *)(uintptr_t)(a->bundle_count + 1) : NOTHING_MOVES))
        return reshard_no_memory(m->why);
    *out = NULL;
    if (moves) {
        *out = &a->bundles[a->bundle_count++];
        **out = (bundle){.holders = holders, .receivers = receivers};
    }
    return PSD_OK;
}

/* ----------------------------------------------------------------------------------------------------- cells */

/* How the axes cut dimension `dim`. */
static psd_status cut_dimension(const psd_layout *layout, const int32_t (*places)[2], int32_t dim,
                                int64_t length, interval_list *out)
{
    uint64_t room = 1;
    for (int32_t a = 0; a < layout->axis_count; a++) {
        if (places[a][0] == PSD_PLACE_SHARD && places[a][1] == dim)
            room *= (uint64_t)layout->axes[a].size;
    }
    interval *now = malloc(room * sizeof *now), *next = malloc(room * sizeof *next);
    if (now == NULL || next == NULL) {
        free(now);
        free(next);
        return PSD_ERR_NOMEM;
    }
    uint32_t count = length > 0;
    now[0] = (interval){0, length, 0};
    for (int32_t a = 0; a < layout->axis_count; a++) {
        if (places[a][0] != PSD_PLACE_SHARD || places[a][1] != dim)
            continue;
        uint32_t made = 0;
        for (uint32_t i = 0; i < count; i++) {
            for (int32_t c = 0; c < layout->axes[a].size; c++) {
                int64_t lo = 0, hi = 0;
                psd_layout_chunk(now[i].hi - now[i].lo, layout->axes[a].size, c, &lo, &hi);
                if (lo < hi)
                    next[made++] = (interval){now[i].lo + lo, now[i].lo + hi,
                                              now[i].offset + c * layout->axes[a].stride};
            }
        }
        interval *other = now;
        now = next;
        next = other;
        count = made;
    }
    free(next);
    *out = (interval_list){now, count};
    return PSD_OK;
}

/* The common refinement of both layouts' cuts of each dimension. */
static psd_status refine(const maker *m, const class_key *key, segment **out, uint32_t *counts)
{
    psd_status status = PSD_OK;
    for (int32_t d = 0; d < key->ndim && status == PSD_OK; d++) {
        interval_list s = {0}, t = {0};
        status = cut_dimension(m->input->src, key->src, d, key->shape[d], &s);
        if (status == PSD_OK)
            status = cut_dimension(m->input->dst, key->dst, d, key->shape[d], &t);
        segment *made = malloc(((size_t)s.count + t.count + 1) * sizeof *made);
        if (status != PSD_OK || made == NULL) {
            status = PSD_ERR_NOMEM;
        } else {
            uint32_t count = 0;
            for (uint32_t i = 0, j = 0; i < s.count && j < t.count;) {
                const interval *x = &s.items[i], *y = &t.items[j];
                int64_t lo = x->lo > y->lo ? x->lo : y->lo, hi = x->hi < y->hi ? x->hi : y->hi;
                if (lo < hi)
                    made[count++] = (segment){lo, hi, x->offset, y->offset};
                i += x->hi <= y->hi;
                j += y->hi == hi;
            }
            out[d] = made;
            counts[d] = count;
            made = NULL;
        }
        free(made);
        free(s.items);
        free(t.items);
    }
    return status == PSD_OK ? PSD_OK : reshard_no_memory(m->why);
}

static int32_t owner_base(const psd_layout *layout, const int32_t (*places)[2])
{
    int32_t base = layout->first_rank;
    for (int32_t a = 0; a < layout->axis_count; a++) {
        if (places[a][0] == PSD_PLACE_OWN)
            base += places[a][1] * layout->axes[a].stride;
    }
    return base;
}

static psd_status add_cell(maker *m, uint32_t class_index, const class_key *key, const psd_box *box,
                           int32_t src, int32_t dst)
{
    reshard_atoms *a = m->atoms;
    uint32_t holders = 0, destinations = 0;
    bundle *b = NULL;
    psd_status status = replica_set(m, m->input->src, key->src, src, &holders);
    if (status == PSD_OK)
        status = replica_set(m, m->input->dst, key->dst, dst, &destinations);
    if (status == PSD_OK)
        status = find_bundle(m, holders, destinations, &b);
    if (status != PSD_OK || b == NULL)
        return status;
    void *grown = reshard_room(a->cells, a->cell_count, &m->cell_capacity, sizeof *a->cells);
    if (grown == NULL)
        return reshard_no_memory(m->why);
    a->cells = grown;
    grown = reshard_room(a->atoms, a->atom_count, &m->atom_capacity, sizeof *a->atoms);
    if (grown == NULL)
        return reshard_no_memory(m->why);
    a->atoms = grown;
    int64_t bytes = key->item;
    for (int32_t d = 0; d < key->ndim; d++)
        bytes *= box->hi[d] - box->lo[d];
    int64_t all = bytes * a->classes[class_index].member_count, moved = 0;
    if (__builtin_mul_overflow(all, (int64_t)a->sets[b->receivers].count, &moved) ||
        __builtin_add_overflow(a->moved, moved, &a->moved) || a->moved > PSD_MODEL_BYTES) {
        (void)snprintf(m->why->text, m->why->bytes, "the plan would move more than 2^60 bytes");
        return PSD_ERR_LIMIT;
    }
    a->cells[a->cell_count++] = (class_cell){.class_index = class_index,
                                             .atom = (uint32_t)a->atom_count,
                                             .bundle = (uint32_t)(b - a->bundles),
                                             .bytes = bytes};
    a->atoms[a->atom_count++].box = *box;
    b->cell_count++;
    b->bytes += all;
    return PSD_OK;
}

/* All combinations of the dimensions' segments, the last dimension fastest. */
static psd_status add_cells(maker *m, uint32_t class_index, segment *const *segments, const uint32_t *counts)
{
    const class_key *key = &m->keys[class_index];
    int32_t src = owner_base(m->input->src, key->src), dst = owner_base(m->input->dst, key->dst);
    uint32_t at[PSD_MAX_DIMS] = {0};
    uint64_t all = 1;
    for (int32_t d = 0; d < key->ndim; d++) {
        all *= counts[d];
        if (all + m->atoms->cell_count > MOST_CELLS) {
            (void)snprintf(m->why->text, m->why->bytes,
                           "tensor %s and others are cut into more than %llu pieces",
                           m->input->model->tensors[m->atoms->classes[class_index].tensor].name,
                           (unsigned long long)MOST_CELLS);
            return PSD_ERR_LIMIT;
        }
    }
    for (uint64_t i = 0; i < all; i++) {
        psd_box box = {0};
        int32_t s = src, t = dst;
        for (int32_t d = 0; d < key->ndim; d++) {
            const segment *g = &segments[d][at[d]];
            box.lo[d] = g->lo;
            box.hi[d] = g->hi;
            s += g->src_offset;
            t += g->dst_offset;
        }
        psd_status status = add_cell(m, class_index, key, &box, s, t);
        if (status != PSD_OK)
            return status;
        for (int32_t d = key->ndim - 1; d >= 0 && ++at[d] == counts[d]; d--)
            at[d] = 0;
    }
    return PSD_OK;
}

static psd_status make_cells(maker *m)
{
    psd_status status = PSD_OK;
    if (m->keys == NULL) /* no tensors */
        return PSD_OK;
    for (int64_t item = m->atoms->align; item > 0 && status == PSD_OK;
         item /= 2) { /* the largest elements first */
        for (uint32_t c = 0; c < m->atoms->class_count && status == PSD_OK; c++) {
            segment *segments[PSD_MAX_DIMS] = {0};
            uint32_t counts[PSD_MAX_DIMS] = {0};
            if (m->keys[c].item != item)
                continue;
            status = refine(m, &m->keys[c], segments, counts);
            if (status == PSD_OK)
                status = add_cells(m, c, segments, counts);
            for (int d = 0; d < PSD_MAX_DIMS; d++)
                free(segments[d]);
        }
    }
    return status;
}

/* Brings the cells of each bundle together, in the order in which they were made, and gives them their place in its
 * stream. */
static psd_status order_cells(maker *m)
{
    reshard_atoms *a = m->atoms;
    class_cell *sorted = malloc((a->cell_count + 1) * sizeof *sorted);
    if (sorted == NULL)
        return reshard_no_memory(m->why);
    uint32_t next = 0;
    for (uint64_t b = 0; b < a->bundle_count; b++) {
        a->bundles[b].first_cell = next;
        next += a->bundles[b].cell_count;
        a->bundles[b].cell_count = 0;
        a->bundles[b].bytes = 0;
    }
    for (uint64_t i = 0; i < a->cell_count; i++) {
        bundle *b = &a->bundles[a->cells[i].bundle];
        class_cell *cell = &sorted[b->first_cell + b->cell_count++];
        *cell = a->cells[i];
        cell->offset = b->bytes;
        b->bytes += cell->bytes * a->classes[cell->class_index].member_count;
    }
    free(a->cells);
    a->cells = sorted;
    return PSD_OK;
}

psd_status reshard_atoms_make(const reshard_input *input, reshard_atoms *out, const reshard_why *why)
{
    reshard_atoms atoms = {.align = 1};
    maker m = {.input = input, .why = why, .atoms = &atoms};
    int32_t src_end = input->src->first_rank + input->src->ranks;
    int32_t dst_end = input->dst->first_rank + input->dst->ranks;
    atoms.ranks = src_end > dst_end ? src_end : dst_end;
    for (uint32_t t = 0; t < input->model->count; t++) {
        int64_t item = (int64_t)psd_dtype_bytes(input->model->tensors[t].dtype);
        atoms.align = item > atoms.align ? item : atoms.align;
    }
    psd_status status = sort_into_classes(&m);
    if (status == PSD_OK)
        status = make_cells(&m);
    if (status == PSD_OK)
        status = order_cells(&m);
    psd_map_free(&m.classes);
    psd_map_free(&m.sets);
    psd_map_free(&m.bundles);
    free(m.keys);
    free(m.class_of);
    if (status == PSD_OK)
        *out = atoms;
    else
        reshard_atoms_free(&atoms);
    return status;
}
