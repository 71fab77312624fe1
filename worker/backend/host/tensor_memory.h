/* Memory for tensors that this backend moves fastest. Under the engine's lock. */
#ifndef PSD_HOST_TENSOR_MEMORY_H
#define PSD_HOST_TENSOR_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/backend/host/arena.h"
#include "worker/backend/list.h"

typedef struct tensor_memory {
    arena *shared;       /* may be one that is not open; borrowed */
    list mappings;       /* what lies in huge pages elsewhere */
    bool has_huge_pages; /* the kernel gives them to who asks */
} tensor_memory;

void tensor_memory_init(tensor_memory *m, arena *shared);
/* Zeroed, aligned to 64 bytes at least; NULL: out of memory. */
void *tensor_memory_get(tensor_memory *m, size_t bytes);
/* `bytes` as they were asked for. Accepts NULL. */
void tensor_memory_put(tensor_memory *m, void *memory, size_t bytes);
/* Is all of this in a mapping of huge pages that peers do not map? */
bool tensor_memory_is_huge(const tensor_memory *m, const void *data, size_t bytes);

#endif
