/* What the readers of files share. */
#ifndef PSD_SERVER_MODEL_PARTS_H
#define PSD_SERVER_MODEL_PARTS_H

#include <jansson.h>

#include "server/model/model.h"

/* "path: sentence"; gives `status` back. */
psd_status model_fail(const model_why *why, psd_status status, const char *path, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The whole file, with a NUL behind it; the caller frees it. */
psd_status model_load_file(const char *path, char **out, size_t *bytes, const model_why *why);
/* An object; duplicate keys are refused. */
psd_status model_parse(const char *path, const char *text, size_t bytes, json_t **out, const model_why *why);

/* A model under construction. */
typedef struct model_builder {
    const char *path; /* for sentences */
    const model_why *why;
    psd_model model;
    uint64_t tensor_capacity;
    size_t *name_at; /* where each tensor's name is in names, which moves while it grows */
    size_t name_bytes;
    size_t name_capacity;
} model_builder;

/* Checks everything about the tensor but that its name is new. */
psd_status model_add(model_builder *b, const char *name, size_t name_bytes, const json_t *dtype,
                     const json_t *shape);
/* Checks that names are unique and sorts nothing; on success the model is the caller's. The builder is used up. */
psd_status model_finish(model_builder *b, psd_status status, psd_model *out);

/* Adds the tensors of a safetensors file's header. */
psd_status model_add_safetensors(model_builder *b, const char *path);

#endif
