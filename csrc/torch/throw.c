/* throw.c - raises torch's C++ exceptions from C.
 *
 * Called by the hooks, from any thread, with or without the GIL, with no lock held. An
 * exception passes through the hooks' frames (this library is compiled with -fexceptions)
 * into torch, which turns it into a Python exception.
 *
 * The objects are built as torch's own code would build them on x86-64 and AArch64 Linux:
 * a std::string is a pointer, a length and 16 bytes that are either the text or the
 * capacity; an argument of a class with a destructor goes by the address of a temporary.
 * c10::OutOfMemoryError adds nothing to c10::Error but its type, so an Error is constructed
 * and given the other's vtable, whose first entry is the destructor. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "cxx.h"
#include "find.h"
#include "torch.h"

typedef struct source_location {
    const char *function;
    const char *file;
    uint32_t line;
} source_location;

#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define ERROR_ROOM 1024 /* c10::Error takes 128 bytes in torch 2.7 to 2.14 */

static struct {
    void *(*allocate_exception)(size_t size);
    void (*free_exception)(void *object);
    void (*throw_it)(void *object, void *type, void (*destructor)(void *));
    void *(*operator_new)(size_t size);
    void (*operator_delete)(void *memory);
    void (*construct)(void *object, source_location location, cxx_string *text);
    void *type;
    void **vtable;
    void (*check_fail)(const char *function, const char *file, uint32_t line,
                       const char *text);
    const char *missing; /* for out of memory; NULL: nothing */
} cxx;

static void find_all(void)
{
    static const char runtime[] = "libstdc++.so.6";
    cxx.missing = NULL;
    ta_find("libc10.so", "_ZN3c106detail14torchCheckFailEPKcS2_jS2_", &cxx.check_fail);
#define NEED(library, symbol, slot)                                                      \
    if (!ta_find(library, symbol, &(slot))) {                                            \
        cxx.missing =                                                                    \
            "no " symbol ": out of memory is a RuntimeError with the same text";         \
        return;                                                                          \
    }
    NEED(runtime, "__cxa_allocate_exception", cxx.allocate_exception)
    NEED(runtime, "__cxa_free_exception", cxx.free_exception)
    NEED(runtime, "__cxa_throw", cxx.throw_it)
    NEED(runtime, "_Znwm", cxx.operator_new)
    NEED(runtime, "_ZdlPv", cxx.operator_delete)
    NEED("libc10.so", "_ZN3c105ErrorC1ENS_14SourceLocationE" STRING, cxx.construct)
    /* The class has a key function, and so its vtable in libc10.so, from torch 2.12 or so
     * on; before, libraries that throw it have one each. */
    if (!ta_find("libc10.so", "_ZTVN3c1016OutOfMemoryErrorE", &cxx.vtable))
        NEED("libc10_cuda.so", "_ZTVN3c1016OutOfMemoryErrorE", cxx.vtable)
    if (!ta_find("libc10.so", "_ZTIN3c1016OutOfMemoryErrorE", &cxx.type))
        NEED("libc10_cuda.so", "_ZTIN3c1016OutOfMemoryErrorE", cxx.type)
#undef NEED
}

/* Looked for anew until torch is there: the library may be loaded before it. Once all is
 * found no lock is taken: a forked child, where another thread may have held it, gets its
 * error. */
static bool ready(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static atomic_bool complete;
    if (atomic_load_explicit(&complete, memory_order_acquire)) return true;
    pthread_mutex_lock(&lock);
    if (!atomic_load_explicit(&complete, memory_order_relaxed)) {
        find_all();
        atomic_store_explicit(&complete, cxx.missing == NULL && cxx.check_fail != NULL,
                              memory_order_release);
    }
    bool found = cxx.missing == NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

const char *ta_throw_status(void)
{
    ready();
    return cxx.missing != NULL ? cxx.missing : "ok";
}

void ta_throw_error(const char *text)
{
    ready();
    if (cxx.check_fail != NULL) cxx.check_fail("alloc", "torcharena", 0, text);
}

void ta_throw_out_of_memory(const char *text)
{
    if (!ready()) {
        ta_throw_error(text);
        return;
    }
    cxx_string string = {.length = strlen(text)};
    void *object = cxx.allocate_exception(ERROR_ROOM);
    memset(object, 0, ERROR_ROOM);
    if (string.length < sizeof string.local.text) {
        string.data = string.local.text;
    } else {
        string.data = cxx.operator_new(string.length + 1);
        string.local.capacity = string.length;
    }
    memcpy(string.data, text, string.length + 1);
    source_location where = {.function = "alloc", .file = "torcharena", .line = 0};
    cxx.construct(object, where, &string);
    /* The text was moved out, which leaves the temporary empty, or copied. */
    if (string.data != string.local.text) cxx.operator_delete(string.data);
    /* Behind the offset to the top and the type come the functions. */
    void **functions = cxx.vtable + 2;
    memcpy(object, &functions, sizeof functions);
    void (*destructor)(void *);
    memcpy(&destructor, &functions[0], sizeof destructor);
    cxx.throw_it(object, cxx.type, destructor);
}

void ta_test_throw_out_of_memory(void)
{
    ta_throw_out_of_memory("CUDA out of memory. Tried to allocate 20.00 MiB. (a test)");
}

void ta_test_throw_error(void) { ta_throw_error("torcharena: an error (a test)"); }
