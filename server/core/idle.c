#include "server/core/state.h"

bool psd_core_idle(const psd_core *core)
{
    return core->reserved == 0; /* only jobs that have ended give their ranks back */
}
