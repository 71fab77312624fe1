/* The simulated world: steps events, applies effects, keeps the journal, answers for the workers. */
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "common/plan.h"
#include "tests/sim/sim.h"

bool sim_begin(sim *s, FILE *out)
{
    *s = (sim){.out = out, .next_peer = 1, .next_request = 1, .answers = true, .now = PSD_NS_PER_S};
    (void)snprintf(s->job, sizeof(s->job), "default");
    return psd_core_new(&s->config, &s->core) == PSD_OK;
}

void sim_end(sim *s)
{
    for (size_t i = 0; i < s->journal_count; i++)
        free(s->journal[i].owned);
    free(s->journal);
    psd_effects_free(&s->effects);
    psd_core_free(s->core);
    s->core = NULL;
}

sim_worker *sim_worker_named(sim *s, const char *name)
{
    for (int i = 0; i < s->worker_count; i++)
        if (strcmp(s->workers[i].ident.name, name) == 0)
            return &s->workers[i];
    if (s->worker_count == SIM_WORKERS)
        return NULL;
    sim_worker *w = &s->workers[s->worker_count++];
    (void)snprintf(w->ident.name, sizeof(w->ident.name), "%s", name);
    (void)snprintf(w->ident.job, sizeof(w->ident.job), "%s", s->job);
    (void)snprintf(w->hello.role, sizeof(w->hello.role), "worker");
    (void)snprintf(w->hello.host, sizeof(w->hello.host), "h");
    (void)snprintf(w->hello.address, sizeof(w->hello.address), "@%.32s", name);
    (void)snprintf(w->hello.backend, sizeof(w->hello.backend), "host");
    w->hello.pid = (uint32_t)(100 + s->worker_count);
    w->hello.rank = -1;
    w->hello.world_min = w->hello.world_max = 1;
    w->ident.incarnation = (uint64_t)s->worker_count;
    w->rank = -1;
    return w;
}

/* -------------------------------------------------------------------------------------------------- trace */

static void flush_line(sim *s)
{
    if (s->names[0] != 0)
        (void)fprintf(s->out, "  %s <- %s\n", s->names, s->line);
    s->names[0] = 0;
}

static void gather_line(sim *s, const char *name, const char *line)
{
    if (s->names[0] != 0 && strcmp(s->line, line) != 0)
        flush_line(s);
    psd_append(s->names, sizeof(s->names), "%s%s", s->names[0] == 0 ? "" : " ", name);
    (void)snprintf(s->line, sizeof(s->line), "%s", line);
}

/* ------------------------------------------------------------------------------------------------ journal */

static const void *keep(sim_record *r, const void *from, size_t bytes)
{
    r->owned = malloc(bytes + 1);
    if (r->owned != NULL)
        memcpy(r->owned, from, bytes);
    return r->owned;
}

static void journal_add(sim *s, const psd_event *event)
{
    if (s->journal_count == s->journal_capacity) {
        s->journal_capacity = s->journal_capacity == 0 ? 64 : s->journal_capacity * 2;
        sim_record *grown = realloc(s->journal, s->journal_capacity * sizeof(*grown));
        if (grown == NULL)
            abort();
        s->journal = grown;
    }
    sim_record *r = &s->journal[s->journal_count++];
    *r = (sim_record){.event = *event};
    r->event.compiled = NULL;
    r->event.text = NULL;
    if (event->msg == NULL)
        return;
    r->msg = *event->msg;
    psd_msg_group_open *open = &r->msg.u.group_open;
    psd_table_spec *spec = &r->msg.u.table_open.spec;
    if (r->msg.type == PSD_MSG_GROUP_OPEN && open->members != NULL)
        open->members = keep(r, open->members, open->count * sizeof(*open->members));
    if (r->msg.type == PSD_MSG_TABLE_OPEN)
        spec->params = keep(r, spec->params, spec->param_count * sizeof(*spec->params));
}

/* ------------------------------------------------------------------------------------------------ effects */

static sim_worker *worker_at(sim *s, psd_peer peer)
{
    for (int i = 0; i < s->worker_count; i++)
        if (s->workers[i].peer == peer)
            return &s->workers[i];
    return NULL;
}

static psd_msg *reply_later(sim *s, sim_worker *w, psd_msg_type type)
{
    if (s->reply_count == (int)(sizeof(s->replies) / sizeof(s->replies[0])))
        return NULL;
    s->replies[s->reply_count].worker = w;
    psd_msg *msg = &s->replies[s->reply_count++].msg;
    *msg = (psd_msg){.type = type};
    return msg;
}

static void answer_group(sim *s, sim_worker *w, const psd_msg *msg)
{
    psd_msg *answer = NULL;
    if (msg->type == PSD_MSG_GROUP_ASK_TOKEN) {
        answer = reply_later(s, w, PSD_MSG_GROUP_TOKEN);
        if (answer != NULL)
            answer->u.group_token =
                (psd_msg_group_token){.group = msg->u.group_token.group, .bytes = 3, .token = "tok"};
    } else if (msg->u.group_opened.group != 0) {
        answer = reply_later(s, w, PSD_MSG_GROUP_READY);
        if (answer != NULL)
            answer->u.group = (psd_msg_group){.group = msg->u.group_opened.group, .warmup_ns = 1000};
    }
}

static void answer_snapshot(sim *s, sim_worker *w, const psd_msg *msg)
{
    psd_msg *answer = reply_later(s, w, PSD_MSG_SNAPSHOT);
    if (answer == NULL)
        return;
    w->snap.round = msg->u.snapshot.round;
    w->snap.threads = &w->thread;
    w->thread.works = w->works;
    w->snap.ops = w->ops;
    w->snap.groups = w->groups;
    w->snap.started = w->started;
    w->snap.peers = w->peers;
    w->snap.sent = w->sent;
    w->snap.received = w->received;
    answer->u.snapshot = w->snap;
}

static void deliver(sim *s, psd_peer peer, const psd_msg *msg)
{
    char line[2048];
    sim_worker *w = worker_at(s, peer);
    if (msg->type == PSD_MSG_REPLY) {
        trace_reply(&msg->u.reply, false, s->out);
        return;
    }
    trace_msg(msg, line, sizeof(line));
    gather_line(s, w == NULL ? "?" : w->ident.name, line);
    if (w == NULL)
        return;
    if (msg->type == PSD_MSG_WELCOME) {
        w->rank = msg->u.welcome.rank;
        w->token = msg->u.welcome.resume_token;
        w->epoch = msg->u.welcome.epoch;
    } else if (msg->type == PSD_MSG_PLAN_STEPS) {
        uint64_t *hash = &w->last_hash[msg->u.plan_steps.plan % 16];
        *hash = psd_plan_rank_hash(&msg->u.plan_steps, msg->u.plan_steps.chunk == 0 ? 0 : *hash);
    } else if (s->answers && (msg->type == PSD_MSG_GROUP_ASK_TOKEN || msg->type == PSD_MSG_GROUP_OPENED)) {
        answer_group(s, w, msg);
    } else if (s->answers && msg->type == PSD_MSG_SNAPSHOT_ASK) {
        answer_snapshot(s, w, msg);
    }
}

static void send_effect(sim *s, psd_effect *effect)
{
    uint64_t cursor = 0;
    psd_peer peer;
    while (psd_core_next_addressee(s->core, effect, &cursor, &peer))
        deliver(s, peer, effect->msg);
    flush_line(s);
}

static void compile(sim *s, const psd_effect *effect)
{
    char text[PSD_MAX_TEXT] = "";
    psd_plan_steps steps;
    psd_event event = {.type = PSD_EVENT_COMPILED, .plan = effect->plan, .text = text};
    event.status = psd_plan_compile(&effect->inputs, &steps, text, sizeof(text));
    event.compiled = event.status == PSD_OK ? &steps : NULL;
    (void)fprintf(s->out, "  psd compiles plan %u\n", effect->plan);
    sim_step(s, &event);
}

static void apply(sim *s, psd_effect *effect)
{
    switch (effect->type) {
    case PSD_EFFECT_SEND:
        send_effect(s, effect);
        break;
    case PSD_EFFECT_NOTE:
        (void)fprintf(s->out, "  %s: %s\n", effect->level == PSD_NOTE_WARN ? "warn" : "note", effect->text);
        break;
    case PSD_EFFECT_DROP: {
        sim_worker *w = worker_at(s, effect->audience.peer);
        if (w != NULL)
            w->peer = 0;
        break;
    }
    default:
        break;
    }
}

/* Sends and notes first, in order; then the events that the step asked for, whose steps may not disturb them.
 */
void sim_step(sim *s, psd_event *event)
{
    psd_effects effects = {0};
    event->now = s->now;
    event->entropy = ++s->entropy;
    if (psd_core_step(s->core, event, &effects) != PSD_OK)
        abort();
    if (effects.journal)
        journal_add(s, event);
    for (size_t i = 0; i < effects.count; i++)
        apply(s, effects.items[i]);
    for (size_t i = 0; i < effects.count; i++) {
        if (effects.items[i]->type == PSD_EFFECT_COMPILE)
            compile(s, effects.items[i]);
        else if (effects.items[i]->type == PSD_EFFECT_EVENT)
            sim_step(s, effects.items[i]->event);
    }
    psd_effects_free(&effects);
    while (s->reply_count > 0) {
        sim_worker *w = s->replies[0].worker;
        psd_msg msg = s->replies[0].msg;
        s->reply_count--;
        memmove(&s->replies[0], &s->replies[1], (size_t)s->reply_count * sizeof(s->replies[0]));
        sim_say(s, w, &msg);
    }
}

void sim_say(sim *s, sim_worker *w, psd_msg *msg)
{
    if (w->peer == 0)
        w->peer = s->next_peer++;
    msg->ident = w->ident;
    psd_event event = {.type = PSD_EVENT_MSG, .peer = w->peer, .msg = msg};
    sim_step(s, &event);
}

void sim_ask(sim *s, const char *view, const char *job, uint64_t after, uint32_t limit)
{
    psd_msg msg = {.type = PSD_MSG_QUERY, .request = 1, .u.query = {.after = after, .limit = limit}};
    (void)snprintf(msg.u.query.view, sizeof(msg.u.query.view), "%s", view);
    (void)snprintf(msg.u.query.job, sizeof(msg.u.query.job), "%s", job);
    psd_event event = {.type = PSD_EVENT_MSG, .peer = 1000000, .msg = &msg};
    sim_step(s, &event);
}

void sim_advance(sim *s, psd_time_ns by)
{
    psd_time_ns until = s->now + by;
    while (psd_core_deadline(s->core) <= until) {
        psd_time_ns due = psd_core_deadline(s->core);
        s->now = due > s->now ? due : s->now;
        psd_event event = {.type = PSD_EVENT_TIMER};
        sim_step(s, &event);
    }
    s->now = until;
}

/* ------------------------------------------------------------------------------------------------ restart */

/* All that a restart must bring back, as text. */
static char *durable_state(sim *s, psd_core *core)
{
    static const char *const views[] = {"status", "ranks",     "groups",  "plans",
                                        "tables", "incidents", "incident"};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        abort();
    for (size_t i = 0; i < sizeof(views) / sizeof(views[0]); i++) {
        psd_effects effects = {0};
        psd_msg msg = {.type = PSD_MSG_QUERY, .request = 1};
        (void)snprintf(msg.u.query.view, sizeof(msg.u.query.view), "%s", views[i]);
        psd_event event = {.type = PSD_EVENT_MSG, .now = s->now, .peer = 1000000, .msg = &msg};
        if (psd_core_step(core, &event, &effects) != PSD_OK)
            abort();
        trace_reply(&effects.items[0]->msg->u.reply, true, out);
        psd_effects_free(&effects);
    }
    (void)fclose(out);
    return text;
}

static psd_core *replay(sim *s)
{
    psd_core *core = NULL;
    if (psd_core_new(&s->config, &core) != PSD_OK)
        abort();
    for (size_t i = 0; i < s->journal_count; i++) {
        psd_effects effects = {0};
        psd_event event = s->journal[i].event;
        if (event.msg != NULL)
            event.msg = &s->journal[i].msg;
        if (psd_core_step(core, &event, &effects) != PSD_OK)
            abort();
        if (!effects.journal)
            (void)fprintf(s->out, "  event %zu was journalled, but its replay changes nothing\n", i);
        psd_effects_free(&effects);
    }
    return core;
}

void sim_forget(sim *s)
{
    for (size_t i = 0; i < s->journal_count; i++)
        free(s->journal[i].owned);
    s->journal_count = 0;
    psd_core_free(s->core);
    if (psd_core_new(&s->config, &s->core) != PSD_OK)
        abort();
    for (int i = 0; i < s->worker_count; i++)
        s->workers[i].peer = 0;
}

void sim_restart(sim *s, bool compare)
{
    psd_core *core = replay(s);
    char *before = durable_state(s, s->core);
    char *after = durable_state(s, core);
    if (strcmp(before, after) == 0)
        (void)fprintf(s->out, "  the replay of the journal gives the same state\n");
    else
        (void)fprintf(s->out, "  THE REPLAY DIFFERS\n--- before\n%s--- after\n%s", before, after);
    free(before);
    free(after);
    if (compare) {
        psd_core_free(core);
        return;
    }
    psd_core_free(s->core);
    s->core = core;
    for (int i = 0; i < s->worker_count; i++)
        s->workers[i].peer = 0;
    psd_event event = {.type = PSD_EVENT_RESTART};
    sim_step(s, &event);
}
