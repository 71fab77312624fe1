/* Messages that a turn of the loop wants to send. They are encoded at once, because what they point into
 * lasts only until the core's next step, and leave after the journal has been committed. */
#ifndef PSD_SERVER_OUTBOX_H
#define PSD_SERVER_OUTBOX_H

#include "proto/wire.h"
#include "server/core/core.h"

typedef struct psd_letter {
    psd_peer peer;
    size_t offset; /* of its frame in `frames` */
    size_t bytes;
} psd_letter;

typedef struct psd_outbox {
    psd_letter *letters;
    size_t count;
    size_t capacity;
    uint8_t *frames;
    size_t bytes;
    size_t frames_capacity;
    psd_wire_buffer buffer; /* for encoding */
} psd_outbox;

/* Encodes a message to one connection. PSD_ERR_NOMEM, or what psd_wire_encode says: nothing is added then. */
psd_status psd_outbox_put(psd_outbox *outbox, psd_peer peer, const psd_msg *msg);
/* So much is waiting that the turn should end and send it. */
bool psd_outbox_is_large(const psd_outbox *outbox);
void psd_outbox_clear(psd_outbox *outbox);
void psd_outbox_free(psd_outbox *outbox);

#endif
