#include <stdio.h>

#include <jansson.h>

#include "common/msg.h"
#include "server/psctl/client.h"
#include "server/psctl/print.h"
#include "server/psctl/view.h"

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    char why[1536] = "";
    psctl_answer answer;
    if (!psctl_no_arguments("version", argc, argv))
        return PSCTL_USAGE;
    if (!options->json) {
        printf("psctl %s, protocol %d\n", PSD_VERSION, PSD_PROTOCOL_VERSION);
        fflush(stdout); /* before what is said on stderr */
    }
    psctl_exit code = psctl_client_ask_once(options, "version", NULL, &answer, why, sizeof why);
    if (code != PSCTL_FINE) {
        if (options->json)
            printf("[{\"program\":\"psctl\",\"version\":\"%s\",\"protocol\":%d}]\n", PSD_VERSION,
                   PSD_PROTOCOL_VERSION);
        psctl_error("%s", why);
        return code;
    }
    if (options->json)
        code = psctl_print_json(&answer, 0) ? PSCTL_FINE : PSCTL_FAILED;
    else
        psctl_print_table(&answer, 0, "psd did not say its version");
    psctl_answer_free(&answer);
    return code;
}

const psctl_command psctl_version = {
    .name = "version",
    .arguments = "[options]",
    .summary = "psctl's own version and the coordinator's",
    .details = "Prints its own version and protocol first, also when psd cannot be reached.\n",
    .options = PSCTL_OPT_COORDINATOR | PSCTL_OPT_JSON,
    .run = run,
};
