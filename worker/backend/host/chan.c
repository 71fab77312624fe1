/* The small-message channel: ordered, reliable, with credit, so that an inbox nobody reads stays bounded. */
#include "worker/backend/host/engine.h"

#include <string.h>

psd_status host_chan_send(engine *e, uint32_t world_rank, const void *data, uint32_t bytes)
{
    if (bytes > PSD_CHAN_MAX || (bytes > 0 && data == NULL))
        return PSD_ERR_INVAL;
    peer *p = world_rank < e->world_size ? e->world[world_rank] : NULL;
    if (p == NULL || p->is_broken)
        return PSD_ERR_UNREACHABLE;
    if (p->chan_credit == 0)
        return PSD_AGAIN;
    p->chan_credit--;
    frame f = peer_frame(NULL, FRAME_CHAN);
    f.payload = bytes;
    peer_send_control(p, &f, data);
    return PSD_OK;
}

void host_chan_on_message(peer *p, const frame *f, const uint8_t *data)
{
    engine *e = p->engine;
    inbox_item *item = p->world_rank >= 0 ? blocks_get(&e->pool, sizeof(*item)) : NULL;
    if (item == NULL) {
        peer_break(p, PSD_ERR_LINK,
                   p->world_rank >= 0 ? "out of memory for a channel message"
                                      : "a channel message of a rank that shares no group");
        return;
    }
    item->peer = p;
    item->msg.source = (uint32_t)p->world_rank;
    item->msg.bytes = f->payload;
    memcpy(item->msg.data, data, f->payload);
    list_append(&e->inbox, &item->node);
    progress_notify(e);
}

psd_status host_chan_take(engine *e, psd_chan_msg *out)
{
    list *node = list_take(&e->inbox);
    if (node == NULL)
        return PSD_AGAIN;
    inbox_item *item = LIST_ENTRY(node, inbox_item, node);
    out->source = item->msg.source;
    out->bytes = item->msg.bytes;
    memcpy(out->data, item->msg.data, item->msg.bytes);
    if (item->peer != NULL)
        peer_give_credit(item->peer, 0, 1);
    blocks_put(&e->pool, item, sizeof(*item));
    return PSD_OK;
}

/* What it sent before is still delivered. */
void host_chan_peer_gone(engine *e, peer *p)
{
    for (list *node = e->inbox.next; node != &e->inbox; node = node->next) {
        inbox_item *item = LIST_ENTRY(node, inbox_item, node);
        if (item->peer == p)
            item->peer = NULL;
    }
}
