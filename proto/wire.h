/* Frames <-> message structs. The only code that knows protobuf. Every decoded field is checked: version,
 * text (NUL, UTF-8, length), enum ranges, counts against the columns that came, numbers against their limits.
 */
#ifndef PSD_WIRE_H
#define PSD_WIRE_H

#include "common/msg.h"

/* A decoded message and the memory its pointers lead to. */
typedef struct psd_msg_box {
    psd_msg msg;
    /* private to wire.c below */
    void *arena;
} psd_msg_box;

/* PSD_ERR_FORMAT: not a psd message, or a field out of bounds. PSD_ERR_PROTOCOL: another protocol version,
 * named in `why`. PSD_ERR_LIMIT: over PSD_MAX_FRAME, or more memory to decode than 8 times that. *out and its
 * message are written only on PSD_OK, `why` only on failure: a sentence that names the field. */
psd_status psd_wire_decode(const void *frame, size_t bytes, psd_msg_box **out, char *why, size_t why_bytes);
void psd_msg_box_free(psd_msg_box *box); /* accepts NULL */

/* What a frame that cannot be decoded was meant to be, so that whoever sent it can be answered: its type, and
 * the number of its request. PSD_MSG_NONE and 0 where the frame does not tell, as for another version. */
void psd_wire_peek(const void *frame, size_t bytes, psd_msg_type *type, uint64_t *request);

/* Encodes into a growing buffer that the caller keeps between calls and frees with psd_wire_buffer_free.
 * PSD_ERR_LIMIT when the frame would be over PSD_MAX_FRAME (rows and columns must be paged or chunked by the
 * producer); the buffer then holds no frame. Text that is not UTF-8 (cut inside a character, say) is sent up
 * to its first bad byte. What the other side would refuse for its value, as a rank out of bounds, is not
 * checked here. */
typedef struct psd_wire_buffer {
    uint8_t *data;
    size_t bytes;
    size_t capacity;
} psd_wire_buffer;

psd_status psd_wire_encode(const psd_msg *msg, psd_wire_buffer *buffer);
void psd_wire_buffer_free(psd_wire_buffer *buffer);

#endif
