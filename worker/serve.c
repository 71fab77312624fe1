/* psd_serve: the loop of a rank that holds shards of tables. It takes assignments from the agent, requests
 * from the small-message channel, and moves what they ask for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "common/log.h"
#include "worker/serve.h"
#include "worker/serve_watch.h"
#include "worker/table_shard.h"

/* How long the loop sleeps when nothing moves: what it takes to notice an assignment or the end. */
#define IDLE_NS (20 * PSD_NS_PER_MS)
/* How long it waits for data before it looks for requests again. */
#define DATA_NS (PSD_NS_PER_MS / 2)
#define TELL_NS (200 * PSD_NS_PER_MS)
/* Requests taken before data is looked at. */
#define BATCH     64
#define IN_FLIGHT 256

typedef struct server {
    psd_ctx *ctx;
    const char *file;
    int line;
    table_shard *shards; /* serving */
    table_shard *freed;  /* psd wants them freed; their thread still joins */
    psd_time_ns looked;  /* when the agent was asked last */
    psd_time_ns told;    /* when progress was told last */
    serve_watch watch;
} server;

static void tell(const server *s, psd_msg_type type, const psd_msg_table *body)
{
    psd_msg msg = {.type = type, .u.table = *body};
    psd_status status = psd_agent_tell(s->ctx->agent, &msg);
    if (status != PSD_OK)
        psd_log("tables", PSD_LOG_WARN, "cannot tell psd of table %u: %s", body->table,
                psd_status_text(status));
}

static table_shard **find_shard(server *s, uint32_t table)
{
    table_shard **at = &s->shards;
    while (*at != NULL && (*at)->id != table)
        at = &(*at)->next;
    return at;
}

static uint64_t shard_bytes(const table_shard *shard)
{
    return (uint64_t)(shard->memory.data != NULL ? shard->memory.shape[0] : 0) * sizeof(float);
}

static void take_assignment(server *s, const psd_msg_table_open *assign)
{
    psd_msg_table ready = {.table = assign->table};
    table_shard *shard = NULL;
    table_shard *known = *find_shard(s, assign->table);
    if (known != NULL) { /* told again after a resync: psd may not have heard the answer */
        ready.bytes = shard_bytes(known);
        tell(s, PSD_MSG_TABLE_READY, &ready);
        return;
    }
    ready.status = table_shard_make(s->file, s->line, s->ctx, assign, &shard, ready.text, sizeof(ready.text));
    if (ready.status == PSD_OK) {
        ready.bytes = shard_bytes(shard);
        shard->next = s->shards;
        s->shards = shard;
        psd_log("tables", PSD_LOG_INFO, "table \"%s\": %zu of its elements here, %u trainers", shard->name,
                shard->elements, shard->trainer_count);
    }
    tell(s, PSD_MSG_TABLE_READY, &ready);
}

static void take_free(server *s, uint32_t table)
{
    table_shard **at = find_shard(s, table);
    table_shard *shard = *at;
    if (shard == NULL)
        return;
    *at = shard->next;
    shard->next = s->freed;
    s->freed = shard;
}

/* Frees what can be freed without waiting. */
static void reap(server *s)
{
    table_shard **at = &s->freed;
    while (*at != NULL) {
        table_shard *shard = *at;
        if (!table_shard_may_free(shard)) {
            at = &shard->next;
            continue;
        }
        *at = shard->next;
        table_shard_free(shard);
    }
}

/* PSD_OK while there was one. */
static psd_status take_from_agent(server *s, psd_msg_type type)
{
    char why[PSD_MAX_TEXT];
    psd_msg_box *box = NULL;
    psd_status status = psd_agent_take(s->ctx->agent, type, 0, 0, &box, why, sizeof(why));
    if (status != PSD_OK)
        return status;
    if (type == PSD_MSG_TABLE_ASSIGN)
        take_assignment(s, &box->msg.u.table_open);
    else
        take_free(s, box->msg.u.table.table);
    psd_msg_box_free(box);
    return PSD_OK;
}

static void look_at_agent(server *s, psd_time_ns now)
{
    if (now - s->looked < IDLE_NS)
        return;
    s->looked = now;
    while (take_from_agent(s, PSD_MSG_TABLE_ASSIGN) == PSD_OK)
        continue;
    while (take_from_agent(s, PSD_MSG_TABLE_FREE) == PSD_OK)
        continue;
    reap(s);
}

static void tell_progress(server *s, psd_time_ns now)
{
    if (now - s->told < TELL_NS)
        return;
    s->told = now;
    for (table_shard *shard = s->shards; shard != NULL; shard = shard->next) {
        if (!shard->changed)
            continue;
        shard->changed = false;
        psd_msg_table body = {
            .table = shard->id,
            .clock = shard->clock,
            .pushes = shard->pushes,
            .pulls = shard->pulls,
            .bytes = shard_bytes(shard),
        };
        tell(s, PSD_MSG_TABLE_PROGRESS, &body);
    }
}

static void refuse(server *s, uint32_t world_rank, const table_msg *msg)
{
    uint8_t data[PSD_TABLE_MSG_BYTES];
    table_msg nak = {
        .kind = TABLE_NAK,
        .answers = msg->kind,
        .table = msg->table,
        .status = PSD_ERR_NOT_FOUND,
        .sequence = msg->sequence,
    };
    snprintf(nak.text, sizeof(nak.text), "rank %d has no table %u", s->ctx->rank, msg->table);
    /* A stranger's full link is no reason to wait. */
    s->ctx->ops->chan_send(s->ctx->backend, world_rank, data, table_msg_encode(&nak, data));
}

static void take_request(server *s, const psd_chan_msg *raw)
{
    table_msg msg;
    bool is_known = table_msg_decode(raw->data, raw->bytes, &msg);
    if (is_known && msg.kind == TABLE_SERVER) {
        serve_watch_server(&s->watch, raw->source);
        return;
    }
    if (!is_known || msg.kind == TABLE_ACK || msg.kind == TABLE_NAK) {
        psd_log("tables", PSD_LOG_WARN,
                "dropped a message of %u bytes from rank %u: not a request to a table's server", raw->bytes,
                raw->source);
        return;
    }
    table_shard *shard = *find_shard(s, msg.table);
    if (shard == NULL)
        refuse(s, raw->source, &msg);
    else
        table_shard_request(shard, raw->source, &msg);
}

/* Requests until there is none, for a bounded time; the first may be waited for. */
static psd_status take_requests(server *s, psd_time_ns first_until)
{
    psd_chan_msg raw;
    for (int i = 0; i < BATCH; i++) {
        psd_status status = s->ctx->ops->chan_recv(s->ctx->backend, i == 0 ? first_until : 0, &raw);
        if (status == PSD_ERR_TIMEOUT)
            return PSD_OK;
        if (status != PSD_OK)
            return status;
        take_request(s, &raw);
    }
    return PSD_OK;
}

/* One turn: waits for data if some is on its way, else for a request. */
static psd_status turn(server *s)
{
    psd_request *in_flight[IN_FLIGHT];
    int32_t count = 0;
    for (table_shard *shard = s->shards; shard != NULL; shard = shard->next)
        count = table_shard_in_flight(shard, in_flight, count, IN_FLIGHT);
    psd_time_ns now = psd_now_ns();
    if (count > 0)
        s->ctx->ops->wait(s->ctx->backend, in_flight, count, true, now + DATA_NS);
    psd_status status = take_requests(s, count > 0 ? 0 : now + IDLE_NS);
    for (table_shard *shard = s->shards; shard != NULL; shard = shard->next)
        table_shard_progress(shard);
    now = psd_now_ns();
    look_at_agent(s, now);
    tell_progress(s, now);
    return status;
}

/* Trainers of a table that is still open would wait for this server. What waits for psd or for trainers to come to
 * a table's group would hold this one back. */
static void free_all(server *s, bool job_goes_on)
{
    psd_agent_leaving(s->ctx->agent);
    while (s->shards != NULL) {
        if (job_goes_on)
            table_shard_abandon(s->shards);
        take_free(s, s->shards->id);
    }
    while (s->freed != NULL) {
        table_shard *shard = s->freed;
        s->freed = shard->next;
        table_shard_free(shard);
    }
}

/* Nobody is left to serve, and nobody to tell that the job has ended. */
static psd_status end_alone(PSD_AT, psd_ctx *ctx, bool is_clean)
{
    char cut[32];
    char text[PSD_MAX_TEXT];
    psd_format_ns(psd_agent_cut_ns(ctx->agent), cut, sizeof(cut));
    snprintf(text, sizeof(text),
             "psd at %s has not been connected for %s, and every rank that is not a server has left%s: this "
             "one ends",
             ctx->settings.coordinator, cut, is_clean ? "" : ", not all of them well");
    ctx->psd_is_gone = true;
    if (!is_clean)
        return psd_error_set(file, line, PSD_ERR_NO_COORDINATOR, "psd_serve: %.900s", text);
    psd_log("tables", PSD_LOG_WARN, "%s", text);
    return PSD_OK;
}

psd_status psd_serve_at(PSD_AT, psd_ctx *ctx)
{
    return psd_serve_until(file, line, ctx, NULL);
}

static psd_status check(PSD_AT, psd_ctx *ctx)
{
    psd_status status = psd_ctx_check(file, line, "psd_serve", ctx);
    if (status != PSD_OK)
        return status;
    if (strcmp(ctx->settings.role, "server") != 0)
        return psd_error_set(
            file, line, PSD_ERR_INVAL,
            "psd_serve: rank %d joined with role \"%s\"; tables live on ranks of role \"server\"", ctx->rank,
            ctx->settings.role);
    if ((ctx->ops->caps & PSD_CAP_CHANNEL) == 0)
        return psd_error_set(file, line, PSD_ERR_UNSUPPORTED,
                             "psd_serve: the %s backend has no small-message channel", ctx->ops->name);
    return PSD_OK;
}

psd_status psd_serve_until(PSD_AT, psd_ctx *ctx, const volatile sig_atomic_t *stop)
{
    psd_status status = check(file, line, ctx);
    if (status != PSD_OK)
        return status;
    server s = {.ctx = ctx, .file = file, .line = line};
    if (serve_watch_init(&s.watch, ctx) != PSD_OK)
        return psd_error_set(file, line, PSD_ERR_NOMEM, "psd_serve: out of memory");
    int ended = PSD_OK;
    bool is_alone = false;
    while (status == PSD_OK && ended == PSD_OK && !is_alone && !(stop != NULL && *stop)) {
        status = turn(&s);
        ended = atomic_load(&ctx->ended);
        is_alone = serve_watch_is_over(&s.watch, psd_now_ns());
    }
    bool is_clean = s.watch.is_clean;
    free_all(&s, ended == PSD_OK && !is_alone);
    serve_watch_free(&s.watch);
    if (ended == PSD_ERR_STOPPED || (ended == PSD_OK && status == PSD_OK && !is_alone))
        return PSD_OK;
    if (ended != PSD_OK)
        return psd_error_set(file, line, (psd_status)ended, "psd_serve: %s", ctx->ended_text);
    if (status != PSD_OK)
        return psd_error_set(file, line, status, "psd_serve: the %s backend's channel failed",
                             ctx->ops->name);
    return end_alone(file, line, ctx, is_clean);
}
