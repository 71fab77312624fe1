/* The control protocol's messages as plain structs. proto/wire.c turns frames into these and back; the core
 * and the worker's agent see only these. Which side sends what, and in which order, is the grammar at the top
 * of psd.proto.
 *
 * Ownership: pointers in a message are borrowed. A decoded message's memory belongs to the box that wire.c
 * returned it in; a message to be encoded, or an effect of the core, points into its producer's memory. Text
 * fields are NUL-terminated, valid UTF-8 after decoding. */
#ifndef PSD_COMMON_MSG_H
#define PSD_COMMON_MSG_H

#include <stdbool.h>

#include "common/psd_types.h"

#define PSD_PROTOCOL_VERSION 2
#define PSD_MAX_WORLD        (1 << 20) /* ranks of a job */
#define PSD_MAX_ADDR         192       /* a backend's address, text */
#define PSD_MAX_TOKEN        256       /* a backend's group token, bytes */
#define PSD_MAX_TEXT         1024      /* a reason or report line */
#define PSD_MAX_SITE         48        /* "file.c:123", the tail of the path */
#define PSD_MAX_FRAME        (1 << 20) /* bytes of one control message */
#define PSD_MAX_PARAMS       65536     /* parameters of a table */
#define PSD_MAX_SNAP_OPS     4096      /* operations, and threads, of a rank's snapshot */
#define PSD_MAX_SNAP_THREADS 256
#define PSD_MAX_INCIDENT     2048 /* rows of an incident, text */
#define PSD_INCIDENT_GROUPS  16
#define PSD_INCIDENT_SIDES   16 /* ranks of a mismatch whose operations are kept */
#define PSD_ABORT_SIDES      2  /* that one GROUP_FAIL tells of */

typedef enum psd_msg_type {
    PSD_MSG_NONE = 0,
    /* worker to psd */
    PSD_MSG_HELLO,
    PSD_MSG_HEARTBEAT,
    PSD_MSG_GROUP_OPEN,
    PSD_MSG_GROUP_TOKEN,
    PSD_MSG_GROUP_READY,
    PSD_MSG_GROUP_FAIL,
    PSD_MSG_GROUP_CLOSE,
    PSD_MSG_PLAN_OPEN,
    PSD_MSG_PLAN_NEXT,
    PSD_MSG_PLAN_READY,
    PSD_MSG_PLAN_PROGRESS,
    PSD_MSG_PLAN_CLOSE,
    PSD_MSG_TABLE_OPEN,
    PSD_MSG_TABLE_READY,
    PSD_MSG_TABLE_PROGRESS,
    PSD_MSG_TABLE_CLOSE,
    PSD_MSG_BYE,
    /* psd to worker */
    PSD_MSG_WAITING,
    PSD_MSG_WELCOME,
    PSD_MSG_REFUSE,
    PSD_MSG_RESYNC,
    PSD_MSG_GROUP_ASK_TOKEN,
    PSD_MSG_GROUP_OPENED,
    PSD_MSG_GROUP_GO,
    PSD_MSG_ABORT,
    PSD_MSG_PLAN_STEPS,
    PSD_MSG_PLAN_GO,
    PSD_MSG_TABLE_ASSIGN,
    PSD_MSG_TABLE_OPENED,
    PSD_MSG_TABLE_FREE,
    PSD_MSG_BYE_ACK,
    PSD_MSG_STOP,
    /* psctl and psd */
    PSD_MSG_QUERY,
    PSD_MSG_REPLY,
    /* worker to psd: its caller no longer waits for this request; no body */
    PSD_MSG_CANCEL,
    /* worker to psd: a thread has waited longer than it should have to; no body */
    PSD_MSG_STUCK,
    /* psd to worker, and back */
    PSD_MSG_SNAPSHOT_ASK,
    PSD_MSG_SNAPSHOT,
    /* psd to itself, through its journal */
    PSD_MSG_INCIDENT,
    /* psd to worker: a QUERY of which only `limit` and `after` count; worker to psd: a REPLY whose `next` is that `after` */
    PSD_MSG_LOG_ASK,
    PSD_MSG_LOG,
    /* the same for its last operations */
    PSD_MSG_OPS_ASK,
    PSD_MSG_OPS,
    /* worker to psd: it leaves without having waited for a work */
    PSD_MSG_LOST_WORK,
    PSD_MSG_TYPES,
} psd_msg_type;

const char *psd_msg_name(psd_msg_type type);

/* Who speaks: in every message of a worker. psctl leaves name and incarnation empty. */
typedef struct psd_ident {
    char job[PSD_MAX_NAME];
    char name[PSD_MAX_NAME];
    uint64_t incarnation; /* random, one process life; never 0 */
} psd_ident;

typedef struct psd_msg_hello {
    char role[PSD_MAX_NAME];
    char host[PSD_MAX_NAME];    /* host name: for people and for rank order, never to decide what is shared */
    char address[PSD_MAX_ADDR]; /* where the backend's data links listen; opaque to psd */
    char backend[16];
    uint32_t pid;
    int32_t rank;      /* asked for, or held before; -1: psd chooses */
    int32_t world_min; /* fixed size: both equal */
    int32_t world_max;
    uint64_t resume_token; /* of the predecessor, or of this life when it resyncs; 0: none */
    uint64_t epoch;        /* last one known; 0: new */
} psd_msg_hello;

typedef struct psd_msg_waiting {
    int32_t have;
    int32_t want;
    char text[PSD_MAX_TEXT]; /* "have 3 of 4, missing rank 2 (never arrived)" */
} psd_msg_waiting;

typedef struct psd_msg_welcome {
    int32_t rank;
    int32_t world;
    uint64_t epoch;
    uint64_t resume_token;
    uint32_t
        world_group;  /* id of the world's group; its GROUP_OPENED follows (again after a resync, as long as
                         the  group is opening). 0: came to a running job in the place of a lost or departed
                         rank; the  world's group cannot be used, groups made with GROUP_NEW can */
    int32_t lease_ms; /* silence after which psd takes the worker for lost */
    int32_t heartbeat_ms;
} psd_msg_welcome;

/* The answer to a request that failed, or to a HELLO (request 0): the worker is not admitted. */
typedef struct psd_msg_refuse {
    psd_status status;
    char text[PSD_MAX_TEXT];
} psd_msg_refuse;

/* The operation that a worker is in, if any: kind 0 when none. */
typedef struct psd_current_op {
    uint8_t kind; /* psd_op_kind */
    uint8_t dtype;
    uint8_t redop;
    int32_t peer; /* peer or root, group rank; -1: none */
    uint32_t group;
    uint64_t ordinal;
    int64_t count;
    int64_t age_ns;
    char name[PSD_MAX_NAME];
    char site[PSD_MAX_SITE];
} psd_current_op;

/* Where a worker's threads are, as far as psd sees. */
typedef enum psd_doing {
    PSD_DOING_UNKNOWN = 0,
    PSD_DOING_OUTSIDE = 1, /* none is in a call of psd */
    PSD_DOING_WAITING = 2, /* one is blocked in psd */
    PSD_DOING_POLLING = 3, /* one tests whether an operation is complete, again and again */
} psd_doing;

typedef struct psd_msg_heartbeat {
    uint64_t epoch;
    uint64_t ops;        /* operations completed in this life */
    uint64_t bytes_sent; /* over data links */
    uint64_t bytes_received;
    uint64_t pool_bytes;     /* held of psd_tensor_alloc */
    uint64_t resident_bytes; /* of the process */
    /* What the groups of a device backend take; communicator_budget 0: the backend has none. */
    uint64_t communicator_bytes; /* about */
    uint32_t communicators;
    uint32_t communicator_budget;
    psd_current_op current; /* the oldest unfinished operation; the one that is polled */
    uint8_t doing;          /* psd_doing */
    int64_t doing_ns;       /* for so long */
} psd_msg_heartbeat;

typedef struct psd_msg_lost_work {
    psd_current_op op;
    uint64_t seq;   /* of the operation, in this life of the worker */
    uint32_t total; /* works never waited for, this one included */
    bool is_done;   /* it had completed, or did while the worker left */
} psd_msg_lost_work;

typedef enum psd_group_how {
    PSD_GROUP_NEW = 1,
    PSD_GROUP_SPLIT = 2,
    PSD_GROUP_DUP = 3,
} psd_group_how;

typedef struct psd_msg_group_open {
    psd_group_how how;
    uint32_t parent; /* split and dup */
    int32_t color;
    int32_t key;
    uint32_t count; /* new: the members, world ranks in group order */
    const uint32_t *members;
} psd_msg_group_open;

/* GROUP_ASK_TOKEN uses only `group`. */
typedef struct psd_msg_group_token {
    uint32_t group;
    uint32_t bytes;
    uint8_t token[PSD_MAX_TOKEN];
} psd_msg_group_token;

typedef struct psd_msg_group_opened {
    uint32_t group; /* 0: split with color -1, no group */
    uint64_t epoch;
    uint32_t count;
    const uint32_t *members;      /* world ranks in group order; NULL: 0 .. count-1 */
    const char *const *addresses; /* count of them, of the members */
    uint32_t token_bytes;
    uint8_t token[PSD_MAX_TOKEN];
} psd_msg_group_opened;

/* GROUP_READY, GROUP_GO, GROUP_CLOSE. */
typedef struct psd_msg_group {
    uint32_t group;
    int64_t warmup_ns; /* READY only */
} psd_msg_group;

/* What a rank called, of those that do not fit together or of one that nobody comes to. */
typedef struct psd_op_side {
    int32_t rank; /* world rank */
    uint8_t kind; /* psd_op_kind, never BATCH */
    uint8_t dtype;
    uint8_t redop;
    int32_t peer;     /* sends and receives: world rank; -1: none, or any source */
    int32_t root;     /* collectives: group rank, or what else must agree (PSD_ROOT_PARTS); -1 */
    uint64_t ordinal; /* UINT64_MAX: none, a receive without its message */
    int64_t count;
    char name[PSD_MAX_NAME];      /* of the tensor; "": not known */
    char site[PSD_MAX_SITE + 12]; /* "train.c:12"; "": not known */
} psd_op_side;

/* GROUP_FAIL from a worker, ABORT from psd. Culprit: world rank, -1 when none is known. Sides: GROUP_FAIL only. One of
 * a group that is broken already adds its sides to what is known. */
typedef struct psd_msg_abort {
    uint32_t group;
    uint64_t epoch;
    psd_status status;
    int32_t culprit;
    char text[PSD_MAX_TEXT];
    uint32_t side_count;
    psd_op_side sides[PSD_ABORT_SIDES];
} psd_msg_abort;

typedef enum psd_plan_kind {
    PSD_PLAN_RING_SHIFT = 1,
} psd_plan_kind;

/* A plan's inputs: what is journalled, and what all members must agree on. */
typedef struct psd_plan_inputs {
    psd_plan_kind kind;
    uint32_t group;
    uint32_t ranks; /* of the group */
    psd_dtype dtype;
    int64_t count; /* elements of each rank's tensor */
    int32_t shift;
} psd_plan_inputs;

typedef struct psd_msg_plan_open {
    psd_plan_inputs inputs;
} psd_msg_plan_open;

/* One chunk of this rank's own steps, as columns of `count` entries; see common/plan.h. */
typedef struct psd_msg_plan_steps {
    uint32_t plan;
    uint64_t hash; /* of this rank's steps, all chunks */
    uint32_t chunk;
    uint32_t chunks;
    uint32_t rounds; /* of the plan */
    uint32_t count;
    const uint32_t *round;
    const uint32_t *peer;   /* group rank */
    const uint8_t *is_send; /* else receive */
    const uint64_t *offset; /* bytes, in the source (send) or destination (receive) tensor */
    const uint64_t *bytes;
} psd_msg_plan_steps;

/* PLAN_NEXT (chunk: the one wanted), PLAN_READY (hash: computed over the steps received), PLAN_GO,
 * PLAN_PROGRESS (runs, bytes, last_run_ns), PLAN_CLOSE. */
typedef struct psd_msg_plan {
    uint32_t plan;
    uint32_t chunk;
    uint64_t hash;
    uint64_t runs;
    uint64_t bytes; /* sent by this rank, all runs */
    int64_t last_run_ns;
} psd_msg_plan;

typedef struct psd_param {
    char name[PSD_MAX_NAME];
    uint8_t dtype;
    int64_t count;
} psd_param;

/* What all trainers of a table must agree on. */
typedef struct psd_table_spec {
    char name[PSD_MAX_NAME];
    uint8_t optimizer; /* psd_optimizer of psd.h */
    bool average;
    double lr;
    double momentum;
    uint32_t param_count;
    const psd_param *params;
} psd_table_spec;

/* TABLE_OPEN (spec), TABLE_ASSIGN to servers and TABLE_OPENED to trainers (table, spec, who; world ranks
 * ascending). Both then open a group of servers and trainers together, servers first. */
typedef struct psd_msg_table_open {
    uint32_t table;
    psd_table_spec spec;
    uint32_t server_count;
    const uint32_t *servers;
    uint32_t trainer_count;
    const uint32_t *trainers;
} psd_msg_table_open;

/* TABLE_READY (status, text: a server made room or could not), TABLE_PROGRESS (from servers), TABLE_CLOSE
 * (from trainers), TABLE_FREE (to servers, once all trainers have closed). */
typedef struct psd_msg_table {
    uint32_t table;
    psd_status status;
    uint64_t clock;
    uint64_t pushes;
    uint64_t pulls;
    uint64_t bytes; /* held by this server */
    char text[PSD_MAX_TEXT];
} psd_msg_table;

typedef struct psd_msg_bye {
    psd_status status; /* PSD_OK: a clean leave; else why it leaves */
    char text[PSD_MAX_TEXT];
} psd_msg_bye;

typedef struct psd_msg_stop {
    char text[PSD_MAX_TEXT];
} psd_msg_stop;

/* What a rank's threads wait for; see server/core/waits.h, which the core makes of it. */
typedef struct psd_snap_thread {
    uint32_t id;
    uint64_t wait_seq; /* of the thread's waits */
    int64_t waiting_ns;
    bool is_blocked; /* else it runs, as far as psd can see */
    bool any;        /* waits for any of the works; else for all */
    bool is_partial; /* and for others that are not named */
    uint32_t work_count;
    const uint32_t *works; /* units */
} psd_snap_thread;

/* An operation that is not complete. */
typedef struct psd_snap_op {
    uint32_t unit; /* the call that posted it: a batch has several operations */
    uint8_t kind;  /* psd_op_kind, never BATCH */
    uint8_t dtype;
    uint8_t redop;
    bool is_matched; /* its data moves */
    uint32_t group;
    int32_t peer; /* group rank; -1: any source, or none */
    int32_t root; /* group rank; -1: none */
    int32_t tag;  /* -1: any */
    uint64_t ordinal;
    int64_t count;
    uint32_t line;
    uint32_t
        other_tag; /* a receive: tag + 1 of a message of its peer's that came, and that it does not take; 0: none */
    char file[PSD_MAX_SITE];
    char name[PSD_MAX_NAME];
} psd_snap_op;

/* SNAPSHOT_ASK uses only `round`. */
typedef struct psd_msg_snapshot {
    uint64_t round;   /* the question's */
    uint64_t moved;   /* changes whenever this rank starts, completes, sends or receives anything */
    bool report_only; /* PSD_ON_HANG=report: no group is to be aborted */
    uint32_t thread_count;
    const psd_snap_thread *threads; /* that have used the context */
    uint32_t unit_count;
    uint32_t op_count;
    const psd_snap_op *ops; /* by unit, in the order in which they were posted */
    uint32_t group_count;
    const uint32_t *groups;
    const uint64_t *started; /* collectives, by group */
    uint32_t peer_count;
    const uint32_t *peers;    /* world ranks, ascending */
    const uint64_t *sent;     /* messages on the link to each */
    const uint64_t *received; /* and from it */
} psd_msg_snapshot;

/* A diagnosed hang. Rows are lines with the fields of the view `why`, separated by tabs. */
typedef struct psd_msg_incident {
    uint32_t kind; /* waits_class of server/core/waits.h */
    bool report_only;
    uint64_t key; /* equal for the same hang */
    int32_t culprit;
    uint32_t group_count;
    uint32_t groups[PSD_INCIDENT_GROUPS]; /* to be aborted, unless report_only */
    char text[PSD_MAX_TEXT];
    char rows[PSD_MAX_INCIDENT];
    uint64_t more;   /* ranks concerned that have no row */
    char detail[16]; /* of a mismatch: what is not the same, "count" */
} psd_msg_incident;

/* A question of psctl: `view` is status, ranks, groups, plans, ops, tables, events, version; or the
 * command stop; why, incidents, incident; log/RANK, ops/RANK; and the command ack/ID. Rows come in pages: ask again with `after` = the reply's `next` until that is 0. */
typedef struct psd_msg_query {
    char view[24];
    char job[PSD_MAX_NAME]; /* "": all jobs */
    uint64_t after;
    uint32_t limit;
} psd_msg_query;

typedef enum psd_cell_type {
    PSD_CELL_TEXT = 1,
    PSD_CELL_INT = 2, /* int, bytes, ns: negative where there is none, shown as - and null */
    PSD_CELL_REAL = 3,
    PSD_CELL_BYTES = 4, /* int: printed with a unit for people */
    PSD_CELL_NS = 5,    /* int: a duration in nanoseconds */
    PSD_CELL_BOOL = 6,
} psd_cell_type;

typedef struct psd_column {
    char name[24];
    psd_cell_type type;
} psd_column;

typedef union psd_cell {
    const char *text;
    int64_t integer;
    double real;
} psd_cell;

/* A table of rows: the one shape of every answer. psctl prints it for people or as JSON. */
typedef struct psd_msg_reply {
    psd_status status;
    char text[PSD_MAX_TEXT]; /* the error, or a line to print above the rows */
    uint64_t next;           /* 0: no more rows */
    uint32_t column_count;
    const psd_column *columns;
    uint32_t row_count;
    const psd_cell *cells; /* row_count * column_count, row by row */
} psd_msg_reply;

typedef struct psd_msg {
    psd_msg_type type;
    psd_ident ident;  /* of the worker; in messages to a worker: the addressee */
    uint64_t request; /* chosen by who asks, repeated in the answer; 0: no answer expected */
    union {
        psd_msg_hello hello;
        psd_msg_waiting waiting;
        psd_msg_welcome welcome;
        psd_msg_refuse refuse;
        psd_msg_heartbeat heartbeat;
        psd_msg_group_open group_open;
        psd_msg_group_token group_token; /* GROUP_TOKEN, GROUP_ASK_TOKEN */
        psd_msg_group_opened group_opened;
        psd_msg_group group; /* GROUP_READY, GROUP_GO, GROUP_CLOSE */
        psd_msg_abort abort; /* GROUP_FAIL, ABORT */
        psd_msg_plan_open plan_open;
        psd_msg_plan_steps plan_steps;
        psd_msg_plan plan;             /* PLAN_NEXT, PLAN_READY, PLAN_GO, PLAN_PROGRESS, PLAN_CLOSE */
        psd_msg_table_open table_open; /* TABLE_OPEN, TABLE_ASSIGN, TABLE_OPENED */
        psd_msg_table table;           /* TABLE_READY, TABLE_PROGRESS, TABLE_CLOSE, TABLE_FREE */
        psd_msg_bye bye;
        psd_msg_stop stop;
        psd_msg_snapshot snapshot; /* SNAPSHOT_ASK, SNAPSHOT */
        psd_msg_incident incident;
        psd_msg_query query; /* QUERY, LOG_ASK, OPS_ASK */
        psd_msg_reply reply; /* REPLY, LOG, OPS */
        psd_msg_lost_work lost_work;
    } u;
} psd_msg;

/* Upper bounds of the frames that grow with a job, near to what they take on the wire: what would be over
 * PSD_MAX_FRAME is refused when it is asked for, not found out when it cannot be sent. */
uint64_t psd_group_opened_bound(const psd_msg_group_opened *opened);
uint64_t psd_table_open_bound(const psd_msg_table_open *open);

#endif
