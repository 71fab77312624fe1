/* One link: frames out, frames in. */
#include "worker/backend/host/engine.h"

#include <stdio.h>
#include <string.h>

#include "common/tensor.h"
#include "worker/backend/host/link.h"
#include "worker/backend/host/reduce.h"

#define WRITE_AT_ONCE (2u << 20) /* bytes streamed into one link before others have their turn */

peer *peer_new(engine *e, host_link *link)
{
    peer *p = blocks_get(&e->pool, sizeof(*p));
    if (p == NULL)
        return NULL;
    memset(p, 0, sizeof(*p));
    p->engine = e;
    p->link = link;
    p->incarnation = host_link_incarnation(link);
    p->world_rank = -1;
    p->credit = ENGINE_CREDIT;
    p->chan_credit = ENGINE_CHAN;
    list_init(&p->out);
    list_init(&p->streams);
    list_append(&e->peers, &p->node);
    host_link_set_owner(link, p);
    return p;
}

static void tx_free(engine *e, tx *t)
{
    list_remove(&t->node);
    e->queued--;
    if (t->owner != NULL)
        t->owner->out = NULL;
    blocks_put(&e->pool, t->owned, t->owned_bytes);
    blocks_put(&e->pool, t, sizeof(*t));
}

void peer_drop_output(peer *p)
{
    list *node;
    while ((node = list_take(&p->out)) != NULL)
        tx_free(p->engine, LIST_ENTRY(node, tx, node));
}

void peer_free(peer *p)
{
    engine *e = p->engine;
    LIST_EACH(&e->early_pings, node, after)
    {
        early_ping *ping = LIST_ENTRY(node, early_ping, node);
        if (ping->peer == p) {
            list_remove(node);
            blocks_put(&e->pool, ping, sizeof(*ping));
        }
    }
    peer_drop_output(p);
    host_link_set_owner(p->link, NULL);
    list_remove(&p->node);
    blocks_put(&e->pool, p, sizeof(*p));
}

void peer_break(peer *p, psd_status status, const char *text)
{
    if (p->is_broken)
        return;
    p->is_broken = true;
    p->status = status;
    snprintf(p->text, sizeof(p->text), "%s", text);
    p->engine->has_broken = true;
    if (host_link_get_state(p->link) != HOST_LINK_BROKEN)
        host_link_break(p->link, text);
}

/* ---------------------------------------------------------------------------------------------------- out */

/* Writes what fits; returns the bytes of the frame that are out. */
static uint32_t write_some(peer *p, const frame *f, const uint8_t *payload, uint32_t sent)
{
    struct iovec iov[2];
    int count = 0;
    uint32_t skip = 0;
    if (sent < sizeof(*f)) {
        iov[count].iov_base = (void *)(uintptr_t)((const uint8_t *)f + sent);
        iov[count].iov_len = sizeof(*f) - sent;
        count++;
    } else {
        skip = sent - (uint32_t)sizeof(*f);
    }
    if (f->payload > skip) {
        iov[count].iov_base = (void *)(uintptr_t)(payload + skip);
        iov[count].iov_len = f->payload - skip;
        count++;
    }
    size_t n = host_link_write(p->link, iov, count);
    if (n > 0)
        p->needs_flush = true;
    sent += (uint32_t)n;
    if (sent == sizeof(*f) + f->payload)
        engine_count(&p->engine->bytes_sent, f->payload);
    return sent;
}

static tx *queue_frame(peer *p, const frame *f, const void *payload, uint32_t sent, xfer *owner)
{
    tx *t = blocks_get(&p->engine->pool, sizeof(*t));
    if (t == NULL) {
        peer_break(p, PSD_ERR_NOMEM, "out of memory for a frame to be sent");
        return NULL;
    }
    memset(t, 0, sizeof(*t));
    t->header = *f;
    t->sent = sent;
    t->payload = payload;
    t->owner = owner;
    if (owner != NULL)
        owner->out = t;
    list_append(&p->out, &t->node);
    p->engine->queued++;
    return t;
}

/* Gives a frame that is half out its own copy of the payload. */
static void own_payload(peer *p, tx *t)
{
    if (t->payload == NULL || t->header.payload == 0 || t->owned != NULL)
        return;
    void *copy = blocks_get(&p->engine->pool, t->header.payload);
    if (copy == NULL) {
        peer_break(p, PSD_ERR_NOMEM, "out of memory for a frame to be sent");
        t->header.payload = 0; /* never written: the link is broken */
        return;
    }
    memcpy(copy, t->payload, t->header.payload);
    t->owned = copy;
    t->owned_bytes = t->header.payload;
    t->payload = copy;
}

bool peer_send_small(peer *p, const frame *f, const void *payload)
{
    bool fits = f->type == FRAME_EAGER && f->payload <= host_link_small_max(p->link) &&
                f->count <= (int64_t)UINT32_MAX && list_empty(&p->out) && !p->is_broken;
    if (!fits)
        return false;
    lane_message m = frame_to_small(f);
    if (!host_link_write_small(p->link, &m, payload))
        return false;
    p->needs_flush = true;
    engine_count(&p->engine->bytes_sent, f->payload);
    return true;
}

bool peer_send(peer *p, const frame *f, const void *payload, xfer *owner)
{
    uint32_t sent = 0;
    if (p->is_broken)
        return false;
    p->frames_sent++;
    if (peer_send_small(p, f, payload))
        return true;
    if (list_empty(&p->out) && host_link_get_state(p->link) == HOST_LINK_READY) {
        sent = write_some(p, f, payload, 0);
        if (sent == sizeof(*f) + f->payload)
            return true;
    }
    (void)queue_frame(p, f, payload, sent, owner);
    return false;
}

void peer_send_control(peer *p, const frame *f, const void *payload)
{
    if (p->is_broken || peer_send(p, f, payload, NULL) || list_empty(&p->out))
        return;
    own_payload(p, LIST_ENTRY(p->out.prev, tx, node));
}

void peer_disown_send(xfer *x)
{
    if (x->out != NULL)
        x->out->owner = NULL;
    x->out = NULL;
}

void peer_forget_send(peer *p, xfer *x)
{
    tx *t = x->out;
    if (t == NULL)
        return;
    if (t->sent == 0) {
        p->frames_sent--;
        tx_free(p->engine, t);
        return;
    }
    own_payload(p, t);
    peer_disown_send(x);
}

/* Queues a slice of the stream whose turn it is; false if there is none. */
static bool next_slice(peer *p)
{
    list *node = list_take(&p->streams);
    if (node == NULL)
        return false;
    xfer *s = LIST_ENTRY(node, xfer, node);
    uint64_t rest = s->bytes - s->done;
    frame f = peer_frame(s->request->group, FRAME_DATA);
    f.payload = rest < FRAME_MAX_SLICE ? (uint32_t)rest : FRAME_MAX_SLICE;
    f.id = s->remote;
    f.word = s->done;
    if (queue_frame(p, &f, s->data + s->done, 0, s) == NULL)
        return false;
    p->frames_sent++;
    s->done += f.payload;
    if (s->done < s->bytes)
        list_append(&p->streams, &s->node);
    return true;
}

static bool write_out(peer *p)
{
    bool did = false;
    for (size_t budget = WRITE_AT_ONCE; budget > 0 && !p->is_broken;) {
        if (list_empty(&p->out) && !next_slice(p))
            break;
        tx *t = LIST_ENTRY(p->out.next, tx, node);
        uint32_t before = t->sent;
        t->sent = write_some(p, &t->header, t->payload, before);
        did |= t->sent != before;
        if (t->sent < sizeof(frame) + t->header.payload)
            break;
        budget -= budget < t->sent ? budget : t->sent;
        xfer *owner = t->owner;
        frame_type type = (frame_type)t->header.type;
        tx_free(p->engine, t);
        if (owner != NULL)
            transfer_sent(p->engine, owner, type);
    }
    return did;
}

void peer_give_credit(peer *p, uint64_t eager_bytes, uint32_t chan_messages)
{
    p->owed += eager_bytes;
    p->chan_owed += chan_messages;
    if (p->is_broken || (p->owed < ENGINE_CREDIT / 4 && p->chan_owed < ENGINE_CHAN / 4))
        return;
    frame f = peer_frame(NULL, FRAME_CREDIT);
    f.bytes = p->owed;
    f.count = p->chan_owed;
    p->owed = 0;
    p->chan_owed = 0;
    peer_send_control(p, &f, NULL);
}

static void on_credit(peer *p, const frame *f)
{
    bool is_legal = f->bytes <= ENGINE_CREDIT - p->credit && f->count >= 0 &&
                    (uint64_t)f->count <= ENGINE_CHAN - p->chan_credit;
    if (!is_legal) {
        peer_break(p, PSD_ERR_LINK, "garbage on the link: more credit than was used");
        return;
    }
    p->credit += f->bytes;
    p->chan_credit += (uint32_t)f->count;
}

/* ----------------------------------------------------------------------------------------------------- in */

static void on_header(peer *p)
{
    rx *in = &p->in;
    char why[160];
    char text[256];
    if (!frame_check(&in->header, why, sizeof(why))) {
        snprintf(text, sizeof(text), "garbage on the link: %s", why);
        peer_break(p, PSD_ERR_LINK, text);
        return;
    }
    in->remains = in->header.payload;
    in->receive = NULL;
    in->message = NULL;
    in->to = NULL;
    in->combines = false;
    in->part_bytes = 0;
    engine_count(&p->engine->bytes_received, in->header.payload);
    switch ((frame_type)in->header.type) {
    case FRAME_EAGER:
    case FRAME_RTS:
    case FRAME_EXPOSE:
        match_arrived(p, &in->header);
        break;
    case FRAME_DATA:
        transfer_on_data(p, &in->header);
        break;
    default:
        in->to = in->small;
        break;
    }
}

/* A whole frame is here. */
static void on_frame(peer *p)
{
    rx *in = &p->in;
    const frame *f = &in->header;
    const char *text = (const char *)in->small;
    in->have = 0;
    p->frames_received++;
    if (f->type != FRAME_EAGER && f->type != FRAME_DATA)
        in->small[f->payload] = '\0';
    switch ((frame_type)f->type) {
    case FRAME_EAGER:
        match_payload_arrived(p);
        break;
    case FRAME_DATA:
        transfer_data_arrived(p);
        break;
    case FRAME_CTS:
        transfer_on_cts(p, f);
        break;
    case FRAME_FIN:
        transfer_on_fin(p, f);
        break;
    case FRAME_PING:
        host_group_on_ping(p, f, in->small);
        break;
    case FRAME_PONG:
        host_group_on_pong(p, f);
        break;
    case FRAME_BROKEN:
    case FRAME_BROKEN_ACK:
        host_group_on_broken(p, f, text);
        break;
    case FRAME_CLOSED:
        host_group_on_closed(p, f);
        break;
    case FRAME_COMPARE:
        host_group_on_compare(p, f, text);
        break;
    case FRAME_CREDIT:
        on_credit(p, f);
        break;
    case FRAME_CHAN:
        host_chan_on_message(p, f, in->small);
        break;
    case FRAME_RTS:
    case FRAME_EXPOSE:
    case FRAME_TYPES:
        break; /* handled with the header; refused there */
    }
}

/* The payload's bytes up to here; those of a begun element are not reduced yet. */
static void combine(peer *p, const void *theirs, size_t bytes)
{
    rx *in = &p->in;
    psd_request *r = in->receive->request;
    size_t at = in->receive->bytes - in->remains - in->part_bytes;
    coll_combine(&r->schedule, r->round, at, theirs, bytes);
}

/* Reduces what lies in the link instead of copying it out first. */
static size_t combine_some(peer *p)
{
    rx *in = &p->in;
    size_t element = psd_dtype_bytes((psd_dtype)in->header.dtype);
    size_t bytes;
    const uint8_t *theirs = host_link_peek(p->link, &bytes);
    bytes = bytes < in->remains ? bytes : (size_t)in->remains;
    if (in->part_bytes == 0 && bytes >= element) {
        bytes -= bytes % element;
        combine(p, theirs, bytes);
        in->remains -= bytes;
    } else if (bytes > 0) {
        bytes = bytes < element - in->part_bytes ? bytes : element - in->part_bytes;
        memcpy(in->part + in->part_bytes, theirs, bytes);
        if (in->part_bytes + bytes == element)
            combine(p, in->part, element);
        in->part_bytes = (uint8_t)((in->part_bytes + bytes) % element);
        in->remains -= bytes;
    }
    host_link_take(p->link, bytes);
    return bytes;
}

/* Takes a piece of a large message to where it belongs. */
static size_t read_past_cache(peer *p)
{
    rx *in = &p->in;
    size_t bytes;
    const uint8_t *theirs = host_link_peek(p->link, &bytes);
    bytes = bytes < in->remains ? bytes : (size_t)in->remains;
    if (bytes > 0)
        copy_past_cache(in->to, theirs, bytes);
    in->remains -= bytes;
    in->to += bytes;
    host_link_take(p->link, bytes);
    return bytes;
}

/* Reads into the place of the payload, or of the header. Returns the bytes read. */
static size_t read_some(peer *p, size_t most)
{
    rx *in = &p->in;
    if (in->have < sizeof(frame)) {
        size_t n = host_link_read(p->link, (uint8_t *)&in->header + in->have, sizeof(frame) - in->have);
        in->have += n;
        if (in->have == sizeof(frame))
            on_header(p);
        return n;
    }
    if (in->combines)
        return combine_some(p);
    if (in->receive != NULL && in->receive->past_cache && in->to != NULL && host_link_is_shm(p->link))
        return read_past_cache(p);
    size_t bytes = in->remains < most ? (size_t)in->remains : most;
    if (in->to == NULL && bytes > FRAME_MAX_SLICE)
        bytes = FRAME_MAX_SLICE;
    size_t n = host_link_read(p->link, in->to != NULL ? in->to : p->engine->waste, bytes);
    in->remains -= n;
    if (in->to != NULL)
        in->to += n;
    return n;
}

/* A small message as the frame that it stands for. What its header leads to may break the link, and then its payload
 * is gone. */
static size_t read_small(peer *p)
{
    rx *in = &p->in;
    lane_message m;
    const void *payload = host_link_peek_small(p->link, &m);
    if (payload == NULL)
        return 0;
    in->header = frame_from_small(&m);
    in->have = sizeof(frame);
    on_header(p);
    if (p->is_broken || host_link_get_state(p->link) != HOST_LINK_READY)
        return sizeof(frame);
    if (in->combines && m.bytes > 0)
        combine(p, payload, m.bytes);
    else if (in->to != NULL && m.bytes > 0)
        memcpy(in->to, payload, m.bytes);
    in->remains = 0;
    host_link_take_small(p->link);
    return sizeof(frame) + m.bytes;
}

/* The next bytes in order, see host_link_peek_small(): between two frames of the stream a small message may come. */
static size_t read_next(peer *p, size_t most)
{
    if (p->in.have > 0)
        return read_some(p, most);
    bool has_stream = host_link_readable_stream(p->link);
    size_t n = read_small(p);
    return n > 0 || !has_stream ? n : read_some(p, most);
}

static bool read_in(peer *p)
{
    rx *in = &p->in;
    size_t budget = ENGINE_READ_SLICE;
    bool did = false;
    while (budget > 0 && !p->is_broken) {
        size_t n = read_next(p, budget);
        if (n == 0)
            break;
        did = true;
        budget -= budget < n ? budget : n;
        if (!p->is_broken && in->have == sizeof(frame) && in->remains == 0)
            on_frame(p);
    }
    if (did)
        p->needs_flush = true; /* there is room for a peer that waits for it */
    return did;
}

bool peer_progress(peer *p)
{
    bool did = host_link_readable(p->link) && read_in(p);
    if (!p->is_broken && (!list_empty(&p->out) || !list_empty(&p->streams)))
        did |= write_out(p);
    return did;
}
