/* events.h - telling observers. Called with an arena's or a device's lock held. */
#ifndef TA_EVENTS_H
#define TA_EVENTS_H

#include "types.h"

void ta_tell(ta_allocator *allocator, const ta_event_info *event);

static inline bool ta_observed(const ta_allocator *allocator, ta_event_kind kind)
{
    return atomic_load_explicit(&allocator->heard, memory_order_acquire) >> kind & 1u;
}
static inline void ta_emit(const ta_arena *arena, ta_event_kind kind,
                           const ta_block *block, ta_stream stream)
{
    ta_allocator *allocator = arena->device->allocator;
    if (ta_observed(allocator, kind))
        ta_tell(allocator, &(ta_event_info){.kind = kind,
                                            .device = arena->device->ordinal,
                                            .stream = stream,
                                            .addr = block->addr,
                                            .size = block->requested,
                                            .serial = block->serial,
                                            .pooled = atomic_load_explicit(
                                                          &arena->pool,
                                                          memory_order_relaxed) != NULL});
}
static inline void ta_emit_pages(const ta_arena *arena, ta_event_kind kind,
                                 const ta_chunk *chunk, uint32_t low, uint32_t high)
{
    ta_allocator *allocator = arena->device->allocator;
    if (ta_observed(allocator, kind))
        ta_tell(allocator,
                &(ta_event_info){.kind = kind,
                                 .device = arena->device->ordinal,
                                 .stream = arena->stream->handle,
                                 .addr = chunk->addr + ((uint64_t)low << chunk->shift),
                                 .size = (uint64_t)(high - low) << chunk->shift});
}

#endif
