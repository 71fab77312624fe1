/* Was this process started by an MPI launcher? Asked by the choice of a backend, before libmpi is opened, and
 * by the mpi backend. */
#ifndef PSD_BACKEND_MPI_LAUNCH_H
#define PSD_BACKEND_MPI_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>

/* By mpirun, or by srun with PMIx or PMI-2. If not, `why` gets a sentence. */
bool psd_mpi_launched(char *why, size_t why_bytes);

#endif
