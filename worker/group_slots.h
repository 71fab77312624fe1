/* Taking and giving back slots of the table of groups: between groups.c and group_open.c. */
#ifndef PSD_GROUP_SLOTS_H
#define PSD_GROUP_SLOTS_H

#include "worker/groups.h"

/* psd's id of no group: of the world of a rank that came to a running job. */
#define GROUP_CLOSED_WORLD UINT32_MAX

/* A slot for a group that is being opened: its handle is not valid yet. NULL: no memory, or PSD_MAX_GROUPS
 * are open. */
psd_group_slot *group_slot_take(psd_groups *groups, uint32_t id);
/* Closes the backend's part and frees the slot for another group. Nobody uses it any more. */
void group_slot_give_back(psd_groups *groups, psd_group_slot *slot);

#endif
