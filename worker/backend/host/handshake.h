/* The frames that two contexts exchange before a link is up, over its unix or TCP socket.
 *
 *   connector                     acceptor
 *   HELLO            ->
 *                    <-           WELCOME, or REFUSE with a text
 *   OFFER + 3 fds    ->                              unix only: segment, bell page, bell eventfd
 *                    <-           ACCEPT + 2 fds     unix only: bell page, bell eventfd; or REFUSE
 *   CONFIRM          ->
 *
 * With memory_bytes, OFFER has the connector's arena (arena.h) as one fd more, and so has ACCEPT the acceptor's if it
 * has mapped that one; in CONFIRM it says that the connector has mapped the acceptor's. So both know whether both can.
 *
 * The connector is up when it has sent CONFIRM, the acceptor when it has received it: so a connector that
 * gives up an attempt leaves nothing behind. All frames are HANDSHAKE_BYTES long, so nothing of the stream
 * after them is read early. Everyone proves to be who it is by knowing the other's incarnation, which only
 * psd and the job's members know. */
#ifndef PSD_HOST_HANDSHAKE_H
#define PSD_HOST_HANDSHAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/psd_types.h"

#define HANDSHAKE_BYTES   128
#define HANDSHAKE_VERSION 2
#define HANDSHAKE_TEXT    40
#define HANDSHAKE_FDS     4

typedef enum handshake_kind {
    HANDSHAKE_HELLO = 1,
    HANDSHAKE_WELCOME = 2,
    HANDSHAKE_OFFER = 3,
    HANDSHAKE_ACCEPT = 4,
    HANDSHAKE_CONFIRM = 5,
    HANDSHAKE_REFUSE = 6,
} handshake_kind;

typedef enum handshake_reason {
    HANDSHAKE_STRANGER = 1, /* another job, or not the context that was looked for */
    HANDSHAKE_OTHER_VERSION = 2,
    HANDSHAKE_NO_MEMORY = 3, /* shared memory does not work here: try TCP */
} handshake_reason;

typedef struct handshake_frame {
    handshake_kind kind;
    uint16_t version;
    uint32_t reason; /* REFUSE */
    uint64_t job;    /* hash of its name */
    uint64_t from;   /* incarnations */
    uint64_t to;
    uint64_t nonce;         /* of the sender */
    uint64_t echo;          /* the receiver's nonce; 0 in HELLO */
    uint64_t probe_address; /* where, in the sender's memory, probe_value can be read */
    uint64_t probe_value;
    uint64_t ring_bytes;   /* OFFER */
    uint64_t memory_bytes; /* OFFER, ACCEPT, CONFIRM: of the sender's arena; 0: none, or no use of it */
    char text[HANDSHAKE_TEXT];
} handshake_frame;

/* A socket in a handshake. */
typedef struct handshake_channel {
    int fd;
    uint8_t in[HANDSHAKE_BYTES];
    uint32_t got;
    int fds[HANDSHAKE_FDS]; /* received and not taken; -1: none */
    uint32_t fd_count;
} handshake_channel;

void handshake_encode(const handshake_frame *frame, uint8_t out[HANDSHAKE_BYTES]);
/* Checks magic and kind only: what else must hold, the version too, the receiver checks. */
bool handshake_decode(const uint8_t in[HANDSHAKE_BYTES], handshake_frame *out);

void handshake_channel_init(handshake_channel *c, int fd);
/* Closes the socket, unless it was taken (fd -1), and all fds received. */
void handshake_channel_close(handshake_channel *c);

/* Frames are small and few: they fit the socket's buffer, and if not the link is given up (PSD_ERR_LINK,
 * errno). */
psd_status handshake_send(handshake_channel *c, const handshake_frame *frame, const int *fds,
                          uint32_t fd_count);
/* PSD_OK: one whole frame. PSD_INPROGRESS: not yet. PSD_ERR_LINK: ended or failed (errno; 0 if ended).
 * PSD_ERR_FORMAT: not this protocol. */
psd_status handshake_receive(handshake_channel *c, handshake_frame *out);

#endif
