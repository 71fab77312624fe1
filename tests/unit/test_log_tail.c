/* The end of a log file as an answer: cut, cleaned and bounded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/psd_test.h"
#include "worker/log_tail.h"

static char path[] = "/tmp/psd-log-tail-XXXXXX";

static void write_file(const void *data, size_t bytes)
{
    snprintf(path, sizeof path, "/tmp/psd-log-tail-XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    close(fd);
}

static void expect_lines(uint32_t limit, const char *const *lines, uint32_t count)
{
    psd_log_tail *tail = malloc(sizeof *tail);
    psd_msg_reply reply = {.status = PSD_OK};
    cr_assert_not_null(tail);
    psd_log_tail_read(path, limit, tail, &reply);
    cr_assert_eq(reply.status, PSD_OK, "%s", reply.text);
    cr_assert_eq(reply.row_count, count);
    for (uint32_t i = 0; i < count; i++)
        cr_assert_str_eq(reply.cells[i].text, lines[i]);
    free(tail);
}

PSD_TEST(log_tail, last_lines)
{
    static const char text[] = "one\n\ntwo\tand\x01\nthr\xff"
                               "ee \xc3\xa4\nvier \xc3\xa4\nno end";
    const char *const all[] = {"one", "two and?", "thr?ee ??", "vier \xc3\xa4", "no end"};
    write_file(text, sizeof text - 1);
    expect_lines(0, all, 5);
    expect_lines(2, all + 3, 2);
    expect_lines(99, all, 5);
    unlink(path);
}

PSD_TEST(log_tail, of_a_large_file)
{
    enum { BYTES = 300000 };
    char *text = malloc(BYTES);
    cr_assert_not_null(text);
    memset(text, 'x', BYTES);
    memcpy(text + BYTES - 9, "\nthe end\n", 9);
    write_file(text, BYTES);
    const char *const last[] = {"the end"};
    expect_lines(1, last, 1);
    psd_log_tail *tail = malloc(sizeof *tail);
    psd_msg_reply reply = {.status = PSD_OK};
    psd_log_tail_read(path, 0, tail, &reply);
    cr_assert_eq(reply.row_count, 2);
    cr_assert_eq(strlen(reply.cells[0].text), PSD_LOG_TAIL_BYTES - 9);
    memset(text, '\n', BYTES); /* nothing but ends of lines */
    unlink(path);
    write_file(text, BYTES);
    psd_log_tail_read(path, 0, tail, &reply);
    cr_assert_eq(reply.row_count, 0);
    free(tail);
    free(text);
    unlink(path);
}

PSD_TEST(log_tail, that_is_not_there)
{
    psd_log_tail *tail = malloc(sizeof *tail);
    psd_msg_reply reply = {.status = PSD_OK};
    psd_log_tail_read("/nowhere/at/all", 0, tail, &reply);
    cr_assert_eq(reply.status, PSD_ERR_NOT_FOUND);
    cr_assert(strstr(reply.text, "/nowhere/at/all") != NULL, "%s", reply.text);
    reply = (psd_msg_reply){.status = PSD_OK};
    psd_log_tail_read(NULL, 0, tail, &reply);
    cr_assert_eq(reply.status, PSD_ERR_NOT_FOUND);
    write_file("", 0);
    reply = (psd_msg_reply){.status = PSD_OK};
    psd_log_tail_read(path, 0, tail, &reply);
    cr_assert(reply.status == PSD_OK && reply.row_count == 0 && strstr(reply.text, "is empty") != NULL);
    unlink(path);
    free(tail);
}
