/* Groups: token, ready, go, close, failure. How they are asked for is in group_open.c.
 *
 * ASKING: group rank 0 makes the backend's token. OPENING: all have the token and the addresses and warm up
 * their links. LIVE: GO was said. BROKEN: aborted; the first reason stays. A group is gone when every member
 * has closed it, has left or was lost. */
#include <stdlib.h>

#include "server/core/state.h"

void group_free(void *object)
{
    group *g = object;
    free(g->members);
    free(g->order);
    free(g->requests);
    free(g->ready);
    free(g->closed);
    free(g->reason);
    free(g->sides);
    free(g);
}

/* The member's rank in the group, or -1: also once it has closed it, and for another life at its world rank.
 */
int64_t group_rank_of(const group *g, const member *m)
{
    if (m->rank < 0)
        return -1;
    int64_t at = ranks_find(g->members, g->order, g->count, (uint32_t)m->rank);
    return at >= 0 && !bit_get(g->closed, (uint32_t)at) ? at : -1;
}

static void group_remove(psd_core *core, group *g)
{
    shelf_remove(&g->job->groups, g->id);
    if (g->state == GROUP_BROKEN && g->requests != NULL)
        past_add_group(core, g);
    else
        bury(core, g, group_free);
}

void groups_fill_opened(const group *g, psd_msg_group_opened *out)
{
    out->group = g->id;
    out->epoch = g->epoch;
    out->count = g->count;
    out->members = g->members;
    out->token_bytes = g->token_bytes;
    memcpy(out->token, g->token, g->token_bytes);
}

bool groups_fill_addresses(psd_core *core, const job *j, psd_msg_group_opened *opened)
{
    if (opened->count > core->address_capacity) {
        const char **addresses = realloc(core->addresses, opened->count * sizeof(*addresses));
        if (addresses == NULL) {
            core->oom = true;
            return false;
        }
        core->addresses = addresses;
        core->address_capacity = opened->count;
    }
    for (uint32_t i = 0; i < opened->count; i++) {
        const member *m = members_at(j, ranks_at(opened->members, i));
        core->addresses[i] = m == NULL ? "" : m->address;
    }
    opened->addresses = core->addresses;
    return true;
}

/* Every member must be told the address of every other. */
static bool opened_fits(psd_core *core, group *g)
{
    psd_msg_group_opened opened = {0};
    groups_fill_opened(g, &opened);
    if (!groups_fill_addresses(core, g->job, &opened))
        return false;
    uint64_t bytes = psd_group_opened_bound(&opened);
    if (bytes <= PSD_MAX_FRAME)
        return true;
    char text[256];
    (void)snprintf(text, sizeof(text),
                   "a group of %u ranks is not possible here: the addresses of its members take some %llu "
                   "bytes, a message holds %d: use fewer ranks, or shorter addresses",
                   g->count, (unsigned long long)bytes, PSD_MAX_FRAME);
    groups_abort(core, g, PSD_ERR_LIMIT, -1, text);
    return false;
}

void groups_create(psd_core *core, job *j, uint32_t count, uint32_t *members, uint32_t *order,
                   uint64_t *requests)
{
    size_t words = bits_words(count);
    group *g = core_calloc(core, 1, sizeof(*g));
    if (g == NULL) {
        free(members);
        free(order);
        free(requests);
        return;
    }
    *g = (group){.count = count, .job = j, .members = members, .order = order, .requests = requests};
    g->ready = core_calloc(core, words, sizeof(uint64_t));
    g->closed = core_calloc(core, words, sizeof(uint64_t));
    if (g->ready == NULL || g->closed == NULL || !shelf_add(&j->groups, g)) {
        core->oom = true;
        group_free(g);
        return;
    }
    g->id = j->next_group++;
    g->state = GROUP_ASKING;
    g->epoch = j->epoch;
    g->changed = core->now;
    g->culprit = -1;
    g->failed_at = -1;
    const member *root = members_at(j, ranks_at(members, 0));
    if (opened_fits(core, g) && root != NULL)
        send_to_member(core, root, PSD_MSG_GROUP_ASK_TOKEN)->u.group_token.group = g->id;
}

/* Finds the group of a worker's message, and its rank there; answers and returns NULL when there is none. */
static group *group_of(psd_core *core, const member *m, const psd_msg *msg, uint32_t id, uint32_t *at)
{
    group *g = shelf_find(&m->job->groups, id);
    int64_t found = g == NULL ? -1 : group_rank_of(g, m);
    if (found < 0) {
        core->dropped++;
        refuse_peer(core, m->peer, msg, PSD_ERR_STALE, "rank %d is in no open group %u", m->rank, id);
        return NULL;
    }
    *at = (uint32_t)found;
    return g;
}

void groups_token(psd_core *core, member *m, const psd_msg *msg)
{
    const psd_msg_group_token *token = &msg->u.group_token;
    uint32_t at;
    group *g = group_of(core, m, msg, token->group, &at);
    if (g == NULL || at != 0 || g->state != GROUP_ASKING || token->bytes > PSD_MAX_TOKEN)
        return;
    mark_journal(core);
    g->token_bytes = token->bytes;
    memcpy(g->token, token->token, token->bytes);
    g->state = GROUP_OPENING;
    g->changed = core->now;
    groups_fill_opened(g, &send_to(core, to_group(g->job, g->id), PSD_MSG_GROUP_OPENED)->u.group_opened);
}

static void fill_go(const group *g, psd_msg_group *out)
{
    out->group = g->id;
    out->warmup_ns = g->warmup_ns;
}

static void fill_abort(const group *g, psd_msg_abort *out)
{
    out->group = g->id;
    out->epoch = g->job->epoch;
    out->status = g->status;
    out->culprit = g->culprit;
    (void)snprintf(out->text, sizeof(out->text), "%s", g->reason == NULL ? no_reason : g->reason);
}

static void group_go(psd_core *core, group *g)
{
    g->state = GROUP_LIVE;
    g->changed = core->now;
    free(g->ready);
    free(g->requests);
    g->ready = NULL;
    g->requests = NULL;
    incidents_group_live(g);
    fill_go(g, &send_to(core, to_group(g->job, g->id), PSD_MSG_GROUP_GO)->u.group);
}

void groups_ready(psd_core *core, member *m, const psd_msg *msg)
{
    uint32_t at;
    group *g = group_of(core, m, msg, msg->u.group.group, &at);
    if (g == NULL || g->state != GROUP_OPENING || !bit_set(g->ready, at))
        return;
    mark_journal(core);
    if (msg->u.group.warmup_ns > g->warmup_ns)
        g->warmup_ns = msg->u.group.warmup_ns;
    if (++g->ready_count == g->count)
        group_go(core, g);
}

/* Those who asked for the group and do not know its number yet are answered with REFUSE; all others get
 * ABORT. */
void groups_abort(psd_core *core, group *g, psd_status status, int32_t culprit, const char *text)
{
    if (g->state == GROUP_BROKEN)
        return;
    bool unknown = g->state == GROUP_ASKING && g->requests != NULL;
    g->state = GROUP_BROKEN;
    g->changed = core->now;
    g->status = status;
    g->culprit = culprit;
    g->reason = core_strdup(core, text);
    if (unknown) {
        psd_msg *msg = send_to(core, to_group(g->job, g->id), PSD_MSG_REFUSE);
        msg->u.refuse.status = status;
        (void)snprintf(msg->u.refuse.text, sizeof(msg->u.refuse.text), "%s", text);
        group_remove(core, g);
        return;
    }
    fill_abort(g, &send_to(core, to_group(g->job, g->id), PSD_MSG_ABORT)->u.abort);
    note_add(core, g->job, culprit, PSD_NOTE_WARN, "group %u aborted: %s", g->id, text);
    pendings_refuse_parent(core, g->job, g->id, status, text);
    plans_group_broken(core, g);
}

void groups_fail(psd_core *core, member *m, const psd_msg *msg)
{
    const psd_msg_abort *fail = &msg->u.abort;
    uint32_t at;
    group *g = group_of(core, m, msg, fail->group, &at);
    if (g != NULL && g->state == GROUP_BROKEN)
        incidents_group_told(core, g, m, fail);
    if (g == NULL || g->state == GROUP_BROKEN)
        return;
    mark_journal(core);
    bool known = fail->culprit >= 0 && (uint32_t)fail->culprit < m->job->world;
    char text[PSD_MAX_TEXT];
    if (fail->text[0] == 0)
        (void)snprintf(text, sizeof(text), "rank %d (worker %s) aborted the group and gave no reason",
                       m->rank, m->name);
    else
        (void)snprintf(text, sizeof(text), "%s", fail->text);
    groups_abort(core, g, fail->status < 0 ? fail->status : PSD_ERR_ABORTED, known ? fail->culprit : -1,
                 text);
    if (shelf_find(&m->job->groups, fail->group) == g)
        incidents_group_failed(core, g, m, fail);
}

void group_mark_closed(psd_core *core, group *g, uint32_t at)
{
    if (bit_set(g->closed, at) && ++g->closed_count == g->count)
        group_remove(core, g);
}

void groups_close(psd_core *core, member *m, const psd_msg *msg)
{
    uint32_t at;
    group *g = group_of(core, m, msg, msg->u.group.group, &at);
    if (g == NULL)
        return;
    mark_journal(core);
    if (g->state != GROUP_LIVE && g->state != GROUP_BROKEN) {
        char text[160];
        (void)snprintf(text, sizeof(text), "rank %d (worker %s) closed group %u while it was being opened",
                       m->rank, m->name, g->id);
        groups_abort(core, g, PSD_ERR_ABORTED, m->rank, text);
        if (shelf_find(&m->job->groups, msg->u.group.group) == NULL)
            return;
    }
    incidents_member_closed(core, g, at);
    group_mark_closed(core, g, at);
}

/* A loss breaks every group of the member; a leave only those that can no longer be opened. */
void groups_member_ended(psd_core *core, member *m, bool failed, const char *text)
{
    shelf *groups = &m->job->groups;
    for (size_t i = groups->count; i-- > 0;) {
        group *g = groups->items[i];
        uint32_t id = g->id;
        int64_t at = group_rank_of(g, m);
        if (at < 0)
            continue;
        if (failed || g->state == GROUP_ASKING || g->state == GROUP_OPENING)
            groups_abort(core, g, PSD_ERR_PEER_FAILED, m->rank, text);
        if (shelf_find(groups, id) == NULL)
            continue;
        if (!failed)
            incidents_member_closed(core, g, (uint32_t)at);
        group_mark_closed(core, g, (uint32_t)at);
    }
}

static void resume_group(psd_core *core, const group *g, const member *m, uint32_t at)
{
    switch (g->state) {
    case GROUP_ASKING:
        if (at == 0)
            send_to_member(core, m, PSD_MSG_GROUP_ASK_TOKEN)->u.group_token.group = g->id;
        break;
    case GROUP_OPENING:
        if (!bit_get(g->ready, at) && g->requests == NULL) /* who asked asks again */
            groups_fill_opened(g, &send_to_member(core, m, PSD_MSG_GROUP_OPENED)->u.group_opened);
        break;
    case GROUP_LIVE:
        fill_go(g, &send_to_member(core, m, PSD_MSG_GROUP_GO)->u.group);
        break;
    case GROUP_BROKEN:
        fill_abort(g, &send_to_member(core, m, PSD_MSG_ABORT)->u.abort);
        break;
    }
}

/* What changed since the member's last message may have gone to its dead connection. What it asked for it
 * asks again by itself. */
void groups_resume(psd_core *core, member *m)
{
    const shelf *groups = &m->job->groups;
    psd_time_ns since = member_missed_since(core, m);
    for (size_t i = 0; i < groups->count; i++) {
        const group *g = groups->items[i];
        int64_t at = group_rank_of(g, m);
        bool settled = g->state == GROUP_LIVE || g->state == GROUP_BROKEN;
        if (at >= 0 && (!settled || g->changed >= since))
            resume_group(core, g, m, (uint32_t)at);
    }
}
