/* Jobs: made by their first HELLO, formed when the world is complete, ended when the last member left or was
 * lost. */
#include <stdlib.h>

#include "server/core/state.h"

#define REMEMBERED_WORLD 1024 /* the members of an ended job stay visible if they are no more than this */

job *jobs_find(const psd_core *core, const char *name)
{
    for (uint32_t i = 0; i < core->job_count; i++)
        if (strcmp(core->jobs[i]->name, name) == 0)
            return core->jobs[i];
    return NULL;
}

/* ------------------------------------------------------------------------------------------------- roster */

bool roster_add(psd_core *core, job *j, member *m)
{
    if (j->roster_count == j->roster_capacity) {
        uint32_t capacity = j->roster_capacity == 0 ? 16 : j->roster_capacity * 2;
        member **roster = realloc(j->roster, capacity * sizeof(member *));
        if (roster == NULL) {
            core->oom = true;
            return false;
        }
        j->roster = roster;
        j->roster_capacity = capacity;
    }
    m->roster_at = j->roster_count;
    j->roster[j->roster_count++] = m;
    return true;
}

void roster_remove(job *j, member *m)
{
    member *last = j->roster[--j->roster_count];
    j->roster[m->roster_at] = last;
    last->roster_at = m->roster_at;
}

/* -------------------------------------------------------------------------------------------- made, ended */

static void shelf_free(shelf *s, bury_free free_item)
{
    for (size_t i = 0; i < s->count; i++)
        free_item(s->items[i]);
    free(s->items);
    *s = (shelf){0};
}

void job_free(job *j)
{
    if (j == NULL)
        return;
    shelf_free(&j->tables, table_free);
    shelf_free(&j->plans, plan_free);
    shelf_free(&j->pendings, pending_free);
    shelf_free(&j->groups, group_free);
    for (uint32_t i = 0; i < j->roster_count; i++) {
        free(j->roster[i]->current);
        free(j->roster[i]->snap);
        free(j->roster[i]);
    }
    past_free(j);
    watch_free(j);
    incidents_free(j);
    free(j->roster);
    free(j->ranks);
    free(j->freed);
    free(j->next_waiters);
    free(j);
}

static void bury_shelf(psd_core *core, shelf *s, bury_free free_item)
{
    for (size_t i = 0; i < s->count; i++)
        bury(core, s->items[i], free_item);
    free(s->items);
    *s = (shelf){0};
}

static void forget_members(psd_core *core, job *j)
{
    while (j->roster_count > 0)
        member_forget(core, j->roster[j->roster_count - 1]);
    free(j->roster);
    free(j->ranks);
    j->roster = NULL;
    j->ranks = NULL;
    j->roster_capacity = 0;
}

static void job_end(psd_core *core, job *j)
{
    bury_shelf(core, &j->tables, table_free);
    bury_shelf(core, &j->plans, plan_free);
    bury_shelf(core, &j->pendings, pending_free);
    bury_shelf(core, &j->groups, group_free);
    past_bury(core, j);
    free(j->freed);
    j->freed = NULL;
    j->freed_count = 0;
    j->notice = false;
    core->reserved -= j->world;
    j->state = JOB_ENDED;
    note_add(core, j, -1, j->lost > 0 ? PSD_NOTE_WARN : PSD_NOTE_INFO,
             "job %s ended at epoch %llu: %u left, %u lost", j->name, (unsigned long long)j->epoch, j->left,
             j->lost);
    for (uint32_t i = 0; i < j->next_waiter_count; i++)
        (void)send_to_peer(core, j->next_waiters[i], PSD_MSG_RESYNC); /* their HELLO is welcome now */
    jobs_forget_waiters(j);
    if (j->roster_count > REMEMBERED_WORLD)
        forget_members(core, j);
}

void jobs_forget_waiters(job *j)
{
    free(j->next_waiters);
    j->next_waiters = NULL;
    j->next_waiter_count = 0;
}

void jobs_wait_for_end(psd_core *core, job *j, psd_peer peer)
{
    for (uint32_t i = 0; i < j->next_waiter_count; i++)
        if (j->next_waiters[i] == peer)
            return;
    if (j->next_waiters == NULL)
        j->next_waiters = core_calloc(core, MAX_NEXT_WAITERS, sizeof(*j->next_waiters));
    if (j->next_waiters != NULL && j->next_waiter_count < MAX_NEXT_WAITERS)
        j->next_waiters[j->next_waiter_count++] = peer;
}

void jobs_member_ended(psd_core *core, const member *m)
{
    job *j = m->job;
    if (j->have == 0)
        job_end(core, j);
    else if (j->state == JOB_RUNNING && j->have == j->helpers && !member_is_server(m) && !j->stopping) {
        j->drained = true;
        jobs_stop(core, j, "every rank that is not a server has left");
    }
}

void jobs_stop(psd_core *core, job *j, const char *text)
{
    j->stopping = true;
    (void)snprintf(j->stop_text, sizeof(j->stop_text), "%s", text);
    psd_msg *msg = send_to(core, to_job(j), PSD_MSG_STOP);
    (void)snprintf(msg->u.stop.text, sizeof(msg->u.stop.text), "%s", text);
    note_add(core, j, -1, PSD_NOTE_INFO, "job %s is told to stop: %s", j->name, text);
}

/* A free index, or that of an ended job when the table is full; NULL when all are in use. */
static job **job_place(psd_core *core)
{
    if (core->job_count == core->config.max_jobs) {
        for (uint32_t i = 0; i < core->job_count; i++)
            if (core->jobs[i]->state == JOB_ENDED)
                return &core->jobs[i];
        return NULL;
    }
    if ((core->job_count & (core->job_count - 1)) == 0) { /* grows at each power of two */
        size_t capacity = core->job_count == 0 ? 1 : (size_t)core->job_count * 2;
        job **jobs = realloc(core->jobs, capacity * sizeof(job *));
        if (jobs == NULL) {
            core->oom = true;
            return NULL;
        }
        core->jobs = jobs;
    }
    core->jobs[core->job_count] = NULL;
    return &core->jobs[core->job_count];
}

/* Starts a job, new or in the place of an ended one. */
static job *job_start(psd_core *core, job **place, const psd_msg *msg)
{
    const psd_msg_hello *hello = &msg->u.hello;
    job *j = core_calloc(core, 1, sizeof(*j));
    member **ranks = core_calloc(core, (size_t)hello->world_min, sizeof(member *));
    if (j == NULL || ranks == NULL) {
        free(j);
        free(ranks);
        return NULL;
    }
    uint32_t index = (uint32_t)(place - core->jobs);
    if (*place == NULL) {
        core->job_count++;
    } else {
        forget_members(core, *place);
        job_free(*place);
    }
    *j = (job){.index = index,
               .state = JOB_FORMING,
               .world = (uint32_t)hello->world_min,
               .world_min = hello->world_min,
               .world_max = hello->world_max,
               .ranks = ranks,
               .next_group = 1,
               .next_pending = PENDING_IDS,
               .next_table = 1};
    (void)snprintf(j->name, sizeof(j->name), "%s", msg->ident.job);
    (void)snprintf(j->first, sizeof(j->first), "%s", msg->ident.name);
    core->reserved += j->world;
    *place = j;
    return j;
}

/* "3 ranks", "2 to 4 ranks" */
static const char *ranks_range(int32_t min, int32_t max, char *out, size_t out_bytes)
{
    if (min == max)
        (void)snprintf(out, out_bytes, "%d rank%s", min, min == 1 ? "" : "s");
    else
        (void)snprintf(out, out_bytes, "%d to %d ranks", min, max);
    return out;
}

job *jobs_take(psd_core *core, const psd_msg *msg, psd_status *status, char *why, size_t why_bytes)
{
    const psd_msg_hello *hello = &msg->u.hello;
    job *j = jobs_find(core, msg->ident.job);
    if (j != NULL && j->state != JOB_ENDED && j->stopping) {
        *status = PSD_ERR_STOPPED;
        (void)snprintf(
            why, why_bytes,
            "job %s is told to stop (%s) and still has %u worker%s: start worker %s once all have left",
            j->name, j->stop_text, j->have, j->have == 1 ? "" : "s", msg->ident.name);
        return NULL;
    }
    if (j != NULL && j->state != JOB_ENDED) {
        if (j->world_min == hello->world_min && j->world_max == hello->world_max)
            return j;
        char asked[48], made[48];
        *status = PSD_ERR_INVAL;
        (void)snprintf(
            why, why_bytes,
            "worker %s asks for a world of %s, but worker %s, which came first, made job %s with %s: "
            "start all workers with one world size",
            msg->ident.name, ranks_range(hello->world_min, hello->world_max, asked, sizeof(asked)), j->first,
            j->name, ranks_range(j->world_min, j->world_max, made, sizeof(made)));
        return NULL;
    }
    *status = PSD_ERR_LIMIT;
    if ((uint32_t)hello->world_min > core->config.max_ranks - core->reserved) {
        (void)snprintf(why, why_bytes,
                       "a world of %d ranks is over this coordinator's limit of %u ranks over all jobs, of "
                       "which %u are taken",
                       hello->world_min, core->config.max_ranks, core->reserved);
        return NULL;
    }
    job **place = j != NULL ? &core->jobs[j->index] : job_place(core);
    if (place == NULL) {
        (void)snprintf(why, why_bytes, "this coordinator already runs its limit of %u jobs",
                       core->config.max_jobs);
        return NULL;
    }
    return job_start(core, place, msg);
}

/* ---------------------------------------------------------------------------------------------- formation */

static int by_host_then_arrival(const void *a, const void *b)
{
    const member *x = *(member *const *)a;
    const member *y = *(member *const *)b;
    int order = strcmp(x->host, y->host);
    return order != 0 ? order : (x->arrival > y->arrival) - (x->arrival < y->arrival);
}

/* Explicit ranks stand; the others fill the gaps in the order of hosts, then of arrival. */
static bool assign_ranks(psd_core *core, job *j)
{
    member **rest = core_calloc(core, j->world, sizeof(member *));
    if (rest == NULL)
        return false;
    uint32_t count = 0;
    for (uint32_t i = 0; i < j->roster_count; i++)
        if (j->roster[i]->state == MEMBER_WAITING && j->roster[i]->rank < 0)
            rest[count++] = j->roster[i];
    qsort(rest, count, sizeof(member *), by_host_then_arrival);
    uint32_t rank = 0;
    for (uint32_t i = 0; i < count; i++) {
        while (j->ranks[rank] != NULL && member_is_live(j->ranks[rank]))
            rank++;
        if (j->ranks[rank] != NULL)
            member_forget(core, j->ranks[rank]);
        j->ranks[rank] = rest[i];
        rest[i]->rank = (int32_t)rank;
    }
    free(rest);
    return true;
}

/* Those who waited but are gone hold no rank: they are forgotten, the world is made of the living. */
static void forget_the_gone(psd_core *core, job *j)
{
    for (uint32_t i = j->roster_count; i-- > 0;)
        if (!member_is_live(j->roster[i]))
            member_forget(core, j->roster[i]);
}

void jobs_form(psd_core *core, job *j)
{
    forget_the_gone(core, j);
    if (!assign_ranks(core, j))
        return;
    j->state = JOB_RUNNING;
    j->epoch = 1;
    j->notice = false;
    for (uint32_t i = 0; i < j->roster_count; i++) {
        j->roster[i]->in_world_group = true;
        member_activate(core, j->roster[i]);
    }
    j->world_group = j->next_group; /* which groups_create takes */
    psd_msg *msg = send_to(core, to_job(j), PSD_MSG_WELCOME);
    members_fill_welcome(core, j, &msg->u.welcome);
    note_add(core, j, -1, PSD_NOTE_INFO, "job %s: the world of %u rank%s is complete, epoch 1", j->name,
             j->world, j->world == 1 ? "" : "s");
    groups_create(core, j, j->world, NULL, NULL, NULL);
}

/* ---------------------------------------------------------------------------------------- what is missing */

#define NAMED_MISSING 4
#define BRIEF_RANKS   256 /* looked at for the text that each arrival gets */

static void missing_text(job *j, uint32_t rank, char *out, size_t out_bytes)
{
    const member *former = j->ranks[rank];
    if (former == NULL)
        psd_append(out, out_bytes, "rank %u (never arrived)", rank);
    else
        psd_append(out, out_bytes, "rank %u (worker %s came and %s)", rank, former->name,
                   former->state == MEMBER_LEFT ? "left" : "was lost");
}

/* The ranks nobody has claimed, found from the lowest that may be free on, so that telling each arrival stays
 * cheap. */
void job_waiting_text(job *j, bool brief, char *out, size_t out_bytes)
{
    uint32_t end = brief && j->world - j->lowest_free > BRIEF_RANKS ? j->lowest_free + BRIEF_RANKS : j->world;
    uint32_t missing = j->world - j->have;
    (void)snprintf(out, out_bytes, "have %u of %u", j->have, j->world);
    if (missing == 0)
        return;
    if (j->state == JOB_FORMING && j->claimed != j->have) {
        psd_append(out, out_bytes, ", %u more worker%s must come", missing, missing == 1 ? "" : "s");
        return;
    }
    uint32_t named = 0;
    for (uint32_t rank = j->lowest_free; rank < end && named < NAMED_MISSING && named < missing; rank++) {
        if (j->ranks[rank] != NULL && member_is_live(j->ranks[rank]))
            continue;
        if (named == 0)
            j->lowest_free = rank;
        psd_append(out, out_bytes, named == 0 ? ", missing " : ", ");
        missing_text(j, rank, out, out_bytes);
        named++;
    }
    if (named == 0)
        j->lowest_free = end;
    if (named < missing)
        psd_append(out, out_bytes, named == 0 ? ", missing %u" : " and %u more", missing - named);
}
