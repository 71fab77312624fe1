#include "server/psctl/text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/conf.h"

enum { LONGEST = 32 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Levenshtein distance, two rows at a time. */
static size_t distance(const char *a, const char *b)
{
    size_t row[LONGEST + 1];
    size_t bytes = strlen(b);
    for (size_t j = 0; j <= bytes; j++)
        row[j] = j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < bytes; j++) {
            size_t above = row[j + 1];
            row[j + 1] = least(least(above, row[j]) + 1, diagonal + (a[i] != b[j]));
            diagonal = above;
        }
    }
    return row[bytes];
}

const char *psctl_text_nearest(const char *name, const char *const *names)
{
    const char *best = NULL;
    size_t bytes = strlen(name);
    size_t best_distance = bytes / 3 + 2; /* nearer than this: 1 slip in a short word, more in a long one */
    if (bytes > LONGEST)
        return NULL;
    for (; *names != NULL; names++) {
        if (strlen(*names) > LONGEST)
            continue;
        size_t d = distance(name, *names);
        if (d < best_distance) {
            best_distance = d;
            best = *names;
        }
    }
    return best;
}

size_t psctl_text_width(const char *text)
{
    size_t width = 0;
    for (; *text != '\0'; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

void psctl_text_clean(const char *text, char *out, size_t out_bytes)
{
    size_t bytes = psd_utf8_prefix(text, strnlen(text, out_bytes - 1));
    for (size_t i = 0; i < bytes; i++) {
        bool control = (unsigned char)text[i] < ' ' || text[i] == 0x7f;
        /* U+0080 to U+009F are control characters too. */
        if (i + 1 < bytes && (unsigned char)text[i] == 0xc2 && (unsigned char)text[i + 1] < 0xa0) {
            out[i++] = ' ';
            control = true;
        }
        out[i] = text[i];
        if (control)
            out[i] = ' ';
    }
    out[bytes] = '\0';
}

bool psctl_text_colours(void)
{
    const char *no_color = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && (no_color == NULL || no_color[0] == '\0') && term != NULL &&
           strcmp(term, "dumb") != 0;
}
