/* file.c - opens a ledger that may be trusted, or makes one.
 *
 * Called by ledger.c and read.c; keeps nothing, needs no lock. A file appears whole or
 * not at all: it is written under a name of its own and then renamed, which fails where
 * another process was first. No link is followed, no process-wide umask is touched. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAME_BYTES 160
#define NO_REPLACE 1u /* RENAME_NOREPLACE */

#define REFUSE(why, ...) (snprintf(why, TA_SHARE_WHY, __VA_ARGS__), TA_INVALID)

bool ta_ledger_pread(int fd, void *to, size_t size, off_t at)
{
    for (size_t got = 0; got < size;) {
        ssize_t n = pread(fd, (char *)to + got, size - got, at + (off_t)got);
        if (n == 0 || (n < 0 && errno != EINTR)) return false;
        if (n > 0) got += (size_t)n;
    }
    return true;
}

bool ta_ledger_pwrite(int fd, const void *from, size_t size, off_t at)
{
    for (size_t put = 0; put < size;) {
        ssize_t n = pwrite(fd, (const char *)from + put, size - put, at + (off_t)put);
        if (n == 0 || (n < 0 && errno != EINTR)) return false;
        if (n > 0) put += (size_t)n;
    }
    return true;
}

bool ta_ledger_locked(int fd, off_t byte)
{
    /* A failure is taken for a lock: then nobody's bytes are lost. */
    return ta_byte_locked(fd, byte) != 0;
}

/* --- trust ------------------------------------------------------------------------------ */
static ta_status open_directory(const char *path, int *fd, struct stat *about, char *why)
{
    *fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0)
        return REFUSE(why, "%s: %s", path,
                      errno == ELOOP || errno == ENOTDIR ? "is a link, or no directory"
                                                         : strerror(errno));
    if (fstat(*fd, about) != 0) return REFUSE(why, "%s: %s", path, strerror(errno));
    bool roots = about->st_uid == 0;
    if (!roots && about->st_uid != geteuid())
        return REFUSE(why, "%s belongs to uid %u, neither root nor us", path,
                      about->st_uid);
    if (about->st_mode & S_IWOTH)
        return REFUSE(why, "%s is writable by everybody (mode %03o)", path,
                      about->st_mode & 0777);
    if (!roots && about->st_mode & S_IWGRP)
        return REFUSE(why, "%s is ours, but writable by its group (mode %03o)", path,
                      about->st_mode & 0777);
    return TA_OK;
}

static ta_status sound(int fd, const char *name, const char *gpu,
                       const struct stat *directory, char *why)
{
    struct stat about;
    ta_ledger_head head;
    if (fstat(fd, &about) != 0) return REFUSE(why, "%s: %s", name, strerror(errno));
    if (!S_ISREG(about.st_mode)) return REFUSE(why, "%s is no regular file", name);
    if (about.st_nlink != 1)
        return REFUSE(why, "%s has %ju names (hard links)", name,
                      (uintmax_t)about.st_nlink);
    bool shared = directory->st_uid == 0 && about.st_gid == directory->st_gid;
    if (about.st_uid != 0 && about.st_uid != geteuid() && !shared)
        return REFUSE(why, "%s belongs to uid %u, neither root nor us", name,
                      about.st_uid);
    if (about.st_mode & S_IRWXO)
        return REFUSE(why, "%s is open to everybody (mode %03o)", name,
                      about.st_mode & 0777);
    if (!ta_ledger_pread(fd, &head, sizeof head, 0) || head.magic != TA_LEDGER_MAGIC)
        return REFUSE(why, "%s is no ledger", name);
    if (head.layout != TA_LEDGER_LAYOUT || head.slots != TA_LEDGER_SLOTS ||
        about.st_size != (off_t)sizeof(ta_ledger_file))
        return REFUSE(why,
                      "%s has layout %u, %u slots and %jd bytes; this version of "
                      "torcharena has layout %u, %u and %zu",
                      name, head.layout, head.slots, (intmax_t)about.st_size,
                      TA_LEDGER_LAYOUT, TA_LEDGER_SLOTS, sizeof(ta_ledger_file));
    if (strncmp(head.gpu, gpu, sizeof head.gpu) != 0)
        return REFUSE(why, "%s is the ledger of another GPU", name);
    return TA_OK;
}

/* --- making ------------------------------------------------------------------------------ */
/* TA_OK too where another process made it meanwhile. */
static ta_status make(int directory, const struct stat *about, const char *name,
                      const char *gpu, char *why)
{
    ta_ledger_file *blank = calloc(1, sizeof *blank);
    char own[NAME_BYTES + 32];
    if (!blank) return TA_NO_HOST_MEMORY;
    blank->head = (ta_ledger_head){
        .magic = TA_LEDGER_MAGIC, .layout = TA_LEDGER_LAYOUT, .slots = TA_LEDGER_SLOTS};
    snprintf(blank->head.gpu, sizeof blank->head.gpu, "%s", gpu);
    uint64_t salt = 0; /* process numbers repeat, in other pid namespaces too */
    if (getrandom(&salt, sizeof salt, GRND_NONBLOCK) != (ssize_t)sizeof salt)
        salt = (uint64_t)(uintptr_t)blank ^ (uint64_t)getpid();
    snprintf(own, sizeof own, ".%s.%016jx", name, (uintmax_t)salt);
    int fd =
        openat(directory, own, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && ta_ledger_pwrite(fd, blank, sizeof *blank, 0);
    /* Where root's directory has a group, its members share the ledger. */
    bool group = about->st_uid == 0 && about->st_mode & S_IWGRP;
    if (ok && group) ok = fchown(fd, (uid_t)-1, about->st_gid) == 0;
    if (ok) ok = fchmod(fd, group ? 0660 : 0600) == 0; /* whatever the umask took */
    int error = errno;
    if (ok && syscall(SYS_renameat2, directory, own, directory, name, NO_REPLACE) != 0) {
        error = errno;
        ok = error == EEXIST;
    }
    if (fd >= 0) {
        unlinkat(directory, own, 0);
        close(fd);
    }
    free(blank);
    return ok ? TA_OK : REFUSE(why, "%s cannot be made: %s", name, strerror(error));
}

ta_status ta_ledger_open(const char *directory, const char *gpu, bool make_it, int *fd,
                         bool *shared, char why[TA_SHARE_WHY])
{
    char name[NAME_BYTES];
    struct stat about = {0};
    int place = -1;
    *fd = -1;
    *why = 0;
    if (!*gpu || strlen(gpu) >= TA_SHARE_TEXT || strchr(gpu, '/') || *gpu == '.')
        return REFUSE(why, "%.80s is no UUID of a GPU", gpu);
    snprintf(name, sizeof name, "%s.ledger", gpu);
    ta_status status = open_directory(directory, &place, &about, why);
    for (int tries = 0; !status && *fd < 0 && tries < 3; tries++) {
        int how = (make_it ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
        *fd = openat(place, name, how);
        if (*fd < 0 && errno == ENOENT) {
            if (!make_it) break;
            status = make(place, &about, name, gpu, why);
        } else if (*fd < 0)
            status = REFUSE(why, "%s: %s", name,
                            errno == ELOOP ? "is a link" : strerror(errno));
    }
    if (!status && *fd < 0 && make_it) status = REFUSE(why, "%s comes and goes", name);
    if (!status && *fd >= 0) status = sound(*fd, name, gpu, &about, why);
    if (shared) *shared = about.st_uid == 0 && about.st_mode & S_IWGRP;
    if (place >= 0) close(place);
    if (status && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return status;
}
