#include "worker/handles.h"

#include <stdlib.h>

psd_status psd_handles_init(psd_handles *h)
{
    h->count = 0;
    h->slots = NULL;
    return pthread_mutex_init(&h->lock, NULL) == 0 ? PSD_OK : PSD_ERR_NOMEM;
}

void psd_handles_destroy(psd_handles *h)
{
    free(h->slots);
    pthread_mutex_destroy(&h->lock);
}

/* A free slot, made if there is none; NULL when memory ends. */
static psd_handle_slot *free_slot(psd_handles *h)
{
    for (uint32_t i = 0; i < h->count; i++) {
        if (h->slots[i].item == NULL)
            return &h->slots[i];
    }
    psd_handle_slot *grown = realloc(h->slots, (h->count + 1) * sizeof(*grown));
    if (grown == NULL)
        return NULL;
    h->slots = grown;
    psd_handle_slot *slot = &grown[h->count++];
    *slot = (psd_handle_slot){.generation = 0};
    return slot;
}

psd_status psd_handles_add(psd_handles *h, void *item, uint32_t *index, uint32_t *generation)
{
    pthread_mutex_lock(&h->lock);
    psd_handle_slot *slot = free_slot(h);
    if (slot != NULL) {
        slot->item = item;
        slot->generation++; /* never 0, so that a zeroed handle is stale */
        *index = (uint32_t)(slot - h->slots);
        *generation = slot->generation;
    }
    pthread_mutex_unlock(&h->lock);
    return slot != NULL ? PSD_OK : PSD_ERR_NOMEM;
}

static psd_handle_slot *find(psd_handles *h, uint32_t index, uint32_t generation)
{
    if (index >= h->count || h->slots[index].item == NULL || h->slots[index].generation != generation)
        return NULL;
    return &h->slots[index];
}

void *psd_handles_acquire(psd_handles *h, uint32_t index, uint32_t generation)
{
    void *item = NULL;
    pthread_mutex_lock(&h->lock);
    psd_handle_slot *slot = find(h, index, generation);
    if (slot != NULL) {
        slot->users++;
        item = slot->item;
    }
    pthread_mutex_unlock(&h->lock);
    return item;
}

void psd_handles_release(psd_handles *h, uint32_t index)
{
    pthread_mutex_lock(&h->lock);
    h->slots[index].users--;
    pthread_mutex_unlock(&h->lock);
}

psd_status psd_handles_remove(psd_handles *h, uint32_t index, uint32_t generation, void **item)
{
    psd_status status = PSD_ERR_STALE;
    pthread_mutex_lock(&h->lock);
    psd_handle_slot *slot = find(h, index, generation);
    if (slot != NULL && slot->users > 0) {
        status = PSD_ERR_INVAL;
    } else if (slot != NULL) {
        *item = slot->item;
        slot->item = NULL;
        status = PSD_OK;
    }
    pthread_mutex_unlock(&h->lock);
    return status;
}

void *psd_handles_pop(psd_handles *h)
{
    void *item = NULL;
    pthread_mutex_lock(&h->lock);
    for (uint32_t i = 0; i < h->count && item == NULL; i++) {
        item = h->slots[i].item;
        h->slots[i].item = NULL;
    }
    pthread_mutex_unlock(&h->lock);
    return item;
}

void psd_handles_each(psd_handles *h, void (*visit)(void *item, void *arg), void *arg)
{
    pthread_mutex_lock(&h->lock);
    for (uint32_t i = 0; i < h->count; i++) {
        if (h->slots[i].item != NULL)
            visit(h->slots[i].item, arg);
    }
    pthread_mutex_unlock(&h->lock);
}
