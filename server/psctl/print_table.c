#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "server/psctl/print.h"
#include "server/psctl/text.h"

enum { CELL_BYTES = PSD_MAX_TEXT, GAP = 2 };

static const char *cell_text(psd_cell_type type, const psd_cell *cell, char *out)
{
    if (cell->integer < 0 && (type == PSD_CELL_INT || type == PSD_CELL_BYTES || type == PSD_CELL_NS)) {
        snprintf(out, CELL_BYTES, "-");
        return out;
    }
    switch (type) {
    case PSD_CELL_TEXT:
        psctl_text_clean(cell->text[0] != '\0' ? cell->text : "-", out, CELL_BYTES);
        break;
    case PSD_CELL_INT:
        snprintf(out, CELL_BYTES, "%" PRId64, cell->integer);
        break;
    case PSD_CELL_REAL:
        snprintf(out, CELL_BYTES, "%.6g", cell->real);
        break;
    case PSD_CELL_BYTES:
        psd_format_bytes(cell->integer, out, CELL_BYTES);
        break;
    case PSD_CELL_NS:
        psd_format_ns(cell->integer, out, CELL_BYTES);
        break;
    case PSD_CELL_BOOL:
        snprintf(out, CELL_BYTES, "%s", cell->integer != 0 ? "yes" : "no");
        break;
    }
    return out;
}

static bool is_right(psd_cell_type type)
{
    return type != PSD_CELL_TEXT && type != PSD_CELL_BOOL;
}

/* Colour of a state, NULL for none. */
static const char *state_colour(const psd_column *column, const char *text)
{
    static const char *const good[] = {"running", "active", "live", NULL};
    static const char *const wait[] = {"forming",  "waiting",      "asking",  "opening",
                                       "agreeing", "compiling",    "loading", "assigning",
                                       "stopping", "disconnected", "warn",    NULL};
    static const char *const bad[] = {"failed", "lost", "broken", NULL};
    static const struct {
        const char *const *words;
        const char *colour;
    } sets[] = {{good, "\x1b[32m"}, {wait, "\x1b[33m"}, {bad, "\x1b[31m"}};
    if (strcmp(column->name, "state") != 0 && strcmp(column->name, "status") != 0 &&
        strcmp(column->name, "level") != 0)
        return NULL;
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        for (const char *const *word = sets[i].words; *word != NULL; word++) {
            if (strcmp(*word, text) == 0)
                return sets[i].colour;
        }
    }
    return NULL;
}

static void print_cell(const char *text, size_t width, bool right, bool last, const char *colour)
{
    int pad = (int)(width - psctl_text_width(text));
    printf("%*s%s%s%s", right ? pad : 0, "", colour != NULL ? colour : "", text,
           colour != NULL ? "\x1b[0m" : "");
    if (last)
        putchar('\n');
    else
        printf("%*s", (right ? 0 : pad) + GAP, "");
}

static void print_header(const psd_msg_reply *head, const size_t *widths, bool colours)
{
    for (uint32_t c = 0; c < head->column_count; c++) {
        char name[CELL_BYTES];
        psctl_text_clean(head->columns[c].name, name, sizeof name);
        print_cell(name, widths[c], is_right(head->columns[c].type), c + 1 == head->column_count,
                   colours ? "\x1b[1m" : NULL);
    }
}

static void print_row(const psd_msg_reply *head, const psd_cell *cells, const size_t *widths, bool colours)
{
    for (uint32_t c = 0; c < head->column_count; c++) {
        char text[CELL_BYTES];
        const psd_column *column = &head->columns[c];
        cell_text(column->type, &cells[c], text);
        print_cell(text, widths[c], is_right(column->type), c + 1 == head->column_count,
                   colours ? state_colour(column, text) : NULL);
    }
}

static void measure(const psctl_answer *answer, size_t *widths)
{
    const psd_msg_reply *head = &answer->pages[0]->msg.u.reply;
    for (uint32_t c = 0; c < head->column_count; c++) {
        char name[CELL_BYTES];
        psctl_text_clean(head->columns[c].name, name, sizeof name);
        widths[c] = psctl_text_width(name);
    }
    for (size_t p = 0; p < answer->count; p++) {
        const psd_msg_reply *page = &answer->pages[p]->msg.u.reply;
        size_t cells = (size_t)page->row_count * page->column_count;
        for (size_t i = 0; i < cells; i++) {
            char text[CELL_BYTES];
            uint32_t c = (uint32_t)(i % page->column_count);
            size_t width = psctl_text_width(cell_text(page->columns[c].type, &page->cells[i], text));
            widths[c] = width > widths[c] ? width : widths[c];
        }
    }
}

void psctl_print_table(const psctl_answer *answer, uint32_t limit, const char *none)
{
    const psd_msg_reply *head = &answer->pages[0]->msg.u.reply;
    bool colours = psctl_text_colours();
    uint64_t rows = 0;
    if (head->text[0] != '\0') {
        char line[PSD_MAX_TEXT];
        psctl_text_clean(head->text, line, sizeof line);
        puts(line);
    }
    size_t *widths = calloc(head->column_count + 1, sizeof *widths);
    if (widths == NULL) {
        psctl_error("out of memory");
        return;
    }
    measure(answer, widths);
    for (size_t p = 0; p < answer->count; p++) {
        const psd_msg_reply *page = &answer->pages[p]->msg.u.reply;
        for (uint32_t r = 0; r < page->row_count && (limit == 0 || rows < limit); r++) {
            if (rows++ == 0)
                print_header(head, widths, colours);
            print_row(head, page->cells + (size_t)r * page->column_count, widths, colours);
        }
    }
    if (rows == 0 && none != NULL)
        puts(none);
    free(widths);
}
