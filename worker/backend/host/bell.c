#include "worker/backend/host/bell.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "worker/backend/host/segment.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

static void ring(int event_fd)
{
    uint64_t one = 1;
    ssize_t written;
    do
        written = write(event_fd, &one, sizeof one);
    while (written < 0 && errno == EINTR);
    /* EAGAIN: the counter is at its limit, so the sleeper wakes anyway. */
}

/* A page that peers can map for reading but not for writing. */
static psd_status open_shared_page(bell *b, char *why, size_t why_bytes)
{
    psd_status status = segment_create(NULL, "psd-bell", BELL_PAGE_BYTES, &b->page_fd, why, why_bytes);
    if (status != PSD_OK)
        return status;
    void *page = mmap(NULL, BELL_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, b->page_fd, 0);
    if (page == MAP_FAILED) {
        snprintf(why, why_bytes, "cannot map a page for the bell: %s", strerror(errno));
        close(b->page_fd);
        return PSD_ERR_NOMEM;
    }
    b->page = page;
    /* From now on nobody else can map it for writing. Kernels before 5.1 do not know the seal: then a peer of
     * the same job that means harm could keep us asleep, but no more. */
    (void)fcntl(b->page_fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
    return PSD_OK;
}

static psd_status open_private_page(bell *b, char *why, size_t why_bytes)
{
    void *page = mmap(NULL, BELL_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        snprintf(why, why_bytes, "cannot map a page for the bell: %s", strerror(errno));
        return PSD_ERR_NOMEM;
    }
    b->page_fd = -1;
    b->page = page;
    return PSD_OK;
}

/* Other threads' fences, made by who is about to sleep: see bell.h. Old kernels and some sandboxes have none. */
static bool take_part_in_fences(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

static bool fence_everywhere(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0;
}

psd_status bell_open(bell *b, bool shared, char *why, size_t why_bytes)
{
    memset(b, 0, sizeof *b);
    b->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->event_fd < 0) {
        snprintf(why, why_bytes, "cannot make an eventfd: %s", strerror(errno));
        return PSD_ERR_IO;
    }
    psd_status status = shared ? open_shared_page(b, why, why_bytes) : open_private_page(b, why, why_bytes);
    if (status != PSD_OK) {
        close(b->event_fd);
        return status;
    }
    b->fences = take_part_in_fences() && fence_everywhere();
    atomic_store_explicit(&b->page->fences, b->fences ? 1 : 0, memory_order_release);
    return PSD_OK;
}

void bell_close(bell *b)
{
    munmap(b->page, BELL_PAGE_BYTES);
    if (b->page_fd >= 0)
        close(b->page_fd);
    close(b->event_fd);
}

void bell_arm(bell *b)
{
    if (b->sleepers++ == 0) {
        b->number = b->number == UINT32_MAX ? 1 : b->number + 1;
        atomic_store_explicit(&b->page->armed, b->number, memory_order_relaxed);
    }
    atomic_thread_fence(memory_order_seq_cst);
    if (b->fences)
        (void)fence_everywhere(); /* it worked once */
}

void bell_silence(bell *b)
{
    uint64_t count;
    if (b->sleepers > 0)
        return;
    if (read(b->event_fd, &count, sizeof count) < 0 && errno != EAGAIN && errno != EINTR)
        return; /* an eventfd has no other errors; a wake-up too many at worst */
}

void bell_disarm(bell *b)
{
    if (--b->sleepers > 0)
        return;
    atomic_store_explicit(&b->page->armed, 0, memory_order_relaxed);
    bell_silence(b);
}

void bell_wake(bell *b)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&b->page->armed, memory_order_relaxed) != 0)
        ring(b->event_fd);
}

/* Writing to anything but an eventfd might block, or kill us by a signal. */
static bool is_eventfd(int fd)
{
    char path[32];
    char target[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0)
        return false;
    target[length] = '\0';
    int flags = fcntl(fd, F_GETFL);
    return strcmp(target, "anon_inode:[eventfd]") == 0 && flags >= 0 && (flags & O_NONBLOCK);
}

psd_status peer_bell_open(peer_bell *b, const bell *mine, int page_fd, int event_fd, char *why,
                          size_t why_bytes)
{
    psd_status status = segment_check(page_fd, BELL_PAGE_BYTES, why, why_bytes);
    if (status != PSD_OK)
        return status;
    if (!is_eventfd(event_fd)) {
        snprintf(why, why_bytes, "the peer's bell is not a non-blocking eventfd, or /proc is not mounted");
        return PSD_ERR_FORMAT;
    }
    void *page = mmap(NULL, BELL_PAGE_BYTES, PROT_READ, MAP_SHARED, page_fd, 0);
    if (page == MAP_FAILED) {
        snprintf(why, why_bytes, "cannot map the peer's bell: %s", strerror(errno));
        return PSD_ERR_NOMEM;
    }
    close(page_fd);
    b->page = page;
    b->event_fd = event_fd;
    b->rung = 0;
    b->fences = mine->fences && atomic_load_explicit(&b->page->fences, memory_order_acquire) == 1;
    return PSD_OK;
}

void peer_bell_close(peer_bell *b)
{
    munmap((void *)(uintptr_t)b->page, BELL_PAGE_BYTES);
    close(b->event_fd);
}

void peer_bell_fence(const peer_bell *b)
{
    if (b->fences)
        atomic_signal_fence(memory_order_seq_cst);
    else
        atomic_thread_fence(memory_order_seq_cst);
}

void peer_bell_ring(peer_bell *b)
{
    uint32_t armed = atomic_load_explicit(&b->page->armed, memory_order_relaxed);
    if (armed == 0 || armed == b->rung)
        return;
    b->rung = armed;
    ring(b->event_fd);
}
