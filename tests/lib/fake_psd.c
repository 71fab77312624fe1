#include "tests/lib/fake_psd.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#include "proto/wire.h"

#define WAIT_MS 10000

struct fake_psd {
    pthread_mutex_t lock; /* recursive, for hooks that send; the socket and all below */
    pthread_cond_t came;
    pthread_t thread;
    void *zmq;
    void *router; /* NULL: vanished */
    char address[64];
    bool stop;
    fake_psd_hook hook;
    void *arg;
    uint8_t peer[64];
    size_t peer_bytes; /* 0: no connection is known */
    psd_ident ident;
    char worker_address[PSD_MAX_ADDR];
    bool opened; /* the world */
    uint32_t next_group;
    int counts[PSD_MSG_TYPES];
    psd_msg hello;
    psd_msg last;
    psd_wire_buffer buffer;
};

void fake_psd_send_bytes(fake_psd *psd, const void *data, size_t bytes)
{
    pthread_mutex_lock(&psd->lock);
    if (psd->router != NULL && psd->peer_bytes > 0) {
        zmq_send(psd->router, psd->peer, psd->peer_bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT);
        zmq_send(psd->router, data, bytes, ZMQ_DONTWAIT);
    }
    pthread_mutex_unlock(&psd->lock);
}

void fake_psd_send(fake_psd *psd, psd_msg *msg)
{
    pthread_mutex_lock(&psd->lock);
    if (msg->ident.incarnation == 0)
        msg->ident = psd->ident;
    if (psd_wire_encode(msg, &psd->buffer) == PSD_OK)
        fake_psd_send_bytes(psd, psd->buffer.data, psd->buffer.bytes);
    else
        fprintf(stderr, "fake psd: cannot encode %s\n", psd_msg_name(msg->type));
    pthread_mutex_unlock(&psd->lock);
}

/* ------------------------------------------------------------------------------------------------ answers */

static void open_group(fake_psd *psd, uint32_t group, uint64_t request)
{
    const char *addresses[1] = {psd->worker_address};
    psd_msg msg = {.type = PSD_MSG_GROUP_OPENED, .request = request};
    msg.u.group_opened.group = group;
    msg.u.group_opened.epoch = 1;
    msg.u.group_opened.count = 1;
    msg.u.group_opened.addresses = addresses;
    fake_psd_send(psd, &msg);
}

static void answer_hello(fake_psd *psd)
{
    psd_msg msg = {.type = PSD_MSG_WELCOME};
    msg.u.welcome.world = 1;
    msg.u.welcome.epoch = 1;
    msg.u.welcome.resume_token = FAKE_PSD_TOKEN;
    msg.u.welcome.world_group = FAKE_PSD_WORLD;
    msg.u.welcome.lease_ms = 500;
    msg.u.welcome.heartbeat_ms = 50;
    fake_psd_send(psd, &msg);
    if (!psd->opened)
        open_group(psd, FAKE_PSD_WORLD, 0);
    psd->opened = true;
}

static void answer(fake_psd *psd, const psd_msg *msg)
{
    psd_msg reply = {.type = PSD_MSG_NONE, .request = msg->request};
    switch (msg->type) {
    case PSD_MSG_HELLO:
        answer_hello(psd);
        break;
    case PSD_MSG_GROUP_OPEN:
        open_group(psd, psd->next_group++, msg->request);
        break;
    case PSD_MSG_GROUP_READY:
        reply.type = PSD_MSG_GROUP_GO;
        reply.u.group.group = msg->u.group.group;
        reply.request = 0;
        break;
    case PSD_MSG_BYE:
        reply.type = PSD_MSG_BYE_ACK;
        break;
    default:
        break;
    }
    if (reply.type != PSD_MSG_NONE)
        fake_psd_send(psd, &reply);
}

/* ------------------------------------------------------------------------------------------------- thread */

static void on_msg(fake_psd *psd, const psd_msg *msg, const uint8_t *id, size_t id_bytes)
{
    bool known = psd->peer_bytes == id_bytes && memcmp(psd->peer, id, id_bytes) == 0;
    memcpy(psd->peer, id, id_bytes);
    psd->peer_bytes = id_bytes;
    if (msg->type == PSD_MSG_HELLO) {
        psd->ident = msg->ident;
        psd->hello = *msg;
        memcpy(psd->worker_address, msg->u.hello.address, sizeof psd->worker_address);
    } else if (!known) {
        psd_msg resync = {.type = PSD_MSG_RESYNC};
        psd->peer_bytes = id_bytes;
        fake_psd_send(psd, &resync);
        psd->peer_bytes = 0;
        return;
    } else if (msg->type != PSD_MSG_HEARTBEAT) {
        psd->last = *msg;
    }
    psd->counts[msg->type]++;
    if (psd->hook == NULL || !psd->hook(psd, msg, psd->arg))
        answer(psd, msg);
    pthread_cond_broadcast(&psd->came);
}

/* Under the lock. False when nothing is there. */
static bool receive_one(fake_psd *psd)
{
    uint8_t id[64];
    char why[128];
    zmq_msg_t frame;
    psd_msg_box *box = NULL;
    int id_bytes = psd->router != NULL ? zmq_recv(psd->router, id, sizeof id, ZMQ_DONTWAIT) : -1;
    if (id_bytes < 0)
        return false;
    zmq_msg_init(&frame);
    if (zmq_msg_recv(&frame, psd->router, 0) >= 0 &&
        psd_wire_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), &box, why, sizeof why) == PSD_OK) {
        on_msg(psd, &box->msg, id, (size_t)id_bytes);
        psd_msg_box_free(box);
    }
    zmq_msg_close(&frame);
    return true;
}

static void *run(void *arg)
{
    fake_psd *psd = arg;
    const struct timespec pause = {0, 500000};
    bool stop = false;
    while (!stop) {
        pthread_mutex_lock(&psd->lock);
        while (receive_one(psd))
            ;
        stop = psd->stop;
        pthread_mutex_unlock(&psd->lock);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* Binds to the address, which becomes the one that was got. Under the lock, or before the thread runs. */
static bool bind_router(fake_psd *psd)
{
    int linger = 0;
    size_t bytes = sizeof psd->address;
    psd->router = zmq_socket(psd->zmq, ZMQ_ROUTER);
    if (psd->router == NULL)
        return false;
    zmq_setsockopt(psd->router, ZMQ_LINGER, &linger, sizeof linger);
    /* The port of a socket that was closed a moment ago may not be free at once. */
    const struct timespec pause = {0, 1000000};
    int tries = 0;
    while (zmq_bind(psd->router, psd->address) != 0) {
        if (++tries > 5000)
            return false;
        nanosleep(&pause, NULL);
    }
    return zmq_getsockopt(psd->router, ZMQ_LAST_ENDPOINT, psd->address, &bytes) == 0;
}

fake_psd *fake_psd_start(fake_psd_hook hook, void *arg)
{
    fake_psd *psd = calloc(1, sizeof *psd);
    if (psd == NULL)
        return NULL;
    psd->hook = hook;
    psd->arg = arg;
    psd->next_group = FAKE_PSD_WORLD + 1;
    snprintf(psd->address, sizeof psd->address, "tcp://127.0.0.1:*");
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&psd->lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&psd->came, &attributes);
    pthread_condattr_destroy(&attributes);
    psd->zmq = zmq_ctx_new();
    if (psd->zmq == NULL || !bind_router(psd) || pthread_create(&psd->thread, NULL, run, psd) != 0) {
        fprintf(stderr, "fake psd: cannot start: %s\n", zmq_strerror(zmq_errno()));
        abort();
    }
    return psd;
}

void fake_psd_stop(fake_psd *psd)
{
    pthread_mutex_lock(&psd->lock);
    psd->stop = true;
    pthread_mutex_unlock(&psd->lock);
    pthread_join(psd->thread, NULL);
    if (psd->router != NULL)
        zmq_close(psd->router);
    zmq_ctx_term(psd->zmq);
    psd_wire_buffer_free(&psd->buffer);
    pthread_cond_destroy(&psd->came);
    pthread_mutex_destroy(&psd->lock);
    free(psd);
}

const char *fake_psd_address(const fake_psd *psd)
{
    return psd->address;
}

bool fake_psd_wait(fake_psd *psd, psd_msg_type type, int count)
{
    psd_time_ns until = psd_deadline_ns(psd_now_ns(), WAIT_MS);
    struct timespec at = {.tv_sec = (time_t)(until / PSD_NS_PER_S), .tv_nsec = (long)(until % PSD_NS_PER_S)};
    int error = 0;
    pthread_mutex_lock(&psd->lock);
    while (psd->counts[type] < count && error == 0)
        error = pthread_cond_timedwait(&psd->came, &psd->lock, &at);
    bool there = psd->counts[type] >= count;
    pthread_mutex_unlock(&psd->lock);
    return there;
}

int fake_psd_count(fake_psd *psd, psd_msg_type type)
{
    pthread_mutex_lock(&psd->lock);
    int count = psd->counts[type];
    pthread_mutex_unlock(&psd->lock);
    return count;
}

psd_msg fake_psd_last_hello(fake_psd *psd)
{
    pthread_mutex_lock(&psd->lock);
    psd_msg msg = psd->hello;
    pthread_mutex_unlock(&psd->lock);
    return msg;
}

psd_msg fake_psd_last(fake_psd *psd)
{
    pthread_mutex_lock(&psd->lock);
    psd_msg msg = psd->last;
    pthread_mutex_unlock(&psd->lock);
    return msg;
}

void fake_psd_vanish(fake_psd *psd)
{
    pthread_mutex_lock(&psd->lock);
    zmq_close(psd->router);
    psd->router = NULL;
    psd->peer_bytes = 0;
    pthread_mutex_unlock(&psd->lock);
}

void fake_psd_restart(fake_psd *psd)
{
    fake_psd_vanish(psd);
    pthread_mutex_lock(&psd->lock);
    if (!bind_router(psd)) {
        fprintf(stderr, "fake psd: cannot bind again: %s\n", zmq_strerror(zmq_errno()));
        abort();
    }
    pthread_mutex_unlock(&psd->lock);
}
