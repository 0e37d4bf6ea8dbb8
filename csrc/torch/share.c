/* share.c - CUDA tensors handed to other processes.
 *
 * torch asks the allocator for a handle of a storage's memory, carries it to another process
 * as bytes, and there asks that process's allocator for an address. Who counts the users of
 * the storage and orders the work by events is torch, as ever. A handle of ours names a
 * socket of the process that has the memory, and the block. The other side connects, is given
 * a file descriptor of each page, and maps them (core/export.c).
 *
 * The socket is one that only processes of the same user on the same machine (the same
 * network namespace) are served on, and only those who know the secret in the handle. A
 * thread of ours serves it, from the first handle on until the process ends. It takes no
 * GIL. Both virtual functions are called from any thread.
 *
 * The second returns a std::shared_ptr, as the C++ rules for x86-64 have it: in memory whose
 * address comes first. Its control block is libstdc++'s. Elsewhere it stays torch's. */
#define _GNU_SOURCE
#include "share.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../core/export.h"
#include "../driver/cuda.h"
#include "cxx.h"
#include "find.h"
#include "gil.h"
#include "process.h"
#include "torch.h"

#define MAGIC "tarena1"
#define SECRET 16
#define AT_ONCE 32 /* descriptors in one message */
#define PATIENCE_SECONDS 30

typedef struct shareable {
    ptrdiff_t offset;
    cxx_string handle;
} shareable;

/* The bytes of a handle. */
typedef struct ticket {
    char magic[8];
    char socket[40]; /* its name, in the abstract namespace */
    unsigned char secret[SECRET];
    char uuid[48]; /* of the GPU */
    uint64_t base, serial, page_bytes;
    uint32_t pages;
    int32_t device, pid;
    uint32_t zero;
} ticket;
typedef struct request {
    unsigned char secret[SECRET];
    uint64_t base, serial;
    uint32_t first, count;
    int32_t device;
    uint32_t zero;
} request;

static void refuse(const char *why)
{
    char text[512];
    snprintf(text, sizeof text,
             "torcharena: a CUDA tensor cannot be shared with another process: %s. "
             "tensor.cpu() can always be sent, and torch.distributed",
             why);
    ta_throw_error(text);
}

/* --- the process that has the memory ------------------------------------------------------ */
static struct {
    int socket;
    char name[40];
    unsigned char secret[SECRET];
    const char *problem; /* NULL: it serves */
} server = {.socket = -1};

static void in_child(void)
{
    if (server.socket >= 0) close(server.socket);
    server.socket = -1;
    server.problem = "a forked child cannot use CUDA";
}

static bool same_user(int connection)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

static bool same_secret(const unsigned char *secret)
{
    unsigned char other = 0;
    for (size_t i = 0; i < SECRET; i++)
        other |= (unsigned char)(secret[i] ^ server.secret[i]);
    return other == 0;
}

static ta_status descriptors(const request *asked, int *fds)
{
    const ta_driver *driver = ta_cuda_driver();
    ta_allocator *allocator = ta_process_allocator();
    uintptr_t saved[2];
    if (asked->count == 0 || asked->count > AT_ONCE) return TA_INVALID;
    ta_status status = driver->enter(driver->self, asked->device, saved);
    if (status != TA_OK) return status;
    status = ta_export_pages(allocator, asked->base, asked->serial, asked->first,
                             asked->count, fds);
    driver->leave(driver->self, asked->device, saved);
    return status;
}

static bool answer(int connection, ta_status status, const int *fds, uint32_t count)
{
    int32_t said = (int32_t)status;
    struct iovec part = {&said, sizeof said};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(AT_ONCE * sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (status == TA_OK) {
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, count * sizeof(int));
    }
    return sendmsg(connection, &message, MSG_NOSIGNAL) == (ssize_t)sizeof said;
}

static void serve_one(int connection)
{
    request asked;
    int fds[AT_ONCE];
    while (recv(connection, &asked, sizeof asked, 0) == (ssize_t)sizeof asked) {
        if (!same_secret(asked.secret)) return;
        const ta_status status = descriptors(&asked, fds);
        const bool heard = answer(connection, status, fds, asked.count);
        for (uint32_t i = 0; status == TA_OK && i < asked.count; i++) close(fds[i]);
        if (!heard || status != TA_OK) return;
    }
}

static void patient(int connection)
{
    const struct timeval most = {.tv_sec = PATIENCE_SECONDS};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
}

static void *serve_connection(void *argument)
{
    const int connection = (int)(intptr_t)argument;
    serve_one(connection);
    close(connection);
    return NULL;
}

/* A detached thread that gets no signals. */
static bool start_thread(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&thread, NULL, body, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) pthread_detach(thread);
    return started;
}

static void *serve(void *unused)
{
    for (;;) {
        const int connection = accept4(server.socket, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            if (errno == EBADF || errno == EINVAL) return unused;
            usleep(10000); /* no descriptor is free: later */
            continue;
        }
        patient(connection);
        /* One who connects and asks nothing must not keep others waiting. */
        if (!same_user(connection) ||
            !start_thread(serve_connection, (void *)(intptr_t)connection))
            close(connection);
    }
}

static socklen_t address_of(const char *name, struct sockaddr_un *address)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    const size_t length = strnlen(name, sizeof server.name - 1);
    memcpy(address->sun_path + 1, name, length); /* the first byte is 0: abstract */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static void start(void)
{
    struct sockaddr_un address;
    uint64_t unlike = 0;
    server.problem = "no secret could be drawn";
    if (getrandom(server.secret, sizeof server.secret, 0) != SECRET) return;
    if (getrandom(&unlike, sizeof unlike, 0) != (ssize_t)sizeof unlike) return;
    snprintf(server.name, sizeof server.name, "torcharena.%d.%016llx", (int)getpid(),
             (unsigned long long)unlike);
    server.problem = "no socket could be opened for it";
    server.socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (server.socket < 0) return;
    const socklen_t size = address_of(server.name, &address);
    if (bind(server.socket, (struct sockaddr *)&address, size) != 0 ||
        listen(server.socket, 64) != 0)
        return;
    pthread_atfork(NULL, NULL, in_child);
    server.problem = "no thread could be started for it";
    if (start_thread(serve, NULL)) server.problem = NULL;
}

static void *(*operator_new)(size_t size);

/* A std::string of these bytes, longer than what it holds by itself. */
static cxx_string string_of(const void *bytes, size_t length)
{
    cxx_string string = {.data = operator_new(length + 1), .length = length};
    string.local.capacity = length;
    memcpy(string.data, bytes, length);
    string.data[length] = '\0';
    return string;
}

/* shareIpcHandle. What is returned is so large that C, too, returns it in memory. */
static shareable share(void *object, void *ptr)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)object;
    ta_allocator *allocator = ta_process_allocator();
    ta_export_info info;
    const char *why = NULL;
    shareable result = {0};
    ticket made = {.magic = MAGIC, .pid = (int32_t)getpid()};
    ta_status status =
        allocator == NULL ? TA_INVALID : ta_export_look(allocator, ptr, &info, &why);
    if (status == TA_OK) {
        pthread_once(&once, start);
        why = server.problem;
    } else if (why == NULL)
        why = status == TA_INVALID ? "it is not in torcharena's memory"
                                   : ta_status_text(status);
    if (why == NULL) { /* tried now, where the error names its cause */
        int fd = -1;
        request first = {.base = info.base, .serial = info.serial, .count = 1};
        first.device = info.device;
        status = descriptors(&first, &fd);
        if (status == TA_OK)
            close(fd);
        else
            why = "the driver does not export memory here";
    }
    if (why != NULL) {
        refuse(why);
        return result;
    }
    ta_cuda_facts facts;
    if (ta_cuda_probe(info.device, &facts) == TA_OK)
        memcpy(made.uuid, facts.uuid, sizeof made.uuid);
    memcpy(made.socket, server.name, sizeof made.socket);
    memcpy(made.secret, server.secret, SECRET);
    made.base = info.base;
    made.serial = info.serial;
    made.page_bytes = info.page_bytes;
    made.pages = info.pages;
    made.device = info.device;
    result.offset = (ptrdiff_t)((uintptr_t)ptr - info.first_page);
    result.handle = string_of(&made, sizeof made);
    return result;
}

/* --- the process that is given it ---------------------------------------------------------- */
#if defined(__x86_64__)
static int8_t (*current_device)(void);

static int connected(const char *name, const char **why)
{
    struct sockaddr_un address;
    const socklen_t size = address_of(name, &address);
    const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connection >= 0 && connect(connection, (struct sockaddr *)&address, size) == 0) {
        patient(connection);
        return connection;
    }
    if (connection >= 0) close(connection);
    *why = "the process that has it is not there any more, or in another container";
    return -1;
}

/* Every descriptor that came with the message, however many parts it has: up to `room` of them
 * in `fds`, or closed with NULL. How many there were. */
static size_t arrived(struct msghdr *message, int *fds, size_t room)
{
    size_t count = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        const size_t some = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < some; i++, count++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            if (fds == NULL)
                close(fd);
            else if (count < room)
                fds[count] = fd;
        }
    }
    return count;
}

/* Descriptors of `count` pages; false with why. */
static bool receive(int connection, const request *asked, int *fds, const char **why)
{
    int32_t said = TA_DRIVER;
    struct iovec part = {&said, sizeof said};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(AT_ONCE * sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.room,
                             .msg_controllen = sizeof control.room};
    *why = "the process that has it did not answer";
    if (send(connection, asked, sizeof *asked, MSG_NOSIGNAL) != (ssize_t)sizeof *asked)
        return false;
    const ssize_t length = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
    if (length < 0) return false;
    const bool whole = length == (ssize_t)sizeof said;
    if (whole && said == TA_OK && (message.msg_flags & MSG_CTRUNC) == 0 &&
        arrived(&message, fds, asked->count) == asked->count)
        return true;
    const bool few = arrived(&message, NULL, 0) < asked->count;
    if (whole && said != TA_OK)
        *why = said == TA_INVALID ? "its memory was freed by the process that had it"
                                  : ta_status_text((ta_status)said);
    else if (whole)
        *why = few ? "too few file descriptors are left: raise `ulimit -n`"
                   : "the process that has it answered with something else";
    return false;
}

static bool fetch_pages(const ticket *t, ta_import *import, const char **why)
{
    const int connection = connected(t->socket, why);
    if (connection < 0) return false;
    bool good = true;
    for (uint32_t done = 0; good && done < t->pages;) {
        int fds[AT_ONCE] = {0};
        request asked = {.base = t->base, .serial = t->serial, .first = done};
        asked.count = t->pages - done < AT_ONCE ? t->pages - done : AT_ONCE;
        asked.device = t->device;
        memcpy(asked.secret, t->secret, SECRET);
        good = receive(connection, &asked, fds, why);
        ta_status status = TA_OK;
        for (uint32_t i = 0; good && i < asked.count; i++) {
            if (status == TA_OK) status = ta_import_page(import, fds[i]);
            close(fds[i]);
        }
        if (good && status != TA_OK) *why = ta_status_text(status);
        good = good && status == TA_OK;
        done += asked.count;
    }
    close(connection);
    return good;
}

static const char *judge(const ticket *t, size_t length, int device)
{
    ta_cuda_facts facts;
    if (length != sizeof *t || memcmp(t->magic, MAGIC, sizeof t->magic) != 0)
        return "the process that sent it does not run torcharena (enable it there too)";
    if (t->uuid[0] != '\0' && ta_cuda_probe(device, &facts) == TA_OK &&
        strncmp(t->uuid, facts.uuid, sizeof t->uuid) != 0)
        return "the GPUs have other numbers here (CUDA_VISIBLE_DEVICES)";
    return NULL;
}

/* NULL with why. */
static ta_import *take(const cxx_string *handle, int device, void **base,
                       const char **why)
{
    ticket t;
    ta_allocator *allocator = ta_process_allocator();
    ta_import *import = NULL;
    memset(&t, 0, sizeof t);
    memcpy(&t, handle->data, handle->length < sizeof t ? handle->length : sizeof t);
    t.socket[sizeof t.socket - 1] = '\0';
    *why = allocator == NULL ? "torcharena is not enabled here"
                             : judge(&t, handle->length, device);
    if (*why != NULL) return NULL;
    ta_status status = ta_import_open(allocator, device, t.page_bytes, t.pages, &import);
    if (status == TA_OK && !fetch_pages(&t, import, why)) {
        ta_import_close(import);
        return NULL;
    }
    if (status == TA_OK) status = ta_import_ready(import, base);
    if (status == TA_OK) return import;
    *why = ta_status_text(status);
    ta_import_close(import);
    return NULL;
}

/* libstdc++'s _Sp_counted_base, and what it counts. */
typedef struct counted {
    void *const *functions;
    int32_t uses, weak;
    ta_import *import;
} counted;

static void nothing(counted *c) { (void)c; }
/* By whatever ends the storage: Python, or autograd. It waits for the devices, whose work may
 * itself wait for what another thread of Python has yet to launch. */
static void dispose(counted *c)
{
    void *thread = ta_gil_drop();
    ta_import_close(c->import);
    ta_gil_take(thread);
}
static void destroy(counted *c) { free(c); }
static void *no_deleter(counted *c, const void *type)
{
    (void)c, (void)type;
    return NULL;
}

static counted *count(ta_import *import)
{
    /* Offset to the top, type, both destructors, dispose, destroy, the deleter. */
    static const void *table[7];
    static atomic_bool filled;
    if (!atomic_load(&filled)) { /* the same words, whoever writes them */
        table[2] = (const void *)(uintptr_t)nothing;
        table[3] = table[5] = (const void *)(uintptr_t)destroy;
        table[4] = (const void *)(uintptr_t)dispose;
        table[6] = (const void *)(uintptr_t)no_deleter;
        atomic_store(&filled, true);
    }
    counted *c = malloc(sizeof *c);
    if (c != NULL) *c = (counted){(void *const *)(table + 2), 1, 1, import};
    return c;
}

typedef struct shared_ptr {
    void *ptr;
    counted *control;
} shared_ptr;

/* getIpcDevPtr. */
static shared_ptr *take_in(shared_ptr *result, void *object, const cxx_string *handle)
{
    (void)object;
    const char *why = NULL;
    void *base = NULL;
    *result = (shared_ptr){NULL, NULL};
    const int device = (uint8_t)current_device(); /* never negative: it throws instead */
    void *thread = ta_gil_drop();
    ta_import *import = take(handle, device, &base, &why);
    ta_gil_take(thread);
    counted *control = import != NULL ? count(import) : NULL;
    if (control == NULL) {
        if (import != NULL) ta_import_close(import);
        refuse(import != NULL ? ta_status_text(TA_NO_HOST_MEMORY) : why);
        return result;
    }
    *result = (shared_ptr){base, control};
    return result;
}
#endif

const void *ta_torch_share_function(void)
{
    return ta_find("libstdc++.so.6", "_Znwm", &operator_new)
               ? (const void *)(uintptr_t)share
               : NULL;
}

const void *ta_torch_take_function(void)
{
#if defined(__x86_64__)
    if (ta_find("libc10_cuda.so", "_ZN3c104cuda14current_deviceEv", &current_device))
        return (const void *)(uintptr_t)take_in;
#endif
    return NULL;
}
