/* The daemon's parts, tied together: the pure core, and everything around it that has side effects. One
 * thread. */
#ifndef PSD_SERVER_DAEMON_H
#define PSD_SERVER_DAEMON_H

#include "server/compile.h"
#include "server/core/core.h"
#include "server/io_zmq.h"
#include "server/journal.h"
#include "server/options.h"
#include "server/outbox.h"

typedef struct psd_daemon {
    psd_options options;
    psd_core *core;
    psd_io *io;
    psd_journal *journal; /* NULL: none asked for, or given up */
    psd_compiler *compiler;
    psd_outbox outbox;
    psd_effects effects; /* of the step that runs */
    /* Events to step next, in order: those that the core asked for, and connections found gone while sending.
     */
    psd_event *pending;
    size_t pending_count;
    size_t pending_capacity;
    psd_time_ns now;            /* of this turn */
    psd_time_ns next_watch;     /* of the memory */
    psd_time_ns next_garbage;   /* when a message that is not psd's may be logged again */
    uint64_t garbage_peers;     /* that have sent such, and were not named in the log */
    psd_time_ns watchdog_every; /* 0: none */
    psd_time_ns next_watchdog;
    int64_t
        memory_floor; /* what was left when connections had been closed for memory; 0: never, or long past */
    bool measure_floor;
    char journal_note[PSD_MAX_TEXT]; /* texts of NOTE events that may be pending */
    char memory_note[PSD_MAX_TEXT];
    int signal_fd;
    psd_time_ns late; /* how late psd itself was woken, at worst until late_until */
    psd_time_ns late_until;
    bool stop_asked;
    bool failed; /* cannot go on: ends with exit code 1 */
} psd_daemon;

/* apply.c: one event through the core, with the journal and the effects; the events that follow from it too.
 * `row` tells what the journal would keep of it; now and entropy are filled in here. */
void psd_daemon_step(psd_daemon *daemon, psd_journal_row *row);
/* Commits the journal, sends the outbox, and steps what came of it, until nothing is left. */
void psd_daemon_settle(psd_daemon *daemon);
/* Tells people, in the log and in psctl events, what happened to psd itself. `text` lives as long as the
 * daemon. */
void psd_daemon_note(psd_daemon *daemon, const char *text);
/* Sends a message of the daemon's own to one connection, with the next settle. */
void psd_daemon_tell(psd_daemon *daemon, psd_peer peer, const psd_msg *msg);

/* replay.c: recovers the core's state from the journal. On failure `why` is a sentence. */
psd_status psd_daemon_replay(psd_daemon *daemon, char *why, size_t why_bytes);

/* watch.c: compares psd's memory with its limit; over it, says who is connected and closes the connections.
 */
void psd_daemon_watch_memory(psd_daemon *daemon);
int64_t psd_memory_default_limit(void);

/* loop.c: runs until SIGTERM or SIGINT. Then tells everybody to stop, unless a journal lets a restart go on
 * with them. */
void psd_daemon_run(psd_daemon *daemon);

#endif
