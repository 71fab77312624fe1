/* The coordinator's state, shared by the files of core/ and by nobody else.
 *
 * core.c owns psd_core; jobs.c the jobs; members.c the members; groups.c the groups; group_open.c the
 * requests for groups; plans.c the plans; tables.c the tables; past.c the requests that were answered;
 * effects.c what a step leaves behind. An object
 * that a step ends is buried, not freed: the step's messages may still point to it or address it, so it goes
 * at the start of the next step.
 *
 * Memory: `core->oom` is set when an allocation fails; helpers then return harmless values, and the step
 * reports it. */
#ifndef PSD_CORE_STATE_H
#define PSD_CORE_STATE_H

#include <stdio.h>
#include <string.h>

#include "common/conf.h"
#include "common/map.h"
#include "server/core/core.h"

#define MAX_GROUPS_PER_JOB   65536
#define MAX_PENDING_PER_JOB  1024 /* group requests that wait for members */
#define MAX_PLANS_PER_JOB    4096
#define MAX_STEPS_PER_JOB    (UINT64_C(1) << 22) /* of all its plans: some 250 MB */
#define MAX_TABLES_PER_JOB   1024
#define MAX_FREED_KEPT       256 /* freed tables of a job that a returning server is told of */
#define PAST_KEPT            32  /* answered requests of each kind that a job keeps, see past.c */
#define MAX_NEXT_WAITERS     256 /* told at once when a job has ended; more ask again by themselves */
#define PENDING_IDS          UINT32_C(0x80000000) /* requests for groups are numbered from here, groups below */
#define MAX_NOTES            512
#define MAX_INCIDENTS        32 /* kept of a job */
#define MAX_QUESTIONS        16 /* to ranks, at a time */
#define INCIDENT_LOST_WORK   5  /* after the waits_class: information, no hang; never open */
#define MAX_LOST_PER_TIMER   64 /* leases ended in one step; more follow at once */
#define NOTICE_INTERVAL_NS   PSD_NS_PER_S
#define GRACE_LONGEST_NS     PSD_NS_PER_S
#define PLAN_STEPS_PER_CHUNK 16384 /* at most 34 bytes a step on the wire: well under PSD_MAX_FRAME */

/* --------------------------------------------------------------------------------------------- containers */

/* Objects in ascending order of their id, which is their first field. */
typedef struct shelf {
    void **items;
    size_t count;
    size_t capacity;
} shelf;

bool shelf_add(shelf *s, void *item); /* id above all others; false: no memory */
void *shelf_find(const shelf *s, uint32_t id);
void shelf_remove(shelf *s, uint32_t id);

static inline size_t bits_words(uint32_t count)
{
    return ((size_t)count + 63) / 64;
}

static inline bool bit_get(const uint64_t *bits, uint32_t at)
{
    return (bits[at / 64] >> (at % 64)) & 1;
}

/* False if it was set already. */
static inline bool bit_set(uint64_t *bits, uint32_t at)
{
    uint64_t mask = UINT64_C(1) << (at % 64);
    bool fresh = (bits[at / 64] & mask) == 0;
    bits[at / 64] |= mask;
    return fresh;
}

/* ------------------------------------------------------------------------------------------------ members */

typedef enum member_state {
    MEMBER_WAITING = 1, /* for the world to be complete */
    MEMBER_ACTIVE = 2,
    MEMBER_LEFT = 3, /* said BYE */
    MEMBER_LOST = 4,
} member_state;

typedef enum member_list {
    LIST_NONE = 0,
    LIST_LEASE = 1, /* lost when silent for a lease */
    LIST_GRACE = 2, /* its connection is gone: lost when not back in time */
} member_list;

typedef struct job job;

typedef struct member {
    struct member *prev; /* in its time list */
    struct member *next;
    struct member *same_hash; /* next in the name map's chain */
    job *job;
    const char *name; /* into text */
    const char *role;
    const char *host;
    const char *address;
    const char *backend;
    uint64_t incarnation;
    uint64_t token;    /* resume token */
    psd_peer peer;     /* 0: not connected */
    psd_time_ns since; /* start of the time its list measures */
    psd_time_ns seen;  /* last message; INT64_MIN after a restart */
    uint64_t epoch;
    uint64_t ops;
    uint64_t bytes_sent;
    uint64_t bytes_received;
    uint64_t pool_bytes;
    int64_t doing_ns; /* when it was seen last */
    uint64_t resident_bytes;
    uint64_t communicator_bytes;
    uint32_t communicators;
    uint32_t communicator_budget; /* 0: its backend has no communicators */
    psd_current_op *current;      /* NULL: in no operation */
    psd_msg_snapshot *snap; /* its answer in the round that goes on, see watch.c; NULL: none. One block */
    uint32_t roster_at;
    uint32_t stuck_at;   /* in watch.stuck */
    uint32_t aborted_by; /* incident that broke a group of it, until a new one goes live; 0: none */
    uint32_t arrival;
    uint32_t pid;
    int32_t rank;  /* -1 until the world is complete, unless asked for */
    int32_t asked; /* -1: psd chooses */
    uint8_t doing; /* psd_doing */
    uint8_t state;
    uint8_t list;
    bool in_world_group; /* false for one that came to the running job */
    bool is_stuck;       /* has said so, and is asked in every round */
    bool is_asked;       /* and has not answered yet */
    char text[];
} member;

/* Of psctl, which a rank has not answered yet. */
typedef struct question {
    member *asked; /* NULL: none */
    psd_peer peer; /* who asked */
    uint64_t request;
    uint64_t number;
    psd_time_ns due;
} question;

/* Oldest first: every entry has the same length, so that refreshing is moving to the tail. */
typedef struct time_list {
    member *head;
    member *tail;
} time_list;

static inline bool member_is_live(const member *m)
{
    return m->state == MEMBER_WAITING || m->state == MEMBER_ACTIVE;
}

static inline bool member_is_server(const member *m)
{
    return strcmp(m->role, "server") == 0;
}

/* ------------------------------------------------------------------------------------------------- groups */

typedef enum group_state {
    GROUP_ASKING = 1,  /* for the token, from group rank 0 */
    GROUP_OPENING = 2, /* OPENED is out, READY are counted */
    GROUP_LIVE = 3,
    GROUP_BROKEN = 4,
} group_state;

typedef struct group {
    uint32_t id;
    uint32_t count;
    job *job;
    uint32_t *members;  /* world ranks in group order; NULL: 0 .. count-1 */
    uint32_t *order;    /* group ranks by ascending world rank; NULL when members ascend already */
    uint64_t *requests; /* of the members' GROUP_OPEN, until GO; NULL for the world */
    uint64_t *ready;    /* bits, until GO */
    uint64_t *closed;   /* bits: closed, left or lost */
    uint32_t ready_count;
    uint32_t closed_count;
    group_state state;
    uint64_t epoch;
    psd_time_ns changed; /* when it came into its state */
    int64_t warmup_ns;   /* longest of the members' */
    uint32_t incident;   /* a broken group's: told as this one; 0: none */
    int32_t failed_at;   /* the rank that found it broken by another's end; -1 */
    bool is_in_cut;      /* while a cut is made: somebody's operation is on it */
    psd_status status;   /* of a broken group */
    int32_t culprit;
    char *reason;
    psd_op_side *
        sides; /* PSD_INCIDENT_SIDES, ascending by rank: what ranks told of the operation that broke it; NULL */
    uint32_t side_count;
    uint32_t own_sides; /* bit i: sides[i] is that rank's own word */
    uint32_t token_bytes;
    uint8_t token[PSD_MAX_TOKEN];
} group;

/* A request for groups that waits until all who must ask have asked. */
typedef struct pending {
    uint32_t id;    /* at or above PENDING_IDS, so that it is an audience like a group's */
    uint32_t count; /* of those who must ask */
    job *job;
    psd_group_how how;
    uint32_t parent; /* split, dup */
    uint32_t asked;
    uint32_t *members; /* new: as listed; else the parent's, copied; NULL: 0 .. count-1 */
    uint32_t *order;
    uint64_t *requests; /* 0: has not asked */
    int32_t *colors;    /* split */
    int32_t *keys;
    psd_status status; /* among the past: refused, and why */
    char *reason;
    psd_time_ns changed; /* when it was refused */
    bool disagreed;      /* refused while some have yet to ask: they are told when they do */
    bool is_in_cut;      /* while a cut is made: somebody waits for it */
} pending;

/* -------------------------------------------------------------------------------------------------- plans */

typedef enum plan_state {
    PLAN_AGREEING = 1,
    PLAN_COMPILING = 2,
    PLAN_LOADING = 3, /* steps go out, READY are counted */
    PLAN_LIVE = 4,
    PLAN_FAILED = 5,
} plan_state;

typedef struct plan {
    uint32_t id;
    plan_state state;
    job *job;
    uint32_t group;
    uint32_t *members; /* the group's, copied: a plan may outlive it */
    uint32_t *order;
    psd_plan_inputs inputs;
    uint32_t asked;
    uint32_t ready_count;
    uint32_t closed_count;
    uint32_t first;     /* group rank that asked first */
    uint64_t *requests; /* the open request: what PLAN_OPEN, then what PLAN_READY brought; 0: not asked */
    uint64_t *ready;    /* bits */
    uint64_t *closed;   /* bits */
    uint64_t *sent;     /* bytes, by group rank */
    psd_plan_steps compiled;
    uint64_t *first_step; /* ranks + 1 starts in step_of: a rank's own steps */
    uint64_t *step_of;
    uint64_t *hashes; /* by group rank */
    uint64_t hash;    /* of all */
    uint64_t runs;
    uint64_t bytes_sent;
    int64_t last_run_ns;
    psd_time_ns changed;
    psd_status status; /* of a failed plan */
    char *reason;
} plan;

/* ------------------------------------------------------------------------------------------------- tables */

typedef enum table_state {
    TABLE_AGREEING = 1,
    TABLE_ASSIGNING = 2,
    TABLE_LIVE = 3,
    TABLE_FAILED = 4,
} table_state;

/* What one server told of its shard. */
typedef struct shard {
    uint64_t clock;
    uint64_t pushes;
    uint64_t pulls;
    uint64_t bytes;
} shard;

typedef struct table {
    uint32_t id;
    table_state state;
    job *job;
    psd_table_spec spec;     /* params owned */
    char role[PSD_MAX_NAME]; /* of the trainers */
    uint32_t trainer_count;
    uint32_t *trainers; /* world ranks, ascending */
    uint64_t *requests; /* by trainer; 0: has not asked */
    uint64_t *closed;   /* bits by trainer: closed, left or lost */
    uint32_t asked;
    uint32_t closed_count;
    uint32_t first; /* world rank that asked first */
    uint32_t server_count;
    uint32_t *servers; /* world ranks, ascending */
    uint64_t *ready;   /* bits by server */
    uint32_t ready_count;
    shard *shards;
    psd_time_ns changed;
    psd_status status; /* of a failed table */
    char *reason;
} table;

typedef struct freed_table {
    uint32_t id;
    psd_time_ns at; /* when its servers were told */
} freed_table;

/* ------------------------------------------------------------------------------------------------- hangs */

/* Who of a job is stuck. Not durable: who is stuck says so again. */
typedef struct watch {
    member **stuck;
    uint32_t count;
    uint32_t capacity;
    uint32_t unanswered;
    uint64_t round;
    bool is_asking;
    bool is_wanted;     /* something changed since the round began */
    psd_time_ns due;    /* of the next round, or of the answers of this one; PSD_NEVER */
    psd_time_ns pause;  /* before a round is repeated */
    struct cut *before; /* the round before, if somebody was stuck in it */
    psd_msg **decided;  /* what the core has told itself; until the next decision */
    uint32_t decided_count;
} watch;

typedef struct incident {
    uint32_t id;
    bool is_acknowledged;
    psd_time_ns at;
    psd_msg_incident body;
} incident;

/* --------------------------------------------------------------------------------------------- jobs, core */

/* Ring of the last objects that were taken off their shelf with an answer. */
typedef struct past {
    void *items[PAST_KEPT];
    uint64_t count;
} past;

typedef enum job_state {
    JOB_FORMING = 1,
    JOB_RUNNING = 2,
    JOB_ENDED = 3, /* all left or were lost; the next HELLO starts it anew */
} job_state;

struct job {
    uint32_t index;
    job_state state;
    char name[PSD_MAX_NAME];
    uint64_t epoch; /* 0 until the world is complete */
    uint32_t world;
    int32_t world_min;
    int32_t world_max;
    char first[PSD_MAX_NAME]; /* the worker whose HELLO set the size */
    member **ranks;           /* by world rank; while forming only explicit claims */
    member **roster;          /* all members, in no order */
    uint32_t roster_count;
    uint32_t roster_capacity;
    uint32_t arrivals;
    uint32_t have;        /* live members */
    uint32_t helpers;     /* of them with role server */
    uint32_t claimed;     /* while forming: live members that asked for their rank */
    uint32_t lowest_free; /* no unclaimed rank below this one */
    uint32_t lost;
    uint32_t left;
    uint32_t next_group;
    uint32_t next_pending;
    uint32_t next_table;
    uint32_t world_group;
    bool notice; /* those waiting are to be told at the next notice time */
    bool stopping;
    bool drained; /* it stops because every rank that is not a server has left */
    char stop_text[160];
    shelf groups;
    shelf pendings;
    shelf plans;
    shelf tables;
    freed_table *freed; /* ring of the last MAX_FREED_KEPT; NULL before the first */
    uint64_t freed_count;
    past past_pendings;
    past past_groups;
    past past_plans;
    past past_tables;
    watch watch;
    incident *incidents[MAX_INCIDENTS]; /* ring of the last ones */
    uint32_t incident_count;            /* of all; the next one's id is one more */
    psd_peer *next_waiters;             /* who waits for this world to end; not durable: they ask again */
    uint32_t next_waiter_count;
};

typedef struct note {
    psd_time_ns at;
    psd_note_level level;
    int32_t rank;
    char job[PSD_MAX_NAME];
    char *text;
} note;

typedef void (*bury_free)(void *object);

typedef struct grave {
    void *object;
    bury_free free_object;
} grave;

typedef struct arena_block {
    struct arena_block *next;
    size_t used;
    size_t capacity;
    char data[];
} arena_block;

struct psd_core {
    psd_core_config config;
    psd_time_ns lease_ns;
    psd_time_ns slack_ns; /* psd_core_set_slack */
    psd_time_ns grace_ns;
    job **jobs; /* by index */
    uint32_t job_count;
    uint32_t next_plan; /* plan ids are unique over all jobs: COMPILED names nothing else */
    uint32_t reserved;  /* ranks of all jobs' worlds */
    psd_map peers;      /* psd_peer -> member */
    psd_map names;      /* hash of (job, name) -> member, chained */
    time_list leases;
    time_list graces;
    psd_time_ns notice_at; /* PSD_NEVER: nobody waits for a notice */
    psd_time_ns watch_at;  /* the earliest watch.due */
    question questions[MAX_QUESTIONS];
    uint64_t question_count; /* of all */
    uint64_t messages;
    uint64_t dropped;

    /* of the step that runs */
    psd_time_ns now;
    uint64_t entropy;
    psd_effects *effects;
    bool oom;
    psd_msg sink; /* where messages go when there is no memory for them */

    /* until the next step */
    grave *graves;
    size_t grave_count;
    size_t grave_capacity;
    arena_block *arena;

    /* scratch of psd_core_next_addressee */
    const char **addresses;
    size_t address_capacity;
    void *columns;

    note notes[MAX_NOTES]; /* ring */
    uint64_t note_count;
};

/* -------------------------------------------------------------------------------------- effects.c, memory */

psd_msg *send_to(psd_core *core, psd_audience to, psd_msg_type type); /* never NULL */
psd_msg *send_to_peer(psd_core *core, psd_peer peer, psd_msg_type type);
psd_msg *send_to_member(psd_core *core, const member *m, psd_msg_type type); /* ident filled */
psd_audience to_job(const job *j);
psd_audience to_group(const job *j, uint32_t id);
psd_audience to_plan(const plan *p);
psd_audience to_trainers(const table *t);
psd_audience to_servers(const table *t);
psd_effect *add_effect(psd_core *core, psd_effect_type type); /* NULL: no memory */
void drop_peer(psd_core *core, psd_peer peer);
void note_add(psd_core *core, const job *j, int32_t rank, psd_note_level level, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void refuse_peer(psd_core *core, psd_peer peer, const psd_msg *asked, psd_status status, const char *format,
                 ...) __attribute__((format(printf, 5, 6)));
void mark_journal(psd_core *core);

void *core_calloc(psd_core *core, size_t count, size_t bytes); /* NULL sets oom */
void *core_copy(psd_core *core, const void *from, size_t count, size_t bytes);
char *core_strdup(psd_core *core, const char *text);
void bury(psd_core *core, void *object, bury_free free_object);
extern const char no_reason[]; /* what is said for a reason that there was no memory to keep */
void graves_empty(psd_core *core);
void *arena_take(psd_core *core, size_t bytes);
char *arena_text(psd_core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));
void arena_empty(psd_core *core, bool all);

/* -------------------------------------------------------------------------------------- ordered rank sets */

/* Group order over world ranks: members NULL stands for 0 .. count-1. */
int64_t ranks_find(const uint32_t *members, const uint32_t *order, uint32_t count, uint32_t world_rank);
/* The order by which ranks_find searches a list that does not ascend; *order NULL when it does. False: no
 * memory, or a rank twice (*twice, else left alone). */
bool ranks_order(psd_core *core, const uint32_t *members, uint32_t count, uint32_t **order, int64_t *twice);
/* "0-3,7", cut with "..." when it does not fit. */
void ranks_text(const uint32_t *members, uint32_t count, char *out, size_t out_bytes);

static inline uint32_t ranks_at(const uint32_t *members, uint32_t at)
{
    return members == NULL ? at : members[at];
}

/* ---------------------------------------------------------------------------------------------- members.c */

void members_hello(psd_core *core, const psd_event *event); /* hello.c */
void members_fill_welcome(const psd_core *core, const job *j,
                          psd_msg_welcome *out); /* all but rank and token */
void member_activate(psd_core *core, member *m); /* its lease begins */
void member_attach(psd_core *core, member *m, psd_peer peer);
/* Ends a member without asking whether its job ends with it. */
void member_lose(psd_core *core, member *m, const char *why);
void member_forget(psd_core *core, member *m); /* takes it off every list and buries it */
uint64_t name_key(const job *j, const char *name);
void members_heartbeat(psd_core *core, member *m, const psd_msg *msg);
void members_bye(psd_core *core, member *m, const psd_msg *msg);
void members_touch(psd_core *core, member *m); /* any traffic counts as liveness */
/* What was sent to it from this time on may have gone to a dead connection. */
psd_time_ns member_missed_since(const psd_core *core, const member *m);
void members_gone(psd_core *core, psd_peer peer);
void members_lost(psd_core *core, const psd_ident *ident);
void members_restart(psd_core *core);
void members_timer(psd_core *core);
member *members_find(const psd_core *core, const psd_ident *ident); /* by job and name; any incarnation */
member *members_at(const job *j, uint32_t rank);                    /* the live member of a rank, or NULL */
/* "rank 2 (worker w2 on host a, pid 7)". */
void member_text(const member *m, char *out, size_t out_bytes);
/* "have 3 of 4, missing rank 2 (never arrived)" */
void job_waiting_text(job *j, bool brief, char *out,
                      size_t out_bytes); /* brief: bounded work, may name fewer */

/* ------------------------------------------------------------------------------------------------- jobs.c */

job *jobs_find(const psd_core *core, const char *name);
/* Finds, starts anew or makes the job of a HELLO; NULL with a reason. */
job *jobs_take(psd_core *core, const psd_msg *msg, psd_status *status, char *why, size_t why_bytes);
void jobs_member_ended(
    psd_core *core, const member *m); /* after a loss or a leave: does the job end, or only servers remain? */
void jobs_stop(psd_core *core, job *j, const char *text);
void jobs_wait_for_end(psd_core *core, job *j, psd_peer peer); /* RESYNC comes once it has ended */
void jobs_forget_waiters(job *j);
void jobs_form(psd_core *core, job *j); /* the world is complete: ranks, WELCOME, the world's group */
void job_free(job *j);
bool roster_add(psd_core *core, job *j, member *m);
void roster_remove(job *j, member *m);

/* ----------------------------------------------------------------------------------------------- groups.c */

void groups_open(psd_core *core, member *m, const psd_msg *msg); /* group_open.c */
void groups_token(psd_core *core, member *m, const psd_msg *msg);
void groups_ready(psd_core *core, member *m, const psd_msg *msg);
void groups_fail(psd_core *core, member *m, const psd_msg *msg);
void groups_close(psd_core *core, member *m, const psd_msg *msg);
/* Takes members, order and requests (NULL or malloc'ed). */
void groups_create(psd_core *core, job *j, uint32_t count, uint32_t *members, uint32_t *order,
                   uint64_t *requests);
void groups_fill_opened(const group *g, psd_msg_group_opened *out); /* all but the addresses */
/* The addresses of its members, in the core's scratch. False: no memory. */
bool groups_fill_addresses(psd_core *core, const job *j, psd_msg_group_opened *opened);
void groups_abort(psd_core *core, group *g, psd_status status, int32_t culprit, const char *text);
void groups_member_ended(psd_core *core, member *m, bool failed, const char *text);
void groups_resume(psd_core *core, member *m); /* sends again what may have been missed */
/* Answers all who asked, and forgets the request. */
void pending_refuse(psd_core *core, pending *p, psd_status status, const char *text);
void pendings_refuse_parent(psd_core *core, job *j, uint32_t parent, psd_status status, const char *text);
void pendings_member_ended(psd_core *core, member *m, const char *text);
int64_t group_rank_of(const group *g, const member *m);
void group_mark_closed(psd_core *core, group *g, uint32_t at);
void group_free(void *g);
void pending_free(void *p);

/* ------------------------------------------------------------------------------------------------- past.c */

void past_add_pending(psd_core *core, pending *p); /* each takes it, off its shelf */
void past_add_group(psd_core *core, group *g);
void past_add_plan(psd_core *core, plan *p);
void past_add_table(psd_core *core, table *t);
void *past_find(const past *kept, uint32_t id);
/* Answers a request that was refused before, or gave the rank no group. */
bool past_answers(psd_core *core, const member *m, const psd_msg *msg);
void past_member_ended(const member *m);
void past_bury(psd_core *core, job *j);
void past_free(job *j);

/* ----------------------------------------------------------------------------- plans.c, tables.c, views.c */

void plans_open(psd_core *core, member *m, const psd_msg *msg);
void plans_compiled(psd_core *core, const psd_event *event);
void plans_next(psd_core *core, member *m, const psd_msg *msg);
void plans_ready(psd_core *core, member *m, const psd_msg *msg);
void plans_progress(psd_core *core, member *m, const psd_msg *msg);
void plans_close(psd_core *core, member *m, const psd_msg *msg);
void plans_group_broken(psd_core *core, const group *g);
void plans_member_ended(psd_core *core, member *m);
void plans_resume(psd_core *core, member *m);
void plans_restart(psd_core *core);
void plans_refuse(psd_core *core, plan *p, psd_status status, const char *text); /* ends it for all */
void plans_refuse_failed(psd_core *core, const member *m, const psd_msg *msg,
                         const plan *p);              /* tells one why */
int64_t plan_rank_of(const plan *p, const member *m); /* -1: not of it, or has closed it */
void plan_remove(psd_core *core, plan *p);
/* Answers with one chunk of a rank's own steps. */
void plans_send_steps(psd_core *core, const plan *p, uint32_t rank, uint32_t chunk, const member *m,
                      uint64_t request);
/* Fills one chunk of a rank's own steps; the columns are the core's scratch. False: no memory. */
bool plans_fill(psd_core *core, const plan *p, uint32_t rank, uint32_t chunk, psd_msg_plan_steps *out);
void plan_free(void *p);

void tables_open(psd_core *core, member *m, const psd_msg *msg);
void tables_ready(psd_core *core, member *m, const psd_msg *msg);
void tables_progress(psd_core *core, member *m, const psd_msg *msg);
void tables_close(psd_core *core, member *m, const psd_msg *msg);
void tables_member_ended(psd_core *core, member *m, bool failed, const char *text);
void tables_resume(psd_core *core, member *m);
/* Ends a table that was never open: all who asked are answered now, those yet to ask when they do. */
void table_refuse(psd_core *core, table *t, psd_status status, const char *text);
int64_t trainer_of(const table *t, const member *m);
void table_free(void *t);

void views_answer(psd_core *core, const psd_event *event);

/* ------------------------------------------------------------------------------------------------- asks.c */

void asks_answer(psd_core *core, member *m, const psd_msg *msg);
psd_time_ns asks_deadline(const psd_core *core);
void asks_timer(psd_core *core);
void asks_member_ended(psd_core *core, const member *m);
void asks_restart(psd_core *core);

/* ------------------------------------------------------------------------------------ watch.c, incidents.c */

void watch_stuck(psd_core *core, member *m, const psd_msg *msg);
void watch_snapshot(psd_core *core, member *m, const psd_msg *msg);
void watch_timer(psd_core *core);
void watch_member_ended(psd_core *core, member *m); /* who waits for it may be stuck now */
void watch_restart(psd_core *core);
void watch_free(job *j);
void incidents_lost_work(psd_core *core, member *m, const psd_msg *msg);
void incidents_decided(psd_core *core, const psd_event *event);
void incidents_group_live(const group *g);                            /* its members have gone on */
bool incidents_has(const psd_core *core, const job *j, uint64_t key); /* an open one */
bool incident_is_open(const job *j, const incident *i);
/* A rank found its group broken, or tells more of a group that is broken. */
void incidents_group_failed(psd_core *core, group *g, const member *m, const psd_msg_abort *fail);
void incidents_group_told(psd_core *core, group *g, const member *m, const psd_msg_abort *fail);
/* A member has closed the group in order: perhaps others still waited for it. */
void incidents_member_closed(psd_core *core, group *g, uint32_t at);
void incidents_free(job *j);

/* ----------------------------------------------------------------------------------------------- cancel.c */

void requests_cancel(psd_core *core, member *m, const psd_msg *msg);
/* "split of group 1: rank 3 has not asked" */
const char *pending_text(psd_core *core, const pending *p);

#endif
