/* The engine of the host backend: one per context, between the links (link.h) and the contract (backend.h).
 *
 * Locking: one mutex guards all of it. Every function here is called with the lock held unless it says
 * otherwise. The fast path is lock, try, unlock. Whoever waits drives progress (progress.c); when nobody
 * does, the progress thread.
 *
 * Objects and owners. A request is one operation; it owns its transfers (xfer), one for each message. A
 * message is one that came before its receive. A tx is a frame that did not fit into its link at once. All
 * come from free lists.
 *
 * A message's way. Up to the eager limit it is one EAGER frame, as far as the peer's credit goes: it lands in
 * the posted receive, or in a message until that is posted. Otherwise RTS; the receive, once matched, answers
 * CTS and the data is streamed into its buffer in slices (messages on one link take turns), or, where links
 * allow single copy, the receiver reads it from the sender's memory in slices and answers FIN. */
#ifndef PSD_HOST_ENGINE_H
#define PSD_HOST_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "worker/backend/backend.h"
#include "worker/backend/host/coll.h"
#include "worker/backend/host/direct.h"
#include "worker/backend/host/frame.h"
#include "worker/backend/host/link.h"
#include "worker/backend/list.h"
#include "worker/backend/host/blocks.h"
#include "worker/backend/host/tensor_memory.h"
#include "worker/psd.h"

#define ENGINE_CREDIT     (2u << 20) /* eager bytes, headers counted, that a peer may have unconsumed here */
#define ENGINE_CHAN       256u       /* channel messages that a peer may have unconsumed here */
#define ENGINE_COLL_EAGER (256u << 10) /* a chunk of a schedule, so that rounds need no rendezvous */
#define ENGINE_COPY_SLICE (1u << 20)   /* bytes of one single-copy read under the lock */
#define ENGINE_READ_SLICE (1u << 20)   /* bytes read from one link before the next has its turn */
#define ENGINE_COLL_PAST  256u         /* collectives of a group that are remembered */
#define ENGINE_P2P_PAST   64u          /* sends of a group that are remembered */
#define ENGINE_NOTICE_NS                                                                                     \
    (100 * PSD_NS_PER_MS) /* a collective this old tells the peers it waits for what it is */
#define ENGINE_NOTICE_AGAIN_NS PSD_NS_PER_S
#define ENGINE_GROUP_CACHE     64u
#define ENGINE_TOKEN           16u

typedef struct psd_backend engine;
typedef struct psd_backend_group hgroup;
typedef struct xfer xfer;
typedef struct message message;
typedef struct peer peer;

/* A frame on its way out. */
typedef struct tx {
    list node; /* in peer->out */
    frame header;
    uint32_t sent;          /* bytes of header and payload that are in the link */
    const uint8_t *payload; /* the user's memory, or `owned` */
    void *owned;            /* pool block of owned_bytes, or NULL */
    size_t owned_bytes;
    xfer *owner; /* the send to be told when it is out; NULL: none */
} tx;

typedef enum xfer_state {
    XFER_FREE = 0,
    XFER_POSTED,    /* receive: not matched yet */
    XFER_ARRIVING,  /* receive: matched, data comes through the link */
    XFER_COPYING,   /* receive: matched, in engine->copies */
    XFER_DISPUTED,  /* receive: matched with a message that disagrees */
    XFER_QUEUED,    /* send: its EAGER or RTS frame is not out yet */
    XFER_OFFERED,   /* send: RTS is out */
    XFER_STREAMING, /* send: in peer->streams */
    XFER_DRAINING,  /* send: cancelled, but the peer may still be reading its memory */
} xfer_state;

/* One message of an operation: a send or a receive. */
struct xfer {
    list node;       /* posted list, streams or copies */
    list in_request; /* psd_request.xfers */
    psd_request *request;
    peer *peer; /* NULL: self, or a receive from any source that is not matched */
    xfer_state state;
    bool is_send;
    uint8_t channel;
    uint8_t dtype;
    int32_t rank; /* group rank of the other side; PSD_ANY_SOURCE */
    int32_t tag;
    uint64_t ordinal;
    int64_t count;
    uint8_t *data;
    uint64_t bytes;
    uint64_t done;
    uint64_t posted; /* order of posting in its group */
    uint32_t index;
    uint32_t generation;
    uint64_t remote;      /* the other side's id */
    uint64_t remote_data; /* receive, single copy: address, or place */
    xfer *self;           /* receive from oneself: the send */
    tx *out;              /* send: the frame that refers to its memory */
    bool may_be_read;     /* send: the RTS told its address */
    bool is_direct;       /* receive: it is a place, where this process maps the sender's memory */
    bool is_exposure;     /* see direct.h: no data of its own */
    bool past_cache;      /* receive: of so much that its bytes go past the cache */
    bool may_combine;     /* receive: its bytes may be reduced as they come, see coll.h */
};

/* A message whose receive is not posted, or a collective's that has not started here. */
struct message {
    list node;    /* member.messages, or group.early */
    list arrival; /* p2p: group.arrivals */
    frame header; /* EAGER, RTS, or COMPARE (data is then a label) */
    peer *peer;   /* NULL: to oneself */
    uint8_t *data;
    bool is_complete; /* all payload has come */
    xfer *receiver;   /* matched while the payload was coming */
    xfer *self;       /* the send, if to oneself */
};

/* What arrives on a link. */
typedef struct rx {
    frame header;
    size_t have;      /* bytes of the header */
    uint64_t remains; /* of the payload */
    uint8_t *to;      /* NULL: thrown away */
    xfer *receive;    /* EAGER or DATA into a posted receive */
    bool combines;    /* the receive's bytes are reduced straight from the link */
    uint8_t part[8];  /* of an element that is not all here */
    uint8_t part_bytes;
    message *message;                /* EAGER without one */
    uint8_t small[PSD_MAX_TEXT + 1]; /* payload of control frames */
} rx;

/* The engine's side of a link. */
struct peer {
    list node; /* engine.peers */
    engine *engine;
    host_link *link;
    uint64_t incarnation;
    int64_t world_rank; /* -1 until a group tells */
    bool is_broken;
    bool is_settled; /* broken, and its groups have been told */
    psd_status status;
    char text[PSD_MAX_TEXT];
    bool needs_flush;
    rx in;
    list out;             /* tx, in order */
    list streams;         /* sends with data to stream, in turns */
    uint64_t credit;      /* eager bytes that may still go to the peer */
    uint64_t owed;        /* eager bytes used up here, not told yet */
    uint32_t chan_credit; /* the same for channel messages */
    uint32_t chan_owed;
    uint32_t pings;       /* kept for groups not open here */
    uint64_t frames_sent; /* or queued */
    uint64_t frames_received;
};

/* A warm-up ping for a group that is not open here yet. */
typedef struct early_ping {
    list node; /* engine.early_pings */
    peer *peer;
    uint32_t group;
    uint32_t source;
    uint32_t token_bytes;
    uint8_t token[PSD_MAX_TOKEN];
} early_ping;

typedef struct member {
    peer *peer;      /* NULL: this rank */
    host_link *link; /* its reference */
    bool ping_received;
    bool pong_received;
    bool has_closed;
    bool is_drained;    /* the group is broken, and this member reads no memory for it any more */
    uint64_t sent;      /* p2p messages to it */
    list posted;        /* p2p receives from it */
    list messages;      /* p2p, not matched */
    list coll_messages; /* of started collectives, not matched */
} member;

typedef struct past_op {
    uint64_t ordinal; /* + 1; 0: empty */
    int32_t peer;     /* p2p: the destination */
    fingerprint what;
    char label[FRAME_MAX_LABEL];
} past_op;

typedef struct op_sides {
    psd_op_side at[PSD_ABORT_SIDES];
    uint32_t count;
} op_sides;

struct psd_backend_group {
    list node; /* engine.groups */
    engine *engine;
    uint32_t id;
    int32_t rank;
    int32_t size;
    uint32_t *members; /* world ranks */
    member *member;
    uint8_t token[PSD_MAX_TOKEN];
    uint32_t token_bytes;
    bool is_ready;
    bool is_flat;       /* ready, and all its links are shared memory */
    psd_request *spare; /* quick.c: in no list; NULL: none */
    bool is_settled;    /* broken, and its requests have been ended and its members told */
    psd_status status;  /* PSD_OK, or why it is broken */
    char text[PSD_MAX_TEXT];
    list requests;   /* psd_request.in_group, active */
    list posted_any; /* p2p receives from any source */
    list arrivals;   /* p2p messages, in order of arrival */
    list early;      /* collective messages of ordinals not started */
    uint32_t kept;   /* messages held, for the bound */
    uint64_t posted; /* counter */
    uint64_t next_ordinal;
    past_op *coll_past; /* ENGINE_COLL_PAST */
    past_op *p2p_past;  /* ENGINE_P2P_PAST */
    uint64_t p2p_past_next;
    psd_time_ns
        dispute_deadline; /* a mismatch was found and the other side asked for its label; PSD_NEVER: none */
    char dispute[PSD_MAX_TEXT]; /* the text if it does not answer */
    op_sides dispute_sides;
    uint64_t broken_at;         /* + 1: the collective that the ranks disagree on; 0: none */
    psd_time_ns drain_deadline; /* broken: until when peers may read cancelled sends */
};

struct psd_request {
    list node;     /* engine.active */
    list in_group; /* hgroup.requests */
    list ready;    /* engine.ready: no transfer is pending */
    hgroup *group;
    atomic_bool is_done;
    bool is_coll;
    bool is_failed;   /* waits only for draining sends */
    uint32_t pending; /* transfers, and one while they are being posted */
    list xfers;
    psd_op_result result;
    psd_time_ns
        notice_at; /* collectives: when to tell the peers; else PSD_NEVER; 0: no timer has seen it yet */
    psd_time_ns deadline;
    psd_op_kind kind;
    uint64_t record; /* psd_op.record */
    /* collectives */
    uint64_t ordinal;
    fingerprint what;
    uint32_t round;
    bool round_is_posted;
    list posted;    /* receives of this round */
    direct *direct; /* NULL: it goes by messages */
    coll_message *items;
    size_t items_bytes;
    void *scratch;
    size_t scratch_bytes;
    int64_t *splits;
    size_t splits_bytes;
    /* not zeroed when a request is made */
    psd_request *next_released; /* in engine.released */
    coll schedule;
    char label[FRAME_MAX_LABEL];
};

typedef struct inbox_item {
    list node;
    peer *peer; /* NULL once the link is gone */
    psd_chan_msg msg;
} inbox_item;

typedef enum progress_state {
    PROGRESS_PARKED = 0, /* asleep until called */
    PROGRESS_TICKING,    /* calls were made lately: looks now and then whether it is needed */
    PROGRESS_LISTENING,  /* groups are open and nothing is active: asleep in the net, bell not armed */
    PROGRESS_DRIVING,
} progress_state;

struct psd_backend {
    pthread_mutex_t lock;
    atomic_int contenders; /* threads that wait for the lock */
    host_net *net;
    uint64_t incarnation;
    uint64_t eager_limit;
    void (*on_group_broken)(void *, uint32_t, psd_status, int32_t, const char *);
    void (*on_disagreement)(void *, uint32_t, psd_status, int32_t, const char *, const psd_op_side *,
                            uint32_t);
    void *owner;
    list peers;
    list groups;
    hgroup *group_cache[ENGINE_GROUP_CACHE]; /* by id; entries may be NULL */
    list active;                             /* requests */
    list ready;
    list copies; /* receives that copy: single copy and from oneself */
    list early_pings;
    list inbox;
    blocks pool;
    tensor_memory huge;
    list free_xfers;
    _Atomic(psd_request *) released; /* a stack, filled without the lock; emptied when a request is wanted */
    bool has_unseen;                 /* active requests whose notice_at is 0: the last ones of `active` */
    bool has_broken;                 /* peers or groups that are not settled */
    bool may_drop;                   /* broken peers that perhaps no group has */
    xfer **xfers;                    /* all, by index */
    uint32_t xfer_count;
    uint32_t xfer_capacity;
    peer **world; /* by world rank; NULL: none */
    uint32_t world_size;
    atomic_uint_least64_t bytes_sent; /* written under the lock, read without; engine_count() */
    atomic_uint_least64_t bytes_received;
    uint32_t queued;        /* frames that are not out, of all peers */
    psd_time_ns next_timer; /* no timer of a request or group is earlier */
    uint8_t *waste;         /* where unwanted payload goes */
    /* progress.c */
    pthread_cond_t waiters_wake;
    pthread_cond_t progress_wake;
    pthread_t progress_thread;
    bool stop;
    int listen_fd; /* eventfd: ends the listening of the progress thread */
    progress_state progress;
    uint32_t waiters;      /* callers inside a wait */
    uint32_t sleepers;     /* those of them that sleep until waiters_wake */
    bool has_driver;       /* one of them, or the progress thread, drives */
    bool driver_is_asleep; /* in the net */
    psd_time_ns sleep_until;
    uint32_t test_polls;
    uint32_t polls;         /* wraps: has anybody looked at the links meanwhile? */
    uint32_t shared_yields; /* weighed: somebody else on this core used them */
    bool has_quick;         /* a caller in quick.c has given the lock up for a moment */
    uint32_t calls;         /* wraps: tells the progress thread whether callers come */
    uint32_t cores;
};

/* ----------------------------------------------------------------------------------------------- engine.c */

/* Without the lock. */
psd_status engine_open(const psd_backend_config *config, engine **out, char *why, size_t why_bytes);
void engine_close(engine *e);
void engine_lock(engine *e);
void engine_unlock(engine *e);

/* Makes progress once: reads and writes links, copies, advances requests. `with_kernel` also asks the kernel
 * for connections and lost peers. True if anything happened. */
bool engine_poll(engine *e, bool with_kernel);
/* Could a poll without the kernel find something now? Cheaper than to try. */
bool engine_has_news(const engine *e);
/* Deadlines of requests and groups; renews next_timer. To be called whenever the clock is read before a sleep. */
void engine_timers(engine *e, psd_time_ns now);
void engine_timer_at(engine *e, psd_time_ns when);
/* Does what must not be done in the middle of something else: takes down broken peers and groups, advances
 * requests of which no transfer is pending (bounded: some may be left), rings bells. Every entry ends with
 * it. */
void engine_settle(engine *e);

/* One of the counters above; the lock makes this the only writer. */
static inline void engine_count(atomic_uint_least64_t *counter, uint64_t bytes)
{
    uint64_t before = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, before + bytes, memory_order_relaxed);
}

hgroup *engine_group(engine *e, uint32_t id); /* NULL if not open */

/* ---------------------------------------------------------------------------------------------- request.c */

psd_request *request_get(hgroup *g, const psd_op *op); /* NULL: out of memory */
/* A label in FRAME_MAX_LABEL bytes; NULL is "". It may be cut within a character. */
void request_label(char *out, const char *label);
void request_put(engine *e, psd_request *r);
/* Without the lock: to be put later. */
void request_release(psd_request *r);
void request_put_released(engine *e);
/* Puts it among the active ones of its group. */
void request_activate(psd_request *r, psd_time_ns deadline);
/* The clock of those that were activated since the last time begins. */
void request_see(engine *e, psd_time_ns now);
void request_finish(psd_request *r, psd_status status);
/* Cancels its transfers; it is finished, with the group's status, once no peer can touch its memory. */
void request_fail(psd_request *r);

/* The caller fills in is_send, channel, dtype, rank, data and bytes, and what else it needs. NULL: out of memory. */
xfer *xfer_get(engine *e, psd_request *r);
/* The one with this id, if it lives. */
xfer *xfer_find(engine *e, uint64_t id);
uint64_t xfer_id(const xfer *x);
/* Its message is through: it goes back, and the request is advanced when it was the last. */
void xfer_complete(engine *e, xfer *x);
void xfer_release(engine *e, xfer *x);
void xfer_cancel(engine *e, xfer *x);

/* ------------------------------------------------------------------------------------------------- peer.c */

peer *peer_new(engine *e, host_link *link);
/* Frees it; groups that hold it have been broken before. */
void peer_free(peer *p);
/* Sends what is queued, receives what is there. True if bytes moved. */
bool peer_progress(peer *p);
/* Garbage, or the link is gone: all groups that share it are broken when the engine settles. */
void peer_break(peer *p, psd_status status, const char *text);
/* Sends a frame whose payload is borrowed until transfer_sent(owner). True: it is out, and the owner is not
 * told. On no memory the peer breaks. */
bool peer_send(peer *p, const frame *f, const void *payload, xfer *owner);
/* The same if it can go as a small message (link.h) at once, else false, and nothing happens. */
bool peer_send_small(peer *p, const frame *f, const void *payload);
/* Sends a control frame, its payload copied. */
void peer_send_control(peer *p, const frame *f, const void *payload);
/* A frame header of this group (NULL: of none) from this rank. */
static inline frame peer_frame(const hgroup *g, frame_type type)
{
    frame f = {.magic = FRAME_MAGIC,
               .type = (uint8_t)type,
               .group = g != NULL ? g->id : 0,
               .source = g != NULL ? (uint32_t)g->rank : 0};
    return f;
}
/* Eager bytes, or a channel message, of this peer were used up. */
void peer_give_credit(peer *p, uint64_t eager_bytes, uint32_t chan_messages);
void peer_drop_output(peer *p);
/* Takes a send out of the queues: what is half in the link is copied. */
void peer_forget_send(peer *p, xfer *x);
/* A frame of it that is queued, without payload, goes out all the same; nobody is told then. */
void peer_disown_send(xfer *x);

/* --------------------------------------------------------------------------------------------- transfer.c */

/* Starts a send: EAGER if small, else RTS. `f` has all but type, payload, id and word. */
void transfer_send(engine *e, xfer *s, frame *f, uint64_t eager_limit);
/* The frame with the memory of this send is out. */
void transfer_sent(engine *e, xfer *s, frame_type type);
/* A receive was matched by this RTS. */
void transfer_accept(engine *e, xfer *r, peer *p, const frame *rts);
/* A receive was matched by a send to oneself. */
void transfer_accept_self(engine *e, xfer *r, xfer *s);
void transfer_on_cts(peer *p, const frame *f);
void transfer_on_fin(peer *p, const frame *f);
/* Checks a DATA header and says where its payload goes. */
void transfer_on_data(peer *p, const frame *f);
void transfer_data_arrived(peer *p);
/* One slice of each copy; true if there was any. */
bool transfer_copy(engine *e);
/* This peer no longer reads cancelled sends of this group (NULL: of any). */
void transfer_drained(engine *e, hgroup *g, peer *p);
/* Peers that have not said so in time lose their link: a read is void if the link's socket has ended. */
void transfer_give_up(engine *e, hgroup *g);

/* ------------------------------------------------------------------------------------------------ match.c */

/* An EAGER or RTS header: finds its receive, or keeps it; says where an EAGER payload goes. */
void match_arrived(peer *p, const frame *f);
void match_payload_arrived(peer *p);
/* A receive is posted: takes the first message that fits, else leaves it in its list. */
void match_post(engine *e, xfer *r);
/* A send to oneself. */
void match_send_self(hgroup *g, xfer *s, const frame *f);
/* Gives a receive the message it matched. */
void match_take(engine *e, xfer *r, message *m);
message *message_new(engine *e, peer *p, const frame *f, const void *data);
void message_free(engine *e, message *m);
/* Drops all messages that a group holds. */
void match_drop(hgroup *g);

/* -------------------------------------------------------------------------------------------------- p2p.c */

psd_status p2p_start(hgroup *g, const psd_op *op, psd_request **out);
void p2p_remember(hgroup *g, const psd_op_p2p *send, uint64_t ordinal, const char *label);
/* The posted receive that this header matches first; NULL: none. */
xfer *p2p_find_posted(hgroup *g, const frame *f);
message *p2p_find_message(hgroup *g, const xfer *r);
bool p2p_agrees(const xfer *r, const frame *f);
/* The message of this header does not fit the receive it matches. p NULL: it is from this rank. */
void p2p_dispute(hgroup *g, const xfer *r, peer *p, const frame *f);
void p2p_on_compare(hgroup *g, peer *p, const frame *f, const char *label);

/* --------------------------------------------------------------------------------------------- coll_run.c */

psd_status coll_run_start(hgroup *g, const psd_op *op, psd_request **out);
void coll_run_advance(psd_request *r);
void coll_run_release(engine *e, psd_request *r); /* its memory */
bool coll_run_take_memory(psd_request *r, const psd_op *op);
/* Posts the messages of a round, but for those whose bit is set: the first 64 have one. */
void coll_run_post(psd_request *r, const coll_messages *messages, uint64_t done);
/* A header of a collective. */
frame coll_run_frame(const hgroup *g, frame_type type, uint64_t ordinal, const fingerprint *what);
/* What this rank called, for comparisons: r has its ordinal and fingerprint. */
/* This rank's collective of an ordinal that it has started: one of the last, or one that is still in flight, told in
 * `room`. NULL if it is no longer remembered. */
const past_op *coll_run_find_past(const hgroup *g, uint64_t ordinal, past_op *room);
past_op *coll_run_remember(hgroup *g, const psd_request *r, const char *label);
/* Compares the header with this rank's collective of that ordinal. True: they agree, or it is too early to
 * tell
 * (*is_early). False: the group is, or soon will be, broken. */
bool coll_run_compare(hgroup *g, peer *p, const frame *f, bool *is_early);
xfer *coll_run_find_posted(hgroup *g, const frame *f);
message *coll_run_find_message(hgroup *g, const xfer *r);
void coll_run_dispute_bytes(hgroup *g, const xfer *r, peer *p, const frame *f);
void coll_run_on_compare(hgroup *g, peer *p, const frame *f, const char *label);
/* Tells the peers of which messages are missing what this collective is. */
void coll_run_notice(psd_request *r);

/* ----------------------------------------------------------------------------------------------- direct.c */

/* Exposes the collective's memory if it may go without messages; then r->direct is not NULL. */
psd_status direct_begin(psd_request *r);
/* One step; false: it goes by messages after all, and r->direct is NULL. */
bool direct_advance(psd_request *r);
/* Another rank has told where its memory lies. */
void direct_on_expose(xfer *x, const frame *f);
/* Does it wait for ranks that have not told? */
bool direct_is_exposing(const psd_request *r);
/* The peer of this exposure may write to the memory later, though nobody can wait for it: it is kept from that. */
void direct_revoke(const xfer *x);
void direct_release(engine *e, psd_request *r);

/* ------------------------------------------------------------------------------------------------ group.c */

psd_status host_group_begin(engine *e, const psd_group_desc *desc, hgroup **out, char *why, size_t why_bytes);
psd_status host_group_poll(hgroup *g, char *why, size_t why_bytes);
void host_group_close(hgroup *g);
/* First reason stays. `tell`: call on_group_broken. Requests end and members are told when the engine
 * settles. */
void host_group_break(hgroup *g, psd_status status, int32_t culprit, bool tell, const char *text);
/* The same, and tells what the ranks concerned called. */
void host_group_break_by(hgroup *g, psd_status status, int32_t culprit, const char *text,
                         const op_sides *sides);
/* As psd_backend_ops.group_abort. */
void host_group_abort(hgroup *g, psd_status status, const char *text);
void host_group_break_disputed(hgroup *g); /* nobody answers host_group_dispute any more */
void host_group_settle(hgroup *g);
/* The member that sent this header; NULL, and the peer broken, if it lies. */
member *host_group_member(hgroup *g, peer *p, const frame *f);
void host_group_on_ping(peer *p, const frame *f, const uint8_t *token);
void host_group_on_pong(peer *p, const frame *f);
void host_group_on_broken(peer *p, const frame *f, const char *text);
void host_group_on_closed(peer *p, const frame *f);
/* As psd_backend_ops.group_member. */
psd_status host_group_member_state(const hgroup *g, int32_t rank);
void host_group_on_compare(peer *p, const frame *f, const char *label);
void host_group_peer_gone(peer *p);
/* Breaks the group if this transfer waits for a member that has closed it. */
void host_group_check_closed(hgroup *g, const xfer *x);
/* Ranks disagree, and the other side's label is awaited: the group is as good as broken, nothing more succeeds on it. */
static inline bool host_group_in_dispute(const hgroup *g)
{
    return g->dispute_deadline != PSD_NEVER;
}
/* Mismatch found here: asks the other side for its label and breaks the group with `text` if that takes too
 * long. */
void host_group_dispute(hgroup *g, peer *p, const frame *compare, const char *label, const char *text,
                        const op_sides *sides);

/* ------------------------------------------------------------------------------------------------ sides.c */

/* Each adds one side; `sides` has room for it. */
void sides_add_collective(const hgroup *g, op_sides *out, int32_t rank, uint64_t ordinal,
                          const fingerprint *what, const char *label);
/* other: -1: any. */
void sides_add_message(const hgroup *g, op_sides *out, bool is_send, int32_t rank, int32_t other,
                       uint64_t ordinal, uint8_t dtype, int64_t count, const char *label);
void sides_add_transfer(const hgroup *g, op_sides *out, const xfer *x);

/* ------------------------------------------------------------------------------------------------ quick.c */

/* As psd_backend_ops.run, between the look at the group's state and the poll of links. */
psd_status quick_run(hgroup *g, const psd_op *op, psd_op_result *result, psd_request **out);

/* ------------------------------------------------------------------------------------------------- chan.c */

psd_status host_chan_send(engine *e, uint32_t world_rank, const void *data, uint32_t bytes);
psd_status host_chan_take(engine *e, psd_chan_msg *out); /* PSD_AGAIN: empty */
void host_chan_on_message(peer *p, const frame *f, const uint8_t *data);
void host_chan_peer_gone(engine *e, peer *p);

/* ---------------------------------------------------------------------------------------------- inspect.c */

void host_inspect(engine *e, const psd_inspector *to);

/* --------------------------------------------------------------------------------------------- progress.c */

/* Without the lock. */
psd_status progress_start(engine *e);
void progress_stop(engine *e);
/* With the lock; gives it up while asleep. Drives until is_met() or the deadline (PSD_ERR_TIMEOUT). */
psd_status progress_wait(engine *e, bool (*is_met)(void *), void *arg, psd_time_ns deadline);
/* A call ends: if operations are in flight and nobody waits, the progress thread is told. */
void progress_leave(engine *e);
/* More ranks on this host than cores: who spins keeps others from what it waits for. */
bool progress_is_crowded(const engine *e);
void progress_pause(void);
/* Gives the core away, without the lock meanwhile. */
void progress_yield(engine *e);
/* Something was completed or must be looked at: wakes who sleeps. */
void progress_notify(engine *e);

#endif
