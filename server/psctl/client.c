#include "server/psctl/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#include "common/clock.h"
#include "common/conf.h"
#include "common/status.h"
#include "server/psctl/reach.h"

/* Rows of a page: even with the longest texts they fit into one frame. */
enum { PAGE_ROWS = 256, MOST_PAGES = 40000 };
#define MONITOR "inproc://psctl-monitor"

struct psctl_client {
    void *context;
    void *socket;  /* DEALER */
    void *monitor; /* PAIR, events of the connection */
    bool connected;
    uint64_t request; /* number of the last one */
    int64_t timeout_ms;
    uint32_t limit;
    char host[256];
    uint16_t port;
    const char *given;  /* the address as the user wrote it */
    char endpoint[320]; /* with a numeric host */
    psd_wire_buffer frame;
};

/* A socket whose settings cannot fail for a valid value; a failure shows when it connects. */
static void set_int(void *socket, int option, int value)
{
    (void)zmq_setsockopt(socket, option, &value, sizeof value);
}

static bool open_sockets(psctl_client *c, char *why, size_t why_bytes)
{
    c->context = zmq_ctx_new();
    c->socket = c->context != NULL ? zmq_socket(c->context, ZMQ_DEALER) : NULL;
    c->monitor = c->socket != NULL ? zmq_socket(c->context, ZMQ_PAIR) : NULL;
    if (c->monitor == NULL) {
        snprintf(why, why_bytes, "cannot make a socket: %s", zmq_strerror(errno));
        return false;
    }
    set_int(c->socket, ZMQ_LINGER, 0);
    set_int(c->socket, ZMQ_IPV6, 1);
    set_int(c->monitor, ZMQ_LINGER, 0);
    int64_t most = PSD_MAX_FRAME;
    (void)zmq_setsockopt(c->socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
    if (zmq_socket_monitor(c->socket, MONITOR, ZMQ_EVENT_ALL) != 0 || zmq_connect(c->monitor, MONITOR) != 0 ||
        zmq_connect(c->socket, c->endpoint) != 0) {
        snprintf(why, why_bytes, "cannot connect to %s: %s", c->endpoint, zmq_strerror(errno));
        return false;
    }
    return true;
}

static void say_unreachable(const psctl_client *c, const char *reason, char *why, size_t why_bytes)
{
    snprintf(why, why_bytes,
             "psd is not reachable at %s: %s; start it with `psd --listen ADDRESS`, or name another address "
             "with --coordinator or PSD_COORDINATOR",
             c->given, reason);
}

psctl_exit psctl_client_open(const psctl_options *options, psctl_client **out, char *why, size_t why_bytes)
{
    psctl_client *c = calloc(1, sizeof *c);
    if (c == NULL) {
        snprintf(why, why_bytes, "out of memory");
        return PSCTL_FAILED;
    }
    psctl_exit code = PSCTL_USAGE;
    c->timeout_ms = options->timeout_ms;
    c->limit = options->limit;
    c->given = options->coordinator;
    if (!psd_parse_endpoint(options->coordinator, c->host, sizeof c->host, &c->port) || c->port == 0) {
        snprintf(why, why_bytes, "PSD_COORDINATOR=%s is not an address: write tcp://host:port",
                 options->coordinator);
        goto close_client;
    }
    char reason[256];
    code = PSCTL_UNREACHABLE;
    if (!psctl_resolve(c->host, c->port, c->endpoint, sizeof c->endpoint, reason, sizeof reason)) {
        say_unreachable(c, reason, why, why_bytes);
        goto close_client;
    }
    code = PSCTL_FAILED;
    if (!open_sockets(c, why, why_bytes))
        goto close_client;
    *out = c;
    return PSCTL_FINE;

close_client:
    psctl_client_close(c);
    return code;
}

void psctl_client_close(psctl_client *c)
{
    if (c == NULL)
        return;
    if (c->monitor != NULL)
        zmq_close(c->monitor);
    if (c->socket != NULL)
        zmq_close(c->socket);
    if (c->context != NULL)
        zmq_ctx_term(c->context);
    psd_wire_buffer_free(&c->frame);
    free(c);
}

typedef enum link_news {
    LINK_NOTHING,
    LINK_UP,
    LINK_FAILED,  /* the connection was refused, or is not possible */
    LINK_FOREIGN, /* connected, but the other side does not speak ZMTP */
} link_news;

/* One event of the monitor: a frame with the number, then a frame with the address. */
static link_news read_monitor(psctl_client *c)
{
    unsigned char head[6];
    unsigned char rest[256];
    uint16_t event;
    int got = zmq_recv(c->monitor, head, sizeof head, ZMQ_DONTWAIT);
    if (got < (int)sizeof event)
        return LINK_NOTHING;
    (void)zmq_recv(c->monitor, rest, sizeof rest, ZMQ_DONTWAIT);
    memcpy(&event, head, sizeof event);
    switch (event) {
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        return LINK_UP;
    case ZMQ_EVENT_CONNECT_RETRIED:
        return LINK_FAILED;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        return LINK_FOREIGN;
    default:
        return LINK_NOTHING;
    }
}

/* The connection was refused: asks with plain sockets for the reason, and whether another address of the name
 * answers. Then the question is sent there, since ZeroMQ drops what it held for the old address. */
static bool try_elsewhere(psctl_client *c, char *reason, size_t reason_bytes)
{
    char endpoint[sizeof c->endpoint];
    if (!psctl_reach(c->host, c->port, c->timeout_ms, endpoint, sizeof endpoint, reason, reason_bytes))
        return false;
    if (strcmp(endpoint, c->endpoint) == 0)
        return true; /* psd has just started; ZeroMQ tries again by itself */
    (void)zmq_disconnect(c->socket, c->endpoint);
    snprintf(c->endpoint, sizeof c->endpoint, "%s", endpoint);
    if (zmq_connect(c->socket, c->endpoint) == 0 &&
        zmq_send(c->socket, c->frame.data, c->frame.bytes, ZMQ_DONTWAIT) >= 0)
        return true;
    snprintf(reason, reason_bytes, "%s", zmq_strerror(errno));
    return false;
}

/* The news of the connection: PSCTL_FINE to go on waiting. */
static psctl_exit follow_link(psctl_client *c, char *why, size_t why_bytes)
{
    char reason[256] = "the connection closed";
    switch (read_monitor(c)) {
    case LINK_UP:
        c->connected = true;
        return PSCTL_FINE;
    case LINK_FAILED:
        if (!c->connected && try_elsewhere(c, reason, sizeof reason))
            return PSCTL_FINE;
        break;
    case LINK_FOREIGN:
        snprintf(reason, sizeof reason,
                 "what listens there ended the handshake: it is not psd, or is just ending");
        break;
    case LINK_NOTHING:
        return PSCTL_FINE;
    }
    say_unreachable(c, reason, why, why_bytes);
    return PSCTL_UNREACHABLE;
}

static void say_silent(const psctl_client *c, char *why, size_t why_bytes)
{
    char time[32];
    psd_format_ns(c->timeout_ms * PSD_NS_PER_MS, time, sizeof time);
    if (c->connected) {
        snprintf(why, why_bytes,
                 "no answer in %s from %s, which accepts connections: psd may be stuck or busy; try a longer "
                 "--timeout, then look at its log",
                 time, c->endpoint);
        return;
    }
    char reason[96];
    snprintf(reason, sizeof reason, "no answer in %s (a firewall, or not psd)", time);
    say_unreachable(c, reason, why, why_bytes);
}

/* One frame from psd before the deadline. */
static psctl_exit receive(psctl_client *c, psd_time_ns deadline, zmq_msg_t *frame, char *why,
                          size_t why_bytes)
{
    for (;;) {
        zmq_pollitem_t items[2] = {{.socket = c->socket, .events = ZMQ_POLLIN},
                                   {.socket = c->monitor, .events = ZMQ_POLLIN}};
        psd_time_ns left = deadline - psd_now_ns();
        if (left <= 0) {
            say_silent(c, why, why_bytes);
            return PSCTL_UNREACHABLE;
        }
        if (zmq_poll(items, 2, (long)(left / PSD_NS_PER_MS) + 1) < 0 && errno != EINTR) {
            snprintf(why, why_bytes, "cannot wait for %s: %s", c->endpoint, zmq_strerror(errno));
            return PSCTL_FAILED;
        }
        if (zmq_msg_recv(frame, c->socket, ZMQ_DONTWAIT) >= 0)
            return PSCTL_FINE;
        psctl_exit code = follow_link(c, why, why_bytes);
        if (code != PSCTL_FINE)
            return code;
    }
}

/* The decoded answer to request c->request; answers to others are dropped. */
static psctl_exit receive_reply(psctl_client *c, psd_msg_box **out, char *why, size_t why_bytes)
{
    psd_time_ns deadline = psd_deadline_ns(psd_now_ns(), c->timeout_ms);
    for (;;) {
        zmq_msg_t frame;
        psd_msg_box *box = NULL;
        char reason[256] = "";
        zmq_msg_init(&frame);
        psctl_exit code = receive(c, deadline, &frame, why, why_bytes);
        if (code != PSCTL_FINE) {
            zmq_msg_close(&frame);
            return code;
        }
        psd_status status =
            psd_wire_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), &box, reason, sizeof reason);
        zmq_msg_close(&frame);
        if (status != PSD_OK) {
            snprintf(why, why_bytes, "what %s answered is not understood: %s", c->endpoint, reason);
            return PSCTL_FAILED;
        }
        if (box->msg.request == c->request &&
            (box->msg.type == PSD_MSG_REPLY || box->msg.type == PSD_MSG_REFUSE)) {
            *out = box;
            return PSCTL_FINE;
        }
        psd_msg_box_free(box);
    }
}

static psctl_exit send_query(psctl_client *c, const char *view, const char *job, uint64_t after,
                             uint32_t limit, char *why, size_t why_bytes)
{
    psd_msg msg = {.type = PSD_MSG_QUERY, .request = ++c->request};
    snprintf(msg.u.query.view, sizeof msg.u.query.view, "%s", view);
    snprintf(msg.u.query.job, sizeof msg.u.query.job, "%s", job != NULL ? job : "");
    msg.u.query.after = after;
    msg.u.query.limit = limit;
    psd_status status = psd_wire_encode(&msg, &c->frame);
    if (status != PSD_OK) {
        snprintf(why, why_bytes, "cannot encode the question: %s", psd_status_sentence(status));
        return PSCTL_FAILED;
    }
    if (zmq_send(c->socket, c->frame.data, c->frame.bytes, ZMQ_DONTWAIT) < 0) {
        snprintf(why, why_bytes, "cannot send to %s: %s", c->endpoint, zmq_strerror(errno));
        return PSCTL_FAILED;
    }
    return PSCTL_FINE;
}

/* The first line of an error answer. */
static void say_refused(const psctl_client *c, const psd_msg *msg, char *why, size_t why_bytes)
{
    psd_status status = msg->type == PSD_MSG_REFUSE ? msg->u.refuse.status : msg->u.reply.status;
    const char *text = msg->type == PSD_MSG_REFUSE ? msg->u.refuse.text : msg->u.reply.text;
    if (text[0] != '\0')
        snprintf(why, why_bytes, "%s", text);
    else
        snprintf(why, why_bytes, "psd at %s refused: %s", c->endpoint, psd_status_sentence(status));
}

static bool same_columns(const psd_msg_reply *a, const psd_msg_reply *b)
{
    if (a->column_count != b->column_count)
        return false;
    for (uint32_t i = 0; i < a->column_count; i++) {
        if (a->columns[i].type != b->columns[i].type || strcmp(a->columns[i].name, b->columns[i].name) != 0)
            return false;
    }
    return true;
}

/* Moves the page into the answer. */
static psctl_exit add_page(psctl_client *c, psctl_answer *answer, psd_msg_box **page, char *why,
                           size_t why_bytes)
{
    const psd_msg *msg = &(*page)->msg;
    if (msg->type == PSD_MSG_REFUSE || msg->u.reply.status != PSD_OK) {
        say_refused(c, msg, why, why_bytes);
        return PSCTL_FAILED;
    }
    if (answer->count > 0 && !same_columns(&answer->pages[0]->msg.u.reply, &msg->u.reply)) {
        snprintf(why, why_bytes, "psd at %s changed the columns between two pages of an answer: ask again",
                 c->endpoint);
        return PSCTL_FAILED;
    }
    psd_msg_box **pages = realloc(answer->pages, (answer->count + 1) * sizeof(psd_msg_box *));
    if (pages == NULL) {
        snprintf(why, why_bytes, "out of memory");
        return PSCTL_FAILED;
    }
    answer->pages = pages;
    answer->pages[answer->count++] = *page;
    *page = NULL;
    return PSCTL_FINE;
}

psctl_exit psctl_client_ask(psctl_client *c, const char *view, const char *job, psctl_answer *out, char *why,
                            size_t why_bytes)
{
    psctl_answer answer = {0};
    psctl_exit code = PSCTL_FAILED;
    uint64_t after = 0;
    uint64_t rows = 0;
    do {
        psd_msg_box *page = NULL;
        uint32_t want =
            c->limit != 0 && c->limit - rows < PAGE_ROWS ? (uint32_t)(c->limit - rows) : PAGE_ROWS;
        code = send_query(c, view, job, after, want, why, why_bytes);
        if (code == PSCTL_FINE)
            code = receive_reply(c, &page, why, why_bytes);
        if (code == PSCTL_FINE)
            code = add_page(c, &answer, &page, why, why_bytes);
        psd_msg_box_free(page);
        if (code != PSCTL_FINE)
            break;
        const psd_msg_reply *reply = &answer.pages[answer.count - 1]->msg.u.reply;
        rows += reply->row_count;
        if (reply->next == 0 || (c->limit != 0 && rows >= c->limit))
            break;
        if (reply->next == after || answer.count >= MOST_PAGES) {
            snprintf(why, why_bytes, "the pages of psd at %s do not end: use --limit", c->endpoint);
            code = PSCTL_FAILED;
        }
        after = reply->next;
    } while (code == PSCTL_FINE);
    if (code != PSCTL_FINE)
        psctl_answer_free(&answer);
    else
        *out = answer;
    return code;
}

void psctl_answer_free(psctl_answer *answer)
{
    for (size_t i = 0; i < answer->count; i++)
        psd_msg_box_free(answer->pages[i]);
    free(answer->pages);
    *answer = (psctl_answer){0};
}

void psctl_answer_keep_last(psctl_answer *answer, uint32_t rows)
{
    uint64_t drop = 0;
    for (size_t i = 0; i < answer->count; i++)
        drop += answer->pages[i]->msg.u.reply.row_count;
    drop = drop > rows ? drop - rows : 0;
    for (size_t i = 0; i < answer->count && drop > 0; i++) {
        psd_msg_reply *page = &answer->pages[i]->msg.u.reply;
        uint32_t here = drop < page->row_count ? (uint32_t)drop : page->row_count;
        page->cells += (size_t)here * page->column_count;
        page->row_count -= here;
        drop -= here;
    }
}

psctl_exit psctl_client_ask_once(const psctl_options *options, const char *view, const char *job,
                                 psctl_answer *out, char *why, size_t why_bytes)
{
    psctl_client *client = NULL;
    psctl_exit code = psctl_client_open(options, &client, why, why_bytes);
    if (code == PSCTL_FINE)
        code = psctl_client_ask(client, view, job, out, why, why_bytes);
    psctl_client_close(client);
    return code;
}
