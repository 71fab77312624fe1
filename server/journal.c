#include "server/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/status.h"

#define JOURNAL_VERSION 1
#define JOURNAL_NAME    "journal.db"
#define NOTES_KEPT      10000
#define BOOT_ID_BYTES   64

static const char schema[] =
    "CREATE TABLE lives (life INTEGER PRIMARY KEY, boot TEXT NOT NULL, ahead_ns INTEGER NOT NULL);"
    "CREATE TABLE inputs (seq INTEGER PRIMARY KEY, life INTEGER NOT NULL, now_ns INTEGER NOT NULL,"
    " entropy INTEGER NOT NULL, type INTEGER NOT NULL, peer INTEGER NOT NULL, job TEXT NOT NULL,"
    " name TEXT NOT NULL, incarnation INTEGER NOT NULL, plan INTEGER NOT NULL, status INTEGER NOT NULL,"
    " text TEXT NOT NULL, frame BLOB);"
    "CREATE TABLE notes (seq INTEGER PRIMARY KEY, wall_ns INTEGER NOT NULL, level INTEGER NOT NULL,"
    " job TEXT NOT NULL, rank INTEGER NOT NULL, text TEXT NOT NULL);"
    "PRAGMA user_version = 1;"; /* JOURNAL_VERSION */

static const char insert_event[] =
    "INSERT INTO inputs (life, now_ns, entropy, type, peer, job, name, incarnation, plan, status, text,"
    " frame) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
static const char insert_note[] =
    "INSERT INTO notes (wall_ns, level, job, rank, text) VALUES (?, ?, ?, ?, ?)";
/* The columns in the order in which read_row and moved take them. */
static const char select_events[] =
    "SELECT i.now_ns, i.entropy, i.type, i.peer, i.job, i.name, i.incarnation, i.plan, i.status, i.text,"
    " i.frame, l.boot, l.ahead_ns FROM inputs i JOIN lives l ON l.life = i.life ORDER BY i.seq";

struct psd_journal {
    sqlite3 *db;
    sqlite3_stmt *event;
    sqlite3_stmt *note;
    int lock_fd;
    bool in_transaction;
    int64_t life;
    int64_t events;
    int64_t notes_since_trim;
    int64_t ahead_ns; /* wall clock minus monotonic clock */
    char boot[BOOT_ID_BYTES];
    char path[PATH_MAX];
    char error[256];
};

static int64_t wall_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * PSD_NS_PER_S + ts.tv_nsec;
}

static void read_boot_id(char *out, size_t out_bytes)
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    snprintf(out, out_bytes, "unknown");
    if (file == NULL)
        return;
    if (fgets(out, (int)out_bytes, file) != NULL)
        out[strcspn(out, "\n")] = '\0';
    fclose(file);
}

/* Remembers the error of the last SQLite call and gives the status for it. */
static psd_status failed(psd_journal *journal)
{
    int system_error = sqlite3_system_errno(journal->db);
    int code = sqlite3_errcode(journal->db) & 0xff;
    bool tell_errno = system_error != 0 && (code == SQLITE_IOERR || code == SQLITE_CANTOPEN);
    snprintf(journal->error, sizeof(journal->error), "%s%s%s", sqlite3_errmsg(journal->db),
             tell_errno ? ": " : "", tell_errno ? strerror(system_error) : "");
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB)
        return PSD_ERR_FORMAT;
    return code == SQLITE_NOMEM ? PSD_ERR_NOMEM : PSD_ERR_IO;
}

static psd_status run(psd_journal *journal, const char *sql)
{
    return sqlite3_exec(journal->db, sql, NULL, NULL, NULL) == SQLITE_OK ? PSD_OK : failed(journal);
}

/* The first column of the first row. */
static psd_status ask(psd_journal *journal, const char *sql, int64_t *number, char *text, size_t text_bytes)
{
    sqlite3_stmt *statement = NULL;
    psd_status status = PSD_OK;
    if (sqlite3_prepare_v2(journal->db, sql, -1, &statement, NULL) != SQLITE_OK)
        return failed(journal);
    if (sqlite3_step(statement) == SQLITE_ROW) {
        const unsigned char *value = sqlite3_column_text(statement, 0);
        snprintf(text, text_bytes, "%s", value == NULL ? "" : (const char *)value);
        *number = sqlite3_column_int64(statement, 0);
    } else {
        status = failed(journal);
    }
    sqlite3_finalize(statement);
    return status;
}

/* Opens DIR/psd.lock and locks it, so that two psd never write one journal. The holder's pid is in it. */
static psd_status take_lock(const char *dir, int *out, char *why, size_t why_bytes)
{
    char path[PATH_MAX];
    char text[32] = "";
    psd_status status = PSD_ERR_IO;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        snprintf(why, why_bytes, "the state directory %s cannot be made: %s", dir, strerror(errno));
        return PSD_ERR_IO;
    }
    snprintf(path, sizeof(path), "%s/psd.lock", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        snprintf(why, why_bytes, "the state directory %s cannot be written: %s (open %s)", dir,
                 strerror(errno), path);
        return PSD_ERR_IO;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        ssize_t length = pread(fd, text, sizeof(text) - 1, 0);
        text[length > 0 ? length : 0] = '\0';
        text[strcspn(text, "\n")] = '\0';
        snprintf(why, why_bytes,
                 "the state directory %s is in use by another psd (pid %s): give this one its own --state",
                 dir, text[0] == '\0' ? "unknown" : text);
        status = PSD_ERR_EXISTS;
        goto close_fd;
    }
    int length = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    errno = 0; /* a short write leaves it alone */
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)length, 0) != length) {
        snprintf(why, why_bytes, "the state directory %s cannot be written: %s (write %s)", dir,
                 errno == 0 ? "disk full" : strerror(errno), path);
        goto close_fd;
    }
    *out = fd;
    return PSD_OK;
close_fd:
    close(fd);
    return status;
}

static psd_status check_version(psd_journal *journal, char *why, size_t why_bytes)
{
    char text[64];
    int64_t version = 0;
    int64_t tables = 0;
    psd_status status = ask(journal, "PRAGMA user_version", &version, text, sizeof(text));
    if (status == PSD_OK)
        status = ask(journal, "SELECT count(*) FROM sqlite_master", &tables, text, sizeof(text));
    if (status != PSD_OK)
        return status;
    if (version == 0 && tables == 0)
        return run(journal, schema);
    if (version != JOURNAL_VERSION) {
        snprintf(why, why_bytes,
                 "the journal %s is of version %lld, this psd writes version %d: run the psd that wrote "
                 "it, or give this one an empty --state directory",
                 journal->path, (long long)version, JOURNAL_VERSION);
        return PSD_ERR_PROTOCOL;
    }
    status = ask(journal, "PRAGMA quick_check(1)", &version, text, sizeof(text));
    if (status == PSD_OK && strcmp(text, "ok") != 0) {
        snprintf(journal->error, sizeof(journal->error), "%s", text);
        status = PSD_ERR_FORMAT;
    }
    return status;
}

static psd_status begin_life(psd_journal *journal, psd_time_ns now)
{
    sqlite3_stmt *statement = NULL;
    char text[32];
    psd_status status = PSD_OK;
    read_boot_id(journal->boot, sizeof(journal->boot));
    journal->ahead_ns = wall_ns() - now;
    if (sqlite3_prepare_v2(journal->db, "INSERT INTO lives (boot, ahead_ns) VALUES (?, ?)", -1, &statement,
                           NULL) != SQLITE_OK)
        return failed(journal);
    sqlite3_bind_text(statement, 1, journal->boot, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 2, journal->ahead_ns);
    if (sqlite3_step(statement) != SQLITE_DONE)
        status = failed(journal);
    sqlite3_finalize(statement);
    journal->life = sqlite3_last_insert_rowid(journal->db);
    if (status == PSD_OK)
        status = ask(journal, "SELECT count(*) FROM inputs", &journal->events, text, sizeof(text));
    return status;
}

/* SQLite opens a file that it must not write (one that is immutable, say) for reading, and fails later, of something
 * else. Before SQLite has it open, since closing a file gives up all locks on it. */
static psd_status check_writable(const psd_journal *journal, char *why, size_t why_bytes)
{
    int fd = open(journal->path, O_RDWR | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT) {
        snprintf(why, why_bytes, "the journal %s cannot be written: %s (immutable, or another owner's?)",
                 journal->path, strerror(errno));
        return PSD_ERR_IO;
    }
    if (fd >= 0)
        close(fd);
    return PSD_OK;
}

static psd_status open_database(psd_journal *journal, psd_time_ns now, char *why, size_t why_bytes)
{
    psd_status writable = check_writable(journal, why, why_bytes);
    if (writable != PSD_OK)
        return writable;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(journal->path, &journal->db, flags, NULL) != SQLITE_OK)
        return journal->db == NULL ? PSD_ERR_NOMEM : failed(journal);
    sqlite3_extended_result_codes(journal->db, 1);
    psd_status status = run(journal, "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL;"
                                     "PRAGMA synchronous = NORMAL;");
    if (status == PSD_OK)
        status = check_version(journal, why, why_bytes);
    if (status == PSD_OK)
        status = begin_life(journal, now);
    if (status != PSD_OK)
        return status;
    if (sqlite3_prepare_v2(journal->db, insert_event, -1, &journal->event, NULL) != SQLITE_OK ||
        sqlite3_prepare_v2(journal->db, insert_note, -1, &journal->note, NULL) != SQLITE_OK)
        return failed(journal);
    return PSD_OK;
}

static void explain(const psd_journal *journal, psd_status status, char *why, size_t why_bytes)
{
    if (why[0] != '\0')
        return;
    if (status == PSD_ERR_FORMAT)
        snprintf(why, why_bytes,
                 "the journal %s is damaged (%s): move it away to start empty; jobs that run now must "
                 "then be started again",
                 journal->path, journal->error);
    else
        snprintf(why, why_bytes, "the journal %s cannot be opened: %s", journal->path,
                 journal->error[0] == '\0' ? psd_status_sentence(status) : journal->error);
}

static void close_database(psd_journal *journal)
{
    sqlite3_finalize(journal->event);
    sqlite3_finalize(journal->note);
    sqlite3_close(journal->db);
    journal->event = NULL;
    journal->note = NULL;
    journal->db = NULL;
}

psd_status psd_journal_open(const char *dir, psd_time_ns now, psd_journal **out, char *why, size_t why_bytes)
{
    psd_status status = PSD_OK;
    why[0] = '\0';
    psd_journal *journal = calloc(1, sizeof(*journal));
    if (journal == NULL) {
        snprintf(why, why_bytes, "out of memory");
        return PSD_ERR_NOMEM;
    }
    int length = snprintf(journal->path, sizeof(journal->path), "%s/%s", dir, JOURNAL_NAME);
    if (length < 0 || (size_t)length + sizeof(".broken-wal") > sizeof(journal->path)) {
        snprintf(why, why_bytes, "the state directory's name is too long");
        status = PSD_ERR_INVAL;
        goto free_journal;
    }
    status = take_lock(dir, &journal->lock_fd, why, why_bytes);
    if (status != PSD_OK)
        goto free_journal;
    status = open_database(journal, now, why, why_bytes);
    if (status != PSD_OK)
        goto close_all;
    *out = journal;
    return PSD_OK;
close_all:
    explain(journal, status, why, why_bytes);
    close_database(journal);
    close(journal->lock_fd);
free_journal:
    free(journal);
    return status;
}

void psd_journal_close(psd_journal *journal)
{
    if (journal == NULL)
        return;
    psd_journal_commit(journal);
    close_database(journal);
    close(journal->lock_fd);
    free(journal);
}

static void copy_text(sqlite3_stmt *statement, int column, char *out, size_t out_bytes)
{
    const unsigned char *value = sqlite3_column_text(statement, column);
    snprintf(out, out_bytes, "%s", value == NULL ? "" : (const char *)value);
}

/* The time of a row on this life's clock; see the header. */
static psd_time_ns moved(const psd_journal *journal, sqlite3_stmt *row, psd_time_ns earliest, psd_time_ns now)
{
    psd_time_ns time = sqlite3_column_int64(row, 0);
    const unsigned char *boot = sqlite3_column_text(row, 11);
    if (boot == NULL || strcmp((const char *)boot, journal->boot) != 0) {
        int64_t then = 0;
        if (__builtin_add_overflow(time, sqlite3_column_int64(row, 12), &then) ||
            __builtin_sub_overflow(then, journal->ahead_ns, &time))
            time = earliest;
    }
    time = time < earliest ? earliest : time;
    return time > now ? now : time;
}

static void read_row(sqlite3_stmt *s, psd_journal_row *row, char *text, size_t text_bytes)
{
    psd_event *event = &row->event;
    event->entropy = (uint64_t)sqlite3_column_int64(s, 1);
    event->type = (psd_event_type)sqlite3_column_int(s, 2);
    event->peer = (uint64_t)sqlite3_column_int64(s, 3);
    copy_text(s, 4, event->ident.job, sizeof(event->ident.job));
    copy_text(s, 5, event->ident.name, sizeof(event->ident.name));
    event->ident.incarnation = (uint64_t)sqlite3_column_int64(s, 6);
    event->plan = (uint32_t)sqlite3_column_int64(s, 7);
    event->status = (psd_status)sqlite3_column_int(s, 8);
    copy_text(s, 9, text, text_bytes);
    event->text = text;
    row->frame = sqlite3_column_blob(s, 10);
    row->frame_bytes = (size_t)sqlite3_column_bytes(s, 10);
}

psd_status psd_journal_replay(psd_journal *journal, psd_time_ns now,
                              psd_status (*each)(void *arg, const psd_journal_row *row), void *arg, char *why,
                              size_t why_bytes)
{
    sqlite3_stmt *statement = NULL;
    psd_status status = PSD_OK;
    psd_time_ns earliest = INT64_MIN;
    int code = SQLITE_ROW;
    char text[PSD_MAX_TEXT];
    why[0] = '\0';
    if (sqlite3_prepare_v2(journal->db, select_events, -1, &statement, NULL) != SQLITE_OK) {
        status = failed(journal);
        explain(journal, status, why, why_bytes);
        return status;
    }
    while (status == PSD_OK && (code = sqlite3_step(statement)) == SQLITE_ROW) {
        psd_journal_row row = {0};
        read_row(statement, &row, text, sizeof(text));
        row.event.now = moved(journal, statement, earliest, now);
        earliest = row.event.now;
        status = each(arg, &row);
    }
    if (status == PSD_OK && code != SQLITE_DONE)
        status = failed(journal);
    if (status != PSD_OK) {
        if (journal->error[0] == '\0')
            snprintf(journal->error, sizeof(journal->error), "an event in it is not understood: %s",
                     psd_status_sentence(status));
        explain(journal, PSD_ERR_FORMAT, why, why_bytes);
    }
    sqlite3_finalize(statement);
    return status;
}

static psd_status begin(psd_journal *journal)
{
    if (journal->in_transaction)
        return PSD_OK;
    psd_status status = run(journal, "BEGIN IMMEDIATE");
    journal->in_transaction = status == PSD_OK;
    return status;
}

static psd_status finish(psd_journal *journal, sqlite3_stmt *statement)
{
    psd_status status = sqlite3_step(statement) == SQLITE_DONE ? PSD_OK : failed(journal);
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return status;
}

psd_status psd_journal_event(psd_journal *journal, const psd_journal_row *row)
{
    psd_status status = begin(journal);
    if (status != PSD_OK)
        return status;
    const psd_event *event = &row->event;
    sqlite3_stmt *s = journal->event;
    sqlite3_bind_int64(s, 1, journal->life);
    sqlite3_bind_int64(s, 2, event->now);
    sqlite3_bind_int64(s, 3, (int64_t)event->entropy);
    sqlite3_bind_int(s, 4, (int)event->type);
    sqlite3_bind_int64(s, 5, (int64_t)event->peer);
    sqlite3_bind_text(s, 6, event->ident.job, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 7, event->ident.name, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 8, (int64_t)event->ident.incarnation);
    sqlite3_bind_int64(s, 9, event->plan);
    sqlite3_bind_int(s, 10, (int)event->status);
    sqlite3_bind_text(s, 11, event->text == NULL ? "" : event->text, -1, SQLITE_STATIC);
    if (row->frame != NULL)
        sqlite3_bind_blob64(s, 12, row->frame, row->frame_bytes, SQLITE_STATIC);
    status = finish(journal, s);
    if (status == PSD_OK)
        journal->events++;
    return status;
}

psd_status psd_journal_note(psd_journal *journal, const psd_effect *note)
{
    psd_status status = begin(journal);
    if (status != PSD_OK)
        return status;
    sqlite3_stmt *s = journal->note;
    sqlite3_bind_int64(s, 1, wall_ns());
    sqlite3_bind_int(s, 2, (int)note->level);
    sqlite3_bind_text(s, 3, note->job, -1, SQLITE_STATIC);
    sqlite3_bind_int(s, 4, note->rank);
    sqlite3_bind_text(s, 5, note->text, -1, SQLITE_STATIC);
    status = finish(journal, s);
    if (status != PSD_OK || ++journal->notes_since_trim < NOTES_KEPT / 10)
        return status;
    journal->notes_since_trim = 0;
    char sql[128];
    snprintf(sql, sizeof(sql), "DELETE FROM notes WHERE seq <= (SELECT max(seq) FROM notes) - %d",
             NOTES_KEPT);
    return run(journal, sql);
}

psd_status psd_journal_commit(psd_journal *journal)
{
    if (!journal->in_transaction)
        return PSD_OK;
    psd_status status = run(journal, "COMMIT");
    if (status == PSD_OK)
        journal->in_transaction = false;
    return status;
}

psd_status psd_journal_empty(psd_journal *journal)
{
    char sql[128];
    psd_status status = begin(journal);
    if (status != PSD_OK)
        return status;
    snprintf(sql, sizeof(sql), "DELETE FROM inputs; DELETE FROM lives WHERE life <> %lld",
             (long long)journal->life);
    status = run(journal, sql);
    if (status == PSD_OK)
        journal->events = 0;
    return status;
}

int64_t psd_journal_events(const psd_journal *journal)
{
    return journal->events;
}

const char *psd_journal_error(const psd_journal *journal)
{
    return journal->error;
}

void psd_journal_abandon(psd_journal **journal)
{
    static const char *const suffixes[] = {"", "-wal", "-shm"};
    psd_journal *gone = *journal;
    *journal = NULL;
    sqlite3_exec(gone->db, "ROLLBACK", NULL, NULL, NULL);
    close_database(gone);
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        char from[PATH_MAX + 8];
        char to[PATH_MAX + 16];
        snprintf(from, sizeof(from), "%s%s", gone->path, suffixes[i]);
        snprintf(to, sizeof(to), "%s.broken%s", gone->path, suffixes[i]);
        if (rename(from, to) != 0 && errno != ENOENT && unlink(from) != 0)
            continue; /* a read-only disk: what is there stays, and a restart checks it */
    }
    close(gone->lock_fd);
    free(gone);
}
