/* The engine of the mpi backend.
 *
 * Threads. MPI belongs to one thread of the process, the communication thread (process.c): it alone calls MPI, and it
 * alone touches groups, transfers and messages. Other threads hand it commands, and read of a request is_done and
 * then its result, of a group its status. So the engine has no lock; process.lock guards the queue of commands, the
 * text of a group's status, and sleeping.
 *
 * Objects and owners. A request is one operation; it owns its transfers (xfer), one for each message. A message is one
 * that came before its receive.
 *
 * A message's way. Up to the eager limit, as far as the peer's credit goes, it is one EAGER frame, copied: the send is
 * complete. Otherwise RTS; the receive, once matched, gives its memory to MPI_Irecv with an MPI tag of its own and
 * answers CTS with that tag; then the send gives its memory to MPI_Isend. So nothing is in MPI's hands that the other
 * side has not agreed to, and an operation can be ended while it waits. Only what MPI holds cannot be taken back from
 * it: it goes on to its end, and if the peer is gone, has none. */
#ifndef PSD_MPI_ENGINE_H
#define PSD_MPI_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include <mpi.h>

#include "worker/backend/backend.h"
#include "worker/backend/host/coll.h"
#include "worker/backend/list.h"
#include "worker/backend/mpi/frame.h"
#include "worker/psd.h"

#define ENGINE_CREDIT   (2u << 20) /* eager bytes, headers counted, that a peer may have unconsumed here */
#define ENGINE_RING     16         /* receives of frames that are posted */
#define ENGINE_PIECES   4u         /* pieces of one transfer that MPI has at a time */
#define ENGINE_PIECE    ((size_t)1 << 30) /* bytes; MPI counts with int */
#define ENGINE_PAST     256u              /* collectives of a group that are remembered */
#define ENGINE_MESSAGES (1u << 20)        /* messages that a group holds */
#define ENGINE_EARLY    65536u            /* HERE of groups that are not open */
#define TAG_FRAMES      1                 /* MPI tags: of all frames, and the first of data */
#define TAG_DATA        2

typedef struct psd_backend engine;
typedef struct psd_backend_group mgroup;
typedef struct xfer xfer;
typedef struct message message;

/* What another thread asks of the communication thread. */
typedef struct command {
    list node;
    void (*run)(struct command *command);
} command;

typedef enum xfer_state {
    XFER_POSTED = 1, /* receive: not matched yet */
    XFER_OFFERED,    /* send: RTS is out */
    XFER_MOVING,     /* MPI has its memory */
    XFER_DONE,
} xfer_state;

/* One message of an operation: a send or a receive. */
struct xfer {
    list node;       /* posted list */
    list in_request; /* psd_request.xfers */
    psd_request *request;
    xfer_state state;
    bool is_send;
    uint8_t channel;
    psd_dtype dtype;
    int32_t rank; /* group rank of the other side; PSD_ANY_SOURCE */
    int32_t tag;
    int64_t count;
    uint8_t *data;
    uint64_t bytes;
    uint64_t ordinal;
    uint64_t posted; /* order of posting in its group */
    uint32_t index;  /* in engine.xfers */
    uint32_t generation;
    /* MOVING */
    int mpi_rank;
    int mpi_tag;
    size_t piece;   /* bytes; the receiver's choice, so that both cut alike */
    uint64_t given; /* bytes that were given to MPI */
    uint32_t pieces;
    bool is_cancelled; /* receive: the send was given up */
};

/* A message whose receive is not posted, or a collective's that has not started here. */
struct message {
    list node; /* member.messages, member.coll_messages or group.early */
    uint64_t arrived;
    int source; /* MPI rank */
    frame header;
    xfer *self; /* RTS to oneself: the send */
    uint8_t payload[];
};

typedef struct member {
    list posted;        /* receives from this rank */
    list messages;      /* p2p, in order of arrival */
    list coll_messages; /* of collectives that have started */
    uint64_t sent;      /* p2p messages to it */
    bool is_here;
    bool has_closed;
} member;

typedef struct past_op {
    uint64_t ordinal; /* + 1; 0: none */
    fingerprint what;
    char label[FRAME_LABEL];
} past_op;

struct psd_backend_group {
    list node; /* engine.groups */
    engine *engine;
    uint32_t id;
    int32_t rank;
    int32_t size;
    uint32_t *members; /* world ranks, which are MPI's */
    member *member;
    uint64_t token_hash;
    psd_backend_group *below; /* the host backend's, for the channel and to learn of lost peers */
    command opening;
    command closing;
    command settling;
    bool is_closed; /* guarded by process.lock */
    atomic_bool is_ready;
    /* Written once, text first, under process.lock. */
    atomic_int status;
    char text[PSD_MAX_TEXT];
    /* The communication thread's. */
    bool is_open;
    bool is_settled; /* broken, and its requests have been ended as far as they can be */
    int32_t here;    /* members that are */
    list requests;
    list posted_any;
    list early;
    uint32_t kept;
    uint64_t posted;
    uint64_t next_ordinal;
    past_op *past;        /* ENGINE_PAST */
    psd_time_ns moved_at; /* broken: when MPI last ended a piece of it */
};

struct psd_request {
    command starting;
    list in_group;
    mgroup *group;
    atomic_bool is_done;
    bool is_coll;
    bool is_failed;   /* waits only for what MPI has */
    uint32_t pending; /* transfers, and one while they are being posted */
    list xfers;
    xfer *last_receive; /* of a batch: whose source and tag the result tells */
    psd_op op;          /* with copies of what it points to */
    psd_op_result result;
    psd_time_ns notice_at; /* collectives: when to tell the peers what it is */
    fingerprint what;
    uint32_t round;
    list posted; /* receives of this round */
    coll_message *items;
    void *scratch;
    coll schedule;
    char label[FRAME_LABEL];
    int64_t tail[]; /* splits, or psd_op_p2p */
};

/* What MPI works on. */
typedef struct mpi_work {
    struct mpi_work *next; /* of those that it has ended */
    xfer *piece_of;        /* NULL: a frame */
    uint64_t bytes;
    bool is_cancelled;
    bool is_short; /* a receive that got less than the piece */
    uint8_t frame[];
} mpi_work;

typedef struct mpi_peer {
    uint64_t credit; /* eager bytes that may still go to it */
    uint64_t owed;   /* eager bytes used up here, not told yet */
} mpi_peer;

struct psd_backend {
    command attaching;
    command detaching;
    uint64_t eager_limit;
    size_t piece; /* bytes */
    void (*on_group_broken)(void *, uint32_t, psd_status, int32_t, const char *);
    void (*on_stuck)(void *, psd_status, const char *);
    void *owner;
    const psd_backend_ops *host;
    psd_backend *below;
    atomic_uint_least64_t bytes_sent;
    atomic_uint_least64_t bytes_received;
    bool is_detached; /* guarded by process.lock */
    /* The communication thread's. */
    MPI_Comm comm;
    MPI_Request duplicating; /* of comm */
    bool has_comm;
    int rank;
    int size;
    int tag_limit;
    int next_tag;
    mpi_peer *peers; /* by MPI rank */
    list groups;
    list early_here;
    uint32_t early_count;
    uint32_t active; /* requests */
    uint8_t *ring;   /* ENGINE_RING frames */
    MPI_Request ring_requests[ENGINE_RING];
    uint32_t ring_head;
    MPI_Request *requests; /* parallel to works */
    mpi_work **works;
    int *indices;
    MPI_Status *statuses;
    int work_count;
    int work_capacity;
    xfer **xfers; /* by index */
    uint32_t *generations;
    uint32_t *free_xfers;
    uint32_t xfer_count;
    uint32_t xfer_capacity;
    uint32_t free_count;
    uint64_t arrivals;
    bool has_worked; /* some group was complete */
    bool has_done;   /* requests were completed in this turn */
    psd_time_ns timers_at;
};

/* The process's MPI. */
typedef enum process_state {
    PROCESS_IDLE = 0,
    PROCESS_STARTING, /* in MPI_Init, which waits for all ranks */
    PROCESS_UP,
    PROCESS_FAILED,
    PROCESS_OVER,
} process_state;

typedef struct mpi_process {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* the communication thread */
    pthread_cond_t done; /* who waits for requests or commands */
    list commands;
    bool is_asleep;
    uint32_t waiters;
    bool is_ending;
    bool is_unclean;  /* MPI_Finalize might wait for ever, and other ranks for this one */
    bool is_doubtful; /* a group broke: some rank may never come to MPI_Finalize */
    process_state state;
    char why[256];
    engine *context;  /* attached; written by the communication thread */
    engine *reserved; /* opened: one at a time */
    pthread_t thread;
} mpi_process;

/* ---------------------------------------------------------------------------------------------- process.c */

extern mpi_process process;

/* Starts the thread, once, and takes the place of the one context; `why` on an error. */
psd_status process_reserve(engine *e, char *why, size_t why_bytes);
void process_give_back(engine *e);
void process_push(command *c);
/* Under process.lock: pushes, and waits until *flag. */
void process_push_and_wait(command *c, const bool *flag);
/* [any] Until is_over() or the deadline (PSD_ERR_TIMEOUT). */
psd_status process_wait(bool (*is_over)(void *), void *arg, psd_time_ns deadline);

/* --------------------------------------------------------------------------------------------- engine.c */

psd_status engine_open(const psd_backend_config *config, engine **out, char *why, size_t why_bytes);
void engine_close(engine *e);
/* One turn of the communication thread. True if anything happened. */
bool engine_turn(engine *e, psd_time_ns now);
/* MPI said no: all groups are broken. */
void engine_failed(engine *e, const char *call, int code);
mgroup *engine_group(engine *e, uint32_t id);

/* ----------------------------------------------------------------------------------------------- wire.c */

/* Sends a frame, its payload copied. On no memory all groups break. */
void wire_send(engine *e, int to, const frame *f, const void *payload);
/* Gives a piece of a transfer to MPI. */
bool wire_give(engine *e, xfer *x, uint8_t *data, size_t bytes);
void wire_cancel(engine *e, const xfer *x);
/* Eager bytes of this rank were used up. */
void wire_give_credit(engine *e, int to, uint64_t bytes);
frame wire_frame(const mgroup *g, frame_type type);

/* ------------------------------------------------------------------------------------------- wire_in.c */

/* Posts the receives of frames. */
bool wire_open(engine *e);
void wire_close(engine *e);
/* Takes in what has come and what MPI has ended. True if there was any. */
bool wire_poll(engine *e);

/* ------------------------------------------------------------------------------------------- transfer.c */

xfer *xfer_new(psd_request *r); /* NULL: out of memory */
xfer *xfer_find(engine *e, uint64_t id);
uint64_t xfer_id(const xfer *x);
/* Its message is through: the request is advanced when it was the last. */
void xfer_complete(xfer *x);
/* Ends it, unless MPI has its memory. */
void xfer_drop(xfer *x);
/* `f` has all but type, payload and id. */
void transfer_send(mgroup *g, xfer *s, frame *f, uint64_t eager_limit);
/* The receive was matched by this RTS or EAGER. */
void transfer_take(xfer *r, const frame *f, int source, const uint8_t *payload, xfer *self);
void transfer_on_cts(engine *e, int source, const frame *f);
void transfer_on_gone(engine *e, int source, const frame *f);
void transfer_piece_done(engine *e, xfer *x, const mpi_work *piece);

/* ---------------------------------------------------------------------------------------------- match.c */

/* EAGER or RTS: finds its receive, or keeps it. `self`: the send, if it is to oneself. */
void match_arrived(mgroup *g, int source, const frame *f, const uint8_t *payload, xfer *self);
/* A receive is posted: takes the first message that fits, else stays in its list. */
void match_post(mgroup *g, xfer *r);
message *match_keep(mgroup *g, int source, const frame *f, const uint8_t *payload, xfer *self);
void match_free(mgroup *g, message *m);
void match_drop(mgroup *g);

/* ------------------------------------------------------------------------------------------ coll_run.c */

void coll_run_start(psd_request *r);
void coll_run_advance(psd_request *r);
/* Compares with this rank's collective of that ordinal. True: they agree, or it is too early (*is_early). */
bool coll_run_compare(mgroup *g, const frame *f, bool *is_early);
xfer *coll_run_find_posted(mgroup *g, const frame *f);
void coll_run_notice(psd_request *r);
void coll_run_dispute_bytes(mgroup *g, const xfer *r, const frame *f);

/* ------------------------------------------------------------------------------------------- request.c */

psd_status request_new(mgroup *g, const psd_op *op, psd_request **out);
void request_free(psd_request *r);
void request_finish(psd_request *r, psd_status status);
/* A transfer of it is through. */
void request_advance(psd_request *r);
/* Ends it as far as MPI lets go. */
void request_fail(psd_request *r);
/* Deadlines, notices, members that have closed. */
void request_timers(psd_request *r, psd_time_ns now);

/* --------------------------------------------------------------------------------------------- group.c */

psd_status group_begin(engine *e, const psd_group_desc *desc, mgroup **out, char *why, size_t why_bytes);
psd_status group_poll(mgroup *g, char *why, size_t why_bytes);
void group_close(mgroup *g);
/* [any] The first reason stays. `tell`: call on_group_broken. */
void group_break(mgroup *g, psd_status status, int32_t culprit, bool tell, const char *text);
/* An illegal frame came from this rank. */
void group_break_all(engine *e, psd_status status, int culprit, const char *why);
static inline psd_status group_status(mgroup *g)
{
    return (psd_status)atomic_load_explicit(&g->status, memory_order_acquire);
}
/* The communicator is there: groups that were opened before say so. */
void group_introduce(mgroup *g);
void group_on_here(engine *e, int source, const frame *f);
void group_on_closed(mgroup *g, int32_t rank);
void group_check_closed(mgroup *g, const xfer *x);
void group_timers(mgroup *g, psd_time_ns now);
/* From the host backend, under its locks. */
void group_relay_broken(void *owner, uint32_t group, psd_status status, int32_t culprit, const char *text);

#endif
