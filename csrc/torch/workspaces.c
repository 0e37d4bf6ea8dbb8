/* workspaces.c - finds the memory that torch keeps for cuBLAS, one block a handle and stream.
 *
 * No tensor has it, so nothing in Python can name it; but torch keeps the blocks in two maps
 * (one for cuBLAS, one for cuBLASLt), and exports functions that return them. A map's layout
 * is libstdc++'s ABI, a red-black tree; what torch puts into it is the caller's to know.
 * Called by the Python binding, where somebody looks at a report. Thread-safe where torch's
 * own maps are: they have a lock since torch 2.10. */
#define _POSIX_C_SOURCE 200809L
#include "workspaces.h"

#include <pthread.h>

#include "find.h"

typedef struct node node;
struct node {
    int colour;
    node *parent, *left, *right;
};

/* std::map: an empty comparison, the root's parent with the first and last, the count. */
typedef struct map {
    void *compare;
    node header; /* parent: the root; left: the first */
    size_t count;
} map;

typedef struct locked_map {
    map map;
    pthread_rwlock_t lock;
} locked_map;

/* A handle and a stream, then the pointer that the DataPtr begins with. */
typedef struct entry {
    node node;
    const void *key[2];
    const void *data;
} entry;

static node *after(node *n)
{
    if (n->right) {
        for (n = n->right; n->left;) n = n->left;
        return n;
    }
    node *up = n->parent;
    while (n == up->right) {
        n = up;
        up = up->parent;
    }
    return up;
}

static size_t read_map(map *m, const void **addrs, size_t capacity)
{
    size_t found = 0, seen = 0;
    for (node *n = m->header.left; seen < m->count && n != &m->header;
         n = after(n), seen++) {
        const entry *e = (const entry *)(const void *)n;
        if (e->data != NULL && found++ < capacity) addrs[found - 1] = e->data;
    }
    return found;
}

static size_t of(const char *symbol, bool locked, const void **addrs, size_t capacity)
{
    void *(*get)(void) = NULL;
    if (!ta_find("libtorch_cuda.so", symbol, &get)) return 0;
    locked_map *m = get();
    if (m == NULL || (locked && pthread_rwlock_tryrdlock(&m->lock) != 0)) return 0;
    size_t found = read_map(&m->map, addrs, capacity);
    if (locked) pthread_rwlock_unlock(&m->lock);
    return found;
}

size_t ta_torch_workspaces(bool locked, const void **addrs, size_t capacity)
{
    size_t found =
        of("_ZN2at4cuda33cublas_handle_stream_to_workspaceEv", locked, addrs, capacity);
    size_t kept = found < capacity ? found : capacity;
    return found + of("_ZN2at4cuda35cublaslt_handle_stream_to_workspaceEv", locked,
                      addrs + kept, capacity - kept);
}
