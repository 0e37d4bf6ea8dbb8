/* byte_lock.h - locks on single bytes of a file, which belong to the open file: the kernel
 * drops them when the last process that has it open closes it or dies. Bytes need not exist.
 * Threads of one process that share the open file do not keep each other out. */
#ifndef TA_BYTE_LOCK_H
#define TA_BYTE_LOCK_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

static inline struct flock ta_byte_flock(off_t byte, short type)
{
    return (struct flock){
        .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
}

/* Takes (F_WRLCK, or F_RDLCK beside others) or drops (F_UNLCK) the lock; without `wait` false
 * where another has it. */
static inline bool ta_byte_lock(int fd, off_t byte, short type, bool wait)
{
    struct flock lock = ta_byte_flock(byte, type);
    int result;
    do result = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock);
    while (result != 0 && errno == EINTR);
    return result == 0;
}

/* 1: another open file holds a lock on the byte; 0: none does; -1: that cannot be known. */
static inline int ta_byte_locked(int fd, off_t byte)
{
    struct flock lock = ta_byte_flock(byte, F_WRLCK);
    if (fcntl(fd, F_OFD_GETLK, &lock) != 0) return -1;
    return lock.l_type != F_UNLCK;
}

#endif
