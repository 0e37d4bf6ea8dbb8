/* cudnn_rnn.c - cuDNN's RNNs: where weights are, how much memory they take.
 *
 * PyTorch keeps an RNN's weights in one buffer laid out by cuDNN and checks the layout: all
 * matrices first, pseudo-layer by pseudo-layer (input then recurrent, gate by gate, then a
 * projection), all biases after them. Thread-safe as cuDNN is. */
#include <stddef.h>

#include "cudnn_real.h"

/* 0 relu, 1 tanh, 2 LSTM, 3 GRU */
static int gates(const ta_sc_dnn *r) { return r->cell == 2 ? 4 : r->cell == 3 ? 3 : 1; }

/* Width of what a layer gives on. */
static size_t output(const ta_sc_dnn *r)
{
    return (size_t)(r->projected && r->projected != r->hidden ? r->projected : r->hidden);
}
static size_t input(const ta_sc_dnn *r, int pseudo)
{
    return pseudo < r->directions ? (size_t)r->input : output(r) * (size_t)r->directions;
}
static bool projects(const ta_sc_dnn *r) { return output(r) != (size_t)r->hidden; }

/* Elements of one pseudo-layer's matrices. */
static size_t matrices(const ta_sc_dnn *r, int pseudo)
{
    size_t hidden = (size_t)r->hidden, n = (size_t)gates(r);
    return n * hidden * (input(r, pseudo) + output(r)) +
           (projects(r) ? hidden * output(r) : 0);
}
/* Elements of one pseudo-layer's biases: none, one set or two a gate. */
static size_t biases(const ta_sc_dnn *r)
{
    size_t sets = r->bias == 0 ? 0 : r->bias == 2 ? 2 : 1;
    return sets * (size_t)gates(r) * (size_t)r->hidden;
}

TA_EXPORT int cudnnSetRNNDescriptor_v8(ta_sc_dnn *r, int algorithm, int cell, int bias,
                                       int direction, int input_mode, int type,
                                       int math_type, int math, int32_t input_size,
                                       int32_t hidden, int32_t projected, int32_t layers,
                                       const ta_sc_dnn *dropout)
{
    (void)algorithm, (void)input_mode, (void)math_type, (void)math;
    if (!r) return DNN_BAD;
    r->cell = cell;
    r->bias = bias;
    r->directions = direction ? 2 : 1;
    r->type = type;
    r->input = input_size;
    r->hidden = hidden;
    r->projected = projected;
    r->layers = layers;
    r->dropout = dropout ? dropout->dropout : 0;
    return DNN_OK;
}
TA_EXPORT int cudnnSetRNNDataDescriptor(ta_sc_dnn *d, int type, int layout, int steps,
                                        int batch, int vector, const int *lengths,
                                        void *padding)
{
    (void)layout, (void)lengths, (void)padding;
    if (!d) return DNN_BAD;
    d->type = type;
    d->steps = steps;
    d->batch = batch;
    d->vector = vector;
    return DNN_OK;
}

TA_EXPORT int cudnnGetRNNWeightSpaceSize(const void *handle, const ta_sc_dnn *r,
                                         size_t *size)
{
    (void)handle;
    size_t elements = 0;
    for (int p = 0; p < r->layers * r->directions; p++)
        elements += matrices(r, p) + biases(r);
    *size = elements * ta_sc_dnn_width(r->type);
    return DNN_OK;
}

TA_EXPORT int cudnnGetRNNWeightParams(const void *handle, const ta_sc_dnn *r,
                                      int32_t pseudo, size_t size, void *space,
                                      int32_t id, ta_sc_dnn *matrix, void **matrix_at,
                                      ta_sc_dnn *bias, void **bias_at)
{
    (void)handle, (void)size;
    size_t n = (size_t)gates(r), hidden = (size_t)r->hidden, at = 0, which = (size_t)id;
    int count = r->layers * r->directions;
    bool projection = projects(r) && which == 2 * n;
    if (pseudo < 0 || pseudo >= count || which >= 2 * n + (projects(r) ? 1 : 0))
        return DNN_BAD;
    for (int p = 0; p < pseudo; p++) at += matrices(r, p);
    size_t in = input(r, pseudo), out = output(r), rows = hidden, columns;
    if (projection) {
        at += n * hidden * (in + out);
        rows = out;
        columns = hidden;
    } else if (which < n) {
        at += which * hidden * in;
        columns = in;
    } else {
        at += n * hidden * in + (which - n) * hidden * out;
        columns = out;
    }
    size_t unit = ta_sc_dnn_width(r->type);
    int dims[3] = {1, (int)rows, (int)columns};
    int strides[3] = {(int)(rows * columns), (int)columns, 1};
    /* Any of the four answers may not be wanted. */
    if (matrix) ta_sc_dnn_shape(matrix, r->type, 3, dims, strides);
    if (matrix_at) *matrix_at = (char *)space + at * unit;

    size_t first = 0;
    for (int p = 0; p < count; p++) first += matrices(r, p);
    bool has = !projection && (r->bias == 2 || (r->bias == 1 && which < n) ||
                               (r->bias == 3 && which >= n));
    int shape[3] = {1, has ? (int)hidden : 0, 1}, steps[3] = {(int)hidden, 1, 1};
    if (bias) ta_sc_dnn_shape(bias, r->type, 3, shape, steps);
    size_t place = r->bias == 3 ? which - n : which;
    if (!bias_at) return DNN_OK;
    *bias_at =
        has ? (char *)space + (first + (size_t)pseudo * biases(r) + place * hidden) * unit
            : NULL;
    return DNN_OK;
}

/* What cuDNN 9.19 asks for with its standard algorithm, found by asking it without a GPU about
 * some hundred networks. With u = steps x batch x hidden numbers, in both directions where
 * there are two: the reserve of training is every layer's gates, cell and output but the
 * last one's output; it came out exact for all. The workspace holds the products of all
 * steps' gates, the packed weights, some states and 8 MiB a layer; it came out exact for
 * LSTM and GRU. With dropout there is a mask of a bit a number between layers, for every pair
 * of directions, in the reserve, and in the workspace the numbers that were dropped from. */
TA_EXPORT int cudnnGetRNNTempSpaceSizes(const void *handle, const ta_sc_dnn *r,
                                        int training, const ta_sc_dnn *x,
                                        size_t *workspace, size_t *reserve)
{
    (void)handle;
    size_t width = ta_sc_dnn_width(r->type), hidden = (size_t)r->hidden,
           n = (size_t)gates(r);
    size_t layers = (size_t)r->layers, directions = (size_t)r->directions;
    size_t state = (size_t)x->batch * hidden * width, unit = (size_t)x->steps * state;
    size_t kept = n == 1 ? 2 : n == 4 ? 6 : 7, states = n == 1 ? 9 : n == 4 ? 6 : 3;
    size_t work =
        directions * n * unit + layers * directions * (states * state + (8U << 20));
    for (int p = 0; p < r->layers * r->directions; p++) work += matrices(r, p) * width;
    if (directions == 2) work += 4 * unit + 4 * layers * state;
    if (projects(r)) work += unit;
    if (r->dropout > 0 && n > 1 && directions == 1) work += (unit + 31) & ~(size_t)31;
    size_t whole = directions * (kept * layers - 1) * unit;
    if (projects(r)) whole += directions * layers * (unit + unit / hidden * output(r));
    size_t bits = (size_t)x->steps * (size_t)x->batch * output(r);
    if (r->dropout > 0)
        whole += (layers - 1) * directions * directions * ((bits + 127) / 128 * 16);
    if (workspace) {
        *workspace = work + 256;
        ta_sc_workspace(TA_SC_MEASURED, *workspace);
    }
    if (reserve) *reserve = training ? whole + 256 : 0;
    return DNN_OK;
}

TA_EXPORT int cudnnGetCTCLossWorkspaceSize(const void *handle, const ta_sc_dnn *probs,
                                           const void *gradients, const int *labels,
                                           const int *label_lengths,
                                           const int *input_lengths, int algorithm,
                                           const void *loss, size_t *size)
{
    (void)handle, (void)gradients, (void)labels, (void)input_lengths, (void)algorithm;
    (void)loss;
    size_t longest = 0;
    for (int i = 0; i < probs->size[1]; i++)
        if ((size_t)label_lengths[i] > longest) longest = (size_t)label_lengths[i];
    /* the two directions' log-probabilities of every step and extended label */
    *size = 2 * (size_t)probs->size[0] * (size_t)probs->size[1] * (2 * longest + 1) * 4;
    ta_sc_workspace(TA_SC_DEFAULT, *size);
    return DNN_OK;
}
TA_EXPORT int cudnnGetCTCLossWorkspaceSize_v8(const void *handle, int algorithm,
                                              const void *loss, const ta_sc_dnn *probs,
                                              const void *gradients, size_t *size)
{
    (void)handle, (void)algorithm, (void)loss, (void)gradients;
    *size = 2 * (size_t)probs->size[0] * (size_t)probs->size[1] * (2 * 256 + 1) * 4;
    ta_sc_workspace(TA_SC_DEFAULT, *size);
    return DNN_OK;
}
