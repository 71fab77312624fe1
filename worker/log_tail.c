#include "worker/log_tail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/conf.h"

static const psd_column columns[] = {{"line", PSD_CELL_TEXT}};

static void refuse(psd_msg_reply *out, psd_status status, const char *what, const char *path, int error)
{
    out->status = status;
    snprintf(out->text, sizeof out->text, "%s%.512s%s%s", what, path, error != 0 ? ": " : "",
             error != 0 ? strerror(error) : "");
}

/* The end of the file; the number of bytes, or -1 and errno. */
static ssize_t read_end(const char *path, char *out, size_t bytes)
{
    size_t used = 0;
    ssize_t got = 1;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -1;
    off_t end = lseek(fd, 0, SEEK_END);
    off_t from = end > (off_t)bytes ? end - (off_t)bytes : 0;
    while (end >= 0 && used < bytes && got > 0) {
        got = pread(fd, out + used, bytes - used, from + (off_t)used);
        used += got > 0 ? (size_t)got : 0;
    }
    int error = errno;
    close(fd);
    errno = error;
    return end < 0 || got < 0 ? -1 : (ssize_t)used;
}

static void clean(char *line)
{
    bool is_utf8 = psd_utf8_valid(line, strlen(line));
    for (unsigned char *c = (unsigned char *)line; *c != '\0'; c++) {
        if (*c == '\t')
            *c = ' ';
        else if (*c < 0x20 || *c == 0x7f || (!is_utf8 && *c >= 0x80))
            *c = '?';
    }
}

/* Cuts the text into lines, in place; the number of them. */
static uint32_t split(char *text, size_t bytes, psd_cell *lines)
{
    uint32_t count = 0;
    for (size_t i = 0; i < bytes; i++)
        text[i] = text[i] == '\0' ? '?' : text[i];
    text[bytes] = '\0';
    for (char *line = text, *next; line != NULL; line = next) {
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        if (line[0] == '\0')
            continue;
        clean(line);
        lines[count++].text = line;
    }
    return count;
}

void psd_log_tail_read(const char *path, uint32_t limit, psd_log_tail *tail, psd_msg_reply *out)
{
    if (path == NULL) {
        refuse(out, PSD_ERR_NOT_FOUND, "this rank's backend writes no log", "", 0);
        return;
    }
    ssize_t bytes = read_end(path, tail->text, PSD_LOG_TAIL_BYTES);
    if (bytes < 0) {
        refuse(out, errno == ENOENT ? PSD_ERR_NOT_FOUND : PSD_ERR_IO, "cannot read the log ", path, errno);
        return;
    }
    uint32_t count = split(tail->text, (size_t)bytes, tail->lines);
    uint32_t last = limit != 0 && limit < count ? limit : count;
    out->column_count = 1;
    out->columns = columns;
    out->row_count = last;
    out->cells = tail->lines + (count - last);
    if (count == 0)
        snprintf(out->text, sizeof out->text, "the log %.512s is empty", path);
}
