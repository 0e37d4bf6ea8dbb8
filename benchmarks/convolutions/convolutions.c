/* convolutions.c - what a program asks of cuDNN's backend interface, and what it answers.
 *
 * Preloaded by benchmarks.convolutions, which reads what is written. Every call is passed
 * on to the next library that has it and then put down as a line; calls that cuDNN makes of
 * itself are not. Descriptors go by their addresses, in order of the calls. Lines:
 *
 *   C TYPE ADDRESS                                    created
 *   S ADDRESS NAME TYPE STATUS VALUES                 an attribute set
 *   G ADDRESS NAME TYPE STATUS VALUES                 an attribute got
 *   F ADDRESS STATUS                                  finalized
 *   X ADDRESS STATUS                                  a plan executed
 *   D ADDRESS                                         destroyed
 *
 * Thread-safe. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { VARIANT_PACK = 16, PACK_FIRST = 1000, PACK_LAST = 1099 };
enum { TYPE_HANDLE = 0, TYPE_VOID = 6, TYPE_DESCRIPTOR = 15, TYPE_CHAR = 24 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static FILE *out;
static _Thread_local int depth;

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found) return found;
    void *library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL;
}

/* The file of this process, locked; NULL where nothing is to be written. */
static FILE *begin(void)
{
    const char *where = getenv("CONVOLUTIONS_LOG");
    if (depth || !where) return NULL;
    pthread_mutex_lock(&mutex);
    if (!out) {
        char path[4096];
        snprintf(path, sizeof path, "%s.%d", where, (int)getpid());
        out = fopen(path, "a");
    }
    if (!out) pthread_mutex_unlock(&mutex);
    return out;
}
static void end(FILE *file)
{
    putc('\n', file);
    pthread_mutex_unlock(&mutex);
}

static size_t width(int type)
{
    switch (type) {
    case TYPE_HANDLE:
    case TYPE_VOID:
    case TYPE_DESCRIPTOR:
    case 3: /* int64 */
    case 5: /* double */
        return 8;
    case 2: /* boolean */
    case TYPE_CHAR:
        return 1;
    default:
        return type == 26 ? 16 : 4;
    }
}

static void put_values(FILE *file, int type, int64_t count, const void *values)
{
    if (count > 4096) count = 4096;
    for (int64_t i = 0; i < count && values; i++) {
        const char *at = (const char *)values + (size_t)i * width(type);
        uint64_t number = 0;
        if (type == 4) { /* float */
            float f;
            memcpy(&f, at, sizeof f);
            fprintf(file, " %g", (double)f);
        } else if (type == 5) {
            double d;
            memcpy(&d, at, sizeof d);
            fprintf(file, " %g", d);
        } else {
            memcpy(&number, at, width(type) < 8 ? width(type) : 8);
            fprintf(file, type == TYPE_DESCRIPTOR ? " %" PRIx64 : " %" PRId64, number);
        }
    }
}

EXPORT int cudnnBackendCreateDescriptor(int type, void **descriptor)
{
    static int (*real)(int, void **);
    if (!real) *(void **)&real = next("cudnnBackendCreateDescriptor");
    depth++;
    int status = real(type, descriptor);
    depth--;
    FILE *file = status == 0 && type != VARIANT_PACK ? begin() : NULL;
    if (file) {
        fprintf(file, "C %d %" PRIxPTR, type, (uintptr_t)*descriptor);
        end(file);
    }
    return status;
}

EXPORT int cudnnBackendDestroyDescriptor(void *descriptor)
{
    static int (*real)(void *);
    if (!real) *(void **)&real = next("cudnnBackendDestroyDescriptor");
    FILE *file = begin();
    if (file) {
        fprintf(file, "D %" PRIxPTR, (uintptr_t)descriptor);
        end(file);
    }
    depth++;
    int status = real(descriptor);
    depth--;
    return status;
}

static void put(char kind, const void *descriptor, int name, int type, int status,
                int64_t count, const void *values)
{
    FILE *file = name < PACK_FIRST || name > PACK_LAST ? begin() : NULL;
    if (!file) return;
    fprintf(file, "%c %" PRIxPTR " %d %d %d", kind, (uintptr_t)descriptor, name, type,
            status);
    put_values(file, type, status == 0 ? count : 0, values);
    end(file);
}

EXPORT int cudnnBackendSetAttribute(void *descriptor, int name, int type, int64_t count,
                                    const void *values)
{
    static int (*real)(void *, int, int, int64_t, const void *);
    if (!real) *(void **)&real = next("cudnnBackendSetAttribute");
    depth++;
    int status = real(descriptor, name, type, count, values);
    depth--;
    put('S', descriptor, name, type, status, count, values);
    return status;
}

EXPORT int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t wanted,
                                    int64_t *count, void *values)
{
    static int (*real)(void *, int, int, int64_t, int64_t *, void *);
    if (!real) *(void **)&real = next("cudnnBackendGetAttribute");
    int64_t given = 0;
    depth++;
    int status = real(descriptor, name, type, wanted, &given, values);
    depth--;
    if (count) *count = given;
    put('G', descriptor, name, type, status, given < wanted ? given : wanted, values);
    return status;
}

EXPORT int cudnnBackendFinalize(void *descriptor)
{
    static int (*real)(void *);
    if (!real) *(void **)&real = next("cudnnBackendFinalize");
    depth++;
    int status = real(descriptor);
    depth--;
    FILE *file = begin();
    if (file) {
        fprintf(file, "F %" PRIxPTR " %d", (uintptr_t)descriptor, status);
        end(file);
    }
    return status;
}

EXPORT int cudnnBackendExecute(void *handle, void *plan, void *pack)
{
    static int (*real)(void *, void *, void *);
    if (!real) *(void **)&real = next("cudnnBackendExecute");
    depth++;
    int status = real(handle, plan, pack);
    depth--;
    FILE *file = begin();
    if (file) {
        fprintf(file, "X %" PRIxPTR " %d", (uintptr_t)plan, status);
        end(file);
    }
    return status;
}
