/* Groups: the host links first, then, once all members have those, the communicator. */
#include "worker/backend/nccl/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------ breaking */

/* Under lock. False: it was broken before. */
static bool mark_broken(psd_backend_group *g, psd_status status, const char *text)
{
    if (group_status(g) != PSD_OK)
        return false;
    snprintf(g->text, sizeof g->text, "%s", text);
    g->broken_at = psd_now_ns();
    atomic_store_explicit(&g->status, (int)status, memory_order_release);
    follow_spoil(g);
    atomic_fetch_add(&g->backend->breaks, 1);
    engine_kick(g->backend);
    return true;
}

void group_break(psd_backend_group *g, psd_status status, int32_t culprit, bool tell, const char *text)
{
    psd_backend *b = g->backend;
    pthread_mutex_lock(&b->lock);
    bool first = mark_broken(g, status, text);
    pthread_mutex_unlock(&b->lock);
    if (first && tell && b->config.on_group_broken != NULL)
        b->config.on_group_broken(b->config.owner, g->id, status, culprit, text);
}

/* From the host backend, under its locks. */
void group_host_broke(void *owner, uint32_t id, psd_status status, int32_t culprit, const char *text)
{
    psd_backend *b = owner;
    pthread_mutex_lock(&b->lock);
    for (list *node = b->groups.next; node != &b->groups; node = node->next) {
        psd_backend_group *g = LIST_ENTRY(node, psd_backend_group, node);
        if (g->id == id)
            (void)mark_broken(g, status, text);
    }
    pthread_mutex_unlock(&b->lock);
    if (b->config.on_group_broken != NULL)
        b->config.on_group_broken(b->config.owner, id, status, culprit, text);
}

void group_abort(psd_backend_group *g, psd_status status, const char *text)
{
    group_break(g, status, -1, false, text);
}

psd_status group_error(psd_backend_group *g, char *text, size_t text_bytes)
{
    pthread_mutex_lock(&g->backend->lock);
    psd_status status = group_status(g);
    snprintf(text, text_bytes, "%s", g->text);
    pthread_mutex_unlock(&g->backend->lock);
    return status;
}

psd_status group_member_state(psd_backend_group *g, int32_t rank)
{
    return g->backend->host_ops->group_member(g->host, rank);
}

/* ------------------------------------------------------------------------------------------------- opening */

static psd_backend_group *group_new(psd_backend *b, const psd_group_desc *desc, const group_token *token)
{
    size_t size = (size_t)desc->size;
    psd_backend_group *g = calloc(1, sizeof *g);
    if (g == NULL)
        return NULL;
    list_init(&g->node);
    list_init(&g->issued);
    list_init(&g->flying);
    list_init(&g->queue);
    g->backend = b;
    g->id = desc->id;
    g->rank = desc->rank;
    g->size = desc->size;
    g->next_deadline = PSD_NEVER;
    g->stage = STAGE_LINKS;
    g->has_id = token->has_id;
    g->unique_id = token->id;
    g->members = calloc(size, sizeof *g->members);
    g->sent = calloc(size, sizeof *g->sent);
    g->received = calloc(size, sizeof *g->received);
    if (g->members != NULL && g->sent != NULL && g->received != NULL) {
        memcpy(g->members, desc->members, size * sizeof *g->members);
        return g;
    }
    group_free(g);
    return NULL;
}

void group_free(psd_backend_group *g)
{
    pthread_mutex_lock(&g->backend->lock);
    list_remove(&g->node);
    pthread_mutex_unlock(&g->backend->lock);
    free(g->members);
    free(g->sent);
    free(g->received);
    free(g->followers);
    free(g);
}

static void add_group(psd_backend *b, psd_backend_group *g)
{
    engine_lock_drive(b);
    pthread_mutex_lock(&b->lock);
    list_append(&b->groups, &g->node);
    pthread_mutex_unlock(&b->lock);
    engine_unlock_drive(b);
}

/* The group as the host backend is to see it. Entries of `addresses` point into the description's. */
static psd_status make_host_desc(const psd_group_desc *desc, const group_token *token, const char **addresses,
                                 psd_group_desc *out, char *why, size_t why_bytes)
{
    *out = *desc;
    out->token = token->host;
    out->token_bytes = token->host_bytes;
    out->addresses = addresses;
    for (int32_t i = 0; desc->addresses != NULL && i < desc->size; i++) {
        identity other;
        if (!identity_parse(desc->addresses[i], &other, &addresses[i])) {
            snprintf(why, why_bytes, "group %u: the address of rank %u is not valid", desc->id,
                     desc->members[i]);
            return PSD_ERR_FORMAT;
        }
    }
    return PSD_OK;
}

static psd_status begin_links(psd_backend *b, const psd_group_desc *desc, psd_backend_group *g,
                              const char **addresses, const group_token *token, char *why, size_t why_bytes)
{
    psd_group_desc host_desc;
    psd_backend_group *host = NULL;
    psd_status status = make_host_desc(desc, token, addresses, &host_desc, why, why_bytes);
    if (status == PSD_OK)
        status = b->host_ops->group_begin(b->host, &host_desc, &host, why, why_bytes);
    engine_lock_drive(b);
    g->host = host;
    if (status != PSD_OK && status != PSD_INPROGRESS)
        group_free(g);
    engine_unlock_drive(b);
    return status;
}

psd_status group_begin(psd_backend *b, const psd_group_desc *desc, psd_backend_group **out, char *why,
                       size_t why_bytes)
{
    group_token token;
    if (desc->size < 1 || desc->rank < 0 || desc->rank >= desc->size || desc->members == NULL ||
        (desc->size > 1 && (desc->addresses == NULL || desc->token_bytes == 0)) ||
        !token_parse(desc->token, desc->token_bytes, &token)) {
        snprintf(why, why_bytes, "group %u: its description is not valid", desc->id);
        return PSD_ERR_INVAL;
    }
    psd_status status = identity_check(desc, why, why_bytes);
    if (status != PSD_OK)
        return status;
    const char **addresses = calloc((size_t)desc->size, sizeof *addresses);
    psd_backend_group *g = addresses != NULL ? group_new(b, desc, &token) : NULL;
    if (g == NULL) {
        snprintf(why, why_bytes, "out of memory for group %u of %d ranks", desc->id, desc->size);
        free(addresses);
        return PSD_ERR_NOMEM;
    }
    add_group(b, g);
    status = begin_links(b, desc, g, addresses, &token, why, why_bytes);
    free(addresses);
    if (status == PSD_OK || status == PSD_INPROGRESS)
        *out = g;
    return status;
}

psd_status group_poll(psd_backend_group *g, char *why, size_t why_bytes)
{
    psd_backend *b = g->backend;
    psd_status status = PSD_OK;
    engine_lock_drive(b);
    if (g->stage == STAGE_LINKS && group_status(g) == PSD_OK) {
        status = b->host_ops->group_poll(g->host, why, why_bytes);
        if (status == PSD_OK) {
            g->stage = STAGE_INIT;
            pthread_mutex_lock(&b->lock);
            engine_kick(b); /* for its deadlines and links while NCCL connects */
            pthread_mutex_unlock(&b->lock);
        }
    }
    if (status == PSD_OK) {
        (void)comm_drive(g, false);
        status = comm_state(g, why, why_bytes);
    }
    engine_unlock_drive(b);
    return status;
}

void group_close(psd_backend_group *g)
{
    if (g == NULL)
        return;
    psd_backend *b = g->backend;
    engine_lock_drive(b);
    psd_backend_group *host = g->host;
    g->host = NULL;
    pthread_mutex_lock(&b->lock);
    atomic_store_explicit(&g->is_closed, true, memory_order_release);
    engine_kick(b);
    pthread_mutex_unlock(&b->lock);
    engine_unlock_drive(b); /* the owner thread may free the group from here on */
    b->host_ops->group_close(host);
}
