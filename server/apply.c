/* Steps events through the core and carries out what comes of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/log.h"
#include "common/status.h"
#include "server/daemon.h"

static uint64_t entropy(void)
{
    uint64_t value = 0;
    /* 8 bytes never come in parts, and after the boot never block. */
    ssize_t got = getrandom(&value, sizeof(value), 0);
    (void)got;
    return value;
}

/* What was not stepped or not sent cannot be made good by this process: only the journal still knows all. */
static void cannot_go_on(psd_daemon *daemon, psd_status status)
{
    if (!daemon->failed)
        psd_log("psd", PSD_LOG_ERROR, "%s: psd ends; start it again%s", psd_status_sentence(status),
                daemon->journal == NULL ? "" : ", it recovers from its journal");
    daemon->failed = true;
}

static void push_pending(psd_daemon *daemon, const psd_event *event)
{
    if (daemon->pending_count == daemon->pending_capacity) {
        size_t capacity = daemon->pending_capacity == 0 ? 64 : daemon->pending_capacity * 2;
        psd_event *grown = realloc(daemon->pending, capacity * sizeof(psd_event));
        if (grown == NULL) {
            cannot_go_on(daemon, PSD_ERR_NOMEM);
            return;
        }
        daemon->pending = grown;
        daemon->pending_capacity = capacity;
    }
    daemon->pending[daemon->pending_count++] = *event;
}

void psd_daemon_note(psd_daemon *daemon, const char *text)
{
    psd_event note = {.type = PSD_EVENT_NOTE, .text = text};
    push_pending(daemon, &note);
}

static void give_up_journal(psd_daemon *daemon)
{
    (void)snprintf(
        daemon->journal_note, sizeof(daemon->journal_note),
        "the journal in %.400s cannot be written: %s; psd goes on without it, and a restart of psd will "
        "forget the jobs that run now",
        daemon->options.state, psd_journal_error(daemon->journal));
    psd_journal_abandon(&daemon->journal);
    psd_daemon_note(daemon, daemon->journal_note);
}

void psd_daemon_tell(psd_daemon *daemon, psd_peer peer, const psd_msg *msg)
{
    psd_msg refuse = {.type = PSD_MSG_REFUSE, .ident = msg->ident, .request = msg->request};
    psd_status status = psd_outbox_put(&daemon->outbox, peer, msg);
    if (status != PSD_OK && status != PSD_ERR_NOMEM) {
        /* The core keeps its messages below PSD_MAX_FRAME. If one is not, who asked must not wait for it. */
        psd_log("psd", PSD_LOG_ERROR, "a %s message to worker %s was not sent: %s", psd_msg_name(msg->type),
                msg->ident.name, psd_status_sentence(status));
        refuse.u.refuse.status = status;
        (void)snprintf(refuse.u.refuse.text, sizeof(refuse.u.refuse.text), "psd cannot send its %s: %s",
                       psd_msg_name(msg->type), psd_status_sentence(status));
        status = msg->request == 0 ? PSD_OK : psd_outbox_put(&daemon->outbox, peer, &refuse);
    }
    if (status != PSD_OK)
        cannot_go_on(daemon, status);
}

static void queue_send(psd_daemon *daemon, psd_effect *effect)
{
    uint64_t cursor = 0;
    psd_peer peer = 0;
    while (!daemon->failed && psd_core_next_addressee(daemon->core, effect, &cursor, &peer))
        psd_daemon_tell(daemon, peer, effect->msg);
}

static void compile(psd_daemon *daemon, const psd_effect *effect)
{
    if (psd_compiler_submit(daemon->compiler, effect->plan, &effect->inputs) == PSD_OK)
        return;
    psd_event failed = {.type = PSD_EVENT_COMPILED,
                        .plan = effect->plan,
                        .status = PSD_ERR_NOMEM,
                        .text = "psd is out of memory"};
    push_pending(daemon, &failed);
}

static void note(psd_daemon *daemon, const psd_effect *effect)
{
    psd_log_level level = effect->level == PSD_NOTE_WARN ? PSD_LOG_WARN : PSD_LOG_INFO;
    if (effect->job[0] == '\0' || strncmp(effect->text, "job ", 4) == 0)
        psd_log("psd", level, "%s", effect->text);
    else
        psd_log("psd", level, "job %s: %s", effect->job, effect->text);
    if (daemon->journal != NULL && psd_journal_note(daemon->journal, effect) != PSD_OK)
        give_up_journal(daemon);
}

static void apply(psd_daemon *daemon, psd_effect *effect)
{
    switch (effect->type) {
    case PSD_EFFECT_SEND:
        queue_send(daemon, effect);
        break;
    case PSD_EFFECT_COMPILE:
        compile(daemon, effect);
        break;
    case PSD_EFFECT_EVENT:
        push_pending(daemon, effect->event);
        break;
    case PSD_EFFECT_NOTE:
        note(daemon, effect);
        break;
    case PSD_EFFECT_DROP:
        psd_peers_remove(psd_io_peers(daemon->io), effect->audience.peer);
        break;
    }
}

static void step_one(psd_daemon *daemon, psd_journal_row *row)
{
    if (daemon->failed)
        return;
    row->event.now = daemon->now;
    row->event.entropy = entropy();
    psd_status status = psd_core_step(daemon->core, &row->event, &daemon->effects);
    if (status != PSD_OK) {
        cannot_go_on(daemon, status); /* the core is half way through a step */
        psd_effects_clear(&daemon->effects);
        return;
    }
    if (daemon->effects.journal && daemon->journal != NULL &&
        psd_journal_event(daemon->journal, row) != PSD_OK)
        give_up_journal(daemon);
    for (size_t i = 0; i < daemon->effects.count; i++)
        apply(daemon, daemon->effects.items[i]);
    psd_effects_clear(&daemon->effects);
}

static void step_pending(psd_daemon *daemon)
{
    for (size_t i = 0; i < daemon->pending_count; i++) {
        psd_journal_row row = {.event = daemon->pending[i]};
        psd_wire_buffer frame = {0};
        if (row.event.msg != NULL && psd_wire_encode(row.event.msg, &frame) == PSD_OK) {
            row.frame = frame.data; /* the core's own message, for the journal */
            row.frame_bytes = frame.bytes;
        }
        step_one(daemon, &row);
        psd_wire_buffer_free(&frame);
    }
    daemon->pending_count = 0;
}

void psd_daemon_step(psd_daemon *daemon, psd_journal_row *row)
{
    step_one(daemon, row);
    step_pending(daemon);
}

static void tell_gone(psd_daemon *daemon, psd_peer peer)
{
    psd_event gone = {.type = PSD_EVENT_GONE, .peer = peer};
    push_pending(daemon, &gone);
}

/* A connection that does not read what it is sent is gone for the core. If it lives it will read and speak
 * again, and then be asked who it is. */
static void is_full(psd_daemon *daemon, psd_peer peer)
{
    psd_peers *peers = psd_io_peers(daemon->io);
    psd_peer_entry *entry = psd_peers_find(peers, peer);
    if (entry == NULL || !psd_peers_set_deaf(peers, entry))
        return;
    if (!entry->deaf_warned)
        psd_log("psd", PSD_LOG_WARN, "the connection from %s does not read what psd sends: taken for gone",
                entry->address);
    entry->deaf_warned = true;
    tell_gone(daemon, peer);
}

static void has_vanished(psd_daemon *daemon, psd_peer peer)
{
    psd_peers *peers = psd_io_peers(daemon->io);
    if (psd_peers_find(peers, peer) == NULL)
        return; /* known already */
    psd_peers_remove(peers, peer);
    tell_gone(daemon, peer);
}

static void flush(psd_daemon *daemon)
{
    psd_outbox *outbox = &daemon->outbox;
    for (size_t i = 0; i < outbox->count; i++) {
        const psd_letter *letter = &outbox->letters[i];
        psd_status status =
            psd_io_send(daemon->io, letter->peer, outbox->frames + letter->offset, letter->bytes);
        if (status == PSD_OK)
            psd_peers_heard(psd_io_peers(daemon->io), letter->peer);
        else if (status == PSD_AGAIN)
            is_full(daemon, letter->peer);
        else
            has_vanished(daemon, letter->peer);
    }
    psd_outbox_clear(outbox);
}

/* A replay must begin with what the core began with, so journal and core are emptied together: ended jobs, and the
 * ranks that their workers' names had, are forgotten. */
static psd_status start_anew(psd_daemon *daemon)
{
    psd_core *fresh = NULL;
    psd_core_config config = psd_options_core(&daemon->options);
    psd_status status = psd_core_new(&config, &fresh);
    if (status != PSD_OK)
        return PSD_OK; /* goes on with a long journal */
    status = psd_journal_empty(daemon->journal);
    if (status != PSD_OK) {
        psd_core_free(fresh);
        return status;
    }
    psd_core_free(daemon->core);
    daemon->core = fresh;
    psd_log("psd", PSD_LOG_INFO, "no job is alive: the journal was emptied, ended jobs are forgotten");
    return PSD_OK;
}

static psd_status commit(psd_daemon *daemon)
{
    psd_status status = PSD_OK;
    if (psd_journal_events(daemon->journal) > daemon->options.journal_events && psd_core_idle(daemon->core))
        status = start_anew(daemon);
    return status == PSD_OK ? psd_journal_commit(daemon->journal) : status;
}

void psd_daemon_settle(psd_daemon *daemon)
{
    do {
        step_pending(daemon);
        if (daemon->journal != NULL && commit(daemon) != PSD_OK)
            give_up_journal(daemon);
        flush(daemon);
    } while (daemon->pending_count > 0 || daemon->outbox.count > 0);
}
