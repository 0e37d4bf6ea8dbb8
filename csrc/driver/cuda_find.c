/* cuda_find.c - finds the CUDA driver.
 *
 * Called by cuda.c and cuda_probe.c; what was found is kept. A symbol of the process comes
 * first, so that a preloaded library answers for the driver, then libcuda.so.1, which is
 * never closed. Finding starts nothing: the driver is started by the first call that needs
 * it, since a process that has started it cannot fork children that use it. Thread-safe. */
#include "cuda.h"
#include "cuda_calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static pthread_once_t found_once = PTHREAD_ONCE_INIT;
static pthread_once_t start_once = PTHREAD_ONCE_INIT;
static ta_cuda_calls calls;
static bool found, started;
static char problem[512];
static atomic_int last_error;

/* A function pointer from dlsym, without a cast that ISO C forbids. */
static bool look_up(void *library, const char *symbol, void *slot, size_t size)
{
    void *address = dlsym(RTLD_DEFAULT, symbol);
    if (address == NULL && library != NULL) address = dlsym(library, symbol);
    memcpy(slot, &address, size);
    return address != NULL;
}

static void find(void)
{
    void *library = NULL;
    if (dlsym(RTLD_DEFAULT, "cuInit") == NULL) {
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            const char *why = dlerror();
            snprintf(problem, sizeof problem, "no CUDA driver: %s",
                     why != NULL ? why : "libcuda.so.1 cannot be loaded");
            return;
        }
    } else {
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    }
#define X(member, function, symbol)                                                      \
    if (!look_up(library, symbol, &calls.member, sizeof calls.member)) {                 \
        snprintf(problem, sizeof problem, "the CUDA driver has no %s: it is too old",    \
                 symbol);                                                                \
        return;                                                                          \
    }
    TA_CUDA_CALLS(X)
#undef X
    found = true;
}

static void start(void)
{
    pthread_once(&found_once, find);
    if (!found) return;
    CUresult result = calls.init(0);
    if (result == CUDA_SUCCESS)
        started = true;
    else
        snprintf(problem, sizeof problem,
                 "the CUDA driver does not start: %s (cuInit: %d)",
                 result == CUDA_ERROR_NO_DEVICE ? "no GPU" : "error", (int)result);
}

ta_cuda_simulated_host *ta_cuda_find_simulated_host(void)
{
    ta_cuda_simulated_host *answer = NULL;
    look_up(NULL, "ta_simcuda_host_memory", &answer, sizeof answer);
    return answer;
}

const ta_cuda_calls *ta_cuda_start(void)
{
    pthread_once(&start_once, start);
    return started ? &calls : NULL;
}

const char *ta_cuda_problem(void)
{
    pthread_once(&found_once, find);
    return problem;
}

int ta_cuda_last_error(void) { return atomic_load(&last_error); }

ta_status ta_cuda_status(CUresult result)
{
    switch (result) {
    case CUDA_SUCCESS:
        return TA_OK;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return TA_OUT_OF_MEMORY;
    case CUDA_ERROR_NOT_READY:
        return TA_NOT_READY;
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        return TA_GONE;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
        atomic_store(&last_error, (int)result);
        return TA_INVALID;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_NO_DEVICE:
        atomic_store(&last_error, (int)result);
        return TA_UNSUPPORTED;
    default:
        atomic_store(&last_error, (int)result);
        return TA_DRIVER;
    }
}

int ta_cuda_attribute(const ta_cuda_calls *cu, CUdevice device, int attribute)
{
    int value = 0;
    if (cu->attribute(&value, (CUdevice_attribute)attribute, device) != CUDA_SUCCESS)
        return 0;
    return value;
}
