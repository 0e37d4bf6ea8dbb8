/* profile.h - memory events of torch's profiler. */
#ifndef TA_TORCH_PROFILE_H
#define TA_TORCH_PROFILE_H

#include "../include/torcharena.h"

/* A profiler begins, or ends: counted. TA_UNSUPPORTED: this torch has not what it needs;
 * TA_INVALID: there is no allocator, or too many observe it. */
ta_status ta_torch_profile(bool begins);

#endif
