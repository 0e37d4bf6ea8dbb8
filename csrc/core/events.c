/* events.c - the observers. Adding and removing is thread-safe; events are told under the
 * lock of the arena (or device) they happen in. */
#include "events.h"

void ta_tell(ta_allocator *a, const ta_event_info *event)
{
    for (int i = 0; i < TA_OBSERVERS; i++) {
        ta_observer *o =
            atomic_load_explicit(&a->observer[i].observer, memory_order_acquire);
        if (o) o(a->observer[i].context, event);
    }
}

ta_status ta_add_observer(ta_allocator *a, ta_observer *observer, void *context)
{
    if (ta_forked(a)) return TA_FORKED;
    if (!observer) return TA_INVALID;
    ta_status status = TA_INVALID;
    ta_lock_take(&a->setup);
    for (int i = 0; i < TA_OBSERVERS && status; i++)
        if (!atomic_load(&a->observer[i].observer)) {
            a->observer[i].context = context;
            atomic_store_explicit(&a->observer[i].observer, observer,
                                  memory_order_release);
            atomic_fetch_add(&a->observers, 1);
            status = TA_OK;
        }
    ta_lock_drop(&a->setup);
    return status;
}

/* Whoever was inside a locked section when the observer went has left it after this. */
static void pass_all_locks(ta_allocator *a)
{
    for (int i = 0; i < TA_MAX_DEVICES; i++) {
        ta_device *d = &a->device[i];
        if (!atomic_load(&d->used)) continue;
        ta_lock_take(&d->pages);
        for (ta_arena *arena = d->arenas; arena; arena = arena->next) {
            ta_arena_lock(arena);
            ta_arena_unlock(arena);
        }
        ta_lock_drop(&d->pages);
    }
}

ta_status ta_remove_observer(ta_allocator *a, ta_observer *observer, void *context)
{
    if (ta_forked(a)) return TA_FORKED;
    if (!observer) return TA_INVALID;
    ta_status status = TA_INVALID;
    ta_lock_take(&a->setup);
    for (int i = 0; i < TA_OBSERVERS && status; i++)
        if (atomic_load(&a->observer[i].observer) == observer &&
            a->observer[i].context == context) {
            atomic_store(&a->observer[i].observer, NULL);
            atomic_fetch_sub(&a->observers, 1);
            pass_all_locks(a);
            status = TA_OK;
        }
    ta_lock_drop(&a->setup);
    return status;
}

ta_status ta_mark(ta_allocator *a, const char *text)
{
    if (ta_forked(a)) return TA_FORKED;
    ta_lock_take(&a->setup);
    if (ta_observed(a)) ta_tell(a, &(ta_event_info){.kind = TA_EVENT_MARK, .text = text});
    ta_lock_drop(&a->setup);
    return TA_OK;
}
