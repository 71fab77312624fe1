/* Intrusive circular lists. A node is either in one list or points to itself. */
#ifndef PSD_BACKEND_LIST_H
#define PSD_BACKEND_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct list {
    struct list *next;
    struct list *prev;
} list;

/* The struct of `type` that holds `node` as its `member`. */
#define LIST_ENTRY(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

/* Walks all nodes; the current one may be removed in the body. */
#define LIST_EACH(head, node, after)                                                                         \
    for (list *node = (head)->next, *after = node->next; node != (head); node = after, after = node->next)

static inline void list_init(list *node)
{
    node->next = node;
    node->prev = node;
}

static inline bool list_empty(const list *head)
{
    return head->next == head;
}

static inline void list_append(list *head, list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

/* Also right for a node that is in no list. */
static inline void list_remove(list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

/* The first node, removed; NULL if there is none. */
static inline list *list_take(list *head)
{
    list *node = head->next;
    if (node == head)
        return NULL;
    list_remove(node);
    return node;
}

#endif
