/* psctl from outside: against a made-up coordinator that answers well, badly or not at all, and its exit
 * codes. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zmq.h>

#include "proto/wire.h"
#include "tests/lib/proc.h"
#include "tests/lib/psd_test.h"

enum { DEADLINE_MS = 20000 };

typedef enum behaviour {
    ANSWER,         /* two rows, one page */
    TWO_PAGES,      /* two rows, one on each page */
    EMPTY,          /* no rows */
    NOTHING,        /* a row of values that are not there */
    SILENT,         /* takes questions and says nothing */
    GARBAGE,        /* bytes that are no message */
    OTHER_VERSION,  /* a frame of protocol version 200 */
    ERROR_REPLY,    /* a reply with a status and a text */
    REFUSAL,        /* REFUSE */
    ENDLESS,        /* pages that do not advance */
    CHANGING,       /* a second page with other columns */
    OTHER_REQUESTS, /* answers to what was not asked, then the answer */
} behaviour;

typedef struct fake {
    behaviour how;
    void *context;
    void *router;
    char endpoint[128];
    pthread_t thread;
    atomic_bool stop;
    psd_msg_query last; /* read after the thread has ended */
    atomic_int questions;
} fake;

static const psd_column columns[] = {
    {"job", PSD_CELL_TEXT}, {"rank", PSD_CELL_INT},  {"held", PSD_CELL_BYTES},
    {"age", PSD_CELL_NS},   {"load", PSD_CELL_REAL}, {"there", PSD_CELL_BOOL},
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };
static const psd_cell cells[2 * COLUMNS] = {
    {.text = "default"}, {.integer = 0}, {.integer = 64 << 20},    {.integer = 1500000000},
    {.real = 0.5},       {.integer = 1}, {.text = "a\x1b[31m\nb"}, {.integer = 12},
    {.integer = 10},     {.integer = 5}, {.real = 1.0 / 0.0},      {.integer = 0},
};
/* What is not there: no rank, no age. */
static const psd_cell nothing[COLUMNS] = {{.text = ""},    {.integer = -1}, {.integer = -1},
                                          {.integer = -1}, {.real = -1},    {.integer = 1}};

static void send_msg(fake *f, zmq_msg_t *to, const psd_msg *msg)
{
    psd_wire_buffer frame = {0};
    zmq_msg_t copy;
    zmq_msg_init(&copy);
    zmq_msg_copy(&copy, to);
    cr_assert_eq(psd_wire_encode(msg, &frame), PSD_OK);
    if (f->how == OTHER_VERSION)
        frame.data[4] = 200;
    (void)zmq_msg_send(&copy, f->router, ZMQ_SNDMORE);
    (void)zmq_send(f->router, f->how == GARBAGE ? "hello" : (const char *)frame.data,
                   f->how == GARBAGE ? 5 : frame.bytes, 0);
    psd_wire_buffer_free(&frame);
}

static void answer(fake *f, zmq_msg_t *to, const psd_msg *question)
{
    psd_msg msg = {.type = PSD_MSG_REPLY, .request = question->request};
    psd_msg_reply *reply = &msg.u.reply;
    bool second = question->u.query.after != 0;
    *reply = (psd_msg_reply){.column_count = COLUMNS, .columns = columns, .row_count = 2, .cells = cells};
    switch (f->how) {
    case TWO_PAGES:
        reply->row_count = 1;
        reply->next = second ? 0 : 77;
        reply->cells = second ? cells + COLUMNS : cells;
        break;
    case EMPTY:
        reply->row_count = 0;
        break;
    case NOTHING:
        reply->row_count = 1;
        reply->cells = nothing;
        break;
    case ENDLESS:
        reply->next = 5;
        break;
    case CHANGING:
        reply->next = second ? 0 : 1;
        reply->column_count = second ? COLUMNS - 1 : COLUMNS;
        reply->row_count = 1; /* the rows of a narrower table would lie elsewhere */
        break;
    case ERROR_REPLY:
        *reply = (psd_msg_reply){.status = PSD_ERR_NOT_FOUND, .text = "there is no job x"};
        break;
    case REFUSAL:
        msg.type = PSD_MSG_REFUSE;
        msg.u.refuse = (psd_msg_refuse){.status = PSD_ERR_LIMIT, .text = "too many questions"};
        break;
    case OTHER_REQUESTS:
        msg.request += 1000;
        send_msg(f, to, &msg);
        msg.request -= 1000;
        break;
    case ANSWER:
    case SILENT:
    case GARBAGE:
    case OTHER_VERSION:
        break;
    }
    if (f->how != SILENT)
        send_msg(f, to, &msg);
}

static void serve_one(fake *f)
{
    zmq_msg_t from;
    zmq_msg_t frame;
    psd_msg_box *box = NULL;
    char why[256];
    zmq_msg_init(&from);
    zmq_msg_init(&frame);
    if (zmq_msg_recv(&from, f->router, 0) >= 0 && zmq_msg_recv(&frame, f->router, 0) >= 0 &&
        psd_wire_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), &box, why, sizeof why) == PSD_OK) {
        f->last = box->msg.u.query;
        atomic_fetch_add(&f->questions, 1);
        answer(f, &from, &box->msg);
    }
    psd_msg_box_free(box);
    zmq_msg_close(&from);
    zmq_msg_close(&frame);
}

static void *serve(void *argument)
{
    fake *f = argument;
    while (!atomic_load(&f->stop)) {
        zmq_pollitem_t item = {.socket = f->router, .events = ZMQ_POLLIN};
        if (zmq_poll(&item, 1, 10) == 1)
            serve_one(f);
    }
    return NULL;
}

static void fake_start(fake *f, behaviour how)
{
    int linger = 0;
    size_t bytes = sizeof f->endpoint;
    memset(f, 0, sizeof *f);
    f->how = how;
    f->context = zmq_ctx_new();
    f->router = zmq_socket(f->context, ZMQ_ROUTER);
    cr_assert_not_null(f->router);
    zmq_setsockopt(f->router, ZMQ_LINGER, &linger, sizeof linger);
    cr_assert_eq(zmq_bind(f->router, "tcp://127.0.0.1:*"), 0);
    cr_assert_eq(zmq_getsockopt(f->router, ZMQ_LAST_ENDPOINT, f->endpoint, &bytes), 0);
    cr_assert_eq(pthread_create(&f->thread, NULL, serve, f), 0);
}

static void fake_stop(fake *f)
{
    atomic_store(&f->stop, true);
    pthread_join(f->thread, NULL);
    zmq_close(f->router);
    zmq_ctx_term(f->context);
}

/* Runs psctl with up to six arguments against an address; *text is to be freed. */
static int psctl(const char *endpoint, char **text, const char *const arguments[])
{
    const char *argv[10] = {test_path("bin/psctl")};
    char coordinator[160];
    snprintf(coordinator, sizeof coordinator, "PSD_COORDINATOR=%s", endpoint);
    const char *env[] = {coordinator, "NO_COLOR=1", NULL};
    for (int i = 0; i < 8 && arguments[i] != NULL; i++)
        argv[i + 1] = arguments[i];
    return test_run(argv, env, DEADLINE_MS, text);
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Against a coordinator of this behaviour: the exit code, and a text that the output must hold. */
static void expect(behaviour how, const char *const arguments[], int code, const char *needle)
{
    fake f;
    char *text = NULL;
    fake_start(&f, how);
    int got = psctl(f.endpoint, &text, arguments);
    fake_stop(&f);
    cr_assert_eq(got, code, "exit code %d, not %d: %s", got, code, text);
    cr_assert_not_null(strstr(text, needle), "no '%s' in: %s", needle, text);
    free(text);
}

PSD_TEST(psctl, table_for_people)
{
    expect(ANSWER, ARGS("ranks"), 0,
           "job       rank    held    age  load  there\n"
           "default      0  64 MiB  1.5 s   0.5  yes\n"
           "a [31m b    12    10 B   5 ns   inf  no\n");
    expect(EMPTY, ARGS("ranks"), 0, "no ranks\n");
    expect(TWO_PAGES, ARGS("ranks"), 0, "a [31m b");
    expect(TWO_PAGES, ARGS("ranks", "--limit", "1"), 0, "default     0  64 MiB  1.5 s   0.5  yes\n");
    expect(OTHER_REQUESTS, ARGS("ops", "--timeout=10"), 0, "default");
    expect(NOTHING, ARGS("ranks"), 0,
           "job  rank  held  age  load  there\n"
           "-       -     -    -    -1  yes\n");
}

/* Of a list that grows at its end, the end. */
PSD_TEST(psctl, events_limited_are_the_newest)
{
    const char *last = "job       rank  held   age  load  there\na [31m b    12  10 B  5 ns   inf  no\n";
    expect(TWO_PAGES, ARGS("events", "-l", "1"), 0, last);
    expect(ANSWER, ARGS("events", "-l", "1"), 0, last);
    expect(TWO_PAGES, ARGS("events", "-l", "1", "--json"), 0, "[{\"job\":\"a\\u001B[31m\\nb\",\"rank\":12,");
    expect(TWO_PAGES, ARGS("events", "-l", "3"), 0, "default");
}

/* Types by column; an infinity is null. */
PSD_TEST(psctl, json)
{
    expect(
        TWO_PAGES, ARGS("--json", "ranks"), 0,
        "[{\"job\":\"default\",\"rank\":0,\"held\":67108864,\"age\":1500000000,\"load\":0.5,\"there\":true},"
        "{\"job\":\"a\\u001B[31m\\nb\",\"rank\":12,\"held\":10,\"age\":5,\"load\":null,\"there\":false}]\n");
    expect(EMPTY, ARGS("ranks", "--json"), 0, "[]\n");
    expect(NOTHING, ARGS("ranks", "--json"), 0,
           "[{\"job\":\"\",\"rank\":null,\"held\":null,\"age\":null,\"load\":-1.0,\"there\":true}]\n");
}

PSD_TEST(psctl, query_fields)
{
    fake f;
    char *text = NULL;
    fake_start(&f, ANSWER);
    cr_assert_eq(psctl(f.endpoint, &text, ARGS("groups", "-j", "train", "-l", "7")), 0, "%s", text);
    fake_stop(&f);
    free(text);
    cr_assert_str_eq(f.last.view, "groups");
    cr_assert_str_eq(f.last.job, "train");
    cr_assert_eq(f.last.limit, 7);
    cr_assert_eq(f.last.after, 0);
    fake_start(&f, ANSWER);
    cr_assert_eq(psctl(f.endpoint, &text, ARGS("stop")), 0, "%s", text);
    fake_stop(&f);
    free(text);
    cr_assert_str_eq(f.last.view, "stop");
    cr_assert_str_eq(f.last.job, "default");
}

PSD_TEST(psctl, bad_answers)
{
    expect(ERROR_REPLY, ARGS("ranks", "--job", "x"), 1, "psctl: there is no job x\n");
    expect(REFUSAL, ARGS("ranks"), 1, "psctl: too many questions\n");
    expect(GARBAGE, ARGS("ranks"), 1, "is not understood");
    expect(OTHER_VERSION, ARGS("ranks"), 1, "version 200");
    expect(ENDLESS, ARGS("ranks"), 1, "do not end");
    expect(CHANGING, ARGS("ranks"), 1, "changed the columns");
}

PSD_TEST(psctl, unreachable)
{
    expect(SILENT, ARGS("status", "--timeout", "200ms"), 3, "no answer in 200 ms");
    char *text = NULL;
    cr_assert_eq(psctl("tcp://127.0.0.1:1", &text, ARGS("status")), 3, "%s", text);
    cr_assert_not_null(strstr(text, "psd is not reachable at tcp://127.0.0.1:1: Connection refused"), "%s",
                       text);
    free(text);
    cr_assert_eq(psctl("tcp://name.invalid:1", &text, ARGS("status")), 3, "%s", text);
    cr_assert_not_null(strstr(text, "name.invalid is not known"), "%s", text);
    free(text);
    cr_assert_eq(psctl("nonsense", &text, ARGS("status")), 2, "%s", text);
    free(text);
    cr_assert_eq(psctl("tcp://127.0.0.1:1", &text, ARGS("version")), 3, "%s", text);
    cr_assert_not_null(strstr(text, "psctl " PSD_VERSION), "%s", text);
    free(text);
}

static void expect_usage(const char *const arguments[], const char *needle)
{
    char *text = NULL;
    cr_assert_eq(psctl("tcp://127.0.0.1:1", &text, arguments), 2, "%s", text);
    cr_assert_not_null(strstr(text, needle), "no '%s' in: %s", needle, text);
    free(text);
}

PSD_TEST(psctl, usage)
{
    expect_usage(ARGS("statsu"), "did you mean status?");
    expect_usage(ARGS("xyzzyxyzzy"), "there is no command xyzzyxyzzy (see");
    expect_usage(ARGS("status", "--jsn"), "did you mean --json?");
    expect_usage(ARGS("status", "--json=1"), "--json takes no value");
    expect_usage(ARGS("status", "--timeout"), "--timeout needs a value");
    expect_usage(ARGS("status", "--job", "a b"), "a b is not a value for --job");
    expect_usage(ARGS("status", "more"), "takes no argument such as more");
    expect_usage(ARGS("help", "rnaks"), "did you mean ranks?");
    expect_usage(ARGS("--job", "x", "doctor"), "doctor has no option --job");
    expect_usage(ARGS("bench"), "which operation?");
    expect_usage(ARGS("bench", "all_reduce", "-n", "0"), "number of ranks");
    expect_usage(ARGS("--"), "which command?");
    expect_usage(ARGS("status", "-j", "a\xff\x62"), "psctl: a\\xffb is not a value for --job");
    expect_usage(ARGS("st\xffs"), "there is no command st\\xffs");
    expect_usage(ARGS("status", "--timeout", "9223372036854775807"), "it is too large");
}

PSD_TEST(psctl, help)
{
    static const char *const commands[] = {"status", "ranks",  "groups", "plans", "ops",     "tables",
                                           "events", "doctor", "bench",  "stop",  "version", "help"};
    char *all = NULL;
    cr_assert_eq(psctl("tcp://127.0.0.1:1", &all, ARGS("help")), 0);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        char *one = NULL;
        cr_assert_not_null(strstr(all, commands[i]), "%s", commands[i]);
        cr_assert_eq(psctl("tcp://127.0.0.1:1", &one, ARGS(commands[i], "--help")), 0);
        cr_assert_not_null(strstr(one, "usage: psctl "), "%s", one);
        free(one);
    }
    free(all);
}

/* A second question follows the first without another run. */
PSD_TEST(psctl, watch)
{
    fake f;
    test_proc proc = {0};
    char coordinator[160];
    fake_start(&f, ANSWER);
    snprintf(coordinator, sizeof coordinator, "PSD_COORDINATOR=%s", f.endpoint);
    const char *argv[] = {test_path("bin/psctl"), "ranks", "--watch", "0.1", NULL};
    cr_assert(test_proc_start(&proc, argv, ARGS(coordinator)));
    cr_assert(test_proc_expect(&proc, "10 B   5 ns   inf  no\n\njob", DEADLINE_MS), "%s", proc.text);
    test_proc_end(&proc);
    fake_stop(&f);
    cr_assert_geq(atomic_load(&f.questions), 2);
}

PSD_TEST(psctl, doctor)
{
    fake f;
    char *text = NULL;
    fake_start(&f, ANSWER);
    int code = psctl(f.endpoint, &text, ARGS("doctor", "--json"));
    fake_stop(&f);
    cr_assert(code == 0 || code == 1, "%d: %s", code, text);
    cr_assert_eq(strstr(text, "[{\"check\":\"coordinator\",\"result\":\"ok\""), text, "%s", text);
    cr_assert_not_null(strstr(text, "\"check\":\"memfd\""), "%s", text);
    free(text);
    cr_assert_eq(psctl("tcp://127.0.0.1:1", &text, ARGS("doctor")), 1,
                 "a coordinator that was named is missing");
    cr_assert_not_null(strstr(text, "fail  coordinator"), "%s", text);
    free(text);
}

PSD_TEST(psctl, a_full_output_is_an_error)
{
    fake f;
    char line[512];
    fake_start(&f, ANSWER);
    snprintf(line, sizeof line, "exec '%s' ranks --coordinator %s >/dev/full", test_path("bin/psctl"),
             f.endpoint);
    const char *argv[] = {"/bin/sh", "-c", line, NULL};
    char *text = NULL;
    cr_assert_eq(test_run(argv, NULL, DEADLINE_MS, &text), 1, "%s", text);
    fake_stop(&f);
    free(text);
}
