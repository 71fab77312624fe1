#include "worker/launch/output.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define READS_PER_CALL 8
#define WRITE_WAIT_MS  5000

/* Writes all, or gives up: who reads psrun's output may be gone (then nothing can be done) or slow (then
 * psrun waits, but not for ever). */
static void write_all(int fd, struct iovec *parts, int count)
{
    while (count > 0) {
        ssize_t wrote = writev(fd, parts, count);
        if (wrote < 0 && errno == EINTR)
            continue;
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        if (wrote < 0 && errno == EAGAIN && poll(&wait, 1, WRITE_WAIT_MS) > 0)
            continue;
        if (wrote < 0)
            return;
        size_t left = (size_t)wrote;
        while (count > 0 && left >= parts->iov_len) {
            left -= parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (char *)parts->iov_base + left;
            parts->iov_len -= left;
        }
    }
}

static void write_line(const psd_launch_stream *stream, const char *line, size_t bytes)
{
    static char newline[] = "\n";
    char prefix[24];
    int length = stream->prefix ? snprintf(prefix, sizeof(prefix), "[%d] ", stream->rank) : 0;
    struct iovec parts[] = {{.iov_base = prefix, .iov_len = (size_t)length},
                            {.iov_base = (void *)(uintptr_t)line, .iov_len = bytes},
                            {.iov_base = newline, .iov_len = 1}};
    write_all(stream->to, parts, 3);
}

/* Writes the lines in the buffer and keeps the rest; a full buffer without a line end is written as a piece.
 */
static void write_lines(psd_launch_stream *stream)
{
    size_t start = 0;
    for (;;) {
        char *from = stream->line + start;
        char *end = memchr(from, '\n', stream->bytes - start);
        if (end == NULL)
            break;
        if (end > from || !stream->cut)
            write_line(stream, from, (size_t)(end - from));
        stream->cut = false;
        start = (size_t)(end - stream->line) + 1;
    }
    memmove(stream->line, stream->line + start, stream->bytes - start);
    stream->bytes -= start;
    if (stream->bytes == sizeof(stream->line)) {
        write_line(stream, stream->line, stream->bytes);
        stream->bytes = 0;
        stream->cut = true;
    }
}

void psd_launch_stream_close(psd_launch_stream *stream)
{
    if (stream->fd < 0)
        return;
    if (stream->bytes > 0)
        write_line(stream, stream->line, stream->bytes);
    stream->bytes = 0;
    close(stream->fd);
    stream->fd = -1;
}

bool psd_launch_stream_read(psd_launch_stream *stream)
{
    for (int i = 0; i < READS_PER_CALL; i++) {
        ssize_t got = read(stream->fd, stream->line + stream->bytes, sizeof(stream->line) - stream->bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return true;
        if (got <= 0) {
            psd_launch_stream_close(stream);
            return false;
        }
        stream->bytes += (size_t)got;
        write_lines(stream);
    }
    return true;
}
