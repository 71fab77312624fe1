/* Requests for groups: new, split, dup. A request waits until all who must ask have asked the same, then
 * becomes one group, or several for a split. A rank that asks twice for the same takes its first request
 * back. */
#include <stdlib.h>

#include "server/core/state.h"

static const char *how_name(psd_group_how how)
{
    return how == PSD_GROUP_NEW ? "group_new" : how == PSD_GROUP_SPLIT ? "group_split" : "group_dup";
}

void pending_free(void *object)
{
    pending *p = object;
    free(p->members);
    free(p->order);
    free(p->requests);
    free(p->colors);
    free(p->keys);
    free(p->reason);
    free(p);
}

/* Off its shelf; it stays among the past as long as somebody may have missed the answer. */
static void pending_remove(psd_core *core, pending *p, bool missable)
{
    shelf_remove(&p->job->pendings, p->id);
    p->changed = core->now;
    if (missable)
        past_add_pending(core, p);
    else
        bury(core, p, pending_free);
}

void pending_refuse(psd_core *core, pending *p, psd_status status, const char *text)
{
    psd_msg *msg = send_to(core, to_group(p->job, p->id), PSD_MSG_REFUSE);
    msg->u.refuse.status = status;
    (void)snprintf(msg->u.refuse.text, sizeof(msg->u.refuse.text), "%s", text);
    p->status = status;
    p->reason = core_strdup(core, text);
    pending_remove(core, p, true);
}

void pendings_refuse_parent(psd_core *core, job *j, uint32_t parent, psd_status status, const char *text)
{
    for (size_t i = j->pendings.count; i-- > 0;) {
        pending *p = j->pendings.items[i];
        if (p->how != PSD_GROUP_NEW && p->parent == parent)
            pending_refuse(core, p, status, text);
    }
}

void pendings_member_ended(psd_core *core, member *m, const char *text)
{
    shelf *pendings = &m->job->pendings;
    if (m->rank < 0)
        return;
    for (size_t i = pendings->count; i-- > 0;) {
        pending *p = pendings->items[i];
        if (ranks_find(p->members, p->order, p->count, (uint32_t)m->rank) >= 0)
            pending_refuse(core, p, PSD_ERR_PEER_FAILED, text);
    }
}

/* ------------------------------------------------------------------------------------ the same, once more */

/* Who is refused does not know the group's number: it will not close it. */
static void answer_group(psd_core *core, group *g, const member *m, const psd_msg *msg)
{
    if (g->state == GROUP_BROKEN) {
        mark_journal(core);
        refuse_peer(core, m->peer, msg, g->status, "%s", g->reason == NULL ? no_reason : g->reason);
        group_mark_closed(core, g, (uint32_t)group_rank_of(g, m));
    } else if (g->state == GROUP_OPENING) {
        psd_msg *answer = send_to_member(core, m, PSD_MSG_GROUP_OPENED);
        answer->request = msg->request;
        groups_fill_opened(g, &answer->u.group_opened);
    }
}

/* A request that came before, sent again after a resync: it counts once. */
static bool asked_before(psd_core *core, const member *m, const psd_msg *msg)
{
    const job *j = m->job;
    for (size_t i = j->pendings.count; i-- > 0;) {
        const pending *p = j->pendings.items[i];
        int64_t at = ranks_find(p->members, p->order, p->count, (uint32_t)m->rank);
        if (at >= 0 && p->requests[at] == msg->request)
            return true;
    }
    for (size_t i = j->groups.count; i-- > 0;) {
        group *g = j->groups.items[i];
        if (g->requests == NULL)
            continue;
        int64_t at = group_rank_of(g, m);
        if (at >= 0 && g->requests[at] == msg->request) {
            answer_group(core, g, m, msg);
            return true;
        }
    }
    return past_answers(core, m, msg);
}

/* ------------------------------------------------------------------------------------------- new requests */

static pending *pending_make(psd_core *core, const member *m, const psd_msg *msg, uint32_t count,
                             const uint32_t *members, uint32_t *order)
{
    job *j = m->job;
    const psd_msg_group_open *open = &msg->u.group_open;
    pending *p = NULL;
    if (j->pendings.count >= MAX_PENDING_PER_JOB || j->groups.count >= MAX_GROUPS_PER_JOB) {
        refuse_peer(
            core, m->peer, msg, PSD_ERR_LIMIT,
            "job %s has %zu open groups and %zu requests for groups, which is the limit: destroy some",
            j->name, j->groups.count, j->pendings.count);
        goto free_order;
    }
    p = core_calloc(core, 1, sizeof(*p));
    if (p == NULL)
        goto free_order;
    *p = (pending){.count = count, .job = j, .how = open->how, .parent = open->parent, .order = order};
    p->requests = core_calloc(core, count, sizeof(*p->requests));
    if (members != NULL)
        p->members = core_copy(core, members, count, sizeof(*members));
    if (open->how == PSD_GROUP_SPLIT) {
        p->colors = core_calloc(core, count, sizeof(*p->colors));
        p->keys = core_calloc(core, count, sizeof(*p->keys));
    }
    if (core->oom || !shelf_add(&j->pendings, p)) {
        core->oom = true;
        pending_free(p);
        return NULL;
    }
    p->id = j->next_pending++;
    return p;
free_order:
    free(order);
    return NULL;
}

/* Checks a list of members; *all tells that it is 0 .. count-1. False: refused. */
static bool list_valid(psd_core *core, const member *m, const psd_msg *msg, bool *all)
{
    const psd_msg_group_open *open = &msg->u.group_open;
    const job *j = m->job;
    bool mine = false;
    *all = true;
    if (open->count == 0 || open->count > j->world || open->members == NULL) {
        refuse_peer(core, m->peer, msg, PSD_ERR_INVAL,
                    "group_new of %u ranks in a world of %u is not possible", open->count, j->world);
        return false;
    }
    for (uint32_t i = 0; i < open->count; i++) {
        uint32_t rank = open->members[i];
        mine = mine || rank == (uint32_t)m->rank;
        *all = *all && rank == i;
        if (rank >= j->world) {
            refuse_peer(core, m->peer, msg, PSD_ERR_INVAL,
                        "group_new lists rank %u, but the world has ranks 0 to %u", rank, j->world - 1);
            return false;
        }
        if (members_at(j, rank) == NULL) {
            refuse_peer(core, m->peer, msg, PSD_ERR_PEER_FAILED,
                        "group_new lists rank %u, which has left or was lost: leave it out", rank);
            return false;
        }
    }
    if (!mine)
        refuse_peer(core, m->peer, msg, PSD_ERR_INVAL, "group_new by rank %d lists ranks without itself",
                    m->rank);
    return mine;
}

static bool same_list(const pending *p, const uint32_t *members, uint32_t count)
{
    if (p->how != PSD_GROUP_NEW || p->count != count || (p->members == NULL) != (members == NULL))
        return false;
    return members == NULL || memcmp(p->members, members, count * sizeof(*members)) == 0;
}

/* The members of a list without a rank twice. */
static bool same_set(const pending *p, const psd_msg_group_open *open)
{
    if (p->how != PSD_GROUP_NEW || p->count != open->count)
        return false;
    for (uint32_t i = 0; i < open->count; i++)
        if (ranks_find(p->members, p->order, p->count, open->members[i]) < 0)
            return false;
    return true;
}

/* Ranks that disagreed were answered at once; one that asks for the same ranks later, in any order, gets the
 * same answer instead of waiting for those that have had theirs. */
static bool disagreed_before(psd_core *core, const member *m, const psd_msg *msg)
{
    for (size_t i = 0; i < PAST_KEPT; i++) {
        pending *p = m->job->past_pendings.items[i];
        if (p == NULL || !p->disagreed || !same_set(p, &msg->u.group_open))
            continue;
        int64_t at = ranks_find(p->members, p->order, p->count, (uint32_t)m->rank);
        if (at < 0 || p->requests[at] != 0)
            continue;
        mark_journal(core);
        p->requests[at] = msg->request;
        p->disagreed = ++p->asked < p->count;
        refuse_peer(core, m->peer, msg, p->status, "%s", p->reason == NULL ? no_reason : p->reason);
        return true;
    }
    return false;
}

/* The same ranks in another order would be another group, for which nobody else asks. */
static void refuse_order(psd_core *core, const member *m, const psd_msg *msg, pending *p, int64_t at)
{
    const psd_msg_group_open *open = &msg->u.group_open;
    char mine[128], theirs[128], text[PSD_MAX_TEXT];
    uint32_t first = 0;
    while (p->requests[first] == 0)
        first++;
    ranks_text(open->members, open->count, mine, sizeof(mine));
    ranks_text(p->members, p->count, theirs, sizeof(theirs));
    (void)snprintf(text, sizeof(text),
                   "rank %d asks for a group of ranks %s, but rank %u asked for one of ranks %s: list the "
                   "ranks in one order on all of them",
                   m->rank, mine, ranks_at(p->members, first), theirs);
    mark_journal(core);
    p->requests[at] = msg->request; /* answered with the others */
    p->disagreed = ++p->asked < p->count;
    pending_refuse(core, p, PSD_ERR_MISMATCH, text);
}

/* The request that this list joins; NULL when it is the first, or was refused. */
static pending *find_listed(psd_core *core, const member *m, const psd_msg *msg, const uint32_t *members,
                            bool *refused)
{
    const psd_msg_group_open *open = &msg->u.group_open;
    const shelf *pendings = &m->job->pendings;
    for (size_t i = 0; i < pendings->count; i++)
        if (same_list(pendings->items[i], members, open->count))
            return pendings->items[i];
    for (size_t i = 0; i < pendings->count; i++) {
        pending *p = pendings->items[i];
        int64_t at = ranks_find(p->members, p->order, p->count, (uint32_t)m->rank);
        if (at < 0 || p->requests[at] != 0 || !same_set(p, open))
            continue;
        refuse_order(core, m, msg, p, at);
        *refused = true;
        return NULL;
    }
    return NULL;
}

static pending *find_new(psd_core *core, const member *m, const psd_msg *msg)
{
    const psd_msg_group_open *open = &msg->u.group_open;
    bool all;
    if (!list_valid(core, m, msg, &all))
        return NULL;
    const uint32_t *members = all ? NULL : open->members;
    uint32_t *order = NULL;
    int64_t twice = -1;
    if (!ranks_order(core, members, open->count, &order, &twice)) {
        if (twice >= 0)
            refuse_peer(core, m->peer, msg, PSD_ERR_INVAL, "group_new lists rank %lld twice",
                        (long long)twice);
        return NULL;
    }
    bool refused = disagreed_before(core, m, msg);
    pending *p = refused ? NULL : find_listed(core, m, msg, members, &refused);
    if (p != NULL || refused) {
        free(order);
        return p;
    }
    return pending_make(core, m, msg, open->count, members, order);
}

/* The parent of a split or dup, if it can be used; else refused. */
static group *find_parent(psd_core *core, const member *m, const psd_msg *msg)
{
    const psd_msg_group_open *open = &msg->u.group_open;
    const char *verb = how_name(open->how);
    group *g = shelf_find(&m->job->groups, open->parent);
    if (g == NULL || group_rank_of(g, m) < 0)
        refuse_peer(core, m->peer, msg, PSD_ERR_STALE, "%s by rank %d: it is in no open group %u", verb,
                    m->rank, open->parent);
    else if (g->state == GROUP_BROKEN)
        refuse_peer(core, m->peer, msg, g->status, "%s by rank %d: group %u was aborted: %s", verb, m->rank,
                    g->id, g->reason == NULL ? no_reason : g->reason);
    else if (g->state != GROUP_LIVE)
        refuse_peer(core, m->peer, msg, PSD_ERR_INVAL, "%s by rank %d: group %u is still being opened", verb,
                    m->rank, g->id);
    else if (g->closed_count > 0)
        refuse_peer(core, m->peer, msg, PSD_ERR_STALE,
                    "%s by rank %d: %u of the %u ranks of group %u have closed it or left", verb, m->rank,
                    g->closed_count, g->count, g->id);
    else if (open->how == PSD_GROUP_SPLIT && open->color < -1)
        refuse_peer(core, m->peer, msg, PSD_ERR_INVAL,
                    "group_split by rank %d with color %d: 0 or above, or -1 for none", m->rank, open->color);
    else
        return g;
    return NULL;
}

/* One rank splits what another duplicates: neither request can ever be complete, and the parent is broken as
 * by any disagreement, so that those yet to ask do not wait. */
static void refuse_mixed(psd_core *core, const member *m, const psd_msg *msg, const pending *p, group *parent)
{
    uint32_t first = 0;
    while (p->requests[first] == 0)
        first++;
    char text[256];
    (void)snprintf(text, sizeof(text), "rank %d asks for %s of group %u, but rank %u asked for %s of it",
                   m->rank, how_name(msg->u.group_open.how), p->parent, ranks_at(p->members, first),
                   how_name(p->how));
    refuse_peer(core, m->peer, msg, PSD_ERR_MISMATCH, "%s", text);
    groups_abort(core, parent, PSD_ERR_MISMATCH, -1, text);
}

static pending *find_child(psd_core *core, const member *m, const psd_msg *msg)
{
    group *parent = find_parent(core, m, msg);
    if (parent == NULL)
        return NULL;
    for (size_t i = 0; i < m->job->pendings.count; i++) {
        pending *p = m->job->pendings.items[i];
        if (p->how == PSD_GROUP_NEW || p->parent != parent->id)
            continue;
        if (p->how == msg->u.group_open.how)
            return p;
        mark_journal(core);
        refuse_mixed(core, m, msg, p, parent);
        return NULL;
    }
    uint32_t *order = NULL;
    if (parent->order != NULL) {
        order = core_copy(core, parent->order, parent->count, sizeof(*order));
        if (order == NULL)
            return NULL;
    }
    return pending_make(core, m, msg, parent->count, parent->members, order);
}

/* ----------------------------------------------------------------------------------------------- complete */

typedef struct part {
    int32_t color;
    int32_t key;
    uint32_t at; /* rank in the parent */
} part;

static int by_color_key_rank(const void *a, const void *b)
{
    const part *x = a;
    const part *y = b;
    if (x->color != y->color)
        return x->color < y->color ? -1 : 1;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

/* Makes the group of one color from its parts, in their order. */
static void split_group(psd_core *core, const pending *p, const part *parts, uint32_t count)
{
    bool all = true;
    int64_t twice;
    uint32_t *order = NULL;
    uint32_t *members = core_calloc(core, count, sizeof(*members));
    uint64_t *requests = core_calloc(core, count, sizeof(*requests));
    if (members == NULL || requests == NULL)
        goto free_arrays;
    for (uint32_t i = 0; i < count; i++) {
        members[i] = ranks_at(p->members, parts[i].at);
        requests[i] = p->requests[parts[i].at];
        all = all && members[i] == i;
    }
    if (all) {
        free(members);
        members = NULL;
    }
    if (!ranks_order(core, members, count, &order, &twice))
        goto free_arrays;
    groups_create(core, p->job, count, members, order, requests);
    return;
free_arrays:
    free(members);
    free(requests);
}

static uint32_t colors_in(const part *parts, uint32_t count)
{
    uint32_t colors = 0;
    for (uint32_t i = 0; i < count; i++)
        colors += parts[i].color >= 0 && (i == 0 || parts[i].color != parts[i - 1].color);
    return colors;
}

static void complete_split(psd_core *core, pending *p)
{
    part *parts = core_calloc(core, p->count, sizeof(*parts));
    if (parts == NULL)
        return;
    for (uint32_t i = 0; i < p->count; i++)
        parts[i] = (part){p->colors[i], p->keys[i], i};
    qsort(parts, p->count, sizeof(*parts), by_color_key_rank);
    if (p->job->groups.count + colors_in(parts, p->count) > MAX_GROUPS_PER_JOB) {
        pending_refuse(core, p, PSD_ERR_LIMIT, "group_split would make more groups than a job may have");
        free(parts);
        return;
    }
    uint32_t from = 0;
    while (from < p->count) {
        uint32_t to = from;
        while (to < p->count && parts[to].color == parts[from].color)
            to++;
        if (parts[from].color >= 0)
            split_group(core, p, parts + from, to - from);
        else /* group 0: took part, has none */
            (void)send_to(core, to_group(p->job, p->id), PSD_MSG_GROUP_OPENED);
        from = to;
    }
    free(parts);
    pending_remove(core, p, true);
}

static void complete(psd_core *core, pending *p)
{
    if (p->how == PSD_GROUP_SPLIT) {
        complete_split(core, p);
        return;
    }
    groups_create(core, p->job, p->count, p->members, p->order, p->requests);
    p->members = NULL;
    p->order = NULL;
    p->requests = NULL;
    pending_remove(core, p, false);
}

/* The same rank asks for the same group with another request: whoever waits for the first one has given up,
 * or races with it. The newer counts. */
static void replace_request(psd_core *core, const member *m, const psd_msg *msg, uint64_t before)
{
    psd_msg older = *msg;
    older.request = before;
    refuse_peer(
        core, m->peer, &older, PSD_ERR_EXISTS,
        "rank %d asked for the same group again before this request was complete; the later request counts",
        m->rank);
}

void groups_open(psd_core *core, member *m, const psd_msg *msg)
{
    const psd_msg_group_open *open = &msg->u.group_open;
    pending *p = NULL;
    if (msg->request == 0 || asked_before(core, m, msg))
        return;
    if (open->how == PSD_GROUP_NEW)
        p = find_new(core, m, msg);
    else if (open->how == PSD_GROUP_SPLIT || open->how == PSD_GROUP_DUP)
        p = find_child(core, m, msg);
    else
        refuse_peer(core, m->peer, msg, PSD_ERR_INVAL, "a group cannot be opened in way %d", (int)open->how);
    if (p == NULL)
        return;
    int64_t at = ranks_find(p->members, p->order, p->count, (uint32_t)m->rank);
    if (at < 0)
        return;
    mark_journal(core);
    if (p->requests[at] != 0)
        replace_request(core, m, msg, p->requests[at]);
    else
        p->asked++;
    p->requests[at] = msg->request;
    if (p->how == PSD_GROUP_SPLIT) {
        p->colors[at] = open->color;
        p->keys[at] = open->key;
    }
    if (p->asked == p->count)
        complete(core, p);
}
