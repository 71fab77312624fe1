/* The device of a context: which one, and whether memory is its. */
#ifndef PSD_NCCL_DEVICE_H
#define PSD_NCCL_DEVICE_H

#include "worker/backend/backend.h"
#include "worker/backend/nccl/libs.h"

#define DEVICE_BUS_ID 16 /* bytes of a PCI bus id with its NUL, as NCCL compares them: 0000:65:00.0 */

typedef struct device {
    const cudart_api *cuda;
    int index;
    char bus_id[DEVICE_BUS_ID];
} device;

/* How many devices the driver shows. Makes no context on any. */
psd_status device_count(const cudart_api *cuda, int *out, char *why, size_t why_bytes);

/* The device of PSD_DEVICE, else of the local rank modulo the devices. */
psd_status device_choose(const cudart_api *cuda, const psd_backend_config *config, device *out, char *why,
                         size_t why_bytes);

/* The current device is the calling thread's own and may be any. device_enter makes this one current and gives what to
 * hand to device_leave. */
int device_enter(const device *d);
void device_leave(const device *d, int before);

/* PSD_OK, or what the memory is instead of this device's. */
psd_status device_owns(const device *d, const void *data, char *why, size_t why_bytes);

#endif
