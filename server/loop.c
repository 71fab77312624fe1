/* The loop: wait, read the clock once, decode a bounded batch, step each, commit the journal once, send. */
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/log.h"
#include "common/status.h"
#include "server/daemon.h"
#include "server/notify.h"

#define BATCH       256
#define MAX_WAIT_MS 1000
#define LATE_TIMES  4
#define WATCH_NS    (250 * PSD_NS_PER_MS) /* whoever can connect can make psd grow by a gigabyte a second */

/* On a host with far more threads than cores nobody is silent who has had no core to speak on. How long that takes
 * psd sees by itself: how late it is woken, at worst in the last second. A heartbeat passes four threads, each of
 * which may be as late: the worker's agent, its I/O thread, psd's, and this one. */
static void note_lateness(psd_daemon *daemon, psd_time_ns late)
{
    if (late < daemon->late && daemon->now < daemon->late_until)
        return;
    psd_time_ns lease = daemon->options.lease_ms * PSD_NS_PER_MS;
    psd_time_ns slack = LATE_TIMES * late;
    daemon->late = late;
    daemon->late_until = daemon->now + PSD_NS_PER_S;
    psd_core_set_slack(daemon->core, slack < lease ? slack : lease);
}

static int wait_ms(const psd_daemon *daemon)
{
    psd_time_ns now = psd_now_ns();
    psd_time_ns due = daemon->next_watch;
    psd_time_ns core = psd_core_deadline(daemon->core);
    psd_time_ns suspects = psd_peers_deadline(psd_io_peers(daemon->io));
    due = core < due ? core : due;
    due = suspects < due ? suspects : due;
    if (daemon->watchdog_every > 0 && daemon->next_watchdog < due)
        due = daemon->next_watchdog;
    if (due <= now)
        return 0;
    psd_time_ns ms = (due - now + PSD_NS_PER_MS - 1) / PSD_NS_PER_MS;
    return ms > MAX_WAIT_MS ? MAX_WAIT_MS : (int)ms;
}

static void read_signals(psd_daemon *daemon)
{
    struct signalfd_siginfo info;
    while (read(daemon->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        psd_log("psd", PSD_LOG_INFO, "signal %u from pid %u: psd stops", info.ssi_signo, info.ssi_pid);
        daemon->stop_asked = true;
    }
}

/* Asks ZeroMQ about a connection whose socket was closed, by sending to it: a RESYNC, which a worker that
 * lives answers by saying who it is, and psctl ignores. */
static void probe_suspects(psd_daemon *daemon)
{
    static const psd_msg probe = {.type = PSD_MSG_RESYNC};
    psd_peers *peers = psd_io_peers(daemon->io);
    psd_peer peer = 0;
    while (psd_peers_next_suspect(peers, daemon->now, &peer)) {
        if (psd_wire_encode(&probe, &daemon->outbox.buffer) != PSD_OK)
            return;
        psd_status status =
            psd_io_send(daemon->io, peer, daemon->outbox.buffer.data, daemon->outbox.buffer.bytes);
        if (status != PSD_ERR_UNREACHABLE)
            continue;
        psd_peers_remove(peers, peer);
        psd_journal_row gone = {.event = {.type = PSD_EVENT_GONE, .peer = peer}};
        psd_daemon_step(daemon, &gone);
    }
}

static void take_compiled(psd_daemon *daemon)
{
    psd_compiled result;
    while (psd_compiler_take(daemon->compiler, &result) == PSD_OK) {
        bool ok = result.status == PSD_OK;
        psd_journal_row row = {.event = {.type = PSD_EVENT_COMPILED,
                                         .plan = result.plan,
                                         .status = result.status,
                                         .text = result.text,
                                         .compiled = ok ? &result.steps : NULL}};
        psd_daemon_step(daemon, &row);
    }
}

/* Once for each connection, and once a second: whoever floods psd comes with many. */
static void tell_garbage(psd_daemon *daemon, const psd_io_packet *packet, const char *address,
                         const char *why)
{
    char others[80] = "further ones are only counted";
    if (daemon->now < daemon->next_garbage) {
        daemon->garbage_peers++;
        return;
    }
    if (daemon->garbage_peers > 0)
        snprintf(others, sizeof(others), "so were those of %llu others since the last line",
                 (unsigned long long)daemon->garbage_peers);
    psd_log("psd", PSD_LOG_WARN, "a message of %zu bytes from %s was dropped: %s (%s)", packet->bytes,
            address, why, others);
    daemon->next_garbage = daemon->now + PSD_NS_PER_S;
    daemon->garbage_peers = 0;
}

static void refuse_undecodable(psd_daemon *daemon, const psd_io_packet *packet, psd_status status,
                               const char *why)
{
    psd_peer_entry *entry = psd_peers_find(psd_io_peers(daemon->io), packet->peer);
    psd_io_statistics(daemon->io)->bad_message++;
    if (entry != NULL && !entry->warned) {
        entry->warned = true;
        tell_garbage(daemon, packet, entry->address, why[0] == '\0' ? psd_status_sentence(status) : why);
    }
    psd_msg refuse = {.type = PSD_MSG_REFUSE, .u.refuse.status = status};
    psd_msg_type asked;
    psd_wire_peek(packet->data, packet->bytes, &asked, &refuse.request);
    if (status == PSD_ERR_PROTOCOL)
        snprintf(refuse.u.refuse.text, sizeof(refuse.u.refuse.text), "psd %s speaks protocol version %d: %s",
                 PSD_VERSION, PSD_PROTOCOL_VERSION, why);
    else if (asked == PSD_MSG_HELLO || refuse.request != 0)
        snprintf(refuse.u.refuse.text, sizeof(refuse.u.refuse.text), "psd cannot read this %s: %s",
                 psd_msg_name(asked), why);
    else
        return; /* as everywhere, only a request or a HELLO can be refused */
    psd_daemon_tell(daemon, packet->peer, &refuse);
}

/* False: more are waiting. */
static bool take_messages(psd_daemon *daemon)
{
    psd_io_packet packet;
    for (int i = 0; i < BATCH && !psd_outbox_is_large(&daemon->outbox); i++) {
        psd_msg_box *box = NULL;
        char why[256] = "";
        psd_status status = psd_io_receive(daemon->io, daemon->now, &packet);
        if (status == PSD_AGAIN)
            return true;
        if (status != PSD_OK)
            continue;
        status = psd_wire_decode(packet.data, packet.bytes, &box, why, sizeof(why));
        if (status != PSD_OK) {
            refuse_undecodable(daemon, &packet, status, why);
            continue;
        }
        psd_journal_row row = {.event = {.type = PSD_EVENT_MSG, .peer = packet.peer, .msg = &box->msg},
                               .frame = packet.data,
                               .frame_bytes = packet.bytes};
        psd_daemon_step(daemon, &row);
        psd_msg_box_free(box);
    }
    return false;
}

/* Nobody is lost for a message that is here and not read yet; a flood delays that by one lease at most. */
static void run_timers(psd_daemon *daemon, bool heard_all)
{
    psd_time_ns due = psd_core_deadline(daemon->core);
    psd_time_ns lease = daemon->options.lease_ms * PSD_NS_PER_MS;
    if (due > daemon->now || (!heard_all && due > daemon->now - lease))
        return;
    psd_journal_row timer = {.event = {.type = PSD_EVENT_TIMER}};
    psd_daemon_step(daemon, &timer);
}

static void keep_watch(psd_daemon *daemon)
{
    if (daemon->watchdog_every > 0 && daemon->now >= daemon->next_watchdog) {
        psd_notify("WATCHDOG=1");
        daemon->next_watchdog = daemon->now + daemon->watchdog_every;
    }
    if (daemon->now < daemon->next_watch)
        return;
    note_lateness(daemon, daemon->now - daemon->next_watch);
    daemon->next_watch = daemon->now + WATCH_NS;
    psd_daemon_watch_memory(daemon);
}

static void turn(psd_daemon *daemon)
{
    int fds[] = {daemon->signal_fd, psd_compiler_fd(daemon->compiler)};
    bool readable[2] = {false, false};
    psd_io_wait(daemon->io, fds, readable, 2, wait_ms(daemon));
    daemon->now = psd_now_ns();
    if (readable[0])
        read_signals(daemon);
    psd_io_monitor(daemon->io, daemon->now);
    bool heard_all = take_messages(daemon);
    probe_suspects(daemon);
    if (readable[1])
        take_compiled(daemon);
    keep_watch(daemon);
    run_timers(daemon, heard_all);
    psd_daemon_settle(daemon);
}

/* What was only counted while it came. */
static void log_statistics(const psd_daemon *daemon)
{
    const psd_io_stats *stats = psd_io_statistics(daemon->io);
    psd_log(
        "psd", PSD_LOG_INFO,
        "messages: %llu received, %llu sent; dropped: %llu of a wrong shape, %llu not decodable; not sent: "
        "%llu to who does not read, %llu to who is gone; connections that were not psd's: %llu",
        (unsigned long long)stats->received, (unsigned long long)stats->sent,
        (unsigned long long)stats->bad_shape, (unsigned long long)stats->bad_message,
        (unsigned long long)stats->full, (unsigned long long)stats->vanished,
        (unsigned long long)stats->handshakes);
}

void psd_daemon_run(psd_daemon *daemon)
{
    daemon->watchdog_every = psd_notify_watchdog_ns();
    daemon->next_watchdog = daemon->now;
    daemon->next_watch = daemon->now + WATCH_NS;
    while (!daemon->stop_asked && !daemon->failed)
        turn(daemon);
    psd_notify("STOPPING=1");
    log_statistics(daemon);
    if (daemon->failed)
        return;
    if (daemon->journal != NULL && !psd_core_idle(daemon->core)) {
        /* A restart, as for an upgrade, must not cost the jobs that the journal is kept for. */
        psd_log("psd", PSD_LOG_WARN,
                "jobs go on without psd: start it again with --state %s (psctl stop ends a job)",
                daemon->options.state);
        return;
    }
    psd_journal_row stop = {.event = {.type = PSD_EVENT_STOP}};
    psd_daemon_step(daemon, &stop);
    psd_daemon_settle(daemon);
}
