/* A ring and a bell between two threads under ThreadSanitizer: the writer and the reader sleep and wake each
 * other. Then a lane, whose two sides spin. Also checks the bytes. */
#include <pthread.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/backend/host/bell.h"
#include "worker/backend/host/lane.h"
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

/* ---------------------------------------------------------------------------------------------------- lane */

#define LANE_MESSAGES 30000u

static lane_shared lane_index;
static _Alignas(64) unsigned char lane_memory[2048];

static uint32_t lane_size(uint32_t i)
{
    return i * 7919 % 500;
}

static void *lane_out(void *arg)
{
    (void)arg;
    lane_writer w;
    unsigned char data[512];
    lane_writer_init(&w, &lane_index, lane_memory, sizeof lane_memory);
    for (uint32_t i = 0; i < LANE_MESSAGES && !w.corrupt; i++) {
        lane_message m = {.bytes = lane_size(i), .count = i};
        memset(data, (int)(i & 255), m.bytes);
        while (!lane_write(&w, &m, data) && !w.corrupt)
            sched_yield();
    }
    return NULL;
}

static void *lane_in(void *arg)
{
    size_t *wrong = arg;
    lane_reader r;
    lane_reader_init(&r, &lane_index, lane_memory, sizeof lane_memory);
    for (uint32_t i = 0; i < LANE_MESSAGES && !r.corrupt;) {
        lane_message m;
        const unsigned char *payload = lane_peek(&r, &m);
        if (payload == NULL) {
            sched_yield();
            continue;
        }
        *wrong += m.count != i || m.bytes != lane_size(i);
        for (uint32_t k = 0; k < m.bytes; k++)
            *wrong += payload[k] != (i & 255);
        lane_take(&r);
        i++;
    }
    *wrong += r.corrupt;
    return NULL;
}

static int run_both(void *(*write)(void *), void *(*read)(void *), size_t *wrong)
{
    pthread_t threads[2];
    if (pthread_create(&threads[0], NULL, write, NULL) != 0 ||
        pthread_create(&threads[1], NULL, read, wrong) != 0)
        return 1;
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    return 0;
}

int main(void)
{
    size_t wrong = 0;
    char why[512];
    if (bell_open(&bells[0], true, why, sizeof why) != PSD_OK ||
        bell_open(&bells[1], false, why, sizeof why) != PSD_OK) {
        fprintf(stderr, "tsan_ring: %s\n", why);
        return 1;
    }
    if (run_both(writer, reader, &wrong) != 0 || run_both(lane_out, lane_in, &wrong) != 0)
        return 1;
    bell_close(&bells[0]);
    bell_close(&bells[1]);
    bool failed = wrong > 0 || lost > 0;
    if (failed)
        printf("tsan_ring: %zu bytes and %u messages, %zu wrong, %d lost wake-ups\n", TOTAL_BYTES,
               LANE_MESSAGES, wrong, lost);
    printf("%d passed, %d failed\n", !failed, failed);
    return failed;
}
