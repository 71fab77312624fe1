/* The cases, one after the other. See compare.h. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/bench/compare.h"

#define MAX_CASES (BENCH_KINDS * COMPARE_MAX_SIZES * 2)

/* Seconds of processor time that the whole machine has used. */
static double machine_seconds(void)
{
    double user = 0, nice = 0, system = 0;
    FILE *stat = fopen("/proc/stat", "r");
    if (stat == NULL)
        return 0;
    if (fscanf(stat, "cpu %lf %lf %lf", &user, &nice, &system) != 3)
        user = nice = system = 0;
    fclose(stat);
    return (user + nice + system) / (double)sysconf(_SC_CLK_TCK);
}

/* What this program and the ranks have used. */
static double own_seconds(const compare_systems *systems)
{
    struct rusage usage;
    double seconds = 0;
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                  (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
    for (int i = 0; i < systems->count; i++)
        for (int r = 0; r < systems->ranks; r++)
            seconds += systems->list[i].cpu[r];
    return seconds;
}

/* In place after out of place; a kind that has only one place has one case. */
static int run_kind(bench_kind kind, const compare_args *args, compare_systems *systems, compare_probe *probe,
                    compare_case *cases)
{
    int sizes = kind == BENCH_BARRIER ? 1 : args->size_count, count = 0;
    for (int s = 0; s < sizes; s++)
        for (int place = 1; place >= 0; place--) {
            compare_case *c = &cases[count];
            *c = (compare_case){
                .kind = kind, .bytes = kind == BENCH_BARRIER ? 0 : args->sizes[s], .in_place = place};
            bool ran = compare_case_run(c, args, systems, probe);
            count += ran;
            if (ran && args->only_own)
                break;
        }
    return count;
}

static int run_all(const compare_args *args, compare_systems *systems, compare_probe *probe)
{
    compare_case *cases = calloc(MAX_CASES, sizeof *cases);
    int count = 0;
    if (cases == NULL) {
        fprintf(stderr, "compare: out of memory\n");
        return 1;
    }
    for (int kind = 0; kind < BENCH_KINDS; kind++) {
        if ((args->kinds >> kind & 1) == 0)
            continue;
        int more = run_kind((bench_kind)kind, args, systems, probe, &cases[count]);
        if (!args->summary && !args->difference && more > 0)
            compare_print_kind(&cases[count], more, args->ranks);
        count += more;
    }
    if (args->difference)
        compare_print_difference(cases, count);
    else
        compare_print_summary(cases, count, args);
    free(cases);
    return 0;
}

static void print_limits_now(compare_probe *probe)
{
    compare_limits limits;
    compare_probe_measure(probe, true, &limits); /* warms */
    compare_probe_measure(probe, true, &limits);
    printf("Cores %s: h %.0f ns; memcpy of 64 MiB: one thread %.1f GB/s, two %.1f.\n",
           bench_state_name(bench_state_of(limits.half_trip_ns, limits.half_trip_ns)), limits.half_trip_ns,
           limits.copy_gbs, limits.copy_both_gbs);
}

int main(int argc, char **argv)
{
    compare_args args;
    compare_systems systems;
    int code = compare_args_parse(argc, argv, &args);
    if (code != 0)
        return code == 1 ? 0 : code;
    psd_time_ns begun = psd_now_ns();
    compare_probe *probe = compare_probe_new();
    if (probe == NULL) {
        fprintf(stderr, "compare: out of memory, or no threads\n");
        return 1;
    }
    if (args.only_limits) {
        print_limits_now(probe);
        compare_probe_free(probe);
        return 0;
    }
    bool has_psd = compare_systems_start(&args, &systems);
    double seconds = (double)(psd_now_ns() - begun) / 1e9;
    double machine = machine_seconds(), own = own_seconds(&systems);
    code = has_psd ? run_all(&args, &systems, probe) : 1;
    double others = machine_seconds() - machine - (own_seconds(&systems) - own);
    seconds = (double)(psd_now_ns() - begun) / 1e9 - seconds;
    for (int i = 0; i < systems.count; i++)
        code |= systems.list[i].is_psd && systems.list[i].is_wrong;
    compare_systems_stop(&systems);
    compare_probe_free(probe);
    printf("\n%.0f s; other programs used %.0f%% of a core meanwhile.\n", seconds,
           others > 0 ? 100 * others / seconds : 0);
    return code;
}
