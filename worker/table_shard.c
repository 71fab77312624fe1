#include "worker/table_shard.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "worker/table_channel.h"

/* An answer must get through: its trainer waits. A link that is full for so long belongs to a trainer that no
 * longer reads, and then its group breaks. */
#define ANSWER_MS 5000

static shard_phase phase_of(const table_shard *shard)
{
    return (shard_phase)atomic_load(&shard->phase);
}

static size_t trainer_index(const table_shard *shard, const shard_trainer *trainer)
{
    return (size_t)(trainer - shard->trainers);
}

static void answer(table_shard *shard, uint32_t world_rank, const table_msg *msg)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), ANSWER_MS);
    psd_status status = table_channel_send(shard->ctx, world_rank, msg, deadline);
    if (status != PSD_OK)
        psd_log("tables", PSD_LOG_WARN, "table \"%s\": cannot answer rank %u: %s", shard->name, world_rank,
                psd_status_text(status));
}

static void ack(table_shard *shard, const shard_trainer *trainer, table_kind kind, uint64_t sequence)
{
    table_msg msg = {
        .kind = TABLE_ACK, .answers = kind, .table = shard->id, .sequence = sequence, .clock = shard->clock};
    answer(shard, trainer->world_rank, &msg);
}

__attribute__((format(printf, 4, 5))) static table_msg make_nak(const table_shard *shard, const table_msg *to,
                                                                psd_status status, const char *format, ...)
{
    va_list args;
    table_msg msg = {
        .kind = TABLE_NAK,
        .answers = to->kind,
        .table = to->table,
        .status = status,
        .sequence = to->sequence,
        .clock = shard->clock,
    };
    va_start(args, format);
    vsnprintf(msg.text, sizeof(msg.text), format, args);
    va_end(args);
    return msg;
}

/* From here on the shard only waits to be freed; the other members learn it from the group. */
static void fail(table_shard *shard, psd_status status, const char *why)
{
    if (phase_of(shard) == SHARD_FAILED)
        return;
    shard->status = status;
    snprintf(shard->why, sizeof(shard->why), "%s", why[0] != '\0' ? why : psd_status_text(status));
    atomic_store(&shard->phase, SHARD_FAILED);
    psd_log("tables", PSD_LOG_WARN, "table \"%s\" failed: %s", shard->name, shard->why);
    psd_group_abort_at(shard->file, shard->line, shard->ctx, shard->handle, shard->why);
}

/* ---- joining */

/* A thread, because opening a group waits for all its members and other tables must be served meanwhile. */
static void *join_main(void *arg)
{
    table_shard *shard = arg;
    psd_msg_group_open how = {.how = PSD_GROUP_NEW, .count = shard->member_count, .members = shard->members};
    psd_group handle;
    psd_status status = psd_group_open(shard->file, shard->line, "psd_serve", shard->ctx, &how, &handle);
    if (status == PSD_OK) {
        status = psd_group_acquire(shard->file, shard->line, "psd_serve", shard->ctx, handle, &shard->group);
        if (status != PSD_OK)
            psd_group_close(shard->file, shard->line, "psd_serve", shard->ctx, handle);
    }
    if (status == PSD_OK) {
        shard->handle = handle;
    } else {
        shard->status = status;
        snprintf(shard->why, sizeof(shard->why), "%s", psd_last_error());
    }
    atomic_store(&shard->phase, status == PSD_OK ? SHARD_JOINED : SHARD_FAILED);
    return NULL;
}

static void take_join(table_shard *shard, shard_trainer *trainer)
{
    bool all = true;
    trainer->has_joined = true;
    for (uint32_t t = 0; t < shard->trainer_count; t++)
        all = all && shard->trainers[t].has_joined;
    if (!all || shard->has_thread)
        return;
    atomic_store(&shard->phase, SHARD_JOINING);
    shard->has_thread = pthread_create(&shard->thread, NULL, join_main, shard) == 0;
    if (!shard->has_thread) {
        shard->status = PSD_ERR_NOMEM;
        snprintf(shard->why, sizeof(shard->why), "cannot start a thread to join the group of table \"%s\"",
                 shard->name);
        atomic_store(&shard->phase, SHARD_FAILED);
    }
}

/* ---- data */

static psd_status post(table_shard *shard, const shard_trainer *trainer, const char *verb, float *data,
                       bool is_send, table_transfer *out)
{
    uint32_t servers = shard->member_count - shard->trainer_count;
    table_post what = {
        .is_send = is_send,
        .peer = (int32_t)(servers + trainer_index(shard, trainer)),
        .data = data,
        .count = shard->elements,
        .table = shard->name,
        .verb = verb,
        .file = shard->file,
        .line = shard->line,
    };
    psd_status status = table_transfer_start(shard->ctx, shard->group, &what, out);
    if (status != PSD_OK) {
        char why[PSD_MAX_TEXT] = "";
        shard->ctx->ops->group_error(shard->group->backend, why, sizeof(why));
        fail(shard, status, why);
    }
    return status;
}

static void take_init(table_shard *shard, shard_trainer *trainer, const table_msg *msg)
{
    table_msg nak = {.table = 0};
    if (trainer != shard->trainers)
        nak = make_nak(shard, msg, PSD_ERR_INVAL, "rank %u is not the lowest trainer, rank %u is",
                       trainer->world_rank, shard->trainers[0].world_rank);
    else if (shard->is_initialised || shard->init.request != NULL)
        nak = make_nak(shard, msg, PSD_ERR_INVAL, "table \"%s\" has its initial values already", shard->name);
    else if (msg->bytes != shard->elements * sizeof(float))
        nak = make_nak(shard, msg, PSD_ERR_INVAL,
                       "rank %u announces %llu bytes of initial values, expected %zu", trainer->world_rank,
                       (unsigned long long)msg->bytes, shard->elements * sizeof(float));
    if (nak.kind != 0)
        answer(shard, trainer->world_rank, &nak);
    else if (shard->elements > 0)
        post(shard, trainer, "init", shard->values, false, &shard->init);
    else
        shard->is_initialised = true;
    if (shard->is_initialised && nak.kind == 0) {
        for (uint32_t t = 0; t < shard->trainer_count; t++)
            ack(shard, &shard->trainers[t], TABLE_INIT, msg->sequence);
    }
}

/* Why a push cannot be taken; kind 0 if it can. */
static table_msg check_push(const table_shard *shard, const shard_trainer *trainer, const table_msg *msg)
{
    table_msg none = {.table = 0};
    uint32_t rank = trainer->world_rank;
    if (!shard->is_initialised)
        return make_nak(shard, msg, PSD_ERR_INVAL, "table \"%s\" has no initial values yet", shard->name);
    if (trainer->incarnation != 0 && trainer->incarnation != msg->incarnation)
        return make_nak(shard, msg, PSD_ERR_STALE,
                        "rank %u pushes as incarnation %016llx, the table knows it as %016llx", rank,
                        (unsigned long long)msg->incarnation, (unsigned long long)trainer->incarnation);
    if (msg->sequence <= trainer->sequence)
        return make_nak(shard, msg, PSD_ERR_STALE, "push %llu of rank %u comes after its push %llu",
                        (unsigned long long)msg->sequence, rank, (unsigned long long)trainer->sequence);
    if (msg->clock != shard->clock + 1)
        return make_nak(shard, msg, PSD_ERR_INVAL, "rank %u pushes clock %llu of table \"%s\", expected %llu",
                        rank, (unsigned long long)msg->clock, shard->name,
                        (unsigned long long)shard->clock + 1);
    if (trainer->push != PUSH_NONE)
        return make_nak(shard, msg, PSD_ERR_INVAL, "rank %u has pushed clock %llu of table \"%s\" already",
                        rank, (unsigned long long)msg->clock, shard->name);
    if (msg->bytes != shard->elements * sizeof(float))
        return make_nak(shard, msg, PSD_ERR_INVAL,
                        "rank %u announces %llu bytes of gradients for table \"%s\", expected %zu", rank,
                        (unsigned long long)msg->bytes, shard->name, shard->elements * sizeof(float));
    return none;
}

static void apply_if_complete(table_shard *shard);

static void take_push(table_shard *shard, shard_trainer *trainer, const table_msg *msg)
{
    bool is_repeat =
        trainer->incarnation == msg->incarnation && msg->sequence == trainer->sequence && msg->bytes == 0;
    if (is_repeat) {
        /* The gradients came before. If they are applied, say so again; if not, the ACK will come. */
        if (trainer->push == PUSH_NONE)
            ack(shard, trainer, TABLE_PUSH, msg->sequence);
        return;
    }
    table_msg nak = check_push(shard, trainer, msg);
    bool can_drain =
        shard->elements > 0 && trainer->push == PUSH_NONE && msg->bytes == shard->elements * sizeof(float);
    if (nak.kind != 0 && !can_drain) {
        answer(shard, trainer->world_rank, &nak);
        return;
    }
    if (nak.kind == 0) {
        trainer->incarnation = msg->incarnation;
        trainer->sequence = msg->sequence;
        shard->pushes++;
        shard->changed = true;
    }
    trainer->refused = nak;
    trainer->push = shard->elements > 0 ? PUSH_RECEIVING : PUSH_RECEIVED;
    if (shard->elements > 0)
        post(shard, trainer, "push", trainer->grads, false, &trainer->incoming);
    else
        apply_if_complete(shard);
}

static void take_pull(table_shard *shard, shard_trainer *trainer, const table_msg *msg)
{
    table_msg nak = {.table = 0};
    if (!shard->is_initialised)
        nak = make_nak(shard, msg, PSD_ERR_INVAL, "table \"%s\" has no initial values yet", shard->name);
    else if (msg->clock != shard->clock)
        nak = make_nak(shard, msg, PSD_ERR_INVAL,
                       "rank %u pulls clock %llu of table \"%s\", which is at %llu", trainer->world_rank,
                       (unsigned long long)msg->clock, shard->name, (unsigned long long)shard->clock);
    else if (trainer->push != PUSH_NONE || trainer->outgoing.request != NULL)
        nak = make_nak(shard, msg, PSD_ERR_INVAL, "rank %u has a push or pull of table \"%s\" in flight",
                       trainer->world_rank, shard->name);
    if (nak.kind != 0) {
        answer(shard, trainer->world_rank, &nak);
        return;
    }
    shard->pulls++;
    shard->changed = true;
    ack(shard, trainer, TABLE_PULL, msg->sequence);
    if (shard->elements > 0)
        post(shard, trainer, "pull", shard->values, true, &trainer->outgoing);
}

static void take(table_shard *shard, shard_trainer *trainer, const table_msg *msg)
{
    if (msg->kind == TABLE_INIT)
        take_init(shard, trainer, msg);
    else if (msg->kind == TABLE_PUSH)
        take_push(shard, trainer, msg);
    else if (msg->kind == TABLE_PULL)
        take_pull(shard, trainer, msg);
}

void table_shard_request(table_shard *shard, uint32_t world_rank, const table_msg *msg)
{
    shard_trainer *trainer = NULL;
    table_msg nak = {.table = 0};
    for (uint32_t t = 0; t < shard->trainer_count && trainer == NULL; t++) {
        if (shard->trainers[t].world_rank == world_rank)
            trainer = &shard->trainers[t];
    }
    if (trainer == NULL)
        nak = make_nak(shard, msg, PSD_ERR_INVAL, "rank %u is not a trainer of table \"%s\"", world_rank,
                       shard->name);
    else if (msg->kind == TABLE_JOIN)
        take_join(shard, trainer);
    else if (phase_of(shard) == SHARD_FAILED)
        nak = make_nak(shard, msg, shard->status, "table \"%s\" failed: %.300s", shard->name, shard->why);
    else if (phase_of(shard) == SHARD_JOINED)
        take(shard, trainer, msg);
    else if (trainer->has_kept)
        nak = make_nak(shard, msg, PSD_ERR_INVAL, "table \"%s\" is not open yet", shard->name);
    else {
        trainer->kept = *msg;
        trainer->has_kept = true;
    }
    if (nak.kind != 0)
        answer(shard, world_rank, &nak);
}

/* ---- progress */

/* Once every trainer's gradients of the next clock are here and no pull still reads the values. */
static void apply_if_complete(table_shard *shard)
{
    for (uint32_t t = 0; t < shard->trainer_count; t++) {
        const shard_trainer *trainer = &shard->trainers[t];
        if (trainer->push != PUSH_RECEIVED || trainer->outgoing.request != NULL)
            return;
        shard->grads[t] = trainer->grads;
    }
    if (shard->elements > 0)
        optim_apply(&shard->opt, shard->values, shard->velocity, shard->grads, (int)shard->trainer_count,
                    shard->elements);
    shard->clock++;
    shard->changed = true;
    for (uint32_t t = 0; t < shard->trainer_count; t++) {
        shard->trainers[t].push = PUSH_NONE;
        ack(shard, &shard->trainers[t], TABLE_PUSH, shard->trainers[t].sequence);
    }
}

static void progress_init(table_shard *shard)
{
    char why[PSD_MAX_TEXT] = "";
    if (shard->init.request == NULL)
        return;
    psd_status status = table_transfer_test(shard->ctx, &shard->init, why, sizeof(why));
    if (status == PSD_INPROGRESS)
        return;
    if (status != PSD_OK) {
        fail(shard, status, why);
        return;
    }
    shard->is_initialised = true;
    for (uint32_t t = 0; t < shard->trainer_count; t++)
        ack(shard, &shard->trainers[t], TABLE_INIT, 1);
}

static void progress_trainer(table_shard *shard, shard_trainer *trainer)
{
    char why[PSD_MAX_TEXT] = "";
    psd_status status = table_transfer_test(shard->ctx, &trainer->outgoing, why, sizeof(why));
    if (status < 0)
        fail(shard, status, why);
    if (trainer->push != PUSH_RECEIVING)
        return;
    status = table_transfer_test(shard->ctx, &trainer->incoming, why, sizeof(why));
    if (status < 0) {
        fail(shard, status, why);
    } else if (status == PSD_OK && trainer->refused.kind != 0) {
        trainer->push = PUSH_NONE;
        answer(shard, trainer->world_rank, &trainer->refused);
        trainer->refused.kind = 0;
    } else if (status == PSD_OK) {
        trainer->push = PUSH_RECEIVED;
    }
}

void table_shard_progress(table_shard *shard)
{
    if (phase_of(shard) != SHARD_JOINED)
        return;
    progress_init(shard);
    for (uint32_t t = 0; t < shard->trainer_count && phase_of(shard) == SHARD_JOINED; t++) {
        shard_trainer *trainer = &shard->trainers[t];
        if (trainer->has_kept) {
            trainer->has_kept = false;
            take(shard, trainer, &trainer->kept);
        }
        progress_trainer(shard, trainer);
    }
    if (phase_of(shard) == SHARD_JOINED)
        apply_if_complete(shard);
}

int32_t table_shard_in_flight(const table_shard *shard, psd_request **list, int32_t count, int32_t capacity)
{
    if (phase_of(shard) != SHARD_JOINED)
        return count;
    if (shard->init.request != NULL && count < capacity)
        list[count++] = shard->init.request;
    for (uint32_t t = 0; t < shard->trainer_count; t++) {
        if (shard->trainers[t].incoming.request != NULL && count < capacity)
            list[count++] = shard->trainers[t].incoming.request;
        if (shard->trainers[t].outgoing.request != NULL && count < capacity)
            list[count++] = shard->trainers[t].outgoing.request;
    }
    return count;
}

/* ---- making and freeing */

static psd_status make_memory(PSD_AT, psd_ctx *ctx, table_shard *shard)
{
    size_t parts = shard->trainer_count + (optim_has_state(&shard->opt) ? 2u : 1u);
    int64_t total = 0;
    if (shard->elements == 0)
        return PSD_OK;
    if (__builtin_mul_overflow(shard->elements, parts, &total))
        return psd_error_set(file, line, PSD_ERR_LIMIT, "psd_serve: table \"%s\" is too large", shard->name);
    psd_status status = psd_tensor_alloc_at(file, line, ctx, &total, 1, PSD_F32, shard->name, &shard->memory);
    if (status != PSD_OK)
        return status;
    float *at = shard->memory.data;
    shard->values = at;
    at += shard->elements;
    if (optim_has_state(&shard->opt)) {
        shard->velocity = at;
        at += shard->elements;
    }
    for (uint32_t t = 0; t < shard->trainer_count; t++, at += shard->elements)
        shard->trainers[t].grads = at;
    return PSD_OK;
}

static bool make_members(table_shard *shard, const psd_msg_table_open *assign)
{
    shard->trainer_count = assign->trainer_count;
    shard->member_count = assign->server_count + assign->trainer_count;
    shard->trainers = calloc(assign->trainer_count, sizeof(*shard->trainers));
    shard->grads = calloc(assign->trainer_count, sizeof(*shard->grads));
    shard->members = calloc(shard->member_count, sizeof(*shard->members));
    if (shard->trainers == NULL || shard->grads == NULL || shard->members == NULL)
        return false;
    memcpy(shard->members, assign->servers, assign->server_count * sizeof(*shard->members));
    memcpy(shard->members + assign->server_count, assign->trainers,
           assign->trainer_count * sizeof(*shard->members));
    for (uint32_t t = 0; t < assign->trainer_count; t++)
        shard->trainers[t].world_rank = assign->trainers[t];
    return true;
}

/* This rank's place among the servers; false if the assignment is not for it. */
static bool find_server(const psd_ctx *ctx, const psd_msg_table_open *assign, uint32_t *out)
{
    if (assign->trainer_count == 0 ||
        (uint64_t)assign->server_count + assign->trainer_count > (uint64_t)ctx->world)
        return false;
    for (uint32_t s = 0; s < assign->server_count; s++) {
        if (assign->servers[s] == (uint32_t)ctx->rank) {
            *out = s;
            return true;
        }
    }
    return false;
}

psd_status table_shard_make(PSD_AT, psd_ctx *ctx, const psd_msg_table_open *assign, table_shard **out,
                            char *why, size_t why_bytes)
{
    const psd_table_spec *spec = &assign->spec;
    table_layout layout = {.servers = 0};
    psd_status status = PSD_ERR_PROTOCOL;
    table_shard *shard = calloc(1, sizeof(*shard));
    snprintf(why, why_bytes, "out of memory for table \"%s\"", spec->name);
    if (shard == NULL)
        return PSD_ERR_NOMEM;
    shard->ctx = ctx;
    shard->file = file;
    shard->line = line;
    shard->id = assign->table;
    snprintf(shard->name, sizeof(shard->name), "%s", spec->name);
    if (!find_server(ctx, assign, &shard->server)) {
        snprintf(why, why_bytes, "table \"%s\" was assigned to rank %d, which is not among its servers",
                 spec->name, ctx->rank);
        goto free_shard;
    }
    status = PSD_ERR_INVAL;
    if (!optim_make(spec->optimizer, spec->lr, spec->momentum, spec->average, &shard->opt, why, why_bytes))
        goto free_shard;
    status =
        table_layout_make(spec->params, spec->param_count, assign->server_count, &layout, why, why_bytes);
    if (status != PSD_OK)
        goto free_shard;
    shard->elements = table_shard_count(&layout, shard->server);
    table_layout_free(&layout);
    status = PSD_ERR_NOMEM;
    if (!make_members(shard, assign))
        goto free_shard;
    status = make_memory(file, line, ctx, shard);
    if (status != PSD_OK) {
        snprintf(why, why_bytes, "%s", psd_last_error());
        goto free_shard;
    }
    why[0] = '\0';
    *out = shard;
    return PSD_OK;
free_shard:
    table_shard_free(shard);
    return status;
}

void table_shard_abandon(table_shard *shard)
{
    char why[PSD_MAX_TEXT];
    snprintf(why, sizeof(why), "server rank %d left while table \"%s\" was open", shard->ctx->rank,
             shard->name);
    if (phase_of(shard) == SHARD_JOINED)
        fail(shard, PSD_ERR_PEER_FAILED, why);
}

bool table_shard_may_free(const table_shard *shard)
{
    return phase_of(shard) != SHARD_JOINING;
}

/* Ends what is in flight: the group is broken first if anything is, so that it ends now. */
static void settle(table_shard *shard)
{
    char why[PSD_MAX_TEXT];
    psd_request *any[1];
    if (phase_of(shard) == SHARD_JOINED && table_shard_in_flight(shard, any, 0, 1) > 0)
        fail(shard, PSD_ERR_ABORTED, "the table is freed while requests are in flight");
    table_transfers_wait(shard->ctx, &shard->init, 1, why, sizeof(why));
    for (uint32_t t = 0; t < shard->trainer_count; t++) {
        table_transfers_wait(shard->ctx, &shard->trainers[t].incoming, 1, why, sizeof(why));
        table_transfers_wait(shard->ctx, &shard->trainers[t].outgoing, 1, why, sizeof(why));
    }
}

void table_shard_free(table_shard *shard)
{
    if (shard == NULL)
        return;
    if (shard->has_thread)
        pthread_join(shard->thread, NULL);
    if (shard->group != NULL) {
        settle(shard);
        psd_group_release(shard->group);
        psd_group_close(shard->file, shard->line, "psd_serve", shard->ctx, shard->handle);
    }
    if (shard->memory.data != NULL)
        psd_tensor_free_at(shard->file, shard->line, shard->ctx, &shard->memory);
    free(shard->trainers);
    free((void *)shard->grads);
    free(shard->members);
    free(shard);
}
