/* The agent: one thread per context that speaks with psd. It owns the DEALER socket; says HELLO, heartbeats,
 * answers RESYNC and token requests, passes aborts to the backend, and carries the requests of other threads.
 * All functions may be called from any thread unless they say otherwise. */
#ifndef PSD_AGENT_H
#define PSD_AGENT_H

#include "common/clock.h"
#include "common/msg.h"
#include "proto/wire.h"

typedef struct psd_agent psd_agent;

/* What the agent calls on its own thread; none may block. */
typedef struct psd_agent_hooks {
    void *owner;
    void (*fill_heartbeat)(void *owner, psd_msg_heartbeat *out);
    psd_status (*make_token)(void *owner, uint8_t *token, size_t capacity, uint32_t *bytes);
    /* Where the library under the backend logs, in `out`; NULL: nowhere. */
    const char *(*log_file)(void *owner, char *out, size_t out_bytes);
    /* The last operations; free() *memory. */
    psd_status (*last_ops)(void *owner, psd_time_ns now, uint32_t limit, psd_msg_reply *out, void **memory);
    void (*on_abort)(void *owner, const psd_msg_abort *abort);
    void (*on_stop)(void *owner, const char *text);                    /* the job is to end */
    void (*on_lost)(void *owner, psd_status status, const char *text); /* refused after having been welcome */
    /* Both NULL: hangs are not explained. */
    bool (*is_stuck)(void *owner, psd_time_ns now); /* is psd to be told that a thread waits too long? */
    psd_status (*snapshot)(void *owner, psd_time_ns now, psd_msg_snapshot *out,
                           void **memory); /* free() it */
} psd_agent_hooks;

typedef struct psd_agent_config {
    const char *coordinator; /* tcp://host:port */
    psd_ident ident;
    psd_msg_hello hello;
    psd_agent_hooks hooks;
    psd_time_ns look_every; /* for threads that wait too long */
} psd_agent_config;

psd_status psd_agent_start(const psd_agent_config *config, psd_agent **out, char *why, size_t why_bytes);
/* Stops the thread; linger at most 1 s. Accepts NULL. */
void psd_agent_stop(psd_agent *agent);

/* Blocks until welcomed. On a passed deadline `why` says what psd last reported ("have 3 of 4, missing rank 2
 * ..."), or that no coordinator answered at the address. */
psd_status psd_agent_join(psd_agent *agent, psd_time_ns deadline, psd_msg_welcome *welcome, char *why,
                          size_t why_bytes);

/* Sends a message without an answer. Queued, never blocks. The last ones (not progress reports) are kept and
 * sent again after a resync, so what they say must bear being said twice. */
psd_status psd_agent_tell(psd_agent *agent, const psd_msg *msg);

/* Sends a request and blocks until its answer: PSD_OK and the boxed message (free with psd_msg_box_free), or
 * the status of a REFUSE with its text in `why`, or PSD_ERR_TIMEOUT; PSD_ERR_STOPPED for one that needs other
 * ranks to ask too, once the job is told to stop. Sent again after a resync. */
psd_status psd_agent_call(psd_agent *agent, const psd_msg *msg, psd_time_ns deadline, psd_msg_box **reply,
                          char *why, size_t why_bytes);

/* Blocks until an unsolicited message of this type and key (group or plan id; 0: any) has come: GROUP_OPENED
 * of the world, GROUP_GO, TABLE_ASSIGN, TABLE_FREE. Messages wait in the agent until they are taken.
 * An ABORT for the same group ends the wait with its status and text. With a passed deadline it polls. */
psd_status psd_agent_take(psd_agent *agent, psd_msg_type type, uint32_t key, psd_time_ns deadline,
                          psd_msg_box **out, char *why, size_t why_bytes);

/* Drops what waits to be taken for a group, its ABORT included: the group is closed on this rank. */
void psd_agent_forget_group(psd_agent *agent, uint32_t group);

/* How long psd has not been connected; 0 while it is. A psd that is stopped is found out by ZeroMQ's heartbeats. */
psd_time_ns psd_agent_cut_ns(psd_agent *agent);
psd_time_ns psd_agent_lease_ns(psd_agent *agent); /* as psd gave it */

/* This rank is about to leave: what waits for psd and other ranks ends with PSD_ERR_STOPPED, now and later. BYE
 * can still be said. */
void psd_agent_leaving(psd_agent *agent);

/* Frames from psd that were ignored: not decodable, for another incarnation, or answers that nobody waits
 * for. */
uint64_t psd_agent_ignored(psd_agent *agent);

#endif
