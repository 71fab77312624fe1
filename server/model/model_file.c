/* Files and sentences. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/model/model_parts.h"

#define LARGEST_FILE ((off_t)512 << 20)

psd_status model_fail(const model_why *why, psd_status status, const char *path, const char *format, ...)
{
    va_list args;
    int used = snprintf(why->text, why->bytes, "%.200s: ", path);
    va_start(args, format);
    if (used >= 0 && (size_t)used < why->bytes)
        vsnprintf(why->text + used, why->bytes - (size_t)used, format, args);
    va_end(args);
    return status;
}

static psd_status read_all(int fd, const char *path, char *out, size_t bytes, const model_why *why)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t n = read(fd, out + got, bytes - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return model_fail(why, PSD_ERR_IO, path, "cannot be read: %s", strerror(errno));
        if (n == 0)
            return model_fail(why, PSD_ERR_FORMAT, path, "became shorter while it was read");
        got += (size_t)n;
    }
    out[bytes] = '\0';
    return PSD_OK;
}

psd_status model_load_file(const char *path, char **out, size_t *bytes, const model_why *why)
{
    struct stat st;
    psd_status status = PSD_OK;
    char *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return model_fail(why, errno == ENOENT ? PSD_ERR_NOT_FOUND : PSD_ERR_IO, path, "cannot be opened: %s",
                          strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        status = model_fail(why, PSD_ERR_FORMAT, path, "is not a plain file");
    else if (st.st_size > LARGEST_FILE)
        status = model_fail(why, PSD_ERR_LIMIT, path, "has %lld bytes; at most %lld are read",
                            (long long)st.st_size, (long long)LARGEST_FILE);
    if (status == PSD_OK)
        text = malloc((size_t)st.st_size + 1);
    if (status == PSD_OK && text == NULL)
        status = model_fail(why, PSD_ERR_NOMEM, path, "no memory for %lld bytes", (long long)st.st_size);
    if (status == PSD_OK && text != NULL)
        status = read_all(fd, path, text, (size_t)st.st_size, why);
    close(fd);
    if (status != PSD_OK) {
        free(text);
        return status;
    }
    *out = text;
    *bytes = (size_t)st.st_size;
    return PSD_OK;
}

psd_status model_parse(const char *path, const char *text, size_t bytes, json_t **out, const model_why *why)
{
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return model_fail(why, PSD_ERR_FORMAT, path, "line %d, column %d: %s", error.line, error.column,
                          error.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return model_fail(why, PSD_ERR_FORMAT, path, "is not a JSON object");
    }
    *out = root;
    return PSD_OK;
}
