#include "worker/table_shard.h"

#include <stdarg.h>
#include <stdio.h>

#include "common/log.h"
#include "worker/table_channel.h"

/* An answer must get through: its trainer waits. A link that is full for so long belongs to a trainer that no
 * longer reads, and then its group breaks. */
#define ANSWER_MS 5000

static size_t trainer_index(const table_shard *shard, const shard_trainer *trainer)
{
    return (size_t)(trainer - shard->trainers);
}

static psd_status answer(const table_shard *shard, uint32_t world_rank, const table_msg *msg)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), ANSWER_MS);
    psd_status status = table_channel_send(shard->ctx, world_rank, msg, deadline);
    if (status != PSD_OK)
        psd_log("tables", PSD_LOG_WARN, "table \"%s\": cannot answer rank %u: %s", shard->name, world_rank,
                psd_status_text(status));
    return status;
}

static void ack(table_shard *shard, const shard_trainer *trainer, table_kind kind, uint64_t sequence)
{
    char why[128];
    table_msg msg = {
        .kind = TABLE_ACK, .answers = kind, .table = shard->id, .sequence = sequence, .clock = shard->clock};
    psd_status status = answer(shard, trainer->world_rank, &msg);
    if (status == PSD_OK)
        return;
    snprintf(why, sizeof(why), "rank %u cannot be told of its %s", trainer->world_rank,
             table_kind_name(kind));
    table_shard_fail(shard, status, why);
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
        table_shard_fail(shard, status, why);
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

static void take_join(table_shard *shard, shard_trainer *trainer)
{
    bool all = true;
    trainer->has_joined = true;
    for (uint32_t t = 0; t < shard->trainer_count; t++)
        all = all && shard->trainers[t].has_joined;
    if (all && table_shard_phase(shard) == SHARD_ASSIGNED)
        table_shard_join(shard);
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
    else if (table_shard_phase(shard) == SHARD_FAILED)
        nak = make_nak(shard, msg, shard->status, "table \"%s\" failed: %.300s", shard->name, shard->why);
    else if (table_shard_phase(shard) == SHARD_JOINED)
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

static psd_status update_on_device(const table_shard *shard)
{
    const optim *o = &shard->opt;
    const psd_kernel_update args = {
        .master = shard->values,
        .velocity = shard->velocity,
        .grads = shard->trainers[0].grads,
        .n = (int32_t)shard->trainer_count,
        .stride = (int64_t)shard->stride,
        .lr = o->lr,
        .momentum = o->momentum,
        .average = o->average,
        .count = (int64_t)shard->elements,
    };
    int error = shard->kernels->update(shard->ctx->device_index, &args, NULL);
    if (error == 0)
        return PSD_OK;
    psd_log("tables", PSD_LOG_ERROR, "table \"%s\": the optimizer did not start on device %d: %s",
            shard->name, shard->ctx->device_index, shard->kernels->error_text(error));
    return PSD_ERR_INTERNAL;
}

/* In device memory it is queued on the default stream, between the receives before and the sends after it. */
static psd_status update(table_shard *shard)
{
    if (shard->elements == 0)
        return PSD_OK;
    if (shard->kernels != NULL)
        return update_on_device(shard);
    for (uint32_t t = 0; t < shard->trainer_count; t++)
        shard->grads[t] = shard->trainers[t].grads;
    optim_apply(&shard->opt, shard->values, shard->velocity, shard->grads, (int)shard->trainer_count,
                shard->elements);
    return PSD_OK;
}

/* Once every trainer's gradients of the next clock are here and no pull still reads the values. */
static void apply_if_complete(table_shard *shard)
{
    for (uint32_t t = 0; t < shard->trainer_count; t++) {
        const shard_trainer *trainer = &shard->trainers[t];
        if (trainer->push != PUSH_RECEIVED || trainer->outgoing.request != NULL)
            return;
    }
    psd_status status = update(shard);
    if (status != PSD_OK) {
        table_shard_fail(shard, status, "the optimizer could not run on the device");
        return;
    }
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
        table_shard_fail(shard, status, why);
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
        table_shard_fail(shard, status, why);
    if (trainer->push != PUSH_RECEIVING)
        return;
    status = table_transfer_test(shard->ctx, &trainer->incoming, why, sizeof(why));
    if (status < 0) {
        table_shard_fail(shard, status, why);
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
    if (table_shard_phase(shard) != SHARD_JOINED)
        return;
    progress_init(shard);
    for (uint32_t t = 0; t < shard->trainer_count && table_shard_phase(shard) == SHARD_JOINED; t++) {
        shard_trainer *trainer = &shard->trainers[t];
        if (trainer->has_kept) {
            trainer->has_kept = false;
            take(shard, trainer, &trainer->kept);
        }
        progress_trainer(shard, trainer);
    }
    if (table_shard_phase(shard) == SHARD_JOINED)
        apply_if_complete(shard);
}

int32_t table_shard_in_flight(const table_shard *shard, psd_request **list, int32_t count, int32_t capacity)
{
    if (table_shard_phase(shard) != SHARD_JOINED)
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
