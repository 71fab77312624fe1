/* Shared memory between two processes: sealed memfds, so that there is no name to leak and no size to change.
 */
#ifndef PSD_HOST_SEGMENT_H
#define PSD_HOST_SEGMENT_H

#include <stdint.h>

#include "common/clock.h"
#include "common/psd_types.h"

#define SEGMENT_INDEX_BYTES 4096 /* of a link's segment, before its rings */

/* What memory was free when asked last. To ask costs more than to make a small segment, and a hundred processes
 * that ask at once wait for each other in the kernel. Zeroed at first. */
typedef struct segment_room {
    psd_time_ns until; /* when to ask anew */
    int64_t have;      /* less what was taken since; -1: not known */
    int64_t ask_at;    /* the same, once no more than this is left */
} segment_room;

/* A memfd of that size whose memory is there already (posix_fallocate), sealed against changes of size. On
 * failure `why` tells need, have and the cure. `room` NULL: asks anew. */
psd_status segment_create(segment_room *room, const char *name, uint64_t bytes, int *fd, char *why,
                          size_t why_bytes);

/* Is a received fd a segment of exactly that size that nobody can shrink (so that it never raises SIGBUS)? */
psd_status segment_check(int fd, uint64_t bytes, char *why, size_t why_bytes);

/* Maps the whole segment for reading and writing, with its pages. */
psd_status segment_map(int fd, uint64_t bytes, void **out, char *why, size_t why_bytes);
void segment_unmap(void *memory, uint64_t bytes);

#endif
