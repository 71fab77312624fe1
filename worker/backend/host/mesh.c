#include "worker/backend/host/mesh.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/conf.h"
#include "worker/backend/host/lane.h"
#include "worker/backend/host/link.h"
#include "worker/backend/host/segment.h"

#define RINGS_OF_ONE     ((uint64_t)4 << 20) /* that one rank writes to: about a second-level cache */
#define PATIENCE_A_PEER  (100 * PSD_NS_PER_MS)
#define PLACES_LEAST     128u /* of peers that nobody has announced, and strangers */
#define PLACES_STRANGERS 64u
#define FDS_OF_A_LINK    2u  /* the socket, and the peer's bell; TCP has one */
#define FDS_SPARE        64u /* handshakes under way, and files of the program */

uint64_t mesh_ring_bytes(uint32_t peers)
{
    uint64_t bytes = HOST_RING_DEFAULT;
    while (bytes > MESH_RING_LEAST && bytes * peers > RINGS_OF_ONE)
        bytes /= 2;
    return bytes;
}

psd_time_ns mesh_patience(psd_time_ns least, uint32_t peers)
{
    return peers <= MESH_SMALL_PEERS ? least : least + (peers - MESH_SMALL_PEERS) * PATIENCE_A_PEER;
}

uint32_t mesh_places(uint32_t peers)
{
    return peers + PLACES_STRANGERS > PLACES_LEAST ? peers + PLACES_STRANGERS : PLACES_LEAST;
}

uint64_t mesh_bytes(uint32_t ranks, uint64_t ring_bytes)
{
    uint64_t links = ranks < 2 ? 0 : (uint64_t)ranks * (ranks - 1) / 2;
    return links * (2 * (ring_bytes + lane_bytes(ring_bytes)) + SEGMENT_INDEX_BYTES);
}

psd_status mesh_check_memory(uint32_t ranks, uint64_t ring_bytes, int64_t have, char *why, size_t why_bytes)
{
    uint64_t need = mesh_bytes(ranks, ring_bytes);
    char need_text[32];
    char have_text[32];
    char ring_text[32];
    if (have < 0 || need <= (uint64_t)have)
        return PSD_OK;
    snprintf(
        why, why_bytes,
        "no room for shared memory: %" PRIu32 " ranks on this host have %" PRIu64
        " links with two rings of %s each: need %s, have %s free; make rings smaller (PSD_HOST_RING, from "
        "4K), give more memory, or run fewer ranks on this host",
        ranks, (uint64_t)ranks * (ranks - 1) / 2,
        psd_format_bytes((int64_t)ring_bytes, ring_text, sizeof ring_text),
        psd_format_bytes((int64_t)need, need_text, sizeof need_text),
        psd_format_bytes(have, have_text, sizeof have_text));
    return PSD_ERR_NOMEM;
}

psd_status mesh_check_descriptors(uint32_t links, uint64_t limit, uint64_t used, char *why, size_t why_bytes)
{
    uint64_t need = used + (uint64_t)links * FDS_OF_A_LINK + FDS_SPARE;
    if (links == 0 || need <= limit)
        return PSD_OK;
    snprintf(why, why_bytes,
             "not enough file descriptors: %" PRIu32 " links need %" PRIu64 " beside the %" PRIu64
             " in use, the limit is %" PRIu64 "; raise it to at least %" PRIu64 " (ulimit -n)",
             links, need - used, used, limit, need);
    return PSD_ERR_LIMIT;
}
