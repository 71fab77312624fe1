/* From the snapshots of a round to the input of the wait-for graph. What the workers told is not believed: a group that
 * psd does not know, or a rank that is not in it, makes an operation one that goes on by itself, so that nobody is
 * called stuck for it. */
#include "server/core/cut.h"

#include <stdlib.h>

/* ----------------------------------------------------------------------------------------------- copying */

static size_t padded(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

static void *place(char **at, const void *from, size_t count, size_t bytes)
{
    void *to = *at;
    if (count > 0)
        memcpy(to, from, count * bytes);
    *at += padded(count * bytes);
    return to;
}

psd_msg_snapshot *snap_copy(const psd_msg_snapshot *from)
{
    size_t bytes = padded(sizeof *from) + padded(from->thread_count * sizeof *from->threads) +
                   padded(from->op_count * sizeof *from->ops) + padded(from->group_count * sizeof(uint32_t)) +
                   padded(from->group_count * sizeof(uint64_t)) +
                   padded(from->peer_count * sizeof(uint32_t)) +
                   2 * padded(from->peer_count * sizeof(uint64_t));
    for (uint32_t i = 0; i < from->thread_count; i++)
        bytes += padded(from->threads[i].work_count * sizeof(uint32_t));
    char *at = malloc(bytes);
    if (at == NULL)
        return NULL;
    psd_msg_snapshot *to = place(&at, from, 1, sizeof *from);
    psd_snap_thread *threads = place(&at, from->threads, from->thread_count, sizeof *threads);
    for (uint32_t i = 0; i < from->thread_count; i++)
        threads[i].works = place(&at, threads[i].works, threads[i].work_count, sizeof(uint32_t));
    to->threads = threads;
    to->ops = place(&at, from->ops, from->op_count, sizeof *from->ops);
    to->groups = place(&at, from->groups, from->group_count, sizeof(uint32_t));
    to->started = place(&at, from->started, from->group_count, sizeof(uint64_t));
    to->peers = place(&at, from->peers, from->peer_count, sizeof(uint32_t));
    to->sent = place(&at, from->sent, from->peer_count, sizeof(uint64_t));
    to->received = place(&at, from->received, from->peer_count, sizeof(uint64_t));
    return to;
}

void cut_free(cut *c)
{
    if (c == NULL)
        return;
    waits_result_free(&c->result);
    for (uint32_t i = 0; i < c->snap_count; i++)
        free(c->snaps[i]);
    free(c->ranks);
    free(c->threads);
    free(c->units);
    free(c->ops);
    free(c->works);
    free(c->groups);
    free(c->started);
    free(c->members);
    free(c->pairs);
    free(c->snaps);
    free(c);
}

/* ------------------------------------------------------------------------------------------------- making */

typedef struct sizes {
    size_t threads, units, ops, works, groups, members, pairs, snaps;
} sizes;

static void count_snap(const psd_msg_snapshot *snap, sizes *s)
{
    s->snaps++;
    s->threads += snap->thread_count;
    s->units += snap->unit_count;
    s->ops += snap->op_count;
    s->pairs += snap->peer_count;
    for (uint32_t i = 0; i < snap->thread_count; i++)
        s->works += snap->threads[i].work_count;
}

static cut *cut_new(const job *j, const sizes *s)
{
    cut *c = calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    c->ranks = calloc((size_t)j->world + 1, sizeof *c->ranks);
    c->threads = calloc(s->threads + 1, sizeof *c->threads);
    c->units = calloc(s->units + 1, sizeof *c->units);
    c->ops = calloc(s->ops + 1, sizeof *c->ops);
    c->works = calloc(s->works + 1, sizeof *c->works);
    c->groups = calloc(s->groups + 1, sizeof *c->groups);
    c->started = calloc(s->members + 1, sizeof *c->started);
    c->members = calloc(s->members + 1, sizeof *c->members);
    c->pairs = calloc(s->pairs + 1, sizeof *c->pairs);
    c->snaps = calloc(s->snaps + 1, sizeof(psd_msg_snapshot *));
    if (c->ranks == NULL || c->threads == NULL || c->units == NULL || c->ops == NULL || c->works == NULL ||
        c->groups == NULL || c->started == NULL || c->members == NULL || c->pairs == NULL ||
        c->snaps == NULL) {
        cut_free(c);
        return NULL;
    }
    c->in = (waits_input){.rank_count = j->world,
                          .ranks = c->ranks,
                          .threads = c->threads,
                          .works = c->works,
                          .units = c->units,
                          .ops = c->ops,
                          .groups = c->groups,
                          .pairs = c->pairs};
    return c;
}

/* The index of a group in the cut; that of the last, which has no members, if it is not there. */
static uint32_t group_at(const cut *c, uint32_t id)
{
    uint32_t low = 0, high = c->in.group_count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (c->groups[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < c->in.group_count - 1 && c->groups[low].id == id ? low : c->in.group_count - 1;
}

/* The request for a group that a rank waits for; NULL: none, or several, and nothing tells which. */
static pending *pending_of(const job *j, uint32_t rank)
{
    pending *found = NULL;
    for (size_t i = 0; i < j->pendings.count; i++) {
        pending *p = j->pendings.items[i];
        int64_t at = ranks_find(p->members, p->order, p->count, rank);
        if (at < 0 || p->requests[at] == 0)
            continue;
        if (found != NULL)
            return NULL;
        found = p;
    }
    return found;
}

/* A request is a group whose one collective those have started who have asked. */
static void take_pendings(const job *j, cut *c, uint32_t *members, uint64_t *started)
{
    for (size_t i = 0; i < j->pendings.count; i++) {
        const pending *p = j->pendings.items[i];
        if (!p->is_in_cut)
            continue;
        waits_group *to = &c->groups[c->in.group_count++];
        *to = (waits_group){.id = p->id, .size = p->count, .members = members, .started = started};
        for (uint32_t m = 0; m < p->count; m++) {
            members[m] = ranks_at(p->members, m);
            started[m] = p->requests[m] != 0;
        }
        members += p->count;
        started += p->count;
    }
}

/* The groups of the operations, in the order of their ids. The members are copied, for the cut outlives the groups. */
static void take_groups(const job *j, cut *c)
{
    uint32_t *members = c->members;
    uint64_t *started = c->started;
    for (size_t i = 0; i < j->groups.count; i++) {
        const group *g = j->groups.items[i];
        if (!g->is_in_cut)
            continue;
        waits_group *to = &c->groups[c->in.group_count++];
        *to = (waits_group){.id = g->id, .size = g->count, .members = members, .started = started};
        for (uint32_t m = 0; m < g->count; m++)
            members[m] = ranks_at(g->members, m);
        members += g->count;
        started += g->count;
    }
    take_pendings(j, c, members, started);
    c->groups[c->in.group_count++] = (waits_group){.id = 0};
}

static void take_started(const job *j, cut *c, uint32_t rank, const psd_msg_snapshot *snap)
{
    for (uint32_t i = 0; i < snap->group_count; i++) {
        const group *g = shelf_find(&j->groups, snap->groups[i]);
        int64_t at = g == NULL ? -1 : ranks_find(g->members, g->order, g->count, rank);
        if (at >= 0 && g->is_in_cut)
            c->started[(size_t)(c->groups[group_at(c, g->id)].started - c->started) + (size_t)at] =
                snap->started[i];
    }
}

static bool is_opening(uint8_t kind)
{
    return kind >= PSD_OP_GROUP_NEW && kind <= PSD_OP_GROUP_DUP;
}

static void take_op(const job *j, cut *c, uint32_t rank, const psd_snap_op *from, uint32_t first_unit)
{
    waits_op *to = &c->ops[c->in.op_count++];
    bool is_p2p = from->kind == PSD_OP_SEND || from->kind == PSD_OP_RECV;
    const pending *p = is_opening(from->kind) ? pending_of(j, rank) : NULL;
    const waits_group *g = &c->groups[group_at(c, !is_opening(from->kind) ? from->group
                                                  : p != NULL             ? p->id
                                                                          : 0)];
    *to = (waits_op){.unit = first_unit + from->unit,
                     .group = (uint32_t)(g - c->groups),
                     .is_matched = from->is_matched,
                     .kind = from->kind,
                     .dtype = from->dtype,
                     .redop = from->redop,
                     .root = from->root,
                     .tag = from->tag,
                     .ordinal = from->ordinal,
                     .count = from->count,
                     .other_tag = from->other_tag,
                     .line = from->line,
                     .file = from->file,
                     .name = from->name};
    bool is_any = from->kind == PSD_OP_RECV && from->peer < 0 && !from->is_matched;
    if (is_p2p && from->peer >= 0 && (uint32_t)from->peer < g->size)
        to->peer = (int32_t)g->members[from->peer];
    else if (is_p2p && is_any && g->size > 0)
        to->peer = WAITS_ANY;
    else
        to->is_complete = is_p2p || g->size == 0; /* makes no sense: nobody is stuck in it */
}

static void take_units(const job *j, cut *c, uint32_t rank, const psd_msg_snapshot *snap)
{
    uint32_t first = c->in.unit_count;
    for (uint32_t i = 0; i < snap->op_count; i++) {
        uint32_t unit = first + snap->ops[i].unit;
        if (unit == c->in.unit_count)
            c->units[c->in.unit_count++] =
                (waits_unit){.rank = rank, .first_op = c->in.op_count, .after = WAITS_NONE};
        c->units[unit].op_count++;
        take_op(j, c, rank, &snap->ops[i], first);
    }
}

static void take_threads(cut *c, uint32_t rank, const psd_msg_snapshot *snap)
{
    uint32_t first_unit = c->in.unit_count; /* before its units are taken */
    for (uint32_t i = 0; i < snap->thread_count; i++) {
        const psd_snap_thread *from = &snap->threads[i];
        waits_thread *to = &c->threads[c->in.thread_count++];
        *to = (waits_thread){.rank = rank,
                             .id = from->id,
                             .wait_seq = from->wait_seq,
                             .waiting_ns = from->waiting_ns,
                             .is_blocked = from->is_blocked,
                             .any = from->any,
                             .is_partial = from->is_partial,
                             .first_work = c->in.work_count,
                             .work_count = from->work_count};
        for (uint32_t w = 0; w < from->work_count; w++)
            c->works[c->in.work_count++] = first_unit + from->works[w];
    }
}

static void take_member(const job *j, cut *c, member *m)
{
    uint32_t rank = (uint32_t)m->rank;
    waits_rank *to = &c->ranks[rank];
    psd_msg_snapshot *snap = m->snap;
    to->first_thread = c->in.thread_count;
    to->incarnation = m->incarnation;
    if (m->state == MEMBER_LEFT)
        to->life = WAITS_LEFT;
    else if (m->state == MEMBER_LOST)
        to->life = WAITS_DEAD;
    if (!member_is_live(m) || snap == NULL)
        return;
    m->snap = NULL;
    c->snaps[c->snap_count++] = snap;
    c->report_only = c->report_only || snap->report_only;
    to->life = WAITS_LIVE;
    to->moved = snap->moved;
    to->thread_count = snap->thread_count;
    take_started(j, c, rank, snap);
    take_threads(c, rank, snap);
    take_units(j, c, rank, snap);
    for (uint32_t i = 0; i < snap->peer_count; i++)
        if (snap->peers[i] < j->world)
            c->pairs[c->in.pair_count++] =
                (waits_pair){rank, snap->peers[i], snap->sent[i], snap->received[i]};
}

/* What is aborted ends, and holds nobody. A group that broke because a rank was lost still shows whom that left waiting. */
static bool is_aborted(const group *g)
{
    return g->state == GROUP_BROKEN && g->status != PSD_ERR_PEER_FAILED;
}

static void mark_groups(const job *j, uint32_t rank, const psd_msg_snapshot *snap)
{
    for (uint32_t i = 0; i < snap->op_count; i++) {
        if (is_opening(snap->ops[i].kind)) {
            pending *p = pending_of(j, rank);
            if (p != NULL)
                p->is_in_cut = true;
            continue;
        }
        group *g = shelf_find(&j->groups, snap->ops[i].group);
        if (g != NULL && !is_aborted(g))
            g->is_in_cut = true;
    }
}

static bool count_all(const job *j, sizes *s)
{
    for (size_t i = 0; i < j->groups.count; i++)
        ((group *)j->groups.items[i])->is_in_cut = false;
    for (size_t i = 0; i < j->pendings.count; i++)
        ((pending *)j->pendings.items[i])->is_in_cut = false;
    for (uint32_t r = 0; r < j->world; r++)
        if (j->ranks[r] != NULL && j->ranks[r]->snap != NULL) {
            count_snap(j->ranks[r]->snap, s);
            mark_groups(j, r, j->ranks[r]->snap);
        }
    for (size_t i = 0; i < j->groups.count; i++) {
        const group *g = j->groups.items[i];
        s->groups += g->is_in_cut;
        s->members += g->is_in_cut ? g->count : 0;
    }
    for (size_t i = 0; i < j->pendings.count; i++) {
        const pending *p = j->pendings.items[i];
        s->groups += p->is_in_cut;
        s->members += p->is_in_cut ? p->count : 0;
    }
    return s->threads < INT32_MAX && s->ops < INT32_MAX && s->works < INT32_MAX && s->pairs < INT32_MAX;
}

/* Ranks that ask for groups of each other, and for different ones, disagree on the members. */
static void name_members(cut *c)
{
    for (uint32_t i = 0; i < c->result.finding_count; i++) {
        waits_finding *f = &c->result.findings[i];
        bool all = f->class == WAITS_DEADLOCK && f->step_count > 1;
        for (uint32_t k = 0; k < f->step_count && all; k++)
            all = c->ops[c->result.steps[f->first_step + k].op].kind == PSD_OP_GROUP_NEW;
        if (!all)
            continue;
        f->class = WAITS_MISMATCH;
        f->field = "members";
        f->count = f->step_count;
    }
}

cut *cut_take(psd_core *core, job *j)
{
    sizes s = {0};
    if (!count_all(j, &s))
        return NULL;
    cut *c = cut_new(j, &s);
    if (c == NULL) {
        core->oom = true;
        return NULL;
    }
    take_groups(j, c);
    for (uint32_t r = 0; r < j->world; r++) {
        c->ranks[r].first_thread = c->in.thread_count;
        if (j->ranks[r] != NULL)
            take_member(j, c, j->ranks[r]);
    }
    psd_status status = waits_solve(&c->in, &c->result);
    if (status == PSD_OK) {
        name_members(c);
        return c;
    }
    core->oom = core->oom || status == PSD_ERR_NOMEM;
    cut_free(c);
    return NULL;
}
