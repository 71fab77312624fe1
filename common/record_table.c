/* A recorder's last operations as the rows of an answer. */
#include <stdio.h>
#include <string.h>

#include "common/conf.h"
#include "common/record_read.h"
#include "common/status.h"
#include "common/tensor.h"

static const psd_column columns[PSD_RECORD_COLUMNS] = {
    {"seq", PSD_CELL_INT},     {"op", PSD_CELL_TEXT},  {"state", PSD_CELL_TEXT},  {"group", PSD_CELL_INT},
    {"ordinal", PSD_CELL_INT}, {"peer", PSD_CELL_INT}, {"count", PSD_CELL_INT},   {"dtype", PSD_CELL_TEXT},
    {"age", PSD_CELL_NS},      {"took", PSD_CELL_NS},  {"tensor", PSD_CELL_TEXT}, {"site", PSD_CELL_TEXT},
};

static psd_cell text_cell(const char *text)
{
    return (psd_cell){.text = text};
}

static psd_cell int_cell(int64_t value)
{
    return (psd_cell){.integer = value};
}

/* Text of a record, which may be cut inside a character, or be anything at all. */
static void copy_text(char *out, size_t out_bytes, const char *text, size_t bytes)
{
    size_t length = strnlen(text, bytes);
    length = length < out_bytes ? length : out_bytes - 1;
    bool is_utf8 = psd_utf8_valid(text, length);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        out[i] = c < ' ' || c == 0x7f || (c >= 0x80 && !is_utf8) ? '?' : text[i];
    }
    out[length] = '\0';
}

/* Not negative, whatever the two are: negative means that there is none. */
static int64_t span(int64_t from, int64_t to)
{
    int64_t ns;
    return __builtin_sub_overflow(to, from, &ns) || ns < 0 ? 0 : ns;
}

static const char *state_text(const psd_record *record)
{
    switch (record->state) {
    case PSD_STATE_POSTED:
        return "in flight";
    case PSD_STATE_DONE:
        return "done";
    case PSD_STATE_FAILED:
        return psd_status_name((psd_status)record->status);
    default:
        return "?";
    }
}

static void fill_row(const psd_record *record, psd_time_ns now, psd_record_row *row, psd_cell *cells)
{
    char file[PSD_MAX_SITE];
    bool is_done = record->state == PSD_STATE_DONE || record->state == PSD_STATE_FAILED;
    copy_text(row->name, sizeof row->name, record->name, sizeof record->name);
    copy_text(file, sizeof file, record->file, sizeof record->file);
    const char *slash = strrchr(file, '/');
    snprintf(row->site, sizeof row->site, "%s:%u", slash != NULL ? slash + 1 : file, record->line);
    *cells++ = int_cell((int64_t)(atomic_load_explicit(&record->seq, memory_order_relaxed) & INT64_MAX));
    *cells++ = text_cell(psd_op_name((psd_op_kind)record->kind));
    *cells++ = text_cell(state_text(record));
    *cells++ = int_cell(record->group);
    *cells++ = int_cell(is_done ? (int64_t)(record->ordinal & INT64_MAX) : -1); /* taken at the match */
    *cells++ = int_cell(record->peer);
    *cells++ = int_cell(record->count);
    *cells++ = text_cell(record->dtype == 0 ? "" : psd_dtype_name((psd_dtype)record->dtype));
    *cells++ = int_cell(span(record->posted_ns, now));
    *cells++ = int_cell(is_done ? span(record->posted_ns, record->done_ns) : -1);
    *cells++ = text_cell(row->name);
    *cells = text_cell(row->site);
}

/* The oldest seq that may still be in the ring, with no more than `capacity` up to the newest. */
static uint64_t first_seq(uint64_t next, uint32_t capacity)
{
    uint64_t most = capacity < PSD_RECORD_RING ? capacity : PSD_RECORD_RING;
    return next > most ? next - most : 1;
}

static psd_time_ns last_time(const psd_record_file *file, uint64_t next)
{
    psd_time_ns last = 0;
    psd_record record;
    for (uint64_t seq = first_seq(next, PSD_RECORD_RING); seq < next; seq++) {
        if (!psd_record_copy(file, seq, &record))
            continue;
        last = record.posted_ns > last ? record.posted_ns : last;
        last = record.done_ns > last ? record.done_ns : last;
    }
    return last;
}

static void write_head(const psd_record_file *file, uint64_t next, psd_msg_reply *out)
{
    uint64_t done = atomic_load_explicit(&file->done, memory_order_relaxed);
    char job[PSD_MAX_NAME], name[PSD_MAX_NAME];
    int32_t rank = __atomic_load_n(&file->rank, __ATOMIC_ACQUIRE);
    copy_text(job, sizeof job, file->ident.job, sizeof file->ident.job);
    copy_text(name, sizeof name, file->ident.name, sizeof file->ident.name);
    snprintf(out->text, sizeof out->text, "%s of job %s, ", name, job);
    if (rank >= 0)
        psd_append(out->text, sizeof out->text, "rank %d of %d, ", rank, file->world);
    psd_append(out->text, sizeof out->text, "process %u: %llu operations begun, %llu ended", file->pid,
               (unsigned long long)(next > 0 ? next - 1 : 0), (unsigned long long)done);
}

void psd_record_table(const psd_record_file *file, psd_time_ns now, uint32_t capacity, psd_record_row *rows,
                      psd_cell *cells, psd_msg_reply *out)
{
    psd_record record;
    uint64_t next = atomic_load_explicit(&file->next, memory_order_relaxed);
    now = now != 0 ? now : last_time(file, next);
    memset(out, 0, sizeof *out);
    write_head(file, next, out);
    out->column_count = PSD_RECORD_COLUMNS;
    out->columns = columns;
    out->cells = cells;
    for (uint64_t seq = first_seq(next, capacity); seq < next; seq++) {
        if (!psd_record_copy(file, seq, &record))
            continue;
        fill_row(&record, now, &rows[out->row_count], cells + (size_t)out->row_count * PSD_RECORD_COLUMNS);
        out->row_count++;
    }
}
