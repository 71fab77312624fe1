/* Groups: opening, breaking, closing. Each is a group of the host backend, too, whose links carry the small-message
 * channel and tell at once when a rank is lost, which MPI does not. All groups of a context use one communicator:
 * making one for each would block (MPI_Comm_create_group), and their messages name their group anyway. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/backend/mpi/engine.h"

#define STUCK_NS                                                                                             \
    (5 * PSD_NS_PER_S) /* without a sign from MPI, what it still has of a broken group never ends */

/* -------------------------------------------------------------------------------------------------- new */

static void group_free(mgroup *g)
{
    free(g->members);
    free(g->member);
    free(g->past);
    free(g);
}

/* FNV-1a: tells groups of different jobs and epochs apart; nobody is kept out by it. */
static uint64_t hash_token(const psd_group_desc *desc)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint32_t i = 0; i < desc->token_bytes; i++)
        hash = (hash ^ desc->token[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static mgroup *group_new(engine *e, const psd_group_desc *desc)
{
    size_t size = (size_t)desc->size;
    mgroup *g = calloc(1, sizeof *g);
    if (g == NULL)
        return NULL;
    g->engine = e;
    g->id = desc->id;
    g->rank = desc->rank;
    g->size = desc->size;
    g->token_hash = hash_token(desc);
    list_init(&g->node);
    list_init(&g->settling.node);
    list_init(&g->requests);
    list_init(&g->posted_any);
    list_init(&g->early);
    g->members = calloc(size, sizeof *g->members);
    g->member = calloc(size, sizeof *g->member);
    g->past = calloc(ENGINE_PAST, sizeof *g->past);
    if (g->members == NULL || g->member == NULL || g->past == NULL) {
        group_free(g);
        return NULL;
    }
    memcpy(g->members, desc->members, size * sizeof *g->members);
    for (size_t i = 0; i < size; i++) {
        list_init(&g->member[i].posted);
        list_init(&g->member[i].messages);
        list_init(&g->member[i].coll_messages);
    }
    return g;
}

/* ----------------------------------------------------------------------------------------------- opening */

/* psd's ranks and MPI's are the same numbers, or messages would go astray. */
static bool ranks_agree(mgroup *g)
{
    const engine *e = g->engine;
    uint32_t mine = g->members[g->rank];
    char text[400] = "";
    for (int32_t i = 0; i < g->size && text[0] == '\0'; i++)
        if (g->members[i] >= (uint32_t)e->size)
            snprintf(text, sizeof text,
                     "psd's world has a rank %u, but mpirun started only %d processes: start all ranks of "
                     "the job by "
                     "one mpirun",
                     g->members[i], e->size);
    if (text[0] == '\0' && mine != (uint32_t)e->rank)
        snprintf(text, sizeof text,
                 "this process is rank %u of psd's world and rank %d of MPI's: unset PSD_RANK and RANK, or "
                 "set them "
                 "to OMPI_COMM_WORLD_RANK",
                 mine, e->rank);
    if (text[0] != '\0')
        group_break(g, PSD_ERR_BACKEND, -1, false, text);
    return text[0] == '\0';
}

static void note_here(mgroup *g, int32_t rank, uint64_t token_hash)
{
    char text[200];
    if (token_hash != g->token_hash) {
        snprintf(text, sizeof text,
                 "group %u: world rank %u has another token for it: it is of another job or epoch", g->id,
                 g->members[rank]);
        group_break(g, PSD_ERR_PROTOCOL, (int32_t)g->members[rank], true, text);
        return;
    }
    g->here += !g->member[rank].is_here;
    g->member[rank].is_here = true;
    if (g->here < g->size)
        return;
    g->engine->has_worked = true;
    atomic_store_explicit(&g->is_ready, true, memory_order_release);
}

static void adopt_early(mgroup *g)
{
    engine *e = g->engine;
    LIST_EACH(&e->early_here, node, after)
    {
        message *m = LIST_ENTRY(node, message, node);
        const frame *f = &m->header;
        if (f->group != g->id)
            continue;
        if (f->source < (uint32_t)g->size && g->members[f->source] == (uint32_t)m->source)
            note_here(g, (int32_t)f->source, f->word);
        list_remove(node);
        e->early_count--;
        free(m);
    }
}

void group_introduce(mgroup *g)
{
    if (!ranks_agree(g))
        return;
    frame f = wire_frame(g, FRAME_HERE);
    f.word = g->token_hash;
    /* From the next rank on, so that not all begin with rank 0. */
    for (int32_t k = 1; k < g->size; k++)
        wire_send(g->engine, (int)g->members[(g->rank + k) % g->size], &f, NULL);
    note_here(g, g->rank, g->token_hash);
    adopt_early(g);
}

static void open_here(command *c)
{
    mgroup *g = LIST_ENTRY(c, mgroup, opening);
    g->is_open = true;
    list_append(&g->engine->groups, &g->node);
    if (process.state == PROCESS_FAILED)
        group_break(g, PSD_ERR_BACKEND, -1, false, process.why);
    else if (g->engine->has_comm)
        group_introduce(g);
}

void group_on_here(engine *e, int source, const frame *f)
{
    mgroup *g = engine_group(e, f->group);
    if (g != NULL) {
        if (f->source < (uint32_t)g->size && g->members[f->source] == (uint32_t)source)
            note_here(g, (int32_t)f->source, f->word);
        return;
    }
    message *m = e->early_count < ENGINE_EARLY ? calloc(1, sizeof *m) : NULL;
    if (m == NULL)
        return; /* its group is not opened in time, and says which rank is missing */
    m->source = source;
    m->header = *f;
    e->early_count++;
    list_append(&e->early_here, &m->node);
}

static bool desc_is_legal(const psd_group_desc *desc)
{
    bool has_ranks =
        desc->size >= 1 && desc->size <= PSD_MAX_WORLD && desc->rank >= 0 && desc->rank < desc->size;
    bool has_token = desc->token_bytes <= PSD_MAX_TOKEN && (desc->token_bytes == 0 || desc->token != NULL);
    return has_ranks && has_token && desc->members != NULL;
}

psd_status group_begin(engine *e, const psd_group_desc *desc, mgroup **out, char *why, size_t why_bytes)
{
    if (!desc_is_legal(desc)) {
        snprintf(why, why_bytes, "group %u: its description is not valid", desc->id);
        return PSD_ERR_INVAL;
    }
    mgroup *g = group_new(e, desc);
    if (g == NULL) {
        snprintf(why, why_bytes, "out of memory for group %u of %d ranks", desc->id, desc->size);
        return PSD_ERR_NOMEM;
    }
    psd_status status = e->host->group_begin(e->below, desc, &g->below, why, why_bytes);
    if (status != PSD_OK && status != PSD_INPROGRESS) {
        group_free(g);
        return status;
    }
    g->opening.run = open_here;
    process_push(&g->opening);
    *out = g;
    return PSD_OK;
}

psd_status group_poll(mgroup *g, char *why, size_t why_bytes)
{
    pthread_mutex_lock(&process.lock);
    psd_status status = group_status(g);
    bool is_starting = process.state == PROCESS_STARTING;
    if (status != PSD_OK)
        snprintf(why, why_bytes, "%s", g->text);
    pthread_mutex_unlock(&process.lock);
    if (status == PSD_OK)
        status = g->engine->host->group_poll(g->below, why, why_bytes);
    if (status == PSD_OK && !atomic_load_explicit(&g->is_ready, memory_order_acquire)) {
        status = PSD_INPROGRESS;
        snprintf(why, why_bytes,
                 is_starting ? "MPI_Init waits for all processes that mpirun started; each must call psd_init"
                             : "MPI has not brought a first message from every rank of the group");
    }
    return status;
}

/* ---------------------------------------------------------------------------------------------- breaking */

/* Ends what can be ended. What MPI has goes on to its end; see group_timers. */
static void settle(command *c)
{
    mgroup *g = LIST_ENTRY(c, mgroup, settling);
    if (!g->is_open || g->is_settled)
        return;
    g->is_settled = true;
    g->moved_at = psd_now_ns();
    match_drop(g);
    LIST_EACH(&g->requests, node, after)
    {
        request_fail(LIST_ENTRY(node, psd_request, in_group));
    }
    g->engine->host->group_abort(g->below, group_status(g), g->text);
}

void group_break(mgroup *g, psd_status status, int32_t culprit, bool tell, const char *text)
{
    const engine *e = g->engine;
    pthread_mutex_lock(&process.lock);
    bool is_first = group_status(g) == PSD_OK;
    if (is_first) {
        snprintf(g->text, sizeof g->text, "%s", text);
        atomic_store_explicit(&g->status, (int)status, memory_order_release);
        process.is_doubtful = true;
        if (status == PSD_ERR_IO) /* MPI's own */
            process.is_unclean = true;
    }
    pthread_mutex_unlock(&process.lock);
    if (!is_first)
        return;
    g->settling.run = settle;
    process_push(&g->settling);
    if (tell)
        e->on_group_broken(e->owner, g->id, status, culprit, text);
}

void group_break_all(engine *e, psd_status status, int culprit, const char *why)
{
    char text[PSD_MAX_TEXT];
    for (list *node = e->groups.next; node != &e->groups; node = node->next) {
        mgroup *g = LIST_ENTRY(node, mgroup, node);
        snprintf(text, sizeof text, "group %u: world rank %d sent a frame that is %s", g->id, culprit, why);
        group_break(g, status, culprit, true, text);
    }
}

typedef struct relay {
    command command;
    engine *engine;
    uint32_t group;
    psd_status status;
    int32_t culprit;
    char text[PSD_MAX_TEXT];
} relay;

static void run_relay(command *c)
{
    relay *r = LIST_ENTRY(c, relay, command);
    mgroup *g = engine_group(r->engine, r->group);
    if (g != NULL)
        group_break(g, r->status, r->culprit, true, r->text);
    free(r);
}

void group_relay_broken(void *owner, uint32_t group, psd_status status, int32_t culprit, const char *text)
{
    relay *r = malloc(sizeof *r);
    if (r == NULL)
        return; /* the group's timer finds it */
    r->command.run = run_relay;
    r->engine = owner;
    r->group = group;
    r->status = status;
    r->culprit = culprit;
    snprintf(r->text, sizeof r->text, "%s", text);
    process_push(&r->command);
}

/* The host backend's group may have been told by a member that it is broken. */
static void look_below(mgroup *g)
{
    char text[PSD_MAX_TEXT];
    psd_status status = g->engine->host->group_error(g->below, text, sizeof text);
    if (status != PSD_OK)
        group_break(g, status, -1, true, text);
}

void group_timers(mgroup *g, psd_time_ns now)
{
    const engine *e = g->engine;
    if (list_empty(&g->requests))
        return;
    if (group_status(g) == PSD_OK)
        look_below(g);
    if (g->is_settled && now - g->moved_at > STUCK_NS) {
        g->moved_at = PSD_NEVER; /* once */
        e->on_stuck(e->owner, group_status(g), g->text);
        return;
    }
    for (list *node = g->requests.next; node != &g->requests && group_status(g) == PSD_OK; node = node->next)
        request_timers(LIST_ENTRY(node, psd_request, in_group), now);
}

/* ----------------------------------------------------------------------------------------------- closing */

static bool all_others_have_closed(const mgroup *g)
{
    for (int32_t i = 0; i < g->size; i++)
        if (i != g->rank && !g->member[i].has_closed)
            return false;
    return g->size > 1;
}

void group_check_closed(mgroup *g, const xfer *x)
{
    bool is_waiting = x->state == XFER_POSTED || x->state == XFER_OFFERED;
    bool is_alone = x->rank < 0 ? all_others_have_closed(g) : g->member[x->rank].has_closed;
    if (!is_waiting || !is_alone)
        return;
    char text[PSD_MAX_TEXT], who[32] = "every other rank";
    if (x->rank >= 0)
        snprintf(who, sizeof who, "rank %d", x->rank);
    snprintf(text, sizeof text, "group %u: %s has closed it and takes no part in rank %d's %s", g->id, who,
             g->rank, x->request->label);
    group_break(g, PSD_ERR_PEER_FAILED, x->rank < 0 ? -1 : (int32_t)g->members[x->rank], true, text);
}

void group_on_closed(mgroup *g, int32_t rank)
{
    g->member[rank].has_closed = true;
    for (list *node = g->requests.next; node != &g->requests; node = node->next) {
        psd_request *r = LIST_ENTRY(node, psd_request, in_group);
        for (list *at = r->xfers.next; at != &r->xfers; at = at->next)
            group_check_closed(g, LIST_ENTRY(at, xfer, in_request));
    }
}

static void close_here(command *c)
{
    mgroup *g = LIST_ENTRY(c, mgroup, closing);
    engine *e = g->engine;
    frame f = wire_frame(g, FRAME_CLOSED);
    for (int32_t i = 0; e->has_comm && i < g->size; i++)
        if (i != g->rank && g->member[i].is_here && group_status(g) == PSD_OK)
            wire_send(e, (int)g->members[i], &f, NULL);
    match_drop(g);
    list_remove(&g->node);
    g->is_open = false;
    pthread_mutex_lock(&process.lock);
    /* A peer that left may have broken the group meanwhile; there is nothing left to end, and soon no group. */
    list_remove(&g->settling.node);
    g->is_closed = true;
    pthread_cond_broadcast(&process.done);
    pthread_mutex_unlock(&process.lock);
}

void group_close(mgroup *g)
{
    if (g == NULL)
        return;
    pthread_mutex_lock(&process.lock);
    g->closing.run = close_here;
    /* While MPI_Init waits for ranks that never come, nothing runs: the group stays the thread's. */
    bool is_stuck = process.state == PROCESS_STARTING;
    if (is_stuck)
        process.is_unclean = true;
    else
        process_push_and_wait(&g->closing, &g->is_closed);
    pthread_mutex_unlock(&process.lock);
    g->engine->host->group_close(g->below);
    if (!is_stuck)
        group_free(g);
}
