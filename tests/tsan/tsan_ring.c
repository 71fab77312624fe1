/* A ring and a bell between two threads under ThreadSanitizer: the writer and the reader sleep and wake each
 * other. Also checks the bytes. */
#include <pthread.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/backend/host/bell.h"
#include "worker/backend/host/ring.h"

#define RING_BYTES  4096
#define TOTAL_BYTES ((size_t)4 << 20)
#define SLEEP_MS    2000 /* longer than any wake-up takes: passing it is a lost one */

static ring_shared shared;
static unsigned char memory[RING_BYTES];
static bell bells[2]; /* of the writer, of the reader */
static _Atomic int lost;

static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 31 + (i >> 8));
}

static void nap(bell *mine, bool (*ready)(const void *), const void *arg)
{
    bell_arm(mine);
    if (!ready(arg)) {
        struct pollfd wait = {.fd = mine->event_fd, .events = POLLIN};
        if (poll(&wait, 1, SLEEP_MS) == 0 && !ready(arg))
            lost++;
    }
    bell_disarm(mine);
}

static void wake(bell *theirs)
{
    bell_wake(theirs);
}

static bool can_write(const void *arg)
{
    return ring_writable(arg);
}

static bool can_read(const void *arg)
{
    return ring_readable(arg);
}

static void *writer(void *arg)
{
    (void)arg;
    ring_writer w;
    unsigned char chunk[3000];
    ring_writer_init(&w, &shared, memory, RING_BYTES);
    for (size_t done = 0; done < TOTAL_BYTES && !w.corrupt;) {
        size_t bytes = 1 + (done * 7919) % sizeof chunk;
        if (bytes > TOTAL_BYTES - done)
            bytes = TOTAL_BYTES - done;
        for (size_t i = 0; i < bytes; i++)
            chunk[i] = byte_at(done + i);
        for (size_t sent = 0; sent < bytes;) {
            struct iovec iov = {.iov_base = chunk + sent, .iov_len = bytes - sent};
            size_t written = ring_write(&w, &iov, 1);
            sent += written;
            if (written > 0)
                wake(&bells[1]);
            else
                nap(&bells[0], can_write, &w);
        }
        done += bytes;
    }
    return NULL;
}

static void *reader(void *arg)
{
    size_t *wrong = arg;
    ring_reader r;
    unsigned char chunk[2000];
    ring_reader_init(&r, &shared, memory, RING_BYTES);
    for (size_t done = 0; done < TOTAL_BYTES && !r.corrupt;) {
        size_t got = ring_read(&r, chunk, 1 + (done * 104729) % sizeof chunk);
        for (size_t i = 0; i < got; i++)
            *wrong += chunk[i] != byte_at(done + i);
        done += got;
        if (got > 0)
            wake(&bells[0]);
        else
            nap(&bells[1], can_read, &r);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[2];
    size_t wrong = 0;
    char why[512];
    if (bell_open(&bells[0], true, why, sizeof why) != PSD_OK ||
        bell_open(&bells[1], false, why, sizeof why) != PSD_OK) {
        fprintf(stderr, "tsan_ring: %s\n", why);
        return 1;
    }
    if (pthread_create(&threads[0], NULL, writer, NULL) != 0)
        return 1;
    if (pthread_create(&threads[1], NULL, reader, &wrong) != 0)
        return 1;
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    bell_close(&bells[0]);
    bell_close(&bells[1]);
    bool failed = wrong > 0 || lost > 0;
    if (failed)
        printf("tsan_ring: %zu bytes, %zu wrong, %d lost wake-ups\n", TOTAL_BYTES, wrong, lost);
    printf("%d passed, %d failed\n", !failed, failed);
    return failed;
}
