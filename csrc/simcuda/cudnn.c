/* cudnn.c - cuDNN's older interface: handles, descriptors, convolutions, norms, dropout.
 *
 * Descriptors remember what PyTorch reads back: shapes. Convolutions offer one algorithm
 * without workspace. Thread-safe as cuDNN is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cudnn.h"

static const char *const dnn[] = {"libcudnn.so.9", "libcudnn.so.8", NULL};

static int of(int result) { return result == TA_CU_OK ? DNN_OK : DNN_FAILED; }

/* --- versions and handles --------------------------------------------------------------- */
TA_EXPORT size_t cudnnGetVersion(void)
{
    size_t (*ask)(void);
    *(void **)&ask = ta_sc_real(dnn, "cudnnGetVersion");
    return ask ? ask() : 91900;
}
TA_EXPORT size_t cudnnGetCudartVersion(void) { return (size_t)ta_sc_runtime_version(); }
TA_EXPORT size_t cudnnGetMaxDeviceVersion(void) { return 1210; }
TA_EXPORT int cudnnGetProperty(int property, int *value)
{
    size_t version = cudnnGetVersion();
    size_t unit = version >= 90000 ? 10000 : 1000;
    if (property < 0 || property > 2) return DNN_BAD;
    *value = (int)(property == 0   ? version / unit
                   : property == 1 ? version % unit / 100
                                   : version % 100);
    return DNN_OK;
}
TA_EXPORT int cudnnGraphVersionCheck(void) { return DNN_OK; }
TA_EXPORT int cudnnOpsVersionCheck(void) { return DNN_OK; }
TA_EXPORT int cudnnCnnVersionCheck(void) { return DNN_OK; }
TA_EXPORT int cudnnAdvVersionCheck(void) { return DNN_OK; }
TA_EXPORT const char *cudnnGetErrorString(int status)
{
    switch (status) {
    case DNN_OK:
        return "CUDNN_STATUS_SUCCESS";
    case DNN_NO_MEMORY:
        return "CUDNN_STATUS_ALLOC_FAILED";
    case DNN_BAD:
        return "CUDNN_STATUS_BAD_PARAM";
    case DNN_UNSUPPORTED:
        return "CUDNN_STATUS_NOT_SUPPORTED";
    default:
        return "CUDNN_STATUS_EXECUTION_FAILED";
    }
}
TA_EXPORT void cudnnGetLastErrorString(char *text, size_t size)
{
    if (size) snprintf(text, size, "no message: cuDNN is simulated");
}
TA_EXPORT int cudnnCreate(ta_sc_handle **handle)
{
    *handle = ta_sc_machine_get() ? ta_sc_handle_new() : NULL;
    return *handle ? DNN_OK : DNN_NO_MEMORY;
}
TA_EXPORT int cudnnDestroy(ta_sc_handle *handle)
{
    free(handle);
    return DNN_OK;
}
TA_EXPORT int cudnnSetStream(ta_sc_handle *handle, ta_stream stream)
{
    handle->stream = stream;
    return DNN_OK;
}
TA_EXPORT int cudnnGetStream(ta_sc_handle *handle, ta_stream *stream)
{
    *stream = handle->stream;
    return DNN_OK;
}

/* --- tensor and filter descriptors -------------------------------------------------------- */
size_t ta_sc_dnn_width(int type)
{
    /* by cudnnDataType_t */
    static const unsigned char widths[] = {4,  8, 2, 1, 4, 4, 1, 4,
                                           32, 2, 8, 1, 1, 1, 1, 1};
    return type >= 0 && type < (int)sizeof widths ? widths[type] : 4;
}

static int make(ta_sc_dnn **d)
{
    *d = calloc(1, sizeof **d);
    return *d ? DNN_OK : DNN_NO_MEMORY;
}
static int drop(ta_sc_dnn *d)
{
    free(d);
    return DNN_OK;
}

#define DESCRIPTOR(name)                                                                 \
    TA_EXPORT int cudnnCreate##name##Descriptor(ta_sc_dnn **d) { return make(d); }       \
    TA_EXPORT int cudnnDestroy##name##Descriptor(ta_sc_dnn *d) { return drop(d); }
DESCRIPTOR(Tensor)
DESCRIPTOR(Filter)
DESCRIPTOR(Convolution)
DESCRIPTOR(Activation)
DESCRIPTOR(Pooling)
DESCRIPTOR(Dropout)
DESCRIPTOR(CTCLoss)
DESCRIPTOR(SpatialTransformer)
DESCRIPTOR(RNN)
DESCRIPTOR(RNNData)

int ta_sc_dnn_shape(ta_sc_dnn *d, int type, int dims, const int *size, const int *stride)
{
    if (!d || dims < 1 || dims > DNN_DIMS) return DNN_BAD;
    d->type = type;
    d->dims = dims;
    memcpy(d->size, size, (size_t)dims * sizeof *size);
    if (stride) memcpy(d->stride, stride, (size_t)dims * sizeof *stride);
    return DNN_OK;
}
TA_EXPORT int cudnnSetTensorNdDescriptor(ta_sc_dnn *d, int type, int dims,
                                         const int *size, const int *stride)
{
    return ta_sc_dnn_shape(d, type, dims, size, stride);
}
TA_EXPORT int cudnnGetTensorNdDescriptor(const ta_sc_dnn *d, int wanted, int *type,
                                         int *dims, int *size, int *stride)
{
    *type = d->type;
    *dims = d->dims;
    int given = wanted < d->dims ? wanted : d->dims;
    if (given > 0) {
        memcpy(size, d->size, (size_t)given * sizeof *size);
        memcpy(stride, d->stride, (size_t)given * sizeof *stride);
    }
    return DNN_OK;
}
TA_EXPORT int cudnnSetFilterNdDescriptor(ta_sc_dnn *d, int type, int format, int dims,
                                         const int *size)
{
    d->format = format;
    return ta_sc_dnn_shape(d, type, dims, size, NULL);
}
TA_EXPORT int cudnnGetFilterNdDescriptor(const ta_sc_dnn *d, int wanted, int *type,
                                         int *format, int *dims, int *size)
{
    *type = d->type;
    *format = d->format;
    *dims = d->dims;
    int given = wanted < d->dims ? wanted : d->dims;
    if (given > 0) memcpy(size, d->size, (size_t)given * sizeof *size);
    return DNN_OK;
}

/* --- settings that nobody reads back ------------------------------------------------------- */
#define SETTER(name)                                                                     \
    TA_EXPORT int name(const ta_sc_dnn *d) { return d ? DNN_OK : DNN_BAD; }
SETTER(cudnnSetConvolutionNdDescriptor)
SETTER(cudnnSetConvolutionGroupCount)
SETTER(cudnnSetConvolutionMathType)
SETTER(cudnnSetActivationDescriptor)
SETTER(cudnnSetPooling2dDescriptor)
SETTER(cudnnSetSpatialTransformerNdDescriptor)
SETTER(cudnnSetCTCLossDescriptor)
SETTER(cudnnSetCTCLossDescriptorEx)
SETTER(cudnnSetCTCLossDescriptor_v8)
SETTER(cudnnSetCTCLossDescriptor_v9)

TA_EXPORT int cudnnRestoreDropoutDescriptor(ta_sc_dnn *d, const ta_sc_handle *handle,
                                            float dropout)
{
    (void)handle;
    if (!d) return DNN_BAD;
    d->dropout = dropout;
    return DNN_OK;
}
/* Sets the random states, on the handle's stream. */
TA_EXPORT int cudnnSetDropoutDescriptor(ta_sc_dnn *d, const ta_sc_handle *handle,
                                        float dropout)
{
    if (!d) return DNN_BAD;
    d->dropout = dropout;
    return of(ta_sc_handle_launch(handle));
}
/* Philox states of every thread the device holds: 2 MiB for 132 SMs is what cuDNN 9 gives. */
TA_EXPORT int cudnnDropoutGetStatesSize(const ta_sc_handle *handle, size_t *size)
{
    const ta_sc_machine *m = ta_sc_machine_get();
    (void)handle;
    *size = m ? (size_t)m->card.sms * (size_t)m->card.threads_sm * 24 : 0;
    return m ? DNN_OK : DNN_FAILED;
}

/* --- what computes: queued ------------------------------------------------------------------- */
#define KERNEL(name)                                                                     \
    TA_EXPORT int name(const ta_sc_handle *handle)                                       \
    {                                                                                    \
        return of(ta_sc_handle_launch(handle));                                          \
    }
KERNEL(cudnnConvolutionForward)
KERNEL(cudnnConvolutionBackwardData)
KERNEL(cudnnConvolutionBackwardFilter)
KERNEL(cudnnConvolutionBiasActivationForward)
KERNEL(cudnnBatchNormalizationForwardTrainingEx)
KERNEL(cudnnBatchNormalizationForwardInference)
KERNEL(cudnnBatchNormalizationBackwardEx)
KERNEL(cudnnPoolingForward)
KERNEL(cudnnSpatialTfGridGeneratorForward)
KERNEL(cudnnSpatialTfGridGeneratorBackward)
KERNEL(cudnnSpatialTfSamplerForward)
KERNEL(cudnnSpatialTfSamplerBackward)
KERNEL(cudnnRNNForward)
KERNEL(cudnnRNNBackwardData_v8)
KERNEL(cudnnRNNBackwardWeights_v8)
KERNEL(cudnnCTCLoss)
KERNEL(cudnnCTCLoss_v8)

/* --- convolution algorithms -------------------------------------------------------------------- */
typedef struct algorithm {
    int algorithm, status;
    float time;
    size_t memory;
    int deterministic, math, reserved[3];
} algorithm;

static int one(int wanted, int *count, algorithm *results)
{
    if (wanted < 1) return DNN_BAD;
    /* 1: implicit precomputed GEMM forward, algorithm 1 of either gradient */
    *results = (algorithm){.algorithm = 1, .time = 0.01F, .deterministic = 1};
    *count = 1;
    return DNN_OK;
}
#define GET(name)                                                                        \
    TA_EXPORT int name(const void *h, const void *a, const void *b, const void *c,       \
                       const void *d, int wanted, int *count, algorithm *results)        \
    {                                                                                    \
        (void)h, (void)a, (void)b, (void)c, (void)d;                                     \
        return one(wanted, count, results);                                              \
    }
GET(cudnnGetConvolutionForwardAlgorithm_v7)
GET(cudnnGetConvolutionBackwardDataAlgorithm_v7)
GET(cudnnGetConvolutionBackwardFilterAlgorithm_v7)
#define FIND(name)                                                                       \
    TA_EXPORT int name(const void *h, const void *a, const void *b, const void *c,       \
                       const void *d, const void *e, const void *f, const void *g,       \
                       int wanted, int *count, algorithm *results, void *w, size_t size) \
    {                                                                                    \
        (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)w,          \
            (void)size;                                                                  \
        if (ta_sc_handle_launch(h) != TA_CU_OK) return DNN_FAILED;                       \
        return one(wanted, count, results);                                              \
    }
FIND(cudnnFindConvolutionForwardAlgorithmEx)
FIND(cudnnFindConvolutionBackwardDataAlgorithmEx)
FIND(cudnnFindConvolutionBackwardFilterAlgorithmEx)
#define WORKSPACE(name)                                                                  \
    TA_EXPORT int name(const void *h, const void *a, const void *b, const void *c,       \
                       const void *d, int which, size_t *size)                           \
    {                                                                                    \
        (void)h, (void)a, (void)b, (void)c, (void)d, (void)which;                        \
        *size = 0;                                                                       \
        return DNN_OK;                                                                   \
    }
WORKSPACE(cudnnGetConvolutionForwardWorkspaceSize)
WORKSPACE(cudnnGetConvolutionBackwardDataWorkspaceSize)
WORKSPACE(cudnnGetConvolutionBackwardFilterWorkspaceSize)

/* --- batch norm: sizes --------------------------------------------------------------------------- */
/* Without a fused activation nothing is kept; channels-last needs sums of each channel. */
static size_t norm_workspace(const ta_sc_dnn *x)
{
    bool last = x->dims > 1 && x->stride[1] == 1;
    return last ? (size_t)x->size[1] * 2 * sizeof(float) * 8 : 0;
}
TA_EXPORT int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    const void *handle, int mode, int ops, const ta_sc_dnn *x, const void *z,
    const void *y, const void *scale, const void *activation, size_t *size)
{
    (void)handle, (void)mode, (void)ops, (void)z, (void)y, (void)scale, (void)activation;
    *size = norm_workspace(x);
    return DNN_OK;
}
TA_EXPORT int cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    const void *handle, int mode, int ops, const ta_sc_dnn *x, const void *y,
    const void *dy, const void *dz, const void *dx, const void *scale,
    const void *activation, size_t *size)
{
    (void)handle, (void)mode, (void)ops, (void)y, (void)dy, (void)dz, (void)dx,
        (void)scale;
    (void)activation;
    *size = norm_workspace(x);
    return DNN_OK;
}
TA_EXPORT int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(const void *handle,
                                                                   int mode, int ops,
                                                                   const void *activation,
                                                                   const void *x,
                                                                   size_t *size)
{
    (void)handle, (void)mode, (void)ops, (void)activation, (void)x;
    *size = 0;
    return DNN_OK;
}
