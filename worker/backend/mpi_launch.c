#include "worker/backend/mpi_launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"

static const char *value_of(const char *variable)
{
    const char *value = getenv(variable);
    return value != NULL ? value : "";
}

/* psrun under mpirun passes the launcher's variables on to all its ranks, for which they do not hold. */
static bool agrees(const char *theirs, const char *ours, char *why, size_t why_bytes)
{
    const char *a = value_of(theirs), *b = value_of(ours);
    char echo_a[PSD_ECHO_BYTES], echo_b[PSD_ECHO_BYTES];
    if (a[0] == '\0' || b[0] == '\0' || strcmp(a, b) == 0)
        return true;
    snprintf(why, why_bytes,
             "%s is %s, but %s is %s: this process is not the one that MPI started, or has another rank",
             theirs, psd_echo(a, echo_a, sizeof echo_a), ours, psd_echo(b, echo_b, sizeof echo_b));
    return false;
}

bool psd_mpi_launched(char *why, size_t why_bytes)
{
    if (value_of("OMPI_COMM_WORLD_RANK")[0] == '\0' && value_of("PMIX_RANK")[0] == '\0' &&
        value_of("PMI_RANK")[0] == '\0') {
        snprintf(why, why_bytes,
                 "not started by MPI; start the ranks with mpirun -n N PROGRAM, or srun --mpi=pmix");
        return false;
    }
    return agrees("OMPI_COMM_WORLD_RANK", "PSD_RANK", why, why_bytes) &&
           agrees("PMIX_RANK", "PSD_RANK", why, why_bytes) &&
           agrees("PMI_RANK", "PSD_RANK", why, why_bytes) &&
           agrees("OMPI_COMM_WORLD_SIZE", "PSD_WORLD_SIZE", why, why_bytes);
}
