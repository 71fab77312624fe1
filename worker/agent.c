/* What other threads call of the agent: start and stop it, join, tell, call, take. */
#include "worker/agent.h"

#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "common/conf.h"
#include "common/log.h"
#include "common/status.h"
#include "worker/agent_impl.h"

/* One sleep of a condition wait at most, so that a deadline of PSD_NEVER needs no special case. */
#define SLEEP_MOST (3600 * PSD_NS_PER_S)
/* A join without a word from psd for this long is told, once. */
#define JOIN_QUIET (2 * PSD_NS_PER_S)
/* How long past its deadline a request waits for psd to say who has not made it. */
#define CANCEL_ANSWER_MS 1000

static void wake(psd_agent *agent)
{
    uint64_t one = 1;
    /* Fails only when the counter is full, and then the thread is awake anyway. */
    ssize_t written = write(agent->wake_fd, &one, sizeof one);
    (void)written;
}

/* What psd said; never nothing. */
static void copy_reason(char *why, size_t why_bytes, const char *text, psd_status status)
{
    snprintf(why, why_bytes, "%s", text[0] != '\0' ? text : psd_status_sentence(status));
}

/* Under the lock. Sleeps until something changed; false once the deadline has passed. */
static bool sleep_until(psd_agent *agent, psd_time_ns deadline)
{
    psd_time_ns now = psd_now_ns();
    if (now >= deadline)
        return false;
    psd_time_ns until = deadline - now > SLEEP_MOST ? now + SLEEP_MOST : deadline;
    struct timespec at = {.tv_sec = (time_t)(until / PSD_NS_PER_S), .tv_nsec = (long)(until % PSD_NS_PER_S)};
    pthread_cond_timedwait(&agent->changed, &agent->lock, &at);
    return true;
}

/* "" if the coordinator's host can be resolved, else why not: what a user most often got wrong. */
static void check_resolves(const char *coordinator, char *out, size_t out_bytes)
{
    char host[192];
    uint16_t port = 0;
    struct addrinfo *found = NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    out[0] = '\0';
    if (!psd_parse_endpoint(coordinator, host, sizeof host, &port))
        return;
    int error = getaddrinfo(host, NULL, &hints, &found);
    if (error != 0)
        snprintf(out, out_bytes, "host name %s cannot be resolved: %s", host,
                 error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
    else
        freeaddrinfo(found);
}

/* -------------------------------------------------------------------------------------------- start, stop */

static psd_status open_socket(psd_agent *agent, char *why, size_t why_bytes)
{
    static const struct {
        int option;
        int value;
    } options[] = {
        {ZMQ_LINGER, 0},
        {ZMQ_IMMEDIATE, 1}, /* no queue without a connection: a failed send says that there is none */
        {ZMQ_SNDHWM, 1000},
        {ZMQ_RCVHWM, 1000},
        {ZMQ_IPV6, 1},
        {ZMQ_RECONNECT_IVL, 100},
        {ZMQ_RECONNECT_IVL_MAX, 1000},
        {ZMQ_HEARTBEAT_IVL, 2000},
        {ZMQ_HEARTBEAT_TIMEOUT, 6000},
        {ZMQ_CONNECT_TIMEOUT, 5000},
    };
    int64_t frame_most = PSD_MAX_FRAME;
    int no_linger = 0;
    psd_status status = PSD_ERR_IO;
    agent->zmq = zmq_ctx_new();
    if (agent->zmq == NULL)
        goto fail;
    agent->socket = zmq_socket(agent->zmq, ZMQ_DEALER);
    if (agent->socket == NULL)
        goto fail_context;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (zmq_setsockopt(agent->socket, options[i].option, &options[i].value, sizeof options[i].value) != 0)
            goto fail_socket;
    if (zmq_setsockopt(agent->socket, ZMQ_MAXMSGSIZE, &frame_most, sizeof frame_most) != 0)
        goto fail_socket;
    if (zmq_socket_monitor(agent->socket, AGENT_MONITOR, ZMQ_EVENT_HANDSHAKE_SUCCEEDED) != 0)
        goto fail_socket;
    agent->monitor = zmq_socket(agent->zmq, ZMQ_PAIR);
    if (agent->monitor == NULL)
        goto fail_socket;
    if (zmq_setsockopt(agent->monitor, ZMQ_LINGER, &no_linger, sizeof no_linger) != 0 ||
        zmq_connect(agent->monitor, AGENT_MONITOR) != 0)
        goto fail_monitor;
    if (zmq_connect(agent->socket, agent->coordinator) != 0) {
        status = PSD_ERR_UNREACHABLE;
        goto fail_monitor;
    }
    return PSD_OK;

fail_monitor:
    zmq_close(agent->monitor);
fail_socket:
    snprintf(why, why_bytes, "cannot connect to %s: %s; check PSD_COORDINATOR", agent->coordinator,
             zmq_strerror(zmq_errno()));
    zmq_close(agent->socket);
    zmq_ctx_term(agent->zmq);
    return status;
fail_context:
    zmq_ctx_term(agent->zmq);
fail:
    snprintf(why, why_bytes, "cannot make a ZeroMQ socket: %s", zmq_strerror(zmq_errno()));
    return status;
}

/* The thread takes no signals: they are the program's. */
static int start_thread(psd_agent *agent)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&agent->thread, NULL, agent_loop, agent);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static psd_status init_locks(psd_agent *agent)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0)
        return PSD_ERR_NOMEM;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    psd_status status = pthread_cond_init(&agent->changed, &attributes) == 0 ? PSD_OK : PSD_ERR_NOMEM;
    pthread_condattr_destroy(&attributes);
    if (status == PSD_OK && pthread_mutex_init(&agent->lock, NULL) != 0) {
        pthread_cond_destroy(&agent->changed);
        status = PSD_ERR_NOMEM;
    }
    return status;
}

psd_status psd_agent_start(const psd_agent_config *config, psd_agent **out, char *why, size_t why_bytes)
{
    psd_status status = PSD_ERR_NOMEM;
    psd_agent *agent = calloc(1, sizeof *agent);
    snprintf(why, why_bytes, "out of memory starting the agent");
    if (agent == NULL)
        goto fail;
    snprintf(agent->coordinator, sizeof agent->coordinator, "%s", config->coordinator);
    agent->ident = config->ident;
    agent->hello = config->hello;
    agent->hooks = config->hooks;
    agent->look_every = config->look_every > PSD_NS_PER_MS ? config->look_every : PSD_NS_PER_MS;
    agent->outbox_tail = &agent->outbox;
    agent->inbox_tail = &agent->inbox;
    agent->next_request = 1;
    status = init_locks(agent);
    if (status != PSD_OK)
        goto fail_agent;
    agent->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (agent->wake_fd < 0) {
        snprintf(why, why_bytes, "cannot make an eventfd: %s", strerror(errno));
        status = PSD_ERR_IO;
        goto fail_locks;
    }
    status = open_socket(agent, why, why_bytes);
    if (status != PSD_OK)
        goto fail_wake;
    int error = start_thread(agent);
    if (error != 0) {
        snprintf(why, why_bytes, "cannot start the agent's thread: %s", strerror(error));
        status = PSD_ERR_NOMEM;
        goto fail_socket;
    }
    *out = agent;
    return PSD_OK;

fail_socket:
    zmq_close(agent->monitor);
    zmq_close(agent->socket);
    zmq_ctx_term(agent->zmq);
fail_wake:
    close(agent->wake_fd);
fail_locks:
    pthread_mutex_destroy(&agent->lock);
    pthread_cond_destroy(&agent->changed);
fail_agent:
    free(agent);
fail:
    return status;
}

void psd_agent_stop(psd_agent *agent)
{
    if (agent == NULL)
        return;
    pthread_mutex_lock(&agent->lock);
    agent->stop = true;
    /* Without an acknowledged BYE something may still be on its way: give it a second, no more. */
    int linger = agent->bye_acked || !agent->connected ? 0 : 1000;
    pthread_mutex_unlock(&agent->lock);
    wake(agent);
    pthread_join(agent->thread, NULL);
    if (agent->ignored > 0)
        psd_log(AGENT_SUBSYSTEM, PSD_LOG_INFO, "%llu frames from psd were ignored",
                (unsigned long long)psd_agent_ignored(agent));
    zmq_setsockopt(agent->socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_close(agent->monitor);
    zmq_close(agent->socket);
    zmq_ctx_term(agent->zmq);
    while (agent->outbox != NULL) {
        agent_out *entry = agent->outbox;
        agent->outbox = entry->next;
        agent_out_free(entry);
    }
    while (agent->inbox != NULL)
        agent_inbox_drop(agent, &agent->inbox);
    close(agent->wake_fd);
    psd_wire_buffer_free(&agent->scratch);
    pthread_mutex_destroy(&agent->lock);
    pthread_cond_destroy(&agent->changed);
    free(agent);
}

/* ------------------------------------------------------------------------------------------------ joining */

/* Without the lock: resolving may take its time. */
static psd_status explain_no_join(psd_agent *agent, bool heard, const char *said, psd_time_ns waited,
                                  char *why, size_t why_bytes)
{
    char took[32], name_error[320];
    psd_format_ns(waited, took, sizeof took);
    if (heard) {
        /* In "have 1 of 2, 1 more worker must come" the time belongs to what there is. */
        const char *comma = strstr(said, " must come") != NULL ? strstr(said, ", ") : NULL;
        const char *what = said[0] != '\0' ? said : "the world is not complete";
        snprintf(why, why_bytes,
                 "psd at %s: %.*s after %s%s%s; start the missing ranks, or raise PSD_JOIN_TIMEOUT_MS",
                 agent->coordinator, (int)(comma != NULL ? (size_t)(comma - said) : strlen(what)), what, took,
                 comma != NULL ? ": " : "", comma != NULL ? comma + 2 : "");
        return PSD_ERR_TIMEOUT;
    }
    check_resolves(agent->coordinator, name_error, sizeof name_error);
    snprintf(why, why_bytes,
             "no coordinator answered at %s for %s%s%s; start psd there, or set PSD_COORDINATOR",
             agent->coordinator, took, name_error[0] != '\0' ? ": " : "", name_error);
    return PSD_ERR_NO_COORDINATOR;
}

/* Under the lock. */
static bool is_joining(const psd_agent *agent)
{
    return agent->state == AGENT_JOINING && !agent->stopped_by_job;
}

/* Once in a join: a minute of silence makes people think of everything but a psd that does not run. */
static void warn_no_answer(const char *coordinator, psd_time_ns begun, psd_time_ns deadline)
{
    char more[32], left[64] = "";
    int64_t seconds = (deadline - begun - JOIN_QUIET + PSD_NS_PER_S / 2) / PSD_NS_PER_S;
    if (deadline != PSD_NEVER)
        snprintf(left, sizeof left, " for %s more", psd_format_ns(seconds * PSD_NS_PER_S, more, sizeof more));
    psd_log(AGENT_SUBSYSTEM, PSD_LOG_WARN,
            "no answer from psd at %s yet; trying%s (is psd running? psrun --standalone starts one)",
            coordinator, left);
}

psd_status psd_agent_join(psd_agent *agent, psd_time_ns deadline, psd_msg_welcome *welcome, char *why,
                          size_t why_bytes)
{
    char said[PSD_MAX_TEXT];
    psd_time_ns begun = psd_now_ns();
    check_resolves(agent->coordinator, said, sizeof said);
    if (said[0] != '\0')
        psd_log(AGENT_SUBSYSTEM, PSD_LOG_WARN, "coordinator %s: %s; trying until the join timeout",
                agent->coordinator, said);
    pthread_mutex_lock(&agent->lock);
    psd_time_ns soon = begun + JOIN_QUIET;
    while (is_joining(agent) && !agent->heard && soon < deadline && sleep_until(agent, soon))
        ;
    if (is_joining(agent) && !agent->heard && soon < deadline)
        warn_no_answer(agent->coordinator, begun, deadline);
    while (is_joining(agent) && sleep_until(agent, deadline))
        ;
    agent_state state = agent->state;
    bool stopped = agent->stopped_by_job;
    psd_status status = agent->status;
    bool heard = agent->heard;
    snprintf(said, sizeof said, "%s", agent->text);
    if (state == AGENT_JOINED) {
        *welcome = agent->welcome;
        status = PSD_OK;
    }
    pthread_mutex_unlock(&agent->lock);
    if (stopped) {
        snprintf(why, why_bytes, "psd at %s: %s", agent->coordinator, said);
        return PSD_ERR_STOPPED;
    }
    if (state == AGENT_JOINING)
        return explain_no_join(agent, heard, said, psd_now_ns() - begun, why, why_bytes);
    if (state == AGENT_OUT)
        snprintf(why, why_bytes, "psd at %s refused: %s", agent->coordinator, said);
    return status;
}

/* ------------------------------------------------------------------------------------------------ sending */

void agent_out_free(agent_out *entry)
{
    psd_wire_buffer_free(&entry->frame);
    psd_msg_box_free(entry->reply);
    free(entry);
}

void agent_unlink_out(psd_agent *agent, agent_out *entry)
{
    agent_out **link = &agent->outbox;
    while (*link != entry)
        link = &(*link)->next;
    *link = entry->next;
    if (agent->outbox_tail == &entry->next)
        agent->outbox_tail = link;
    if (!entry->sent)
        agent->unsent--;
}

/* Names and reasons come from the program: what is not UTF-8, or was cut inside a character, must not make
 * psd refuse the whole message. */
static void make_utf8(char *text)
{
    if (psd_utf8_valid(text, strlen(text)))
        return;
    for (char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c >= 0x80)
            *c = '?';
}

static void clean_abort(psd_msg_abort *abort)
{
    make_utf8(abort->text);
    for (uint32_t i = 0; i < abort->side_count; i++) {
        make_utf8(abort->sides[i].name);
        make_utf8(abort->sides[i].site);
    }
}

static void clean_texts(psd_msg *msg)
{
    if (msg->type == PSD_MSG_GROUP_FAIL)
        clean_abort(&msg->u.abort);
    else if (msg->type == PSD_MSG_BYE)
        make_utf8(msg->u.bye.text);
    else if (msg->type == PSD_MSG_TABLE_READY)
        make_utf8(msg->u.table.text);
}

psd_status agent_enqueue(psd_agent *agent, const psd_msg *msg, bool is_call, agent_out **out)
{
    if (agent->unsent >= AGENT_OUTBOX_MAX)
        return PSD_ERR_LIMIT;
    psd_status status = PSD_ERR_NOMEM;
    psd_msg *full = malloc(sizeof *full);
    agent_out *entry = calloc(1, sizeof *entry);
    if (full == NULL || entry == NULL)
        goto fail;
    *full = *msg;
    full->ident = agent->ident;
    clean_texts(full);
    if (is_call)
        full->request = agent->next_request++;
    status = psd_wire_encode(full, &entry->frame);
    if (status != PSD_OK)
        goto fail;
    entry->type = msg->type;
    entry->made = psd_now_ns();
    entry->is_call = is_call;
    entry->request = full->request;
    *agent->outbox_tail = entry;
    agent->outbox_tail = &entry->next;
    agent->unsent++;
    if (out != NULL)
        *out = entry;
    free(full);
    return PSD_OK;

fail:
    if (entry != NULL)
        agent_out_free(entry);
    free(full);
    return status;
}

psd_status psd_agent_tell(psd_agent *agent, const psd_msg *msg)
{
    pthread_mutex_lock(&agent->lock);
    psd_status status = agent_enqueue(agent, msg, false, NULL);
    pthread_mutex_unlock(&agent->lock);
    wake(agent);
    return status;
}

/* Under the lock. */
static psd_status no_answer(psd_agent *agent, const psd_msg *msg, psd_time_ns waited, char *why,
                            size_t why_bytes)
{
    char took[32];
    psd_format_ns(waited, took, sizeof took);
    snprintf(why, why_bytes, "psd at %s %s %s for %s; is it running?", agent->coordinator,
             agent->connected ? "did not answer" : "is not connected, and did not answer",
             psd_msg_name(msg->type), took);
    return PSD_ERR_TIMEOUT;
}

/* Is this a request that psd answers only once other ranks have made it too? */
static bool needs_others(psd_msg_type type)
{
    return type == PSD_MSG_GROUP_OPEN || type == PSD_MSG_PLAN_OPEN || type == PSD_MSG_PLAN_READY ||
           type == PSD_MSG_TABLE_OPEN;
}

/* Answered, or not to be answered any more: when the job is told to stop, others need not come. Under the
 * lock. */
static bool is_over(const psd_agent *agent, const agent_out *call)
{
    return call->reply != NULL || agent->state == AGENT_OUT ||
           (agent->stopped_by_job && needs_others(call->type));
}

/* BYE of a psd that is gone does not wait for it to come back as long as other requests. Under the lock. */
static psd_time_ns give_up_at(const psd_agent *agent, const agent_out *call, psd_time_ns deadline)
{
    psd_time_ns alone = call->made + AGENT_BYE_ALONE;
    return call->type == PSD_MSG_BYE && !agent->connected && alone < deadline ? alone : deadline;
}

/* Takes a request back at its deadline: psd then says who has not made it. Under the lock. */
static void cancel(psd_agent *agent, agent_out *entry)
{
    psd_msg msg = {.type = PSD_MSG_CANCEL, .request = entry->request};
    if (agent_enqueue(agent, &msg, false, NULL) != PSD_OK)
        return;
    wake(agent);
    psd_time_ns last = psd_deadline_ns(psd_now_ns(), CANCEL_ANSWER_MS);
    while (!is_over(agent, entry) && sleep_until(agent, last))
        ;
}

psd_status psd_agent_call(psd_agent *agent, const psd_msg *msg, psd_time_ns deadline, psd_msg_box **reply,
                          char *why, size_t why_bytes)
{
    agent_out *entry = NULL;
    psd_time_ns begun = psd_now_ns();
    pthread_mutex_lock(&agent->lock);
    psd_status status = agent_enqueue(agent, msg, true, &entry);
    if (status != PSD_OK) {
        snprintf(why, why_bytes, "cannot send %s to psd: %s", psd_msg_name(msg->type),
                 status == PSD_ERR_LIMIT ? "it is too large, or too much waits to be sent" : "out of memory");
        goto unlock;
    }
    wake(agent);
    while (!is_over(agent, entry) && sleep_until(agent, give_up_at(agent, entry, deadline)))
        ;
    if (!is_over(agent, entry) && agent->state == AGENT_JOINED && needs_others(msg->type))
        cancel(agent, entry);
    if (entry->reply == NULL && is_over(agent, entry)) {
        status = agent->state == AGENT_OUT ? agent->status : PSD_ERR_STOPPED;
        snprintf(why, why_bytes, "%s", agent->text);
    } else if (entry->reply == NULL) {
        status = no_answer(agent, msg, psd_now_ns() - begun, why, why_bytes);
    } else if (entry->reply->msg.type == PSD_MSG_REFUSE) {
        status = entry->reply->msg.u.refuse.status;
        if (status >= PSD_OK)
            status = PSD_ERR_REFUSED;
        copy_reason(why, why_bytes, entry->reply->msg.u.refuse.text, status);
    } else {
        *reply = entry->reply;
        entry->reply = NULL;
    }
    if (msg->type == PSD_MSG_GROUP_OPEN && status != PSD_OK)
        agent->given_up[agent->given_up_count++ % AGENT_GIVEN_UP] = entry->request;
    agent_unlink_out(agent, entry);
    agent_out_free(entry);
unlock:
    pthread_mutex_unlock(&agent->lock);
    return status;
}

/* ------------------------------------------------------------------------------------------------- taking */

uint32_t agent_msg_key(const psd_msg *msg)
{
    switch (msg->type) {
    case PSD_MSG_GROUP_OPENED:
        return msg->u.group_opened.group;
    case PSD_MSG_GROUP_GO:
        return msg->u.group.group;
    case PSD_MSG_ABORT:
        return msg->u.abort.group;
    case PSD_MSG_TABLE_ASSIGN:
    case PSD_MSG_TABLE_OPENED:
        return msg->u.table_open.table;
    case PSD_MSG_TABLE_FREE:
        return msg->u.table.table;
    default:
        return 0;
    }
}

bool agent_msg_is_for_group(psd_msg_type type)
{
    return type == PSD_MSG_GROUP_OPENED || type == PSD_MSG_GROUP_GO || type == PSD_MSG_ABORT;
}

void agent_inbox_drop(psd_agent *agent, agent_in **link)
{
    agent_in *entry = *link;
    *link = entry->next;
    if (agent->inbox_tail == &entry->next)
        agent->inbox_tail = link;
    agent->inbox_count--;
    psd_msg_box_free(entry->box);
    free(entry);
}

/* Under the lock. PSD_INPROGRESS: nothing yet. */
static psd_status look_for(psd_agent *agent, psd_msg_type type, uint32_t key, psd_msg_box **out, char *why,
                           size_t why_bytes)
{
    for (agent_in **link = &agent->inbox; *link != NULL; link = &(*link)->next) {
        psd_msg_box *box = (*link)->box;
        bool same_key = key == 0 || agent_msg_key(&box->msg) == key;
        if (box->msg.type == type && same_key) {
            *out = box;
            (*link)->box = NULL;
            agent_inbox_drop(agent, link);
            return PSD_OK;
        }
        if (box->msg.type == PSD_MSG_ABORT && agent_msg_is_for_group(type) && key != 0 && same_key) {
            psd_status status = box->msg.u.abort.status < PSD_OK ? box->msg.u.abort.status : PSD_ERR_ABORTED;
            copy_reason(why, why_bytes, box->msg.u.abort.text, status);
            return status;
        }
    }
    if (agent->state == AGENT_OUT || agent->stopped_by_job) {
        snprintf(why, why_bytes, "%s", agent->text);
        return agent->state == AGENT_OUT ? agent->status : PSD_ERR_STOPPED;
    }
    return PSD_INPROGRESS;
}

psd_status psd_agent_take(psd_agent *agent, psd_msg_type type, uint32_t key, psd_time_ns deadline,
                          psd_msg_box **out, char *why, size_t why_bytes)
{
    psd_time_ns begun = psd_now_ns();
    psd_status status = PSD_INPROGRESS;
    pthread_mutex_lock(&agent->lock);
    do {
        status = look_for(agent, type, key, out, why, why_bytes);
    } while (status == PSD_INPROGRESS && sleep_until(agent, deadline));
    pthread_mutex_unlock(&agent->lock);
    if (status == PSD_INPROGRESS) {
        char took[32];
        psd_format_ns(psd_now_ns() - begun, took, sizeof took);
        snprintf(why, why_bytes, "no %s came from psd at %s in %s", psd_msg_name(type), agent->coordinator,
                 took);
        status = PSD_ERR_TIMEOUT;
    }
    return status;
}

void psd_agent_forget_group(psd_agent *agent, uint32_t group)
{
    pthread_mutex_lock(&agent->lock);
    agent_in **link = &agent->inbox;
    while (*link != NULL) {
        const psd_msg *msg = &(*link)->box->msg;
        if (agent_msg_is_for_group(msg->type) && agent_msg_key(msg) == group)
            agent_inbox_drop(agent, link);
        else
            link = &(*link)->next;
    }
    pthread_mutex_unlock(&agent->lock);
}

psd_time_ns psd_agent_cut_ns(psd_agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    psd_time_ns cut = agent->connected || agent->cut_at == 0 ? 0 : psd_now_ns() - agent->cut_at;
    pthread_mutex_unlock(&agent->lock);
    return cut;
}

psd_time_ns psd_agent_lease_ns(psd_agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    psd_time_ns lease = agent->welcome.lease_ms * PSD_NS_PER_MS;
    pthread_mutex_unlock(&agent->lock);
    return lease;
}

void psd_agent_leaving(psd_agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    if (!agent->stopped_by_job && agent->state != AGENT_OUT)
        snprintf(agent->text, sizeof agent->text, "this rank leaves");
    agent->stopped_by_job = true;
    pthread_cond_broadcast(&agent->changed);
    pthread_mutex_unlock(&agent->lock);
}

uint64_t psd_agent_ignored(psd_agent *agent)
{
    pthread_mutex_lock(&agent->lock);
    uint64_t ignored = agent->ignored;
    pthread_mutex_unlock(&agent->lock);
    return ignored;
}
