/* psd_serve for programs that must also end on a signal. */
#ifndef PSD_SERVE_H
#define PSD_SERVE_H

#include <signal.h>

#include "worker/psd.h"

/* As psd_serve; also returns PSD_OK soon (tens of milliseconds) after *stop became true, as a signal handler
 * may set it. `stop` may be NULL. */
psd_status psd_serve_until(PSD_AT, psd_ctx *ctx, const volatile sig_atomic_t *stop);

#endif
