/* cudnn_backend.c - cuDNN's backend interface: descriptors, plans, execution.
 *
 * Convolutions and fused attention of PyTorch go through it. A descriptor remembers what was
 * set, and has a twin in the real libcudnn where that answers (cudnn_real.h): what is set is
 * set there too, descriptors by their twins, handles left out; heuristics and plans get the
 * description of the simulated card instead. So engines, their notes and their workspaces
 * are the real ones. Without a twin a heuristic finds one engine, whose plan needs no
 * workspace: a guess, counted as one. Executing queues work, the longer the later the engine
 * stood in its heuristic's list, so that cudnn.benchmark finds the first one fastest.
 *
 * Descriptors are counted, since others may refer to one that its maker has destroyed.
 * Thread-safe as cuDNN is: one descriptor, one thread. */
#include <stdlib.h>
#include <string.h>

#include "cudnn_real.h"

enum { /* cudnnBackendAttributeType_t */
       TYPE_HANDLE = 0,
       TYPE_INT64 = 3,
       TYPE_DESCRIPTOR = 15,
       TYPE_BEHAVIOR = 19,
       TYPE_CHAR = 24,
       TYPE_FRACTION = 26
};
enum { /* cudnnBackendAttributeName_t */
       HEURISTIC_MODE = 200,
       HEURISTIC_GRAPH = 201,
       HEURISTIC_RESULTS = 202,
       HEURISTIC_DEVICE = 204,
       CONFIG_ENGINE = 300,
       CONFIG_WORKSPACE = 303,
       CONFIG_SHARED = 304,
       PLAN_CONFIG = 401,
       PLAN_WORKSPACE = 402,
       PLAN_JSON = 405,
       PLAN_DEVICE = 407,
       GRAPH_ENGINES = 802,
       ENGINE_GRAPH = 1300,
       ENGINE_INDEX = 1301,
       ENGINE_BEHAVIOR = 1305,
       ENGINE_DEVICE = 1307,
       DEVICE_ID = 2700,
       DEVICE_HANDLE = 2701,
       DEVICE_JSON = 2702
};
enum { /* cudnnBackendDescriptorType_t */
       ENGINE = 2,
       CONFIG = 3,
       HEURISTIC = 4,
       PLAN = 5,
       VARIANT_PACK = 16,
       DEVICE = 38
};
enum { MODE_FALLBACK = 2, RUNTIME_COMPILATION = 0 };

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
    int rank;     /* of a configuration or plan: its place in the heuristic's list */
    void *twin;   /* in the real library; NULL: none */
    bool planned; /* a plan that knows its workspace without a twin */
    int64_t workspace;
    attribute *attributes;
} descriptor;

static size_t width(int type)
{
    /* by cudnnBackendAttributeType_t; an enum is 4 bytes */
    static const unsigned char widths[] = {8, 4, 1, 8, 4, 8, 8, 4, 4, 4, 4, 4, 4, 4,
                                           4, 8, 4, 4, 4, 4, 4, 4, 4, 4, 1, 4, 16};
    return type >= 0 && type <= TYPE_FRACTION ? widths[type] : 4;
}

static descriptor *make(int type)
{
    descriptor *d = calloc(1, sizeof *d);
    if (d) *d = (descriptor){.type = type, .holders = 1};
    return d;
}

static void drop(descriptor *d);

static void clear(attribute *a)
{
    for (int64_t i = 0; a->type == TYPE_DESCRIPTOR && i < a->count; i++)
        drop(((descriptor **)a->data)[i]);
    free(a->data);
    a->data = NULL;
    a->count = 0;
}

static void drop(descriptor *d)
{
    if (!d || __atomic_sub_fetch(&d->holders, 1, __ATOMIC_ACQ_REL)) return;
    for (attribute *a = d->attributes, *next; a; a = next) {
        next = a->next;
        clear(a);
        free(a);
    }
    if (d->twin) ta_sc_real_dnn_get()->destroy(d->twin);
    free(d);
}

static attribute *find(const descriptor *d, int name)
{
    attribute *a = d->attributes;
    while (a && a->name != name) a = a->next;
    return a;
}

static int set(descriptor *d, int name, int type, int64_t count, const void *values)
{
    attribute *a = find(d, name);
    size_t bytes = (size_t)count * width(type);
    void *data = calloc(1, bytes ? bytes : 1);
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
static int copy(descriptor *to, const descriptor *from)
{
    int result = DNN_OK;
    for (const attribute *a = from->attributes; a && result == DNN_OK; a = a->next)
        result = set(to, a->name, a->type, a->count, a->data);
    return result;
}

/* --- twins ---------------------------------------------------------------------------------- */
static void make_twin(descriptor *d)
{
    const ta_sc_real_dnn *real = d->type == VARIANT_PACK ? NULL : ta_sc_real_dnn_get();
    if (real && real->create(d->type, &d->twin) != DNN_OK) d->twin = NULL;
}
static void drop_twin(descriptor *d)
{
    if (d->twin) ta_sc_real_dnn_get()->destroy(d->twin);
    d->twin = NULL;
}

/* The twins of `count` descriptors, in memory of the caller's. NULL where one has none. */
static void **twins(descriptor *const *all, int64_t count)
{
    void **found = calloc((size_t)count + 1, sizeof *found);
    for (int64_t i = 0; found && i < count; i++) {
        if (all[i] && all[i]->twin) {
            found[i] = all[i]->twin;
        } else if (all[i]) {
            free(found);
            return NULL;
        }
    }
    return found;
}

/* Sets it on the twin. Whoever refers to a descriptor without one loses its own. */
static int set_twin(descriptor *d, int name, int type, int64_t count, const void *values)
{
    const ta_sc_real_dnn *real = ta_sc_real_dnn_get();
    if (type == TYPE_HANDLE || name == DEVICE_ID || name == DEVICE_HANDLE) return DNN_OK;
    if (type != TYPE_DESCRIPTOR) return real->set(d->twin, name, type, count, values);
    void **others = twins(values, count);
    if (!others) {
        drop_twin(d);
        return DNN_OK;
    }
    int result = real->set(d->twin, name, type, count, others);
    free(others);
    return result;
}

/* Whether the plan's engine is a kernel that finalizing would compile: seconds each. */
static bool compiles(const void *config)
{
    const ta_sc_real_dnn *real = ta_sc_real_dnn_get();
    int32_t notes[16] = {0};
    int64_t count = 0;
    void *engine = NULL;
    bool found = false;
    if (real->create(ENGINE, &engine) != DNN_OK) return false;
    if (real->get((void *)config, CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, &count, &engine) ==
            DNN_OK &&
        real->get(engine, ENGINE_BEHAVIOR, TYPE_BEHAVIOR, 16, &count, notes) == DNN_OK)
        for (int64_t i = 0; i < count && i < 16; i++)
            found |= notes[i] == RUNTIME_COMPILATION;
    real->destroy(engine);
    return found;
}

/* A plan that would be compiled is left as it is; its configuration knows the workspace. */
static int finalize_plan(descriptor *d)
{
    const ta_sc_real_dnn *real = ta_sc_real_dnn_get();
    const attribute *a = find(d, PLAN_CONFIG);
    const descriptor *config = a && a->count ? *(descriptor **)a->data : NULL;
    if (config && config->twin && compiles(config->twin)) {
        int64_t count = 0;
        int result = real->get(config->twin, CONFIG_WORKSPACE, TYPE_INT64, 1, &count,
                               &d->workspace);
        drop_twin(d);
        d->planned = true;
        return result;
    }
    if (!find(d, PLAN_DEVICE))
        real->set(d->twin, PLAN_DEVICE, TYPE_DESCRIPTOR, 1, &real->device);
    return real->finalize(d->twin);
}

static int finalize_twin(descriptor *d)
{
    if (d->type == PLAN) return finalize_plan(d);
    const ta_sc_real_dnn *real = ta_sc_real_dnn_get();
    int name = d->type == HEURISTIC ? HEURISTIC_DEVICE
               : d->type == ENGINE  ? ENGINE_DEVICE
                                    : 0;
    if (name && !find(d, name))
        real->set(d->twin, name, TYPE_DESCRIPTOR, 1, &real->device);
    if (d->type == DEVICE && !find(d, DEVICE_JSON)) {
        /* of "the device": ours */
        char json[4096];
        int64_t length = 0;
        int result =
            real->get(real->device, DEVICE_JSON, TYPE_CHAR, sizeof json, &length, json);
        if (result != DNN_OK) return result;
        real->set(d->twin, DEVICE_JSON, TYPE_CHAR, length, json);
    }
    int result = real->finalize(d->twin);
    const ta_sc_machine *m = ta_sc_machine_get();
    if (result == DNN_OK && d->type == DEVICE && m)
        ta_sc_tell_gpcs(d->twin, &m->card, m->driver_version);
    return result;
}

static int get_twin(const descriptor *d, int name, int type, int64_t wanted,
                    int64_t *count, void *values)
{
    const ta_sc_real_dnn *real = ta_sc_real_dnn_get();
    int64_t given = 0;
    void *into = values;
    if (type == TYPE_DESCRIPTOR && values && wanted > 0) {
        into = twins(values, wanted);
        if (!into) return DNN_NO_MEMORY;
    }
    int result = real->get(d->twin, name, type, wanted, &given, into);
    if (into != values) free(into);
    if (count) *count = given;
    return result;
}

/* --- the interface ----------------------------------------------------------------------------- */
TA_EXPORT int cudnnBackendCreateDescriptor(int type, descriptor **d)
{
    *d = make(type);
    if (!*d) return DNN_NO_MEMORY;
    make_twin(*d);
    return DNN_OK;
}
TA_EXPORT int cudnnBackendDestroyDescriptor(descriptor *d)
{
    drop(d);
    return DNN_OK;
}
TA_EXPORT int cudnnBackendInitialize(descriptor *d) { return d ? DNN_OK : DNN_BAD; }

static bool is_fallback(const descriptor *heuristic)
{
    const attribute *mode = find(heuristic, HEURISTIC_MODE);
    int32_t value = 0;
    if (mode && mode->count) memcpy(&value, mode->data, sizeof value);
    return value == MODE_FALLBACK;
}

TA_EXPORT int cudnnBackendFinalize(descriptor *d)
{
    if (!d) return DNN_BAD;
    if (d->twin) {
        int result = finalize_twin(d);
        /* The last list that a caller asks for: the stand-in's engine instead of none. */
        if (result == DNN_OK || d->type != HEURISTIC || !is_fallback(d)) return result;
        drop_twin(d);
    }
    return DNN_OK;
}
TA_EXPORT int cudnnBackendSetAttribute(descriptor *d, int name, int type, int64_t count,
                                       const void *values)
{
    if (!d || count < 0 || (count && !values)) return DNN_BAD;
    int result = set(d, name, type, count, values);
    if (result != DNN_OK) return result;
    if (name == PLAN_CONFIG && count && *(descriptor *const *)values)
        d->rank = (*(descriptor *const *)values)->rank;
    return d->twin ? set_twin(d, name, type, count, values) : DNN_OK;
}

/* The one engine that a heuristic found, as a configuration. */
static int fill_config(const descriptor *heuristic, descriptor *config)
{
    descriptor *engine = make(ENGINE);
    if (!engine) return DNN_NO_MEMORY;
    const attribute *graph = find(heuristic, HEURISTIC_GRAPH);
    drop_twin(config);
    int result = graph ? set(engine, ENGINE_GRAPH, graph->type, graph->count, graph->data)
                       : DNN_OK;
    if (result == DNN_OK)
        result = set(config, CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, &engine);
    drop(engine);
    return result;
}

/* What a heuristic found in the real library. */
static int list_twin(const descriptor *d, int64_t wanted, int64_t *count,
                     descriptor *const *configs)
{
    int64_t given = 0;
    int result =
        get_twin(d, HEURISTIC_RESULTS, TYPE_DESCRIPTOR, wanted, &given, (void *)configs);
    int first = is_fallback(d) ? 1000 : 0;
    for (int64_t i = 0; configs && i < given && i < wanted; i++)
        configs[i]->rank = first + (int)i;
    if (count) *count = given;
    return result;
}

/* What a descriptor without a twin says. */
static int answer(const descriptor *d, int name, int type, int64_t wanted, int64_t *count,
                  void *values)
{
    static const char json[] = "{\"engine\": \"simulated\"}";
    int64_t number = 0;
    switch (name) {
    case HEURISTIC_RESULTS:
        if (count) *count = 1;
        return wanted > 0 && values ? fill_config(d, *(descriptor **)values) : DNN_OK;
    case CONFIG_ENGINE:
    case PLAN_CONFIG: {
        const attribute *a = find(d, name);
        if (count) *count = a ? 1 : 0;
        return a && wanted > 0 && values
                   ? copy(*(descriptor **)values, *(descriptor **)a->data)
                   : DNN_OK;
    }
    case GRAPH_ENGINES:
    case CONFIG_WORKSPACE:
    case CONFIG_SHARED:
    case PLAN_WORKSPACE:
        if (name == PLAN_WORKSPACE && d->planned) {
            number = d->workspace;
            ta_sc_workspace(TA_SC_TOLD, (uint64_t)number);
        } else if (name == PLAN_WORKSPACE) {
            ta_sc_workspace(TA_SC_DEFAULT, 0);
        }
        if (count) *count = 1;
        if (name == GRAPH_ENGINES) number = 1;
        if (wanted > 0 && values) memcpy(values, &number, width(type));
        return DNN_OK;
    case PLAN_JSON:
        if (count) *count = (int64_t)sizeof json;
        if (values)
            memcpy(values, json,
                   (size_t)wanted < sizeof json ? (size_t)wanted : sizeof json);
        return DNN_OK;
    default:
        break;
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
                int result =
                    copy(((descriptor **)values)[i], ((descriptor **)a->data)[i]);
                if (result != DNN_OK) return result;
            }
        }
    }
    return DNN_OK;
}

TA_EXPORT int cudnnBackendGetAttribute(const descriptor *d, int name, int type,
                                       int64_t wanted, int64_t *count, void *values)
{
    if (!d) return DNN_BAD;
    if (!d->twin) return answer(d, name, type, wanted, count, values);
    if (type == TYPE_HANDLE) return answer(d, name, type, wanted, count, values);
    if (name == HEURISTIC_RESULTS) return list_twin(d, wanted, count, values);
    int result = get_twin(d, name, type, wanted, count, values);
    if (name == PLAN_JSON && result != DNN_OK)
        return answer(d, name, type, wanted, count, values);
    if (name == PLAN_WORKSPACE && result == DNN_OK && wanted > 0 && values)
        ta_sc_workspace(TA_SC_TOLD, *(uint64_t *)values);
    return result;
}

TA_EXPORT int cudnnBackendExecute(const ta_sc_handle *handle, const descriptor *plan,
                                  const descriptor *pack)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    int device;
    if (!handle || !plan || !pack) return DNN_BAD;
    if (!m || !ta_sc_stream_device(handle->stream, &device)) return DNN_FAILED;
    double us = 50.0 * (1 + plan->rank);
    return ta_sim_launch(m->sim, device, handle->stream, NULL, 0, us) == TA_OK
               ? DNN_OK
               : DNN_FAILED;
}
