/* A finding in words: one sentence that says who waits for whom, and the cure; and a row for each rank. */
#include "common/tensor.h"
#include "server/core/cut.h"
#include "server/core/sides.h"

#define NAMED_STEPS 4

static const waits_op *op_of(const cut *c, const waits_step *step)
{
    return &c->in.ops[step->op];
}

static uint32_t rank_of(const cut *c, const waits_step *step)
{
    return c->in.units[op_of(c, step)->unit].rank;
}

static bool is_p2p(const waits_op *o)
{
    return o->kind == PSD_OP_SEND || o->kind == PSD_OP_RECV;
}

static uint32_t group_id(const cut *c, const waits_op *o)
{
    return c->in.groups[o->group].id;
}

static bool is_opening(const waits_op *o)
{
    return o->kind >= PSD_OP_GROUP_NEW && o->kind <= PSD_OP_GROUP_DUP;
}

/* `send #0 f32[4] "x" to rank 1` */
static void append_op(const cut *c, const waits_op *o, char *out, size_t bytes)
{
    psd_append(out, bytes, "%s", psd_op_name((psd_op_kind)o->kind));
    if (!is_opening(o) && (o->kind != PSD_OP_RECV || o->is_matched))
        psd_append(out, bytes, " #%llu", (unsigned long long)o->ordinal);
    if (o->dtype != 0)
        psd_append(out, bytes, " %s[%lld]", psd_dtype_name((psd_dtype)o->dtype), (long long)o->count);
    if (o->name != NULL && o->name[0] != 0)
        psd_append(out, bytes, " \"%s\"", o->name);
    if (is_p2p(o) && o->peer == WAITS_ANY)
        psd_append(out, bytes, " from any rank");
    else if (is_p2p(o))
        psd_append(out, bytes, " %s rank %d", o->kind == PSD_OP_SEND ? "to" : "from", o->peer);
    if (is_p2p(o) && o->tag > 0)
        psd_append(out, bytes, " tag %d", o->tag);
    if (group_id(c, o) != 1 && !is_opening(o))
        psd_append(out, bytes, " group %u", group_id(c, o));
}

static void append_site(const waits_op *o, char *out, size_t bytes)
{
    if (o->file != NULL && o->file[0] != 0)
        psd_append(out, bytes, " at %s:%u", o->file, o->line);
}

static void append_step(const cut *c, const waits_step *step, char *out, size_t bytes)
{
    psd_append(out, bytes, "rank %u in ", rank_of(c, step));
    append_op(c, op_of(c, step), out, bytes);
    append_site(op_of(c, step), out, bytes);
}

/* --------------------------------------------------------------------------------------------------- cure */

typedef struct mix {
    uint32_t sends, receives, collectives;
    uint32_t p2p_rank, collective_rank;
    bool same_group;
} mix;

static mix mix_of(const cut *c, const waits_finding *f)
{
    mix m = {.same_group = true};
    for (uint32_t i = 0; i < f->step_count; i++) {
        const waits_step *step = &c->result.steps[f->first_step + i];
        const waits_op *o = op_of(c, step);
        m.sends += o->kind == PSD_OP_SEND;
        m.receives += o->kind == PSD_OP_RECV;
        m.collectives += !is_p2p(o);
        if (is_p2p(o))
            m.p2p_rank = rank_of(c, step);
        else
            m.collective_rank = rank_of(c, step);
        m.same_group = m.same_group && o->group == op_of(c, &c->result.steps[f->first_step])->group;
    }
    return m;
}

/* A receive of the finding for which a message has come, but for the tag; NULL: none. */
static const waits_op *missed_message(const cut *c, const waits_finding *f)
{
    for (uint32_t i = 0; i < f->step_count; i++) {
        const waits_op *o = op_of(c, &c->result.steps[f->first_step + i]);
        if (o->kind == PSD_OP_RECV && o->other_tag != 0)
            return o;
    }
    return NULL;
}

static void append_cure_of_tags(const cut *c, const waits_op *missed, char *out, size_t bytes)
{
    psd_append(out, bytes,
               "the tags differ: rank %u has a message of rank %d with tag %u, and receives tag %d; give the "
               "send and "
               "the receive the same tag, or receive tag %u first",
               c->in.units[missed->unit].rank, missed->peer, missed->other_tag - 1, missed->tag,
               missed->other_tag - 1);
}

/* A send of the cycle to this rank that its receive does not take, because of the tag. */
static const waits_op *other_tag(const cut *c, const waits_finding *f, const waits_op **receive)
{
    for (uint32_t i = 0; i < f->step_count; i++) {
        const waits_op *send = op_of(c, &c->result.steps[f->first_step + i]);
        for (uint32_t k = 0; k < f->step_count && send->kind == PSD_OP_SEND; k++) {
            *receive = op_of(c, &c->result.steps[f->first_step + k]);
            if ((*receive)->kind == PSD_OP_RECV && (*receive)->group == send->group &&
                (*receive)->peer == (int32_t)c->in.units[send->unit].rank && (*receive)->tag != send->tag &&
                send->peer == (int32_t)c->in.units[(*receive)->unit].rank)
                return send;
        }
    }
    return NULL;
}

static void append_cure_of_cycle(const cut *c, const waits_finding *f, char *out, size_t bytes)
{
    const waits_op *receive = NULL;
    const waits_op *send = other_tag(c, f, &receive), *missed = missed_message(c, f);
    mix m = mix_of(c, f);
    uint32_t last = rank_of(c, &c->result.steps[f->first_step + f->step_count - 1]);
    if (send != NULL)
        psd_append(out, bytes, "give the send and the receive the same tag (%d and %d now)", send->tag,
                   receive->tag);
    else if (missed != NULL)
        append_cure_of_tags(c, missed, out, bytes);
    else if (f->step_count == 1)
        psd_append(out, bytes, "post it with the asynchronous form, or both ends in one psd_batch");
    else if (m.collectives == 0 && m.receives == 0)
        psd_append(
            out, bytes,
            "put each rank's send and receive into one psd_sendrecv or psd_batch, or swap the order on "
            "rank %u so that it receives first",
            last);
    else if (m.collectives == 0 && m.sends == 0)
        psd_append(out, bytes, "swap the order on rank %u so that it sends first, or use psd_sendrecv", last);
    else if (m.collectives == 0)
        psd_append(out, bytes,
                   "put the calls of rank %u into the order of the other ranks, or into one psd_batch", last);
    else if (m.collectives < f->step_count)
        psd_append(out, bytes,
                   "swap the order on rank %u: it is in the %s while rank %u is in the collective",
                   m.p2p_rank, m.sends > 0 ? "send" : "receive", m.collective_rank);
    else if (!m.same_group)
        psd_append(
            out, bytes,
            "call the collectives of the groups in the same order on all ranks: swap the order on rank %u",
            last);
    else
        psd_append(out, bytes, "call the collectives in the same order on all ranks");
}

/* ---------------------------------------------------------------------------------------------- sentences */

static void write_deadlock(const cut *c, const waits_finding *f, char *out, size_t bytes)
{
    const waits_step *steps = &c->result.steps[f->first_step];
    psd_append(out, bytes, "deadlock: ");
    for (uint32_t i = 0; i < f->step_count && i < NAMED_STEPS; i++) {
        append_step(c, &steps[i], out, bytes);
        psd_append(out, bytes, " waits for ");
        if (i + 1 == NAMED_STEPS && f->step_count > NAMED_STEPS)
            psd_append(out, bytes, "%u more ranks, the last of which waits for ",
                       f->step_count - NAMED_STEPS);
    }
    psd_append(out, bytes, "%srank %u", f->step_count == 1 ? "itself, " : "", steps[f->step_count - 1].rank);
    psd_append(out, bytes, "; cure: ");
    append_cure_of_cycle(c, f, out, bytes);
}

static const char *end_text(waits_life life)
{
    return life == WAITS_DEAD ? "was lost" : "has left the job";
}

static void append_gone(const cut *c, const waits_finding *f, char *out, size_t bytes)
{
    const waits_step *steps = &c->result.steps[f->first_step];
    if (steps[0].rank == WAITS_NONE) {
        psd_append(out, bytes, "there is no other rank in its group");
        return;
    }
    for (uint32_t i = 0; i < f->step_count; i++)
        psd_append(out, bytes, "%srank %u %s", i == 0 ? "" : ", ", steps[i].rank,
                   end_text(c->in.ranks[steps[i].rank].life));
    if (f->count > f->step_count)
        psd_append(out, bytes, " and %u more", f->count - f->step_count);
}

static void write_orphan(const cut *c, const waits_finding *f, char *out, size_t bytes)
{
    const waits_step *step = &c->result.steps[f->first_step];
    const waits_op *o = op_of(c, step);
    bool failed = f->class == WAITS_PEER_FAILED;
    psd_append(out, bytes, "%s: ", failed ? "peer-failed" : "orphan");
    append_step(c, step, out, bytes);
    psd_append(out, bytes, " can never complete: ");
    append_gone(c, f, out, bytes);
    psd_append(out, bytes, "; cure: ");
    if (failed)
        psd_append(out, bytes, "see why it was lost (psctl events); make new groups without it");
    else if (missed_message(c, f) != NULL)
        append_cure_of_tags(c, missed_message(c, f), out, bytes);
    else
        psd_append(out, bytes, "add the missing %s on rank %d, or remove this one", sides_missing(o->kind),
                   step->rank == WAITS_NONE ? -1 : (int32_t)step->rank);
}

/* --------------------------------------------------------------------------------------------------- rows */

static void fill_side(const cut *c, const waits_op *o, psd_op_side *out)
{
    bool has_ordinal = !is_opening(o) && (o->kind != PSD_OP_RECV || o->is_matched);
    *out = (psd_op_side){.rank = (int32_t)c->in.units[o->unit].rank,
                         .kind = o->kind,
                         .dtype = o->dtype,
                         .redop = o->redop,
                         .peer = is_p2p(o) ? o->peer : -1,
                         .root = is_p2p(o) ? -1 : o->root,
                         .ordinal = has_ordinal ? o->ordinal : UINT64_MAX,
                         .count = o->count};
    (void)snprintf(out->name, sizeof out->name, "%s", o->name == NULL ? "" : o->name);
    if (o->file != NULL && o->file[0] != 0)
        (void)snprintf(out->site, sizeof out->site, "%.*s:%u", PSD_MAX_SITE - 1, o->file, o->line);
}

static void append_row(const cut *c, const waits_op *o, const waits_thread *t, const char *role,
                       int64_t waits_for, psd_msg_incident *out)
{
    psd_op_side side;
    fill_side(c, o, &side);
    incident_row row = {&side, role, is_opening(o) ? 0 : group_id(c, o), t != NULL ? t->waiting_ns : -1,
                        waits_for};
    rows_add(out, &row);
}

static void write_mismatch(const cut *c, const waits_finding *f, psd_msg_incident *out)
{
    const waits_step *steps = &c->result.steps[f->first_step];
    psd_op_side sides[PSD_INCIDENT_SIDES];
    char reason[PSD_MAX_TEXT] = "";
    uint32_t count = f->step_count < PSD_INCIDENT_SIDES ? f->step_count : PSD_INCIDENT_SIDES;
    for (uint32_t i = 0; i < count; i++)
        fill_side(c, op_of(c, &steps[i]), &sides[i]);
    for (uint32_t i = 0; i < f->step_count && i < NAMED_STEPS; i++) {
        psd_append(reason, sizeof reason, "%s", i == 0 ? "" : ", ");
        append_step(c, &steps[i], reason, sizeof reason);
    }
    if (f->count > NAMED_STEPS)
        psd_append(reason, sizeof reason, " and %u more", f->count - NAMED_STEPS);
    sides_write(sides, count, group_id(c, op_of(c, &steps[0])), reason, out);
}

/* Requests for groups of each other that differ. */
static void write_members(const cut *c, const waits_finding *f, psd_msg_incident *out)
{
    const waits_step *steps = &c->result.steps[f->first_step];
    (void)snprintf(out->detail, sizeof out->detail, "members");
    psd_append(out->text, sizeof out->text, "mismatch.members: ");
    for (uint32_t i = 0; i < f->step_count && i < NAMED_STEPS; i++) {
        psd_append(out->text, sizeof out->text, "%s", i == 0 ? "" : ", ");
        append_step(c, &steps[i], out->text, sizeof out->text);
    }
    psd_append(out->text, sizeof out->text,
               "; cure: call psd_group_new with the same list, in the same order, on all ranks of the list");
}

static const waits_thread *thread_at(const cut *c, uint32_t thread)
{
    return thread == WAITS_NONE ? NULL : &c->in.threads[thread];
}

static void write_steps(const cut *c, const waits_finding *f, psd_msg_incident *out)
{
    for (uint32_t i = 0; i < f->step_count; i++) {
        const waits_step *step = &c->result.steps[f->first_step + i];
        append_row(c, op_of(c, step), thread_at(c, step->thread), "cause",
                   step->rank == WAITS_NONE ? -1 : (int64_t)step->rank, out);
    }
}

/* The first operation that a thread is held by, as far as its own works tell. */
static const waits_op *held_by(const cut *c, const waits_thread *t)
{
    for (uint32_t i = 0; i < t->work_count; i++) {
        const waits_unit *u = &c->in.units[c->in.works[t->first_work + i]];
        for (uint32_t k = 0; k < u->op_count; k++)
            if (!c->in.ops[u->first_op + k].is_complete && !c->in.ops[u->first_op + k].is_matched)
                return &c->in.ops[u->first_op + k];
    }
    return NULL;
}

static void write_victims(const cut *c, psd_msg_incident *out)
{
    for (uint32_t t = 0; t < c->in.thread_count; t++) {
        const waits_op *o = c->result.standing[t] == WAITS_VICTIM ? held_by(c, &c->in.threads[t]) : NULL;
        if (o != NULL)
            append_row(c, o, &c->in.threads[t], "victim", is_p2p(o) ? o->peer : -1, out);
    }
}

/* ------------------------------------------------------------------------------------------------- groups */

static void add_group(psd_msg_incident *out, uint32_t id)
{
    for (uint32_t i = 0; i < out->group_count; i++)
        if (out->groups[i] == id)
            return;
    if (out->group_count < PSD_INCIDENT_GROUPS && id != 0)
        out->groups[out->group_count++] = id;
}

static void add_victims_groups(const cut *c, psd_msg_incident *out)
{
    for (uint32_t t = 0; t < c->in.thread_count; t++) {
        const waits_thread *thread = &c->in.threads[t];
        for (uint32_t i = 0; c->result.standing[t] != WAITS_FREE && i < thread->work_count; i++) {
            const waits_unit *u = &c->in.units[c->in.works[thread->first_work + i]];
            for (uint32_t k = 0; k < u->op_count; k++)
                add_group(out, group_id(c, &c->in.ops[u->first_op + k]));
        }
    }
}

static uint64_t mix_key(uint64_t key, uint64_t value)
{
    return (key ^ value) * UINT64_C(0x100000001b3);
}

void report_lost_work(int32_t rank, const psd_msg_lost_work *lost, psd_msg_incident *out)
{
    const psd_current_op *op = &lost->op;
    const char *name = psd_op_name((psd_op_kind)op->kind);
    *out = (psd_msg_incident){.kind = INCIDENT_LOST_WORK, .report_only = true, .culprit = rank};
    (void)snprintf(out->text, sizeof out->text,
                   "lost-work: rank %d left and never waited for its %s%s%s at %s", rank, name,
                   op->name[0] != 0 ? " of " : "", op->name, op->site);
    psd_append(out->text, sizeof out->text, ", which %s",
               lost->is_done ? "had completed" : "was not complete: its group was aborted");
    if (lost->total > 1)
        psd_append(out->text, sizeof out->text, " (%u such works in all)", lost->total);
    psd_append(out->text, sizeof out->text,
               "; cure: end it with psd_wait or psd_waitall before psd_finalize");
    bool is_message = op->kind == PSD_OP_SEND || op->kind == PSD_OP_RECV;
    psd_op_side side = {.rank = rank,
                        .kind = op->kind,
                        .dtype = op->dtype,
                        .redop = op->redop,
                        .peer = is_message ? op->peer : -1,
                        .root = is_message ? -1 : op->peer,
                        .ordinal = lost->is_done ? op->ordinal : UINT64_MAX,
                        .count = op->count};
    (void)snprintf(side.name, sizeof side.name, "%s", op->name);
    (void)snprintf(side.site, sizeof side.site, "%s", op->site);
    incident_row row = {&side, "lost", op->group, -1, -1};
    rows_add(out, &row);
    out->key = mix_key(mix_key(mix_key(UINT64_C(0xcbf29ce484222325), INCIDENT_LOST_WORK), (uint32_t)rank),
                       lost->seq);
}

void report_write(const cut *c, const waits_finding *f, bool first, psd_msg_incident *out)
{
    bool is_members = f->class == WAITS_MISMATCH && strcmp(f->field, "members") == 0;
    *out = (psd_msg_incident){.kind = f->class, .report_only = c->report_only, .culprit = -1};
    if (f->class == WAITS_DEADLOCK)
        write_deadlock(c, f, out->text, sizeof out->text);
    else if (is_members)
        write_members(c, f, out);
    else if (f->class == WAITS_MISMATCH)
        write_mismatch(c, f, out);
    else
        write_orphan(c, f, out->text, sizeof out->text);
    if (f->class != WAITS_MISMATCH || is_members)
        write_steps(c, f, out);
    out->more += f->count > f->step_count ? f->count - f->step_count : 0;
    out->key = mix_key(UINT64_C(0xcbf29ce484222325), f->class);
    for (uint32_t i = 0; i < f->step_count; i++) {
        const waits_step *step = &c->result.steps[f->first_step + i];
        const waits_op *o = op_of(c, step);
        add_group(out, group_id(c, o));
        out->key = mix_key(mix_key(mix_key(out->key, rank_of(c, step)), group_id(c, o)),
                           (o->ordinal << 16) ^ ((uint64_t)o->kind << 8) ^ o->line);
    }
    if (f->class == WAITS_ORPHAN || f->class == WAITS_PEER_FAILED)
        out->culprit = (int32_t)c->result.steps[f->first_step].rank;
    if (!first)
        return;
    write_victims(c, out);
    add_victims_groups(c, out);
}
