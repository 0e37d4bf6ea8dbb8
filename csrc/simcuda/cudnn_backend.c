/* cudnn_backend.c - cuDNN's backend interface: descriptors, plans, execution.
 *
 * Convolutions and fused attention of PyTorch go through it. A descriptor remembers what was
 * set; a heuristic finds one engine; a plan needs no workspace; executing queues work.
 * Descriptors are counted, since others may refer to one that its maker has destroyed.
 * Thread-safe as cuDNN is: one descriptor, one thread. */
#include <stdlib.h>
#include <string.h>

#include "cudnn.h"

enum { TYPE_DESCRIPTOR = 15, TYPE_FRACTION = 26 };
enum { /* cudnnBackendAttributeName_t */
    HEURISTIC_GRAPH = 201,
    HEURISTIC_RESULTS = 202,
    CONFIG_ENGINE = 300,
    CONFIG_WORKSPACE = 303,
    CONFIG_SHARED = 304,
    PLAN_CONFIG = 401,
    PLAN_WORKSPACE = 402,
    PLAN_JSON = 405,
    GRAPH_ENGINES = 802,
    ENGINE_GRAPH = 1300,
    ENGINE_INDEX = 1301
};
enum { ENGINE = 2 }; /* of cudnnBackendDescriptorType_t */

typedef struct attribute {
    struct attribute *next;
    int name, type;
    int64_t count;
    void *data;
} attribute;

/* Lives while holders > 0. */
typedef struct descriptor {
    int type;
    int holders;
    attribute *attributes;
} descriptor;

static size_t width(int type) {
    /* by cudnnBackendAttributeType_t; an enum is 4 bytes */
    static const unsigned char widths[] = {8, 4, 1, 8, 4, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4,
                                           8, 4, 4, 4, 4, 4, 4, 4, 4, 1, 4, 16};
    return type >= 0 && type <= TYPE_FRACTION ? widths[type] : 4;
}

static descriptor *make(int type) {
    descriptor *d = calloc(1, sizeof *d);
    if (d) *d = (descriptor){.type = type, .holders = 1};
    return d;
}

static void drop(descriptor *d);

static void clear(attribute *a) {
    for (int64_t i = 0; a->type == TYPE_DESCRIPTOR && i < a->count; i++)
        drop(((descriptor **)a->data)[i]);
    free(a->data);
    a->data = NULL;
    a->count = 0;
}

static void drop(descriptor *d) {
    if (!d || __atomic_sub_fetch(&d->holders, 1, __ATOMIC_ACQ_REL)) return;
    for (attribute *a = d->attributes, *next; a; a = next) {
        next = a->next;
        clear(a);
        free(a);
    }
    free(d);
}

static attribute *find(const descriptor *d, int name) {
    attribute *a = d->attributes;
    while (a && a->name != name) a = a->next;
    return a;
}

static int set(descriptor *d, int name, int type, int64_t count, const void *values) {
    attribute *a = find(d, name);
    size_t bytes = (size_t)count * width(type);
    void *data = malloc(bytes ? bytes : 1);
    if (!data) return DNN_NO_MEMORY;
    if (bytes) memcpy(data, values, bytes);
    for (int64_t i = 0; type == TYPE_DESCRIPTOR && i < count; i++) {
        descriptor *held = ((descriptor **)data)[i];
        if (held) __atomic_add_fetch(&held->holders, 1, __ATOMIC_RELAXED);
    }
    if (a) {
        clear(a);
    } else {
        a = calloc(1, sizeof *a);
        if (!a) {
            free(data);
            return DNN_NO_MEMORY;
        }
        a->next = d->attributes;
        d->attributes = a;
    }
    a->name = name;
    a->type = type;
    a->count = count;
    a->data = data;
    return DNN_OK;
}

/* Makes `to` say what `from` says. */
static int copy(descriptor *to, const descriptor *from) {
    int result = DNN_OK;
    for (const attribute *a = from->attributes; a && result == DNN_OK; a = a->next)
        result = set(to, a->name, a->type, a->count, a->data);
    return result;
}

TA_EXPORT int cudnnBackendCreateDescriptor(int type, descriptor **d) {
    *d = make(type);
    return *d ? DNN_OK : DNN_NO_MEMORY;
}
TA_EXPORT int cudnnBackendDestroyDescriptor(descriptor *d) {
    drop(d);
    return DNN_OK;
}
TA_EXPORT int cudnnBackendInitialize(descriptor *d) { return d ? DNN_OK : DNN_BAD; }
TA_EXPORT int cudnnBackendFinalize(descriptor *d) { return d ? DNN_OK : DNN_BAD; }
TA_EXPORT int cudnnBackendSetAttribute(descriptor *d, int name, int type, int64_t count,
                                       const void *values) {
    if (!d || count < 0 || (count && !values)) return DNN_BAD;
    return set(d, name, type, count, values);
}

/* The one engine that a heuristic found, as a configuration. */
static int fill_config(const descriptor *heuristic, descriptor *config) {
    descriptor *engine = make(ENGINE);
    if (!engine) return DNN_NO_MEMORY;
    const attribute *graph = find(heuristic, HEURISTIC_GRAPH);
    int result = graph ? set(engine, ENGINE_GRAPH, graph->type, graph->count, graph->data)
                       : DNN_OK;
    if (result == DNN_OK) result = set(config, CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, &engine);
    drop(engine);
    return result;
}

TA_EXPORT int cudnnBackendGetAttribute(const descriptor *d, int name, int type,
                                       int64_t wanted, int64_t *count, void *values) {
    static const char json[] = "{\"engine\": \"simulated\"}";
    int64_t number = 0;
    if (!d) return DNN_BAD;
    switch (name) {
    case HEURISTIC_RESULTS:
        if (count) *count = 1;
        return wanted > 0 && values ? fill_config(d, *(descriptor **)values) : DNN_OK;
    case CONFIG_ENGINE:
    case PLAN_CONFIG: {
        const attribute *a = find(d, name);
        if (count) *count = a ? 1 : 0;
        return a && wanted > 0 && values ? copy(*(descriptor **)values, *(descriptor **)a->data)
                                         : DNN_OK;
    }
    case GRAPH_ENGINES:
    case CONFIG_WORKSPACE:
    case CONFIG_SHARED:
    case PLAN_WORKSPACE:
        if (count) *count = 1;
        number = name == GRAPH_ENGINES;
        if (wanted > 0 && values) memcpy(values, &number, width(type));
        return DNN_OK;
    case PLAN_JSON:
        if (count) *count = (int64_t)sizeof json;
        if (values) memcpy(values, json, (size_t)wanted < sizeof json ? (size_t)wanted
                                                                      : sizeof json);
        return DNN_OK;
    default: break;
    }
    const attribute *a = find(d, name);
    if (!a && name == ENGINE_INDEX) {
        if (count) *count = 1;
        if (wanted > 0 && values) memcpy(values, &number, sizeof number);
        return DNN_OK;
    }
    int64_t have = a ? a->count : 0;
    if (count) *count = have;
    if (a && values && wanted > 0) {
        int64_t given = wanted < have ? wanted : have;
        if (a->type != TYPE_DESCRIPTOR) {
            memcpy(values, a->data, (size_t)given * width(a->type));
        } else {
            for (int64_t i = 0; i < given; i++) {
                int result = copy(((descriptor **)values)[i], ((descriptor **)a->data)[i]);
                if (result != DNN_OK) return result;
            }
        }
    }
    return DNN_OK;
}

TA_EXPORT int cudnnBackendExecute(const ta_sc_handle *handle, const descriptor *plan,
                                  const descriptor *pack) {
    if (!handle || !plan || !pack) return DNN_BAD;
    return ta_sc_handle_launch(handle) == TA_CU_OK ? DNN_OK : DNN_FAILED;
}
