/* events.c - the observers. Adding and removing is thread-safe; events are told under the
 * lock of the arena (or device) they happen in. */
#include "events.h"

void ta_tell(ta_allocator *a, const ta_event_info *event)
{
    const int end = atomic_load_explicit(&a->observer_end, memory_order_acquire);
    for (int i = 0; i < end; i++) {
        ta_observer *o =
            atomic_load_explicit(&a->observer[i].observer, memory_order_acquire);
        const unsigned kinds =
            atomic_load_explicit(&a->observer[i].kinds, memory_order_relaxed);
        if (o && kinds >> event->kind & 1u) o(a->observer[i].context, event);
    }
}

/* With `setup` held, after a change. */
static void count_observers(ta_allocator *a)
{
    unsigned heard = 0;
    int end = 0;
    for (int i = 0; i < TA_OBSERVERS; i++)
        if (atomic_load(&a->observer[i].observer)) {
            heard |= atomic_load(&a->observer[i].kinds);
            end = i + 1;
        }
    atomic_store(&a->observer_end, end);
    atomic_store_explicit(&a->heard, heard, memory_order_release);
}

ta_status ta_add_observer(ta_allocator *a, ta_observer *observer, void *context)
{
    return ta_add_observer_of(a, observer, context, TA_EVENTS_ALL);
}

ta_status ta_add_observer_of(ta_allocator *a, ta_observer *observer, void *context,
                             unsigned kinds)
{
    if (ta_forked(a)) return TA_FORKED;
    if (!observer) return TA_INVALID;
    ta_status status = TA_INVALID;
    ta_lock_take(&a->setup);
    for (int i = 0; i < TA_OBSERVERS && status; i++)
        if (!atomic_load(&a->observer[i].observer)) {
            a->observer[i].context = context;
            atomic_store(&a->observer[i].kinds, kinds);
            atomic_store_explicit(&a->observer[i].observer, observer,
                                  memory_order_release);
            count_observers(a);
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
            count_observers(a);
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
    if (ta_observed(a, TA_EVENT_MARK))
        ta_tell(a, &(ta_event_info){.kind = TA_EVENT_MARK, .text = text});
    ta_lock_drop(&a->setup);
    return TA_OK;
}
