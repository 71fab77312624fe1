/* Status texts. */
#ifndef PSD_COMMON_STATUS_H
#define PSD_COMMON_STATUS_H

#include "common/psd_types.h"

/* The name ("PSD_ERR_INVAL") and the sentence of a status; "unknown status" for any other number. */
const char *psd_status_name(psd_status status);
const char *psd_status_sentence(psd_status status);

#endif
