/* A plan after its members agreed on it: compiled, loaded by every rank in chunks, agreed by hash, run,
 * closed. */
#include <stdlib.h>

#include "server/core/state.h"

/* ---------------------------------------------------------------------------------------- each rank's own */

/* Lists each rank's own steps, in the plan's order: counting, then filling. A step of a rank to itself is one
 * entry as a send and one as a receive. */
static bool index_steps(psd_core *core, plan *p)
{
    uint32_t ranks = p->inputs.ranks;
    const psd_plan_steps *all = &p->compiled;
    p->first_step = core_calloc(core, (size_t)ranks + 2, sizeof(*p->first_step));
    p->step_of = core_calloc(core, 2 * all->count + 1, sizeof(*p->step_of));
    p->hashes = core_calloc(core, ranks, sizeof(*p->hashes));
    if (core->oom)
        return false;
    uint64_t *next = p->first_step + 1; /* shifted by one, so that filling leaves the starts */
    for (uint64_t i = 0; i < all->count; i++) {
        next[all->steps[i].src + 1]++;
        next[all->steps[i].dst + 1]++;
    }
    for (uint32_t rank = 1; rank <= ranks; rank++)
        next[rank] += next[rank - 1];
    for (uint64_t i = 0; i < all->count; i++) {
        p->step_of[next[all->steps[i].src]++] = i << 1 | 1;
        p->step_of[next[all->steps[i].dst]++] = i << 1;
    }
    return true;
}

static uint32_t chunks_of(const plan *p, uint32_t at)
{
    uint64_t count = p->first_step[at + 1] - p->first_step[at];
    return count == 0 ? 1 : (uint32_t)((count + PLAN_STEPS_PER_CHUNK - 1) / PLAN_STEPS_PER_CHUNK);
}

/* The scratch columns: three of 32 bits and less, two of 64. */
typedef struct columns {
    uint64_t offset[PLAN_STEPS_PER_CHUNK];
    uint64_t bytes[PLAN_STEPS_PER_CHUNK];
    uint32_t round[PLAN_STEPS_PER_CHUNK];
    uint32_t peer[PLAN_STEPS_PER_CHUNK];
    uint8_t is_send[PLAN_STEPS_PER_CHUNK];
} columns;

bool plans_fill(psd_core *core, const plan *p, uint32_t at, uint32_t chunk, psd_msg_plan_steps *out)
{
    if (core->columns == NULL)
        core->columns = core_calloc(core, 1, sizeof(columns));
    columns *c = core->columns;
    if (c == NULL)
        return false;
    uint64_t from = p->first_step[at] + (uint64_t)chunk * PLAN_STEPS_PER_CHUNK;
    uint64_t to = from + PLAN_STEPS_PER_CHUNK;
    if (to > p->first_step[at + 1])
        to = p->first_step[at + 1];
    uint32_t count = 0;
    for (uint64_t i = from; i < to; i++, count++) {
        const psd_step *step = &p->compiled.steps[p->step_of[i] >> 1];
        bool is_send = (p->step_of[i] & 1) != 0;
        c->round[count] = step->round;
        c->peer[count] = is_send ? step->dst : step->src;
        c->is_send[count] = is_send;
        c->offset[count] = is_send ? step->src_offset : step->dst_offset;
        c->bytes[count] = step->bytes;
    }
    *out = (psd_msg_plan_steps){.plan = p->id,
                                .hash = p->hashes[at],
                                .chunk = chunk,
                                .chunks = chunks_of(p, at),
                                .rounds = p->compiled.rounds,
                                .count = count,
                                .round = c->round,
                                .peer = c->peer,
                                .is_send = c->is_send,
                                .offset = c->offset,
                                .bytes = c->bytes};
    return true;
}

void plans_send_steps(psd_core *core, const plan *p, uint32_t at, uint32_t chunk, const member *m,
                      uint64_t request)
{
    psd_msg *answer = send_to_member(core, m, PSD_MSG_PLAN_STEPS);
    answer->request = request;
    (void)plans_fill(core, p, at, chunk, &answer->u.plan_steps);
}

/* The hash of a rank is chained over its chunks; the plan's is over those of the ranks. */
static bool hash_steps(psd_core *core, plan *p)
{
    p->hash = p->id;
    for (uint32_t at = 0; at < p->inputs.ranks; at++) {
        uint64_t hash = 0;
        for (uint32_t chunk = 0; chunk < chunks_of(p, at); chunk++) {
            psd_msg_plan_steps steps;
            if (!plans_fill(core, p, at, chunk, &steps))
                return false;
            hash = psd_plan_rank_hash(&steps, hash);
        }
        p->hashes[at] = hash;
        p->hash = psd_hash_u64(p->hash ^ hash);
    }
    return true;
}

/* ----------------------------------------------------------------------------------------------- compiled */

static plan *find_compiling(const psd_core *core, uint32_t id)
{
    for (uint32_t i = 0; i < core->job_count; i++) {
        plan *p = shelf_find(&core->jobs[i]->plans, id);
        if (p != NULL)
            return p->state == PLAN_COMPILING ? p : NULL;
    }
    return NULL;
}

/* Takes the steps that came, or makes them again in a replay, and has them proved. */
static psd_status take_steps(const psd_event *event, plan *p, psd_plan_steps *steps, char *text,
                             size_t text_bytes)
{
    if (event->status != PSD_OK) {
        (void)snprintf(text, text_bytes, "%s",
                       event->text == NULL ? "it could not be compiled" : event->text);
        return event->status;
    }
    if (steps->steps == NULL) {
        psd_status status = psd_plan_compile(&p->inputs, steps, text, text_bytes);
        if (status != PSD_OK)
            return status;
    }
    if (steps->inputs.ranks != p->inputs.ranks || steps->inputs.count != p->inputs.count ||
        steps->inputs.dtype != p->inputs.dtype || steps->inputs.shift != p->inputs.shift) {
        (void)snprintf(text, text_bytes, "it was compiled from other inputs");
        return PSD_ERR_INTERNAL;
    }
    return psd_plan_check(steps, text, text_bytes);
}

/* The steps of all plans of a job. */
static uint64_t steps_held(const job *j)
{
    uint64_t steps = 0;
    for (size_t i = 0; i < j->plans.count; i++)
        steps += ((const plan *)j->plans.items[i])->compiled.count;
    return steps;
}

void plans_compiled(psd_core *core, const psd_event *event)
{
    psd_plan_steps steps = {0};
    if (event->compiled != NULL && event->status == PSD_OK)
        steps = *event->compiled;
    char text[PSD_MAX_TEXT] = "";
    plan *p = find_compiling(core, event->plan);
    if (p == NULL) { /* it failed meanwhile */
        free(steps.steps);
        return;
    }
    mark_journal(core);
    psd_status status = take_steps(event, p, &steps, text, sizeof(text));
    if (status == PSD_OK && steps_held(p->job) + steps.count > MAX_STEPS_PER_JOB) {
        status = PSD_ERR_LIMIT;
        (void)snprintf(text, sizeof(text),
                       "job %s has plans of %llu steps, which is near the limit: destroy some", p->job->name,
                       (unsigned long long)steps_held(p->job));
    }
    if (status != PSD_OK) {
        free(steps.steps);
        plans_refuse(core, p, status, text);
        return;
    }
    p->compiled = steps;
    if (!index_steps(core, p) || !hash_steps(core, p))
        return;
    p->state = PLAN_LOADING;
    p->changed = core->now;
    (void)send_to(core, to_plan(p), PSD_MSG_PLAN_STEPS);
}

/* --------------------------------------------------------------------------------------- loading, running */

static plan *plan_of(psd_core *core, const member *m, const psd_msg *msg, uint32_t *at)
{
    plan *p = shelf_find(&m->job->plans, msg->u.plan.plan);
    int64_t found = p == NULL ? -1 : plan_rank_of(p, m);
    if (found < 0) {
        core->dropped++;
        refuse_peer(core, m->peer, msg, PSD_ERR_STALE, "rank %d has no open plan %u", m->rank,
                    msg->u.plan.plan);
        return NULL;
    }
    if (p->state == PLAN_FAILED && msg->type != PSD_MSG_PLAN_CLOSE) {
        plans_refuse_failed(core, m, msg, p);
        return NULL;
    }
    *at = (uint32_t)found;
    return p;
}

void plans_next(psd_core *core, member *m, const psd_msg *msg)
{
    uint32_t at;
    const plan *p = plan_of(core, m, msg, &at);
    if (p == NULL)
        return;
    if ((p->state != PLAN_LOADING && p->state != PLAN_LIVE) || msg->u.plan.chunk >= chunks_of(p, at)) {
        refuse_peer(core, m->peer, msg, PSD_ERR_INVAL, "plan %u has no chunk %u for rank %d", p->id,
                    msg->u.plan.chunk, m->rank);
        return;
    }
    plans_send_steps(core, p, at, msg->u.plan.chunk, m, msg->request);
}

/* A rank that holds other steps than those sent would move wrong bytes: the plan's group is broken, all are
 * told. */
static void refuse_hash(psd_core *core, const member *m, const psd_msg *msg, plan *p, uint32_t at)
{
    char text[256];
    (void)snprintf(text, sizeof(text),
                   "rank %d (worker %s) has plan %u with hash %016llx, psd sent it one with %016llx", m->rank,
                   m->name, p->id, (unsigned long long)msg->u.plan.hash, (unsigned long long)p->hashes[at]);
    if (msg->request != 0 && msg->request != p->requests[at])
        refuse_peer(core, m->peer, msg, PSD_ERR_MISMATCH, "%s", text);
    plans_refuse(core, p, PSD_ERR_MISMATCH, text);
    group *g = shelf_find(&p->job->groups, p->group);
    if (g != NULL)
        groups_abort(core, g, PSD_ERR_MISMATCH, m->rank, text);
}

static void fill_go(const plan *p, psd_msg *go, uint64_t request)
{
    go->request = request;
    go->u.plan.plan = p->id;
    go->u.plan.hash = p->hash;
}

void plans_ready(psd_core *core, member *m, const psd_msg *msg)
{
    uint32_t at;
    plan *p = plan_of(core, m, msg, &at);
    if (p == NULL || (p->state != PLAN_LOADING && p->state != PLAN_LIVE))
        return;
    if (p->state == PLAN_LIVE) { /* sent again: GO was lost */
        fill_go(p, send_to_member(core, m, PSD_MSG_PLAN_GO), msg->request);
        return;
    }
    mark_journal(core);
    if (msg->u.plan.hash != p->hashes[at]) {
        refuse_hash(core, m, msg, p, at);
        return;
    }
    p->requests[at] = msg->request;
    if (!bit_set(p->ready, at) || ++p->ready_count < p->inputs.ranks)
        return;
    p->state = PLAN_LIVE;
    p->changed = core->now;
    fill_go(p, send_to(core, to_plan(p), PSD_MSG_PLAN_GO), 0); /* each with its own request */
}

void plans_progress(psd_core *core, member *m, const psd_msg *msg)
{
    uint32_t at;
    plan *p = plan_of(core, m, msg, &at);
    if (p == NULL)
        return;
    if (msg->u.plan.runs > p->runs)
        p->runs = msg->u.plan.runs;
    p->bytes_sent += msg->u.plan.bytes - p->sent[at];
    p->sent[at] = msg->u.plan.bytes;
    p->last_run_ns = msg->u.plan.last_run_ns;
}

static void mark_closed(psd_core *core, plan *p, uint32_t at)
{
    if (bit_set(p->closed, at) && ++p->closed_count == p->inputs.ranks)
        plan_remove(core, p);
}

void plans_close(psd_core *core, member *m, const psd_msg *msg)
{
    uint32_t at;
    plan *p = plan_of(core, m, msg, &at);
    if (p == NULL)
        return;
    mark_journal(core);
    if (p->state != PLAN_LIVE && p->state != PLAN_FAILED) {
        char text[128];
        (void)snprintf(text, sizeof(text), "rank %d closed plan %u before all ranks had loaded it", m->rank,
                       p->id);
        plans_refuse(core, p, PSD_ERR_ABORTED, text);
        if (shelf_find(&m->job->plans, msg->u.plan.plan) == NULL)
            return;
    }
    mark_closed(core, p, at);
}

/* ------------------------------------------------------------------------------------- failures, resuming */

void plans_group_broken(psd_core *core, const group *g)
{
    shelf *plans = &g->job->plans;
    for (size_t i = plans->count; i-- > 0;) {
        plan *p = plans->items[i];
        if (p->group == g->id)
            plans_refuse(core, p, g->status, g->reason == NULL ? no_reason : g->reason);
    }
}

/* A member that is gone has closed its plans; one whose plan still waits for it ends the plan. */
void plans_member_ended(psd_core *core, member *m)
{
    shelf *plans = &m->job->plans;
    for (size_t i = plans->count; i-- > 0;) {
        plan *p = plans->items[i];
        uint32_t id = p->id;
        int64_t at = plan_rank_of(p, m);
        if (at < 0)
            continue;
        if (p->state != PLAN_LIVE && p->state != PLAN_FAILED) {
            char text[128];
            (void)snprintf(text, sizeof(text), "rank %d (worker %s) is gone", m->rank, m->name);
            plans_refuse(core, p, PSD_ERR_PEER_FAILED, text);
        }
        if (shelf_find(plans, id) != NULL)
            mark_closed(core, p, (uint32_t)at);
    }
}

void plans_resume(psd_core *core, member *m)
{
    const shelf *plans = &m->job->plans;
    psd_time_ns since = member_missed_since(core, m);
    for (size_t i = 0; i < plans->count; i++) {
        const plan *p = plans->items[i];
        int64_t at = plan_rank_of(p, m);
        if (at < 0 || p->state != PLAN_LIVE || p->changed < since)
            continue;
        fill_go(p, send_to_member(core, m, PSD_MSG_PLAN_GO), p->requests[at]);
    }
}
