/* Inside of links: what net.c, listen.c, accept.c, connect.c and link.c share. Others include link.h.
 *
 * net.c     open and close, the poll loop, sleeping
 * listen.c  the listening sockets (unix_path.c: the one that is a file)
 * accept.c  handshakes that peers begin
 * connect.c handshakes that we begin
 * expect.c  what many links need, before they are begun
 * link.c    links once they are up, and the list of them */
#ifndef PSD_HOST_NET_H
#define PSD_HOST_NET_H

#include "worker/backend/host/address.h"
#include "worker/backend/host/arena.h"
#include "worker/backend/host/bell.h"
#include "worker/backend/host/handshake.h"
#include "worker/backend/host/lane.h"
#include "worker/backend/host/link.h"
#include "worker/backend/host/mesh.h"
#include "worker/backend/host/peer_memory.h"
#include "worker/backend/host/ring.h"
#include "worker/backend/host/segment.h"
#include "worker/backend/host/tcp.h"
#include "worker/backend/host/unix_path.h"

/* The least of each: mesh_patience() adds to it. */
#define NET_CONNECT_NS   (5 * PSD_NS_PER_S)  /* to bring up a link that we begin, once it has its turn */
#define NET_WAIT_NS      (10 * PSD_NS_PER_S) /* for a peer to begin a link that we want */
#define NET_HANDSHAKE_NS (5 * PSD_NS_PER_S)  /* of an accepted socket */
#define NET_DIALS        16u /* links that are being begun at a time; others wait for a turn */
#define NET_PENDING_EVICT_NS                                                                                 \
    (PSD_NS_PER_S / 10) /* when all are taken, who said nothing for so long makes place */
#define NET_TEXT 768

/* What an epoll event belongs to. */
typedef enum source_kind {
    SOURCE_BELL,
    SOURCE_UNIX_LISTENER,
    SOURCE_PATH_LISTENER,
    SOURCE_TCP_LISTENER,
    SOURCE_PENDING,
    SOURCE_LINK,
} source_kind;

typedef struct source {
    source_kind kind;
    void *owner;
} source;

/* The ends of a shared-memory link. */
typedef struct shm_stream {
    int fd; /* the unix socket: its end tells that the peer is gone */
    void *segment;
    uint64_t segment_bytes;
    ring_writer tx;
    ring_reader rx;
    lane_writer lane_tx;
    lane_reader lane_rx;
    peer_bell bell;
    bool moved; /* bytes since the last flush: written, or read */
    bool took;
    bool ended; /* the socket has ended; what is in the ring can be read */
    peer_memory memory;
    peer_arena arena;           /* mapped only if the peer has mapped ours too */
    _Atomic uint32_t *has_left; /* in the segment, as peer_has_left: see shm_leave() */
    const _Atomic uint32_t *peer_has_left;
} shm_stream;

/* An accepted socket in its handshake. */
typedef struct pending {
    source source;
    struct pending *next; /* of all that were ever needed: an event may still come for one that has ended */
    bool used;
    bool is_unix;
    handshake_kind expects;
    psd_time_ns since;
    uint64_t incarnation; /* of the peer, after HELLO */
    uint64_t nonce;       /* ours */
    uint64_t peer_nonce;
    handshake_channel channel;
    shm_stream shm; /* unix, after OFFER */
} pending;

typedef enum dial_stage {
    DIAL_NONE,       /* the peer connects, or all is over */
    DIAL_QUEUED,     /* waits for its turn */
    DIAL_PAUSE,      /* until retry_at */
    DIAL_CONNECTING, /* the socket is */
    DIAL_WELCOME,    /* waits for it */
    DIAL_ACCEPT,
} dial_stage;

/* A handshake that we begin: through the peer's sockets, one after the other, again and again until the
 * deadline. */
typedef struct dial {
    dial_stage stage;
    bool is_unix;    /* the socket at work */
    bool by_path;    /* the unix socket as a file; first it is tried as abstract */
    bool unix_over;  /* shared memory is out of the question */
    bool has_turn;   /* is one of the net's NET_DIALS; its deadline has begun */
    uint32_t target; /* of the peer's TCP addresses */
    psd_time_ns deadline;
    psd_time_ns attempt_deadline;
    psd_time_ns retry_at;
    psd_time_ns pause;
    uint64_t nonce;
    uint64_t peer_nonce;
    handshake_channel channel;
    shm_stream shm;                                      /* being made */
    char unix_note[NET_TEXT / 2];                        /* why not shared memory */
    char tcp_notes[ADDRESS_MAX_TCP][ENDPOINT_TEXT + 96]; /* what came of the last try of each */
} dial;

struct host_link {
    source source;
    host_net *net;
    host_link *next;
    host_link *previous;
    void *owner;
    uint32_t references;
    host_link_state state;
    psd_status status; /* why it is broken */
    bool seen_broken;  /* by a poll; the next one frees it */
    bool is_shm;
    host_address peer;   /* opened by the peer: its incarnation only */
    dial *dial;          /* while connecting; NULL when the peer connects */
    psd_time_ns wait_ns; /* for the peer to connect */
    psd_time_ns wait_deadline;
    shm_stream shm;
    tcp_stream tcp;
    char text[NET_TEXT];
};

struct host_net {
    pid_t pid; /* of the process that opened it; a forked child may only close its copies of the fds */
    uint64_t job_hash;
    host_address address;
    bool restricted; /* TCP only on the addresses in `address` */
    bool want_shm;
    bool want_tcp;
    bool single_copy;
    uint64_t ring_bytes; /* 0: by the number of peers */
    uint32_t peers;      /* the most that a group has announced */
    arena arena;         /* tensors that peers of this host map */
    segment_room room;
    char no_room[NET_TEXT / 2]; /* why new links do not use shared memory; "": they may */
    uint64_t probe_value;       /* read by peers that try single copy */
    int epoll_fd;
    char run_dir[UNIX_PATH_DIR];
    int unix_fd; /* listeners; -1: none */
    int path_fd;
    int tcp_fd;
    source bell_source;
    source unix_source;
    source path_source;
    source tcp_source;
    bool listening; /* false: accept paused, all places taken or out of fds */
    psd_time_ns listen_at;
    bell bell;
    pending *pendings;
    uint32_t pending_count; /* used ones */
    uint32_t dialing;       /* of NET_DIALS */
    host_link *first;
    host_link *last;
    uint32_t connecting; /* links in that state */
    uint32_t tcp_links;  /* ready */
    bool may_reap;       /* a link may be there that nobody needs */
    uint64_t refused;
};

/* ---- net.c */
uint64_t net_random(void);
bool net_watch(host_net *net, int fd, uint32_t events, source *owner);
void net_watch_change(host_net *net, int fd, uint32_t events, source *owner); /* of an fd that is watched */
/* Before an fd is closed: a forked child may keep it open, and with it its events. Accepts fds that are not
 * watched. */
void net_unwatch(host_net *net, int fd);
bool net_is_ours(const host_net *net);                            /* not inherited by a fork */
void net_refuse(host_net *net, const char *who, const char *why); /* counts a stranger */
/* What every frame of ours says. */
void net_identify(const host_net *net, handshake_frame *frame, handshake_kind kind, uint64_t to,
                  uint64_t nonce, uint64_t echo);

/* ---- listen.c */
psd_status listen_open(host_net *net, const char *bind_host, char *why, size_t why_bytes);
void listen_close(host_net *net);
bool listen_event(host_net *net, source_kind listener, psd_time_ns now);
void listen_pause(host_net *net, psd_time_ns until);
void listen_resume(host_net *net);

/* ---- accept.c */
bool accept_has_place(host_net *net, psd_time_ns now);
/* When a place may be made for another; there is none now. */
psd_time_ns accept_next_place(const host_net *net);
void accept_begin(host_net *net, int fd, bool is_unix, psd_time_ns now); /* takes fd over */
bool accept_event(pending *p);
void accept_expire(host_net *net, psd_time_ns now);
void accept_close_all(host_net *net);
psd_time_ns accept_deadline(const host_net *net);

/* ---- connect.c */
psd_status connect_begin(host_link *link, psd_time_ns now);
bool connect_event(host_link *link, uint32_t events, psd_time_ns now);
void connect_tick(host_link *link, psd_time_ns now);
psd_time_ns connect_deadline(const host_link *link);
void connect_end(host_link *link); /* gives up what is under way; accepts a link that does not dial */

/* ---- link.c */
host_link *link_new(host_net *net, const host_address *peer);
host_link *link_find(host_net *net,
                     uint64_t incarnation); /* not the broken ones: another takes their place */
void link_free(host_link *link);
void link_break(host_link *link, psd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Takes the streams over; on failure the link breaks and they are closed. */
void link_up_shm(host_link *link, shm_stream *shm);
void link_up_tcp(host_link *link, int fd);
bool link_event(host_link *link, uint32_t events);
void link_reap(host_net *net);

/* ---- shm.c: a link's segment and rings; `fd` of the stream stays the caller's until link_up_shm */
psd_status shm_offer(shm_stream *shm, segment_room *room, uint64_t ring_bytes, int *segment_fd, char *why,
                     size_t why_bytes);
psd_status shm_take_offer(shm_stream *shm, uint64_t ring_bytes, int segment_fd, char *why, size_t why_bytes);
/* Maps the arena that came with a handshake's frame, if there is one; a failure leaves the link without. */
void shm_take_arena(shm_stream *shm, int fd, uint64_t bytes);
/* Tells the peer that what it reads of our arena from now on may be anything, since operations end with the link and
 * their memory is the program's again. Before that: the socket's end is seen later. */
void shm_leave(shm_stream *shm);
/* Asked after reading the peer's arena: was it left before the end of that? */
bool shm_peer_has_left(const shm_stream *shm);
void shm_drop(shm_stream *shm); /* unmaps, closes the bell and the socket if they are there */

#endif
