/* What links from everyone to everyone cost, by their number: n ranks on a host have n(n-1)/2 links, on perhaps
 * two cores. The rules are pure; host_net_expect (link.h) applies them. `peers` are the other ranks. */
#ifndef PSD_HOST_MESH_H
#define PSD_HOST_MESH_H

#include <stdint.h>

#include "common/clock.h"
#include "common/psd_types.h"

#define MESH_SMALL_PEERS 15u /* up to here nothing is cut and nobody has to be patient */
#define MESH_RING_LEAST  ((uint64_t)16 << 10)

/* Bytes of each ring, if the user has not said: those that a rank writes to are together at most 4 MiB, but none
 * is smaller than MESH_RING_LEAST. A power of two. */
uint64_t mesh_ring_bytes(uint32_t peers);

/* `least`, and what so many ranks may need beyond it when they all connect at once and have to share cores. */
psd_time_ns mesh_patience(psd_time_ns least, uint32_t peers);

/* Accepted sockets that may be in a handshake: all peers at once, and some strangers. */
uint32_t mesh_places(uint32_t peers);

/* Shared memory of all links among `ranks` on one host. */
uint64_t mesh_bytes(uint32_t ranks, uint64_t ring_bytes);

/* Is that much there? `have` -1: not known. PSD_ERR_NOMEM, with need, have and the cure. */
psd_status mesh_check_memory(uint32_t ranks, uint64_t ring_bytes, int64_t have, char *why, size_t why_bytes);

/* Are there descriptors for so many new links, two each, beside the `used` ones? PSD_ERR_LIMIT, with need, have
 * and the cure. */
psd_status mesh_check_descriptors(uint32_t links, uint64_t limit, uint64_t used, char *why, size_t why_bytes);

#endif
