/* The connections that have spoken: which socket each came through, where from, and which are suspected to be
 * gone. Knows nothing of ZeroMQ. One thread. */
#ifndef PSD_SERVER_PEERS_H
#define PSD_SERVER_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/queue.h>

#include "common/clock.h"
#include "common/psd_types.h"
#include "server/core/core.h"

#define PSD_PEER_ADDRESS 64

typedef struct psd_peer_entry {
    struct psd_peer_entry *next; /* in its hash chain */
    psd_peer peer;
    int fd; /* of the connection; -1 when ZeroMQ did not tell */
    char address[PSD_PEER_ADDRESS];
    uint64_t messages;
    uint64_t bytes;
    bool warned; /* a bad message of this peer was logged */
    bool deaf; /* its queue is full, and the core was told that it is gone; until something can be sent again
                */
    bool deaf_warned;
    bool suspected;
    int probes; /* made of this suspect; also the list it is in */
    psd_time_ns due;
    TAILQ_ENTRY(psd_peer_entry) suspicion;
} psd_peer_entry;

/* A connection whose socket was closed may still be known to ZeroMQ for a moment, so it is probed several
 * times, further and further apart, before the suspicion is dropped (the descriptor was reused; the peer
 * lives). One list for each number of probes made: within a list all wait equally long, so its head is due
 * first. */
#define PSD_PROBES 5
TAILQ_HEAD(psd_suspects, psd_peer_entry);

typedef struct psd_peers {
    psd_peer_entry **buckets;
    size_t bucket_count; /* a power of two */
    size_t count;
    size_t deaf_count;
    psd_peer *by_fd; /* 0: none */
    size_t by_fd_count;
    struct psd_suspects suspects[PSD_PROBES];
} psd_peers;

psd_status psd_peers_init(psd_peers *peers);
void psd_peers_free(psd_peers *peers);

psd_peer_entry *psd_peers_find(const psd_peers *peers, psd_peer peer); /* NULL: unknown */

/* Adds a connection that speaks for the first time. If its descriptor belonged to another, that one is
 * suspected. */
psd_status psd_peers_add(psd_peers *peers, psd_peer peer, int fd, const char *address, psd_time_ns now);
void psd_peers_remove(psd_peers *peers, psd_peer peer);
/* True if that is new. */
bool psd_peers_set_deaf(psd_peers *peers, psd_peer_entry *entry);
/* Something was sent to it. */
void psd_peers_heard(psd_peers *peers, psd_peer peer);
/* All of them: the socket itself was closed. */
void psd_peers_clear(psd_peers *peers);

/* The descriptor was closed: whoever used it last is suspected. */
void psd_peers_disconnected(psd_peers *peers, int fd, psd_time_ns now);

/* The next suspect to probe, if one is due: its next probe is already set, or the suspicion ends with this
 * one. */
bool psd_peers_next_suspect(psd_peers *peers, psd_time_ns now, psd_peer *out);
psd_time_ns psd_peers_deadline(const psd_peers *peers); /* PSD_NEVER: no suspects */

#endif
