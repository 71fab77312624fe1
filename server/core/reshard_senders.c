/* Who sends which bytes: each holder set's deliveries are laid end to end, in the order of their receivers, and cut
 * where one holder's share ends and the next one's begins. So a receiver gets what a set holds from few of its ranks. */
#include <stdlib.h>

#include "server/core/reshard_parts.h"

/* Bytes of a bundle that go to one chain. */
typedef struct delivery {
    uint32_t holders;
    uint32_t bundle;
    uint32_t chain; /* first of its ranks in set_ranks */
    uint32_t length;
    int32_t receiver; /* the first of the chain */
} delivery;

static int by_holders_receiver(const void *a, const void *b)
{
    const delivery *x = a, *y = b;
    if (x->holders != y->holders)
        return x->holders < y->holders ? -1 : 1;
    if (x->receiver != y->receiver)
        return x->receiver < y->receiver ? -1 : 1;
    return (x->bundle > y->bundle) - (x->bundle < y->bundle);
}

static delivery *list_deliveries(const reshard_atoms *atoms, uint32_t longest, uint64_t *count)
{
    uint64_t room = 0;
    for (uint64_t b = 0; b < atoms->bundle_count; b++)
        room += (atoms->sets[atoms->bundles[b].receivers].count + longest - 1) / longest;
    delivery *list = malloc((room + 1) * sizeof *list);
    if (list == NULL)
        return NULL;
    *count = 0;
    for (uint32_t b = 0; b < atoms->bundle_count; b++) {
        rank_set to = atoms->sets[atoms->bundles[b].receivers];
        for (uint32_t i = 0; i < to.count; i += longest) {
            uint32_t length = to.count - i < longest ? to.count - i : longest;
            list[(*count)++] = (delivery){atoms->bundles[b].holders, b, to.first + i, length,
                                          atoms->set_ranks[to.first + i]};
        }
    }
    qsort(list, *count, sizeof *list, by_holders_receiver);
    return list;
}

/* The shares of one holder set, as ends on the line of its deliveries. */
typedef struct cutter {
    const reshard_atoms *atoms;
    const flow_demand *demand; /* of the set */
    const int64_t *share;      /* of its ranks; NULL: the set is one rank */
    uint32_t at;               /* the rank whose share it is now */
    int64_t left;              /* of that share */
    reshard_lanes *out;
    uint64_t capacity;
} cutter;

static bool add_lane(cutter *c, const delivery *d, int64_t lo, int64_t hi)
{
    void *grown = reshard_room(c->out->lanes, c->out->count, &c->capacity, sizeof *c->out->lanes);
    if (grown == NULL)
        return false;
    c->out->lanes = grown;
    c->out->longest = d->length > c->out->longest ? d->length : c->out->longest;
    c->out->lanes[c->out->count++] = (lane){d->bundle, c->demand->ranks[c->at], lo, hi, d->chain, d->length};
    return true;
}

/* Cuts are moved down to a multiple of the largest element size: a share is then off by less than one element. */
static bool cut_delivery(cutter *c, const delivery *d)
{
    int64_t bytes = c->atoms->bundles[d->bundle].bytes, from = 0, at = 0;
    while (c->demand->rank_count > c->at + 1 && bytes - at >= c->left) {
        at += c->left;
        int64_t cut = at == bytes ? at : at / c->atoms->align * c->atoms->align;
        if (cut > from && !add_lane(c, d, from, cut))
            return false;
        from = cut > from ? cut : from;
        c->left = c->share[++c->at];
    }
    c->left -= bytes - at;
    return from == bytes || add_lane(c, d, from, bytes);
}

/* A demand of each holder set; those of one rank are fixed, and take no part in the flow. */
typedef struct sharing {
    flow_demand *of_set; /* by set; rank_count 0: holds nothing that moves */
    flow_demand *flow;
    uint32_t flow_count;
    uint64_t *first_share; /* by set, into shares */
    int64_t *fixed;        /* by rank */
    int64_t *shares;
} sharing;

static psd_status share_out(const reshard_atoms *atoms, const delivery *list, uint64_t count, sharing *s,
                            const reshard_why *why)
{
    uint64_t links = 0;
    s->of_set = calloc(atoms->set_count + 1, sizeof *s->of_set);
    s->flow = calloc(atoms->set_count + 1, sizeof *s->flow);
    s->first_share = calloc(atoms->set_count + 1, sizeof *s->first_share);
    s->fixed = calloc((size_t)atoms->ranks + 1, sizeof *s->fixed);
    if (s->of_set == NULL || s->flow == NULL || s->first_share == NULL || s->fixed == NULL)
        return reshard_no_memory(why);
    for (uint64_t i = 0; i < count; i++) {
        rank_set set = atoms->sets[list[i].holders];
        flow_demand *demand = &s->of_set[list[i].holders];
        *demand = (flow_demand){atoms->set_ranks + set.first, set.count,
                                demand->weight + atoms->bundles[list[i].bundle].bytes};
    }
    for (uint64_t i = 0; i < atoms->set_count; i++) {
        const flow_demand *demand = &s->of_set[i];
        if (demand->rank_count == 1) {
            s->fixed[demand->ranks[0]] += demand->weight;
        } else if (demand->rank_count > 1) {
            s->first_share[i] = links;
            links += demand->rank_count;
            s->flow[s->flow_count++] = *demand;
        }
    }
    s->shares = malloc((links + 1) * sizeof *s->shares);
    if (s->shares == NULL)
        return reshard_no_memory(why);
    return reshard_flow_split(s->flow, s->flow_count, s->fixed, atoms->ranks, s->shares, why);
}

psd_status reshard_lanes_make(const reshard_atoms *atoms, uint32_t longest, reshard_lanes *out,
                              const reshard_why *why)
{
    reshard_lanes lanes = {0};
    sharing s = {0};
    uint64_t count = 0;
    psd_status status = PSD_OK;
    delivery *list = list_deliveries(atoms, longest, &count);
    if (list == NULL)
        return reshard_no_memory(why);
    status = share_out(atoms, list, count, &s, why);
    cutter c = {.atoms = atoms, .out = &lanes};
    for (uint64_t i = 0; i < count && status == PSD_OK; i++) {
        if (i == 0 || list[i].holders != list[i - 1].holders) {
            c.demand = &s.of_set[list[i].holders];
            c.share = s.shares + s.first_share[list[i].holders];
            c.at = 0;
            c.left = c.demand->rank_count > 1 ? c.share[0] : 0;
        }
        if (!cut_delivery(&c, &list[i]))
            status = reshard_no_memory(why);
    }
    if (status == PSD_OK)
        *out = lanes;
    else
        free(lanes.lanes);
    free(list);
    free(s.of_set);
    free(s.flow);
    free(s.first_share);
    free(s.fixed);
    free(s.shares);
    return status;
}
