/* Was this process started by an MPI launcher? Asked by the choice of a backend, before libmpi is opened, and
 * by the mpi backend. */
#ifndef PSD_BACKEND_MPI_LAUNCH_H
#define PSD_BACKEND_MPI_LAUNCH_H

#include <stdbool.h>

/* By mpirun, or by srun with PMIx or PMI-2. */
bool psd_mpi_launched(void);

#endif
