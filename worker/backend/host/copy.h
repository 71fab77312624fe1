/* Copying out of rings. */
#ifndef PSD_HOST_COPY_H
#define PSD_HOST_COPY_H

#include <stddef.h>

/* memcpy for a destination that will not fit the cache anyway: its lines are written without being read
 * first. */
void copy_beyond_cache(void *to, const void *from, size_t bytes);

#endif
