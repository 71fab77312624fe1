/* Streams that wait for operations. An abort lets them go on with data that never came, after the request may have been
 * released: who synchronizes with the stream is told. */
#include "worker/backend/nccl/engine.h"

#include <stdio.h>
#include <stdlib.h>

static follower *find(psd_backend_group *g, const void *stream)
{
    for (int32_t i = 0; i < g->follower_count; i++) {
        if (g->followers[i].stream == stream)
            return &g->followers[i];
    }
    return NULL;
}

/* An entry that no operation uses any more, or a new one. */
static follower *make(psd_backend_group *g, void *stream)
{
    follower *f = NULL;
    for (int32_t i = 0; i < g->follower_count && f == NULL; i++) {
        if (g->followers[i].count == 0)
            f = &g->followers[i];
    }
    if (f == NULL) {
        follower *grown = realloc(g->followers, (size_t)(g->follower_count + 1) * sizeof *grown);
        if (grown == NULL)
            return NULL;
        g->followers = grown;
        f = &grown[g->follower_count++];
    }
    f->stream = stream;
    f->count = 0;
    return f;
}

static void spoil(psd_backend *b, void *stream, psd_status status, const char *text)
{
    spoiled *entry = &b->spoiled[0];
    for (int i = 0; i < MOST_SPOILED; i++) {
        if (b->spoiled[i].status != PSD_OK && b->spoiled[i].stream == stream)
            return; /* the first reason stays */
        if (b->spoiled[i].status == PSD_OK)
            entry = &b->spoiled[i];
    }
    entry->stream = stream;
    entry->status = status;
    snprintf(entry->text, sizeof entry->text, "%s", text);
}

void follow_spoil(psd_backend_group *g)
{
    for (int32_t i = 0; i < g->follower_count; i++) {
        if (g->followers[i].count > 0)
            spoil(g->backend, g->followers[i].stream, group_status(g), g->text);
    }
}

bool follow(psd_request *r, void *stream)
{
    psd_backend_group *g = r->group;
    if (atomic_load_explicit(&r->is_done, memory_order_relaxed)) {
        r->is_followed = true;
        return true;
    }
    follower *f = find(g, stream);
    if (f == NULL)
        f = make(g, stream);
    if (f == NULL)
        return false;
    f->count++;
    if (r->is_followed)
        follow_end(r); /* the stream before it */
    r->follower = stream;
    r->is_followed = true;
    if (group_status(g) != PSD_OK)
        follow_spoil(g);
    return true;
}

void follow_end(psd_request *r)
{
    follower *f = find(r->group, r->follower);
    if (f != NULL && f->count > 0)
        f->count--;
}

psd_status follow_take(psd_backend *b, const void *stream, char *why, size_t why_bytes)
{
    for (int i = 0; i < MOST_SPOILED; i++) {
        spoiled *entry = &b->spoiled[i];
        if (entry->status == PSD_OK || entry->stream != stream)
            continue;
        psd_status status = entry->status;
        snprintf(why, why_bytes, "%s", entry->text);
        entry->status = PSD_OK;
        return status;
    }
    return PSD_OK;
}
