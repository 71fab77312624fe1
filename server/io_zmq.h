/* The control socket: one ZeroMQ ROUTER, its monitor, and the connections behind it. The only place that
 * knows ZeroMQ. One thread. No call blocks but psd_io_wait and psd_io_close, and those have a deadline. */
#ifndef PSD_SERVER_IO_ZMQ_H
#define PSD_SERVER_IO_ZMQ_H

#include "server/peers.h"

typedef struct psd_io psd_io;

#define PSD_IO_MAX_FDS 4

/* A received message. `data` is borrowed until the next psd_io_receive. */
typedef struct psd_io_packet {
    psd_peer peer;
    const void *data;
    size_t bytes;
} psd_io_packet;

typedef struct psd_io_stats {
    uint64_t received;
    uint64_t sent;
    uint64_t bad_shape;   /* dropped: not one frame from an ordinary DEALER */
    uint64_t bad_message; /* dropped: not decodable; counted by whoever decodes */
    uint64_t handshakes;  /* connections that never spoke ZMTP */
    uint64_t full;        /* not sent: the peer does not read */
    uint64_t vanished;    /* not sent: the peer is gone */
} psd_io_stats;

/* Binds `endpoint`, numeric. On failure *error is the errno of it. */
psd_status psd_io_open(const char *endpoint, psd_io **out, int *error);
/* What is still queued is sent for at most linger_ms. Accepts NULL. */
void psd_io_close(psd_io *io, int linger_ms);
/* Closes every connection and with them what they hold of memory, and binds anew. The peers come back by
 * themselves. */
psd_status psd_io_reopen(psd_io *io, int *error);

const char *psd_io_endpoint(const psd_io *io); /* as bound: a chosen port is in it */
psd_io_stats *psd_io_statistics(psd_io *io);
psd_peers *psd_io_peers(psd_io *io);

/* Waits until a message, a monitor event or one of the descriptors is there, at most timeout_ms. */
void psd_io_wait(psd_io *io, const int *fds, bool *readable, size_t count, int timeout_ms);

/* PSD_OK; PSD_AGAIN when nothing more is there; PSD_ERR_FORMAT when what came was dropped and counted, as it
 * was not one frame from an ordinary DEALER; PSD_ERR_NOMEM when it was dropped for that. */
psd_status psd_io_receive(psd_io *io, psd_time_ns now, psd_io_packet *out);

/* PSD_OK; PSD_AGAIN: the peer's queue is full; PSD_ERR_UNREACHABLE: it is gone; PSD_ERR_IO. */
psd_status psd_io_send(psd_io *io, psd_peer peer, const void *data, size_t bytes);

/* Reads what the monitor says; those whose socket was closed become suspects of psd_io_peers(). */
void psd_io_monitor(psd_io *io, psd_time_ns now);

#endif
