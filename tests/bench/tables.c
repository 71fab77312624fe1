/* Markdown tables of what was measured. */
#include <string.h>

#include "tests/bench/compare.h"

#define CELL 64

static const compare_lane *lane_of(const compare_case *c, const char *name, bench_memory memory)
{
    for (int i = 0; i < c->lane_count; i++)
        if (strcmp(c->lanes[i].system->name, name) == 0 && c->lanes[i].memory == memory &&
            c->lanes[i].us.count > 0)
            return &c->lanes[i];
    return NULL;
}

static const compare_lane *psd_of(const compare_case *c, bench_memory memory)
{
    return lane_of(c, "psd", memory);
}

/* The fastest of the MPI runs, default or tuned. */
static const compare_lane *best_mpi(const compare_case *c, bool with_default)
{
    const compare_lane *best = NULL;
    for (int i = 0; i < c->lane_count; i++) {
        const compare_lane *lane = &c->lanes[i];
        bool is_default = strcmp(lane->system->name, "openmpi") == 0;
        if (!lane->system->is_peer_mpi || lane->us.count == 0 || (is_default && !with_default))
            continue;
        if (best == NULL || lane->us.median < best->us.median)
            best = lane;
    }
    return best;
}

static double median_of(const compare_lane *lane)
{
    return lane != NULL ? lane->us.median : 0;
}

static void print_time(const compare_lane *lane)
{
    char text[CELL];
    printf(" %s |", lane != NULL ? bench_text_stats(&lane->us, text, sizeof text) : "-");
}

static void print_ratio(double above, double below)
{
    char text[CELL];
    printf(" %s |", bench_text_ratio(above, below, text, sizeof text));
}

static size_t rounds_that_count(const compare_case *c)
{
    size_t count = 0;
    for (int r = 0; r < c->round_count; r++)
        count += c->states[r] == c->state;
    return count;
}

static void print_row(const compare_case *c)
{
    char size[CELL], most[CELL];
    const compare_lane *own = psd_of(c, BENCH_MEMORY_OWN), *plain = psd_of(c, BENCH_MEMORY_PLAIN);
    double mpi = median_of(best_mpi(c, true)), gloo = median_of(lane_of(c, "gloo", BENCH_MEMORY_PLAIN));
    const char *place = c->kind == BENCH_BROADCAST || c->kind == BENCH_BARRIER ? ""
                        : c->in_place                                          ? ", in place"
                                                                               : ", out of place";
    printf("| %s%s | %s, %zu of %d rounds, h %.0f ns |",
           c->bytes > 0 ? bench_text_bytes(c->bytes, size, sizeof size) : "", place,
           bench_state_name(c->state), rounds_that_count(c), c->round_count, c->limit.half_trip_ns);
    print_time(own);
    print_time(plain);
    print_time(lane_of(c, "openmpi", BENCH_MEMORY_PLAIN));
    print_time(best_mpi(c, false));
    print_time(lane_of(c, "gloo", BENCH_MEMORY_PLAIN));
    print_ratio(median_of(own), mpi);
    print_ratio(median_of(plain), mpi);
    print_ratio(gloo, median_of(own));
    if (c->limit.copy_gbs <= 0 || own == NULL) {
        printf(" - |\n");
        return;
    }
    bench_text_ratio((double)c->bytes / own->us.median / 1e3, c->limit.copy_gbs, most, sizeof most);
    printf(" %s of M %.1f, both %.1f |\n", most, c->limit.copy_gbs, c->limit.copy_both_gbs);
}

void compare_print_kind(const compare_case *cases, int count, int ranks)
{
    printf("\n### %s, %d ranks: microseconds, median [least-greatest]\n\n", compare_kind_name(cases[0].kind),
           ranks);
    printf("| size | cores | psd, psd_tensor_alloc | psd, malloc | OpenMPI | OpenMPI, tuned | Gloo "
           "| psd / best OpenMPI | malloc / best OpenMPI | Gloo / psd | rate, GB/s |\n"
           "|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < count; i++)
        print_row(&cases[i]);
    fflush(stdout);
}

/* ----------------------------------------------------------------------------------------------- summary */

/* The case that stands for a kind and a size: in place where that is possible. */
static const compare_case *case_of(const compare_case *cases, int count, bench_kind kind, int64_t bytes)
{
    const compare_case *found = NULL;
    for (int i = 0; i < count; i++)
        if (cases[i].kind == kind && (kind == BENCH_BARRIER || cases[i].bytes == bytes) &&
            (found == NULL || cases[i].in_place))
            found = &cases[i];
    return found;
}

static const char *mark_of(bench_state state)
{
    return state == BENCH_FAR ? " f" : state == BENCH_TWIN ? " t" : state == BENCH_MIXED ? " m" : "";
}

static void print_summary_cell(const compare_case *c)
{
    char us[CELL], mpi[CELL], gloo[CELL];
    const compare_lane *own = c != NULL ? psd_of(c, BENCH_MEMORY_OWN) : NULL;
    if (own == NULL) {
        printf(" - |");
        return;
    }
    bench_text_number(own->us.median, us, sizeof us);
    bench_text_ratio(own->us.median, median_of(best_mpi(c, true)), mpi, sizeof mpi);
    bench_text_ratio(median_of(lane_of(c, "gloo", BENCH_MEMORY_PLAIN)), own->us.median, gloo, sizeof gloo);
    printf(" %s%s (%s; %s) |", us, mark_of(c->state), mpi, gloo);
}

/* Over all rounds that count. */
static void print_limits(const compare_case *cases, int count)
{
    for (int state = BENCH_NEAR; state < BENCH_STATES; state++) {
        double trips[COMPARE_MAX_ROUNDS * 2], copies[COMPARE_MAX_ROUNDS * 2], both[COMPARE_MAX_ROUNDS * 2];
        size_t n = 0, m = 0;
        for (int i = 0; i < count && n < COMPARE_MAX_ROUNDS * 2; i++) {
            if (cases[i].state != (bench_state)state)
                continue;
            trips[n++] = cases[i].limit.half_trip_ns;
            if (cases[i].limit.copy_gbs > 0) {
                copies[m] = cases[i].limit.copy_gbs;
                both[m++] = cases[i].limit.copy_both_gbs;
            }
        }
        if (n == 0)
            continue;
        bench_stats h = bench_stats_of(trips, n), one = bench_stats_of(copies, m),
                    two = bench_stats_of(both, m);
        printf("Machine, cores %s (%zu cases): h %.0f ns [%.0f-%.0f]", bench_state_name((bench_state)state),
               n, h.median, h.least, h.greatest);
        if (m > 0)
            printf("; memcpy of 64 MiB: one thread %.1f GB/s [%.1f-%.1f], two %.1f [%.1f-%.1f]", one.median,
                   one.least, one.greatest, two.median, two.least, two.greatest);
        printf("\n");
    }
}

void compare_print_summary(const compare_case *cases, int count, const compare_args *args)
{
    char size[CELL];
    printf("\n### %d ranks, f32, psd_tensor_alloc, in place where possible: microseconds (over the best "
           "OpenMPI; Gloo "
           "over psd)\n\n| |",
           args->ranks);
    for (int s = 0; s < args->size_count; s++)
        printf(" %s |", bench_text_bytes(args->sizes[s], size, sizeof size));
    printf("\n|---|");
    for (int s = 0; s < args->size_count; s++)
        printf("---|");
    printf("\n");
    for (int kind = 0; kind < BENCH_KINDS; kind++) {
        int sizes = kind == BENCH_BARRIER ? 1 : args->size_count;
        if ((args->kinds >> kind & 1) == 0)
            continue;
        printf("| %s |", compare_kind_name((bench_kind)kind));
        for (int s = 0; s < sizes; s++)
            print_summary_cell(case_of(cases, count, (bench_kind)kind, args->sizes[s]));
        for (int s = sizes; s < args->size_count; s++)
            printf(" |");
        printf("\n");
    }
    printf("\nh: half a round trip of a word through shared memory between the two cores. f: they were far "
           "from each other "
           "(h from %d ns); t: two threads of one core (h under %d ns); m: no round was of one state.\n",
           BENCH_NEAR_NS, BENCH_TWIN_NS);
    print_limits(cases, count);
}

/* -------------------------------------------------------------------------------------------- difference */

static const compare_lane *lane_at(const compare_case *c, int at)
{
    return at < c->lane_count && c->lanes[at].us.count > 0 ? &c->lanes[at] : NULL;
}

void compare_print_difference(const compare_case *cases, int count)
{
    bool has_head = false;
    for (int i = 0; i < count; i++) {
        const compare_case *c = &cases[i];
        const compare_lane *with = lane_at(c, 0), *without = lane_at(c, 1);
        double ns[COMPARE_MAX_ROUNDS];
        size_t have = 0;
        char size[CELL], a[CELL], b[CELL];
        if (with == NULL || without == NULL)
            continue;
        for (int r = 0; r < c->round_count; r++)
            if (c->states[r] == c->state && with->ns[r] > 0 && without->ns[r] > 0)
                ns[have++] = with->ns[r] - without->ns[r];
        bench_stats d = bench_stats_of(ns, have);
        if (!has_head)
            printf(
                "\n| operation | cores | %s, us | %s, us | median of the rounds' differences, ns | share |\n"
                "|---|---|---|---|---|---|\n",
                with->system->shown, without->system->shown);
        has_head = true;
        printf("| %s, %s | %s, %zu rounds | %s | %s | %.0f [%.0f-%.0f] | %.2f%% |\n",
               compare_kind_name(c->kind), bench_text_bytes(c->bytes, size, sizeof size),
               bench_state_name(c->state), have, bench_text_stats(&with->us, a, sizeof a),
               bench_text_stats(&without->us, b, sizeof b), d.median, d.least, d.greatest,
               d.median / without->us.median / 10);
    }
}
