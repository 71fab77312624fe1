#include "worker/launch/cores.h"

#include <stdio.h>

bool psd_cores_share(int32_t rank, int32_t ranks, cpu_set_t *out)
{
    cpu_set_t mine;
    if (sched_getaffinity(0, sizeof(mine), &mine) != 0)
        return false;
    int32_t each = CPU_COUNT(&mine) / ranks;
    int32_t first = rank * each;
    int32_t seen = 0;
    CPU_ZERO(out);
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &mine))
            continue;
        if (seen >= first && seen < first + each)
            CPU_SET(core, out);
        seen++;
    }
    return each > 0;
}

void psd_cores_format(const cpu_set_t *cores, char *out, size_t out_bytes)
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t core = 0; core < CPU_SETSIZE && at < out_bytes; core++) {
        size_t last = core;
        if (!CPU_ISSET(core, cores))
            continue;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, cores))
            last++;
        int n = last == core ? snprintf(out + at, out_bytes - at, "%s%zu", at > 0 ? "," : "", core)
                             : snprintf(out + at, out_bytes - at, "%s%zu-%zu", at > 0 ? "," : "", core, last);
        at += n > 0 ? (size_t)n : 0;
        core = last;
    }
}
