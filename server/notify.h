/* Telling a service manager how psd is: systemd's notification protocol (sd_notify(3)), without its library.
 */
#ifndef PSD_SERVER_NOTIFY_H
#define PSD_SERVER_NOTIFY_H

#include "common/clock.h"

/* Sends a state such as "READY=1" to NOTIFY_SOCKET; does nothing without one. Never blocks. */
void psd_notify(const char *state);

/* How often WATCHDOG=1 is to be sent: half of what the service manager allows; 0: no watchdog. */
psd_time_ns psd_notify_watchdog_ns(void);

#endif
