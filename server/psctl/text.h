/* Small text helpers of the command line. */
#ifndef PSD_PSCTL_TEXT_H
#define PSD_PSCTL_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* The name in the NULL-terminated list that differs least, if it is near enough to be a slip of the finger.
 */
const char *psctl_text_nearest(const char *name, const char *const *names);

/* Columns that valid UTF-8 takes on a terminal: one a character. */
size_t psctl_text_width(const char *text);

/* A copy without control characters, cut to fit: nothing that comes from a worker may steer the terminal. */
void psctl_text_clean(const char *text, char *out, size_t out_bytes);

/* Is stdout a terminal that shows colours, and did the user not refuse them (NO_COLOR)? */
bool psctl_text_colours(void);

#endif
