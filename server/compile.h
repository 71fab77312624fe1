/* Compiling plans on a helper thread, so that the loop never waits for it. */
#ifndef PSD_SERVER_COMPILE_H
#define PSD_SERVER_COMPILE_H

#include "server/core/core.h"

typedef struct psd_compiler psd_compiler;

typedef struct psd_compiled {
    uint32_t plan;
    psd_status status;
    psd_plan_steps steps; /* PSD_OK: to be freed by whoever takes them */
    char text[PSD_MAX_TEXT];
} psd_compiled;

psd_status psd_compiler_start(psd_compiler **out);
/* Waits for the compilation that runs now; drops the rest. Accepts NULL. */
void psd_compiler_stop(psd_compiler *compiler);

int psd_compiler_fd(const psd_compiler *compiler); /* readable when a result is there */
psd_status psd_compiler_submit(psd_compiler *compiler, uint32_t plan, const psd_plan_inputs *inputs);
/* PSD_OK, or PSD_AGAIN when no result is there. */
psd_status psd_compiler_take(psd_compiler *compiler, psd_compiled *out);

#endif
