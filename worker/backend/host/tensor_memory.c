/* Memory for tensors: in huge pages where they fit, which copies between ranks, by this process and by
 * process_vm_readv, gain from: fewer entries of the TLB and fewer pages to pin. */
#include "worker/backend/host/tensor_memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_BYTES ((size_t)2 << 20)
#define LINE_BYTES ((size_t)64)

/* A mapping that begins at a huge page: what is too much before and after it is given back. */
static void *map_aligned(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t length = (bytes + page - 1) / page * page;
    if (bytes > SIZE_MAX - HUGE_BYTES - page)
        return NULL;
    unsigned char *map =
        mmap(NULL, length + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    size_t before = (HUGE_BYTES - (uintptr_t)map % HUGE_BYTES) % HUGE_BYTES;
    if (before > 0)
        (void)munmap(map, before);
    if (before < HUGE_BYTES)
        (void)munmap(map + before + length, HUGE_BYTES - before);
    (void)madvise(map + before, length, MADV_HUGEPAGE); /* a kernel without them gives small ones */
    return map + before;
}

void *tensor_memory_get(size_t bytes)
{
    if (bytes >= HUGE_BYTES)
        return map_aligned(bytes);
    size_t rounded = (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    void *memory = aligned_alloc(LINE_BYTES, rounded > 0 ? rounded : LINE_BYTES);
    if (memory != NULL)
        memset(memory, 0, rounded);
    return memory;
}

void tensor_memory_put(void *memory, size_t bytes)
{
    if (memory == NULL)
        return;
    if (bytes < HUGE_BYTES)
        free(memory);
    else
        (void)munmap(memory, bytes); /* the kernel rounds up to pages */
}
