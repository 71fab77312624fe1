/* Recovery: the journal's events through the core again, their effects dropped. */
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "server/daemon.h"

/* Plans whose compilation was asked for and has not come back yet. */
typedef struct wanted_plan {
    uint32_t plan;
    psd_plan_inputs inputs;
} wanted_plan;

typedef struct replay {
    psd_daemon *daemon;
    wanted_plan *wanted;
    size_t wanted_count;
    size_t wanted_capacity;
    int64_t events;
} replay;

static psd_status want(replay *r, const psd_effect *effect)
{
    if (r->wanted_count == r->wanted_capacity) {
        size_t capacity = r->wanted_capacity == 0 ? 16 : r->wanted_capacity * 2;
        wanted_plan *grown = realloc(r->wanted, capacity * sizeof(wanted_plan));
        if (grown == NULL)
            return PSD_ERR_NOMEM;
        r->wanted = grown;
        r->wanted_capacity = capacity;
    }
    r->wanted[r->wanted_count++] = (wanted_plan){.plan = effect->plan, .inputs = effect->inputs};
    return PSD_OK;
}

/* Compiles again what the journal says came out; the same inputs must give the same steps. */
static psd_status recompile(replay *r, const psd_journal_row *row, psd_compiled *out)
{
    size_t i = 0;
    while (i < r->wanted_count && r->wanted[i].plan != row->event.plan)
        i++;
    if (i == r->wanted_count)
        return PSD_ERR_FORMAT;
    psd_plan_inputs inputs = r->wanted[i].inputs;
    r->wanted[i] = r->wanted[--r->wanted_count];
    if (row->event.status != PSD_OK)
        return PSD_OK;
    psd_compile_now(row->event.plan, &inputs, out);
    if (out->status != PSD_OK)
        return out->status;
    if (psd_compile_hash(&out->steps) == row->plan_hash)
        return PSD_OK;
    free(out->steps.steps);
    out->steps.steps = NULL;
    return PSD_ERR_MISMATCH;
}

static psd_status step_again(replay *r, const psd_event *event)
{
    psd_effects *effects = &r->daemon->effects;
    psd_status status = psd_core_step(r->daemon->core, event, effects);
    for (size_t i = 0; i < effects->count && status == PSD_OK; i++)
        if (effects->items[i]->type == PSD_EFFECT_COMPILE)
            status = want(r, effects->items[i]);
    psd_effects_clear(effects);
    return status;
}

static psd_status replay_row(void *arg, const psd_journal_row *row)
{
    replay *r = arg;
    psd_event event = row->event;
    psd_msg_box *box = NULL;
    psd_compiled compiled = {0};
    char why[128] = "";
    psd_status status = PSD_OK;
    if (event.type == PSD_EVENT_MSG) {
        status = psd_wire_decode(row->frame, row->frame_bytes, &box, why, sizeof(why));
        event.msg = status == PSD_OK ? &box->msg : NULL;
    } else if (event.type == PSD_EVENT_COMPILED) {
        status = recompile(r, row, &compiled);
        event.compiled = event.status == PSD_OK ? &compiled.steps : NULL;
    }
    if (status == PSD_OK) {
        status = step_again(r, &event);
        if (status != PSD_OK)
            free(compiled.steps.steps);
        r->events++;
    }
    psd_msg_box_free(box);
    return status;
}

psd_status psd_daemon_replay(psd_daemon *daemon, char *why, size_t why_bytes)
{
    replay r = {.daemon = daemon};
    psd_status status = psd_journal_replay(daemon->journal, daemon->now, replay_row, &r, why, why_bytes);
    for (size_t i = 0; i < r.wanted_count && status == PSD_OK; i++)
        status = psd_compiler_submit(daemon->compiler, r.wanted[i].plan, &r.wanted[i].inputs);
    free(r.wanted);
    if (status != PSD_OK || r.events == 0)
        return status;
    psd_journal_row restart = {.event = {.type = PSD_EVENT_RESTART}};
    psd_daemon_step(daemon, &restart);
    psd_daemon_settle(daemon);
    psd_log("psd", PSD_LOG_INFO, "recovered from %lld journalled events", (long long)r.events);
    return PSD_OK;
}
