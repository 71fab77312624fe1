/* The views of what a job works on: groups, plans, tables. */
#include "common/tensor.h"
#include "server/core/views.h"

#define COLUMNS(list) list, sizeof(list) / sizeof((list)[0])

/* ------------------------------------------------------------------------------------------------- groups */

static const psd_column groups_columns[] = {
    {"job", PSD_CELL_TEXT},   {"group", PSD_CELL_INT}, {"epoch", PSD_CELL_INT},    {"size", PSD_CELL_INT},
    {"state", PSD_CELL_TEXT}, {"warmup", PSD_CELL_NS}, {"members", PSD_CELL_TEXT}, {"text", PSD_CELL_TEXT},
};

static const char *const group_states[] = {"", "asking", "opening", "live", "broken"};

/* "ready from rank 2 and 3 more". */
static const char *group_text(psd_core *core, const group *g)
{
    if (g->state == GROUP_ASKING)
        return arena_text(core, "waits for the token of rank %u", ranks_at(g->members, 0));
    if (g->state == GROUP_BROKEN)
        return g->reason;
    if (g->state != GROUP_OPENING)
        return "";
    uint32_t at = 0;
    while (at + 1 < g->count && bit_get(g->ready, at))
        at++;
    uint32_t more = g->count - g->ready_count - 1;
    return more == 0 ? arena_text(core, "waits for rank %u to be ready", ranks_at(g->members, at))
                     : arena_text(core, "waits for rank %u and %u more to be ready", ranks_at(g->members, at),
                                  more);
}

static void visit_groups(psd_core *core, job *j, page *p)
{
    for (size_t i = 0; i < j->groups.count; i++) {
        const group *g = j->groups.items[i];
        psd_cell *row = page_row(p);
        if (row == NULL)
            continue;
        *row++ = cell_text(j->name);
        *row++ = cell_int(g->id);
        *row++ = cell_int((int64_t)g->epoch);
        *row++ = cell_int(g->count);
        *row++ = cell_text(group_states[g->state]);
        *row++ = g->warmup_ns > 0 ? cell_int(g->warmup_ns) : cell_none();
        *row++ = cell_ranks(core, g->members, g->count);
        *row = cell_text(group_text(core, g));
    }
    for (size_t i = 0; i < j->pendings.count; i++) {
        const pending *q = j->pendings.items[i];
        psd_cell *row = page_row(p);
        if (row == NULL)
            continue;
        *row++ = cell_text(j->name);
        *row++ = cell_none(); /* it has no number before all have asked */
        *row++ = cell_int((int64_t)j->epoch);
        *row++ = cell_int(q->count);
        *row++ = cell_text("asked");
        *row++ = cell_none();
        *row++ = cell_ranks(core, q->members, q->count);
        *row = cell_text(pending_text(core, q));
    }
}

/* -------------------------------------------------------------------------------------------------- plans */

static const psd_column plans_columns[] = {
    {"job", PSD_CELL_TEXT},    {"plan", PSD_CELL_INT},    {"kind", PSD_CELL_TEXT}, {"group", PSD_CELL_INT},
    {"hash", PSD_CELL_TEXT},   {"state", PSD_CELL_TEXT},  {"ranks", PSD_CELL_INT}, {"steps", PSD_CELL_INT},
    {"rounds", PSD_CELL_INT},  {"bytes", PSD_CELL_BYTES}, {"runs", PSD_CELL_INT},  {"sent", PSD_CELL_BYTES},
    {"last_run", PSD_CELL_NS}, {"text", PSD_CELL_TEXT},
};

static const char *const plan_states[] = {"", "agreeing", "compiling", "loading", "live", "failed"};

static const char *plan_text(psd_core *core, const plan *p)
{
    uint32_t ranks = p->inputs.ranks;
    switch (p->state) {
    case PLAN_AGREEING:
        return arena_text(core, "%u of %u ranks have asked", p->asked, ranks);
    case PLAN_LOADING:
        return arena_text(core, "%u of %u ranks have loaded it", p->ready_count, ranks);
    case PLAN_FAILED:
        return p->reason;
    default:
        return arena_text(core, "shift %d of %lld %s", p->inputs.shift, (long long)p->inputs.count,
                          psd_dtype_name(p->inputs.dtype));
    }
}

/* `bytes` is what one run moves over all ranks. */
static void visit_plans(psd_core *core, job *j, page *p)
{
    for (size_t i = 0; i < j->plans.count; i++) {
        const plan *each = j->plans.items[i];
        psd_cell *row = page_row(p);
        if (row == NULL)
            continue;
        uint64_t bytes = 0;
        for (uint64_t k = 0; k < each->compiled.count; k++)
            bytes += each->compiled.steps[k].bytes;
        *row++ = cell_text(j->name);
        *row++ = cell_int(each->id);
        *row++ = cell_text("ring_shift");
        *row++ = cell_int(each->group);
        *row++ = cell_text(arena_text(core, "%016llx", (unsigned long long)each->hash));
        *row++ = cell_text(plan_states[each->state]);
        *row++ = cell_int(each->inputs.ranks);
        *row++ = cell_int((int64_t)each->compiled.count);
        *row++ = cell_int(each->compiled.rounds);
        *row++ = cell_bytes(bytes);
        *row++ = cell_int((int64_t)each->runs);
        *row++ = cell_bytes(each->bytes_sent);
        *row++ = each->runs > 0 ? cell_int(each->last_run_ns) : cell_none();
        *row = cell_text(plan_text(core, each));
    }
}

/* ------------------------------------------------------------------------------------------------- tables */

static const psd_column tables_columns[] = {
    {"job", PSD_CELL_TEXT},     {"table", PSD_CELL_INT},     {"name", PSD_CELL_TEXT},
    {"state", PSD_CELL_TEXT},   {"params", PSD_CELL_INT},    {"bytes", PSD_CELL_BYTES},
    {"servers", PSD_CELL_TEXT}, {"trainers", PSD_CELL_TEXT}, {"clock", PSD_CELL_INT},
    {"pushes", PSD_CELL_INT},   {"pulls", PSD_CELL_INT},     {"text", PSD_CELL_TEXT},
};

static const char *const table_states[] = {"", "agreeing", "assigning", "live", "failed"};

static const char *table_text(psd_core *core, const table *t)
{
    switch (t->state) {
    case TABLE_AGREEING:
        return arena_text(core, "%u of %u trainers have asked", t->asked, t->trainer_count);
    case TABLE_ASSIGNING:
        return arena_text(core, "%u of %u servers have made room", t->ready_count, t->server_count);
    case TABLE_FAILED:
        return t->reason;
    default:
        return "";
    }
}

/* The clock is that of the server furthest behind. */
static void visit_tables(psd_core *core, job *j, page *p)
{
    for (size_t i = 0; i < j->tables.count; i++) {
        const table *t = j->tables.items[i];
        psd_cell *row = page_row(p);
        if (row == NULL)
            continue;
        shard sum = {.clock = UINT64_MAX};
        for (uint32_t k = 0; k < t->server_count; k++) {
            sum.clock = t->shards[k].clock < sum.clock ? t->shards[k].clock : sum.clock;
            sum.pushes += t->shards[k].pushes;
            sum.pulls += t->shards[k].pulls;
            sum.bytes += t->shards[k].bytes;
        }
        *row++ = cell_text(j->name);
        *row++ = cell_int(t->id);
        *row++ = cell_text(t->spec.name);
        *row++ = cell_text(table_states[t->state]);
        *row++ = cell_int(t->spec.param_count);
        *row++ = cell_bytes(sum.bytes);
        *row++ = cell_ranks(core, t->servers, t->server_count);
        *row++ = cell_ranks(core, t->trainers, t->trainer_count);
        *row++ = cell_int(t->server_count == 0 ? 0 : (int64_t)sum.clock);
        *row++ = cell_int((int64_t)sum.pushes);
        *row++ = cell_int((int64_t)sum.pulls);
        *row = cell_text(table_text(core, t));
    }
}

static const view work_views[] = {
    {"groups", COLUMNS(groups_columns), visit_groups, NULL},
    {"plans", COLUMNS(plans_columns), visit_plans, NULL},
    {"tables", COLUMNS(tables_columns), visit_tables, NULL},
};

const view *work_view_find(const char *name)
{
    for (size_t i = 0; i < sizeof(work_views) / sizeof(work_views[0]); i++)
        if (strcmp(work_views[i].name, name) == 0)
            return &work_views[i];
    return NULL;
}
