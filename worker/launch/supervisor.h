/* Runs the ranks of a job: starts them, passes output and signals on, and ends them all when one fails. */
#ifndef PSD_LAUNCH_SUPERVISOR_H
#define PSD_LAUNCH_SUPERVISOR_H

#include <sys/types.h>

#include "worker/launch/args.h"

#define PSD_LAUNCH_EXIT_TIMEOUT 124

/* Blocks the signals that psrun reads from a descriptor, and makes psrun the parent of its ranks' orphans.
 * Returns that descriptor, or -1. Before any process is started. */
int psd_launch_signals(void);

/* Returns psrun's exit code. `coordinator` is the private psd's process, 0 if there is none; not reaped here
 * unless it ends before the ranks do, which sets *coordinator_ended. */
int psd_launch_run(const psd_launch_args *args, int signal_fd, pid_t coordinator, bool *coordinator_ended);

#endif
