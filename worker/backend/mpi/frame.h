/* What travels between two ranks over MPI: messages of one fixed header and, for some types, a payload, all with one
 * MPI tag, so that MPI keeps their order; and data, with an MPI tag of its own for each transfer. psd's tags and
 * sources are in the header: matching them is this backend's work, so that both sides can be compared. Numbers are in
 * the host's byte order; a peer of another order fails the check of the magic number. */
#ifndef PSD_MPI_FRAME_H
#define PSD_MPI_FRAME_H

#include "common/msg.h"
#include "worker/backend/fingerprint.h"

#define FRAME_MAGIC       0x504du
#define FRAME_MAX_PAYLOAD ((size_t)128 << 10) /* a chunk of a collective's schedule */
#define FRAME_LABEL       88u                 /* bytes of an operation's label, with the NUL */

typedef enum frame_type {
    FRAME_EAGER = 1, /* a whole message, as payload */
    FRAME_RTS,       /* request to send. id: the send */
    FRAME_CTS, /* the receive's memory is with MPI. id: the send; word: the receive; tag: MPI's, for the data, which
                  goes in pieces of so many bytes */
    FRAME_GONE,    /* answer to CTS: the send was given up. id: the receive */
    FRAME_HERE,    /* the sender has opened the group. word: hash of its token */
    FRAME_CLOSED,  /* the sender has closed the group and sends nothing more on it */
    FRAME_COMPARE, /* what this rank's collective is */
    FRAME_CREDIT,  /* bytes: eager bytes used up */
    FRAME_TYPES,
} frame_type;

typedef enum frame_channel {
    FRAME_P2P = 0,
    FRAME_COLL = 1,
} frame_channel;

typedef struct frame {
    uint16_t magic;
    uint8_t type;
    uint8_t channel;
    uint8_t kind; /* psd_op_kind */
    uint8_t dtype;
    uint8_t redop;
    uint8_t unused;
    uint32_t group;
    uint32_t source;  /* group rank of who sends this */
    uint64_t ordinal; /* of the collective in its group, of the message in its pair */
    int64_t count;    /* elements */
    uint64_t bytes;   /* of the whole message */
    uint32_t payload; /* bytes that follow this header */
    int32_t tag;      /* p2p; collective: root, or -1; CTS: MPI's */
    uint64_t id;
    uint64_t word;
    char label[FRAME_LABEL]; /* EAGER, RTS, COMPARE */
} frame;

_Static_assert(sizeof(frame) == 152, "the header has no holes");

/* Is this header, of a message of `received` bytes, legal by itself? If not, `why` gets a text. Makes the label fit
 * to print. */
bool frame_check(frame *f, size_t received, char *why, size_t why_bytes);

fingerprint fingerprint_of_frame(const frame *f);

#endif
