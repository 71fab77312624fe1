#include "server/core/replay.h"

#include <stdlib.h>
#include <string.h>

#include "server/core/waits_graph.h"

typedef struct replay {
    const replay_input *in;
    waits_graph match; /* for its partners and hubs only */
    uint32_t *at;      /* by thread: the next call */
    uint32_t *left;    /* by thread: units it still waits for */
    uint32_t *turn;    /* by thread: number of its wait */
    uint32_t *waiter;  /* by unit: a thread; WAITS_NONE */
    uint32_t *waiter_turn;
    uint32_t *open;  /* by unit: operations that are not done */
    uint32_t *come;  /* by hub */
    bool *posted;    /* by unit */
    bool *done;      /* by operation */
    uint32_t *ready; /* threads that can go on */
    uint32_t ready_count;
} replay;

static bool calls_are_sound(const replay_input *in)
{
    const waits_input *all = &in->all;
    for (uint32_t t = 0; t < all->thread_count; t++) {
        if (in->first_call[t] > in->first_call[t + 1])
            return false;
        for (uint32_t c = in->first_call[t]; c < in->first_call[t + 1]; c++) {
            const replay_call *call = &in->calls[c];
            uint32_t count = call->is_wait ? call->work_count : 0;
            if (count > all->work_count || call->first_work > all->work_count - count)
                return false;
            if (!call->is_wait &&
                (call->unit >= all->unit_count || all->units[call->unit].rank != all->threads[t].rank))
                return false;
        }
    }
    for (uint32_t i = 0; i < all->group_count; i++)
        if (!all->groups[i].is_positional)
            return false;
    return waits_input_is_sound(all);
}

static void op_done(replay *r, uint32_t op)
{
    uint32_t unit = r->in->all.ops[op].unit, waiter = r->waiter[unit];
    if (r->done[op])
        return;
    r->done[op] = true;
    if (--r->open[unit] > 0 || waiter == WAITS_NONE || r->waiter_turn[unit] != r->turn[waiter])
        return;
    if (r->left[waiter] > 0 && --r->left[waiter] == 0)
        r->ready[r->ready_count++] = waiter;
}

static void op_posted(replay *r, uint32_t op)
{
    const waits_op *o = &r->in->all.ops[op];
    if (waits_is_p2p(o->kind)) {
        uint32_t partner = r->match.partner[op];
        if (partner != WAITS_NONE && r->posted[r->in->all.ops[partner].unit]) {
            op_done(r, op);
            op_done(r, partner);
        }
        return;
    }
    uint32_t h = r->match.hub_of[op];
    const waits_hub *hub = &r->match.hub[h];
    if (++r->come[h] < r->in->all.groups[hub->group].size)
        return;
    for (uint32_t i = 0; i < hub->op_count; i++)
        if (r->posted[r->in->all.ops[r->match.hub_ops[hub->op + i]].unit])
            op_done(r, r->match.hub_ops[hub->op + i]);
}

/* False: the thread must wait. */
static bool wait_for(replay *r, uint32_t thread, const replay_call *call)
{
    uint32_t open = 0;
    r->turn[thread]++;
    for (uint32_t i = 0; i < call->work_count; i++) {
        uint32_t unit = r->in->all.works[call->first_work + i];
        if (r->posted[unit] && r->open[unit] == 0)
            continue;
        r->waiter[unit] = thread;
        r->waiter_turn[unit] = r->turn[thread];
        open++;
    }
    if (open == 0 || (call->any && open < call->work_count))
        return true;
    r->left[thread] = call->any ? 1 : open;
    return false;
}

static psd_status run_thread(replay *r, uint32_t thread)
{
    while (r->at[thread] < r->in->first_call[thread + 1]) {
        const replay_call *call = &r->in->calls[r->at[thread]];
        if (call->is_wait) {
            if (!wait_for(r, thread, call))
                return PSD_OK;
        } else {
            const waits_unit *u = &r->in->all.units[call->unit];
            if (r->posted[call->unit])
                return PSD_ERR_INVAL;
            r->posted[call->unit] = true;
            for (uint32_t i = 0; i < u->op_count; i++)
                op_posted(r, u->first_op + i);
        }
        r->at[thread]++;
    }
    return PSD_OK;
}

static psd_status run_all(replay *r)
{
    psd_status status = PSD_OK;
    for (uint32_t t = 0; t < r->in->all.thread_count; t++)
        r->ready[r->ready_count++] = r->in->all.thread_count - 1 - t;
    while (r->ready_count > 0 && status == PSD_OK) {
        uint32_t thread = r->ready[--r->ready_count];
        /* Woken from a wait, which is over. */
        if (r->turn[thread] > 0)
            r->at[thread]++;
        status = run_thread(r, thread);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------ where it hangs */

typedef struct stuck_memory {
    waits_rank *ranks;
    waits_thread *threads;
    waits_unit *units;
    waits_op *ops;
    waits_group *groups; /* and one without members, for what was not posted */
    uint64_t *started;   /* of all groups */
    uint32_t *call_of;
} stuck_memory;

static void memory_free(stuck_memory *m)
{
    if (m == NULL)
        return;
    free(m->ranks);
    free(m->threads);
    free(m->units);
    free(m->ops);
    free(m->groups);
    free(m->started);
    free(m->call_of);
    free(m);
}

static stuck_memory *memory_new(const waits_input *all)
{
    size_t members = 0;
    for (uint32_t i = 0; i < all->group_count; i++)
        members += all->groups[i].size;
    stuck_memory *m = calloc(1, sizeof *m);
    if (m == NULL)
        return NULL;
    m->ranks = calloc((size_t)all->rank_count + 1, sizeof *m->ranks);
    m->threads = calloc((size_t)all->thread_count + 1, sizeof *m->threads);
    m->units = calloc((size_t)all->unit_count + 1, sizeof *m->units);
    m->ops = calloc((size_t)all->op_count + 1, sizeof *m->ops);
    m->groups = calloc((size_t)all->group_count + 1, sizeof *m->groups);
    m->started = calloc(members + 1, sizeof *m->started);
    m->call_of = calloc((size_t)all->thread_count + 1, sizeof *m->call_of);
    if (m->ranks == NULL || m->threads == NULL || m->units == NULL || m->ops == NULL || m->groups == NULL ||
        m->started == NULL || m->call_of == NULL) {
        memory_free(m);
        return NULL;
    }
    return m;
}

/* Only the threads that have not ended; a rank without such has. */
static uint32_t take_threads(const replay *r, stuck_memory *m)
{
    const waits_input *all = &r->in->all;
    uint32_t count = 0;
    for (uint32_t i = 0; i < all->rank_count; i++) {
        const waits_rank *from = &all->ranks[i];
        m->ranks[i] = *from;
        m->ranks[i].first_thread = count;
        for (uint32_t t = from->first_thread; t < from->first_thread + from->thread_count; t++) {
            if (r->at[t] >= r->in->first_call[t + 1])
                continue;
            const replay_call *call = &r->in->calls[r->at[t]];
            m->threads[count] = all->threads[t];
            m->threads[count].is_blocked = true;
            m->threads[count].any = call->any;
            m->threads[count].first_work = call->first_work;
            m->threads[count].work_count = call->work_count;
            m->call_of[count++] = r->at[t];
        }
        m->ranks[i].thread_count = count - m->ranks[i].first_thread;
        if (m->ranks[i].thread_count == 0)
            m->ranks[i].life = WAITS_FINISHED;
    }
    return count;
}

static void take_units(const replay *r, stuck_memory *m)
{
    const waits_input *all = &r->in->all;
    for (uint32_t u = 0; u < all->unit_count; u++) {
        m->units[u] = all->units[u];
        m->units[u].is_complete = !r->posted[u] || r->open[u] == 0;
        for (uint32_t i = 0; i < all->units[u].op_count; i++) {
            uint32_t at = all->units[u].first_op + i;
            m->ops[at] = all->ops[at];
            m->ops[at].is_complete = !r->posted[u] || r->done[at];
            if (!r->posted[u])
                m->ops[at].group = all->group_count; /* as if it were not there */
        }
    }
}

/* Members have started what has come to the group's hubs. */
static void take_groups(const replay *r, stuck_memory *m, uint32_t *place)
{
    const waits_input *all = &r->in->all;
    uint64_t *started = m->started;
    uint32_t h = 0;
    for (uint32_t i = 0; i < all->group_count; i++) {
        const waits_group *group = &all->groups[i];
        m->groups[i] = *group;
        m->groups[i].started = started;
        for (uint32_t at = 0; at < group->size; at++)
            place[waits_member(group, at)] = at;
        for (; h < r->match.hub_count && r->match.hub[h].group == i; h++)
            for (uint32_t k = 0; k < r->match.hub[h].op_count; k++) {
                const waits_op *o = &all->ops[r->match.hub_ops[r->match.hub[h].op + k]];
                uint32_t at = place[all->units[o->unit].rank];
                if (r->posted[o->unit] && at < group->size && started[at] < o->ordinal + 1)
                    started[at] = o->ordinal + 1;
            }
        started += group->size;
    }
    m->groups[all->group_count] = (waits_group){.is_positional = true};
}

static psd_status take_stuck(const replay *r, replay_result *out)
{
    const waits_input *all = &r->in->all;
    uint32_t *place = calloc((size_t)all->rank_count + 1, sizeof *place);
    stuck_memory *m = memory_new(all);
    if (place == NULL || m == NULL) {
        memory_free(m);
        free(place);
        return PSD_ERR_NOMEM;
    }
    out->stuck = *all;
    out->stuck.thread_count = take_threads(r, m);
    take_units(r, m);
    take_groups(r, m, place);
    out->stuck.ranks = m->ranks;
    out->stuck.threads = m->threads;
    out->stuck.units = m->units;
    out->stuck.ops = m->ops;
    out->stuck.groups = m->groups;
    out->stuck.group_count = all->group_count + 1;
    out->stuck.pair_count = 0;
    out->call_of = m->call_of;
    out->is_stuck = out->stuck.thread_count > 0;
    out->memory = m;
    free(place);
    return PSD_OK;
}

/* --------------------------------------------------------------------------------------------------- run */

static psd_status make(replay *r)
{
    const waits_input *all = &r->in->all;
    size_t threads = (size_t)all->thread_count + 1, units = (size_t)all->unit_count + 1;
    r->at = calloc(threads, sizeof *r->at);
    r->left = calloc(threads, sizeof *r->left);
    r->turn = calloc(threads, sizeof *r->turn);
    r->ready = calloc(threads, sizeof *r->ready);
    r->waiter = calloc(units, sizeof *r->waiter);
    r->waiter_turn = calloc(units, sizeof *r->waiter_turn);
    r->open = calloc(units, sizeof *r->open);
    r->posted = calloc(units, sizeof *r->posted);
    r->done = calloc((size_t)all->op_count + 1, sizeof *r->done);
    if (r->at == NULL || r->left == NULL || r->turn == NULL || r->ready == NULL || r->waiter == NULL ||
        r->waiter_turn == NULL || r->open == NULL || r->posted == NULL || r->done == NULL)
        return PSD_ERR_NOMEM;
    for (uint32_t t = 0; t < all->thread_count; t++)
        r->at[t] = r->in->first_call[t];
    for (uint32_t u = 0; u < all->unit_count; u++) {
        r->waiter[u] = WAITS_NONE;
        r->open[u] = all->units[u].op_count;
    }
    psd_status status = waits_match(&r->match);
    if (status == PSD_OK)
        r->come = calloc((size_t)r->match.hub_count + 1, sizeof *r->come);
    return status == PSD_OK && r->come == NULL ? PSD_ERR_NOMEM : status;
}

static void unmake(replay *r)
{
    free(r->at);
    free(r->left);
    free(r->turn);
    free(r->ready);
    free(r->waiter);
    free(r->waiter_turn);
    free(r->open);
    free(r->posted);
    free(r->done);
    free(r->come);
    waits_graph_free(&r->match);
}

psd_status replay_run(const replay_input *input, replay_result *out)
{
    if (!calls_are_sound(input))
        return PSD_ERR_INVAL;
    replay_result result = {0};
    replay r = {.in = input, .match = {.in = &input->all}};
    psd_status status = make(&r);
    if (status == PSD_OK)
        status = run_all(&r);
    if (status == PSD_OK)
        status = take_stuck(&r, &result);
    unmake(&r);
    if (status == PSD_OK)
        *out = result;
    return status;
}

void replay_result_free(replay_result *result)
{
    memory_free(result->memory);
    memset(result, 0, sizeof *result);
}
