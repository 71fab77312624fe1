/* Shared memory between two processes: sealed memfds, so that there is no name to leak and no size to change.
 */
#ifndef PSD_HOST_SEGMENT_H
#define PSD_HOST_SEGMENT_H

#include <stdint.h>

#include "common/psd_types.h"

/* A memfd of that size whose memory is there already (posix_fallocate), sealed against changes of size. On
 * failure `why` tells need, have and the cure. */
psd_status segment_create(const char *name, uint64_t bytes, int *fd, char *why, size_t why_bytes);

/* Is a received fd a segment of exactly that size that nobody can shrink (so that it never raises SIGBUS)? */
psd_status segment_check(int fd, uint64_t bytes, char *why, size_t why_bytes);

/* Maps the whole segment for reading and writing, with its pages. */
psd_status segment_map(int fd, uint64_t bytes, void **out, char *why, size_t why_bytes);
void segment_unmap(void *memory, uint64_t bytes);

#endif
