/* Every operation against a plain reference, on any backend:
 *     psrun --standalone -n N -- conformance [--quick | --reduced] [--cells FILE]
 * Ends with "N passed, N failed, N skipped" from rank 0. */
#include <stdio.h>
#include <string.h>

#include "tests/conformance/suite.h"

int main(int argc, char **argv)
{
    const char *cells_path = NULL;
    suite_extent extent = SUITE_FULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            extent = SUITE_QUICK;
        } else if (strcmp(argv[i], "--reduced") == 0) {
            extent = SUITE_REDUCED;
        } else if (strcmp(argv[i], "--cells") == 0 && i + 1 < argc) {
            cells_path = argv[++i];
        } else {
            fprintf(stderr,
                    "usage: psrun --standalone -n N -- conformance [--quick | --reduced] [--cells FILE]\n");
            return 2;
        }
    }
    suite s = {0};
    if (suite_begin(&s, extent) != PSD_OK) {
        fprintf(stderr, "conformance: %s\n", psd_last_error());
        (void)psd_finalize(&s.ctx);
        return 1;
    }
    suite_collectives(&s);
    suite_p2p(&s);
    suite_bad_calls(&s);
    suite_mismatches(&s);
    return suite_end(&s, cells_path) ? 0 : 1;
}
