#include "worker/backend/mpi_launch.h"

#include <stdlib.h>
#include <string.h>

static bool is_set(const char *variable)
{
    const char *value = getenv(variable);
    return value != NULL && value[0] != '\0';
}

/* psrun under mpirun passes the launcher's variables on to all its ranks, for which they do not hold. */
static bool agrees(const char *theirs, const char *ours)
{
    return !is_set(theirs) || !is_set(ours) || strcmp(getenv(theirs), getenv(ours)) == 0;
}

bool psd_mpi_launched(void)
{
    if (!is_set("OMPI_COMM_WORLD_RANK") && !is_set("PMIX_RANK") && !is_set("PMI_RANK"))
        return false;
    return agrees("OMPI_COMM_WORLD_RANK", "PSD_RANK") && agrees("PMIX_RANK", "PSD_RANK") &&
           agrees("PMI_RANK", "PSD_RANK") && agrees("OMPI_COMM_WORLD_SIZE", "PSD_WORLD_SIZE");
}
