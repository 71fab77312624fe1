/* Snapshots of what this rank's threads wait for: the wait records say which operations, the backend what is in flight of
 * each and with whom, the operations' records the rest. */
#include "worker/hang.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/conf.h"
#include "common/record_read.h"
#include "worker/context.h"

#define TELL_AGAIN   (2 * PSD_NS_PER_S)
#define NEWEST       64                    /* records looked at for the last sign of life */
#define POLLS_WITHIN (500 * PSD_NS_PER_MS) /* who has tested an operation since then polls it */
#define MOST_PEERS   4096 /* links of one rank: more are not counted, and psd then never finds them quiet */

static bool explains(const psd_ctx *ctx)
{
    return ctx->recorder.file != NULL && ctx->ops->inspect != NULL;
}

/* A wait as its thread published it; false: the slot is free, or changed meanwhile. */
static bool read_wait(const psd_record_file *file, int slot, psd_wait_record *out)
{
    const psd_wait_record *wait = &file->waits[slot];
    uint64_t seq = atomic_load_explicit(&wait->seq, memory_order_acquire);
    if (seq % 2 == 0)
        return false;
    atomic_store_explicit(&out->seq, seq, memory_order_relaxed);
    out->thread = __atomic_load_n(&wait->thread, __ATOMIC_ACQUIRE);
    out->any = __atomic_load_n(&wait->any, __ATOMIC_ACQUIRE);
    out->since_ns = __atomic_load_n(&wait->since_ns, __ATOMIC_ACQUIRE);
    out->count = __atomic_load_n(&wait->count, __ATOMIC_ACQUIRE);
    out->timed = __atomic_load_n(&wait->timed, __ATOMIC_ACQUIRE);
    for (int i = 0; i < PSD_RECORD_WORKS; i++)
        out->works[i] = __atomic_load_n(&wait->works[i], __ATOMIC_ACQUIRE);
    return atomic_load_explicit(&wait->seq, memory_order_relaxed) == seq;
}

static uint64_t seq_of(const psd_wait_record *wait)
{
    return atomic_load_explicit(&wait->seq, memory_order_relaxed);
}

bool psd_hang_is_stuck(psd_ctx *ctx, psd_time_ns now)
{
    psd_hang *hang = &ctx->hang;
    bool found = false;
    if (!explains(ctx))
        return false;
    uint64_t used = atomic_load_explicit(&ctx->recorder.waiters, memory_order_acquire);
    for (; used != 0; used &= used - 1) {
        int slot = __builtin_ctzll(used);
        psd_wait_record wait;
        if (!read_wait(ctx->recorder.file, slot, &wait) || wait.timed != 0 ||
            now - wait.since_ns < ctx->settings.report_after_ms * PSD_NS_PER_MS)
            continue;
        if (hang->told[slot] == seq_of(&wait) && now - hang->told_at[slot] < TELL_AGAIN)
            continue;
        hang->told[slot] = seq_of(&wait);
        hang->told_at[slot] = now;
        found = true;
    }
    return found;
}

/* When the newest operations were begun or ended: what came before is past. */
static psd_time_ns last_seen_inside(const psd_record_file *file)
{
    psd_time_ns last = 0;
    uint64_t next = atomic_load_explicit(&file->next, memory_order_relaxed);
    uint64_t seq = next > NEWEST ? next - NEWEST : 1;
    for (psd_record record; seq < next; seq++) {
        if (!psd_record_copy(file, seq, &record))
            continue;
        last = record.posted_ns > last ? record.posted_ns : last;
        last = record.done_ns > last ? record.done_ns : last;
    }
    return last;
}

void psd_hang_doing(psd_ctx *ctx, psd_time_ns now, psd_msg_heartbeat *out)
{
    psd_time_ns since = PSD_NEVER;
    const psd_record_file *file = ctx->recorder.file;
    if (file == NULL)
        return;
    if (ctx->hang.began == 0)
        ctx->hang.began = now;
    uint64_t used = atomic_load_explicit(&ctx->recorder.waiters, memory_order_acquire);
    for (psd_wait_record wait; used != 0; used &= used - 1)
        if (read_wait(file, __builtin_ctzll(used), &wait) && wait.since_ns < since)
            since = wait.since_ns;
    psd_time_ns polled_at = atomic_load_explicit(&ctx->hang.polled_at, memory_order_acquire);
    if (since != PSD_NEVER) {
        out->doing = PSD_DOING_WAITING;
    } else if (polled_at != 0 && now - polled_at < POLLS_WITHIN &&
               psd_record_describe(&ctx->recorder, atomic_load(&ctx->hang.polled), now, &out->current)) {
        out->doing = PSD_DOING_POLLING;
        since = now - out->current.age_ns;
    } else {
        since = last_seen_inside(file);
        since = polled_at > since ? polled_at : since;
        since = ctx->hang.began > since ? ctx->hang.began : since;
        out->doing = PSD_DOING_OUTSIDE;
    }
    out->doing_ns = now > since ? now - since : 0;
}

/* -------------------------------------------------------------------------------------------- collecting */

typedef struct snapshot {
    psd_transfer transfers[PSD_MAX_SNAP_OPS];
    uint32_t transfer_count;
    uint64_t records[PSD_MAX_SNAP_OPS]; /* by unit */
    psd_snap_op ops[PSD_MAX_SNAP_OPS];
    psd_snap_thread threads[PSD_MAX_SNAP_THREADS];
    uint32_t works[PSD_MAX_SNAP_THREADS][PSD_RECORD_WORKS];
    uint32_t groups[PSD_MAX_SNAP_OPS];
    uint64_t started[PSD_MAX_SNAP_OPS];
    uint32_t peers[MOST_PEERS];
    uint64_t sent[MOST_PEERS];
    uint64_t received[MOST_PEERS];
    psd_msg_snapshot out;
    bool is_full;
} snapshot;

static bool is_opening(uint8_t kind)
{
    return kind >= PSD_OP_GROUP_NEW && kind <= PSD_OP_GROUP_DUP;
}

static void add_transfer(void *arg, const psd_transfer *transfer)
{
    snapshot *s = arg;
    if (s->transfer_count < PSD_MAX_SNAP_OPS)
        s->transfers[s->transfer_count++] = *transfer;
    else
        s->is_full = true;
}

static void add_group(void *arg, uint32_t group, uint64_t started)
{
    snapshot *s = arg;
    if (s->out.group_count == PSD_MAX_SNAP_OPS) {
        s->is_full = true;
        return;
    }
    s->groups[s->out.group_count] = group;
    s->started[s->out.group_count++] = started;
}

/* In the order of their ranks. */
static void add_pair(void *arg, uint32_t rank, uint64_t sent, uint64_t received)
{
    snapshot *s = arg;
    uint32_t at = s->out.peer_count;
    if (at == MOST_PEERS) {
        s->is_full = true;
        return;
    }
    for (; at > 0 && s->peers[at - 1] > rank; at--) {
        s->peers[at] = s->peers[at - 1];
        s->sent[at] = s->sent[at - 1];
        s->received[at] = s->received[at - 1];
    }
    if (at > 0 && s->peers[at - 1] == rank) { /* two links to one rank: of a former life, too */
        s->is_full = true;
        return;
    }
    s->peers[at] = rank;
    s->sent[at] = sent;
    s->received[at] = received;
    s->out.peer_count++;
}

/* Requests for groups are not the backend's: psd has them. */
static void add_openings(psd_ctx *ctx, snapshot *s)
{
    for (int slot = 0; slot < PSD_RECORD_WAITERS; slot++) {
        psd_wait_record wait;
        psd_record record;
        if (!read_wait(ctx->recorder.file, slot, &wait) || wait.count != 1 ||
            !psd_record_read(&ctx->recorder, wait.works[0], &record) || !is_opening(record.kind))
            continue;
        psd_transfer opening = {
            .record = wait.works[0], .group = record.group, .is_collective = true, .peer = -1};
        add_transfer(s, &opening);
    }
}

/* By record; the parts of one operation stay in their order. */
static int by_record(const void *left, const void *right)
{
    const psd_transfer *a = left, *b = right;
    if (a->record != b->record)
        return a->record < b->record ? -1 : 1;
    return (a > b) - (a < b);
}

/* ------------------------------------------------------------------------------------------ operations */

static void clean_text(char *text)
{
    if (!psd_utf8_valid(text, strlen(text))) /* perhaps cut inside a character */
        for (char *c = text; *c != '\0'; c++)
            if ((unsigned char)*c >= 0x80)
                *c = '?';
}

static void describe(psd_snap_op *op, const psd_transfer *t, const psd_record *record)
{
    op->group = t->group;
    op->is_matched = t->is_moving;
    op->ordinal = t->ordinal;
    op->kind = (uint8_t)(t->is_collective ? record->kind : t->is_send ? PSD_OP_SEND : PSD_OP_RECV);
    op->dtype = t->is_collective ? record->dtype : (uint8_t)t->dtype;
    op->redop = t->is_collective ? record->redop : 0;
    op->count = t->is_collective ? record->count : t->count;
    op->peer = t->is_collective ? -1 : t->peer;
    op->root = t->is_collective ? record->peer : -1;
    op->tag = t->is_collective ? 0 : t->tag;
    op->other_tag = t->is_collective ? 0 : t->other_tag;
    op->line = record->line;
    snprintf(op->file, sizeof op->file, "%s", psd_site_file(record->file));
    snprintf(op->name, sizeof op->name, "%.*s", (int)sizeof record->name, record->name);
    clean_text(op->file);
    clean_text(op->name);
}

/* What has no record any more, because the ring went round, is left out; so are collectives that the record calls
 * otherwise. Who waits for it then waits for something that is not named. */
static void make_ops(psd_ctx *ctx, snapshot *s)
{
    uint64_t last = 0;
    bool known = false;
    psd_record record;
    qsort(s->transfers, s->transfer_count, sizeof s->transfers[0], by_record);
    for (uint32_t i = 0; i < s->transfer_count; i++) {
        const psd_transfer *t = &s->transfers[i];
        if (t->record != last || !known) {
            known = t->record != 0 && psd_record_read(&ctx->recorder, t->record, &record);
            last = t->record;
            if (known)
                s->records[s->out.unit_count++] = t->record;
        }
        bool fits =
            known && !(t->is_collective && (record.kind <= PSD_OP_BATCH || record.kind > PSD_OP_GROUP_DUP));
        if (!fits) {
            s->out.unit_count -= known;
            known = false;
            continue;
        }
        psd_snap_op *op = &s->ops[s->out.op_count++];
        memset(op, 0, sizeof *op);
        op->unit = s->out.unit_count - 1;
        describe(op, t, &record);
    }
}

static bool find_unit(const snapshot *s, uint64_t record, uint32_t *out)
{
    uint32_t low = 0, high = s->out.unit_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (s->records[middle] < record)
            low = middle + 1;
        else
            high = middle;
    }
    *out = low;
    return low < s->out.unit_count && s->records[low] == record;
}

/* --------------------------------------------------------------------------------------------- threads */

static bool is_alive(uint32_t thread)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%u", thread);
    return access(path, F_OK) == 0;
}

/* A thread that waits for nothing that is in flight is about to go on. */
static void make_wait(snapshot *s, const psd_wait_record *wait, int slot, psd_time_ns now, psd_snap_thread *t,
                      uint32_t *works)
{
    uint32_t named = wait->count < PSD_RECORD_WORKS ? wait->count : PSD_RECORD_WORKS;
    for (uint32_t i = 0; i < named; i++)
        t->work_count += find_unit(s, wait->works[i], &works[t->work_count]);
    t->is_partial = wait->count > named || (wait->any != 0 && t->work_count < named);
    t->any = wait->any != 0;
    t->is_blocked = t->work_count > 0;
    t->waiting_ns = now > wait->since_ns ? now - wait->since_ns : 0;
    t->wait_seq = seq_of(wait) * PSD_RECORD_WAITERS + (uint64_t)slot;
    t->works = works;
}

/* A thread whose wait has a timeout of its own runs: it comes back, and may then release others. */
static void make_threads(psd_ctx *ctx, snapshot *s, psd_time_ns now)
{
    uint32_t threads[PSD_RECORD_THREADS];
    uint32_t count = psd_recorder_threads(&ctx->recorder, threads);
    for (uint32_t i = 0; i < count; i++) {
        if (!is_alive(threads[i]))
            continue;
        uint32_t at = s->out.thread_count++;
        psd_snap_thread *t = &s->threads[at];
        memset(t, 0, sizeof *t);
        t->id = threads[i];
        for (int slot = 0; slot < PSD_RECORD_WAITERS && !t->is_blocked; slot++) {
            psd_wait_record wait;
            if (read_wait(ctx->recorder.file, slot, &wait) && wait.thread == t->id && wait.timed == 0)
                make_wait(s, &wait, slot, now, t, s->works[at]);
        }
    }
}

psd_status psd_hang_snapshot(psd_ctx *ctx, psd_time_ns now, psd_msg_snapshot *out, void **memory)
{
    uint64_t sent = 0, received = 0;
    if (!explains(ctx))
        return PSD_ERR_UNSUPPORTED;
    snapshot *s = malloc(sizeof *s);
    if (s == NULL)
        return PSD_ERR_NOMEM;
    s->transfer_count = 0;
    s->is_full = false;
    memset(&s->out, 0, sizeof s->out);
    psd_inspector to = {s, add_transfer, add_group, add_pair};
    /* Before and after: what moves meanwhile shows in the next round at the latest. */
    uint64_t next = atomic_load_explicit(&ctx->recorder.file->next, memory_order_relaxed);
    ctx->ops->inspect(ctx->backend, &to);
    add_openings(ctx, s);
    ctx->ops->counters(ctx->backend, &sent, &received);
    make_ops(ctx, s);
    make_threads(ctx, s, now);
    if (s->is_full) {
        free(s);
        return PSD_ERR_LIMIT;
    }
    s->out.moved = next + psd_record_done(&ctx->recorder) + sent + received;
    s->out.report_only = ctx->settings.hang_report_only;
    s->out.threads = s->threads;
    s->out.ops = s->ops;
    s->out.groups = s->groups;
    s->out.started = s->started;
    s->out.peers = s->peers;
    s->out.sent = s->sent;
    s->out.received = s->received;
    *out = s->out;
    *memory = s;
    return PSD_OK;
}
