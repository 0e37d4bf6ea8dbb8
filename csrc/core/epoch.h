/* epoch.h - which streams have passed what. Every function needs the device's `pages` lock
 * unless it says otherwise. */
#ifndef TA_EPOCH_H
#define TA_EPOCH_H

#include "types.h"

/* What tells streams apart. The per-thread default stream, handle 2, is another stream in
 * every thread: work of one thread is not ordered after another's, so they share no memory,
 * and only its own thread can mark it. Keys of threads are odd, which handles are not, and
 * never given twice: a new thread's stream is not ordered after that of one that ended. */
#define TA_PER_THREAD 2u
uintptr_t ta_thread_key(void); /* needs no lock */
static inline uintptr_t ta_stream_key(ta_stream stream)
{
    uintptr_t value = (uintptr_t)stream;
    return __builtin_expect(value == TA_PER_THREAD, 0) ? ta_thread_key() : value;
}
/* The device's state of the thread's stream, made at its first sight, when it is asked how
 * long that lasts: a function of others that may throw. So no lock may be held, nothing may
 * be entered, and nothing be there to undo. Takes `pages`. NULL: no host memory. */
ta_stream_state *ta_stream_meet(ta_device *device, ta_stream stream);
/* The stream can be named now. Asks as ta_stream_meet does, so the same holds. */
bool ta_stream_exists(ta_device *device, ta_stream stream);
/* The longest wait below the cap, where a new page can be made as well: what is waited for
 * may itself wait for what this thread has yet to launch. */
#define TA_PATIENCE_US 2e6
/* Looks which marks the stream has passed since. */
void ta_stream_poll(ta_device *device, ta_stream_state *stream);
/* Marks the stream's present point, unless a mark is newer than `tick` already.
 * TA_NOT_READY while the stream is being captured, TA_UNSUPPORTED where it is another
 * thread's, or does not last and has too many marks. The stream must exist. */
ta_status ta_stream_mark(ta_device *device, ta_stream_state *stream, uint64_t tick);
/* The same at a free of that tick, and notes it where it cannot be done on a stream that
 * does not last. `exists`: the stream can be named. */
void ta_stream_mark_free(ta_device *device, ta_stream_state *stream, uint64_t tick,
                         bool exists);
/* The same at any later time, where the free could not. Streams that do not last may be gone
 * by then and are not named: TA_UNSUPPORTED, and only the device can be waited for. */
ta_status ta_stream_remark(ta_device *device, ta_stream_state *stream, uint64_t tick);
/* Something can be waited for now that has the stream pass what was freed at `tick`. */
bool ta_stream_waitable(ta_device *device, ta_stream_state *stream, uint64_t tick,
                        double most_us);
/* Waits, with `pages` dropped meanwhile, until the stream has passed what was freed at
 * `tick`. TA_NOT_READY where that cannot be waited for now, or not so shortly: then the
 * stream is slow, and no short wait is tried before it has passed that point. Less than
 * TA_FOREVER_US never means a wait for the device: work there may itself wait for what this
 * thread has yet to launch. */
ta_status ta_stream_wait(ta_device *device, ta_stream_state *stream, uint64_t tick,
                         double most_us);
/* Waits, so long at most for each, until every known stream has passed this point; false
 * where one does not or cannot be known to. */
bool ta_streams_pass(ta_device *device, double most_us);
/* Nothing is queued on any known stream, as far as events can tell: looks, and does not wait
 * for what is. */
bool ta_streams_empty(ta_device *device);
/* Waits for the whole device, with `pages` dropped meanwhile; TA_NOT_READY while a capture
 * is open. Everything freed before has passed then. */
ta_status ta_device_wait(ta_device *device);
/* Waits for every device in use, one after the other, whatever the streams: takes each one's
 * `pages`, so none may be held. TA_NOT_READY while a capture is open on one. */
ta_status ta_devices_wait(ta_allocator *allocator);
/* Blocks of the arena that were freed while recorded streams used them: those that are no
 * longer used become free; how many. Takes the arena's lock. */
size_t ta_pending_poll(ta_device *device, ta_arena *arena);
/* Waits for the arena's oldest pending block of those freed before tick `before`.
 * TA_NOT_READY where there is none, or it cannot be waited for. */
ta_status ta_pending_wait(ta_device *device, ta_arena *arena, uint64_t before);
/* Waits for each of the arena's pending blocks, so long at most; what has passed is free. */
void ta_pending_sweep(ta_device *device, ta_arena *arena, double most_us);
void ta_epoch_destroy(ta_device *device, bool reachable);

#endif
