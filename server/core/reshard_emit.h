/* From lanes to messages: the last part of the compiler. */
#ifndef PSD_CORE_RESHARD_EMIT_H
#define PSD_CORE_RESHARD_EMIT_H

#include "server/core/reshard_parts.h"

/* A lane's way over one pair of ranks. */
typedef struct hop {
    int32_t src;
    int32_t dst;
    uint32_t lane;
    uint32_t index; /* 0: from the holder */
    int64_t slot;   /* bytes of it in one period */
} hop;

/* All hops of one pair, in the order in which their bytes go. */
typedef struct pair_traffic {
    uint32_t first_hop;
    uint32_t hop_count;
    int64_t bytes; /* of one period */
} pair_traffic;

/* With forwarding each lane is cut into `periods` slices. In period p, hop h carries slice p - h: what is sent on came
 * in the period before, and all periods have the same traffic. Without, there is one period. */
typedef struct reshard_flows {
    hop *hops; /* in order of (src, dst, lane) */
    uint64_t hop_count;
    traffic *matrix; /* units of `quantum` bytes; one entry a pair */
    pair_traffic *pairs;
    uint32_t pair_count;
    uint32_t periods;
    uint32_t tail;   /* further periods that the last slices need */
    int64_t quantum; /* as large as it may be, at first: fewer and longer rounds */
} reshard_flows;

psd_status reshard_flows_make(const reshard_atoms *atoms, const reshard_lanes *lanes, uint32_t periods,
                              reshard_flows *out, const reshard_why *why);
void reshard_flows_quantize(reshard_flows *flows, int64_t quantum);
void reshard_flows_free(reshard_flows *flows);
/* The most that one rank sends, and receives, over all periods. */
psd_status reshard_flows_load(const reshard_atoms *atoms, const reshard_lanes *lanes, int64_t *sends,
                              int64_t *receives, const reshard_why *why);

/* Fills everything of the plan but its atoms. */
psd_status reshard_emit(const reshard_input *input, const reshard_atoms *atoms, const reshard_lanes *lanes,
                        const reshard_flows *flows, const reshard_rounds *rounds, reshard_plan *out,
                        const reshard_why *why);

#endif
