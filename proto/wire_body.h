/* Internal to proto/: which message type travels in which field of the Envelope, and the two halves of
 * wire.c. */
#ifndef PSD_PROTO_WIRE_BODY_H
#define PSD_PROTO_WIRE_BODY_H

#include "common/msg.h"
#include "proto/arena.h"
#include "proto/gen/psd.pb-c.h"

/* type in psd_msg_type, field of the Envelope, member of psd_msg.u and name of the codec. RESYNC, BYE_ACK
 * and CANCEL have no body of their own and are written out where needed. */
#define PSD_WIRE_BODY_MAP(X)                                                                                 \
    X(HELLO, hello, hello)                                                                                   \
    X(HEARTBEAT, heartbeat, heartbeat)                                                                       \
    X(GROUP_OPEN, group_open, group_open)                                                                    \
    X(GROUP_TOKEN, group_token, group_token)                                                                 \
    X(GROUP_READY, group_ready, group)                                                                       \
    X(GROUP_FAIL, group_fail, abort)                                                                         \
    X(GROUP_CLOSE, group_close, group)                                                                       \
    X(PLAN_OPEN, plan_open, plan_open)                                                                       \
    X(PLAN_NEXT, plan_next, plan)                                                                            \
    X(PLAN_READY, plan_ready, plan)                                                                          \
    X(PLAN_PROGRESS, plan_progress, plan)                                                                    \
    X(PLAN_CLOSE, plan_close, plan)                                                                          \
    X(TABLE_OPEN, table_open, table_open)                                                                    \
    X(TABLE_READY, table_ready, table)                                                                       \
    X(TABLE_PROGRESS, table_progress, table)                                                                 \
    X(TABLE_CLOSE, table_close, table)                                                                       \
    X(BYE, bye, bye)                                                                                         \
    X(WAITING, waiting, waiting)                                                                             \
    X(WELCOME, welcome, welcome)                                                                             \
    X(REFUSE, refuse, refuse)                                                                                \
    X(GROUP_ASK_TOKEN, group_ask_token, group_token)                                                         \
    X(GROUP_OPENED, group_opened, group_opened)                                                              \
    X(GROUP_GO, group_go, group)                                                                             \
    X(ABORT, abort, abort)                                                                                   \
    X(PLAN_STEPS, plan_steps, plan_steps)                                                                    \
    X(PLAN_GO, plan_go, plan)                                                                                \
    X(TABLE_ASSIGN, table_assign, table_open)                                                                \
    X(TABLE_OPENED, table_opened, table_open)                                                                \
    X(TABLE_FREE, table_free, table)                                                                         \
    X(STOP, stop, stop)                                                                                      \
    X(QUERY, query, query)                                                                                   \
    X(REPLY, reply, reply)                                                                                   \
    X(SNAPSHOT_ASK, snapshot_ask, snapshot)                                                                  \
    X(SNAPSHOT, snapshot, snapshot)                                                                          \
    X(INCIDENT, incident, incident)                                                                          \
    X(LOG_ASK, log_ask, query)                                                                               \
    X(LOG, log, reply)                                                                                       \
    X(OPS_ASK, ops_ask, query)                                                                               \
    X(OPS, ops, reply)                                                                                       \
    X(LOST_WORK, lost_work, lost_work)

#define PSD_WIRE_MAGIC   UINT32_C(0x647370) /* the bytes "psd", little-endian */
#define PSD_WIRE_VERSION (PSD_WIRE_MAGIC | (uint32_t)PSD_PROTOCOL_VERSION << 24)
#define PSD_WIRE_PREFIX  5 /* bytes: the tag of field 1 and its value */

#define PSD_MAX_COLUMNS 64 /* of a reply */

/* The second half of decoding: checks the unpacked envelope and fills *msg, whose pointers lead into the
 * arena (and the envelope, which lies there too). *msg is zero before. PSD_ERR_FORMAT with a sentence,
 * PSD_ERR_LIMIT, PSD_ERR_NOMEM. */
psd_status psd_wire_read(const Psdpb__Envelope *envelope, psd_arena *arena, psd_msg *msg, char *why,
                         size_t why_bytes);

#endif
