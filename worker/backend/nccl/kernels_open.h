/* Opens the shared object of the device's kernels. */
#ifndef PSD_KERNELS_OPEN_H
#define PSD_KERNELS_OPEN_H

#include "worker/backend/kernels.h"

/* The table of PSD_KERNELS_LIBRARY, else of psd_kernels.so beside this object; it stays open. NULL, and `why` says
 * what is missing. Any thread. The runtime (libcudart) is loaded before. */
const psd_kernels *kernels_open(char *why, size_t why_bytes);

#endif
