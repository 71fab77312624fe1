/* What the core's files share in containers and memory: shelves, ordered rank sets, graves, the step's arena.
 */
#include <stdarg.h>
#include <stdlib.h>

#include "server/core/state.h"

const char no_reason[] = "psd has no memory for the reason";

/* ------------------------------------------------------------------------------------------------ shelves */

/* Every shelved struct has its id first. */
static uint32_t id_of(const void *item)
{
    uint32_t id;
    memcpy(&id, item, sizeof(id));
    return id;
}

/* The first place whose id is not below `id`. */
static size_t shelf_place(const shelf *s, uint32_t id)
{
    size_t low = 0;
    size_t high = s->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (id_of(s->items[middle]) < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool shelf_add(shelf *s, void *item)
{
    if (s->count == s->capacity) {
        size_t capacity = s->capacity == 0 ? 8 : s->capacity * 2;
        void **items = realloc(s->items, capacity * sizeof(*items));
        if (items == NULL)
            return false;
        s->items = items;
        s->capacity = capacity;
    }
    s->items[s->count++] = item;
    return true;
}

void *shelf_find(const shelf *s, uint32_t id)
{
    size_t at = shelf_place(s, id);
    return at < s->count && id_of(s->items[at]) == id ? s->items[at] : NULL;
}

void shelf_remove(shelf *s, uint32_t id)
{
    size_t at = shelf_place(s, id);
    if (at == s->count || id_of(s->items[at]) != id)
        return;
    s->count--;
    memmove(&s->items[at], &s->items[at + 1], (s->count - at) * sizeof(*s->items));
}

/* ---------------------------------------------------------------------------------------------- rank sets */

int64_t ranks_find(const uint32_t *members, const uint32_t *order, uint32_t count, uint32_t world_rank)
{
    if (members == NULL)
        return world_rank < count ? (int64_t)world_rank : -1;
    uint32_t low = 0;
    uint32_t high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint32_t at = order == NULL ? middle : order[middle];
        if (members[at] < world_rank)
            low = middle + 1;
        else if (members[at] > world_rank)
            high = middle;
        else
            return at;
    }
    return -1;
}

typedef struct placed {
    uint32_t rank;
    uint32_t at;
} placed;

static int by_rank(const void *a, const void *b)
{
    uint32_t x = ((const placed *)a)->rank;
    uint32_t y = ((const placed *)b)->rank;
    return (x > y) - (x < y);
}

static bool ascends(const uint32_t *members, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (members[i - 1] >= members[i])
            return false;
    return true;
}

bool ranks_order(psd_core *core, const uint32_t *members, uint32_t count, uint32_t **order, int64_t *twice)
{
    *order = NULL;
    if (members == NULL || ascends(members, count))
        return true;
    bool good = false;
    uint32_t *sorted = NULL;
    placed *all = core_calloc(core, count, sizeof(*all));
    if (all == NULL)
        return false;
    for (uint32_t i = 0; i < count; i++)
        all[i] = (placed){members[i], i};
    qsort(all, count, sizeof(*all), by_rank);
    for (uint32_t i = 1; i < count; i++)
        if (all[i - 1].rank == all[i].rank) {
            *twice = all[i].rank;
            goto free_all;
        }
    sorted = core_calloc(core, count, sizeof(*sorted));
    if (sorted == NULL)
        goto free_all;
    for (uint32_t i = 0; i < count; i++)
        sorted[i] = all[i].at;
    *order = sorted;
    good = true;
free_all:
    free(all);
    return good;
}

void ranks_text(const uint32_t *members, uint32_t count, char *out, size_t out_bytes)
{
    out[0] = 0;
    uint32_t i = 0;
    while (i < count) {
        uint32_t last = i;
        if (members == NULL)
            last = count - 1;
        while (last + 1 < count && ranks_at(members, last + 1) == ranks_at(members, last) + 1)
            last++;
        if (strlen(out) + 32 > out_bytes) {
            psd_append(out, out_bytes, ",...");
            return;
        }
        psd_append(out, out_bytes, "%s%u", i == 0 ? "" : ",", ranks_at(members, i));
        if (last > i)
            psd_append(out, out_bytes, "-%u", ranks_at(members, last));
        i = last + 1;
    }
}

/* ----------------------------------------------------------------------------------------- memory, graves */

void *core_calloc(psd_core *core, size_t count, size_t bytes)
{
    void *memory = calloc(count == 0 ? 1 : count, bytes);
    if (memory == NULL)
        core->oom = true;
    return memory;
}

void *core_copy(psd_core *core, const void *from, size_t count, size_t bytes)
{
    void *memory = core_calloc(core, count, bytes);
    if (memory != NULL && count > 0)
        memcpy(memory, from, count * bytes);
    return memory;
}

char *core_strdup(psd_core *core, const char *text)
{
    return core_copy(core, text, strlen(text) + 1, 1);
}

/* Without memory for the grave the object leaks; the core is then of no further use and is freed as a whole,
 * except for it. */
void bury(psd_core *core, void *object, bury_free free_object)
{
    if (object == NULL)
        return;
    if (core->grave_count == core->grave_capacity) {
        size_t capacity = core->grave_capacity == 0 ? 16 : core->grave_capacity * 2;
        grave *graves = realloc(core->graves, capacity * sizeof(*graves));
        if (graves == NULL) {
            core->oom = true;
            return;
        }
        core->graves = graves;
        core->grave_capacity = capacity;
    }
    core->graves[core->grave_count++] = (grave){object, free_object};
}

void graves_empty(psd_core *core)
{
    for (size_t i = 0; i < core->grave_count; i++)
        core->graves[i].free_object(core->graves[i].object);
    core->grave_count = 0;
}

/* -------------------------------------------------------------------------------------------------- arena */

void *arena_take(psd_core *core, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    arena_block *block = core->arena;
    if (block == NULL || block->capacity - block->used < bytes) {
        size_t capacity = bytes > 32768 ? bytes : 32768;
        block = malloc(sizeof(*block) + capacity);
        if (block == NULL) {
            core->oom = true;
            return NULL;
        }
        *block = (arena_block){.next = core->arena, .capacity = capacity};
        core->arena = block;
    }
    void *memory = block->data + block->used;
    block->used += bytes;
    return memory;
}

/* Always a text, if only "". */
char *arena_text(psd_core *core, const char *format, ...)
{
    static char empty[1];
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    int bytes = vsnprintf(NULL, 0, format, args);
    char *text = bytes < 0 ? NULL : arena_take(core, (size_t)bytes + 1);
    if (text != NULL)
        (void)vsnprintf(text, (size_t)bytes + 1, format, again);
    va_end(again);
    va_end(args);
    return text == NULL ? empty : text;
}

void arena_empty(psd_core *core, bool all)
{
    while (core->arena != NULL && (all || core->arena->next != NULL)) {
        arena_block *next = core->arena->next;
        free(core->arena);
        core->arena = next;
    }
    if (core->arena != NULL)
        core->arena->used = 0;
}
