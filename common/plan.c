#include "common/plan.h"

#include <endian.h>
#include <string.h>

#include <xxhash.h>

/* What is hashed of a step: its columns one after the other, little-endian whatever the machine. */
enum { STEP_BYTES = 4 + 4 + 1 + 8 + 8 };

static void put32(unsigned char *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof value);
}

static void put64(unsigned char *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof value);
}

uint64_t psd_plan_rank_hash(const psd_msg_plan_steps *columns, uint64_t seed)
{
    uint64_t hash = seed;
    for (uint32_t i = 0; i < columns->count; i++) {
        unsigned char step[STEP_BYTES];
        put32(step, columns->round[i]);
        put32(step + 4, columns->peer[i]);
        step[8] = columns->is_send[i];
        put64(step + 9, columns->offset[i]);
        put64(step + 17, columns->bytes[i]);
        hash = XXH64(step, sizeof step, hash);
    }
    return hash;
}
