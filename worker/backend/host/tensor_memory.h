/* Memory for tensors that this backend moves fastest. Any thread. */
#ifndef PSD_HOST_TENSOR_MEMORY_H
#define PSD_HOST_TENSOR_MEMORY_H

#include <stddef.h>

/* Zeroed, aligned to 64 bytes at least; NULL: out of memory. */
void *tensor_memory_get(size_t bytes);
/* `bytes` as they were asked for. Accepts NULL. */
void tensor_memory_put(void *memory, size_t bytes);

#endif
