/* The agent's thread: one loop over the socket, the wake-up and its timers. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "common/log.h"
#include "worker/agent_impl.h"
#include "worker/log_tail.h"

#define FRAMES_A_TURN 64

/* ------------------------------------------------------------------------------------------------ sending */

/* False when the socket is full or not connected: the loop wakes up when it can be tried again. */
static bool send_frame(psd_agent *agent, const psd_wire_buffer *frame)
{
    bool sent = zmq_send(agent->socket, frame->data, frame->bytes, ZMQ_DONTWAIT) >= 0;
    agent->blocked = !sent;
    return sent;
}

static bool send_msg(psd_agent *agent, psd_msg *msg)
{
    msg->ident = agent->ident;
    return psd_wire_encode(msg, &agent->scratch) == PSD_OK && send_frame(agent, &agent->scratch);
}

static void send_hello(psd_agent *agent, psd_time_ns now)
{
    psd_msg msg = {.type = PSD_MSG_HELLO};
    msg.u.hello = agent->hello;
    send_msg(agent, &msg);
    if (!agent->blocked)
        agent->hello_sent = now;
    agent->hello_due = agent->blocked ? now : now + AGENT_HELLO_EVERY;
}

static void send_heartbeat(psd_agent *agent, psd_time_ns now)
{
    psd_msg msg = {.type = PSD_MSG_HEARTBEAT};
    agent->hooks.fill_heartbeat(agent->hooks.owner, &msg.u.heartbeat);
    msg.u.heartbeat.epoch = agent->hello.epoch;
    send_msg(agent, &msg);
    agent->heartbeat_due = now + (psd_time_ns)agent->welcome.heartbeat_ms * PSD_NS_PER_MS;
}

/* Lets psd know that a thread waits too long. What is lost is told again. */
static void look_for_hangs(psd_agent *agent, psd_time_ns now)
{
    psd_msg msg = {.type = PSD_MSG_STUCK};
    agent->look_due = now + agent->look_every;
    if (agent->hooks.is_stuck(agent->hooks.owner, now))
        send_msg(agent, &msg);
}

static void on_snapshot_ask(psd_agent *agent, const psd_msg *ask, psd_time_ns now)
{
    psd_msg msg = {.type = PSD_MSG_SNAPSHOT};
    void *memory = NULL;
    if (agent->hooks.snapshot == NULL ||
        agent->hooks.snapshot(agent->hooks.owner, now, &msg.u.snapshot, &memory) != PSD_OK)
        return; /* psd takes this rank for running */
    msg.u.snapshot.round = ask->u.snapshot.round;
    send_msg(agent, &msg);
    free(memory);
}

static bool is_progress(psd_msg_type type)
{
    return type == PSD_MSG_PLAN_PROGRESS || type == PSD_MSG_TABLE_PROGRESS;
}

/* Drops tells that a resync no longer needs: too old, or more than are kept. Under the lock. */
static void trim_outbox(psd_agent *agent, psd_time_ns now)
{
    int kept = 0;
    for (agent_out *entry = agent->outbox; entry != NULL; entry = entry->next)
        kept += entry->sent && !entry->is_call;
    for (agent_out *entry = agent->outbox, *next; entry != NULL; entry = next) {
        next = entry->next;
        if (entry->is_call || !entry->sent)
            continue;
        bool old = now - entry->made > AGENT_TELL_KEPT && agent->synced && agent->connected;
        if (kept > AGENT_TELLS_KEPT || is_progress(entry->type) || old) {
            agent_unlink_out(agent, entry);
            agent_out_free(entry);
            kept--;
        }
    }
}

/* Refused, or it has taken its leave: psd does not know this worker any more, and must not be asked to. */
static bool is_out(const psd_agent *agent)
{
    return agent->state == AGENT_OUT || agent->bye_acked;
}

/* Sends what waits, in order. BYE goes out even unsynced: it is how a worker that was never welcome takes its
 * HELLO back. */
static void flush_outbox(psd_agent *agent, psd_time_ns now)
{
    pthread_mutex_lock(&agent->lock);
    bool full = false;
    for (agent_out *entry = agent->outbox; entry != NULL && agent->unsent > 0 && !full; entry = entry->next) {
        if (entry->sent || !(agent->synced || entry->type == PSD_MSG_BYE))
            continue;
        full = agent->bye_acked || !send_frame(agent, &entry->frame);
        if (!full) {
            entry->sent = true;
            agent->unsent--;
        }
    }
    trim_outbox(agent, now);
    pthread_mutex_unlock(&agent->lock);
}

/* psd does not know what was sent on the old connection. Under the lock. */
static void unsend_all(psd_agent *agent)
{
    agent->unsent = 0;
    for (agent_out *entry = agent->outbox; entry != NULL; entry = entry->next) {
        entry->sent = entry->reply != NULL;
        agent->unsent += !entry->sent;
    }
}

/* ---------------------------------------------------------------------------------------------- receiving */

static void count_ignored(psd_agent *agent, const char *what)
{
    pthread_mutex_lock(&agent->lock);
    agent->ignored++;
    pthread_mutex_unlock(&agent->lock);
    psd_log(AGENT_SUBSYSTEM, PSD_LOG_TRACE, "ignored a frame from psd: %s", what);
}

/* Not, or no longer, admitted. */
static void go_out(psd_agent *agent, psd_status status, const char *text)
{
    pthread_mutex_lock(&agent->lock);
    bool was_joined = agent->state == AGENT_JOINED;
    bool first = agent->state != AGENT_OUT;
    if (first) {
        agent->state = AGENT_OUT;
        agent->status = status < PSD_OK ? status : PSD_ERR_REFUSED;
        snprintf(agent->text, sizeof agent->text, "%s", text);
        pthread_cond_broadcast(&agent->changed);
    }
    status = agent->status;
    pthread_mutex_unlock(&agent->lock);
    agent->synced = false;
    if (was_joined)
        agent->hooks.on_lost(agent->hooks.owner, status, text);
}

static void on_welcome(psd_agent *agent, const psd_msg_welcome *welcome, psd_time_ns now)
{
    if (agent->state == AGENT_OUT)
        return;
    if (agent->state == AGENT_JOINED && welcome->rank != agent->welcome.rank) {
        char text[160];
        snprintf(text, sizeof text,
                 "psd gave this worker rank %d after a reconnect, it was rank %d: start the job again",
                 welcome->rank, agent->welcome.rank);
        go_out(agent, PSD_ERR_REFUSED, text);
        return;
    }
    agent->hello.rank = welcome->rank;
    agent->hello.epoch = welcome->epoch;
    agent->hello.resume_token = welcome->resume_token;
    pthread_mutex_lock(&agent->lock);
    bool again = agent->state == AGENT_JOINED;
    agent->welcome = *welcome;
    if (agent->welcome.heartbeat_ms < 10)
        agent->welcome.heartbeat_ms = 10;
    agent->state = AGENT_JOINED;
    if (again && !agent->synced)
        unsend_all(agent);
    pthread_cond_broadcast(&agent->changed);
    pthread_mutex_unlock(&agent->lock);
    agent->synced = true;
    agent->heartbeat_due = now;
    psd_log(AGENT_SUBSYSTEM, PSD_LOG_INFO, "%s at %s as rank %d of %d, epoch %llu",
            again ? "known again" : "welcome", agent->coordinator, welcome->rank, welcome->world,
            (unsigned long long)welcome->epoch);
}

static void on_waiting(psd_agent *agent, const psd_msg_waiting *waiting, psd_time_ns now)
{
    pthread_mutex_lock(&agent->lock);
    if (agent->state == AGENT_JOINING)
        snprintf(agent->text, sizeof agent->text, "%s", waiting->text);
    pthread_mutex_unlock(&agent->lock);
    agent->hello_due = now + AGENT_WAITING_EVERY;
}

static void on_resync(psd_agent *agent, psd_time_ns now)
{
    if (is_out(agent))
        return;
    agent->synced = false;
    psd_time_ns earliest = agent->hello_sent + AGENT_HELLO_LEAST;
    if (now >= earliest)
        send_hello(agent, now);
    else if (agent->hello_due > earliest)
        agent->hello_due = earliest;
}

static void on_ask_token(psd_agent *agent, const psd_msg *ask)
{
    psd_msg msg = {.type = PSD_MSG_GROUP_TOKEN, .request = ask->request};
    uint32_t group = ask->u.group_token.group;
    psd_status status = agent->hooks.make_token(agent->hooks.owner, msg.u.group_token.token,
                                                sizeof msg.u.group_token.token, &msg.u.group_token.bytes);
    msg.u.group_token.group = group;
    if (status != PSD_OK) {
        memset(&msg, 0, sizeof msg);
        msg.type = PSD_MSG_GROUP_FAIL;
        msg.u.abort.group = group;
        msg.u.abort.epoch = agent->hello.epoch;
        msg.u.abort.status = status;
        msg.u.abort.culprit = agent->welcome.rank;
        snprintf(msg.u.abort.text, sizeof msg.u.abort.text, "rank %d could not make the group's token",
                 agent->welcome.rank);
    }
    pthread_mutex_lock(&agent->lock);
    status = agent_enqueue(agent, &msg, false, NULL);
    pthread_mutex_unlock(&agent->lock);
    if (status != PSD_OK)
        psd_log(AGENT_SUBSYSTEM, PSD_LOG_WARN,
                "cannot answer psd's request for a group token: out of memory");
}

/* An answer that gets lost is asked for again, by a person. */
static void on_ask_log(psd_agent *agent, const psd_msg_query *ask)
{
    char path[512];
    psd_msg msg = {.type = PSD_MSG_LOG};
    psd_log_tail *tail = malloc(sizeof *tail);
    if (tail == NULL)
        return;
    const char *file =
        agent->hooks.log_file != NULL ? agent->hooks.log_file(agent->hooks.owner, path, sizeof path) : NULL;
    psd_log_tail_read(file, ask->limit, tail, &msg.u.reply);
    msg.u.reply.next = ask->after;
    send_msg(agent, &msg);
    free(tail);
}

static void on_ask_ops(psd_agent *agent, const psd_msg_query *ask, psd_time_ns now)
{
    psd_msg msg = {.type = PSD_MSG_OPS};
    void *memory = NULL;
    psd_status status = PSD_ERR_UNSUPPORTED;
    if (agent->hooks.last_ops != NULL)
        status = agent->hooks.last_ops(agent->hooks.owner, now, ask->limit, &msg.u.reply, &memory);
    if (status != PSD_OK) {
        msg.u.reply.status = status;
        snprintf(msg.u.reply.text, sizeof msg.u.reply.text, "rank %d has no record of its operations: %s",
                 agent->welcome.rank, status == PSD_ERR_NOMEM ? "out of memory" : "PSD_RECORD=off");
    }
    msg.u.reply.next = ask->after;
    send_msg(agent, &msg);
    free(memory);
}

/* Did the caller of this request give it up? An answer that comes a second time, after a resync, has found its
 * caller before. */
static bool was_given_up(psd_agent *agent, uint64_t request)
{
    bool found = false;
    pthread_mutex_lock(&agent->lock);
    for (size_t i = 0; i < AGENT_GIVEN_UP && !found; i++)
        found = agent->given_up[i] == request;
    pthread_mutex_unlock(&agent->lock);
    return found;
}

/* The caller gave up before the other members had asked: they must not wait for this rank, nor psd
 * for it to close what it never had. */
static void decline_group(psd_agent *agent, const psd_msg_group_opened *opened)
{
    psd_msg msg = {.type = PSD_MSG_GROUP_FAIL};
    if (opened->group == 0)
        return;
    msg.u.abort.group = opened->group;
    msg.u.abort.epoch = opened->epoch;
    msg.u.abort.status = PSD_ERR_TIMEOUT;
    msg.u.abort.culprit = agent->welcome.rank;
    snprintf(msg.u.abort.text, sizeof msg.u.abort.text,
             "rank %d stopped waiting for the group before it was complete", agent->welcome.rank);
    psd_msg close = {.type = PSD_MSG_GROUP_CLOSE, .u.group = {.group = opened->group}};
    pthread_mutex_lock(&agent->lock);
    agent_enqueue(agent, &msg, false, NULL);
    agent_enqueue(agent, &close, false, NULL);
    pthread_mutex_unlock(&agent->lock);
}

static void on_stop(psd_agent *agent, const psd_msg_stop *stop)
{
    pthread_mutex_lock(&agent->lock);
    bool first = !agent->stopped_by_job;
    agent->stopped_by_job = true;
    if (first && agent->state != AGENT_OUT)
        snprintf(agent->text, sizeof agent->text, "%s", stop->text);
    pthread_cond_broadcast(&agent->changed);
    pthread_mutex_unlock(&agent->lock);
    if (first)
        agent->hooks.on_stop(agent->hooks.owner, stop->text);
}

/* Is the same said already by one that waits? psd repeats itself after a resync. Under the lock. */
static bool is_kept(const psd_agent *agent, const psd_msg *msg)
{
    bool found = false;
    for (const agent_in *entry = agent->inbox; entry != NULL && !found; entry = entry->next)
        found = entry->box->msg.type == msg->type && agent_msg_key(&entry->box->msg) == agent_msg_key(msg);
    return found;
}

/* Keeps an unsolicited message until somebody takes it. */
static void keep(psd_agent *agent, psd_msg_box **box)
{
    agent_in *entry = calloc(1, sizeof *entry);
    pthread_mutex_lock(&agent->lock);
    if (is_kept(agent, &(*box)->msg)) {
        free(entry);
    } else if (entry == NULL || agent->inbox_count >= AGENT_INBOX_MAX) {
        psd_log(AGENT_SUBSYSTEM, PSD_LOG_WARN, "dropped %s from psd: %d messages already wait to be taken",
                psd_msg_name((*box)->msg.type), agent->inbox_count);
        agent->ignored++;
        free(entry);
    } else {
        entry->box = *box;
        *box = NULL;
        *agent->inbox_tail = entry;
        agent->inbox_tail = &entry->next;
        agent->inbox_count++;
        pthread_cond_broadcast(&agent->changed);
    }
    pthread_mutex_unlock(&agent->lock);
}

/* Hands an answer to its call; false if nobody waits for it. */
static bool answer(psd_agent *agent, psd_msg_box **box)
{
    bool found = false;
    pthread_mutex_lock(&agent->lock);
    for (agent_out *entry = agent->outbox; entry != NULL && !found; entry = entry->next) {
        if (!entry->is_call || entry->request != (*box)->msg.request || entry->reply != NULL)
            continue;
        if ((*box)->msg.type == PSD_MSG_BYE_ACK)
            agent->bye_acked = true;
        entry->reply = *box;
        *box = NULL;
        found = true;
        pthread_cond_broadcast(&agent->changed);
    }
    pthread_mutex_unlock(&agent->lock);
    return found;
}

/* Messages that are no answer to a request. Takes the box when it keeps it. */
static void on_unsolicited(psd_agent *agent, psd_msg_box **box, psd_time_ns now)
{
    const psd_msg *msg = &(*box)->msg;
    switch (msg->type) {
    case PSD_MSG_WAITING:
        on_waiting(agent, &msg->u.waiting, now);
        break;
    case PSD_MSG_WELCOME:
        on_welcome(agent, &msg->u.welcome, now);
        break;
    case PSD_MSG_REFUSE:
        /* Of a HELLO. Once psd knows this connection there is none to refuse. */
        if (agent->synced)
            count_ignored(agent, "REFUSE without a request");
        else
            go_out(agent, msg->u.refuse.status, msg->u.refuse.text);
        break;
    case PSD_MSG_RESYNC:
        on_resync(agent, now);
        break;
    case PSD_MSG_GROUP_ASK_TOKEN:
        on_ask_token(agent, msg);
        break;
    case PSD_MSG_SNAPSHOT_ASK:
        on_snapshot_ask(agent, msg, now);
        break;
    case PSD_MSG_LOG_ASK:
        on_ask_log(agent, &msg->u.query);
        break;
    case PSD_MSG_OPS_ASK:
        on_ask_ops(agent, &msg->u.query, now);
        break;
    case PSD_MSG_STOP:
        on_stop(agent, &msg->u.stop);
        break;
    case PSD_MSG_ABORT:
        agent->hooks.on_abort(agent->hooks.owner, &msg->u.abort);
        keep(agent, box);
        break;
    case PSD_MSG_GROUP_OPENED:
    case PSD_MSG_GROUP_GO:
    case PSD_MSG_TABLE_ASSIGN:
    case PSD_MSG_TABLE_OPENED:
    case PSD_MSG_TABLE_FREE:
        keep(agent, box);
        break;
    default:
        count_ignored(agent, psd_msg_name(msg->type));
        break;
    }
}

static void on_frame(psd_agent *agent, const void *data, size_t bytes, psd_time_ns now)
{
    char why[256];
    psd_msg_box *box = NULL;
    psd_status status = psd_wire_decode(data, bytes, &box, why, sizeof why);
    if (status == PSD_ERR_PROTOCOL && agent->state == AGENT_JOINING)
        go_out(agent, status, why);
    if (status != PSD_OK) {
        count_ignored(agent, why);
        return;
    }
    const psd_msg *msg = &box->msg;
    pthread_mutex_lock(&agent->lock);
    agent->heard = true;
    pthread_mutex_unlock(&agent->lock);
    psd_log(AGENT_SUBSYSTEM, PSD_LOG_TRACE, "got %s, request %llu", psd_msg_name(msg->type),
            (unsigned long long)msg->request);
    /* RESYNC goes to a connection that psd cannot tell the owner of. */
    if (msg->ident.incarnation != 0 && msg->ident.incarnation != agent->ident.incarnation)
        count_ignored(agent, "meant for another incarnation");
    else if (msg->request != 0 && msg->type != PSD_MSG_GROUP_ASK_TOKEN) {
        if (!answer(agent, &box)) {
            count_ignored(agent, "an answer that nobody waits for");
            if (msg->type == PSD_MSG_GROUP_OPENED && was_given_up(agent, msg->request))
                decline_group(agent, &msg->u.group_opened);
        }
    } else {
        on_unsolicited(agent, &box, now);
    }
    psd_msg_box_free(box);
}

/* A leave that waits for its answer is said again; psd may have taken it, and then must not be asked to admit
 * this worker. False: none waits. */
static bool repeat_bye(psd_agent *agent)
{
    bool found = false;
    pthread_mutex_lock(&agent->lock);
    for (agent_out *entry = agent->outbox; entry != NULL && !found; entry = entry->next) {
        found = entry->type == PSD_MSG_BYE && entry->reply == NULL;
        agent->unsent += found && entry->sent;
        entry->sent = entry->sent && !found;
    }
    pthread_mutex_unlock(&agent->lock);
    return found;
}

/* A new connection. What was sent on the old one may be lost, and the psd at the other end may be another:
 * HELLO is said at once, not when a RESYNC asks for it. One sent a moment ago went out on this connection. */
static void on_connected(psd_agent *agent, psd_time_ns now)
{
    if (repeat_bye(agent))
        return;
    if (agent->hello_sent != 0 && now - agent->hello_sent >= AGENT_HELLO_LEAST)
        on_resync(agent, now);
}

static void watch_connections(psd_agent *agent, psd_time_ns now)
{
    zmq_msg_t frame;
    bool got = true;
    while (got) {
        zmq_msg_init(&frame);
        got = zmq_msg_recv(&frame, agent->monitor, ZMQ_DONTWAIT) >= 0;
        /* An event has two frames: the number, and the address. */
        if (got && zmq_msg_more(&frame))
            on_connected(agent, now);
        zmq_msg_close(&frame);
    }
}

static void receive(psd_agent *agent, psd_time_ns now)
{
    zmq_msg_t frame;
    for (int i = 0; i < FRAMES_A_TURN; i++) {
        zmq_msg_init(&frame);
        bool got = zmq_msg_recv(&frame, agent->socket, ZMQ_DONTWAIT) >= 0;
        if (got && zmq_msg_size(&frame) > 0)
            on_frame(agent, zmq_msg_data(&frame), zmq_msg_size(&frame), now);
        zmq_msg_close(&frame);
        if (!got)
            break;
    }
}

/* --------------------------------------------------------------------------------------------------- loop */

static void run_timers(psd_agent *agent, psd_time_ns now)
{
    if (is_out(agent))
        return;
    if (!agent->synced && now >= agent->hello_due)
        send_hello(agent, now);
    if (agent->synced && now >= agent->heartbeat_due)
        send_heartbeat(agent, now);
    if (agent->synced && agent->hooks.is_stuck != NULL && now >= agent->look_due)
        look_for_hangs(agent, now);
}

/* Under the lock. Is there a connection, with room for messages? */
static void look_at_connection(psd_agent *agent, psd_time_ns now)
{
    int events = 0;
    size_t bytes = sizeof events;
    bool connected =
        zmq_getsockopt(agent->socket, ZMQ_EVENTS, &events, &bytes) == 0 && (events & ZMQ_POLLOUT) != 0;
    if (connected != agent->connected)
        pthread_cond_broadcast(&agent->changed);
    if (!connected && (agent->connected || agent->cut_at == 0))
        agent->cut_at = now;
    agent->connected = connected;
}

static long next_timeout_ms(const psd_agent *agent, psd_time_ns now)
{
    psd_time_ns due = agent->synced ? agent->heartbeat_due : agent->hello_due;
    if (agent->synced && agent->hooks.is_stuck != NULL && agent->look_due < due)
        due = agent->look_due;
    if (is_out(agent))
        due = now + PSD_NS_PER_S;
    else if (agent->blocked && due < now + AGENT_HELLO_EVERY)
        due = now + AGENT_HELLO_EVERY; /* or once there is room */
    return due <= now ? 0 : (long)((due - now + PSD_NS_PER_MS - 1) / PSD_NS_PER_MS);
}

void *agent_loop(void *argument)
{
    psd_agent *agent = argument;
    zmq_pollitem_t items[3] = {
        {.socket = agent->socket, .events = ZMQ_POLLIN},
        {.fd = agent->wake_fd, .events = ZMQ_POLLIN},
        {.socket = agent->monitor, .events = ZMQ_POLLIN},
    };
    bool stop = false;
    while (!stop) {
        psd_time_ns now = psd_now_ns();
        agent->blocked = false;
        run_timers(agent, now);
        flush_outbox(agent, now);
        pthread_mutex_lock(&agent->lock);
        stop = agent->stop;
        look_at_connection(agent, now);
        pthread_mutex_unlock(&agent->lock);
        if (stop)
            break;
        items[0].events = (short)(agent->blocked ? ZMQ_POLLIN | ZMQ_POLLOUT : ZMQ_POLLIN);
        if (zmq_poll(items, 3, next_timeout_ms(agent, now)) < 0 && zmq_errno() != EINTR) {
            char text[128];
            snprintf(text, sizeof text, "the connection to psd failed: %s", zmq_strerror(zmq_errno()));
            go_out(agent, PSD_ERR_IO, text);
            break;
        }
        uint64_t woken;
        if (read(agent->wake_fd, &woken, sizeof woken) < 0 && errno != EAGAIN)
            psd_log(AGENT_SUBSYSTEM, PSD_LOG_WARN, "reading the wake-up failed: %s", strerror(errno));
        watch_connections(agent, psd_now_ns());
        receive(agent, psd_now_ns());
    }
    flush_outbox(agent, psd_now_ns());
    return NULL;
}
