/* status.c - says what was found of torch, for `doctor`. Thread-safe. */
#include "status.h"

#include "torch.h"

static const char *const names[TA_TORCH_ITEMS] = {
    [TA_TORCH_THROW] = "out_of_memory_error",
    [TA_TORCH_STREAMS] = "stream_owner",
    [TA_TORCH_CACHE_INFO] = "cacheInfo",
    [TA_TORCH_MEMCPY] = "memcpyAsync",
    [TA_TORCH_PEER_ACCESS] = "enablePeerAccess",
    [TA_TORCH_CHECKPOINT] = "setCheckpointPoolState",
    [TA_TORCH_SHARING] = "shareIpcHandle",
};

const char *ta_torch_item_name(ta_torch_item item) { return names[item]; }

const char *ta_torch_status(ta_torch_item item)
{
    switch (item) {
    case TA_TORCH_THROW:
        return ta_throw_status();
    case TA_TORCH_STREAMS:
        return ta_streams_status();
    default:
        return ta_vtable_status((int)item);
    }
}
