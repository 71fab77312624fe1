#include "tests/lib/wire_client.h"

#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "common/clock.h"

bool test_client_open(test_client *client, const char *endpoint)
{
    int zero = 0;
    int one = 1;
    int send_ms = 10000;
    *client = (test_client){.context = zmq_ctx_new()};
    client->socket = zmq_socket(client->context, ZMQ_DEALER);
    return client->socket != NULL && zmq_setsockopt(client->socket, ZMQ_LINGER, &zero, sizeof zero) == 0 &&
           zmq_setsockopt(client->socket, ZMQ_IPV6, &one, sizeof one) == 0 &&
           zmq_setsockopt(client->socket, ZMQ_SNDTIMEO, &send_ms, sizeof send_ms) == 0 &&
           zmq_connect(client->socket, endpoint) == 0;
}

void test_client_close(test_client *client)
{
    if (client->socket)
        zmq_close(client->socket);
    if (client->context)
        zmq_ctx_term(client->context);
    psd_wire_buffer_free(&client->buffer);
    *client = (test_client){0};
}

bool test_client_send_bytes(test_client *client, const void *data, size_t bytes, bool more)
{
    return zmq_send(client->socket, data, bytes, more ? ZMQ_SNDMORE : 0) >= 0;
}

bool test_client_send(test_client *client, const psd_msg *msg)
{
    return psd_wire_encode(msg, &client->buffer) == PSD_OK &&
           test_client_send_bytes(client, client->buffer.data, client->buffer.bytes, false);
}

psd_msg_box *test_client_receive(test_client *client, psd_msg_type type, int timeout_ms)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), timeout_ms);
    psd_msg_box *found = NULL;
    while (found == NULL) {
        psd_time_ns left = deadline - psd_now_ns();
        zmq_pollitem_t item = {.socket = client->socket, .events = ZMQ_POLLIN};
        if (left <= 0 || zmq_poll(&item, 1, (long)(left / PSD_NS_PER_MS) + 1) <= 0)
            return NULL;
        zmq_msg_t frame;
        psd_msg_box *box = NULL;
        char why[128];
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, client->socket, ZMQ_DONTWAIT) >= 0 &&
            psd_wire_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), &box, why, sizeof why) == PSD_OK) {
            if (box->msg.type == type)
                found = box;
            else
                psd_msg_box_free(box);
        }
        zmq_msg_close(&frame);
    }
    return found;
}

psd_msg test_hello(const char *job, const char *name, int rank, int world)
{
    psd_msg msg = {.type = PSD_MSG_HELLO, .request = 1};
    snprintf(msg.ident.job, sizeof msg.ident.job, "%s", job);
    snprintf(msg.ident.name, sizeof msg.ident.name, "%s", name);
    msg.ident.incarnation = 77 + (uint64_t)rank;
    snprintf(msg.u.hello.role, sizeof msg.u.hello.role, "worker");
    snprintf(msg.u.hello.host, sizeof msg.u.hello.host, "testhost");
    snprintf(msg.u.hello.address, sizeof msg.u.hello.address, "nowhere");
    snprintf(msg.u.hello.backend, sizeof msg.u.hello.backend, "host");
    msg.u.hello.pid = 1;
    msg.u.hello.rank = rank;
    msg.u.hello.world_min = world;
    msg.u.hello.world_max = world;
    return msg;
}

psd_msg_box *test_client_query(test_client *client, const char *view, const char *job, int timeout_ms)
{
    psd_msg msg = {.type = PSD_MSG_QUERY, .request = 9};
    snprintf(msg.u.query.view, sizeof msg.u.query.view, "%s", view);
    snprintf(msg.u.query.job, sizeof msg.u.query.job, "%s", job);
    msg.u.query.limit = 100;
    if (!test_client_send(client, &msg))
        return NULL;
    return test_client_receive(client, PSD_MSG_REPLY, timeout_ms);
}
