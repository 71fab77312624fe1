/* Printing of answers: aligned tables for people, JSON for programs. */
#ifndef PSD_PSCTL_PRINT_H
#define PSD_PSCTL_PRINT_H

#include <jansson.h>

#include "server/psctl/client.h"

/* The line above the rows if there is one, a header, one line per row: columns aligned, numbers to the right,
 * bytes and durations with units. `none`, if not NULL, is printed instead of an empty table. */
void psctl_print_table(const psctl_answer *answer, uint32_t limit, const char *none);

/* An array of objects, one per row, types by column: text, integers (bytes, nanoseconds), reals, booleans. A
 * negative integer stands for a value that is not there: null; - in tables.
 * NULL when out of memory; else the caller's. */
json_t *psctl_json_rows(const psctl_answer *answer, uint32_t limit);
/* Prints it on a line of its own. False when out of memory. */
bool psctl_print_json(const psctl_answer *answer, uint32_t limit);

#endif
