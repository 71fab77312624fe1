/* A context's part of MPI: its communicator, and one turn of the communication thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "worker/backend/mpi/engine.h"

#define TIMERS_NS (20 * PSD_NS_PER_MS)
#define DRAIN_NS  (2 * PSD_NS_PER_S) /* at the end of a context: for frames that MPI has */
#define TAG_MOST  0x3ffffff

/* ---------------------------------------------------------------------------------------- communicator */

/* A communicator of psd's own: what the program itself sends on MPI_COMM_WORLD is not taken for psd's. Without
 * blocking, since a rank may never come. */
static void attach(command *c)
{
    engine *e = LIST_ENTRY(c, engine, attaching);
    process.context = e;
    if (process.state != PROCESS_UP)
        return;
    int code = MPI_Comm_idup(MPI_COMM_WORLD, &e->comm, &e->duplicating);
    if (code != MPI_SUCCESS)
        engine_failed(e, "MPI_Comm_idup", code);
}

static void read_communicator(engine *e)
{
    int *limit = NULL;
    int has_limit = 0;
    MPI_Comm_set_errhandler(e->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(e->comm, &e->rank);
    MPI_Comm_size(e->comm, &e->size);
    MPI_Comm_get_attr(e->comm, MPI_TAG_UB, &limit, &has_limit);
    /* The standard promises 32767. Only transfers in flight need tags of their own. */
    e->tag_limit = has_limit && *limit < TAG_MOST ? *limit : TAG_MOST;
    e->next_tag = TAG_DATA;
}

static bool test_communicator(engine *e)
{
    int is_done = 0;
    if (e->duplicating == MPI_REQUEST_NULL)
        return false;
    int code = MPI_Test(&e->duplicating, &is_done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS)
        engine_failed(e, "MPI_Comm_idup", code);
    if (code != MPI_SUCCESS || !is_done)
        return false;
    read_communicator(e);
    if (!wire_open(e)) {
        engine_failed(e, "the receives of frames", MPI_ERR_NO_MEM);
        return false;
    }
    e->has_comm = true;
    for (list *node = e->groups.next; node != &e->groups; node = node->next)
        group_introduce(LIST_ENTRY(node, mgroup, node));
    return true;
}

/* ------------------------------------------------------------------------------------------------- turn */

void engine_failed(engine *e, const char *call, int code)
{
    char text[PSD_MAX_TEXT];
    char reason[MPI_MAX_ERROR_STRING] = "";
    int bytes = 0;
    MPI_Error_string(code, reason, &bytes);
    for (list *node = e->groups.next; node != &e->groups; node = node->next) {
        mgroup *g = LIST_ENTRY(node, mgroup, node);
        snprintf(text, sizeof text, "group %u: rank %d: %s failed: %.400s", g->id, g->rank, call, reason);
        group_break(g, PSD_ERR_IO, -1, true, text);
    }
}

mgroup *engine_group(engine *e, uint32_t id)
{
    for (list *node = e->groups.next; node != &e->groups; node = node->next) {
        mgroup *g = LIST_ENTRY(node, mgroup, node);
        if (g->id == id)
            return g;
    }
    return NULL;
}

bool engine_turn(engine *e, psd_time_ns now)
{
    bool happened = e->has_comm ? wire_poll(e) : test_communicator(e);
    if (now >= e->timers_at) {
        e->timers_at = now + TIMERS_NS;
        for (list *node = e->groups.next; node != &e->groups; node = node->next)
            group_timers(LIST_ENTRY(node, mgroup, node), now);
    }
    if (e->has_done) {
        e->has_done = false;
        happened = true;
        pthread_mutex_lock(&process.lock);
        if (process.waiters > 0)
            pthread_cond_broadcast(&process.done);
        pthread_mutex_unlock(&process.lock);
    }
    return happened;
}

/* --------------------------------------------------------------------------------------- open and close */

static void free_early(engine *e)
{
    LIST_EACH(&e->early_here, node, after)
    {
        list_remove(node);
        free(LIST_ENTRY(node, message, node));
    }
}

static void detach(command *c)
{
    engine *e = LIST_ENTRY(c, engine, detaching);
    psd_time_ns until = psd_now_ns() + DRAIN_NS;
    while (e->has_comm && e->work_count > 0 && psd_now_ns() < until)
        wire_poll(e);
    /* Memory that MPI still has stays its. */
    bool is_drained = e->work_count == 0;
    if (e->has_comm)
        wire_close(e);
    free_early(e);
    process.context = NULL;
    pthread_mutex_lock(&process.lock);
    if (!is_drained || !e->has_worked)
        process.is_unclean = true;
    e->is_detached = true;
    pthread_cond_broadcast(&process.done);
    pthread_mutex_unlock(&process.lock);
}

static psd_status read_piece(engine *e, char *why, size_t why_bytes)
{
    const char *text = getenv("PSD_MPI_PIECE");
    char echo[PSD_ECHO_BYTES];
    int64_t bytes = (int64_t)ENGINE_PIECE;
    if (text != NULL && text[0] != '\0' &&
        (!psd_parse_bytes(text, &bytes) || bytes < 1 || bytes > INT32_MAX)) {
        snprintf(why, why_bytes, "PSD_MPI_PIECE is \"%s\"; write bytes, or 64K, 1.5M, up to 2147483647",
                 psd_echo(text, echo, sizeof echo));
        return PSD_ERR_INVAL;
    }
    e->piece = (size_t)bytes;
    return PSD_OK;
}

psd_status engine_open(const psd_backend_config *config, engine **out, char *why, size_t why_bytes)
{
    psd_status status = PSD_ERR_NOMEM;
    engine *e = calloc(1, sizeof *e);
    if (e == NULL) {
        snprintf(why, why_bytes, "mpi: out of memory");
        return status;
    }
    e->attaching.run = attach;
    e->detaching.run = detach;
    e->eager_limit = (uint64_t)config->eager_limit;
    e->on_group_broken = config->on_group_broken;
    e->on_stuck = config->on_stuck;
    e->owner = config->owner;
    e->host = config->host;
    e->duplicating = MPI_REQUEST_NULL;
    list_init(&e->groups);
    list_init(&e->early_here);
    status = read_piece(e, why, why_bytes);
    if (status != PSD_OK)
        goto free_engine;
    status = process_reserve(e, why, why_bytes);
    if (status != PSD_OK)
        goto free_engine;
    psd_backend_config below = *config;
    below.owner = e;
    below.on_group_broken = group_relay_broken;
    below.on_disagreement = NULL;
    status = e->host->open(&below, &e->below, why, why_bytes);
    if (status != PSD_OK)
        goto give_back;
    process_push(&e->attaching);
    *out = e;
    return PSD_OK;

give_back:
    process_give_back(e);
free_engine:
    free(e);
    return status;
}

void engine_close(engine *e)
{
    if (e == NULL)
        return;
    e->host->close(e->below); /* first: it tells of broken groups until then */
    pthread_mutex_lock(&process.lock);
    /* MPI_Init may be waiting for ranks that never come: then the engine stays its. */
    bool is_stuck = process.state == PROCESS_STARTING;
    if (is_stuck)
        process.is_unclean = true;
    else
        process_push_and_wait(&e->detaching, &e->is_detached);
    pthread_mutex_unlock(&process.lock);
    if (is_stuck)
        return; /* still reserved: a second context is refused */
    process_give_back(e);
    free(e->requests);
    free(e->works);
    free(e->indices);
    free(e->statuses);
    free(e->xfers);
    free(e->generations);
    free(e->free_xfers);
    free(e->peers);
    free(e);
}
