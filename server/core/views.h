/* What the views share: a page of rows under construction, and the table of views. */
#ifndef PSD_CORE_VIEWS_H
#define PSD_CORE_VIEWS_H

#include "server/core/state.h"

typedef struct page {
    uint64_t after; /* rows before the page */
    uint64_t row;   /* rows visited */
    uint32_t limit;
    uint32_t count;
    uint32_t columns;
    bool full; /* and there are more rows */
    psd_cell *cells;
} page;

/* The cells of the next row, or NULL when it is not on this page. */
psd_cell *page_row(page *p);

psd_cell cell_text(const char *text);
psd_cell cell_int(int64_t value);
psd_cell cell_bytes(uint64_t value);
psd_cell cell_none(void); /* for int, bytes and ns: there is no such value */
psd_cell cell_ranks(psd_core *core, const uint32_t *members, uint32_t count);

/* One of the two visits is set: by job, or of the core as a whole. */
typedef struct view {
    const char *name;
    const psd_column *columns;
    size_t column_count;
    void (*visit_job)(psd_core *core, job *j, page *p);
    void (*visit_core)(psd_core *core, const char *job_name, page *p);
} view;

const view *work_view_find(const char *name); /* views_work.c: groups, plans, tables */

/* views_hang.c: why, incidents, and incident, which has the rows of all incidents. */
const view *hang_view_find(const char *name);
/* The questions that a rank answers: views_answer passes them on. */
bool asks_is_question(const psd_msg_query *query);
void asks_put(psd_core *core, const psd_event *event);

/* The command ack/ID; false: the name is another's. */
bool hang_acknowledge(psd_core *core, const psd_msg_query *query, psd_msg_reply *reply);

#endif
