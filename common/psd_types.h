/* The types that psd.h and the coordinator share: statuses, dtypes, reductions, operation kinds.
 * Installed beside psd.h. The numeric values are part of the wire protocol and of dump files: append only. */
#ifndef PSD_TYPES_H
#define PSD_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* code, value, text. Errors come in ranges by what must be rebuilt after them:
 * -1..-19 the call (fix it and call again), -20..-39 the peer or link, -40..-59 the group (destroy it, make a
 * new one), -60..-79 the process (finalize the context, start again). */
#define PSD_STATUS_MAP(X)                                                                                    \
    X(PSD_OK, 0, "ok")                                                                                       \
    X(PSD_INPROGRESS, 1, "started, not finished: poll it")                                                   \
    X(PSD_AGAIN, 2, "nothing was started: try again")                                                        \
    X(PSD_ERR_INVAL, -1, "invalid argument")                                                                 \
    X(PSD_ERR_NOMEM, -2, "out of memory")                                                                    \
    X(PSD_ERR_TIMEOUT, -3, "timed out waiting")                                                              \
    X(PSD_ERR_UNSUPPORTED, -4, "not supported by this backend")                                              \
    X(PSD_ERR_STALE, -5, "handle was destroyed or never existed")                                            \
    X(PSD_ERR_NOT_FOUND, -6, "not found")                                                                    \
    X(PSD_ERR_EXISTS, -7, "already exists")                                                                  \
    X(PSD_ERR_LIMIT, -8, "over a limit")                                                                     \
    X(PSD_ERR_FORMAT, -9, "malformed input")                                                                 \
    X(PSD_ERR_PEER_FAILED, -20, "a peer failed")                                                             \
    X(PSD_ERR_LINK, -21, "a data link broke")                                                                \
    X(PSD_ERR_UNREACHABLE, -22, "a peer cannot be reached")                                                  \
    X(PSD_ERR_MISMATCH, -40, "ranks disagree on an operation")                                               \
    X(PSD_ERR_ABORTED, -41, "the group was aborted")                                                         \
    X(PSD_ERR_DEADLINE, -42, "an operation's own deadline passed; its group is broken")                      \
    X(PSD_ERR_REFUSED, -60, "the coordinator refused")                                                       \
    X(PSD_ERR_NO_COORDINATOR, -61, "the coordinator cannot be reached")                                      \
    X(PSD_ERR_PROTOCOL, -62, "protocol version or message not understood")                                   \
    X(PSD_ERR_IO, -63, "system call failed")                                                                 \
    X(PSD_ERR_STOPPED, -64, "the job was stopped")                                                           \
    X(PSD_ERR_INTERNAL, -65, "internal error, please report it")                                             \
    X(PSD_ERR_BACKEND, -66, "the data backend cannot be used here")

typedef enum psd_status {
#define PSD_X(name, value, text) name = value,
    PSD_STATUS_MAP(PSD_X)
#undef PSD_X
} psd_status;

/* code, value, name, bytes per element, may be reduced */
#define PSD_DTYPE_MAP(X)                                                                                     \
    X(PSD_I8, 1, "i8", 1, 1)                                                                                 \
    X(PSD_U8, 2, "u8", 1, 1)                                                                                 \
    X(PSD_I16, 3, "i16", 2, 0)                                                                               \
    X(PSD_U16, 4, "u16", 2, 0)                                                                               \
    X(PSD_I32, 5, "i32", 4, 1)                                                                               \
    X(PSD_U32, 6, "u32", 4, 1)                                                                               \
    X(PSD_I64, 7, "i64", 8, 1)                                                                               \
    X(PSD_U64, 8, "u64", 8, 1)                                                                               \
    X(PSD_BOOL, 9, "bool", 1, 0)                                                                             \
    X(PSD_F16, 10, "f16", 2, 1)                                                                              \
    X(PSD_BF16, 11, "bf16", 2, 1)                                                                            \
    X(PSD_F32, 12, "f32", 4, 1)                                                                              \
    X(PSD_F64, 13, "f64", 8, 1)                                                                              \
    X(PSD_F8E4M3, 14, "f8e4m3", 1, 0)                                                                        \
    X(PSD_F8E5M2, 15, "f8e5m2", 1, 0)

typedef enum psd_dtype {
#define PSD_X(name, value, text, size, reduces) name = value,
    PSD_DTYPE_MAP(PSD_X)
#undef PSD_X
} psd_dtype;

/* code, value, name. avg is the sum divided by the number of ranks (integers: truncated toward zero).
 * The bit operations are for integers only. */
#define PSD_REDOP_MAP(X)                                                                                     \
    X(PSD_SUM, 1, "sum")                                                                                     \
    X(PSD_PROD, 2, "prod")                                                                                   \
    X(PSD_MIN, 3, "min")                                                                                     \
    X(PSD_MAX, 4, "max")                                                                                     \
    X(PSD_AVG, 5, "avg")                                                                                     \
    X(PSD_BAND, 6, "band")                                                                                   \
    X(PSD_BOR, 7, "bor")                                                                                     \
    X(PSD_BXOR, 8, "bxor")

typedef enum psd_redop {
#define PSD_X(name, value, text) name = value,
    PSD_REDOP_MAP(PSD_X)
#undef PSD_X
} psd_redop;

/* Operation kinds, as records, headers and reports name them. */
#define PSD_OP_MAP(X)                                                                                        \
    X(PSD_OP_SEND, 1, "send")                                                                                \
    X(PSD_OP_RECV, 2, "recv")                                                                                \
    X(PSD_OP_BATCH, 3, "batch")                                                                              \
    X(PSD_OP_BROADCAST, 4, "broadcast")                                                                      \
    X(PSD_OP_ALL_REDUCE, 5, "all_reduce")                                                                    \
    X(PSD_OP_REDUCE, 6, "reduce")                                                                            \
    X(PSD_OP_SCATTER, 7, "scatter")                                                                          \
    X(PSD_OP_GATHER, 8, "gather")                                                                            \
    X(PSD_OP_ALL_GATHER, 9, "all_gather")                                                                    \
    X(PSD_OP_REDUCE_SCATTER, 10, "reduce_scatter")                                                           \
    X(PSD_OP_ALL_TO_ALL, 11, "all_to_all")                                                                   \
    X(PSD_OP_ALL_TO_ALL_V, 12, "all_to_all_v")                                                               \
    X(PSD_OP_BARRIER, 13, "barrier")                                                                         \
    X(PSD_OP_GROUP_NEW, 14, "group_new")                                                                     \
    X(PSD_OP_GROUP_SPLIT, 15, "group_split")                                                                 \
    X(PSD_OP_GROUP_DUP, 16, "group_dup")

typedef enum psd_op_kind {
#define PSD_X(name, value, text) name = value,
    PSD_OP_MAP(PSD_X)
#undef PSD_X
} psd_op_kind;

#define PSD_MAX_DIMS 8
#define PSD_MAX_NAME 64 /* job, worker, role, tensor, table names: bytes with the NUL */

#ifdef __cplusplus
}
#endif
#endif
