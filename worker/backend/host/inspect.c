/* What is in flight, for who explains a hang: the transfers that are not complete, and how many frames went over each
 * link. */
#include "worker/backend/host/engine.h"

static bool is_moving(const xfer *x)
{
    if (!x->is_send)
        return x->state != XFER_POSTED;
    if (x->peer == NULL) /* to oneself: kept until it is received */
        return x->state != XFER_QUEUED;
    return x->state != XFER_OFFERED;
}

/* Of a message that has come for the receive but for its tag: + 1; 0: none. */
static uint32_t other_tag(const psd_request *r, const xfer *x)
{
    if (x->is_send || x->state != XFER_POSTED || x->rank < 0)
        return 0;
    const list *head = &r->group->member[x->rank].messages;
    for (const list *node = head->next; node != head; node = node->next) {
        const message *m = LIST_ENTRY(node, message, node);
        if (m->receiver == NULL && m->header.tag != x->tag && m->header.tag >= 0 &&
            m->header.tag <= PSD_MAX_TAG)
            return (uint32_t)m->header.tag + 1;
    }
    return 0;
}

static void tell_p2p(const psd_request *r, const xfer *x, const psd_inspector *to)
{
    psd_transfer t = {.record = r->record,
                      .group = r->group->id,
                      .is_send = x->is_send,
                      .is_moving = is_moving(x),
                      .dtype = (psd_dtype)x->dtype,
                      .peer = x->rank,
                      .tag = x->tag,
                      .ordinal = x->ordinal,
                      .count = x->count,
                      .other_tag = other_tag(r, x)};
    to->transfer(to->arg, &t);
}

static void tell_collective(psd_request *r, const psd_inspector *to)
{
    psd_transfer t = {
        .record = r->record, .group = r->group->id, .is_collective = true, .peer = -1, .ordinal = r->ordinal};
    for (list *node = r->xfers.next; node != &r->xfers; node = node->next) {
        const xfer *x = LIST_ENTRY(node, xfer, in_request);
        t.is_moving = t.is_moving || (is_moving(x) && x->state != XFER_FREE);
    }
    to->transfer(to->arg, &t);
}

void host_inspect(engine *e, const psd_inspector *to)
{
    for (list *node = e->active.next; node != &e->active; node = node->next) {
        psd_request *r = LIST_ENTRY(node, psd_request, node);
        if (r->is_coll) {
            tell_collective(r, to);
            continue;
        }
        for (list *at = r->xfers.next; at != &r->xfers; at = at->next)
            tell_p2p(r, LIST_ENTRY(at, xfer, in_request), to);
    }
    for (list *node = e->groups.next; node != &e->groups; node = node->next) {
        const hgroup *g = LIST_ENTRY(node, hgroup, node);
        to->group(to->arg, g->id, g->next_ordinal);
    }
    for (list *node = e->peers.next; node != &e->peers; node = node->next) {
        const peer *p = LIST_ENTRY(node, peer, node);
        if (p->world_rank >= 0 && !p->is_broken)
            to->pair(to->arg, (uint32_t)p->world_rank, p->frames_sent, p->frames_received);
    }
}
