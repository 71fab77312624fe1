#include "worker/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/status.h"

static _Thread_local char last_error[PSD_ERROR_BYTES];

const char *psd_last_error(void)
{
    return last_error;
}

const char *psd_status_text(psd_status status)
{
    return psd_status_sentence(status);
}

const char *psd_site_file(const char *file)
{
    const char *slash = file != NULL ? strrchr(file, '/') : NULL;
    return slash != NULL ? slash + 1 : file != NULL ? file : "?";
}

/* __FILE__ of an out-of-tree build may be absolute; people know their file by its name. */
static const char *site_tail(const char *file)
{
    return file[0] == '/' ? psd_site_file(file) : file;
}

int psd_error_write(const char *file, int line, const char *format, ...)
{
    /* Made aside first: an argument may be psd_last_error() itself. */
    char text[PSD_ERROR_BYTES];
    int used = file != NULL ? snprintf(text, sizeof text, "%.128s:%d: ", site_tail(file), line) : 0;
    if (used < 0)
        used = 0;
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, sizeof text - (size_t)used, format, args);
    va_end(args);
    memcpy(last_error, text, sizeof text);
    return used;
}
