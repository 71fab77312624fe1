/* Hall's bound: the largest ratio of what only some ranks can send to the number of those ranks. */
#ifndef PSD_CORE_RESHARD_HALL_H
#define PSD_CORE_RESHARD_HALL_H

#include <stdbool.h>

#include "common/psd_types.h"

/* Bytes that only these ranks can send. */
typedef struct hall_set {
    const int32_t *ranks;
    int32_t rank_count;
    int64_t weight;
} hall_set;

/* *bound is the maximum over rank sets Q of (weights of the sets inside Q) / |Q|, rounded up; *worst, malloced, is a Q
 * that reaches it. Ranks are below `ranks`. PSD_ERR_NOMEM. */
psd_status hall_bound(const hall_set *sets, uint32_t count, int32_t ranks, int64_t *bound, int32_t **worst,
                      int32_t *worst_count);

#endif
