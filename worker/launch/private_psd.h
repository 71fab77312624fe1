/* A psd for one job, started and ended by psrun (--standalone). */
#ifndef PSD_LAUNCH_PRIVATE_PSD_H
#define PSD_LAUNCH_PRIVATE_PSD_H

#include <stddef.h>
#include <sys/types.h>

#include "common/psd_types.h"

typedef struct psd_private {
    pid_t pid;
    char endpoint[128];
} psd_private;

/* Starts the psd beside this executable, or else the one in PATH, on a free port of loopback, and waits until
 * it can be reached. On failure `why` is a sentence. */
psd_status psd_private_start(psd_private *out, char *why, size_t why_bytes);
/* Ends it: SIGTERM, after 2 s SIGKILL. Does nothing if pid is 0. */
void psd_private_stop(psd_private *psd);

#endif
