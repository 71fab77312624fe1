/* The TCP side of links: socket options and the byte stream. */
#ifndef PSD_HOST_TCP_H
#define PSD_HOST_TCP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/psd_types.h"

/* Small reads are served from a buffer, so that a header does not cost a system call of its own. */
#define TCP_BUFFER_BYTES ((size_t)64 << 10)
/* A peer that is silent (no acknowledgement, no keepalive answer) for this long is gone. */
#define TCP_SILENCE_MS 4000

typedef struct tcp_stream {
    int fd;
    bool readable; /* as far as known: until a read finds nothing */
    bool writable;
    bool ended; /* nothing more can be written or will arrive; what has arrived can be read */
    int error;  /* errno of the end; 0: closed by the peer */
    uint8_t *buffer;
    size_t start; /* of what is in the buffer */
    size_t end;
} tcp_stream;

/* No delay, keepalive, user timeout; before the connection is made. */
void tcp_configure(int fd);

/* Takes the socket over on success. */
psd_status tcp_stream_open(tcp_stream *t, int fd);
void tcp_stream_close(tcp_stream *t);
size_t tcp_stream_write(tcp_stream *t, const struct iovec *iov, int count);
size_t tcp_stream_read(tcp_stream *t, void *to, size_t bytes);
/* What epoll saw. */
void tcp_stream_event(tcp_stream *t, uint32_t events);
/* Ended, and everything read? */
bool tcp_stream_drained(const tcp_stream *t);

/* What was written and has not reached the peer's kernel; 0 for a broken connection. */
size_t tcp_stream_unacknowledged(const tcp_stream *t);

#endif
