/* A trainer's side of the small-message channel: sends requests to the servers of its tables and hands their
 * answers to the thread that waits for them. Of the waiting threads one receives for all. */
#ifndef PSD_TABLE_CHANNEL_H
#define PSD_TABLE_CHANNEL_H

#include "worker/context.h"
#include "worker/table_wire.h"

/* What one table waits for: an answer with this sequence from each of its servers. In the channel's list
 * while a thread waits; owned by the table. */
typedef struct table_inbox {
    struct table_inbox *next;
    uint32_t table;
    uint32_t server_count;
    const uint32_t *servers; /* world ranks, ascending */
    uint64_t sequence;
    uint32_t missing;   /* answers not yet there */
    table_msg *answers; /* [server_count]; kind 0: not there */
} table_inbox;

typedef struct table_channel {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool receiving; /* a thread is in chan_recv */
    table_inbox *inboxes;
} table_channel;

psd_status table_channel_init(table_channel *channel);
void table_channel_destroy(table_channel *channel);

/* From when on answers are kept: before the request is sent. */
void table_channel_expect(table_channel *channel, table_inbox *inbox, uint64_t sequence);
void table_channel_forget(table_channel *channel, table_inbox *inbox);

/* Blocks while the link is full, until the deadline or the end of the context. */
psd_status table_channel_send(psd_ctx *ctx, uint32_t world_rank, const table_msg *msg, psd_time_ns deadline);

/* Blocks until every server has answered, or one has refused; until the group breaks, the context ends or the
 * deadline passes, and then `why` says who has not answered. */
psd_status table_channel_await(psd_ctx *ctx, table_channel *channel, table_inbox *inbox,
                               psd_group_slot *group, psd_time_ns deadline, char *why, size_t why_bytes);

#endif
