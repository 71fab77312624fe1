/* From a traffic matrix to rounds in which each rank sends to at most one and receives from at most one.
 *
 * The matrix is completed to one whose rows and columns all have the same sum T: a sender's slack goes to a column of
 * its own, a receiver's to a row of its own, and the transpose fills the rest. Such a matrix always has a perfect
 * matching on its entries (Birkhoff, 1946; Koenig, 1916), and taking the least entry of it from all matched ones leaves
 * such a matrix again. Entries below a threshold, which falls only when no perfect matching is left above it, are not
 * used, so that rounds are long and few. */
#include <stdlib.h>
#include <string.h>

#include "server/core/reshard_parts.h"

#define NONE UINT32_MAX

typedef struct cell {
    uint32_t row;
    uint32_t column;
    uint32_t traffic; /* NONE: part of the completion */
    int64_t units;
} cell;

typedef struct matrix {
    uint32_t senders;
    uint32_t receivers;
    uint32_t lines;      /* rows, and columns: senders + receivers */
    uint32_t *row_of;    /* rank -> its row as a sender, or NONE */
    uint32_t *column_of; /* rank -> its column as a receiver, or NONE */
    cell *cells;
    uint32_t cell_count;
    uint32_t *first;       /* of each row's cells; lines + 1 entries */
    uint32_t *row_mate;    /* row -> its matched cell, or NONE */
    uint32_t *column_mate; /* column -> its matched cell, or NONE */
    uint32_t *seen;        /* column -> the search that came there last */
    uint32_t *came_by;     /* column -> the cell by which it was reached */
    uint32_t *queue;       /* rows */
    uint32_t search;
    int64_t threshold;
    int64_t left;    /* of every line */
    int64_t longest; /* round */
} matrix;

static void release(matrix *m)
{
    free(m->row_of);
    free(m->column_of);
    free(m->cells);
    free(m->first);
    free(m->row_mate);
    free(m->column_mate);
    free(m->seen);
    free(m->came_by);
    free(m->queue);
}

static int by_row_units(const void *a, const void *b)
{
    const cell *x = a, *y = b;
    if (x->row != y->row)
        return x->row < y->row ? -1 : 1;
    if (x->units != y->units)
        return x->units > y->units ? -1 : 1;
    return (x->column > y->column) - (x->column < y->column);
}

static bool number_lines(matrix *m, const traffic *entries, uint32_t count, int32_t ranks)
{
    m->row_of = malloc(((size_t)ranks + 1) * sizeof *m->row_of);
    m->column_of = malloc(((size_t)ranks + 1) * sizeof *m->column_of);
    if (m->row_of == NULL || m->column_of == NULL)
        return false;
    memset(m->row_of, 0xff, (size_t)ranks * sizeof *m->row_of);
    memset(m->column_of, 0xff, (size_t)ranks * sizeof *m->column_of);
    for (uint32_t i = 0; i < count; i++) {
        if (m->row_of[entries[i].src] == NONE)
            m->row_of[entries[i].src] = m->senders++;
        if (m->column_of[entries[i].dst] == NONE)
            m->column_of[entries[i].dst] = m->receivers++;
    }
    m->lines = m->senders + m->receivers;
    return true;
}

static void add(matrix *m, uint32_t row, uint32_t column, uint32_t entry, int64_t units)
{
    if (units > 0)
        m->cells[m->cell_count++] = (cell){row, column, entry, units};
}

static bool complete(matrix *m, const traffic *entries, uint32_t count)
{
    size_t lines = m->lines;
    int64_t *sums = calloc(lines + 1, sizeof *sums); /* senders, then receivers */
    m->cells = malloc((2 * (size_t)count + lines + 1) * sizeof *m->cells);
    if (sums == NULL || m->cells == NULL) {
        free(sums);
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        sums[m->row_of[entries[i].src]] += entries[i].units;
        sums[m->senders + m->column_of[entries[i].dst]] += entries[i].units;
    }
    for (uint32_t i = 0; i < m->lines; i++)
        m->left = sums[i] > m->left ? sums[i] : m->left;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t row = m->row_of[entries[i].src], column = m->column_of[entries[i].dst];
        add(m, row, column, i, entries[i].units);
        add(m, m->senders + column, m->receivers + row, NONE, entries[i].units);
    }
    for (uint32_t s = 0; s < m->senders; s++)
        add(m, s, m->receivers + s, NONE, m->left - sums[s]);
    for (uint32_t d = 0; d < m->receivers; d++)
        add(m, m->senders + d, d, NONE, m->left - sums[m->senders + d]);
    free(sums);
    qsort(m->cells, m->cell_count, sizeof *m->cells, by_row_units);
    return true;
}

static bool prepare(matrix *m, const traffic *entries, uint32_t count, int32_t ranks)
{
    if (count > UINT32_MAX / 4 || !number_lines(m, entries, count, ranks) || !complete(m, entries, count))
        return false;
    size_t lines = m->lines;
    m->first = malloc((lines + 1) * sizeof *m->first);
    m->row_mate = malloc((lines + 1) * sizeof *m->row_mate);
    m->column_mate = malloc((lines + 1) * sizeof *m->column_mate);
    m->seen = calloc(lines + 1, sizeof *m->seen);
    m->came_by = malloc((lines + 1) * sizeof *m->came_by);
    m->queue = malloc((lines + 1) * sizeof *m->queue);
    if (m->first == NULL || m->row_mate == NULL || m->column_mate == NULL || m->seen == NULL ||
        m->came_by == NULL || m->queue == NULL)
        return false;
    memset(m->row_mate, 0xff, lines * sizeof *m->row_mate);
    memset(m->column_mate, 0xff, lines * sizeof *m->column_mate);
    for (uint32_t row = 0, at = 0; row <= m->lines; row++) {
        m->first[row] = at;
        while (at < m->cell_count && m->cells[at].row == row)
            at++;
    }
    for (m->threshold = 1; m->threshold <= m->left / 2;)
        m->threshold *= 2;
    return true;
}

static void turn_path(matrix *m, uint32_t column)
{
    for (uint32_t c = column; c != NONE;) {
        uint32_t at = m->came_by[c];
        uint32_t row = m->cells[at].row;
        uint32_t before = m->row_mate[row];
        m->row_mate[row] = at;
        m->column_mate[c] = at;
        c = before == NONE ? NONE : m->cells[before].column;
    }
}

/* Matches a free row by the shortest alternating path over cells of at least the threshold. */
static bool match_row(matrix *m, uint32_t row)
{
    m->search++;
    m->queue[0] = row;
    for (uint32_t head = 0, tail = 1; head < tail; head++) {
        uint32_t r = m->queue[head];
        for (uint32_t at = m->first[r]; at < m->first[r + 1]; at++) {
            uint32_t column = m->cells[at].column;
            if (m->cells[at].units < m->threshold || m->seen[column] == m->search)
                continue;
            m->seen[column] = m->search;
            m->came_by[column] = at;
            if (m->column_mate[column] == NONE) {
                turn_path(m, column);
                return true;
            }
            m->queue[tail++] = m->cells[m->column_mate[column]].row;
        }
    }
    return false;
}

static void match_all(matrix *m)
{
    for (uint32_t row = 0; row < m->lines; row++) {
        while (m->row_mate[row] == NONE && !match_row(m, row))
            m->threshold /= 2; /* at 1 a perfect matching exists */
    }
}

/* Takes the least matched entry from all of them; those then below the threshold are matched no more. */
static bool take_round(matrix *m, reshard_rounds *out, uint64_t *capacity)
{
    int64_t units = m->left < m->longest ? m->left : m->longest;
    for (uint32_t row = 0; row < m->lines; row++) {
        int64_t here = m->cells[m->row_mate[row]].units;
        units = here < units ? here : units;
    }
    for (uint32_t row = 0; row < m->lines; row++) {
        uint32_t at = m->row_mate[row];
        cell *c = &m->cells[at];
        if (c->traffic != NONE) {
            void *grown = reshard_room(out->shares, out->count, capacity, sizeof *out->shares);
            if (grown == NULL)
                return false;
            out->shares = grown;
            out->shares[out->count++] = (share_of_round){c->traffic, out->rounds, units};
        }
        c->units -= units;
        if (c->units < m->threshold) {
            m->row_mate[row] = NONE;
            m->column_mate[c->column] = NONE;
        }
    }
    m->left -= units;
    out->rounds++;
    return true;
}

psd_status reshard_rounds_make(const traffic *entries, uint32_t count, int32_t ranks, int64_t longest,
                               reshard_rounds *out, const reshard_why *why)
{
    matrix m = {.longest = longest};
    reshard_rounds rounds = {0};
    uint64_t capacity = 0;
    psd_status status = prepare(&m, entries, count, ranks) ? PSD_OK : reshard_no_memory(why);
    while (status == PSD_OK && m.left > 0) {
        match_all(&m);
        if (!take_round(&m, &rounds, &capacity))
            status = reshard_no_memory(why);
    }
    release(&m);
    if (status == PSD_OK)
        *out = rounds;
    else
        free(rounds.shares);
    return status;
}
