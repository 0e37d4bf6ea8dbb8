/* cudnn_redirect.c - what the real libcudnn finds when it looks for cuBLASLt.
 *
 * Its engine for convolutions of one by one works through cuBLASLt, which it opens by name
 * and which wants a GPU for a handle and a heuristic; without them the engine counts as
 * unsupported, although it is the first choice for such convolutions. So the library's own
 * references to dlsym are bound to a function here, which knows stand-ins for those few and
 * passes every other name on: cuBLASLt's descriptors need no GPU and stay the real ones.
 * Called once, by cudnn_real.c. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cudnn_real.h"

int cublasLtCreate(ta_sc_handle **handle);
int cublasLtDestroy(ta_sc_handle *handle);
int cublasLtMatmulAlgoGetHeuristic(const void *handle, const void *operation,
                                   const void *a, const void *b, const void *c,
                                   const void *d, const void *preference, int wanted,
                                   void *results, int *count);

/* As ours, with the workspace that the kernels chosen on Hopper mostly ask for. */
static int choose(const void *handle, const void *operation, const void *a, const void *b,
                  const void *c, const void *d, const void *preference, int wanted,
                  void *results, int *count)
{
    int result = cublasLtMatmulAlgoGetHeuristic(handle, operation, a, b, c, d, preference,
                                                wanted, results, count);
    uint64_t *words = results;
    if (result == 0 && *count > 0) words[8] = 16;
    return result;
}

static void *find_symbol(void *library, const char *name)
{
    if (strcmp(name, "cublasLtCreate") == 0) return (void *)(uintptr_t)cublasLtCreate;
    if (strcmp(name, "cublasLtDestroy") == 0) return (void *)(uintptr_t)cublasLtDestroy;
    if (strcmp(name, "cublasLtMatmulAlgoGetHeuristic") == 0)
        return (void *)(uintptr_t)choose;
    return dlsym(library, name);
}

/* The library's tables that matter here. */
typedef struct tables {
    const ElfW(Sym) * symbols;
    const char *strings;
    const ElfW(Rela) * calls, *others;
    size_t call_bytes, other_bytes;
} tables;

static tables tables_of(const struct link_map *map)
{
    tables t = {0};
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
        switch (d->d_tag) {
        case DT_SYMTAB:
            t.symbols = (const void *)d->d_un.d_ptr;
            break;
        case DT_STRTAB:
            t.strings = (const void *)d->d_un.d_ptr;
            break;
        case DT_JMPREL:
            t.calls = (const void *)d->d_un.d_ptr;
            break;
        case DT_PLTRELSZ:
            t.call_bytes = d->d_un.d_val;
            break;
        case DT_RELA:
            t.others = (const void *)d->d_un.d_ptr;
            break;
        case DT_RELASZ:
            t.other_bytes = d->d_un.d_val;
            break;
        default:
            break;
        }
    }
    return t;
}

/* Binds the library's references to `name`, in one table of relocations, to `to`. */
static bool bind(const struct link_map *map, const tables *t, const ElfW(Rela) * table,
                 size_t bytes, const char *name, uintptr_t to)
{
    bool bound = false;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; table && i < bytes / sizeof *table; i++) {
        size_t symbol = ELF64_R_SYM(table[i].r_info);
        if (!symbol || strcmp(t->strings + t->symbols[symbol].st_name, name) != 0)
            continue;
        uintptr_t slot = map->l_addr + table[i].r_offset;
        void *start = (void *)(slot & ~(uintptr_t)(page - 1));
        if (mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return false;
        memcpy((void *)slot, &to, sizeof to);
        bound = true;
    }
    return bound;
}

bool ta_sc_redirect_blas(void *library)
{
    struct link_map *map = NULL;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || !map) return false;
    tables t = tables_of(map);
    if (!t.symbols || !t.strings) return false;
    uintptr_t to = (uintptr_t)find_symbol;
    bool calls = bind(map, &t, t.calls, t.call_bytes, "dlsym", to);
    bool others = bind(map, &t, t.others, t.other_bytes, "dlsym", to);
    return calls || others;
}
