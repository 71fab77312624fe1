/* Two contexts' nets in one process, for tests of links. */
#ifndef PSD_TEST_LINK_PAIR_H
#define PSD_TEST_LINK_PAIR_H

#include "worker/backend/host/link.h"

typedef struct link_pair {
    host_net *net[2];
    host_link *link[2];
} link_pair;

/* A net on the loopback interface, or NULL and the reason on stderr. Incarnations differ: the lower connects.
 */
host_net *link_net_open(const char *transport, uint64_t incarnation);

/* Polls both nets until both links are up, or one is broken, or the deadline has passed; false unless both
 * are up. */
bool link_pair_up(link_pair *pair);
/* Both nets, both links asked for, both up. */
bool link_pair_open(link_pair *pair, const char *transport);
void link_pair_close(link_pair *pair);

/* Polls one net until its link is in this state. */
bool link_until(host_net *net, host_link *link, host_link_state state, int timeout_ms);

/* All bytes, polling; false when the deadline passes or the link breaks. */
bool link_send_all(host_net *net, host_link *link, const void *data, size_t bytes);
bool link_receive_all(host_net *net, host_link *link, void *data, size_t bytes);

/* Open file descriptors of this process. */
int link_count_fds(void);

#endif
