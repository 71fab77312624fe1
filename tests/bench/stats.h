/* What becomes of measured times: statistics, the state of the machine's cores, and how both are written. No I/O. */
#ifndef PSD_BENCH_STATS_H
#define PSD_BENCH_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bench_stats {
    size_t count; /* 0: nothing was measured, the rest is 0 */
    double least;
    double median;
    double greatest;
} bench_stats;

/* Sorts `values`. */
bench_stats bench_stats_of(double *values, size_t count);

/* How near the two cores are that a round ran on: virtual cores move, for seconds to minutes, and times in one state
 * say nothing of times in the other. */
typedef enum bench_state {
    BENCH_MIXED = 0, /* it changed during the round, which counts for nothing */
    BENCH_NEAR,
    BENCH_FAR,
    BENCH_TWIN, /* nearer than two cores are here: perhaps two threads of one, which share what it can do */
    BENCH_STATES,
} bench_state;

#define BENCH_NEAR_NS 100 /* half a round trip between near cores takes less */
#define BENCH_TWIN_NS 32

bench_state bench_state_of(double half_trip_before_ns, double half_trip_after_ns);
const char *bench_state_name(bench_state state);

/* The state with the most rounds, the first when even. BENCH_MIXED when there is none. */
bench_state bench_state_most(const size_t rounds[BENCH_STATES]);

/* Texts of at most `bytes`, the NUL included; give `out`. "4 KiB"; "0.51", "12.3", "1234"; "0.51 [0.44-0.62]", "-" for
 * nothing; "0.51" of two medians, "-" where one is missing. */
const char *bench_text_bytes(int64_t value, char *out, size_t bytes);
const char *bench_text_number(double value, char *out, size_t bytes);
const char *bench_text_stats(const bench_stats *stats, char *out, size_t bytes);
const char *bench_text_ratio(double above, double below, char *out, size_t bytes);

/* "4", "64K", "4M": a size; "4,64K": at most `most` of them, their number, or -1 where the text is none. */
bool bench_parse_bytes(const char *text, int64_t *out);
int bench_parse_sizes(const char *text, int64_t *out, int most);

#endif
