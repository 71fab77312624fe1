/* Reduction loops for any processor. */
#ifndef __clang__
#pragma GCC optimize("O3")
#endif

#define REDUCE_KERNELS const reduce_kernels reduce_kernels_portable
#include "worker/backend/host/reduce_loops.inc"
