#include "worker/table_channel.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/conf.h"
#include "common/log.h"

/* How often a waiting thread looks whether the group or the context is over. */
#define LOOK_NS (50 * PSD_NS_PER_MS)
/* Between two tries to send on a full link, which its progress thread empties. */
#define FULL_NS (PSD_NS_PER_MS / 10)

psd_status table_channel_init(table_channel *channel)
{
    pthread_condattr_t attr;
    *channel = (table_channel){.receiving = false};
    if (pthread_mutex_init(&channel->lock, NULL) != 0)
        return PSD_ERR_NOMEM;
    if (pthread_condattr_init(&attr) != 0)
        goto destroy_lock;
    int failed = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) != 0 ||
                 pthread_cond_init(&channel->changed, &attr) != 0;
    pthread_condattr_destroy(&attr);
    if (!failed)
        return PSD_OK;
destroy_lock:
    pthread_mutex_destroy(&channel->lock);
    return PSD_ERR_NOMEM;
}

void table_channel_destroy(table_channel *channel)
{
    pthread_cond_destroy(&channel->changed);
    pthread_mutex_destroy(&channel->lock);
}

void table_channel_expect(table_channel *channel, table_inbox *inbox, uint64_t sequence)
{
    pthread_mutex_lock(&channel->lock);
    inbox->sequence = sequence;
    inbox->missing = inbox->server_count;
    memset(inbox->answers, 0, inbox->server_count * sizeof(*inbox->answers));
    inbox->next = channel->inboxes;
    channel->inboxes = inbox;
    pthread_mutex_unlock(&channel->lock);
}

void table_channel_forget(table_channel *channel, table_inbox *inbox)
{
    pthread_mutex_lock(&channel->lock);
    table_inbox **at = &channel->inboxes;
    while (*at != NULL && *at != inbox)
        at = &(*at)->next;
    if (*at != NULL)
        *at = inbox->next;
    pthread_mutex_unlock(&channel->lock);
}

static struct timespec to_timespec(psd_time_ns ns)
{
    return (struct timespec){.tv_sec = ns / PSD_NS_PER_S, .tv_nsec = ns % PSD_NS_PER_S};
}

psd_status table_channel_send(psd_ctx *ctx, uint32_t world_rank, const table_msg *msg, psd_time_ns deadline)
{
    uint8_t data[PSD_TABLE_MSG_BYTES];
    const struct timespec pause = to_timespec(FULL_NS);
    uint32_t bytes = table_msg_encode(msg, data);
    psd_status status = ctx->ops->chan_send(ctx->backend, world_rank, data, bytes);
    while (status == PSD_AGAIN) {
        psd_status ended = (psd_status)atomic_load(&ctx->ended);
        if (ended != PSD_OK)
            return ended;
        if (psd_now_ns() >= deadline)
            return PSD_ERR_TIMEOUT;
        nanosleep(&pause, NULL);
        status = ctx->ops->chan_send(ctx->backend, world_rank, data, bytes);
    }
    return status;
}

/* Keeps the answer if a table waits for it; an old one, or one nobody asked for, is dropped. */
static void deliver(table_channel *channel, const psd_chan_msg *raw)
{
    table_msg msg;
    bool is_known = table_msg_decode(raw->data, raw->bytes, &msg);
    if (is_known && msg.kind == TABLE_SERVER)
        return; /* for other servers */
    if (!is_known || (msg.kind != TABLE_ACK && msg.kind != TABLE_NAK)) {
        psd_log("tables", PSD_LOG_WARN,
                "dropped a message of %u bytes from rank %u: not an answer of a table's server", raw->bytes,
                raw->source);
        return;
    }
    for (table_inbox *inbox = channel->inboxes; inbox != NULL; inbox = inbox->next) {
        if (inbox->table != msg.table || inbox->sequence != msg.sequence)
            continue;
        for (uint32_t s = 0; s < inbox->server_count; s++) {
            if (inbox->servers[s] == raw->source && inbox->answers[s].kind == 0) {
                inbox->answers[s] = msg;
                inbox->missing--;
            }
        }
    }
}

static bool is_refused(const table_inbox *inbox)
{
    for (uint32_t s = 0; s < inbox->server_count; s++) {
        if (inbox->answers[s].kind == TABLE_NAK)
            return true;
    }
    return false;
}

/* One turn of waiting, under the lock: receives for all, or sleeps while another does. */
static void turn(psd_ctx *ctx, table_channel *channel, psd_time_ns until)
{
    psd_chan_msg raw;
    if (channel->receiving) {
        struct timespec at = to_timespec(until);
        pthread_cond_timedwait(&channel->changed, &channel->lock, &at);
        return;
    }
    channel->receiving = true;
    pthread_mutex_unlock(&channel->lock);
    psd_status status = ctx->ops->chan_recv(ctx->backend, until, &raw);
    pthread_mutex_lock(&channel->lock);
    channel->receiving = false;
    if (status == PSD_OK)
        deliver(channel, &raw);
    pthread_cond_broadcast(&channel->changed);
}

static psd_status timed_out(const table_inbox *inbox, char *why, size_t why_bytes)
{
    snprintf(why, why_bytes, "no answer from server rank");
    for (uint32_t s = 0; s < inbox->server_count; s++) {
        if (inbox->answers[s].kind == 0)
            psd_append(why, why_bytes, " %u", inbox->servers[s]);
    }
    return PSD_ERR_TIMEOUT;
}

/* Why it is of no use to wait on, or PSD_OK. */
static psd_status check_alive(psd_ctx *ctx, psd_group_slot *group, char *why, size_t why_bytes)
{
    psd_status status = ctx->ops->group_error(group->backend, why, why_bytes);
    if (status != PSD_OK)
        return status;
    status = (psd_status)atomic_load(&ctx->ended);
    if (status != PSD_OK)
        snprintf(why, why_bytes, "%s", ctx->ended_text);
    return status;
}

psd_status table_channel_await(psd_ctx *ctx, table_channel *channel, table_inbox *inbox,
                               psd_group_slot *group, psd_time_ns deadline, char *why, size_t why_bytes)
{
    psd_status status = PSD_OK;
    pthread_mutex_lock(&channel->lock);
    while (inbox->missing > 0 && !is_refused(inbox) && status == PSD_OK) {
        psd_time_ns now = psd_now_ns();
        psd_time_ns until = deadline - now < LOOK_NS ? deadline : now + LOOK_NS;
        turn(ctx, channel, until);
        if (inbox->missing == 0 || is_refused(inbox))
            break;
        /* group_error may take the backend's lock, under which it may wait for nothing of ours. */
        status = check_alive(ctx, group, why, why_bytes);
        if (status == PSD_OK && psd_now_ns() >= deadline)
            status = timed_out(inbox, why, why_bytes);
    }
    pthread_mutex_unlock(&channel->lock);
    return status;
}
