/* Recovery: the journal's events through the core again, their effects dropped; then RESTART, by whose
 * effects the core asks again for what has not come back. */
#include "common/log.h"
#include "server/daemon.h"

typedef struct replay {
    psd_daemon *daemon;
    int64_t events;
} replay;

static psd_status replay_row(void *arg, const psd_journal_row *row)
{
    replay *r = arg;
    psd_event event = row->event;
    psd_msg_box *box = NULL;
    char why[128] = "";
    psd_status status = PSD_OK;
    if (event.type == PSD_EVENT_MSG || event.type == PSD_EVENT_INCIDENT) {
        status = psd_wire_decode(row->frame, row->frame_bytes, &box, why, sizeof(why));
        event.msg = status == PSD_OK ? &box->msg : NULL;
    }
    if (status == PSD_OK) {
        status = psd_core_step(r->daemon->core, &event, &r->daemon->effects);
        psd_effects_clear(&r->daemon->effects);
        r->events++;
    }
    psd_msg_box_free(box);
    return status;
}

psd_status psd_daemon_replay(psd_daemon *daemon, char *why, size_t why_bytes)
{
    replay r = {.daemon = daemon};
    psd_status status = psd_journal_replay(daemon->journal, daemon->now, replay_row, &r, why, why_bytes);
    if (status != PSD_OK || r.events == 0)
        return status;
    psd_log("psd", PSD_LOG_INFO, "recovered from %lld journalled events", (long long)r.events);
    psd_journal_row restart = {.event = {.type = PSD_EVENT_RESTART}};
    psd_daemon_step(daemon, &restart);
    psd_daemon_settle(daemon);
    return PSD_OK;
}
