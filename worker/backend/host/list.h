/* The lists that all backends use. */
#include "worker/backend/list.h"
