/* psctl ops: what each rank is doing now; the last operations of one rank, or of the record file that a process left. */
#include <stdio.h>
#include <stdlib.h>

#include "common/record_read.h"
#include "server/psctl/client.h"
#include "server/psctl/print.h"
#include "server/psctl/view.h"

#define DEFAULT_ROWS 32

static psctl_exit print_file(const psctl_options *options, const psd_record_file *file)
{
    uint32_t capacity = options->limit == 0                ? DEFAULT_ROWS
                        : options->limit < PSD_RECORD_RING ? options->limit
                                                           : PSD_RECORD_RING;
    psd_msg_box box = {.msg = {.type = PSD_MSG_REPLY}};
    psd_msg_box *page = &box;
    const psctl_answer answer = {.pages = &page, .count = 1};
    psd_record_row *rows = calloc(capacity, sizeof *rows);
    psd_cell *cells = calloc((size_t)capacity * PSD_RECORD_COLUMNS, sizeof *cells);
    psctl_exit code = PSCTL_FAILED;
    if (rows == NULL || cells == NULL) {
        psctl_error("out of memory");
        goto done;
    }
    psd_record_table(file, 0, capacity, rows, cells, &box.msg.u.reply);
    code = psctl_print(options, &answer, "no operations");
done:
    free(cells);
    free(rows);
    return code;
}

static psctl_exit dump(const psctl_options *options)
{
    char why[256] = "";
    psd_record_file *file = NULL;
    if (psd_record_load(options->dump, &file, why, sizeof why) != PSD_OK) {
        psctl_error("%.512s: %s", options->dump, why);
        return PSCTL_FAILED;
    }
    psctl_exit code = print_file(options, file);
    free(file);
    return code;
}

static psctl_exit ask_rank(const psctl_options *options, int argc, char **argv)
{
    char view[24];
    psctl_options of = *options;
    if (!psctl_no_arguments("ops", argc, argv) || !psctl_job_of_rank(options, &of.job))
        return PSCTL_USAGE;
    of.limit = of.limit != 0 ? of.limit : DEFAULT_ROWS;
    snprintf(view, sizeof view, "ops/%d", options->rank);
    return psctl_view(&of, view, "no operations", 0, NULL);
}

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    if (options->dump == NULL && options->rank >= 0)
        return ask_rank(options, argc, argv);
    if (options->dump == NULL)
        return psctl_view(options, "ops", "no ranks", argc, argv);
    if (!psctl_no_arguments("ops", argc, argv))
        return PSCTL_USAGE;
    if (options->job != NULL || options->watch_ms != 0 || options->rank >= 0) {
        psctl_error("--dump reads a file: it goes with --limit and --json only");
        return PSCTL_USAGE;
    }
    return dump(options);
}

const psctl_command psctl_ops = {
    .name = "ops",
    .arguments = "[--rank RANK | --dump FILE] [options]",
    .summary = "what each rank is doing now, and for how long",
    .details =
        "One row per rank: operations completed, bytes moved, the oldest operation in flight (kind,\n"
        "peer or root as a rank of its group, elements, dtype, age, tensor, call site).\n\n"
        "With --rank RANK: the last operations of one rank (32, or --limit, at most 1024), asked of the "
        "rank.\n"
        "The job is --job, else PSD_JOB, else `default`.\n\n"
        "With --dump FILE, without psd: the last operations (32, or --limit) in the record file that a\n"
        "process writes in PSD_RUN_DIR, JOB.PID.INCARNATION.psdrec, and leaves there when it is killed.\n"
        "Ages count back from the last thing that it recorded.\n",
    .options = PSCTL_VIEW_OPTIONS | PSCTL_OPT_RANK | PSCTL_OPT_DUMP,
    .run = run,
};
