/* The last lines of a log file, as an answer to psd. */
#ifndef PSD_LOG_TAIL_H
#define PSD_LOG_TAIL_H

#include "common/msg.h"

#define PSD_LOG_TAIL_BYTES ((size_t)64 << 10)

typedef struct psd_log_tail {
    char text[PSD_LOG_TAIL_BYTES + 1];
    psd_cell lines[PSD_LOG_TAIL_BYTES / 2 + 1];
} psd_log_tail;

/* Reads the end of the file, at most PSD_LOG_TAIL_BYTES, into `tail` and fills the reply with its last `limit` lines (0: all),
 * or with why there are none. What is not printable UTF-8 becomes a question mark; empty lines are left out. `path` may be
 * NULL: there is no log. */
void psd_log_tail_read(const char *path, uint32_t limit, psd_log_tail *tail, psd_msg_reply *out);

#endif
