/* How much memory this process may still use. */
#ifndef PSD_HOST_MEMORY_LIMIT_H
#define PSD_HOST_MEMORY_LIMIT_H

#include <stdint.h>

/* Bytes: the least of what the machine has and what the process's control groups allow; -1 if nothing tells.
 */
int64_t memory_available(void);

#endif
