/* cufft.c - cuFFT: plans.
 *
 * A plan is a number; its work area is guessed: one copy of the data where a length is not a
 * power of two, or where there is more than one dimension. Thread-safe. */
#include "simcuda.h"

#define PLANS 4096

enum { FFT_OK = 0, FFT_INVALID = 1, FFT_NO_MEMORY = 2, FFT_FAILED = 6 };

static int next;
static ta_stream streams[PLANS]; /* of plan n, at n mod PLANS */

TA_EXPORT int cufftCreate(int *plan)
{
    *plan = __atomic_add_fetch(&next, 1, __ATOMIC_RELAXED);
    streams[*plan % PLANS] = NULL;
    return FFT_OK;
}
TA_EXPORT int cufftDestroy(int plan) { return plan > 0 ? FFT_OK : FFT_INVALID; }
TA_EXPORT int cufftSetAutoAllocation(int plan, int yes)
{
    (void)yes;
    return plan > 0 ? FFT_OK : FFT_INVALID;
}
TA_EXPORT int cufftSetStream(int plan, ta_stream stream)
{
    if (plan <= 0) return FFT_INVALID;
    streams[plan % PLANS] = stream;
    return FFT_OK;
}
TA_EXPORT int cufftSetWorkArea(int plan, void *area)
{
    (void)area;
    return plan > 0 ? FFT_OK : FFT_INVALID;
}
TA_EXPORT int cufftXtMakePlanMany(int plan, int rank, long long *n, long long *in_embed,
                                  long long in_stride, long long in_dist, int in_type,
                                  long long *out_embed, long long out_stride,
                                  long long out_dist, int out_type, long long batch,
                                  size_t *work, int type)
{
    (void)in_embed, (void)in_stride, (void)in_dist, (void)in_type, (void)out_embed;
    (void)out_stride, (void)out_dist, (void)out_type;
    long long all = batch;
    bool plain = rank == 1;
    for (int i = 0; i < rank; i++) {
        if (n[i] & (n[i] - 1)) plain = false;
        all *= n[i];
    }
    /* cudaDataType: 4 and 5 are complex float and double, 6 complex half */
    long long unit = type == 5 ? 16 : type == 6 ? 4 : 8;
    *work = plain ? 0 : (size_t)(all * unit);
    ta_sc_workspace(TA_SC_DEFAULT, *work);
    return plan > 0 ? FFT_OK : FFT_INVALID;
}
TA_EXPORT int cufftXtExec(int plan, void *in, void *out, int direction)
{
    (void)in, (void)out, (void)direction;
    if (plan <= 0) return FFT_INVALID;
    return ta_sc_launch(streams[plan % PLANS]) == TA_CU_OK ? FFT_OK : FFT_FAILED;
}
