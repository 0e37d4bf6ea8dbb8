/* modes.c - whether PyTorch runs under a dispatch mode: the rehearsal's own does not count.
 *
 * While a dispatch mode is on, PyTorch's operators take roads that a tensor subclass could
 * follow: autograd adds gradients out of place, some formulas make masks anew. On a GPU the
 * mode that computes values in a rehearsal is not there, so these would be other
 * allocations. PyTorch's libraries ask one function of libc10: here is a definition that
 * stands before it. Only libtorch_cpu, where the operators are, hears the other answer; the
 * binding to Python calls modes by it, ours too. A program's own modes count as ever.
 * Thread-safe. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dl_iterate_phdr */
#endif
#include <link.h>
#include <pthread.h>
#include <string.h>

#include "simcuda.h"

static const char *const c10[] = {"libc10.so", NULL};
static int ours; /* modes of the rehearsal's at the bottom of each thread's stack */
static uintptr_t from, to; /* libtorch_cpu's code; empty where it was not found */
static bool (*enabled)(void);
static int64_t (*length)(void);

/* `count`: 0 or 1. For the values mode, when it is entered and left. */
TA_EXPORT void ta_simcuda_own_modes(int count)
{
    __atomic_store_n(&ours, count, __ATOMIC_RELAXED);
}

static int look(struct dl_phdr_info *object, size_t size, void *unused)
{
    (void)size, (void)unused;
    const char *slash = strrchr(object->dlpi_name, '/');
    if (!slash || strcmp(slash, "/libtorch_cpu.so") != 0) return 0;
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        from = object->dlpi_addr + part->p_vaddr;
        to = from + part->p_memsz;
    }
    return 1;
}
static void find(void)
{
    *(void **)&enabled = ta_sc_real(c10, "_ZN3c104impl21dispatch_mode_enabledEv");
    *(void **)&length = ta_sc_real(c10, "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv");
    if (length) dl_iterate_phdr(look, NULL);
}

/* c10::impl::dispatch_mode_enabled(); the other one is TorchDispatchModeTLS::stack_len(). */
bool _ZN3c104impl21dispatch_mode_enabledEv(void);
TA_EXPORT bool _ZN3c104impl21dispatch_mode_enabledEv(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    if (!enabled || !enabled()) return false;
    int count = __atomic_load_n(&ours, __ATOMIC_RELAXED);
    uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    return !count || caller < from || caller >= to || length() > count;
}
