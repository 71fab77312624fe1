/* Groups of the host backend: opening and warming their links, breaking, closing. */
#include "worker/backend/host/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRAIN_NS        (2 * PSD_NS_PER_S) /* the most that a cancelled send waits for its reader */
#define ANSWER_NS       PSD_NS_PER_S       /* the most that a mismatch waits for the other side's label */
#define MAX_EARLY_PINGS 4096u              /* of one peer */

/* ------------------------------------------------------------------------------------------------ members */

member *host_group_member(hgroup *g, peer *p, const frame *f)
{
    if (f->source < (uint32_t)g->size && g->member[f->source].peer == p)
        return &g->member[f->source];
    peer_break(p, PSD_ERR_LINK, "garbage on the link: a frame in the name of another rank");
    return NULL;
}

/* Who a world rank is, for the channel. False: out of memory. */
static bool note_world_rank(engine *e, uint32_t world_rank, peer *p)
{
    if (world_rank >= e->world_size) {
        uint32_t size = world_rank + 1;
        peer **grown = realloc(e->world, size * sizeof(peer *));
        if (grown == NULL)
            return false;
        memset(grown + e->world_size, 0, (size - e->world_size) * sizeof(peer *));
        e->world = grown;
        e->world_size = size;
    }
    e->world[world_rank] = p;
    p->world_rank = world_rank;
    return true;
}

/* After a group has gone: its members can be spoken to only if another group has them. */
static void forget_world_ranks(engine *e, const hgroup *g)
{
    for (int32_t i = 0; i < g->size; i++) {
        if (g->members[i] < e->world_size)
            e->world[g->members[i]] = NULL;
    }
    for (list *node = e->groups.next; node != &e->groups; node = node->next) {
        hgroup *other = LIST_ENTRY(node, hgroup, node);
        for (int32_t i = 0; i < other->size; i++) {
            if (other->member[i].peer != NULL && other->members[i] < e->world_size)
                e->world[other->members[i]] = other->member[i].peer;
        }
    }
}

static psd_status link_member(hgroup *g, int32_t i, const char *address, char *why, size_t why_bytes)
{
    engine *e = g->engine;
    member *m = &g->member[i];
    psd_status status = host_link_get(e->net, address, &m->link, why, why_bytes);
    if (status != PSD_OK)
        return status;
    m->peer = host_link_owner(m->link);
    if (m->peer == NULL)
        m->peer = peer_new(e, m->link);
    if (m->peer == NULL || !note_world_rank(e, g->members[i], m->peer)) {
        snprintf(why, why_bytes, "out of memory for the link to world rank %u", g->members[i]);
        return PSD_ERR_NOMEM;
    }
    return PSD_OK;
}

/* ------------------------------------------------------------------------------------------------ opening */

static void group_free(hgroup *g)
{
    engine *e = g->engine;
    list_remove(&g->node);
    hgroup **cached = &e->group_cache[g->id % ENGINE_GROUP_CACHE];
    if (*cached == g)
        *cached = NULL;
    for (int32_t i = 0; g->member != NULL && i < g->size; i++) {
        if (g->member[i].link != NULL)
            host_link_put(e->net, &g->member[i].link);
    }
    forget_world_ranks(e, g);
    e->may_drop = true;
    if (g->spare != NULL)
        request_put(e, g->spare);
    free(g->members);
    free(g->member);
    free(g->coll_past);
    free(g->p2p_past);
    free(g);
}

static hgroup *group_new(engine *e, const psd_group_desc *desc)
{
    hgroup *g = calloc(1, sizeof(*g));
    if (g == NULL)
        return NULL;
    g->engine = e;
    g->id = desc->id;
    g->rank = desc->rank;
    g->size = desc->size;
    g->token_bytes = desc->token_bytes;
    if (desc->token_bytes > 0)
        memcpy(g->token, desc->token, desc->token_bytes);
    g->dispute_deadline = PSD_NEVER;
    g->drain_deadline = PSD_NEVER;
    list_init(&g->node);
    list_init(&g->requests);
    list_init(&g->posted_any);
    list_init(&g->arrivals);
    list_init(&g->early);
    g->members = calloc((size_t)desc->size, sizeof(*g->members));
    g->member = calloc((size_t)desc->size, sizeof(*g->member));
    g->coll_past = calloc(ENGINE_COLL_PAST, sizeof(past_op));
    g->p2p_past = calloc(ENGINE_P2P_PAST, sizeof(past_op));
    for (int32_t i = 0; g->members != NULL && g->member != NULL && i < desc->size; i++) {
        g->members[i] = desc->members[i];
        list_init(&g->member[i].posted);
        list_init(&g->member[i].messages);
        list_init(&g->member[i].coll_messages);
    }
    if (g->members == NULL || g->member == NULL || g->coll_past == NULL || g->p2p_past == NULL) {
        g->size = 0;
        group_free(g);
        return NULL;
    }
    return g;
}

static bool desc_is_legal(const psd_group_desc *desc)
{
    bool has_ranks =
        desc->size >= 1 && desc->size <= PSD_MAX_WORLD && desc->rank >= 0 && desc->rank < desc->size;
    bool has_token = desc->token_bytes <= PSD_MAX_TOKEN && (desc->token_bytes == 0 || desc->token != NULL);
    if (!has_ranks || !has_token || desc->members == NULL || (desc->size > 1 && desc->addresses == NULL))
        return false;
    for (int32_t i = 0; i < desc->size; i++) {
        if (desc->members[i] >= PSD_MAX_WORLD)
            return false;
    }
    return true;
}

static void send_ping(hgroup *g, peer *p)
{
    frame f = peer_frame(g, FRAME_PING);
    f.payload = g->token_bytes;
    peer_send_control(p, &f, g->token);
}

/* The token proves that both sides mean the same group of the same job. */
static void answer_ping(hgroup *g, member *m, const uint8_t *token, uint32_t bytes)
{
    if (bytes != g->token_bytes || memcmp(token, g->token, bytes) != 0) {
        char text[160];
        snprintf(text, sizeof(text),
                 "group %u: world rank %u has another token for it: it is of another job or epoch", g->id,
                 g->members[m - g->member]);
        host_group_break(g, PSD_ERR_PROTOCOL, (int32_t)g->members[m - g->member], true, text);
        return;
    }
    m->ping_received = true;
    frame f = peer_frame(g, FRAME_PONG);
    peer_send_control(m->peer, &f, NULL);
}

static void adopt_pings(hgroup *g)
{
    engine *e = g->engine;
    LIST_EACH(&e->early_pings, node, after)
    {
        early_ping *ping = LIST_ENTRY(node, early_ping, node);
        if (ping->group != g->id)
            continue;
        frame f = {.source = ping->source};
        list_remove(node);
        ping->peer->pings--;
        member *m = host_group_member(g, ping->peer, &f);
        if (m != NULL)
            answer_ping(g, m, ping->token, ping->token_bytes);
        blocks_put(&e->pool, ping, sizeof(*ping));
    }
}

psd_status host_group_begin(engine *e, const psd_group_desc *desc, hgroup **out, char *why, size_t why_bytes)
{
    psd_status status = PSD_ERR_INVAL;
    snprintf(why, why_bytes, "group %u: its description is not valid", desc->id);
    if (!desc_is_legal(desc))
        return status;
    if (engine_group(e, desc->id) != NULL) {
        snprintf(why, why_bytes, "group %u is open already", desc->id);
        return PSD_ERR_EXISTS;
    }
    hgroup *g = group_new(e, desc);
    if (g == NULL) {
        snprintf(why, why_bytes, "out of memory for group %u of %d ranks", desc->id, desc->size);
        return PSD_ERR_NOMEM;
    }
    list_append(&e->groups, &g->node);
    if (g->size > 1) {
        status = host_net_expect(e->net, desc->addresses, (uint32_t)g->size, why, why_bytes);
        if (status != PSD_OK)
            goto fail;
    }
    /* From the next rank on, so that not all begin with rank 0. */
    for (int32_t k = 1; k < g->size; k++) {
        int32_t i = (g->rank + k) % g->size;
        status = link_member(g, i, desc->addresses[i], why, why_bytes);
        if (status != PSD_OK)
            goto fail;
    }
    for (int32_t i = 0; i < g->size; i++) {
        if (i != g->rank)
            send_ping(g, g->member[i].peer);
    }
    adopt_pings(g);
    why[0] = '\0';
    *out = g;
    return PSD_OK;
fail:
    group_free(g);
    return status;
}

psd_status host_group_poll(hgroup *g, char *why, size_t why_bytes)
{
    if (g->status != PSD_OK) {
        snprintf(why, why_bytes, "%s", g->text);
        return g->status;
    }
    for (int32_t i = 0; i < g->size && !g->is_ready; i++) {
        member *m = &g->member[i];
        if (m->peer == NULL)
            continue;
        if (m->peer->is_broken) {
            host_group_peer_gone(m->peer); /* the link broke before this group began */
            snprintf(why, why_bytes, "%s", g->text);
            return g->status;
        }
        /* The answers must be out too: nobody might drive this context once the group is ready. */
        if (!m->ping_received || !m->pong_received || !list_empty(&m->peer->out))
            return PSD_INPROGRESS;
    }
    g->is_ready = true;
    g->is_flat = true;
    for (int32_t i = 0; i < g->size; i++)
        g->is_flat &= g->member[i].link == NULL || host_link_is_shm(g->member[i].link);
    return PSD_OK;
}

void host_group_on_ping(peer *p, const frame *f, const uint8_t *token)
{
    engine *e = p->engine;
    hgroup *g = engine_group(e, f->group);
    if (g != NULL) {
        member *m = host_group_member(g, p, f);
        if (m != NULL && g->status == PSD_OK)
            answer_ping(g, m, token, f->payload);
        return;
    }
    early_ping *ping = p->pings < MAX_EARLY_PINGS ? blocks_get(&e->pool, sizeof(*ping)) : NULL;
    if (ping == NULL) {
        peer_break(p, PSD_ERR_LINK, "too many pings for groups that are not open here");
        return;
    }
    ping->peer = p;
    ping->group = f->group;
    ping->source = f->source;
    ping->token_bytes = f->payload;
    memcpy(ping->token, token, f->payload);
    p->pings++;
    list_append(&e->early_pings, &ping->node);
}

void host_group_on_pong(peer *p, const frame *f)
{
    hgroup *g = engine_group(p->engine, f->group);
    member *m = g != NULL ? host_group_member(g, p, f) : NULL;
    if (m != NULL)
        m->pong_received = true;
}

/* ----------------------------------------------------------------------------------------------- breaking */

void host_group_break(hgroup *g, psd_status status, int32_t culprit, bool tell, const char *text)
{
    engine *e = g->engine;
    if (g->status != PSD_OK)
        return;
    g->status = status;
    snprintf(g->text, sizeof(g->text), "%s", text);
    text_clean(g->text);
    e->has_broken = true;
    if (tell && e->on_group_broken != NULL)
        e->on_group_broken(e->owner, g->id, status, culprit, g->text);
}

void host_group_break_by(hgroup *g, psd_status status, int32_t culprit, const char *text,
                         const op_sides *sides)
{
    const engine *e = g->engine;
    const psd_op_side *first = &sides->at[0];
    if (g->status != PSD_OK)
        return;
    /* The cells of all_to_all_v are of two ranks only. */
    if (status == PSD_ERR_MISMATCH && sides->count > 0 && first->kind > PSD_OP_BATCH &&
        first->kind != PSD_OP_ALL_TO_ALL_V)
        g->broken_at = first->ordinal + 1;
    host_group_break(g, status, culprit, e->on_disagreement == NULL, text);
    if (e->on_disagreement != NULL)
        e->on_disagreement(e->owner, g->id, status, culprit, g->text, sides->at, sides->count);
}

void host_group_break_disputed(hgroup *g)
{
    host_group_break_by(g, PSD_ERR_MISMATCH, -1, g->dispute, &g->dispute_sides);
}

/* Another member found that ranks disagree about one collective: this one tells what it called there, if it is one of
 * the first, so that psd hears enough to know the minority, and not all of many. */
static void break_as_told(hgroup *g, const frame *f, psd_status status, const char *text)
{
    past_op room;
    bool is_known = status == PSD_ERR_MISMATCH && f->channel == FRAME_COLL && f->other != 0;
    const past_op *mine = is_known ? coll_run_find_past(g, f->ordinal, &room) : NULL;
    bool tells = mine != NULL && g->broken_at == 0 && g->rank < PSD_INCIDENT_SIDES;
    host_group_break(g, status, -1, false, text); /* psd's ABORT may have come before */
    if (is_known && g->broken_at == 0)
        g->broken_at = f->ordinal + 1;
    if (!tells || g->engine->on_disagreement == NULL)
        return;
    op_sides sides = {.count = 0};
    sides_add_collective(g, &sides, g->rank, f->ordinal, &mine->what, mine->label);
    g->engine->on_disagreement(g->engine->owner, g->id, status, -1, text, sides.at, sides.count);
}

static const psd_request *oldest_collective(const hgroup *g)
{
    const psd_request *oldest = NULL;
    for (const list *node = g->requests.next; node != &g->requests; node = node->next) {
        const psd_request *r = LIST_ENTRY(node, psd_request, in_group);
        if (r->is_coll && (oldest == NULL || r->ordinal < oldest->ordinal))
            oldest = r;
    }
    return oldest;
}

/* psd may say that ranks disagree before the members do, and the caller may be gone when they do: tells the collectives
 * that the disagreement is likely to be about, the oldest that is not complete and the last. psd takes that of the right
 * ordinal. */
void host_group_abort(hgroup *g, psd_status status, const char *text)
{
    bool tells = status == PSD_ERR_MISMATCH && g->status == PSD_OK && g->rank < PSD_INCIDENT_SIDES &&
                 g->engine->on_disagreement != NULL;
    op_sides sides = {.count = 0};
    const psd_request *oldest = tells ? oldest_collective(g) : NULL;
    past_op room;
    const past_op *last =
        tells && g->next_ordinal > 0 ? coll_run_find_past(g, g->next_ordinal - 1, &room) : NULL;
    if (oldest != NULL)
        sides_add_collective(g, &sides, g->rank, oldest->ordinal, &oldest->what, oldest->label);
    if (last != NULL && (oldest == NULL || oldest->ordinal + 1 != last->ordinal))
        sides_add_collective(g, &sides, g->rank, last->ordinal - 1, &last->what, last->label);
    host_group_break(g, status, -1, false, text);
    if (sides.count > 0)
        g->engine->on_disagreement(g->engine->owner, g->id, status, -1, g->text, sides.at, sides.count);
}

void host_group_settle(hgroup *g)
{
    engine *e = g->engine;
    g->is_settled = true;
    match_drop(g);
    g->drain_deadline = psd_now_ns() + DRAIN_NS;
    engine_timer_at(e, g->drain_deadline);
    frame f = peer_frame(g, FRAME_BROKEN);
    f.tag = g->status;
    f.count = -1;
    if (g->broken_at != 0) {
        f.channel = FRAME_COLL;
        f.other = 1;
        f.ordinal = g->broken_at - 1;
    }
    f.payload = (uint32_t)strlen(g->text);
    for (int32_t i = 0; i < g->size; i++) {
        if (g->member[i].peer != NULL && !g->member[i].peer->is_broken)
            peer_send_control(g->member[i].peer, &f, g->text);
    }
    LIST_EACH(&g->requests, node, after)
    {
        request_fail(LIST_ENTRY(node, psd_request, in_group));
    }
    progress_notify(e);
}

static void drop_early_pings(peer *p, uint32_t group)
{
    engine *e = p->engine;
    LIST_EACH(&e->early_pings, node, after)
    {
        early_ping *ping = LIST_ENTRY(node, early_ping, node);
        if (ping->peer != p || ping->group != group)
            continue;
        list_remove(node);
        p->pings--;
        blocks_put(&e->pool, ping, sizeof(*ping));
    }
}

void host_group_on_broken(peer *p, const frame *f, const char *text)
{
    engine *e = p->engine;
    hgroup *g = engine_group(e, f->group);
    bool is_answer = f->type == FRAME_BROKEN_ACK;
    if (g == NULL) {
        drop_early_pings(p, f->group);
        frame answer = peer_frame(NULL, FRAME_BROKEN_ACK);
        answer.group = f->group;
        if (!is_answer)
            peer_send_control(p, &answer, NULL);
        return;
    }
    member *m = is_answer ? NULL : host_group_member(g, p, f);
    for (int32_t i = 0; is_answer && i < g->size; i++) {
        if (g->member[i].peer == p)
            m = &g->member[i];
    }
    if (m == NULL)
        return;
    m->is_drained = true;
    bool is_error = f->tag <= PSD_ERR_INVAL && f->tag >= PSD_ERR_INTERNAL;
    if (!is_answer)
        break_as_told(g, f, is_error ? (psd_status)f->tag : PSD_ERR_ABORTED, text);
    transfer_drained(e, g, p);
}

/* What still moves data to or from this peer; NULL if nothing does. */
static const xfer *transfer_with(const hgroup *g, const peer *p)
{
    for (const list *node = g->requests.next; node != &g->requests; node = node->next) {
        const psd_request *r = LIST_ENTRY(node, psd_request, in_group);
        for (const list *at = r->xfers.next; at != &r->xfers; at = at->next) {
            const xfer *x = LIST_ENTRY(at, xfer, in_request);
            if (x->peer == p)
                return x;
        }
    }
    return NULL;
}

/* "rank 1 has closed it and takes no part in rank 0's send ...": who left in order, and what still needs it. */
static void format_closed(const hgroup *g, const char *who, const psd_request *r, char *out, size_t bytes)
{
    snprintf(out, bytes, "group %u: %s has closed it and takes no part in rank %d's %s", g->id, who, g->rank,
             r->label);
}

void host_group_peer_gone(peer *p)
{
    engine *e = p->engine;
    peer_drop_output(p);
    transfer_drained(e, NULL, p);
    for (list *node = e->groups.next; node != &e->groups; node = node->next) {
        hgroup *g = LIST_ENTRY(node, hgroup, node);
        for (int32_t i = 0; i < g->size; i++) {
            const member *m = &g->member[i];
            const xfer *x = m->peer == p ? transfer_with(g, p) : NULL;
            if (m->peer != p || (m->has_closed && x == NULL))
                continue;
            if (host_group_in_dispute(g)) { /* it cannot say its part any more: the disagreement stands */
                host_group_break_disputed(g);
                continue;
            }
            char text[PSD_MAX_TEXT];
            char who[32];
            snprintf(who, sizeof(who), "rank %d", i);
            if (m->has_closed)
                format_closed(g, who, x->request, text, sizeof(text));
            else
                snprintf(text, sizeof(text), "group %u: rank %d lost %s (world rank %u): %.900s", g->id,
                         g->rank, who, g->members[i], p->text);
            int32_t culprit = p->status == PSD_ERR_PEER_FAILED ? (int32_t)g->members[i] : -1;
            op_sides sides = {.count = 0};
            if (m->has_closed)
                sides_add_transfer(g, &sides, x);
            host_group_break_by(g, p->status, culprit, text, &sides);
        }
    }
}

static bool has_left(const hgroup *g, const peer *p)
{
    for (int32_t i = 0; i < g->size; i++) {
        if (g->member[i].peer == p)
            return g->member[i].has_closed;
    }
    return true;
}

void host_group_dispute(hgroup *g, peer *p, const frame *compare, const char *label, const char *text,
                        const op_sides *sides)
{
    frame f = *compare;
    if (has_left(g, p)) { /* it will not say its part */
        host_group_break_by(g, PSD_ERR_MISMATCH, -1, text, sides);
        return;
    }
    f.payload = (uint32_t)strlen(label);
    peer_send_control(p, &f, label);
    if (host_group_in_dispute(g))
        return;
    snprintf(g->dispute, sizeof(g->dispute), "%s", text);
    g->dispute_sides = *sides;
    g->dispute_deadline = psd_now_ns() + ANSWER_NS;
    engine_timer_at(g->engine, g->dispute_deadline);
}

void host_group_on_compare(peer *p, const frame *f, const char *text)
{
    hgroup *g = engine_group(p->engine, f->group);
    if (g == NULL || host_group_member(g, p, f) == NULL || g->status != PSD_OK)
        return;
    char label[FRAME_MAX_LABEL + 1];
    snprintf(label, sizeof(label), "%s", text);
    text_clean(label);
    if (f->channel == FRAME_P2P)
        p2p_on_compare(g, p, f, label);
    else
        coll_run_on_compare(g, p, f, label);
}

/* ------------------------------------------------------------------------------------------------ closing */

/* Every other member has closed the group: nobody is left to send but this rank itself, which will not come
 * to it if it waits. Alone in its group it has nobody else from the start. */
static bool all_others_have_closed(const hgroup *g)
{
    for (int32_t i = 0; i < g->size; i++) {
        if (i != g->rank && !g->member[i].has_closed)
            return false;
    }
    return g->size > 1;
}

void host_group_check_closed(hgroup *g, const xfer *x)
{
    bool is_waiting = x->state == XFER_POSTED || x->state == XFER_OFFERED;
    bool is_alone = x->rank < 0 ? all_others_have_closed(g) : g->member[x->rank].has_closed;
    if (!is_waiting || !is_alone)
        return;
    char text[PSD_MAX_TEXT];
    char who[32] = "every other rank";
    if (x->rank >= 0)
        snprintf(who, sizeof(who), "rank %d", x->rank);
    format_closed(g, who, x->request, text, sizeof(text));
    int32_t culprit = x->rank < 0 ? -1 : (int32_t)g->members[x->rank];
    op_sides sides = {.count = 0};
    sides_add_transfer(g, &sides, x);
    host_group_break_by(g, PSD_ERR_PEER_FAILED, culprit, text, &sides);
}

void host_group_on_closed(peer *p, const frame *f)
{
    hgroup *g = engine_group(p->engine, f->group);
    if (g == NULL) {
        drop_early_pings(p, f->group);
        return;
    }
    member *m = host_group_member(g, p, f);
    if (m == NULL)
        return;
    m->has_closed = true;
    if (host_group_in_dispute(g) && g->status == PSD_OK)
        host_group_break_disputed(g);
    for (list *node = g->requests.next; node != &g->requests; node = node->next) {
        psd_request *r = LIST_ENTRY(node, psd_request, in_group);
        for (list *at = r->xfers.next; at != &r->xfers; at = at->next)
            host_group_check_closed(g, LIST_ENTRY(at, xfer, in_request));
    }
}

psd_status host_group_member_state(const hgroup *g, int32_t rank)
{
    if (rank < 0 || rank >= g->size)
        return PSD_ERR_INVAL;
    const member *m = &g->member[rank];
    if (m->has_closed)
        return PSD_OK;
    return m->peer == NULL || m->peer->is_broken ? PSD_ERR_PEER_FAILED : PSD_INPROGRESS;
}

void host_group_close(hgroup *g)
{
    frame f = peer_frame(g, FRAME_CLOSED);
    for (int32_t i = 0; i < g->size; i++) {
        if (g->status == PSD_OK && g->member[i].peer != NULL)
            peer_send_control(g->member[i].peer, &f, NULL);
    }
    match_drop(g);
    group_free(g);
}
