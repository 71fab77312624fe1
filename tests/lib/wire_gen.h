/* Random valid messages of every type, for round-trip and hostile tests. */
#ifndef PSD_TEST_WIRE_GEN_H
#define PSD_TEST_WIRE_GEN_H

#include "common/msg.h"
#include "proto/arena.h"

/* Fills *out with a message that psd_wire_decode accepts; the same seed gives the same message. Its pointers
 * lead into the arena. */
void wire_gen(psd_msg_type type, uint64_t seed, psd_arena *arena, psd_msg *out);

#endif
