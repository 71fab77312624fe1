/* Which cores the ranks of this host are bound to (psrun --bind). */
#ifndef PSD_LAUNCH_CORES_H
#define PSD_LAUNCH_CORES_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of the cores that this process may use (its cpuset and affinity), the share of one of `ranks`: as many for each, in
 * blocks. False if there are fewer than ranks, or they cannot be asked for. */
bool psd_cores_share(int32_t rank, int32_t ranks, cpu_set_t *out);

/* "0-3,8" */
void psd_cores_format(const cpu_set_t *cores, char *out, size_t out_bytes);

#endif
