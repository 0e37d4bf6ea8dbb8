/* find.c - looks symbols up in libraries that are loaded already.
 *
 * Called by throw.c, streams.c and vtable.c, each once a symbol. Thread-safe. */
#include "find.h"

#include <dlfcn.h>
#include <string.h>

int ta_find(const char *library, const char *symbol, void *slot)
{
    void *address = dlsym(RTLD_DEFAULT, symbol);
    if (address == NULL && library != NULL) {
        void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
        if (handle != NULL) {
            address = dlsym(handle, symbol);
            dlclose(handle); /* the reference that RTLD_NOLOAD added */
        }
    }
    memcpy(slot, &address, sizeof address);
    return address != NULL;
}
