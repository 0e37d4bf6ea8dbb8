/* missing.c - what PyTorch imports and nobody here defines.
 *
 * imports.h lists every function that PyTorch's libraries take from NVIDIA's, made by
 * generate.py. Each gets a weak definition here, which any other file's replaces: so nothing
 * falls through to the real library. It names itself once on stderr and returns that
 * library's error status. Thread-safe. */
#include "imports.h"
#include "simcuda.h"

#define X(name, failure)                                                                 \
    TA_WEAK int64_t name(void)                                                           \
    {                                                                                    \
        static char said;                                                                \
        if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED)) ta_sc_report(#name);       \
        return failure;                                                                  \
    }
TA_SC_IMPORTS(X)
