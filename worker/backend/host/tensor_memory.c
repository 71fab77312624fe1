/* Memory for tensors: in the arena, where peers of this host reach it; without one, in huge pages where they fit,
 * which process_vm_readv gains from: fewer pages to pin. */
#include "worker/backend/host/tensor_memory.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct mapping {
    list node;
    void *data;
    size_t bytes;
} mapping;

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

void tensor_memory_init(tensor_memory *m, arena *shared)
{
    m->shared = shared;
    char setting[64] = "[never]";
    list_init(&m->mappings);
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    if (file != NULL) {
        if (fgets(setting, sizeof setting, file) == NULL)
            setting[0] = '\0';
        fclose(file);
    }
    m->has_huge_pages = file != NULL && strstr(setting, "[never]") == NULL;
}

static void *get_huge(tensor_memory *m, size_t bytes)
{
    mapping *new = malloc(sizeof *new);
    if (new == NULL)
        return NULL;
    new->data = map_aligned(bytes);
    if (new->data == NULL) {
        free(new);
        return NULL;
    }
    new->bytes = bytes;
    list_append(&m->mappings, &new->node);
    return new->data;
}

static mapping *find(const tensor_memory *m, const void *data)
{
    for (const list *node = m->mappings.next; node != &m->mappings; node = node->next) {
        mapping *found = LIST_ENTRY(node, mapping, node);
        if ((uintptr_t)data - (uintptr_t)found->data < found->bytes)
            return found;
    }
    return NULL;
}

void *tensor_memory_get(tensor_memory *m, size_t bytes)
{
    void *memory = bytes >= ARENA_BLOCK_MIN ? arena_get(m->shared, bytes) : NULL;
    if (memory != NULL)
        return memory;
    if (bytes >= HUGE_BYTES)
        return get_huge(m, bytes);
    size_t rounded = (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    memory = aligned_alloc(LINE_BYTES, rounded > 0 ? rounded : LINE_BYTES);
    if (memory != NULL)
        memset(memory, 0, rounded);
    return memory;
}

void tensor_memory_put(tensor_memory *m, void *memory, size_t bytes)
{
    if (memory != NULL && arena_put(m->shared, memory))
        return;
    mapping *found = bytes >= HUGE_BYTES ? find(m, memory) : NULL;
    if (found == NULL) {
        free(memory);
        return;
    }
    (void)munmap(memory, bytes); /* the kernel rounds up to pages */
    list_remove(&found->node);
    free(found);
}

bool tensor_memory_is_huge(const tensor_memory *m, const void *data, size_t bytes)
{
    const mapping *found = m->has_huge_pages ? find(m, data) : NULL;
    return found != NULL && bytes <= found->bytes - ((uintptr_t)data - (uintptr_t)found->data);
}
