/* The journal: every event that changed what a restart must know, in order, and the notes for people. One
 * SQLite file DIR/journal.db, in WAL mode, one transaction for each turn of the loop. One thread; calls may
 * wait for the disk.
 *
 * Times. Events carry CLOCK_MONOTONIC, which begins anew when the machine does. The journal notes for each
 * life of psd the boot id and how far the wall clock was ahead; times of an earlier boot are moved by the
 * difference, so that ages stay right, and never lie in the future or run backwards, whatever was done to the
 * wall clock. */
#ifndef PSD_SERVER_JOURNAL_H
#define PSD_SERVER_JOURNAL_H

#include "server/core/core.h"

typedef struct psd_journal psd_journal;

/* An event as it was written. Pointers are borrowed for the call. */
typedef struct psd_journal_row {
    psd_event event;   /* without msg and compiled, which a replay makes again */
    const void *frame; /* MSG: as it came from the peer; INCIDENT */
    size_t frame_bytes;
} psd_journal_row;

/* Makes the directory if it is missing, takes its lock, opens or creates the journal and checks it. On
 * failure `why` is a sentence that says what to do. */
psd_status psd_journal_open(const char *dir, psd_time_ns now, psd_journal **out, char *why, size_t why_bytes);
void psd_journal_close(psd_journal *journal); /* commits first; accepts NULL */

/* Calls `each` for every event in order, until one fails. */
psd_status psd_journal_replay(psd_journal *journal, psd_time_ns now,
                              psd_status (*each)(void *arg, const psd_journal_row *row), void *arg, char *why,
                              size_t why_bytes);

/* Part of the transaction that psd_journal_commit ends. After an error the journal is to be abandoned. */
psd_status psd_journal_event(psd_journal *journal, const psd_journal_row *row);
psd_status psd_journal_note(psd_journal *journal, const psd_effect *note);
psd_status psd_journal_commit(psd_journal *journal);
/* Forgets all events: nothing that a restart must know is left. */
psd_status psd_journal_empty(psd_journal *journal);

int64_t psd_journal_events(const psd_journal *journal);    /* how many a restart would replay */
const char *psd_journal_error(const psd_journal *journal); /* of the last call that failed */

/* Gives up on it: closes it, and renames the file so that a restart does not recover a state that has since
 * changed. Sets *journal to NULL. */
void psd_journal_abandon(psd_journal **journal);

#endif
