#include "worker/backend/host/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "worker/backend/host/segment.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define HUGE_BYTES  ((uint64_t)2 << 20)
#define MOST_BYTES  ((uint64_t)256 << 30) /* so that hundreds of peers' fit an address space */
#define LEAST_BYTES ((uint64_t)16 << 20)
#define SEALS       (F_SEAL_SHRINK | F_SEAL_GROW)

static uint64_t page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* -------------------------------------------------------------------------------------------- open, close */

/* Twice the memory: places stay free for large blocks also when many small ones lie about. */
static uint64_t choose_bytes(void)
{
    struct rlimit limit;
    long pages = sysconf(_SC_PHYS_PAGES);
    uint64_t bytes = pages > 0 ? 2 * (uint64_t)pages * page_bytes() : MOST_BYTES;
    bytes = bytes < MOST_BYTES ? bytes : MOST_BYTES;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes)
        bytes = limit.rlim_cur;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        bytes = 0; /* each peer's would count too */
    return bytes / HUGE_BYTES * HUGE_BYTES;
}

/* At a multiple of huge pages, without which there are none. */
static void *map_aligned(int fd, uint64_t bytes)
{
    unsigned char *room =
        mmap(NULL, bytes + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return NULL;
    uint64_t before = (HUGE_BYTES - (uintptr_t)room % HUGE_BYTES) % HUGE_BYTES;
    unsigned char *base = room + before;
    void *map = mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
    int error = errno;
    if (map == MAP_FAILED) {
        (void)munmap(room, bytes + HUGE_BYTES);
        errno = error;
        return NULL;
    }
    if (before > 0)
        (void)munmap(room, before);
    (void)munmap(base + bytes, HUGE_BYTES - before);
    return base;
}

psd_status arena_open(arena *a, char *why, size_t why_bytes)
{
    psd_status status = PSD_ERR_LIMIT;
    uint64_t bytes = choose_bytes();
    memset(a, 0, sizeof *a);
    a->fd = -1;
    if (bytes < LEAST_BYTES) {
        snprintf(why, why_bytes, "limits on file size or address space (ulimit -f, -v) leave no room for it");
        goto none;
    }
    status = PSD_ERR_IO;
    int fd = memfd_create("psd-tensors", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        snprintf(why, why_bytes, "cannot make a memfd: %s", strerror(errno));
        goto none;
    }
    if (ftruncate(fd, (off_t)bytes) != 0 || fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
        snprintf(why, why_bytes, "cannot size and seal a memfd: %s", strerror(errno));
        goto fd;
    }
    void *base = map_aligned(fd, bytes);
    if (base == NULL) {
        snprintf(why, why_bytes, "cannot map it: %s", strerror(errno));
        goto fd;
    }
    a->fd = fd;
    a->base = base;
    a->bytes = bytes;
    a->pid = getpid();
    return PSD_OK;
fd:
    close(fd);
none:
    return status;
}

void arena_close(arena *a)
{
    if (a->base == NULL)
        return;
    (void)munmap(a->base, a->bytes);
    close(a->fd);
    free(a->blocks);
    free(a->ranges);
    memset(a, 0, sizeof *a);
    a->fd = -1;
}

/* ------------------------------------------------------------------------------------------------- blocks */

/* The memory itself, or an error instead of the signal that touching it would raise. Huge pages only where they are
 * full: the rest of one would be lost. */
static bool populate(const arena *a, uint64_t place, uint64_t bytes)
{
    unsigned char *at = a->base + place;
    uint64_t huge = bytes / HUGE_BYTES * HUGE_BYTES;
    if (huge > 0)
        (void)madvise(at, huge, MADV_HUGEPAGE); /* a kernel without them gives small ones */
    if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0)
        return true;
    return errno == EINVAL && posix_fallocate(a->fd, (off_t)place, (off_t)bytes) == 0;
}

static void give_back(const arena *a, uint64_t place, uint64_t bytes)
{
    uint64_t huge = bytes / HUGE_BYTES * HUGE_BYTES;
    (void)fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)place, (off_t)bytes);
    if (huge > 0)
        (void)madvise(a->base + place, huge, MADV_NOHUGEPAGE);
}

/* The first gap that is large enough, before the block at *index. */
static bool find_gap(const arena *a, uint64_t bytes, uint64_t *place, size_t *index)
{
    uint64_t unit = bytes >= HUGE_BYTES ? HUGE_BYTES : page_bytes();
    uint64_t from = 0;
    for (size_t i = 0; i <= a->count; i++) {
        uint64_t end = i == a->count ? a->bytes : a->blocks[i].place;
        if (from <= end && end - from >= bytes) {
            *place = from;
            *index = i;
            return true;
        }
        if (i < a->count)
            from = round_up(a->blocks[i].place + a->blocks[i].bytes, unit);
    }
    return false;
}

static bool make_room(arena *a)
{
    if (a->count < a->capacity)
        return true;
    size_t capacity = a->capacity == 0 ? 16 : 2 * a->capacity;
    arena_block *grown = realloc(a->blocks, capacity * sizeof *grown);
    if (grown == NULL)
        return false;
    a->blocks = grown;
    a->capacity = capacity;
    return true;
}

void *arena_get(arena *a, size_t bytes)
{
    uint64_t place;
    size_t index;
    if (a->base == NULL || bytes == 0 || bytes > a->bytes)
        return NULL;
    arena_block new = {.bytes = round_up(bytes, page_bytes())};
    if (!make_room(a) || !find_gap(a, new.bytes, &place, &index))
        return NULL;
    if (!populate(a, place, new.bytes)) {
        give_back(a, place, new.bytes);
        return NULL;
    }
    new.place = place;
    memmove(a->blocks + index + 1, a->blocks + index, (a->count - index) * sizeof new);
    a->blocks[index] = new;
    a->count++;
    return a->base + place;
}

/* The block that these bytes begin in; NULL if there is none. */
static arena_block *find(const arena *a, const void *data)
{
    uint64_t place = (uint64_t)((uintptr_t)data - (uintptr_t)a->base);
    size_t low = 0, high = a->count;
    if (a->base == NULL || place >= a->bytes)
        return NULL;
    while (low < high) { /* the first block that ends after it */
        size_t middle = (low + high) / 2;
        if (a->blocks[middle].place + a->blocks[middle].bytes <= place)
            low = middle + 1;
        else
            high = middle;
    }
    return low < a->count && a->blocks[low].place <= place ? &a->blocks[low] : NULL;
}

bool arena_put(arena *a, void *memory)
{
    arena_block *b = find(a, memory);
    if (b == NULL)
        return false;
    if (a->pid != getpid())
        return true;
    give_back(a, b->place, b->bytes);
    if (b->is_detached) { /* somebody may still write to the place */
        (void)mmap(a->base + b->place, b->bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        return true;
    }
    a->count--;
    memmove(b, b + 1, (size_t)(a->blocks + a->count - b) * sizeof *b);
    return true;
}

bool arena_place(const arena *a, const void *data, uint64_t bytes, uint64_t *place)
{
    const arena_block *b = find(a, data);
    if (b == NULL || b->is_detached)
        return false;
    uint64_t at = (uint64_t)((uintptr_t)data - (uintptr_t)a->base);
    if (bytes > b->bytes - (at - b->place))
        return false;
    *place = at;
    return true;
}

/* Where the detached range that holds this place ends; else `place` itself, and *until is where the next one begins. */
static uint64_t end_of_detached(const arena *a, uint64_t place, uint64_t *until)
{
    for (size_t i = 0; i < a->range_count; i++) {
        const arena_range *r = &a->ranges[i];
        if (r->from <= place && place < r->end)
            return r->end;
        if (place < r->from && r->from < *until)
            *until = r->from;
    }
    return place;
}

/* Each page becomes a private copy when it is written to: done by the kernel, it loses nothing that other threads write
 * beside it meanwhile. False: there are too many mappings, or no memory. */
static bool make_private(const arena *a, uint64_t from, uint64_t end)
{
    unsigned char *at = a->base + from;
    void *map = mmap(at, end - from, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, a->fd, (off_t)from);
    if (map == MAP_FAILED)
        return false;
    if (madvise(at, end - from, MADV_POPULATE_WRITE) == 0 || errno != EINVAL)
        return true;
    for (uint64_t i = 0; i < end - from; i += page_bytes())
        (void)__atomic_fetch_or(at + i, 0, __ATOMIC_RELAXED); /* a kernel before 5.14 */
    return true;
}

static bool remember_range(arena *a, uint64_t from, uint64_t end)
{
    arena_range *grown = realloc(a->ranges, (a->range_count + 1) * sizeof *grown);
    if (grown == NULL)
        return false;
    grown[a->range_count] = (arena_range){.from = from, .end = end};
    a->ranges = grown;
    a->range_count++;
    return true;
}

void arena_detach(arena *a, const void *data, uint64_t bytes)
{
    arena_block *b = find(a, data);
    if (b == NULL || bytes == 0)
        return;
    uint64_t page = page_bytes();
    uint64_t at = (uint64_t)((uintptr_t)data - (uintptr_t)a->base);
    uint64_t from = at / page * page, end = round_up(at + bytes, page);
    b->is_detached = true; /* also without memory for it: then at least no other block comes to lie there */
    while (from < end) {   /* twice would bring the peer's pages back */
        uint64_t until = end;
        uint64_t skipped = end_of_detached(a, from, &until);
        if (skipped == from) {
            if (!remember_range(a, from, until))
                return;
            if (!make_private(a, from, until))
                a->range_count--;
            skipped = until;
        }
        from = skipped;
    }
}

bool arena_share_page(const void *data, uint64_t bytes, const void *other, uint64_t other_bytes)
{
    uint64_t page = page_bytes(), a = (uintptr_t)data, b = (uintptr_t)other;
    return bytes > 0 && other_bytes > 0 && a / page <= (b + other_bytes - 1) / page &&
           b / page <= (a + bytes - 1) / page;
}

/* ------------------------------------------------------------------------------------------------- a peer's */

psd_status peer_arena_open(peer_arena *p, int fd, uint64_t bytes, char *why, size_t why_bytes)
{
    if (bytes < LEAST_BYTES || bytes > MOST_BYTES || bytes % HUGE_BYTES != 0) {
        snprintf(why, why_bytes, "the peer offers tensor memory of %llu bytes", (unsigned long long)bytes);
        return PSD_ERR_FORMAT;
    }
    psd_status status = segment_check(fd, bytes, why, why_bytes);
    if (status != PSD_OK)
        return status;
    void *base = map_aligned(fd, bytes);
    if (base == NULL) {
        snprintf(why, why_bytes, "cannot map the peer's tensor memory: %s", strerror(errno));
        return PSD_ERR_NOMEM;
    }
    (void)madvise(base, bytes, MADV_DONTDUMP); /* the peer's own dump has it */
    p->base = base;
    p->bytes = bytes;
    return PSD_OK;
}

void peer_arena_close(peer_arena *p)
{
    if (p->base != NULL)
        (void)munmap(p->base, p->bytes);
    p->base = NULL;
    p->bytes = 0;
}
