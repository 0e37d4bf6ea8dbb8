/* lock.h - locks with a rank. In checking builds taking one out of order ends the program. */
#ifndef TA_LOCK_H
#define TA_LOCK_H

#include <pthread.h>
#include <stdatomic.h>

typedef enum ta_rank {
    TA_RANK_NONE = 0,
    TA_RANK_SETUP = 1,
    TA_RANK_PAGES = 2,
    TA_RANK_LEVELING = 3, /* the peaks of a device */
    TA_RANK_ARENA = 4,
    TA_RANK_LOOKUP = 5, /* where an address lies */
    TA_RANK_COUNTING = 6
} ta_rank;

typedef struct ta_lock {
    pthread_mutex_t mutex;
    ta_rank rank;
} ta_lock;

/* One byte, taken by one atomic instruction and dropped by a plain store: an arena's, which
 * is taken for every request. Who finds it taken looks again, and soon sleeps in between. */
typedef struct ta_quick {
    atomic_uchar taken;
} ta_quick;
void ta_quick_wait(ta_quick *lock);

/* Held for a few instructions only. Waited for in the same way: a thread of a real-time
 * policy, which never makes room for others by itself, would keep the holder from going on. */
typedef struct ta_spin {
    atomic_flag taken;
} ta_spin;
void ta_spin_wait(ta_spin *spin);

#ifdef TA_CHECKING
void ta_rank_push(ta_rank rank);
void ta_rank_pop(ta_rank rank);
#else
static inline void ta_rank_push(ta_rank rank) { (void)rank; }
static inline void ta_rank_pop(ta_rank rank) { (void)rank; }
#endif

static inline void ta_lock_init(ta_lock *lock, ta_rank rank)
{
    pthread_mutex_init(&lock->mutex, NULL);
    lock->rank = rank;
}
static inline void ta_lock_destroy(ta_lock *lock) { pthread_mutex_destroy(&lock->mutex); }
static inline void ta_lock_take(ta_lock *lock)
{
    ta_rank_push(lock->rank);
    pthread_mutex_lock(&lock->mutex);
}
static inline void ta_lock_drop(ta_lock *lock)
{
    pthread_mutex_unlock(&lock->mutex);
    ta_rank_pop(lock->rank);
}
/* Without a rank: of arenas that are taken together (count.c). */
static inline void ta_quick_take_plain(ta_quick *lock)
{
    if (__builtin_expect(atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire),
                         0))
        ta_quick_wait(lock);
}
static inline void ta_quick_drop_plain(ta_quick *lock)
{
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
}
static inline void ta_quick_take(ta_quick *lock, ta_rank rank)
{
    ta_rank_push(rank);
    ta_quick_take_plain(lock);
}
static inline void ta_quick_drop(ta_quick *lock, ta_rank rank)
{
    ta_quick_drop_plain(lock);
    ta_rank_pop(rank);
}
static inline void ta_spin_take(ta_spin *spin)
{
    ta_rank_push(TA_RANK_COUNTING);
    if (__builtin_expect(
            atomic_flag_test_and_set_explicit(&spin->taken, memory_order_acquire), 0))
        ta_spin_wait(spin);
}
static inline void ta_spin_drop(ta_spin *spin)
{
    atomic_flag_clear_explicit(&spin->taken, memory_order_release);
    ta_rank_pop(TA_RANK_COUNTING);
}

#endif
