#include "server/psctl/text.h"

#include <stdio.h>
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
    size_t used = 0;
    size_t valid = 0; /* bytes from `text` on that are UTF-8 */
    for (; *text != '\0'; text++) {
        if (valid == 0)
            valid = psd_utf8_prefix(text, strlen(text));
        bool is_byte = valid == 0;
        size_t bytes = is_byte ? 4 : 1;
        if (used + bytes >= out_bytes)
            break;
        /* U+0080 to U+009F are control characters too. */
        bool starts_control = valid > 1 && (unsigned char)text[0] == 0xc2 && (unsigned char)text[1] < 0xa0;
        if (is_byte)
            snprintf(out + used, 5, "\\x%02x", (unsigned char)*text);
        else
            out[used] = (unsigned char)*text < ' ' || *text == 0x7f || starts_control ? ' ' : *text;
        text += starts_control;
        valid -= starts_control ? 2 : is_byte ? 0 : 1;
        used += bytes;
    }
    used = valid > 0 ? psd_utf8_prefix(out, used) : used; /* perhaps cut inside a character */
    out[used] = '\0';
}

bool psctl_text_colours(void)
{
    const char *no_color = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && (no_color == NULL || no_color[0] == '\0') && term != NULL &&
           strcmp(term, "dumb") != 0;
}
