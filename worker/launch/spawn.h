/* Starting one process so that it cannot outlive psrun. */
#ifndef PSD_LAUNCH_SPAWN_H
#define PSD_LAUNCH_SPAWN_H

#include <sched.h>
#include <stdbool.h>
#include <sys/types.h>

#include "common/psd_types.h"

typedef struct psd_spawn {
    char *const *argv; /* argv[0] is looked up in PATH */
    char *const *env;
    int out; /* the child's stdout and stderr; -1: psrun's own */
    int err;
    int keep;               /* a descriptor that the child keeps open; -1: none */
    const cpu_set_t *cores; /* that it is bound to; NULL: psrun's */
} psd_spawn;

/* Starts it in a process group of its own, to be killed by the kernel when psrun dies; input is /dev/null.
 * PSD_ERR_IO and *error = errno if it cannot be started, or its program cannot be run (*exec_failed). */
psd_status psd_spawn_start(const psd_spawn *spawn, pid_t *out, int *error, bool *exec_failed);

#endif
