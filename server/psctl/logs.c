/* psctl logs: what the library under a rank's backend has logged last. */
#include <stdio.h>

#include "server/psctl/client.h"
#include "server/psctl/print.h"
#include "server/psctl/text.h"
#include "server/psctl/view.h"

static void print_lines(const psctl_answer *answer)
{
    for (size_t p = 0; p < answer->count; p++) {
        const psd_msg_reply *reply = &answer->pages[p]->msg.u.reply;
        if (reply->text[0] != '\0')
            puts(reply->text);
        for (uint32_t r = 0; r < reply->row_count && reply->column_count == 1; r++) {
            char clean[4096];
            psctl_text_clean(reply->cells[r].text, clean, sizeof clean);
            puts(clean);
        }
    }
}

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    char why[1536] = "", view[24];
    psctl_answer answer;
    const char *job;
    if (!psctl_no_arguments("logs", argc, argv))
        return PSCTL_USAGE;
    if (options->rank < 0) {
        psctl_error("say whose: psctl logs --rank RANK (see: psctl help logs)");
        return PSCTL_USAGE;
    }
    if (!psctl_job_of_rank(options, &job))
        return PSCTL_USAGE;
    snprintf(view, sizeof view, "log/%d", options->rank);
    psctl_exit code = psctl_client_ask_once(options, view, job, &answer, why, sizeof why);
    if (code != PSCTL_FINE) {
        psctl_error("%s", why);
        return code;
    }
    if (options->json)
        code = psctl_print_json(&answer, 0) ? PSCTL_FINE : PSCTL_FAILED;
    else
        print_lines(&answer);
    psctl_answer_free(&answer);
    return code;
}

const psctl_command psctl_logs = {
    .name = "logs",
    .arguments = "--rank RANK [--job NAME] [options]",
    .summary = "the last lines of a rank's NCCL log",
    .details = "The rank is asked, and answers with the end of what NCCL has logged in it, at most 64 KiB: "
               "warnings,\n"
               "or more with PSD_NCCL_DEBUG=INFO. Ranks of other backends have no such log. Without --job "
               "the job is\n"
               "PSD_JOB, else `default`.\n",
    .options = PSCTL_OPT_COORDINATOR | PSCTL_OPT_JSON | PSCTL_OPT_JOB | PSCTL_OPT_LIMIT | PSCTL_OPT_RANK,
    .run = run,
};
