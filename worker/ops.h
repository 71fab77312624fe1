/* Operations between their public functions and the backend: one call's arguments, checked and started.
 *
 *     op_call call = OP_CALL("psd_all_reduce", PSD_OP_ALL_REDUCE);
 *     psd_status status = op_open(&call);
 *     if (status == PSD_OK)
 *         status = ... checks, filling call.op ...;
 *     return op_close(&call, status);
 *
 * op_close starts the operation if the status is PSD_OK, waits for it unless the call is asynchronous, and
 * undoes op_open in any case. */
#ifndef PSD_OPS_H
#define PSD_OPS_H

#include "worker/context.h"

typedef struct op_call {
    const char *file;
    int line;
    const char *verb; /* the public function, for sentences */
    psd_ctx *ctx;
    psd_group handle;
    const psd_opts *opts; /* NULL: defaults */
    bool async;
    psd_work *work;      /* async: where the handle goes */
    psd_recv_info *info; /* blocking recv: may be NULL */
    int32_t item;        /* of a batch: the entry being checked, for sentences; -1: none */
    /* from op_open on */
    psd_group_slot *group; /* acquired; NULL: op_open failed */
    psd_time_ns now;
    psd_op op;
    /* set by the checks, for the record */
    const psd_tensor *named; /* the tensor that reports name; NULL: none */
    int32_t peer;            /* or root; -1 */
    int32_t tag;
} op_call;

/* In a function with the parameters file, line, ctx, group and opts of psd.h. */
#define OP_CALL(verb_, kind_)                                                                                \
    {                                                                                                        \
        .file = file, .line = line, .verb = verb_, .ctx = ctx, .handle = group, .opts = opts,                \
        .op = {.kind = kind_}, .item = -1, .peer = -1                                                        \
    }
/* Also `work`. */
#define OP_CALL_ASYNC(verb_, kind_)                                                                          \
    {                                                                                                        \
        .file = file, .line = line, .verb = verb_, .ctx = ctx, .handle = group, .opts = opts,                \
        .op = {.kind = kind_}, .item = -1, .peer = -1, .async = true, .work = work                           \
    }

/* The call's error, "file:line: verb: <sentence>"; gives `status` back. */
#define op_error(call, status, ...) psd_error_pass(status, op_error_write(call, __VA_ARGS__))
int op_error_write(const op_call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* psd_iall_reduce and psd_wait within another public function, whose name is the sentences' `verb`. `parts` is -1, or
 * PSD_ROOT_PARTS of what the ranks must agree on besides. */
psd_status op_iall_reduce(const char *verb, PSD_AT, psd_ctx *ctx, psd_group group, const psd_tensor *in,
                          psd_tensor *out, psd_redop redop, int32_t parts, const psd_opts *opts,
                          psd_work *work);
psd_status op_wait(const char *verb, PSD_AT, psd_ctx *ctx, psd_work work, int64_t timeout_ms); /* wait.c */

psd_status op_open(op_call *call);
psd_status op_close(op_call *call, psd_status status);

/* Checks (op_check.c). `param` is the parameter's name. */
psd_status op_check_tensor(const op_call *call, const char *param, const psd_tensor *tensor, int64_t *count);
psd_status op_check_rank(const op_call *call, const char *param, int32_t rank); /* a rank of the group */
psd_status op_check_tag(const op_call *call, int32_t tag, bool receives);
psd_status op_check_redop(const op_call *call, psd_redop redop, psd_dtype dtype);
psd_status op_check_same_dtype(const op_call *call, const psd_tensor *in, const psd_tensor *out);
/* `have` is the count of tensor `param`; it must be times * c. */
psd_status op_check_count(const op_call *call, const char *param, int64_t have, int64_t times, int64_t c);
/* in and out are apart; or, in place, in + in_offset bytes == out + out_offset bytes. */
psd_status op_check_overlap(const op_call *call, const psd_tensor *in, const psd_tensor *out);
psd_status op_check_in_place(const op_call *call, const psd_tensor *in, int64_t in_offset,
                             const psd_tensor *out, int64_t out_offset);

#endif
