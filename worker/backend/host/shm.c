/* The memory of a shared-memory link: one page of indices and of who has left, then the connector's ring, the acceptor's, and their lanes
 * likewise. */
#include "worker/backend/host/net.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "worker/backend/host/segment.h"

/* In the page of indices. */
#define LANES_INDEX_AT (2 * sizeof(ring_shared))
#define LEAVERS_AT     (LANES_INDEX_AT + 2 * sizeof(lane_shared))

/* Of one side. Zeroed memory: it has not left. */
typedef struct leaver {
    _Alignas(64) _Atomic uint32_t has_left;
} leaver;

_Static_assert(LEAVERS_AT + 2 * sizeof(leaver) <= SEGMENT_INDEX_BYTES, "the indices fit their page");

static uint64_t total_bytes(uint64_t ring_bytes)
{
    return SEGMENT_INDEX_BYTES + 2 * ring_bytes + 2 * (uint64_t)lane_bytes(ring_bytes);
}

static void lay_out(shm_stream *shm, uint64_t ring_bytes, bool connector)
{
    unsigned char *base = shm->segment;
    ring_shared *shared = shm->segment;
    uint32_t out = connector ? 0 : 1;
    uint32_t in = 1 - out;
    ring_writer_init(&shm->tx, &shared[out], base + SEGMENT_INDEX_BYTES + out * ring_bytes, ring_bytes);
    ring_reader_init(&shm->rx, &shared[in], base + SEGMENT_INDEX_BYTES + in * ring_bytes, ring_bytes);
    lane_shared *indices = (lane_shared *)(void *)(base + LANES_INDEX_AT);
    unsigned char *lanes = base + SEGMENT_INDEX_BYTES + 2 * ring_bytes;
    size_t bytes = lane_bytes(ring_bytes);
    lane_writer_init(&shm->lane_tx, &indices[out], lanes + out * bytes, bytes);
    lane_reader_init(&shm->lane_rx, &indices[in], lanes + in * bytes, bytes);
    leaver *leavers = (leaver *)(void *)(base + LEAVERS_AT);
    shm->has_left = &leavers[out].has_left;
    shm->peer_has_left = &leavers[in].has_left;
}

psd_status shm_offer(shm_stream *shm, segment_room *room, uint64_t ring_bytes, int *segment_fd, char *why,
                     size_t why_bytes)
{
    int fd;
    uint64_t bytes = total_bytes(ring_bytes);
    psd_status status = segment_create(room, "psd-link", bytes, &fd, why, why_bytes);
    if (status != PSD_OK)
        return status;
    status = segment_map(fd, bytes, &shm->segment, why, why_bytes);
    if (status != PSD_OK) {
        close(fd);
        return status;
    }
    shm->segment_bytes = bytes;
    lay_out(shm, ring_bytes, true);
    *segment_fd = fd;
    return PSD_OK;
}

psd_status shm_take_offer(shm_stream *shm, uint64_t ring_bytes, int segment_fd, char *why, size_t why_bytes)
{
    if (ring_bytes < HOST_RING_MIN || ring_bytes > HOST_RING_MAX || (ring_bytes & (ring_bytes - 1)) != 0) {
        snprintf(why, why_bytes, "the peer offers rings of %llu bytes", (unsigned long long)ring_bytes);
        return PSD_ERR_FORMAT;
    }
    uint64_t bytes = total_bytes(ring_bytes);
    psd_status status = segment_check(segment_fd, bytes, why, why_bytes);
    if (status != PSD_OK)
        return status;
    status = segment_map(segment_fd, bytes, &shm->segment, why, why_bytes);
    if (status != PSD_OK)
        return status;
    shm->segment_bytes = bytes;
    lay_out(shm, ring_bytes, false);
    return PSD_OK;
}

void shm_take_arena(shm_stream *shm, int fd, uint64_t bytes)
{
    char why[160];
    if (bytes > 0 && peer_arena_open(&shm->arena, fd, bytes, why, sizeof why) != PSD_OK)
        psd_log("host", PSD_LOG_WARN, "tensors go through the rings of a link: %s", why);
}

/* The order of a sequence lock: who reads something that was written after the mark was set finds the mark. */
void shm_leave(shm_stream *shm)
{
    if (shm->segment == NULL)
        return;
    atomic_store_explicit(shm->has_left, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

bool shm_peer_has_left(const shm_stream *shm)
{
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(shm->peer_has_left, memory_order_relaxed) != 0;
}

void shm_drop(shm_stream *shm)
{
    if (shm->segment)
        segment_unmap(shm->segment, shm->segment_bytes);
    peer_arena_close(&shm->arena);
    if (shm->bell.page)
        peer_bell_close(&shm->bell);
    if (shm->fd >= 0)
        close(shm->fd);
    memset(shm, 0, sizeof *shm);
    shm->fd = -1;
}
