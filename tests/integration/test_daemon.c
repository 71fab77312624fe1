/* psd from outside: what it is asked for, what is thrown at it, how it ends. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"
#include "tests/lib/wire_client.h"

static test_proc psd;
static char endpoint[128];
static unsigned port;

static void start(const char *const *more)
{
    const char *argv[16] = {test_path("bin/psd"), "--listen", "tcp://127.0.0.1:0"};
    for (int i = 3; i < 15 && more != NULL && *more != NULL; i++, more++)
        argv[i] = *more;
    cr_assert(test_proc_start(&psd, argv, NULL));
    cr_assert(test_proc_expect(&psd, "listening on tcp://", 10000), "psd: %s", psd.text ? psd.text : "");
    const char *at = strstr(psd.text, "listening on ");
    cr_assert_eq(sscanf(at, "listening on %127[^ ,\n]", endpoint), 1);
    cr_assert_eq(sscanf(endpoint, "tcp://127.0.0.1:%u", &port), 1, "%s", endpoint);
}

static void stop(void)
{
    kill(psd.pid, SIGTERM);
    cr_assert(test_proc_wait(&psd, 2000), "psd does not stop");
    cr_assert_eq(test_proc_code(&psd), 0, "%s", psd.text);
    test_proc_end(&psd);
}

/* Runs psd with these options; it must fail with `code` and say `text`. */
static void refused(const char *const *options, int code, const char *text)
{
    const char *argv[16] = {test_path("bin/psd")};
    char *output = NULL;
    for (int i = 1; i < 15 && *options != NULL; i++, options++)
        argv[i] = *options;
    cr_assert_eq(test_run(argv, NULL, 10000, &output), code, "%s", output);
    cr_assert(strstr(output, text) != NULL, "no \"%s\" in: %s", text, output);
    free(output);
}

static int dial(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval limit = {.tv_sec = 10};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* Reads until psd closes the connection. */
static void expect_closed(int fd)
{
    char buffer[256];
    ssize_t got = 1;
    while (got > 0)
        got = recv(fd, buffer, sizeof buffer, 0);
    cr_assert(got == 0 || errno == ECONNRESET, "psd did not close the connection: %s", strerror(errno));
    close(fd);
}

/* Speaks ZMTP 3.1 as far as a DEALER's READY. */
static void shake_hands(int fd)
{
    static const unsigned char greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    static const char ready[] = "\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06"
                                "DEALER\x08Identity\x00\x00\x00\x00";
    unsigned char got[64];
    unsigned char head[2];
    cr_assert_eq(send(fd, greeting, sizeof greeting, MSG_NOSIGNAL), (ssize_t)sizeof greeting);
    cr_assert_eq(recv(fd, got, sizeof got, MSG_WAITALL), (ssize_t)sizeof got);
    cr_assert_eq(send(fd, ready, sizeof ready - 1, MSG_NOSIGNAL), (ssize_t)sizeof ready - 1);
    cr_assert_eq(recv(fd, head, sizeof head, MSG_WAITALL), (ssize_t)sizeof head);
    cr_assert(head[1] < sizeof got);
    cr_assert_eq(recv(fd, got, head[1], MSG_WAITALL), (ssize_t)head[1]);
}

static void still_answers(void)
{
    test_client client;
    cr_assert(test_client_open(&client, endpoint));
    psd_msg_box *reply = test_client_query(&client, "version", "", 5000);
    cr_assert(reply != NULL, "psd does not answer: %s", psd.text);
    cr_assert_eq(reply->msg.u.reply.status, PSD_OK);
    psd_msg_box_free(reply);
    test_client_close(&client);
}

PSD_TEST(daemon, stops_within_two_seconds)
{
    start(NULL);
    still_answers();
    stop();
}

PSD_TEST(daemon, port_in_use_names_the_holder)
{
    char pid[64];
    start(NULL);
    snprintf(pid, sizeof pid, "held by psd (pid %d)", (int)psd.pid);
    refused((const char *[]){"--listen", endpoint, NULL}, 1, pid);
    refused((const char *[]){"--listen", endpoint, NULL}, 1, "Address already in use");
    stop();
}

PSD_TEST(daemon, bad_options)
{
    refused((const char *[]){"--listen", "tcp://0.0.0.0:0", NULL}, 1, "--insecure");
    refused((const char *[]){"--listen", "tcp://*:0", NULL}, 1, "--insecure");
    refused((const char *[]){"--listen", "http://x", NULL}, 2, "not an address");
    refused((const char *[]){"--listen", "tcp://127.0.0.1:99999", NULL}, 2, "not an address");
    refused((const char *[]){"--listen", "tcp://no-such-host.invalid:0", NULL}, 1, "cannot be resolved");
    refused((const char *[]){"--lease", "-1", NULL}, 2, "--lease");
    refused((const char *[]){"--lease", "9223372036854775807", NULL}, 2, "too large");
    refused((const char *[]){"--li\xffsten", NULL}, 2, "\"--li\\xffsten\" is not an option");
    refused((const char *[]){"--lease", NULL}, 2, "\"--lease\" needs a value");
    char junk[4000];
    memset(junk, 'x', sizeof junk - 1);
    junk[sizeof junk - 1] = '\0';
    refused((const char *[]){"--listen", junk, NULL}, 2, "xxx...\"");
    refused((const char *[]){"--lease", "1s", "--heartbeat", "900ms", NULL}, 2, "at most half");
    refused((const char *[]){"--memory-limit", "12", NULL}, 2, "64M");
    refused((const char *[]){"--ready-fd", "999", NULL}, 2, "open file descriptor");
    refused((const char *[]){"--frobnicate", NULL}, 2, "--help");
    refused((const char *[]){"extra", NULL}, 2, "extra");
    refused((const char *[]){"--version", NULL}, 0, "psd ");
    refused((const char *[]){"--help", NULL}, 0, "--listen");
}

/* Runs psd under the shell's limits; it must fail and say `text`. */
static void refused_under(const char *limits, const char *text)
{
    char command[512];
    char *output = NULL;
    snprintf(command, sizeof command, "ulimit %s && exec %s --listen tcp://127.0.0.1:0", limits,
             test_path("bin/psd"));
    cr_assert_eq(test_run((const char *[]){"/bin/bash", "-c", command, NULL}, NULL, 10000, &output), 1, "%s",
                 output);
    cr_assert(strstr(output, text) != NULL, "no \"%s\" in: %s", text, output);
    free(output);
}

PSD_TEST(daemon, too_narrow_limits_are_told)
{
    refused_under("-n 8", "ulimit -n");
    refused_under("-n 24", "psd may open only 24 files");
#ifndef __SANITIZE_ADDRESS__ /* which itself needs terabytes */
    refused_under("-v 20000", "ulimit -v");
#endif
}

static bool says(const char *text)
{
    return test_proc_expect(&psd, text, 5000);
}

/* One line when psd has no file left for a connection, and those it has are served. */
PSD_TEST(daemon, tells_that_it_cannot_accept)
{
    char command[512];
    enum { MOST = 80 };
    test_client clients[MOST];
    int open = 0;
    snprintf(command, sizeof command, "ulimit -n 64 && exec %s --listen tcp://127.0.0.1:0",
             test_path("bin/psd"));
    cr_assert(test_proc_start(&psd, (const char *[]){"/bin/bash", "-c", command, NULL}, NULL));
    cr_assert(test_proc_expect(&psd, "listening on tcp://", 10000), "psd: %s", psd.text ? psd.text : "");
    cr_assert(says("psd may open only 64 files"));
    cr_assert_eq(sscanf(strstr(psd.text, "listening on "), "listening on %127[^ ,\n]", endpoint), 1);
    while (open < MOST && test_client_open(&clients[open], endpoint))
        open++;
    cr_assert(says("cannot be accepted, with "), "%s", psd.text);
    cr_assert(says("Too many open files"), "%s", psd.text);
    psd_msg_box *reply = test_client_query(&clients[0], "version", "", 5000);
    cr_assert(reply != NULL);
    psd_msg_box_free(reply);
    while (open > 0)
        test_client_close(&clients[--open]);
    stop();
}

/* A flood of garbage is one line a second, whatever comes with it. */
PSD_TEST(daemon, a_flood_of_garbage_is_a_few_lines)
{
    enum { PEERS = 60 };
    int lines = 0;
    start(NULL);
    for (int i = 0; i < PEERS; i++) {
        test_client client;
        cr_assert(test_client_open(&client, endpoint));
        cr_assert(test_client_send_bytes(&client, "garbage", 7, false));
        psd_msg_box *reply = test_client_query(&client, "version", "", 5000);
        cr_assert(reply != NULL);
        psd_msg_box_free(reply);
        test_client_close(&client);
    }
    kill(psd.pid, SIGTERM);
    cr_assert(test_proc_wait(&psd, 2000));
    for (const char *at = psd.text; (at = strstr(at, "was dropped")) != NULL; at++)
        lines++;
    cr_assert(lines >= 1 && lines < PEERS / 3, "%d lines: %s", lines, psd.text);
    test_proc_end(&psd);
}

PSD_TEST(daemon, survives_what_is_not_zmtp)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                               "and some more bytes, so that a whole greeting's length has been sent";
    unsigned char junk[4096];
    for (size_t i = 0; i < sizeof junk; i++)
        junk[i] = (unsigned char)(i * 2654435761u >> 13);
    start(NULL);
    int fd = dial();
    cr_assert(send(fd, http, sizeof http, MSG_NOSIGNAL) > 0);
    expect_closed(fd);
    fd = dial();
    cr_assert(send(fd, junk, sizeof junk, MSG_NOSIGNAL) > 0);
    expect_closed(fd);
    still_answers();
    stop();
}

/* ZMTP 1.0 has no greeting that random bytes could fail: its peers are turned away. */
PSD_TEST(daemon, turns_away_zmtp_1)
{
    static const char anonymous_then_hi[] = "\x01\x00\x03\x00hi";
    start(NULL);
    int fd = dial();
    cr_assert_eq(write(fd, anonymous_then_hi, sizeof anonymous_then_hi - 1),
                 (ssize_t)sizeof anonymous_then_hi - 1);
    expect_closed(fd);
    still_answers();
    stop();
}

PSD_TEST(daemon, survives_a_frame_of_two_gigabytes)
{
    static const unsigned char head[] = {2, 0, 0, 0, 0, 0x80, 0, 0, 0, 'x'};
    start(NULL);
    int fd = dial();
    shake_hands(fd);
    cr_assert(send(fd, head, sizeof head, MSG_NOSIGNAL) > 0);
    expect_closed(fd);
    still_answers();
    stop();
}

PSD_TEST(daemon, survives_messages_that_are_not_psds)
{
    test_client client;
    start(NULL);
    cr_assert(test_client_open(&client, endpoint));
    cr_assert(test_client_send_bytes(&client, "garbage", 7, false));
    cr_assert(test_client_send_bytes(&client, "", 0, false));
    cr_assert(test_client_send_bytes(&client, "two", 3, true));
    cr_assert(test_client_send_bytes(&client, "frames", 6, false));
    psd_msg_box *reply = test_client_query(&client, "version", "", 5000); /* on the same connection */
    cr_assert(reply != NULL);
    psd_msg_box_free(reply);
    test_client_close(&client);
    cr_assert(test_proc_expect(&psd, "was dropped", 5000));
    stop();
}

PSD_TEST(daemon, another_protocol_version_is_refused)
{
    test_client client;
    psd_msg hello = test_hello("j", "w0", 0, 1);
    start(NULL);
    cr_assert(test_client_open(&client, endpoint));
    cr_assert_eq(psd_wire_encode(&hello, &client.buffer), PSD_OK);
    /* The version is the top byte of the envelope's first field, a fixed32. */
    cr_assert_eq(client.buffer.data[0], 0x0d);
    client.buffer.data[4] = 99;
    cr_assert(test_client_send_bytes(&client, client.buffer.data, client.buffer.bytes, false));
    psd_msg_box *refuse = test_client_receive(&client, PSD_MSG_REFUSE, 5000);
    cr_assert(refuse != NULL);
    cr_assert_eq(refuse->msg.u.refuse.status, PSD_ERR_PROTOCOL);
    cr_assert(strstr(refuse->msg.u.refuse.text, "99") != NULL, "%s", refuse->msg.u.refuse.text);
    psd_msg_box_free(refuse);
    test_client_close(&client);
    stop();
}

/* A worker whose HELLO or request cannot be read must not wait for an answer that never comes. */
PSD_TEST(daemon, bad_fields_are_told)
{
    test_client client;
    psd_msg hello = test_hello("j", "w0", 0, 1);
    psd_msg open = {.type = PSD_MSG_GROUP_OPEN, .request = 12, .u.group_open.how = (psd_group_how)77};
    psd_msg beat = {.type = PSD_MSG_HEARTBEAT, .u.heartbeat.current = {.kind = PSD_OP_SEND, .peer = -9}};
    start(NULL);
    hello.u.hello.rank = -7;
    cr_assert(test_client_open(&client, endpoint));
    cr_assert(test_client_send(&client, &beat)); /* asks nothing, so it gets no answer */
    cr_assert(test_client_send(&client, &hello));
    cr_assert(test_client_send(&client, &open));
    psd_msg_box *refuse = test_client_receive(&client, PSD_MSG_REFUSE, 5000);
    cr_assert(refuse != NULL);
    cr_assert_eq(refuse->msg.u.refuse.status, PSD_ERR_FORMAT);
    cr_assert_eq(refuse->msg.request, hello.request);
    cr_assert(strstr(refuse->msg.u.refuse.text, "hello.rank is -7") != NULL, "%s", refuse->msg.u.refuse.text);
    psd_msg_box_free(refuse);
    refuse = test_client_receive(&client, PSD_MSG_REFUSE, 5000);
    cr_assert(refuse != NULL);
    cr_assert_eq(refuse->msg.request, 12);
    cr_assert(strstr(refuse->msg.u.refuse.text, "group_open.how") != NULL, "%s", refuse->msg.u.refuse.text);
    psd_msg_box_free(refuse);
    test_client_close(&client);
    stop();
}

/* With a lease of a minute, only the closed connection can tell so soon. */
PSD_TEST(daemon, a_closed_connection_is_noticed)
{
    test_client clients[2];
    start((const char *[]){"--lease", "60s", NULL});
    for (int i = 0; i < 2; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        psd_msg hello = test_hello("j", name, i, 2);
        cr_assert(test_client_open(&clients[i], endpoint));
        cr_assert(test_client_send(&clients[i], &hello));
    }
    for (int i = 0; i < 2; i++) {
        psd_msg_box *welcome = test_client_receive(&clients[i], PSD_MSG_WELCOME, 5000);
        cr_assert(welcome != NULL);
        psd_msg_box_free(welcome);
    }
    test_client_close(&clients[1]);
    psd_msg_box *abort = test_client_receive(&clients[0], PSD_MSG_ABORT, 5000);
    cr_assert(abort != NULL, "nobody told rank 0 that rank 1 is gone");
    cr_assert_eq(abort->msg.u.abort.status, PSD_ERR_PEER_FAILED);
    cr_assert_eq(abort->msg.u.abort.culprit, 1);
    psd_msg_box_free(abort);
    test_client_close(&clients[0]);
    stop();
}

PSD_TEST(daemon, tells_workers_that_it_stops)
{
    test_client client;
    psd_msg hello = test_hello("j", "w0", 0, 1);
    start(NULL);
    cr_assert(test_client_open(&client, endpoint));
    cr_assert(test_client_send(&client, &hello));
    psd_msg_box *welcome = test_client_receive(&client, PSD_MSG_WELCOME, 5000);
    cr_assert(welcome != NULL);
    psd_msg_box_free(welcome);
    kill(psd.pid, SIGTERM);
    psd_msg_box *told = test_client_receive(&client, PSD_MSG_STOP, 5000);
    cr_assert(told != NULL);
    psd_msg_box_free(told);
    cr_assert(test_proc_wait(&psd, 2000));
    cr_assert_eq(test_proc_code(&psd), 0);
    test_proc_end(&psd);
    test_client_close(&client);
}

/* ZeroMQ bounds a frame, not how many frames an unfinished message has. */
PSD_TEST(daemon, survives_a_message_without_an_end)
{
    static unsigned char frame[9 + (1 << 20)];
    struct sockaddr_in self = {0};
    socklen_t bytes = sizeof self;
    char named[64];
    ssize_t sent = 1;
    frame[0] = 3;                   /* long, more to come */
    frame[9 - 3] = (1 << 20) >> 16; /* its length, big-endian */
    start((const char *[]){"--memory-limit", "64M", NULL});
    int fd = dial();
    shake_hands(fd);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&self, &bytes), 0);
    for (int i = 0; i < 4000 && sent > 0; i++)
        for (size_t at = 0; at < sizeof frame && sent > 0; at += (size_t)sent)
            sent = send(fd, frame + at, sizeof frame - at, MSG_NOSIGNAL);
    cr_assert(sent < 0 && (errno == EPIPE || errno == ECONNRESET), "4 GB went through: %s", strerror(errno));
    close(fd);
    cr_assert(test_proc_expect(&psd, "over its limit of 64", 5000), "%s", psd.text);
    snprintf(named, sizeof named, "127.0.0.1 port %u, has sent", (unsigned)ntohs(self.sin_port));
    cr_assert(test_proc_expect(&psd, named, 5000), "%s", psd.text);
    still_answers();
    stop();
}

/* One that asks and never reads costs psd a bounded queue, and nobody else anything. */
PSD_TEST(daemon, survives_who_does_not_read)
{
    test_client client;
    psd_msg query = {.type = PSD_MSG_QUERY, .request = 9};
    bool sent = true;
    snprintf(query.u.query.view, sizeof query.u.query.view, "version");
    start(NULL);
    cr_assert(test_client_open(&client, endpoint));
    for (int i = 0; i < 1000000 && sent && strstr(psd.text, "does not read") == NULL; i++) {
        sent = test_client_send(&client, &query);
        if (i % 4096 == 0)
            test_proc_expect(&psd, "does not read", 1); /* reads what is there */
    }
    cr_assert(strstr(psd.text, "does not read") != NULL, "psd queues without end: %s", psd.text);
    still_answers();
    test_client_close(&client);
    stop();
}

/* systemd's side of sd_notify, with an abstract socket. */
PSD_TEST(daemon, tells_the_service_manager)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = 10};
    char env[64];
    char got[64] = "";
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int length = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "psd-test-%d", (int)getpid());
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    cr_assert(fd >= 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, bytes), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    snprintf(env, sizeof env, "NOTIFY_SOCKET=@psd-test-%d", (int)getpid());
    const char *argv[] = {test_path("bin/psd"), "--listen", "tcp://127.0.0.1:0", NULL};
    const char *envs[] = {env, "WATCHDOG_USEC=200000", NULL};
    cr_assert(test_proc_start(&psd, argv, envs));
    cr_assert(recv(fd, got, sizeof got - 1, 0) > 0);
    cr_assert_str_eq(got, "READY=1");
    memset(got, 0, sizeof got);
    cr_assert(recv(fd, got, sizeof got - 1, 0) > 0);
    cr_assert_str_eq(got, "WATCHDOG=1");
    stop();
    while (strcmp(got, "STOPPING=1") != 0) {
        memset(got, 0, sizeof got);
        cr_assert(recv(fd, got, sizeof got - 1, 0) > 0);
    }
    close(fd);
}
