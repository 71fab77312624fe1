/* Recording operations and waits: relaxed stores into shared memory, no lock, no system call: the clock is the CPU's
 * counter, which the kernel has calibrated (quick_clock.h). tests/bench/bench_recorder.c measures the cost, which is to
 * stay under 100 ns for an operation. */
#include "worker/recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/conf.h"
#include "common/log.h"
#include "common/record_read.h"
#include "worker/error.h"
#include "worker/quick_clock.h"

#define LAST_MOST 1024 /* operations in one message */
#define WORDS     (sizeof(psd_record) / sizeof(uint64_t))

_Static_assert(sizeof(psd_record) % sizeof(uint64_t) == 0, "records are written in words");
_Static_assert(offsetof(psd_record, seq) == 0, "the seq is stored apart from the other words");
_Static_assert(PSD_RECORD_WAITERS == 64, "psd_recorder.waiters has one bit for each");

psd_status psd_recorder_open(psd_recorder *recorder, const psd_recorder_config *config)
{
    char why[1024] = "";
    memset(recorder, 0, sizeof *recorder);
    recorder->fd = -1;
    if (config->off)
        return PSD_OK;
    if (psd_recorder_file_make(config, recorder, why, sizeof why) != PSD_OK) {
        psd_log("psd", PSD_LOG_WARN, "operations are recorded in private memory, invisible to psctl: %s",
                why);
        void *map =
            mmap(NULL, sizeof(psd_record_file), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED)
            return PSD_ERR_NOMEM;
        recorder->file = map;
    }
    static _Atomic uint64_t opened;
    recorder->id = atomic_fetch_add(&opened, 1) + 1;
    psd_record_file *file = recorder->file;
    file->version = PSD_RECORD_VERSION;
    file->record_bytes = sizeof(psd_record);
    file->ring = PSD_RECORD_RING;
    file->waiters = PSD_RECORD_WAITERS;
    file->ident = config->ident;
    file->rank = -1;
    file->pid = (uint32_t)getpid();
    atomic_store(&file->next, 1);
    __atomic_store_n(&file->magic, PSD_RECORD_MAGIC, __ATOMIC_RELEASE);
    return PSD_OK;
}

void psd_recorder_joined(psd_recorder *recorder, int32_t rank, int32_t world)
{
    if (recorder->file == NULL)
        return;
    __atomic_store_n(&recorder->file->world, world, __ATOMIC_RELAXED);
    __atomic_store_n(&recorder->file->rank, rank, __ATOMIC_RELEASE);
}

void psd_recorder_close(psd_recorder *recorder)
{
    if (recorder->file == NULL)
        return;
    munmap(recorder->file, sizeof *recorder->file);
    if (recorder->path[0] != '\0')
        psd_recorder_file_remove(recorder->path, recorder->own_dir);
    if (recorder->fd >= 0)
        close(recorder->fd);
    recorder->file = NULL;
    recorder->fd = -1;
    recorder->path[0] = '\0';
}

static uint32_t this_thread(void)
{
    static _Thread_local uint32_t id;
    if (id == 0)
        id = (uint32_t)syscall(SYS_gettid);
    return id;
}

/* The first record of a thread makes it known: a program hangs only if all its threads that use the context do. */
static void know_thread(psd_recorder *recorder)
{
    static _Thread_local uint64_t known; /* recorder that knows this thread */
    if (known == recorder->id)
        return;
    known = recorder->id;
    uint32_t own = this_thread();
    for (int i = 0; i < PSD_RECORD_THREADS; i++) {
        uint32_t free_slot = 0;
        if (atomic_compare_exchange_strong(&recorder->threads[i], &free_slot, own) || free_slot == own)
            return;
    }
    atomic_store(&recorder->has_more_threads, true);
}

uint32_t psd_recorder_threads(const psd_recorder *recorder, uint32_t out[PSD_RECORD_THREADS])
{
    uint32_t count = 0;
    while (count < PSD_RECORD_THREADS && (out[count] = atomic_load(&recorder->threads[count])) != 0)
        count++;
    if (atomic_load(&recorder->has_more_threads))
        out[PSD_RECORD_THREADS - 1] = this_thread();
    return count;
}

/* The end of `text`, with the NUL, in `bytes`. */
static void copy_tail(char *out, size_t bytes, const char *text)
{
    size_t length = strlen(text);
    const char *from = length < bytes ? text : text + length - (bytes - 1);
    memcpy(out, from, strlen(from) + 1);
}

static void describe(psd_record *record, const psd_record_start *start)
{
    record->posted_ns = start->now;
    record->epoch = start->epoch;
    record->group = start->group;
    record->peer = start->peer;
    record->tag = start->tag;
    record->count = start->count;
    record->thread = this_thread();
    record->line = (uint32_t)start->line;
    record->kind = (uint8_t)start->kind;
    record->state = PSD_STATE_POSTED;
    record->redop = (uint8_t)start->redop;
    if (start->file != NULL)
        copy_tail(record->file, sizeof record->file, start->file);
    const psd_tensor *tensor = start->tensor;
    if (tensor == NULL)
        return;
    record->dtype = (uint8_t)tensor->dtype;
    record->ndim = (uint8_t)tensor->ndim;
    for (int i = 0; i < tensor->ndim && i < 4; i++)
        record->shape[i] = tensor->shape[i];
    if (tensor->name != NULL)
        memcpy(record->name, tensor->name, strnlen(tensor->name, sizeof record->name - 1));
}

uint64_t psd_record_begin(psd_recorder *recorder, const psd_record_start *start)
{
    if (recorder->file == NULL)
        return 0;
    psd_record record;
    know_thread(recorder);
    memset(&record, 0, sizeof record);
    describe(&record, start);
    uint64_t seq = atomic_fetch_add_explicit(&recorder->file->next, 1, memory_order_relaxed);
    psd_record *slot = &recorder->file->records[seq % PSD_RECORD_RING];
    uint64_t *to = (uint64_t *)(void *)slot;
    const uint64_t *from = (const uint64_t *)(const void *)&record;
    atomic_store_explicit(&slot->seq, 0, memory_order_relaxed);
    /* Release, so that who reads a new word also sees that the seq is gone (a fence would do, but TSan knows
     * none). */
    for (size_t i = 1; i < WORDS; i++)
        __atomic_store_n(&to[i], from[i], __ATOMIC_RELEASE);
    atomic_store_explicit(&slot->seq, seq, memory_order_release);
    return seq;
}

void psd_record_end(psd_recorder *recorder, uint64_t seq, psd_status status, int32_t peer, uint64_t ordinal)
{
    if (recorder->file == NULL || seq == 0)
        return;
    psd_record *slot = &recorder->file->records[seq % PSD_RECORD_RING];
    atomic_fetch_add_explicit(&recorder->file->done, 1, memory_order_relaxed);
    if (atomic_load_explicit(&slot->seq, memory_order_relaxed) != seq)
        return; /* so old that its place was taken */
    __atomic_store_n(&slot->done_ns, psd_quick_now_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&slot->ordinal, ordinal, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->peer, peer, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->status, (int32_t)status, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->state, (uint8_t)(status == PSD_OK ? PSD_STATE_DONE : PSD_STATE_FAILED),
                     __ATOMIC_RELEASE);
}

int psd_record_wait_begin(psd_recorder *recorder, const uint64_t *seqs, int32_t count, uint32_t how)
{
    if (recorder->file == NULL)
        return -1;
    uint64_t used = atomic_load_explicit(&recorder->waiters, memory_order_relaxed);
    uint64_t bit;
    do {
        bit = ~used & (used + 1); /* the lowest free one */
        if (bit == 0)
            return -1;
    } while (!atomic_compare_exchange_weak_explicit(&recorder->waiters, &used, used | bit,
                                                    memory_order_acquire, memory_order_relaxed));
    int slot = __builtin_ctzll(bit);
    psd_wait_record *wait = &recorder->file->waits[slot];
    __atomic_store_n(&wait->thread, this_thread(), __ATOMIC_RELAXED);
    __atomic_store_n(&wait->any, (how & PSD_WAIT_ANY) != 0 ? 1u : 0u, __ATOMIC_RELAXED);
    __atomic_store_n(&wait->timed, (how & PSD_WAIT_TIMED) != 0 ? 1u : 0u, __ATOMIC_RELAXED);
    __atomic_store_n(&wait->since_ns, psd_now_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&wait->count, (uint32_t)count, __ATOMIC_RELAXED);
    for (int32_t i = 0; i < count && i < PSD_RECORD_WORKS; i++)
        __atomic_store_n(&wait->works[i], seqs[i], __ATOMIC_RELAXED);
    atomic_fetch_add_explicit(&wait->seq, 1, memory_order_release);
    return slot;
}

void psd_record_wait_end(psd_recorder *recorder, int slot)
{
    if (slot < 0)
        return;
    atomic_fetch_add_explicit(&recorder->file->waits[slot].seq, 1, memory_order_release);
    atomic_fetch_and_explicit(&recorder->waiters, ~(UINT64_C(1) << slot), memory_order_release);
}

bool psd_record_read(const psd_recorder *recorder, uint64_t seq, psd_record *out)
{
    return recorder->file != NULL && psd_record_copy(recorder->file, seq, out);
}

static void fill_current(const psd_record *record, psd_time_ns now, psd_current_op *out)
{
    out->kind = record->kind;
    out->dtype = record->dtype;
    out->redop = record->redop;
    out->peer = record->peer;
    out->group = record->group;
    out->ordinal = record->ordinal;
    out->count = record->count;
    out->age_ns = now > record->posted_ns ? now - record->posted_ns : 0;
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof record->name, record->name);
    if (!psd_utf8_valid(out->name, strlen(out->name))) /* perhaps cut inside a character */
        for (char *c = out->name; *c != '\0'; c++)
            if ((unsigned char)*c >= 0x80)
                *c = '?';
    char site[PSD_MAX_SITE + 16];
    snprintf(site, sizeof site, "%s:%u", psd_site_file(record->file), record->line);
    if (psd_utf8_valid(site, strlen(site)))
        copy_tail(out->site, sizeof out->site, site);
}

bool psd_record_describe(const psd_recorder *recorder, uint64_t seq, psd_time_ns now, psd_current_op *out)
{
    psd_record record;
    if (seq == 0 || !psd_record_read(recorder, seq, &record))
        return false;
    memset(out, 0, sizeof *out);
    fill_current(&record, now, out);
    return true;
}

void psd_record_current(const psd_recorder *recorder, psd_time_ns now, psd_current_op *out)
{
    memset(out, 0, sizeof *out);
    out->peer = -1;
    if (recorder->file == NULL)
        return;
    uint64_t next = atomic_load_explicit(&recorder->file->next, memory_order_relaxed);
    uint64_t seq = next > PSD_RECORD_RING ? next - PSD_RECORD_RING : 1;
    for (; seq < next; seq++) {
        const psd_record *slot = &recorder->file->records[seq % PSD_RECORD_RING];
        psd_record record;
        if (__atomic_load_n(&slot->state, __ATOMIC_RELAXED) == PSD_STATE_POSTED &&
            psd_record_copy(recorder->file, seq, &record) && record.state == PSD_STATE_POSTED) {
            fill_current(&record, now, out);
            return;
        }
    }
}

uint64_t psd_record_done(const psd_recorder *recorder)
{
    return recorder->file != NULL ? atomic_load_explicit(&recorder->file->done, memory_order_relaxed) : 0;
}

psd_status psd_recorder_last(const psd_recorder *recorder, psd_time_ns now, uint32_t limit,
                             psd_msg_reply *out, void **memory)
{
    typedef struct table {
        psd_record_row rows[LAST_MOST];
        psd_cell cells[LAST_MOST * PSD_RECORD_COLUMNS];
    } table;
    if (recorder->file == NULL)
        return PSD_ERR_UNSUPPORTED;
    table *t = malloc(sizeof *t);
    if (t == NULL)
        return PSD_ERR_NOMEM;
    psd_record_table(recorder->file, now, limit == 0 || limit > LAST_MOST ? LAST_MOST : limit, t->rows,
                     t->cells, out);
    *memory = t;
    return PSD_OK;
}
