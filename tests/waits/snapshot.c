#include "tests/waits/snapshot.h"

#include <string.h>

static void take_op(const program *p, const state *s, int at, uint32_t in_unit, snapshot *out)
{
    const op *o = &p->ops[at];
    uint32_t index = out->input.op_count++;
    waits_op *to = &out->ops[index];
    bool has_message = o->kind == OP_RECV && s->partner[at] >= 0;
    out->op_of[index] = at;
    to->unit = in_unit;
    to->group = (uint32_t)o->group;
    to->is_complete = s->op[at] == OP_DONE;
    to->is_matched = has_message || s->op[at] == OP_MATCHED;
    to->kind = o->kind == OP_SEND ? PSD_OP_SEND : o->kind == OP_RECV ? PSD_OP_RECV : PSD_OP_ALL_REDUCE;
    to->dtype = PSD_F32;
    to->count = 1;
    to->root = -1;
    to->peer = has_message ? op_rank(p, s->partner[at]) : o->peer;
    to->tag = has_message ? p->ops[s->partner[at]].tag : o->tag;
    to->ordinal = has_message ? s->ordinal[s->partner[at]] : s->ordinal[at];
}

static void take_unit(const program *p, const state *s, int at, snapshot *out)
{
    const unit *u = &p->units[at];
    uint32_t index = out->input.unit_count++;
    waits_unit *to = &out->units[index];
    int before = unit_before(p, s, at);
    out->unit_of[at] = (int)index;
    to->rank = (uint32_t)p->rank_of[u->thread];
    to->first_op = out->input.op_count;
    to->op_count = (uint32_t)u->op_count;
    to->is_complete = unit_is_done(p, s, at);
    to->after = before >= 0 && out->unit_of[before] >= 0 ? (uint32_t)out->unit_of[before] : WAITS_NONE;
    for (int i = 0; i < u->op_count; i++)
        take_op(p, s, u->first_op + i, index, out);
}

/* In the order in which they were posted. */
static void take_units(const program *p, const state *s, bool with_past, snapshot *out)
{
    for (int order = 1; order <= s->next_order; order++)
        for (int u = 0; u < p->unit_count; u++) {
            int first = p->units[u].first_op;
            if (s->op[first] != OP_UNPOSTED && s->order[first] == order &&
                (with_past || !unit_is_done(p, s, u)))
                take_unit(p, s, u, out);
        }
}

static void take_thread(const program *p, const state *s, int t, snapshot *out)
{
    uint32_t index = out->input.thread_count++;
    waits_thread *to = &out->threads[index];
    out->thread_of[index] = t;
    to->rank = (uint32_t)p->rank_of[t];
    to->id = (uint32_t)t;
    to->wait_seq = s->at[t];
    to->is_blocked = thread_is_blocked(p, s, t);
    to->first_work = out->input.work_count;
    if (!to->is_blocked)
        return;
    const instruction *code = &p->code[t][s->at[t]];
    to->any = code->any;
    for (int u = 0; u < p->unit_count; u++)
        if (((code->units >> u) & 1) != 0 && out->unit_of[u] >= 0)
            out->works[out->input.work_count++] = (uint32_t)out->unit_of[u];
    to->work_count = out->input.work_count - to->first_work;
}

static void take_rank(const program *p, const state *s, int r, snapshot *out)
{
    waits_rank *to = &out->ranks[r];
    to->life = rank_has_ended(p, s, r) ? WAITS_FINISHED : WAITS_LIVE;
    to->incarnation = 1;
    to->first_thread = out->input.thread_count;
    for (int t = 0; t < p->threads; t++)
        if (p->rank_of[t] == r && !thread_has_ended(p, s, t))
            take_thread(p, s, t, out);
    to->thread_count = out->input.thread_count - to->first_thread;
}

static void take_groups(const program *p, const state *s, snapshot *out)
{
    for (int g = 0; g < p->group_count; g++) {
        uint32_t size = 0;
        for (int r = 0; r < p->ranks; r++) {
            if (((p->members[g] >> r) & 1) == 0)
                continue;
            out->members[g][size] = (uint32_t)r;
            out->started[g][size++] = s->started[r][g];
        }
        out->groups[g] = (waits_group){.id = (uint32_t)g,
                                       .size = size,
                                       .is_positional = p->is_queued,
                                       .members = out->members[g],
                                       .started = out->started[g]};
    }
}

static void take_pair(const program *p, const state *s, int rank, int peer, snapshot *out)
{
    waits_pair *to = &out->pairs[out->input.pair_count++];
    to->rank = (uint32_t)rank;
    to->peer = (uint32_t)peer;
    for (int i = 0; i < p->op_count; i++) {
        if (p->ops[i].kind != OP_SEND || s->op[i] == OP_UNPOSTED)
            continue;
        bool is_mine = op_rank(p, i) == rank && p->ops[i].peer == peer;
        bool is_its = op_rank(p, i) == peer && p->ops[i].peer == rank;
        to->sent += is_mine;
        to->received += is_its && (p->is_queued || s->delivered[i] != 0);
    }
}

void snapshot_take(const program *p, const state *s, bool with_past, snapshot *out)
{
    memset(out, 0, sizeof *out);
    for (int u = 0; u < p->unit_count; u++)
        out->unit_of[u] = -1;
    take_units(p, s, with_past, out);
    for (int r = 0; r < p->ranks; r++)
        take_rank(p, s, r, out);
    take_groups(p, s, out);
    for (int r = 0; r < p->ranks; r++)
        for (int q = 0; q < p->ranks; q++)
            take_pair(p, s, r, q, out);
    out->input.rank_count = (uint32_t)p->ranks;
    out->input.group_count = (uint32_t)p->group_count;
    out->input.ranks = out->ranks;
    out->input.threads = out->threads;
    out->input.works = out->works;
    out->input.units = out->units;
    out->input.ops = out->ops;
    out->input.groups = out->groups;
    out->input.pairs = out->pairs;
}
