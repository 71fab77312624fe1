/* The last error of each thread: a sentence that says what was tried, by which file:line, what happened, what
 * to do. */
#ifndef PSD_ERROR_H
#define PSD_ERROR_H

#include "worker/psd.h"

#define PSD_ERROR_BYTES 2048 /* longer sentences are cut */

/* How sentences call a source file: by what follows its last slash; "?" for NULL. */
const char *psd_site_file(const char *file);

/* Records "file:line: <sentence>" as this thread's last error and gives `status` back, so that a check can be
 * written as `return psd_error_set(file, line, PSD_ERR_INVAL, "psd_send: dst is %d; ...", dst);`. The
 * sentence begins with the name of the public function. A NULL file leaves the place out; an absolute path is
 * cut to its tail. */
#define psd_error_set(file, line, status, ...)                                                               \
    psd_error_pass(status, psd_error_write(file, line, __VA_ARGS__))

/* The macro's parts. That the status comes back unchanged is visible to compilers and analysers. */
int psd_error_write(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static inline psd_status psd_error_pass(psd_status status, int written)
{
    (void)written;
    return status;
}

#endif
