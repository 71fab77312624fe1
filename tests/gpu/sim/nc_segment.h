/* What the ranks of one communicator share: a sparse file of memory under PSD_GPUSIM_DIR, named after the
 * communicator's id, unlinked as soon as all ranks have it. It stands for NCCL's bootstrap network (arrivals,
 * all-gathers) and for the buffers between GPUs (channels). All zero is its initial state.  Whoever has it
 * open holds a shared flock on it; a file that nobody holds is of dead processes and is unlinked by the next
 * process that opens one. */
#ifndef PSD_GPUSIM_NC_SEGMENT_H
#define PSD_GPUSIM_NC_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEG_ID_BYTES 16
#define SEG_STEP     ((size_t)32 << 10) /* bytes that move at once */
#define SEG_SLOTS    8                  /* steps in flight: NCCL_STEPS */

typedef struct seg_rank {
    _Alignas(64) _Atomic uint32_t bell; /* raised whenever this rank may have to look again */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t claimed;
    _Atomic uint32_t arrived; /* what follows is written */
    int32_t version;
    uint64_t host;
    char bus[16];
    _Atomic uint32_t split_posted, split_done; /* numbers of splits */
    int32_t split_color, split_key;
    _Atomic uint32_t finalized;
    _Atomic uint32_t ring_ready; /* bits: kinds of collectives that are connected */
} seg_rank;

/* Steps from one rank to one other, in order. The writer owns head, the reader owns tail. */
typedef struct seg_channel {
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint64_t tail;
} seg_channel;

typedef struct seg_header {
    _Atomic uint32_t ranks;
    _Atomic uint32_t slots;
    _Atomic uint32_t arrived; /* ranks that came */
} seg_header;

typedef struct segment {
    int fd; /* -1: not open */
    int rank, ranks;
    uint32_t slots;
    char path[256];
    void *base;
    size_t bytes;
    seg_header *header;
    seg_rank *rank_at;      /* [ranks] */
    _Atomic uint32_t *pair; /* [ranks * ranks], sender major: SEG_SENDER, SEG_RECEIVER */
    seg_channel *channels;  /* [ranks * ranks] send and receive, then [ranks] ring, by sender */
    unsigned char *data;
} segment;

#define SEG_SENDER   1u
#define SEG_RECEIVER 2u

/* Returned text: what failed, or NULL. */
const char *seg_open(segment *seg, const uint8_t id[SEG_ID_BYTES], int rank, int ranks);
void seg_close(segment *seg);
/* The process ends: unlinks the name if nobody else holds it. */
void seg_abandon(segment *seg);
/* All ranks have it open: no name is needed any more. */
void seg_unlink(segment *seg);

/* Called after a change that `rank` may be waiting for. */
void seg_ring(segment *seg, int rank);
void seg_ring_all(segment *seg);
/* Sleeps until this rank's bell is no longer `seen`, at most 200 ms. */
void seg_sleep(segment *seg, uint32_t seen);
uint32_t seg_bell(segment *seg);

seg_channel *seg_pair_channel(segment *seg, int from, int to);
seg_channel *seg_ring_channel(segment *seg, int from);
unsigned char *seg_slot(segment *seg, const seg_channel *channel, uint64_t step);

#endif
