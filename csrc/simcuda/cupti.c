/* cupti.c - the profiling interface that torch.profiler opens.
 *
 * Everything succeeds and nothing is ever recorded. Thread-safe. */
#include <stddef.h>

#include "simcuda.h"

enum { CUPTI_OK = 0, CUPTI_NO_MORE = 12 };

static char subscriber;

#define NOTHING(name)                                                                    \
    TA_EXPORT int name(void) { return CUPTI_OK; }
NOTHING(cuptiActivityDisable)
NOTHING(cuptiActivityEnable)
NOTHING(cuptiActivityEnableCudaEventDeviceTimestamps)
NOTHING(cuptiActivityEnableDriverApi)
NOTHING(cuptiActivityEnableRuntimeApi)
NOTHING(cuptiActivityFlushAll)
NOTHING(cuptiActivityPushExternalCorrelationId)
NOTHING(cuptiActivityRegisterCallbacks)
NOTHING(cuptiActivityRegisterTimestampCallback)
NOTHING(cuptiActivitySetAttribute)
NOTHING(cuptiEnableCallback)
NOTHING(cuptiEnableDomain)
NOTHING(cuptiFinalize)
NOTHING(cuptiUnsubscribe)

TA_EXPORT int cuptiSubscribe(void **handle)
{
    *handle = &subscriber;
    return CUPTI_OK;
}
TA_EXPORT int cuptiGetVersion(uint32_t *version)
{
    *version = 130000;
    return CUPTI_OK;
}
TA_EXPORT int cuptiGetResultString(int result, const char **text)
{
    *text = result == CUPTI_OK ? "CUPTI_SUCCESS" : "CUPTI_ERROR_MAX_LIMIT_REACHED";
    return CUPTI_OK;
}
TA_EXPORT int cuptiGetCallbackName(int domain, uint32_t id, const char **name)
{
    (void)domain, (void)id;
    *name = "";
    return CUPTI_OK;
}
TA_EXPORT int cuptiActivityGetNextRecord(void *buffer, size_t size, void **record)
{
    (void)buffer, (void)size, (void)record;
    return CUPTI_NO_MORE;
}
TA_EXPORT int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream,
                                                size_t *dropped)
{
    (void)context, (void)stream;
    *dropped = 0;
    return CUPTI_OK;
}
TA_EXPORT int cuptiActivityPopExternalCorrelationId(int kind, uint64_t *last)
{
    (void)kind;
    if (last) *last = 0;
    return CUPTI_OK;
}
