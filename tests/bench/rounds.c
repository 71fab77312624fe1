/* One case: who takes part, how long a turn is, and the rounds. */
#include <string.h>

#include "tests/bench/compare.h"

#define INNER_MOST      20000
#define COPIES_FROM     ((int64_t)1 << 20) /* sizes for which the rate of memory is told */
#define ROUNDS_PER_GOOD 3 /* at most so many times the rounds that are wanted, for changes of state */

static bool takes_part(const compare_system *system, const compare_case *c, bench_memory memory,
                       const compare_args *args)
{
    uint32_t can = c->in_place ? system->hello.in_place : system->hello.out_of_place;
    bool has_own = system->hello.own_memory != 0;
    if (system->channels[0] < 0 || (can >> c->kind & 1) == 0)
        return false;
    if (memory == BENCH_MEMORY_OWN)
        return has_own;
    return !has_own || !(args->only_own || c->kind == BENCH_BARRIER);
}

static void choose_lanes(compare_case *c, const compare_args *args, compare_systems *systems)
{
    c->lane_count = 0;
    for (int i = 0; i < systems->count; i++)
        for (int m = BENCH_MEMORIES - 1; m >= 0; m--)
            if (takes_part(&systems->list[i], c, (bench_memory)m, args)) {
                compare_lane *lane = &c->lanes[c->lane_count++];
                *lane = (compare_lane){.system = &systems->list[i], .memory = (bench_memory)m};
            }
}

static bench_order order_for(const compare_case *c, const compare_lane *lane, bench_verb verb, int64_t inner)
{
    return (bench_order){.verb = verb,
                         .kind = c->kind,
                         .memory = lane->memory,
                         .in_place = c->in_place,
                         .bytes = c->bytes,
                         .inner = inner};
}

/* Compares the results, and finds how many operations make a turn. 0: the lane is out. */
static int64_t prepare(const compare_case *c, const compare_lane *lane, const compare_args *args)
{
    bench_answer answer;
    char size[32];
    bench_order order = order_for(c, lane, BENCH_CHECK, 1);
    if (!compare_system_do(lane->system, &order, &answer))
        return 0;
    if (answer.wrong != 0) {
        lane->system->is_wrong = true;
        fprintf(stderr, "compare: WRONG: %s: %s of %s: %lld elements\n", lane->system->shown,
                compare_kind_name(c->kind), bench_text_bytes(c->bytes, size, sizeof size),
                (long long)answer.wrong);
        return 0;
    }
    int64_t inner = 1;
    for (int i = 0; i < 2; i++) { /* the first guess is of one cold operation */
        order = order_for(c, lane, BENCH_TIME, inner);
        if (!compare_system_do(lane->system, &order, &answer))
            return 0;
        double fits = args->turn_ns / (answer.ns > 1 ? answer.ns : 1);
        inner = fits < 1 ? 1 : fits > INNER_MOST ? INNER_MOST : (int64_t)fits;
    }
    return inner;
}

/* Each lane has its turn; who is first changes from round to round. */
static void run_round(compare_case *c, const int64_t *inner)
{
    int round = c->round_count;
    for (int i = 0; i < c->lane_count; i++) {
        int at = (i + round) % c->lane_count;
        compare_lane *lane = &c->lanes[at];
        bench_order order = order_for(c, lane, BENCH_TIME, inner[at]);
        bench_answer answer;
        if (inner[at] > 0 && compare_system_do(lane->system, &order, &answer))
            lane->ns[round] = c->kind == BENCH_PING_PONG ? answer.ns / 2 : answer.ns;
        else
            lane->ns[round] = 0;
    }
}

/* Medians over the rounds of the state that most were of. */
static void conclude(compare_case *c)
{
    size_t rounds[BENCH_STATES] = {0};
    double trips[COMPARE_MAX_ROUNDS], copies[COMPARE_MAX_ROUNDS], both[COMPARE_MAX_ROUNDS];
    size_t count = 0;
    for (int r = 0; r < c->round_count; r++)
        rounds[c->states[r]]++;
    c->state = bench_state_most(rounds);
    for (int r = 0; r < c->round_count; r++)
        if (c->states[r] == c->state) {
            trips[count] = c->limits[r].half_trip_ns;
            copies[count] = c->limits[r].copy_gbs;
            both[count++] = c->limits[r].copy_both_gbs;
        }
    c->limit.half_trip_ns = bench_stats_of(trips, count).median;
    c->limit.copy_gbs = bench_stats_of(copies, count).median;
    c->limit.copy_both_gbs = bench_stats_of(both, count).median;
    for (int i = 0; i < c->lane_count; i++) {
        compare_lane *lane = &c->lanes[i];
        double us[COMPARE_MAX_ROUNDS];
        size_t have = 0;
        for (int r = 0; r < c->round_count; r++)
            if (c->states[r] == c->state && lane->ns[r] > 0)
                us[have++] = lane->ns[r] / 1e3;
        lane->us = bench_stats_of(us, have);
    }
}

static bool enough(const compare_case *c, int wanted)
{
    int rounds[BENCH_STATES] = {0};
    for (int r = 0; r < c->round_count; r++)
        rounds[c->states[r]]++;
    return rounds[BENCH_NEAR] >= wanted || rounds[BENCH_FAR] >= wanted || rounds[BENCH_TWIN] >= wanted;
}

bool compare_case_run(compare_case *c, const compare_args *args, compare_systems *systems,
                      compare_probe *probe)
{
    int64_t inner[COMPARE_MAX_LANES];
    compare_limits before, after;
    int most = args->rounds * ROUNDS_PER_GOOD;
    choose_lanes(c, args, systems);
    if (c->lane_count == 0)
        return false;
    for (int i = 0; i < c->lane_count; i++)
        inner[i] = prepare(c, &c->lanes[i], args);
    compare_probe_measure(probe, false, &before);
    c->round_count = 0;
    while (c->round_count < most && c->round_count < COMPARE_MAX_ROUNDS && !enough(c, args->rounds)) {
        run_round(c, inner);
        compare_probe_measure(probe, c->bytes >= COPIES_FROM, &after);
        c->states[c->round_count] = bench_state_of(before.half_trip_ns, after.half_trip_ns);
        c->limits[c->round_count++] = after;
        before = after;
    }
    conclude(c);
    return true;
}
