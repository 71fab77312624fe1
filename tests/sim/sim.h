/* The simulator: the real core under virtual time, with workers that are a few numbers each. */
#ifndef PSD_SIM_H
#define PSD_SIM_H

#include <stdio.h>

#include "server/core/core.h"

#define SIM_WORKERS 64
#define SIM_OPS     8

/* What a worker knows of itself. */
typedef struct sim_worker {
    psd_ident ident;
    psd_msg_hello hello;
    psd_peer peer; /* 0: its next message comes on a new connection */
    uint64_t token;
    uint64_t epoch;
    int32_t rank;
    psd_msg last;           /* its last request, to be sent again; owns nothing */
    uint64_t last_hash[16]; /* of the steps of plan % 16 */
    psd_msg_snapshot snap;  /* what it answers with when it is asked; see `stuck` in script.c */
    psd_snap_thread thread;
    uint32_t works[SIM_OPS];
    psd_snap_op ops[SIM_OPS];
    uint32_t groups[SIM_OPS];
    uint64_t started[SIM_OPS];
    uint32_t peers[SIM_OPS];
    uint64_t sent[SIM_OPS];
    uint64_t received[SIM_OPS];
} sim_worker;

/* A journalled event with its own copy of the message and what that points to. */
typedef struct sim_record {
    psd_event event;
    psd_msg msg;
    void *owned;
} sim_record;

typedef struct sim {
    psd_core *core;
    psd_core_config config;
    psd_effects effects;
    psd_time_ns now;
    uint64_t entropy;
    psd_peer next_peer;
    uint64_t next_request;
    sim_worker workers[SIM_WORKERS];
    int worker_count;
    char job[PSD_MAX_NAME]; /* of workers that come now */
    bool answers;           /* workers make tokens and get ready by themselves */
    sim_record *journal;
    size_t journal_count;
    size_t journal_capacity;
    FILE *out; /* the trace */
    /* the trace line being gathered: one text to several workers */
    char line[2048];
    char names[512];
    /* what workers will say once the step's effects are done */
    struct {
        sim_worker *worker;
        psd_msg msg;
    } replies[256];
    int reply_count;
} sim;

bool sim_begin(sim *s, FILE *out);
void sim_end(sim *s);
sim_worker *sim_worker_named(sim *s,
                             const char *name); /* makes it if it is new; NULL when there are too many */

void sim_step(sim *s, psd_event *event);           /* with what follows from it */
void sim_say(sim *s, sim_worker *w, psd_msg *msg); /* sends it as from this worker */
void sim_ask(sim *s, const char *view, const char *job, uint64_t after, uint32_t limit);
void sim_advance(sim *s, psd_time_ns by);
void sim_restart(sim *s, bool compare); /* from the journal */
void sim_forget(sim *s);                /* without one: a psd that knows nothing */

/* trace.c: one line for a message to a worker, one line a row for an answer; `durable` leaves out what no
 * journal holds. */
void trace_msg(const psd_msg *msg, char *out, size_t bytes);
void trace_reply(const psd_msg_reply *reply, bool durable, FILE *out);

bool script_run(sim *s, char *line); /* false: not understood */

int scale_run(uint32_t ranks); /* exit status */

#endif
