#include "common/status.h"

const char *psd_status_name(psd_status status)
{
    switch (status) {
#define PSD_X(name, value, text)                                                                             \
    case name:                                                                                               \
        return #name;
        PSD_STATUS_MAP(PSD_X)
#undef PSD_X
    }
    return "unknown status";
}

const char *psd_status_sentence(psd_status status)
{
    switch (status) {
#define PSD_X(name, value, text)                                                                             \
    case name:                                                                                               \
        return text;
        PSD_STATUS_MAP(PSD_X)
#undef PSD_X
    }
    return "unknown status";
}
