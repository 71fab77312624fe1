/* The coordinator as a pure step function: (state, event) -> effects. No clock, socket, file, log,
 * environment or randomness inside; time and entropy come with the event. One thread uses a core.
 *
 * Recovery is replay: the daemon journals every event whose step says so (psd_effects.journal) and, after a
 * restart, steps them again and drops the effects, then sends PSD_EVENT_RESTART. Heartbeats and queries are
 * never journalled; what silence leads to (a lease that ends) is journalled as the event PSD_EVENT_LOST that
 * the core asks for with PSD_EFFECT_EVENT, so that a replay needs no clock.
 *
 * A restart without the journal makes a core that knows no job. A worker that an earlier core welcomed (its
 * HELLO has an epoch and a resume token) is then refused, PSD_ERR_REFUSED, and never taken for a new one: its
 * groups, plans and tables are known to it alone. Its data in flight needs no psd and goes on until its agent
 * is told.
 *
 * What is journalled: HELLO that is admitted or that attaches a new connection, requests and answers that
 * change a group, plan or table, BYE, LOST, INCIDENT, GONE of a worker, COMPILED (plan and status, no steps: see
 * psd_event), RESTART, and the command stop. A HELLO that has to wait for the end of the job's last world is
 * not: it comes again. A journalled event keeps its peer: a replay steps the lives of psd one after the
 * other, each RESTART forgetting the peers of the life before. A plan whose COMPILED was never journalled is
 * asked for again by RESTART's own effects, which are applied like any others. */
#ifndef PSD_CORE_CORE_H
#define PSD_CORE_CORE_H

#include "common/clock.h"
#include "common/msg.h"
#include "common/plan.h"

typedef struct psd_core psd_core;

/* A connection, as the daemon knows it: made by io_zmq from the routing id, never 0, never reused within one
 * life of psd. */
typedef uint64_t psd_peer;

typedef struct psd_core_config {
    int32_t lease_ms;     /* silence after which a worker is lost; default 5000 */
    int32_t heartbeat_ms; /* what workers are told; default lease / 5 */
    uint32_t max_ranks;   /* over all jobs; default PSD_MAX_WORLD */
    uint32_t max_jobs;    /* default 1024 */
} psd_core_config;

typedef enum psd_event_type {
    PSD_EVENT_MSG = 1,      /* a decoded message from a peer */
    PSD_EVENT_GONE = 2,     /* the peer's connection is closed, proven by the daemon */
    PSD_EVENT_TIMER = 3,    /* psd_core_deadline() has come */
    PSD_EVENT_COMPILED = 4, /* a plan that PSD_EFFECT_COMPILE asked for */
    PSD_EVENT_LOST = 5,     /* a worker's lease ended (identity in `ident`) */
    PSD_EVENT_RESTART = 6,  /* psd was restarted: every connection is gone, leases begin anew */
    PSD_EVENT_STOP = 7,     /* psd shuts down: tell everybody */
    PSD_EVENT_INCIDENT = 9, /* a hang that the core has found (job in `ident`, PSD_MSG_INCIDENT in `msg`) */
    PSD_EVENT_NOTE = 8, /* something that happened to psd itself: a warning in `text`, for the events view */
} psd_event_type;

typedef struct psd_event {
    psd_event_type type;
    psd_time_ns now;
    uint64_t entropy;               /* random, for ids and tokens; part of the journal */
    psd_peer peer;                  /* MSG, GONE */
    psd_ident ident;                /* LOST */
    const psd_msg *msg;             /* MSG, INCIDENT; borrowed for the step */
    uint32_t plan;                  /* COMPILED */
    psd_status status;              /* COMPILED: PSD_OK, or the reason in `text` */
    const char *text;               /* COMPILED that failed; NOTE */
    const psd_plan_steps *compiled; /* COMPILED: moved into the core (its steps are then the core's to free).
                                       NULL with PSD_OK, as in a replay: the core compiles the plan's inputs
                                       again by itself, so that the journal needs no steps */
} psd_event;

/* Who an effect is for. The daemon expands it with psd_core_next_addressee(). */
typedef enum psd_audience_kind {
    PSD_TO_PEER = 1,     /* one connection */
    PSD_TO_GROUP = 2,    /* the members of a group, or of a group request being opened */
    PSD_TO_JOB = 3,      /* every connected worker of a job */
    PSD_TO_PLAN = 4,     /* the members of a plan that wait for an answer, or all of them: by the message */
    PSD_TO_TRAINERS = 5, /* the trainers of a table */
    PSD_TO_SERVERS = 6,  /* the servers of a table */
} psd_audience_kind;

typedef struct psd_audience {
    psd_audience_kind kind;
    uint32_t job; /* the core's index of the job */
    uint32_t id;  /* group, plan or table */
    psd_peer peer;
} psd_audience;

typedef enum psd_effect_type {
    PSD_EFFECT_SEND = 1,    /* message `msg` to `audience` */
    PSD_EFFECT_COMPILE = 2, /* compile `inputs` as plan `plan` on a helper thread, then PSD_EVENT_COMPILED */
    PSD_EFFECT_EVENT = 3,   /* step this event next, as if it had come from outside (journalled) */
    PSD_EFFECT_NOTE = 4,    /* an event for people: `text`; goes to the log and the events table */
    PSD_EFFECT_DROP = 5,    /* forget this connection (audience.peer) */
} psd_effect_type;

/* Level of a note. */
typedef enum psd_note_level {
    PSD_NOTE_INFO = 1,
    PSD_NOTE_WARN = 2,
} psd_note_level;

typedef struct psd_effect {
    psd_effect_type type;
    psd_audience audience;
    psd_msg *msg; /* SEND: owned by the effects, points into the core; fields that differ by addressee are
                     filled by psd_core_next_addressee */
    uint32_t plan;
    psd_plan_inputs inputs;
    psd_event *event; /* EVENT: owned by the effects */
    psd_note_level level;
    char job[PSD_MAX_NAME]; /* NOTE */
    int32_t rank;           /* NOTE; -1: none */
    char text[PSD_MAX_TEXT];
} psd_effect;

/* What a step wants done, in order. Reused between steps; the daemon clears it. Borrowed pointers in messages
 * stay valid until the next step. */
typedef struct psd_effects {
    bool journal; /* this event changes what a restart must know: write it down before applying the effects */
    size_t count;
    size_t capacity;
    psd_effect **items;
} psd_effects;

void psd_effects_clear(psd_effects *effects); /* frees the items, keeps the array */
void psd_effects_free(psd_effects *effects);

psd_status psd_core_new(const psd_core_config *config, psd_core **out);
void psd_core_free(psd_core *core);

/* Never blocks, never fails on bad input: a bad message is answered with REFUSE or dropped and counted.
 * Returns PSD_ERR_NOMEM if memory ran out; the step is then incomplete and so is every later one: do not
 * apply its effects, free the core and recover from the journal, as after a crash. */
psd_status psd_core_step(psd_core *core, const psd_event *event, psd_effects *effects);

/* When PSD_EVENT_TIMER is due; PSD_NEVER if nothing waits. O(1). */
psd_time_ns psd_core_deadline(const psd_core *core);

/* So much longer than the lease a worker may be silent from now on: the host is short of cores, or psd was stopped.
 * 0 at first. Is no event: a replay ends no lease. */
void psd_core_set_slack(psd_core *core, psd_time_ns slack);

/* No job is alive: nothing is lost when core and journal begin anew together. O(1). */
bool psd_core_idle(const psd_core *core);

/* Iterates over the connections of a SEND effect. `cursor` starts at 0. Each call sets *peer, fills the
 * fields of effect->msg that differ between addressees (ident, request, rank, this rank's steps) and returns
 * true, or returns false at the end. */
bool psd_core_next_addressee(psd_core *core, psd_effect *effect, uint64_t *cursor, psd_peer *peer);

/* Compiles a plan; pure, for a helper thread, needs no core. The result's steps are malloc'ed: free() them.
 */
psd_status psd_plan_compile(const psd_plan_inputs *inputs, psd_plan_steps *out, char *text,
                            size_t text_bytes);
/* Proves a plan, apart from the compiler: each destination byte written exactly once, steps inside their
 * tensors, at most one send and one receive per rank and round. */
psd_status psd_plan_check(const psd_plan_steps *plan, char *text, size_t text_bytes);

#endif
