/* What a step leaves behind: messages to audiences, notes, refusals. */
#include <stdarg.h>
#include <stdlib.h>

#include "server/core/state.h"

static void effect_free(psd_effect *effect)
{
    free(effect->msg);
    free(effect->event);
    free(effect);
}

void psd_effects_clear(psd_effects *effects)
{
    for (size_t i = 0; i < effects->count; i++)
        effect_free(effects->items[i]);
    effects->count = 0;
    effects->journal = false;
}

void psd_effects_free(psd_effects *effects)
{
    psd_effects_clear(effects);
    free(effects->items);
    *effects = (psd_effects){0};
}

psd_effect *add_effect(psd_core *core, psd_effect_type type)
{
    psd_effects *effects = core->effects;
    psd_effect *effect = NULL;
    if (effects->count == effects->capacity) {
        size_t capacity = effects->capacity == 0 ? 16 : effects->capacity * 2;
        psd_effect **items = realloc(effects->items, capacity * sizeof(psd_effect *));
        if (items == NULL) {
            core->oom = true;
            return NULL;
        }
        effects->items = items;
        effects->capacity = capacity;
    }
    effect = core_calloc(core, 1, sizeof(*effect));
    if (effect == NULL)
        return NULL;
    effect->type = type;
    effect->rank = -1;
    effects->items[effects->count++] = effect;
    return effect;
}

psd_msg *send_to(psd_core *core, psd_audience to, psd_msg_type type)
{
    psd_effect *effect = NULL;
    psd_msg *msg = core_calloc(core, 1, sizeof(*msg));
    if (msg != NULL)
        effect = add_effect(core, PSD_EFFECT_SEND);
    if (effect == NULL) {
        free(msg);
        return &core->sink;
    }
    effect->audience = to;
    effect->msg = msg;
    msg->type = type;
    return msg;
}

psd_msg *send_to_peer(psd_core *core, psd_peer peer, psd_msg_type type)
{
    return send_to(core, (psd_audience){.kind = PSD_TO_PEER, .peer = peer}, type);
}

psd_msg *send_to_member(psd_core *core, const member *m, psd_msg_type type)
{
    psd_audience to = {.kind = PSD_TO_PEER, .job = m->job->index, .peer = m->peer};
    psd_msg *msg = send_to(core, to, type);
    (void)snprintf(msg->ident.job, sizeof(msg->ident.job), "%s", m->job->name);
    (void)snprintf(msg->ident.name, sizeof(msg->ident.name), "%s", m->name);
    msg->ident.incarnation = m->incarnation;
    return msg;
}

psd_audience to_job(const job *j)
{
    return (psd_audience){.kind = PSD_TO_JOB, .job = j->index};
}

psd_audience to_group(const job *j, uint32_t id)
{
    return (psd_audience){.kind = PSD_TO_GROUP, .job = j->index, .id = id};
}

psd_audience to_plan(const plan *p)
{
    return (psd_audience){.kind = PSD_TO_PLAN, .job = p->job->index, .id = p->id};
}

psd_audience to_trainers(const table *t)
{
    return (psd_audience){.kind = PSD_TO_TRAINERS, .job = t->job->index, .id = t->id};
}

psd_audience to_servers(const table *t)
{
    return (psd_audience){.kind = PSD_TO_SERVERS, .job = t->job->index, .id = t->id};
}

void drop_peer(psd_core *core, psd_peer peer)
{
    psd_effect *effect = add_effect(core, PSD_EFFECT_DROP);
    if (effect != NULL)
        effect->audience = (psd_audience){.kind = PSD_TO_PEER, .peer = peer};
}

/* Kept in the ring for the events view, and an effect for the log. */
void note_add(psd_core *core, const job *j, int32_t rank, psd_note_level level, const char *format, ...)
{
    psd_effect *effect = add_effect(core, PSD_EFFECT_NOTE);
    if (effect == NULL)
        return;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(effect->text, sizeof(effect->text), format, args);
    va_end(args);
    effect->level = level;
    effect->rank = rank;
    if (j != NULL)
        (void)snprintf(effect->job, sizeof(effect->job), "%s", j->name);
    char *text = core_strdup(core, effect->text);
    if (text == NULL)
        return;
    note *slot = &core->notes[core->note_count++ % MAX_NOTES];
    free(slot->text);
    *slot = (note){.at = core->now, .level = level, .rank = rank, .text = text};
    memcpy(slot->job, effect->job, sizeof(slot->job));
}

/* Only a request or a HELLO can be refused: without a request, REFUSE means the worker itself. */
void refuse_peer(psd_core *core, psd_peer peer, const psd_msg *asked, psd_status status, const char *format,
                 ...)
{
    if (asked->request == 0 && asked->type != PSD_MSG_HELLO)
        return;
    psd_msg *msg = send_to_peer(core, peer, PSD_MSG_REFUSE);
    msg->ident = asked->ident;
    msg->request = asked->request;
    msg->u.refuse.status = status;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(msg->u.refuse.text, sizeof(msg->u.refuse.text), format, args);
    va_end(args);
}

void mark_journal(psd_core *core)
{
    core->effects->journal = true;
}
