/* Collectives of the host backend as rounds of messages and local work: pure computation, no links, no locks.
 *
 * The engine runs a collective so:
 *     coll_begin(&coll, op, rank, size, scratch);
 *     for (round = 0; coll_round(&coll, round, &messages); round++) {
 *         post all messages;
 *         coll_meanwhile(&coll, round);
 *         wait until all are complete;
 *         coll_finish(&coll, round);
 *     }
 * Messages of one pair, one direction and one collective match in order; zero-byte messages are sent too, so
 * that every pair that an algorithm connects compares fingerprints even when there is no data.
 *
 * Reductions are in rank order with the result rounded once: rank i owns a piece, receives that piece from
 * everybody, reduces (f16 and bf16 in f32, avg divides at the end) and sends the result on. So all ranks and
 * all runs get the same bits, whatever the chunking. Large operations go in chunks that stay in cache, the
 * exchange of one chunk beside the passing on of the one before. */
#ifndef PSD_HOST_COLL_H
#define PSD_HOST_COLL_H

#include "worker/backend/backend.h"

typedef struct coll_message {
    bool is_send;
    int32_t peer; /* group rank, never oneself */
    void *data;   /* read only when sending */
    size_t bytes;
    bool may_combine; /* a receive: its bytes may go to coll_combine() instead of `data` */
} coll_message;

typedef struct coll_messages {
    int32_t count;
    int32_t capacity;
    coll_message *items; /* the engine's array, of coll_max_messages() */
} coll_messages;

typedef struct coll {
    const struct coll_schedule *schedule; /* of coll_schedule.h; NULL when there is nothing to exchange */
    psd_op op; /* copied; splits are borrowed from the engine until the collective ends */
    int32_t rank;
    int32_t size;
    uint32_t rounds;
    size_t chunk; /* bytes of each rank's piece that one round handles; 0 where a round moves whole pieces */
    unsigned char *scratch;
    bool is_combined; /* the message of this round that may be, was */
} coll;

/* Most messages in one round, and bytes of scratch, that any collective of this size of group may need
 * (bounded: does not grow with op->count). */
int32_t coll_max_messages(int32_t size);
size_t coll_scratch_bytes(const psd_op *op, int32_t size);

void coll_begin(coll *c, const psd_op *op, int32_t rank, int32_t size, void *scratch);
/* Writes the messages of round `round`; false once all rounds are done. With size 1 there are only local
 * copies. */
bool coll_round(coll *c, uint32_t round, coll_messages *out);
/* Reduces bytes of this round's message with may_combine, whole elements in order, straight from where they
 * came in, which may be shared with the sender. Once begun, all of the message comes this way. */
void coll_combine(coll *c, uint32_t round, size_t at, const void *theirs, size_t bytes);
/* Local work that does not wait for the round's messages (copies of this rank's own block): after they were posted. */
void coll_meanwhile(coll *c, uint32_t round);
/* Bytes of all ranks' tensors together. */
uint64_t coll_touched_bytes(const coll *c);
/* Local work (reductions) after the round's messages are complete. */
void coll_finish(coll *c, uint32_t round);

#endif
