#include "worker/backend/host/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/conf.h"
#include "worker/backend/host/memory_limit.h"

#define SEALS     (F_SEAL_SHRINK | F_SEAL_GROW)
#define ROOM_NS   PSD_NS_PER_S
#define ROOM_PART 64 /* of what is free may be taken unasked: as many processes may do the same */

static void explain_no_room(uint64_t need, int64_t have, const char *what, const char *cure, char *why,
                            size_t why_bytes)
{
    char need_text[32];
    char have_text[32];
    snprintf(why, why_bytes, "no room for shared memory: need %s, have %s %s; %s",
             psd_format_bytes((int64_t)need, need_text, sizeof need_text),
             psd_format_bytes(have, have_text, sizeof have_text), what, cure);
}

static int64_t look_for_room(segment_room *room)
{
    psd_time_ns now = psd_now_ns();
    if (now >= room->until || room->have <= room->ask_at) {
        room->have = memory_available();
        room->ask_at = room->have - room->have / ROOM_PART;
        room->until = now + ROOM_NS;
    }
    return room->have;
}

/* Going over a memory limit gets the process killed and going over RLIMIT_FSIZE gets it a signal: so look
 * first. */
static psd_status check_room(segment_room *room, uint64_t bytes, char *why, size_t why_bytes)
{
    struct rlimit file_size;
    int64_t have = look_for_room(room);
    if (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur < bytes) {
        explain_no_room(bytes, (int64_t)file_size.rlim_cur, "by the limit on file size",
                        "raise it (ulimit -f) or make rings smaller (PSD_HOST_RING)", why, why_bytes);
        return PSD_ERR_NOMEM;
    }
    if (have >= 0 && (uint64_t)have < bytes) {
        explain_no_room(bytes, have, "of memory free",
                        "raise the container's memory limit or make rings smaller (PSD_HOST_RING)", why,
                        why_bytes);
        return PSD_ERR_NOMEM;
    }
    return PSD_OK;
}

psd_status segment_create(segment_room *known, const char *name, uint64_t bytes, int *out, char *why,
                          size_t why_bytes)
{
    segment_room fresh = {0};
    segment_room *room = known ? known : &fresh;
    psd_status status = check_room(room, bytes, why, why_bytes);
    int error;
    int fd;
    if (status != PSD_OK)
        goto none;
    status = PSD_ERR_IO;
    fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        snprintf(why, why_bytes, "cannot make a memfd: %s", strerror(errno));
        goto none;
    }
    do
        error = posix_fallocate(fd, 0, (off_t)bytes);
    while (error == EINTR);
    if (error != 0) {
        status = PSD_ERR_NOMEM;
        char cure[160];
        snprintf(cure, sizeof cure,
                 "the kernel says: %s; raise the memory limit or make rings smaller (PSD_HOST_RING)",
                 strerror(error));
        explain_no_room(bytes, memory_available(), "of memory free", cure, why, why_bytes);
        goto fd;
    }
    if (fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
        snprintf(why, why_bytes, "cannot seal a memfd: %s", strerror(errno));
        goto fd;
    }
    if (room->have >= 0)
        room->have -= (int64_t)bytes;
    *out = fd;
    return PSD_OK;
fd:
    close(fd);
none:
    return status;
}

psd_status segment_check(int fd, uint64_t bytes, char *why, size_t why_bytes)
{
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS) {
        snprintf(why, why_bytes, "the peer's shared memory is not a memfd sealed against shrinking");
        return PSD_ERR_FORMAT;
    }
    if (fstat(fd, &info) != 0 || info.st_size < 0 || (uint64_t)info.st_size != bytes) {
        snprintf(why, why_bytes, "the peer's shared memory is not of the size it says");
        return PSD_ERR_FORMAT;
    }
    return PSD_OK;
}

psd_status segment_map(int fd, uint64_t bytes, void **out, char *why, size_t why_bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (memory == MAP_FAILED) {
        snprintf(why, why_bytes, "cannot map shared memory of %llu bytes: %s", (unsigned long long)bytes,
                 strerror(errno));
        return PSD_ERR_NOMEM;
    }
    *out = memory;
    return PSD_OK;
}

void segment_unmap(void *memory, uint64_t bytes)
{
    munmap(memory, bytes);
}
