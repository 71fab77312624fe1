/* Processes that left their rank's process group and lost their parent: psrun, as subreaper, is their parent
 * now. */
#ifndef PSD_LAUNCH_ORPHANS_H
#define PSD_LAUNCH_ORPHANS_H

#include <sys/types.h>

/* SIGKILLs and reaps every child of this process but `except`, within a second. */
void psd_launch_end_orphans(pid_t except);

#endif
