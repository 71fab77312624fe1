#include "nc_segment.h"
#include "settings.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PREFIX "psd-gpusim-"

/* Unlinks what no living process holds. */
static void reclaim(const char *dir)
{
    DIR *list = opendir(dir);
    struct dirent *entry;
    if (list == NULL)
        return;
    while ((entry = readdir(list)) != NULL) {
        if (strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) != 0)
            continue;
        int fd = openat(dirfd(list), entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(dirfd(list), entry->d_name, 0);
        close(fd);
    }
    closedir(list);
}

/* Opens or creates; with the shared lock, and not a file that was just reclaimed. */
static int open_locked(const char *path)
{
    for (;;) {
        struct stat st;
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return -1;
        if (flock(fd, LOCK_SH) == 0 && fstat(fd, &st) == 0 && st.st_nlink > 0)
            return fd;
        close(fd);
    }
}

static size_t round_page(size_t bytes)
{
    return (bytes + 4095) & ~(size_t)4095;
}

static size_t lay_out(segment *seg)
{
    size_t n = (size_t)seg->ranks, at = 64;
    unsigned char *base = seg->base;
    seg->header = seg->base;
    seg->rank_at = (seg_rank *)(void *)(base + at);
    at += n * sizeof(seg_rank);
    seg->pair = (_Atomic uint32_t *)(void *)(base + at);
    at = (at + n * n * sizeof *seg->pair + 63) & ~(size_t)63;
    seg->channels = (seg_channel *)(void *)(base + at);
    at = round_page(at + (n * n + n) * sizeof(seg_channel));
    seg->data = base + at;
    return at + (n * n + n) * seg->slots * SEG_STEP;
}

/* Agrees with the other ranks on the sizes: the first one decides. */
static const char *agree(segment *seg)
{
    uint32_t ranks = 0, slots = 0;
    size_t buffered = (settings_get()->buffer_bytes + SEG_STEP - 1) / SEG_STEP;
    uint32_t mine = buffered > SEG_SLOTS ? (uint32_t)buffered : SEG_SLOTS;
    if (ftruncate(seg->fd, 4096) != 0)
        return "cannot grow shared memory";
    seg_header *header = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, seg->fd, 0);
    if (header == MAP_FAILED)
        return "cannot map shared memory";
    if (atomic_compare_exchange_strong(&header->ranks, &ranks, (uint32_t)seg->ranks))
        ranks = (uint32_t)seg->ranks;
    seg->slots = atomic_compare_exchange_strong(&header->slots, &slots, mine) ? mine : slots;
    munmap(header, 4096);
    return ranks == (uint32_t)seg->ranks ? NULL : "mismatch in rank count";
}

static const char *map(segment *seg)
{
    struct stat st;
    size_t bytes = lay_out(seg);
    if (fstat(seg->fd, &st) != 0 || ((size_t)st.st_size < bytes && ftruncate(seg->fd, (off_t)bytes) != 0))
        return "cannot grow shared memory";
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, seg->fd, 0);
    if (base == MAP_FAILED)
        return "cannot map shared memory";
    seg->base = base;
    seg->bytes = bytes;
    lay_out(seg);
    return NULL;
}

const char *seg_open(segment *seg, const uint8_t id[SEG_ID_BYTES], int rank, int ranks)
{
    const char *dir = settings_get()->dir;
    char hex[2 * SEG_ID_BYTES + 1];
    for (int i = 0; i < SEG_ID_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", id[i]);
    memset(seg, 0, sizeof *seg);
    seg->rank = rank;
    seg->ranks = ranks;
    seg->slots = SEG_SLOTS;
    if ((size_t)snprintf(seg->path, sizeof seg->path, "%s/" PREFIX "%s", dir, hex) >= sizeof seg->path)
        return "PSD_GPUSIM_DIR is too long";
    reclaim(dir);
    seg->fd = open_locked(seg->path);
    if (seg->fd < 0)
        return "cannot create shared memory in PSD_GPUSIM_DIR (default /dev/shm)";
    const char *wrong = agree(seg);
    if (wrong == NULL)
        wrong = map(seg);
    if (wrong != NULL)
        seg_close(seg);
    return wrong;
}

void seg_unlink(segment *seg)
{
    unlink(seg->path);
}

void seg_abandon(segment *seg)
{
    struct stat st;
    if (fstat(seg->fd, &st) == 0 && st.st_nlink > 0 && flock(seg->fd, LOCK_EX | LOCK_NB) == 0)
        unlink(seg->path);
}

void seg_close(segment *seg)
{
    if (seg->fd < 0)
        return;
    if (seg->base != NULL)
        munmap(seg->base, seg->bytes);
    seg_abandon(seg);
    close(seg->fd);
    seg->fd = -1;
    seg->base = NULL;
}

/* ---- bells */

static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

uint32_t seg_bell(segment *seg)
{
    return atomic_load(&seg->rank_at[seg->rank].bell);
}

void seg_ring(segment *seg, int rank)
{
    seg_rank *r = &seg->rank_at[rank];
    atomic_fetch_add(&r->bell, 1);
    if (atomic_load(&r->sleepers) > 0)
        futex(&r->bell, FUTEX_WAKE, INT_MAX, NULL);
}

void seg_ring_all(segment *seg)
{
    for (int i = 0; i < seg->ranks; i++)
        seg_ring(seg, i);
}

void seg_sleep(segment *seg, uint32_t seen)
{
    const struct timespec limit = {.tv_nsec = 200 * 1000 * 1000};
    seg_rank *r = &seg->rank_at[seg->rank];
    atomic_fetch_add(&r->sleepers, 1);
    futex(&r->bell, FUTEX_WAIT, seen, &limit);
    atomic_fetch_sub(&r->sleepers, 1);
}

/* ---- channels */

seg_channel *seg_pair_channel(segment *seg, int from, int to)
{
    return &seg->channels[(size_t)from * (size_t)seg->ranks + (size_t)to];
}

seg_channel *seg_ring_channel(segment *seg, int from)
{
    return &seg->channels[(size_t)seg->ranks * (size_t)seg->ranks + (size_t)from];
}

unsigned char *seg_slot(segment *seg, const seg_channel *channel, uint64_t step)
{
    size_t index = (size_t)(channel - seg->channels);
    return seg->data + (index * seg->slots + (size_t)(step % seg->slots)) * SEG_STEP;
}
