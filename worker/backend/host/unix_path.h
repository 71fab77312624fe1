/* The unix socket as a file, for peers in another network namespace, where abstract names do not reach: containers
 * that share /dev/shm (or an IPC namespace, which brings it along), or a volume that PSD_RUN_DIR names. It has the
 * name of the abstract socket. Whether two contexts see the same directory is found out by connecting. */
#ifndef PSD_HOST_UNIX_PATH_H
#define PSD_HOST_UNIX_PATH_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/un.h>

#include "common/psd_types.h"

#define UNIX_PATH_DIR 108 /* with the NUL: no longer one fits into a socket's address */

/* The directory: `run_dir` (PSD_RUN_DIR), else this user's below /dev/shm. An empty text if it is too long. */
void unix_path_dir(const char *run_dir, char out[UNIX_PATH_DIR]);

/* The address of the socket `name` there; false if it is too long, or dir is empty. */
bool unix_path_address(const char *dir, const char *name, struct sockaddr_un *out);

/* Makes the directory if it is missing, removes what dead processes left there, and listens. */
psd_status unix_path_listen(const char *dir, const char *name, int backlog, int *out_fd, char *why,
                            size_t why_bytes);
/* Best effort. */
void unix_path_remove(const char *dir, const char *name);

#endif
