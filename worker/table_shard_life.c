/* The life of a shard: room for it, the group it is served on, its end. What it does with requests is in
 * table_shard.c. */
#include "worker/table_shard.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

/* How long a table that is freed waits for its last sends, and how many of them it looks at. */
#define SETTLE_MS    1000
#define SETTLE_BATCH 256
/* Elements to whose multiple a device's arrays are made, for accesses of 16 bytes. */
#define DEVICE_ALIGN 4

void table_shard_fail(table_shard *shard, psd_status status, const char *why)
{
    if (table_shard_phase(shard) == SHARD_FAILED)
        return;
    shard->status = status;
    snprintf(shard->why, sizeof(shard->why), "%s", why[0] != '\0' ? why : psd_status_text(status));
    atomic_store(&shard->phase, SHARD_FAILED);
    if (atomic_load(&shard->ctx->ended) == PSD_ERR_STOPPED)
        return; /* the job's end broke the group, and is no failure */
    psd_log("tables", PSD_LOG_WARN, "table \"%s\" failed: %s", shard->name, shard->why);
    psd_group_abort_at(shard->file, shard->line, shard->ctx, shard->handle, shard->why);
}

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

void table_shard_join(table_shard *shard)
{
    sigset_t all, before;
    atomic_store(&shard->phase, SHARD_JOINING);
    sigfillset(&all); /* they are the program's, not this thread's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    shard->has_thread = pthread_create(&shard->thread, NULL, join_main, shard) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!shard->has_thread) {
        shard->status = PSD_ERR_NOMEM;
        snprintf(shard->why, sizeof(shard->why), "cannot start a thread to join the group of table \"%s\"",
                 shard->name);
        atomic_store(&shard->phase, SHARD_FAILED);
    }
}

static psd_status make_memory(PSD_AT, psd_ctx *ctx, table_shard *shard)
{
    char why[PSD_MAX_TEXT] = "";
    size_t parts = shard->trainer_count + (optim_has_state(&shard->opt) ? 2u : 1u);
    int64_t total = 0;
    if (shard->elements == 0)
        return PSD_OK;
    shard->stride = shard->elements;
    if (ctx->has_streams) {
        shard->stride = (shard->elements + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN;
        shard->kernels = ctx->ops->kernels(ctx->backend, why, sizeof(why));
        if (shard->kernels == NULL)
            return psd_error_set(file, line, PSD_ERR_UNSUPPORTED,
                                 "psd_serve: table \"%s\" cannot be updated on the device: %s", shard->name,
                                 why);
    }
    if (__builtin_mul_overflow(shard->stride, parts, &total))
        return psd_error_set(file, line, PSD_ERR_LIMIT, "psd_serve: table \"%s\" is too large", shard->name);
    psd_status status = psd_tensor_alloc_at(file, line, ctx, &total, 1, PSD_F32, shard->name, &shard->memory);
    if (status != PSD_OK)
        return status;
    float *at = shard->memory.data;
    shard->values = at;
    at += shard->stride;
    if (optim_has_state(&shard->opt)) {
        shard->velocity = at;
        at += shard->stride;
    }
    for (uint32_t t = 0; t < shard->trainer_count; t++, at += shard->stride)
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
    if (table_shard_phase(shard) == SHARD_JOINED)
        table_shard_fail(shard, PSD_ERR_PEER_FAILED, why);
}

bool table_shard_may_free(const table_shard *shard)
{
    return table_shard_phase(shard) != SHARD_JOINING;
}

/* Does something stay in flight? All trainers have closed the table, so all data has arrived; that a send is through
 * may still have to be noticed. */
static bool stays_in_flight(table_shard *shard)
{
    psd_request *requests[SETTLE_BATCH];
    int32_t count = table_shard_in_flight(shard, requests, 0, SETTLE_BATCH);
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), SETTLE_MS);
    return count > 0 &&
           shard->ctx->ops->wait(shard->ctx->backend, requests, count, false, deadline) != PSD_OK;
}

/* Ends what is in flight: the group is broken first if anything stays, so that it ends now. */
static void settle(table_shard *shard)
{
    char why[PSD_MAX_TEXT];
    if (table_shard_phase(shard) == SHARD_JOINED && stays_in_flight(shard))
        table_shard_fail(shard, PSD_ERR_ABORTED, "the table is freed while requests are in flight");
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
