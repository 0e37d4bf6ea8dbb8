/* vtable.c - replaces functions of torch's allocator object that have no hook.
 *
 * Called from Python, once, after torch was given our hooks. The object's table of virtual
 * functions is copied, the entries that hold torch's exported functions are exchanged, and
 * the object is pointed at the copy; torch's own table stays as it was. Only functions with
 * a plain C signature are exchanged, and only where everything is found as expected;
 * otherwise torch's stays, and ta_torch_status says so. Thread-safe.
 *
 * cacheInfo: how large a workspace cudnn.benchmark may try. torch's throws.
 * memcpyAsync: copies between devices. torch's ignores that the devices may not reach each
 * other. enablePeerAccess stays torch's: it lets devices reach plain memory, and the arena
 * sets access on its own pages for every device that can.
 * setCheckpointPoolState: what lives in a graph's pool (checkpoint.c). torch's throws.
 * shareIpcHandle, getIpcDevPtr: tensors for other processes (share.c). torch's throw. */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "find.h"
#include "process.h"
#include "share.h"
#include "status.h"
#include "torch.h"

#define CLASS_NAME "5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator"
#define DEVICE_TO_DEVICE 3 /* cudaMemcpyDeviceToDevice */

typedef int copy_function(void *to, const void *from, size_t count, int kind,
                          void *stream);
typedef int copy_peer_function(void *to, int to_device, const void *from, int from_device,
                               size_t count, void *stream);
static copy_function *copy;
static copy_peer_function *copy_peer;

static const char *status[TA_TORCH_ITEMS] = {
    [TA_TORCH_CACHE_INFO] = "not installed yet",
    [TA_TORCH_MEMCPY] = "not installed yet",
    [TA_TORCH_PEER_ACCESS] = "ok (torch's own)",
    [TA_TORCH_CHECKPOINT] = "not installed yet",
    [TA_TORCH_SHARING] = "not installed yet",
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const char *ta_vtable_status(int item)
{
    pthread_mutex_lock(&lock);
    const char *text = status[item];
    pthread_mutex_unlock(&lock);
    return text;
}

/* The largest request that could be met now: what is idle, and what may still be backed. */
static void cache_info(void *object, int8_t device, size_t *largest)
{
    (void)object;
    ta_allocator *allocator = ta_process_allocator();
    if (allocator == NULL || largest == NULL) return;
    ta_stats stats;
    ta_get_stats(allocator, device, &stats);
    uint64_t available = 0;
    uint64_t total = 0;
    if (ta_device_memory(allocator, device, &available, &total) != TA_OK) available = 0;
    ta_limit_source source = TA_LIMIT_NONE;
    uint64_t limit = ta_limit(allocator, device, &source);
    uint64_t reserved = stats.reserved.current;
    uint64_t headroom = limit > reserved ? limit - reserved : 0;
    uint64_t room = (available < headroom ? available : headroom) + stats.idle;
    if (room > *largest) *largest = (size_t)room;
}

/* Returns a cudaError_t. */
static int memcpy_async(void *object, void *to, int to_device, const void *from,
                        int from_device, size_t count, void *stream, bool reachable)
{
    (void)object;
    if (reachable || to_device == from_device)
        return copy(to, from, count, DEVICE_TO_DEVICE, stream);
    return copy_peer(to, to_device, from, from_device, count, stream);
}

static bool find_copies(void)
{
    static const char *const runtimes[] = {"libcudart.so.13", "libcudart.so.12"};
    for (size_t i = 0; i < sizeof runtimes / sizeof runtimes[0]; i++) {
        if (ta_find(runtimes[i], "cudaMemcpyAsync", &copy) &&
            ta_find(runtimes[i], "cudaMemcpyPeerAsync", &copy_peer))
            return true;
    }
    return false;
}

/* The class's vtable: how many words it has, the two before its functions included; 0 where
 * the object is of another class. */
static size_t vtable_words(void *const *functions)
{
    void **symbol = NULL;
    if (!ta_find("libtorch_cuda.so", "_ZTVN" CLASS_NAME "E", &symbol)) return 0;
    if (functions != symbol + 2) return 0;
    Dl_info info;
    void *entry = NULL;
    if (dladdr1(symbol, &info, &entry, RTLD_DL_SYMENT) == 0 || entry == NULL) return 0;
    const ElfW(Sym) *sym = entry;
    if (info.dli_saddr != (void *)symbol || sym->st_size % sizeof(void *) != 0) return 0;
    return sym->st_size / sizeof(void *);
}

/* Exchanges one function that must be in the table exactly once. */
static const char *exchange(void **words, size_t count, const char *symbol,
                            const void *replacement)
{
    void *original = NULL;
    if (!ta_find("libtorch_cuda.so", symbol, &original))
        return "torch does not export it; torch's own stays";
    size_t place = 0;
    size_t times = 0;
    for (size_t i = 2; i < count; i++) {
        if (words[i] != original) continue;
        place = i;
        times++;
    }
    if (times != 1) return "not in the allocator's table of functions; torch's own stays";
    words[place] = (void *)(uintptr_t)replacement;
    return "ok";
}

/* Both or none: a process that gives must be able to take. */
static void exchange_sharing(void **words, size_t count)
{
    const void *give = ta_torch_share_function();
    const void *take = ta_torch_take_function();
    const char *said = "torch or this processor lacks what it needs; torch's own stays";
    if (give != NULL && take != NULL)
        said = exchange(words, count, "_ZN" CLASS_NAME "14shareIpcHandleEPv", give);
    if (give != NULL && take != NULL && strcmp(said, "ok") == 0)
        said = exchange(words, count,
                        "_ZN" CLASS_NAME "12getIpcDevPtrENSt7__cxx1112basic_string"
                        "IcSt11char_traitsIcESaIcEEE",
                        take);
    status[TA_TORCH_SHARING] = said;
}

static void fail_all(const char *why)
{
    status[TA_TORCH_CACHE_INFO] = status[TA_TORCH_MEMCPY] = status[TA_TORCH_CHECKPOINT] =
        status[TA_TORCH_SHARING] = why;
}

static void install(void)
{
    void ***object = NULL;
    void *holder = NULL;
    if (!ta_find("libc10_cuda.so", "_ZN3c104cuda20CUDACachingAllocator9allocatorE",
                 &holder)) {
        fail_all("torch does not export its allocator");
        return;
    }
    memcpy(&object, holder, sizeof object); /* a std::atomic of a pointer is one */
    size_t count = object != NULL ? vtable_words(*object) : 0;
    void **words = count > 2 ? malloc(count * sizeof *words) : NULL;
    if (words == NULL) {
        fail_all("torch's allocator is not a pluggable one, or looks unlike one");
        return;
    }
    memcpy(words, *object - 2, count * sizeof *words);
    status[TA_TORCH_CACHE_INFO] =
        exchange(words, count, "_ZN" CLASS_NAME "9cacheInfoEaPm",
                 (const void *)(uintptr_t)cache_info);
    status[TA_TORCH_MEMCPY] =
        find_copies()
            ? exchange(words, count,
                       "_ZN" CLASS_NAME "11memcpyAsyncEPviPKvimP11CUstream_stb",
                       (const void *)(uintptr_t)memcpy_async)
            : "no CUDA runtime library with cudaMemcpyPeerAsync; torch's own stays";
    const void *checkpoint = ta_torch_checkpoint_function();
    status[TA_TORCH_CHECKPOINT] =
        checkpoint != NULL
            ? exchange(words, count,
                       "_ZN" CLASS_NAME "22setCheckpointPoolStateEaSt10shared_ptr"
                       "IN3c104cuda20CUDACachingAllocator14AllocatorStateEE",
                       checkpoint)
            : "torch does not export its allocate(); CUDA graph trees do without";
    exchange_sharing(words, count);
    *object = words + 2; /* lives as long as the object: for ever */
}

void ta_vtable_install(void)
{
    static bool installed;
    pthread_mutex_lock(&lock);
    if (!installed) {
        install();
        installed = strcmp(status[TA_TORCH_CACHE_INFO], "ok") == 0;
    }
    pthread_mutex_unlock(&lock);
}
