/* psctl plan: compiles a transfer between two layouts, with no service and no GPU. */
#ifndef PSD_PSCTL_PLAN_H
#define PSD_PSCTL_PLAN_H

#include "server/core/reshard.h"
#include "server/psctl/psctl.h"

/* Everything about one plan. */
typedef struct psctl_plan_result {
    const char *name; /* of the pair; "" */
    reshard_input input;
    reshard_plan plan;
    reshard_bounds bounds;
    int32_t ranks; /* in one group or both */
    double compile_s;
    double check_s;
} psctl_plan_result;

/* Rows for people on stdout, and one JSON object. */
void psctl_plan_print(const psctl_plan_result *r);
bool psctl_plan_print_json(const psctl_plan_result *r); /* false: out of memory */

/* What bounds the transfer, and which rank is busiest, with what. */
void psctl_plan_explain(const psctl_plan_result *r);

/* One JSON object a line, as server/LAYOUT.md, section 6, says; "-" is stdout. False, told on stderr, if it cannot be
 * written; a file at `path` is then as it was. */
bool psctl_plan_export(const psctl_plan_result *r, const char *path);

/* A bar on stderr while the work takes longer than a second, if that is a terminal. Stages are counted from 0. */
void psctl_progress_start(const char *const *stages, int count);
void psctl_progress_stage(int stage);
void psctl_progress_end(void);

#endif
