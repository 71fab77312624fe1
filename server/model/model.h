/* Manifests, layouts and layout pairs from files (server/LAYOUT.md). Every file is hostile until read: a wrong one is
 * PSD_ERR_FORMAT and a sentence that names the file, the tensor or rule, and what is wrong; nothing is then left. */
#ifndef PSD_SERVER_MODEL_H
#define PSD_SERVER_MODEL_H

#include "common/layout.h"

typedef struct model_why {
    char *text;
    size_t bytes;
} model_why;

/* A manifest, a .safetensors file (its header), or a Hugging Face index of such files beside it: told apart by content.
 */
psd_status model_read(const char *path, psd_model *out, const model_why *why);
/* One layout. */
psd_status model_read_layout(const char *path, psd_layout *out, const model_why *why);

typedef struct model_pair {
    char name[PSD_MAX_NAME];
    char manifest[PSD_MAX_NAME]; /* the model that it was written for; "" if it does not say */
    psd_layout src;
    psd_layout dst;
} model_pair;

psd_status model_read_pair(const char *path, model_pair *out, const model_why *why);
void model_pair_free(model_pair *pair); /* what it holds, not the struct */

#endif
