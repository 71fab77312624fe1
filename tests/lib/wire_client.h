/* A bare client of psd: one DEALER that sends and receives messages, without an agent behind it. */
#ifndef PSD_TEST_WIRE_CLIENT_H
#define PSD_TEST_WIRE_CLIENT_H

#include "proto/wire.h"

typedef struct test_client {
    void *context;
    void *socket;
    psd_wire_buffer buffer;
} test_client;

bool test_client_open(test_client *client, const char *endpoint);
void test_client_close(test_client *client);

bool test_client_send(test_client *client, const psd_msg *msg);
bool test_client_send_bytes(test_client *client, const void *data, size_t bytes, bool more);

/* The next message of this type; others are dropped. NULL when the deadline passes. Free with
 * psd_msg_box_free. */
psd_msg_box *test_client_receive(test_client *client, psd_msg_type type, int timeout_ms);

/* A HELLO of worker `name` of job `job` for rank `rank` of `world`. */
psd_msg test_hello(const char *job, const char *name, int rank, int world);

/* Asks a view and gives the REPLY's boxed message, or NULL. */
psd_msg_box *test_client_query(test_client *client, const char *view, const char *job, int timeout_ms);

#endif
