/* Where a tensor's memory is, and whether the context's backend moves it. */
#ifndef PSD_DEVICE_MEMORY_H
#define PSD_DEVICE_MEMORY_H

#include "worker/context.h"

/* Does the backend move this tensor's memory? The device it says must be the context's, and the memory really
 * be there. `count` is its elements; the rest of it is valid. Otherwise `why` continues "in ...": "is in host
 * memory, which ...". */
psd_status psd_memory_check(const psd_ctx *ctx, const psd_tensor *tensor, int64_t count, char *why,
                            size_t why_bytes);

/* psd_tensor_copy within another public function, whose name is the sentences' `verb`; the tensors are valid
 * and have been checked before. Raw bytes on `stream`. */
psd_status psd_memory_copy(PSD_AT, const char *verb, psd_ctx *ctx, void *dst, const void *src, size_t bytes,
                           void *stream);

#endif
