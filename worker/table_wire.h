/* The requests of tables on the small-message channel: a fixed little-endian layout of PSD_TABLE_MSG_BYTES,
 * checked field by field when it is read.
 *
 *     trainer -> server   JOIN    I have been told that the table is open and am about to join its group
 *     lowest  -> server   INIT    the initial values follow as a message on the table's group
 *     trainer -> server   PUSH    the gradients of `clock` follow, or (bytes 0) were sent before: a repeat
 *     trainer -> server   PULL    send me the parameters as they are after `clock`
 *     server  -> trainer  ACK     of the request with this kind and sequence; `clock` is the one applied.
 *                                 After the ACK of a PULL the parameters follow
 *     server  -> trainer  NAK     the request was refused: status and text
 *     server  -> anybody  SERVER  I am a server, and psd is gone: do not stay for me (serve_watch.h)
 *
 * Sequences count a trainer's requests on a table: 1 is the initialisation. */
#ifndef PSD_TABLE_WIRE_H
#define PSD_TABLE_WIRE_H

#include <stdbool.h>

#include "worker/backend/backend.h"

#define PSD_TABLE_TEXT      448
#define PSD_TABLE_MSG_BYTES (56 + PSD_TABLE_TEXT)

typedef enum table_kind {
    TABLE_JOIN = 1,
    TABLE_INIT = 2,
    TABLE_PUSH = 3,
    TABLE_PULL = 4,
    TABLE_ACK = 5,
    TABLE_NAK = 6,
    TABLE_SERVER = 7,
} table_kind;

typedef struct table_msg {
    table_kind kind;
    table_kind answers; /* ACK and NAK: the kind of the request; else 0 */
    uint32_t table;
    psd_status status; /* NAK */
    uint64_t incarnation;
    uint64_t sequence;
    uint64_t clock;
    uint64_t bytes;            /* INIT, PUSH: of the data that follows */
    char text[PSD_TABLE_TEXT]; /* NAK */
} table_msg;

const char *table_kind_name(table_kind kind);

/* Writes the message and gives its length, at most PSD_TABLE_MSG_BYTES: the text is sent as long as it is. */
uint32_t table_msg_encode(const table_msg *msg, uint8_t out[PSD_TABLE_MSG_BYTES]);
/* False for anything that is not a well-formed message of this version. */
bool table_msg_decode(const uint8_t *data, uint32_t bytes, table_msg *out);

#endif
