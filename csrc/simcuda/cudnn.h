/* cudnn.h - what the cudnn*.c files share. */
#ifndef TA_SC_CUDNN_H
#define TA_SC_CUDNN_H

#include "simcuda.h"

enum {
    DNN_OK = 0,
    DNN_NO_MEMORY = 1001,
    DNN_BAD = 2000,
    DNN_UNSUPPORTED = 3000,
    DNN_FAILED = 5000
};

#define DNN_DIMS 8

/* Every descriptor of the older interface. */
typedef struct ta_sc_dnn {
    int type, format, dims;
    int size[DNN_DIMS], stride[DNN_DIMS];
    /* an RNN's */
    int cell, bias, directions, input, hidden, projected, layers;
    float dropout; /* a dropout's, and an RNN's that has one */
    /* a sequence batch's */
    int steps, batch, vector;
} ta_sc_dnn;

size_t ta_sc_dnn_width(int type); /* bytes of a cudnnDataType_t */
int ta_sc_dnn_shape(ta_sc_dnn *d, int type, int dims, const int *size, const int *stride);

#endif
