#include <stdio.h>

#include <jansson.h>

#include "common/msg.h"
#include "server/psctl/client.h"
#include "server/psctl/print.h"
#include "server/psctl/view.h"

/* psctl's own object first, then psd's if it answered. */
static bool print_json(const psctl_answer *answer)
{
    json_t *rows = answer->count > 0 ? psctl_json_rows(answer, 0) : json_array();
    json_t *own = json_pack("{s:s, s:s, s:i}", "program", "psctl", "version", PSD_VERSION, "protocol",
                            PSD_PROTOCOL_VERSION);
    json_t *psd = json_array_get(rows, 0);
    bool fine = psd == NULL || json_object_set_new(psd, "program", json_string("psd")) == 0;
    fine = json_array_insert_new(rows, 0, own) == 0 && fine && json_dumpf(rows, stdout, JSON_COMPACT) == 0;
    json_decref(rows);
    putchar('\n');
    return fine;
}

static psctl_exit run(const psctl_options *options, int argc, char **argv)
{
    char why[1536] = "";
    psctl_answer answer = {0};
    if (!psctl_no_arguments("version", argc, argv))
        return PSCTL_USAGE;
    psctl_exit code = psctl_client_ask_once(options, "version", NULL, &answer, why, sizeof why);
    if (!options->json) {
        printf("psctl %s, protocol %d\n", PSD_VERSION, PSD_PROTOCOL_VERSION);
        if (code == PSCTL_FINE)
            printf("psd at %s:\n", options->coordinator);
        if (code == PSCTL_FINE)
            psctl_print_table(&answer, 0, "psd did not say its version");
    } else if (!print_json(&answer) && code == PSCTL_FINE) {
        code = PSCTL_FAILED;
    }
    fflush(stdout); /* before what is said on stderr */
    if (why[0] != '\0')
        psctl_error("%s", why);
    psctl_answer_free(&answer);
    return code;
}

const psctl_command psctl_version = {
    .name = "version",
    .arguments = "[options]",
    .summary = "psctl's own version and the coordinator's",
    .details = "Prints its own version and protocol, also when psd cannot be reached, then psd's version, "
               "protocol,\n"
               "lease, heartbeat, limits and counts.\n",
    .options = PSCTL_OPT_COORDINATOR | PSCTL_OPT_JSON,
    .run = run,
};
