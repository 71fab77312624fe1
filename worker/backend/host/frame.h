/* What travels over a link: frames of one fixed header and, for some types, a payload. Numbers are in the
 * host's byte order; a peer of another order fails the check of the magic number.
 *
 * Two channels share the types that move messages. On the p2p channel a message is matched by group, source
 * and tag; on the collective channel by group, source and ordinal, in order. Either way the header carries
 * all that the two sides must agree on. */
#ifndef PSD_HOST_FRAME_H
#define PSD_HOST_FRAME_H

#include "common/msg.h"
#include "worker/backend/fingerprint.h"
#include "worker/backend/host/lane.h"

#define FRAME_MAGIC     0x5053u
#define FRAME_MAX_EAGER (1u << 20)   /* bytes of an EAGER payload */
#define FRAME_MAX_SLICE (256u << 10) /* bytes of a DATA payload: how long one message may hold a link */
#define FRAME_MAX_LABEL 96u          /* bytes of an operation's label, with the NUL */

typedef enum frame_type {
    FRAME_EAGER = 1,  /* a whole message, as payload */
    FRAME_RTS,        /* request to send. id: the send; other: where its data can be read, at word */
    FRAME_CTS,        /* clear to send. id: the send; word: the receive */
    FRAME_DATA,       /* a slice. id: the receive; word: offset */
    FRAME_FIN,        /* id: the send; its data has been read */
    FRAME_PING,       /* warm-up of a group; payload: its token */
    FRAME_PONG,       /* answer, once the group is open here too */
    FRAME_BROKEN,     /* the group is broken. tag: status; payload: text; count: culprit (world rank) or -1 */
    FRAME_BROKEN_ACK, /* answer of a rank that does not have the group open */
    FRAME_CLOSED,     /* the sender has closed the group and sends nothing more on it */
    FRAME_COMPARE,    /* what this rank's operation is; payload: its label */
    FRAME_CREDIT,     /* bytes: eager bytes used up; count: channel messages used up */
    FRAME_CHAN,       /* small message, as payload */
    FRAME_EXPOSE, /* of a collective: other: what of the sender's memory can be reached (direct.h); word, bytes: the
                         places of its input and output; id: the send that FIN ends */
    FRAME_TYPES,
} frame_type;

/* RTS.other */
typedef enum frame_access {
    FRAME_ACCESS_NONE = 0,
    FRAME_ACCESS_ADDRESS, /* word: an address, for process_vm_readv */
    FRAME_ACCESS_PLACE,   /* word: a place in the sender's arena */
} frame_access;

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
    uint8_t other; /* COMPARE of p2p: the sender's dtype; RTS, EXPOSE: access */
    uint32_t group;
    uint32_t source;  /* group rank of who sends this frame */
    uint64_t ordinal; /* of the collective in its group, of the message in its pair */
    int64_t count;    /* elements */
    uint64_t bytes;   /* of the whole message */
    uint32_t payload; /* bytes that follow this header */
    int32_t tag;      /* p2p; collective: root, or -1 */
    uint64_t id;
    uint64_t word;
} frame;

_Static_assert(sizeof(frame) == 64, "the header is 64 bytes without holes");

/* An EAGER frame as a small message of a link (lane.h), and back: its other fields are 0. */
static inline lane_message frame_to_small(const frame *f)
{
    lane_message m = {.kind = f->kind,
                      .dtype = f->dtype,
                      .redop = f->redop,
                      .channel = f->channel,
                      .bytes = f->payload,
                      .group = f->group,
                      .source = f->source,
                      .tag = f->tag,
                      .count = (uint32_t)f->count,
                      .ordinal = f->ordinal};
    return m;
}

static inline frame frame_from_small(const lane_message *m)
{
    frame f = {.magic = FRAME_MAGIC,
               .type = FRAME_EAGER,
               .channel = m->channel,
               .kind = m->kind,
               .dtype = m->dtype,
               .redop = m->redop,
               .group = m->group,
               .source = m->source,
               .ordinal = m->ordinal,
               .count = (int64_t)m->count,
               .bytes = m->bytes,
               .payload = m->bytes,
               .tag = m->tag};
    return f;
}

/* Is this header legal by itself? If not, `why` gets a text. */
bool frame_check(const frame *f, char *why, size_t why_bytes);

/* Begins a message of an operation: to be matched with a receive. */
bool frame_is_message(frame_type type);

/* Makes a text that came from outside, or was cut, fit to print: control characters and bytes that are not
 * UTF-8 become
 * '?'. */
void text_clean(char *text);

#endif
