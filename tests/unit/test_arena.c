/* Memory that peers map: blocks, their places, what becomes of freed and of detached ones, and what peers may send. */
#include "tests/lib/psd_test.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker/backend/host/arena.h"

#define MIB ((size_t)1 << 20)

static char why[160];

static bool is_all(const unsigned char *data, size_t bytes, unsigned char value)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != value)
            return false;
    }
    return true;
}

static int64_t used_bytes(const arena *a)
{
    struct stat info;
    cr_assert_eq(fstat(a->fd, &info), 0);
    return (int64_t)info.st_blocks * 512;
}

PSD_TEST(arena, blocks_are_zeroed_apart_and_given_back)
{
    arena a;
    uint64_t place, other;
    cr_assert_eq(arena_open(&a, why, sizeof why), PSD_OK, "%s", why);
    cr_assert_eq(used_bytes(&a), 0);
    unsigned char *first = arena_get(&a, 100000), *second = arena_get(&a, 5 * MIB + 1);
    cr_assert(first != NULL && second != NULL);
    cr_assert_eq((uintptr_t)second % (2 * MIB), 0, "not at a huge page");
    cr_assert(is_all(first, 100000, 0) && is_all(second, 5 * MIB + 1, 0));
    cr_assert(arena_place(&a, first, 100000, &place) && arena_place(&a, second, 5 * MIB + 1, &other));
    cr_assert(place + 100000 <= other || other + 5 * MIB + 1 <= place);
    int64_t used = used_bytes(&a);
    cr_assert(used >= 5 * (int64_t)MIB && used < 6 * (int64_t)MIB, "%lld bytes", (long long)used);
    memset(first, 1, 100000);
    memset(second, 2, 5 * MIB + 1);
    cr_assert(arena_put(&a, second));
    cr_assert_lt(used_bytes(&a), (int64_t)MIB);
    unsigned char *third = arena_get(&a, 2 * MIB);
    cr_assert_eq(third, second, "a place that is free is used again");
    cr_assert(is_all(third, 2 * MIB, 0));
    cr_assert(is_all(first, 100000, 1));
    cr_assert(arena_put(&a, third));
    cr_assert(arena_put(&a, first));
    cr_assert_eq(used_bytes(&a), 0);
    arena_close(&a);
}

PSD_TEST(arena, many_blocks_in_any_order)
{
    enum { BLOCKS = 60 };
    unsigned char *blocks[BLOCKS] = {NULL};
    arena a;
    uint64_t state = 88172645463325252u;
    cr_assert_eq(arena_open(&a, why, sizeof why), PSD_OK, "%s", why);
    for (int turn = 0; turn < 600; turn++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        int i = (int)(state >> 33) % BLOCKS;
        size_t bytes = 1000 + 3000 * (size_t)i;
        uint64_t place;
        if (blocks[i] != NULL) {
            cr_assert(is_all(blocks[i], bytes, (unsigned char)(i + 1)), "block %d was written to", i);
            cr_assert(arena_put(&a, blocks[i]));
            blocks[i] = NULL;
            continue;
        }
        blocks[i] = arena_get(&a, bytes);
        cr_assert_not_null(blocks[i]);
        cr_assert(arena_place(&a, blocks[i] + bytes - 1, 1, &place));
        memset(blocks[i], i + 1, bytes);
    }
    arena_close(&a);
}

PSD_TEST(arena, only_whole_blocks_have_places)
{
    arena a;
    uint64_t place;
    unsigned char own[64];
    cr_assert_eq(arena_open(&a, why, sizeof why), PSD_OK, "%s", why);
    unsigned char *block = arena_get(&a, 65536);
    cr_assert(arena_place(&a, block + 100, 65436, &place));
    cr_assert_eq(place, (uint64_t)(block + 100 - a.base));
    cr_assert_not(arena_place(&a, block + 100, 65437, &place));
    cr_assert_not(arena_place(&a, block, UINT64_MAX, &place));
    cr_assert_not(arena_place(&a, block + 65536, 1, &place));
    cr_assert_not(arena_place(&a, own, sizeof own, &place));
    cr_assert_not(arena_place(&a, NULL, 0, &place));
    cr_assert_not(arena_put(&a, own));
    cr_assert_null(arena_get(&a, SIZE_MAX));
    cr_assert_null(arena_get(&a, a.bytes + 1));
    cr_assert(arena_put(&a, block));
    cr_assert_not(arena_place(&a, block, 1, &place));
    arena_close(&a);
}

PSD_TEST(arena, a_peer_sees_it_and_not_what_is_detached)
{
    arena a;
    peer_arena p = {NULL, 0};
    uint64_t place;
    cr_assert_eq(arena_open(&a, why, sizeof why), PSD_OK, "%s", why);
    unsigned char *block = arena_get(&a, 65536);
    cr_assert_eq(peer_arena_open(&p, a.fd, a.bytes, why, sizeof why), PSD_OK, "%s", why);
    cr_assert(arena_place(&a, block, 65536, &place));
    unsigned char *theirs = peer_arena_at(&p, place, 65536);
    cr_assert(theirs != NULL && theirs != block);
    memset(block, 7, 65536);
    cr_assert(is_all(theirs, 65536, 7));
    theirs[5] = 9;
    cr_assert_eq(block[5], 9);
    cr_assert_null(peer_arena_at(&p, p.bytes, 1));
    cr_assert_null(peer_arena_at(&p, p.bytes - 1, 2));
    cr_assert_null(peer_arena_at(&p, UINT64_MAX, 1));
    cr_assert_null(peer_arena_at(&p, 4096, UINT64_MAX));
    arena_detach(&a, block + 5000, 1000);
    cr_assert_eq(block[5500], 7);
    theirs[5500] = 1; /* late */
    cr_assert_eq(block[5500], 7);
    cr_assert_not(arena_place(&a, block, 65536, &place), "peers are not told of it any more");
    cr_assert(arena_put(&a, block));
    theirs[0] = 1;
    unsigned char *next = arena_get(&a, 65536);
    cr_assert(next != NULL && next != block);
    cr_assert(is_all(next, 65536, 0));
    peer_arena_close(&p);
    arena_close(&a);
}

/* Two tensors in one page are given up one after the other, and one of them twice. */
PSD_TEST(arena, what_is_detached_stays_so)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = 16 * page;
    arena a;
    peer_arena p = {NULL, 0};
    uint64_t place;
    cr_assert_eq(arena_open(&a, why, sizeof why), PSD_OK, "%s", why);
    unsigned char *block = arena_get(&a, bytes);
    cr_assert_eq(peer_arena_open(&p, a.fd, a.bytes, why, sizeof why), PSD_OK, "%s", why);
    cr_assert(arena_place(&a, block, bytes, &place));
    unsigned char *theirs = peer_arena_at(&p, place, bytes);
    memset(block, 7, bytes);
    arena_detach(&a, block + 3 * page + 100, 2 * page);
    memset(block, 8, bytes);
    arena_detach(&a, block + 3 * page + 100, 2 * page);
    arena_detach(&a, block + 5 * page + 500, 4 * page);
    arena_detach(&a, block + page, 12 * page);
    memset(theirs, 1, bytes); /* late */
    cr_assert(is_all(block + page, 12 * page, 8));
    cr_assert(is_all(block, page, 1));
    cr_assert(is_all(block + 13 * page, bytes - 13 * page, 1));
    peer_arena_close(&p);
    arena_close(&a);
}

/* A thread that counts at the beginning of a span whose other bytes are detached. */
typedef struct counting {
    unsigned char *block;
    atomic_int span; /* where to count; -1: no more */
    atomic_int seen; /* where it does */
    long lost;
} counting;

enum { COUNTED_SPANS = 64, COUNTED_SPAN = 512 << 10 };

static void *count_on(void *arg)
{
    counting *c = arg;
    for (int span; (span = atomic_load(&c->span)) >= 0;) {
        volatile uint32_t *word = (volatile uint32_t *)(void *)(c->block + (size_t)span * COUNTED_SPAN);
        uint32_t count = *word;
        do {
            c->lost += *word != count;
            *word = ++count;
            atomic_store(&c->seen, span);
        } while (atomic_load(&c->span) == span);
        c->lost += *word != count;
    }
    return NULL;
}

PSD_TEST(arena, what_is_written_beside_detached_bytes_is_kept)
{
    arena a;
    pthread_t thread;
    cr_assert_eq(arena_open(&a, why, sizeof why), PSD_OK, "%s", why);
    counting c = {.block = arena_get(&a, (size_t)COUNTED_SPANS * COUNTED_SPAN)};
    cr_assert_not_null(c.block);
    atomic_init(&c.span, 0);
    atomic_init(&c.seen, -1);
    cr_assert_eq(pthread_create(&thread, NULL, count_on, &c), 0);
    for (int span = 0; span < COUNTED_SPANS; span++) {
        atomic_store(&c.span, span);
        while (atomic_load(&c.seen) != span)
            sched_yield();
        arena_detach(&a, c.block + (size_t)span * COUNTED_SPAN + 64, COUNTED_SPAN - 64);
    }
    atomic_store(&c.span, -1);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_eq(c.lost, 0);
    arena_close(&a);
}

PSD_TEST(arena, a_child_does_not_free_the_parents)
{
    arena a;
    int status = -1;
    cr_assert_eq(arena_open(&a, why, sizeof why), PSD_OK, "%s", why);
    unsigned char *block = arena_get(&a, 65536);
    memset(block, 3, 65536);
    pid_t child = fork();
    if (child == 0)
        _exit(arena_put(&a, block) ? 0 : 1);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_assert(is_all(block, 65536, 3));
    arena_close(&a);
}

/* What a peer may send instead of its arena. */
static void expect_refused(int fd, uint64_t bytes, const char *what)
{
    peer_arena p = {NULL, 0};
    why[0] = '\0';
    cr_assert_eq(peer_arena_open(&p, fd, bytes, why, sizeof why), PSD_ERR_FORMAT, "%s", what);
    cr_assert_null(p.base, "%s", what);
    cr_assert_neq(why[0], '\0', "%s", what);
}

PSD_TEST(arena, strange_fds_are_refused)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int memory = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert(null >= 0 && memory >= 0);
    cr_assert_eq(ftruncate(memory, 64 * (off_t)MIB), 0);
    expect_refused(null, 64 * MIB, "no memfd");
    expect_refused(memory, 64 * MIB, "not sealed: it could shrink under us");
    cr_assert_eq(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    expect_refused(memory, 128 * MIB, "smaller than it says");
    expect_refused(memory, 32 * MIB, "larger than it says");
    expect_refused(memory, 0, "nothing");
    expect_refused(memory, 64 * MIB - 4096, "not in huge pages");
    expect_refused(memory, UINT64_MAX / MIB * MIB, "larger than anything");
    expect_refused(-1, 64 * MIB, "no fd");
    close(memory);
    close(null);
}
