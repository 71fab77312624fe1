#include "tests/bench/stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bench_stats bench_stats_of(double *values, size_t count)
{
    if (count == 0)
        return (bench_stats){0};
    qsort(values, count, sizeof *values, by_value);
    double middle = count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
    return (bench_stats){.count = count, .least = values[0], .median = middle, .greatest = values[count - 1]};
}

static bench_state state_at(double half_trip_ns)
{
    return half_trip_ns < BENCH_TWIN_NS ? BENCH_TWIN : half_trip_ns < BENCH_NEAR_NS ? BENCH_NEAR : BENCH_FAR;
}

bench_state bench_state_of(double half_trip_before_ns, double half_trip_after_ns)
{
    bench_state before = state_at(half_trip_before_ns), after = state_at(half_trip_after_ns);
    return before == after ? after : BENCH_MIXED;
}

const char *bench_state_name(bench_state state)
{
    static const char *const names[BENCH_STATES] = {"mixed", "near", "far", "twin"};
    return names[state];
}

bench_state bench_state_most(const size_t rounds[BENCH_STATES])
{
    bench_state most = BENCH_MIXED;
    for (int i = BENCH_NEAR; i < BENCH_STATES; i++)
        if (rounds[i] > (most == BENCH_MIXED ? 0 : rounds[most]))
            most = (bench_state)i;
    return most;
}

const char *bench_text_bytes(int64_t value, char *out, size_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
    size_t unit = 0;
    for (; unit < 3 && value >= 1024 && value % 1024 == 0; unit++)
        value /= 1024;
    snprintf(out, bytes, "%lld %s", (long long)value, units[unit]);
    return out;
}

const char *bench_text_number(double value, char *out, size_t bytes)
{
    snprintf(out, bytes, "%.*f", value >= 999.5 ? 0 : value >= 9.995 ? 1 : 2, value);
    return out;
}

const char *bench_text_stats(const bench_stats *stats, char *out, size_t bytes)
{
    char median[24], least[24], greatest[24];
    if (stats->count == 0) {
        snprintf(out, bytes, "-");
        return out;
    }
    bench_text_number(stats->median, median, sizeof median);
    bench_text_number(stats->least, least, sizeof least);
    bench_text_number(stats->greatest, greatest, sizeof greatest);
    snprintf(out, bytes, "%s [%s-%s]", median, least, greatest);
    return out;
}

const char *bench_text_ratio(double above, double below, char *out, size_t bytes)
{
    if (above <= 0 || below <= 0)
        snprintf(out, bytes, "-");
    else
        bench_text_number(above / below, out, bytes);
    return out;
}

bool bench_parse_bytes(const char *text, int64_t *out)
{
    return psd_parse_bytes(text, out) && *out >= 0;
}

int bench_parse_sizes(const char *text, int64_t *out, int most)
{
    int count = 0;
    while (*text != '\0') {
        char one[32];
        size_t length = strcspn(text, ",");
        if (count == most || length == 0 || length >= sizeof one)
            return -1;
        memcpy(one, text, length);
        one[length] = '\0';
        if (!bench_parse_bytes(one, &out[count++]))
            return -1;
        text += length;
        if (*text == ',' && *++text == '\0')
            return -1;
    }
    return count > 0 ? count : -1;
}
