/* psctl why, psctl incidents: hangs that psd has found. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "server/psctl/client.h"
#include "server/psctl/print.h"
#include "server/psctl/text.h"
#include "server/psctl/view.h"

/* ------------------------------------------------------------------------------------------------- cells */

static const psd_msg_reply *page_of(const psctl_answer *answer, size_t page)
{
    return &answer->pages[page]->msg.u.reply;
}

static const psd_cell *cell_at(const psd_msg_reply *reply, uint32_t row, const char *column)
{
    static const psd_cell none = {.text = ""};
    for (uint32_t i = 0; i < reply->column_count; i++)
        if (strcmp(reply->columns[i].name, column) == 0)
            return &reply->cells[(size_t)row * reply->column_count + i];
    return &none;
}

/* -1: the answer is an older psd's, without this column. */
static int64_t number_at(const psd_msg_reply *reply, uint32_t row, const char *column)
{
    const psd_cell *cell = cell_at(reply, row, column);
    return cell >= reply->cells && cell < reply->cells + (size_t)reply->row_count * reply->column_count
               ? cell->integer
               : -1;
}

static bool has_open(const psctl_answer *answer)
{
    for (size_t p = 0; p < answer->count; p++)
        for (uint32_t r = 0; r < page_of(answer, p)->row_count; r++)
            if (strcmp(cell_at(page_of(answer, p), r, "state")->text, "open") == 0)
                return true;
    return false;
}

/* -------------------------------------------------------------------------------------------- for people */

static void print_text(const char *text)
{
    char clean[2 * PSD_MAX_TEXT];
    psctl_text_clean(text, clean, sizeof clean);
    puts(clean);
}

/* The sentence of an incident, with its cure on a line of its own. */
static void print_head(const psd_msg_reply *reply, uint32_t row)
{
    static const char mark[] = "; cure: ";
    char text[PSD_MAX_TEXT];
    snprintf(text, sizeof text, "%s", cell_at(reply, row, "text")->text);
    char *cure = strstr(text, mark);
    if (cure != NULL)
        *cure = '\0';
    printf("incident %" PRId64 " of job %s, %s: ", cell_at(reply, row, "incident")->integer,
           cell_at(reply, row, "job")->text, cell_at(reply, row, "state")->text);
    print_text(text);
    if (cure != NULL) {
        printf("cure: ");
        print_text(cure + strlen(mark));
    }
    putchar('\n');
}

static bool is_of(const psd_msg_reply *reply, uint32_t row, const char *job, int64_t incident)
{
    return cell_at(reply, row, "incident")->integer == incident &&
           strcmp(cell_at(reply, row, "job")->text, job) == 0;
}

/* `rank 0 --send--> rank 1 --send--> rank 0` */
static void print_cycle(const psd_msg_reply *reply, uint32_t row)
{
    const char *job = cell_at(reply, row, "job")->text;
    int64_t incident = cell_at(reply, row, "incident")->integer, last = -1;
    printf("  ");
    for (uint32_t r = row; r < reply->row_count && is_of(reply, r, job, incident); r++) {
        if (strcmp(cell_at(reply, r, "role")->text, "cause") != 0)
            break;
        printf("rank %" PRId64 " --%s--> ", cell_at(reply, r, "rank")->integer,
               cell_at(reply, r, "op")->text);
        last = cell_at(reply, r, "waits_for")->integer;
    }
    printf("rank %" PRId64 "\n\n", last);
}

static const char *number(int64_t value, char out[24])
{
    if (value < 0)
        snprintf(out, 24, "-");
    else
        snprintf(out, 24, "%" PRId64, value);
    return out;
}

/* `f32[100] sum root 0`; "-" */
static const char *what_of(const psd_msg_reply *reply, uint32_t r, char *out, size_t bytes)
{
    const char *dtype = cell_at(reply, r, "dtype")->text, *redop = cell_at(reply, r, "redop")->text;
    int64_t root = number_at(reply, r, "root");
    out[0] = '\0';
    if (dtype[0] != '\0')
        psd_append(out, bytes, "%.16s[%" PRId64 "]", dtype, number_at(reply, r, "count"));
    if (redop[0] != '\0')
        psd_append(out, bytes, " %.16s", redop);
    if (root >= 0)
        psd_append(out, bytes, " root %" PRId64, root);
    return out[0] != '\0' ? out : "-";
}

static void print_row(const psd_msg_reply *reply, uint32_t r)
{
    char rank[24], ordinal[24], peer[24], group[24], waiting[32], tensor[PSD_MAX_NAME], site[PSD_MAX_NAME];
    char what[96];
    int64_t ns = cell_at(reply, r, "waiting")->integer;
    psctl_text_clean(cell_at(reply, r, "tensor")->text, tensor, sizeof tensor);
    psctl_text_clean(cell_at(reply, r, "site")->text, site, sizeof site);
    printf("  %4s  %-7s  %-14s  %5s  %7s  %-16s  %-22s  %4s  %-24s  %s\n",
           number(cell_at(reply, r, "rank")->integer, rank), cell_at(reply, r, "role")->text,
           cell_at(reply, r, "op")->text, number(cell_at(reply, r, "group")->integer, group),
           number(cell_at(reply, r, "ordinal")->integer, ordinal), tensor[0] != '\0' ? tensor : "-",
           what_of(reply, r, what, sizeof what), number(cell_at(reply, r, "peer")->integer, peer),
           site[0] != '\0' ? site : "-", ns >= 0 ? psd_format_ns(ns, waiting, sizeof waiting) : "-");
}

static void print_incident(const psd_msg_reply *reply, uint32_t row)
{
    const char *job = cell_at(reply, row, "job")->text;
    int64_t incident = cell_at(reply, row, "incident")->integer;
    print_head(reply, row);
    if (strcmp(cell_at(reply, row, "class")->text, "deadlock") == 0)
        print_cycle(reply, row);
    printf("  %4s  %-7s  %-14s  %5s  %7s  %-16s  %-22s  %4s  %-24s  %s\n", "rank", "role", "op", "group",
           "ordinal", "tensor", "called with", "peer", "site", "waiting");
    for (uint32_t r = row; r < reply->row_count && is_of(reply, r, job, incident); r++)
        print_row(reply, r);
    int64_t more = number_at(reply, row, "more");
    if (more > 0)
        printf("  and %" PRId64 " more rank%s\n", more, more == 1 ? "" : "s");
    putchar('\n');
}

/* `only`: this incident; 0: all of the answer. False: there is none. */
static bool print_incidents(const psctl_answer *answer, int64_t only)
{
    bool any = false;
    for (size_t p = 0; p < answer->count; p++) {
        const psd_msg_reply *reply = page_of(answer, p);
        for (uint32_t r = 0; r < reply->row_count; r++) {
            int64_t incident = cell_at(reply, r, "incident")->integer;
            if (strcmp(cell_at(reply, r, "class")->text, "straggler") == 0) {
                print_text(cell_at(reply, r, "text")->text);
                continue;
            }
            bool is_first = r == 0 || !is_of(reply, r - 1, cell_at(reply, r, "job")->text, incident);
            if (!is_first || (only != 0 && incident != only))
                continue;
            any = true;
            print_incident(reply, r);
        }
    }
    return any;
}

/* -------------------------------------------------------------------------------------------------- run */

static psctl_exit ask(const psctl_options *options, const char *view, psctl_answer *answer)
{
    char why[1536] = "";
    psctl_exit code = psctl_client_ask_once(options, view, options->job, answer, why, sizeof why);
    if (code != PSCTL_FINE)
        psctl_error("%s", why);
    return code;
}

static psctl_exit finish(psctl_answer *answer, bool printed)
{
    psctl_exit code = !printed || fflush(stdout) != 0 ? PSCTL_FAILED
                      : has_open(answer)              ? PSCTL_INCIDENT
                                                      : PSCTL_FINE;
    psctl_answer_free(answer);
    return code;
}

/* Whose backend tells psd what its operations wait for. */
#define INSPECTED_BACKEND "host"

#define BACKENDS 8 /* told of, at most */

static bool is_told(const char *const *told, size_t count, const char *backend)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(told[i], backend) == 0)
            return true;
    return false;
}

/* That no hang was found says nothing of ranks that are not looked at. */
static void print_no_hang(const psctl_answer *ranks)
{
    const char *told[BACKENDS];
    size_t count = 0;
    bool any_inspected = false;
    for (size_t p = 0; p < ranks->count; p++)
        for (uint32_t r = 0; r < page_of(ranks, p)->row_count; r++) {
            const char *backend = cell_at(page_of(ranks, p), r, "backend")->text;
            bool is_inspected = strcmp(backend, INSPECTED_BACKEND) == 0;
            any_inspected = any_inspected || is_inspected;
            if (!is_inspected && count < BACKENDS && !is_told(told, count, backend))
                told[count++] = backend;
        }
    if (any_inspected || count == 0)
        puts("no hang was found (see: psctl ops, for what each rank is in)");
    for (size_t i = 0; i < count; i++) {
        char name[PSD_MAX_NAME];
        psctl_text_clean(told[i], name, sizeof name);
        printf(
            "hangs on backend %s are not inspected by this version: they end at the deadline of an operation "
            "(see: psctl ops, for what each rank is in)\n",
            name);
    }
}

static psctl_exit run_why(const psctl_options *options, int argc, char **argv)
{
    psctl_answer answer;
    if (!psctl_no_arguments("why", argc, argv))
        return PSCTL_USAGE;
    psctl_exit code = ask(options, "why", &answer);
    if (code != PSCTL_FINE)
        return code;
    bool printed = true;
    if (options->json) {
        printed = psctl_print_json(&answer, 0);
    } else if (!print_incidents(&answer, 0)) {
        psctl_answer ranks;
        printed = ask(options, "ranks", &ranks) == PSCTL_FINE;
        if (printed) {
            print_no_hang(&ranks);
            psctl_answer_free(&ranks);
        }
    }
    return finish(&answer, printed);
}

static psctl_exit list(const psctl_options *options)
{
    psctl_answer answer;
    psctl_exit code = ask(options, "incidents", &answer);
    if (code != PSCTL_FINE)
        return code;
    bool printed = true;
    if (options->json)
        printed = psctl_print_json(&answer, 0);
    else
        psctl_print_table(&answer, 0, "no incidents");
    return finish(&answer, printed);
}

static psctl_exit show(const psctl_options *options, int64_t id)
{
    psctl_answer answer;
    psctl_exit code = ask(options, "incident", &answer);
    if (code != PSCTL_FINE)
        return code;
    bool found = print_incidents(&answer, id);
    if (!found)
        psctl_error("there is no incident %" PRId64 " (see: psctl incidents)", id);
    psctl_answer_free(&answer);
    return found ? PSCTL_FINE : PSCTL_FAILED;
}

static psctl_exit acknowledge(const psctl_options *options, int64_t id)
{
    char view[24];
    psctl_answer answer;
    snprintf(view, sizeof view, "ack/%" PRId64, id);
    psctl_exit code = ask(options, view, &answer);
    if (code != PSCTL_FINE)
        return code;
    if (options->json)
        code = psctl_print_json(&answer, 0) ? PSCTL_FINE : PSCTL_FAILED;
    else
        psctl_print_table(&answer, 0, NULL);
    psctl_answer_free(&answer);
    return code;
}

static psctl_exit run_incidents(const psctl_options *options, int argc, char **argv)
{
    if (argc == 0)
        return list(options);
    bool shows = strcmp(argv[0], "show") == 0;
    char *end = NULL;
    long id = argc == 2 ? strtol(argv[1], &end, 10) : 0;
    if ((!shows && strcmp(argv[0], "ack") != 0) || id < 1 || id > 1000000000 || *end != '\0') {
        psctl_error("incidents takes nothing, `show ID` or `ack ID` (see: psctl help incidents)");
        return PSCTL_USAGE;
    }
    return shows ? show(options, id) : acknowledge(options, id);
}

const psctl_command psctl_why = {
    .name = "why",
    .arguments = "[options]",
    .summary = "why a job hangs: who waits for whom, and the cure",
    .details =
        "Hangs that are open, or else the last one: which ranks, operations, tensors and source lines,\n"
        "why no one can go on, and the cure. Exit code 4 while one is open. Also, as information: ranks "
        "that\n"
        "are outside psd, or poll, for a second or more while others wait for them (stragglers), and works\n"
        "that were never waited for.\n",
    .options = PSCTL_OPT_COORDINATOR | PSCTL_OPT_JSON | PSCTL_OPT_JOB,
    .run = run_why,
};

const psctl_command psctl_incidents = {
    .name = "incidents",
    .arguments = "[show ID | ack ID] [options]",
    .summary = "hangs that were found: list, show one, acknowledge one",
    .details =
        "An incident is open until its groups are destroyed, its job ends, or it is acknowledged with\n"
        "`ack ID`. Exit code 4 while one is open.\n",
    .options = PSCTL_OPT_COORDINATOR | PSCTL_OPT_JSON | PSCTL_OPT_JOB,
    .run = run_incidents,
};
