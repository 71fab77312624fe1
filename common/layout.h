/* Manifests (the tensors of a model) and layouts (which rank holds which box of each), in the vocabulary of PyTorch's
 * DTensor: a mesh, and per mesh axis Replicate(), Shard(d) or Own(expr). server/LAYOUT.md defines the language. */
#ifndef PSD_COMMON_LAYOUT_H
#define PSD_COMMON_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/psd_types.h"

#define PSD_LAYOUT_AXES   8
#define PSD_LAYOUT_RULES  4096
#define PSD_LAYOUT_RANKS  (1 << 20) /* first_rank and all ranks are below */
#define PSD_MAX_OWN       256       /* bytes of an Own expression, with the NUL */
#define PSD_TENSOR_NAME   1024      /* bytes of a model's tensor name, with the NUL */
#define PSD_MODEL_TENSORS (1 << 24)
#define PSD_MODEL_BYTES   (INT64_C(1) << 60) /* of all tensors together */

typedef struct psd_model_tensor {
    const char *name;
    psd_dtype dtype;
    int32_t ndim; /* 0: a scalar */
    int64_t shape[PSD_MAX_DIMS];
} psd_model_tensor;

/* Value. Names are unique. Owned by whoever read it. */
typedef struct psd_model {
    psd_model_tensor *tensors;
    uint32_t count;
    char *names; /* one block that the tensors' names point into */
    int64_t bytes;
} psd_model;

void psd_model_free(psd_model *model); /* what it holds, not the struct */
int64_t psd_model_tensor_bytes(const psd_model_tensor *tensor);

typedef enum psd_place_kind {
    PSD_PLACE_REPLICATE = 0,
    PSD_PLACE_SHARD = 1,
    PSD_PLACE_OWN = 2,
} psd_place_kind;

/* A placement as a rule writes it. */
typedef struct psd_place_rule {
    psd_place_kind kind;
    int32_t dim;           /* Shard */
    char own[PSD_MAX_OWN]; /* Own: the expression */
} psd_place_rule;

typedef struct psd_layout_rule {
    char *match; /* glob of whole tensor names */
    psd_place_rule place[PSD_LAYOUT_AXES];
} psd_layout_rule;

typedef struct psd_layout_axis {
    char name[PSD_MAX_NAME];
    int32_t size;
    int32_t stride; /* between ranks that differ by 1 in this coordinate */
} psd_layout_axis;

/* Value: a group of ranks as a mesh, and the rules that place tensors on it. Owned by whoever read it. */
typedef struct psd_layout {
    char group[PSD_MAX_NAME];
    int32_t first_rank;
    int32_t ranks;
    int32_t axis_count;
    psd_layout_axis axes[PSD_LAYOUT_AXES];
    psd_layout_rule *rules;
    uint32_t rule_count;
} psd_layout;

void psd_layout_free(psd_layout *layout); /* what it holds, not the struct */
/* Strides and ranks from the axes' sizes; false if there are more than PSD_LAYOUT_RANKS. */
bool psd_layout_finish(psd_layout *layout);
/* Parses "Replicate()", "Shard(1)", "Own(layer/20)". */
bool psd_place_parse(const char *text, psd_place_rule *out, char *why, size_t why_bytes);
bool psd_glob_match(const char *glob, const char *text);

/* How one tensor lies on one axis. `value` is the dimension of a Shard, the owning coordinate of an Own. */
typedef struct psd_place {
    uint8_t kind; /* psd_place_kind */
    int32_t value;
} psd_place;

/* The placement of a tensor by the first rule that matches it: axis_count entries. False: `why` names tensor, rule
 * and group. */
bool psd_layout_place(const psd_layout *layout, const psd_model_tensor *tensor, psd_place *out, char *why,
                      size_t why_bytes);

/* [lo, hi) in each dimension. */
typedef struct psd_box {
    int64_t lo[PSD_MAX_DIMS];
    int64_t hi[PSD_MAX_DIMS];
} psd_box;

/* Chunk i of `length` elements cut into n as torch.chunk cuts: [i*c, (i+1)*c) with c = ceil(length / n), both ends
 * at most `length`. */
void psd_layout_chunk(int64_t length, int32_t n, int32_t i, int64_t *lo, int64_t *hi);
/* What a rank holds of a tensor so placed; false: nothing. */
bool psd_layout_box(const psd_layout *layout, const psd_place *place, const psd_model_tensor *tensor,
                    int32_t rank, psd_box *out);

/* ------------------------------------------------------------------------------------------------- own_expr.c */

/* Own expressions: non-negative decimal integers, the variables layer, expert and n, + - * / % and parentheses with the
 * precedence and left association of C. */
typedef struct psd_own_vars {
    int64_t layer;  /* -1: the tensor's name has none */
    int64_t expert; /* -1: none */
    int64_t n;
} psd_own_vars;

/* Is it well formed? */
bool psd_own_check(const char *text, char *why, size_t why_bytes);
/* Its value, 0 or more. False on a missing variable, division by zero, overflow or an intermediate result below 0. */
bool psd_own_value(const char *text, const psd_own_vars *vars, int64_t *out, char *why, size_t why_bytes);

#endif
