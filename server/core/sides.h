/* Rows of an incident, and what there is to say of operations that do not fit together. */
#ifndef PSD_CORE_SIDES_H
#define PSD_CORE_SIDES_H

#include <stdbool.h>

#include "common/msg.h"

typedef struct incident_row {
    const psd_op_side *side;
    const char *role; /* cause, victim; of a mismatch: suspect, other */
    uint32_t group;
    int64_t waiting_ns; /* -1: not known */
    int64_t waits_for;  /* world rank, -1 */
} incident_row;

/* A row that does not fit any more is counted in `more`. */
void rows_add(psd_msg_incident *out, const incident_row *row);

/* What they disagree on: kind, dtype, count, root, redop, shape, splits. NULL: on nothing. */
const char *sides_disagreement(const psd_op_side *a, const psd_op_side *b);

/* What an operation that nobody comes to waits for: a receive, a send, or the same collective. */
const char *sides_missing(uint8_t kind);

/* A mismatch of these operations, 1 to PSD_INCIDENT_SIDES of them: its detail, a sentence that begins with `reason`, and
 * a row each. Suspects are those in the minority; where only two are known, or none is in the minority, all. */
void sides_write(const psd_op_side *sides, uint32_t count, uint32_t group, const char *reason,
                 psd_msg_incident *out);

/* `text`, cut to fit before whatever is to follow it, and not within a character. */
void sides_append_reason(const char *text, char *out, size_t out_bytes);

#endif
