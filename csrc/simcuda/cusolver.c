/* cusolver.c - cuSOLVER: dense factorisations.
 *
 * Nothing is computed, and every factorisation says that it went well, without exchanging
 * rows; buffer sizes are guesses of the right order (a few panels of the matrix), since the
 * real ones depend on the device. Thread-safe as cuSOLVER is. */
#include <stdarg.h>
#include <stdlib.h>

#include "simcuda.h"

enum { SOLVER_OK = 0, SOLVER_NO_MEMORY = 2, SOLVER_FAILED = 6 };

static int launched(const ta_sc_handle *h)
{
    return ta_sc_handle_launch(h) == TA_CU_OK ? SOLVER_OK : SOLVER_FAILED;
}

TA_EXPORT int cusolverDnCreate(ta_sc_handle **handle)
{
    *handle = ta_sc_machine_get() ? ta_sc_handle_new() : NULL;
    return *handle ? SOLVER_OK : SOLVER_NO_MEMORY;
}
TA_EXPORT int cusolverDnDestroy(ta_sc_handle *handle)
{
    free(handle);
    return SOLVER_OK;
}
TA_EXPORT int cusolverDnSetStream(ta_sc_handle *handle, ta_stream stream)
{
    handle->stream = stream;
    return SOLVER_OK;
}

/* Settings of an algorithm: an empty object. */
static int make(void **object)
{
    *object = malloc(1);
    return *object ? SOLVER_OK : SOLVER_NO_MEMORY;
}
static int drop(void *object)
{
    free(object);
    return SOLVER_OK;
}
TA_EXPORT int cusolverDnCreateParams(void **o) { return make(o); }
TA_EXPORT int cusolverDnDestroyParams(void *o) { return drop(o); }
TA_EXPORT int cusolverDnCreateGesvdjInfo(void **o) { return make(o); }
TA_EXPORT int cusolverDnDestroyGesvdjInfo(void *o) { return drop(o); }
TA_EXPORT int cusolverDnCreateSyevjInfo(void **o) { return make(o); }
TA_EXPORT int cusolverDnDestroySyevjInfo(void *o) { return drop(o); }
#define SETTER(name)                                                                     \
    TA_EXPORT int name(const void *o) { return o ? SOLVER_OK : SOLVER_FAILED; }
SETTER(cusolverDnXgesvdjSetMaxSweeps)
SETTER(cusolverDnXgesvdjSetSortEig)
SETTER(cusolverDnXgesvdjSetTolerance)

/* --- buffer sizes, in elements ---------------------------------------------------------- */
enum { UNIT_S = 4, UNIT_D = 8, UNIT_C = 8, UNIT_Z = 16 }; /* bytes of an element */

static int state(int64_t elements, int64_t unit, int *size)
{
    *size = elements > INT32_MAX ? INT32_MAX : (int)elements;
    ta_sc_workspace(TA_SC_DEFAULT, (uint64_t)(*size * unit));
    return SOLVER_OK;
}
static int panel(int64_t m, int64_t n, int64_t unit, int *size)
{
    return state((m > n ? m : n) * 64 + 1024, unit, size);
}
static int square(int64_t m, int64_t n, int64_t batch, int64_t unit, int *size)
{
    return state(2 * m * n * batch + (m + n) * 64, unit, size);
}
/* For one element type; `or_` and `sy` are what its names begin with. */
#define SIZES(T, or_, sy)                                                                \
    TA_EXPORT int cusolverDn##T##geqrf_bufferSize(void *h, int m, int n, void *a,        \
                                                  int lda, int *size)                    \
    {                                                                                    \
        (void)h, (void)a, (void)lda;                                                     \
        return panel(m, n, UNIT_##T, size);                                              \
    }                                                                                    \
    TA_EXPORT int cusolverDn##T##getrf_bufferSize(void *h, int m, int n, void *a,        \
                                                  int lda, int *size)                    \
    {                                                                                    \
        (void)h, (void)a, (void)lda;                                                     \
        return panel(m, n, UNIT_##T, size);                                              \
    }                                                                                    \
    TA_EXPORT int cusolverDn##T##potrf_bufferSize(void *h, int uplo, int n, void *a,     \
                                                  int lda, int *size)                    \
    {                                                                                    \
        (void)h, (void)uplo, (void)a, (void)lda;                                         \
        return panel(n, n, UNIT_##T, size);                                              \
    }                                                                                    \
    TA_EXPORT int cusolverDn##T##sytrf_bufferSize(void *h, int n, void *a, int lda,      \
                                                  int *size)                             \
    {                                                                                    \
        (void)h, (void)a, (void)lda;                                                     \
        return panel(n, n, UNIT_##T, size);                                              \
    }                                                                                    \
    TA_EXPORT int cusolverDn##T##or_##gqr_bufferSize(                                    \
        void *h, int m, int n, int k, void *a, int lda, void *tau, int *size)            \
    {                                                                                    \
        (void)h, (void)k, (void)a, (void)lda, (void)tau;                                 \
        return panel(m, n, UNIT_##T, size);                                              \
    }                                                                                    \
    TA_EXPORT int cusolverDn##T##or_##mqr_bufferSize(                                    \
        void *h, int side, int trans, int m, int n, int k, void *a, int lda, void *tau,  \
        void *c, int ldc, int *size)                                                     \
    {                                                                                    \
        (void)h, (void)side, (void)trans, (void)k, (void)a, (void)lda, (void)tau,        \
            (void)c;                                                                     \
        (void)ldc;                                                                       \
        return panel(m, n, UNIT_##T, size);                                              \
    }                                                                                    \
    TA_EXPORT int cusolverDn##T##gesvd_bufferSize(void *h, int m, int n, int *size)      \
    {                                                                                    \
        (void)h;                                                                         \
        return square(m, n, 1, UNIT_##T, size);                                          \
    }                                                                                    \
    TA_EXPORT int cusolverDn##T##gesvdj_bufferSize(                                      \
        void *h, int job, int thin, int m, int n, void *a, int lda, void *s, void *u,    \
        int ldu, void *v, int ldv, int *size)                                            \
    {                                                                                    \
        (void)h, (void)job, (void)thin, (void)a, (void)lda, (void)s, (void)u, (void)ldu; \
        (void)v, (void)ldv;                                                              \
        return square(m, n, 1, UNIT_##T, size);                                          \
    }                                                                                    \
    TA_EXPORT int cusolverDn##T##gesvdjBatched_bufferSize(                               \
        void *h, int job, int m, int n, void *a, int lda, void *s, void *u, int ldu,     \
        void *v, int ldv, int *size, void *params, int batch)                            \
    {                                                                                    \
        (void)h, (void)job, (void)a, (void)lda, (void)s, (void)u, (void)ldu, (void)v;    \
        (void)ldv, (void)params;                                                         \
        return square(m, n, batch, UNIT_##T, size);                                      \
    }                                                                                    \
    TA_EXPORT int cusolverDn##T##gesvdaStridedBatched_bufferSize(                        \
        void *h, int job, int rank, int m, int n, void *a, int lda, long long sa,        \
        void *s, long long ss, void *u, int ldu, long long su, void *v, int ldv,         \
        long long sv, int *size, int batch)                                              \
    {                                                                                    \
        (void)h, (void)job, (void)rank, (void)a, (void)lda, (void)sa, (void)s, (void)ss; \
        (void)u, (void)ldu, (void)su, (void)v, (void)ldv, (void)sv;                      \
        return square(m, n, batch, UNIT_##T, size);                                      \
    }                                                                                    \
    TA_EXPORT int cusolverDn##T##sy##evd_bufferSize(                                     \
        void *h, int job, int uplo, int n, void *a, int lda, void *w, int *size)         \
    {                                                                                    \
        (void)h, (void)job, (void)uplo, (void)a, (void)lda, (void)w;                     \
        return square(n, n, 1, UNIT_##T, size);                                          \
    }                                                                                    \
    TA_EXPORT int cusolverDn##T##sy##evj_bufferSize(                                     \
        void *h, int job, int uplo, int n, void *a, int lda, void *w, int *size)         \
    {                                                                                    \
        (void)h, (void)job, (void)uplo, (void)a, (void)lda, (void)w;                     \
        return square(n, n, 1, UNIT_##T, size);                                          \
    }                                                                                    \
    TA_EXPORT int cusolverDn##T##sy##evjBatched_bufferSize(                              \
        void *h, int job, int uplo, int n, void *a, int lda, void *w, int *size,         \
        void *params, int batch)                                                         \
    {                                                                                    \
        (void)h, (void)job, (void)uplo, (void)a, (void)lda, (void)w, (void)params;       \
        return square(n, n, batch, UNIT_##T, size);                                      \
    }
SIZES(S, or, sy)
SIZES(D, or, sy)
SIZES(C, un, he)
SIZES(Z, un, he)

/* The 64-bit interface: bytes, on the device and on the host. */
static int bytes(int64_t elements, size_t *device, size_t *host)
{
    *device = (size_t)elements * 8;
    *host = 0;
    ta_sc_workspace(TA_SC_DEFAULT, *device);
    return SOLVER_OK;
}
TA_EXPORT int cusolverDnXgeqrf_bufferSize(void *h, void *p, int64_t m, int64_t n, int ta,
                                          void *a, int64_t lda, int tt, void *tau, int tc,
                                          size_t *device, size_t *host)
{
    (void)h, (void)p, (void)ta, (void)a, (void)lda, (void)tt, (void)tau, (void)tc;
    return bytes((m > n ? m : n) * 64, device, host);
}
TA_EXPORT int cusolverDnXpotrf_bufferSize(void *h, void *p, int uplo, int64_t n, int ta,
                                          void *a, int64_t lda, int tc, size_t *device,
                                          size_t *host)
{
    (void)h, (void)p, (void)uplo, (void)ta, (void)a, (void)lda, (void)tc;
    return bytes(n * 64, device, host);
}
TA_EXPORT int cusolverDnXsyevd_bufferSize(void *h, void *p, int job, int uplo, int64_t n,
                                          int ta, void *a, int64_t lda, int tw, void *w,
                                          int tc, size_t *device, size_t *host)
{
    (void)h, (void)p, (void)job, (void)uplo, (void)ta, (void)a, (void)lda, (void)tw,
        (void)w;
    (void)tc;
    return bytes(2 * n * n, device, host);
}
TA_EXPORT int cusolverDnXsyevBatched_bufferSize(void *h, void *p, int job, int uplo,
                                                int64_t n, int ta, void *a, int64_t lda,
                                                int tw, void *w, int tc, size_t *device,
                                                size_t *host, int64_t batch)
{
    (void)h, (void)p, (void)job, (void)uplo, (void)ta, (void)a, (void)lda, (void)tw,
        (void)w;
    (void)tc;
    return bytes(2 * n * n * batch, device, host);
}
TA_EXPORT int cusolverDnXgeev_bufferSize(void *h, void *p, int left, int right, int64_t n,
                                         int ta, void *a, int64_t lda, int tw, void *w,
                                         int tl, void *vl, int64_t ldl, int tr, void *vr,
                                         int64_t ldr, int tc, size_t *device,
                                         size_t *host)
{
    (void)h, (void)p, (void)left, (void)right, (void)ta, (void)a, (void)lda, (void)tw;
    (void)w, (void)tl, (void)vl, (void)ldl, (void)tr, (void)vr, (void)ldr, (void)tc;
    return bytes(4 * n * n, device, host);
}
TA_EXPORT int cusolverDnXsytrs_bufferSize(void *h, int uplo, int64_t n, int64_t columns,
                                          int ta, void *a, int64_t lda, void *pivots,
                                          int tb, void *b, int64_t ldb, size_t *device,
                                          size_t *host)
{
    (void)h, (void)uplo, (void)ta, (void)a, (void)lda, (void)pivots, (void)tb, (void)b;
    (void)ldb;
    return bytes(n * columns, device, host);
}

/* --- what computes: queued, and its status written --------------------------------------- */
/* `info` and `batch` are the places, the handle's being 0, of the address where the device
 * would leave its status and of how many there are (0: one). Arguments are words here, as
 * they come: there are a hundred signatures. */
static int computed(const ta_sc_handle *h, va_list words, int info, int batch)
{
    int *status = NULL;
    int64_t count = 1;
    for (int i = 1; i <= info; i++) status = va_arg(words, int *);
    for (int i = info + 1; i <= batch; i++) count = (int)va_arg(words, intptr_t);
    ta_sc_no_error(status, count);
    return launched(h);
}
#define KERNEL(name, info, batch)                                                        \
    TA_EXPORT int name(const ta_sc_handle *h, ...)                                       \
    {                                                                                    \
        va_list words;                                                                   \
        va_start(words, h);                                                              \
        int status = computed(h, words, info, batch);                                    \
        va_end(words);                                                                   \
        return status;                                                                   \
    }
#define KERNELS(T, or_, sy)                                                              \
    KERNEL(cusolverDn##T##geqrf, 8, 0)                                                   \
    KERNEL(cusolverDn##T##gesvd, 15, 0)                                                  \
    KERNEL(cusolverDn##T##gesvdaStridedBatched, 18, 20)                                  \
    KERNEL(cusolverDn##T##gesvdj, 14, 0)                                                 \
    KERNEL(cusolverDn##T##gesvdjBatched, 13, 15)                                         \
    KERNEL(cusolverDn##T##getrs, 9, 0)                                                   \
    KERNEL(cusolverDn##T##or_##gqr, 9, 0)                                                \
    KERNEL(cusolverDn##T##or_##mqr, 13, 0)                                               \
    KERNEL(cusolverDn##T##potrf, 7, 0)                                                   \
    KERNEL(cusolverDn##T##potrfBatched, 5, 6)                                            \
    KERNEL(cusolverDn##T##potrs, 8, 0)                                                   \
    KERNEL(cusolverDn##T##potrsBatched, 8, 0)                                            \
    KERNEL(cusolverDn##T##sy##evd, 9, 0)                                                 \
    KERNEL(cusolverDn##T##sy##evj, 9, 0)                                                 \
    KERNEL(cusolverDn##T##sy##evjBatched, 9, 11)                                         \
    TA_EXPORT int cusolverDn##T##getrf(const ta_sc_handle *h, int m, int n, void *a,     \
                                       int lda, void *work, int *pivots, int *info)      \
    {                                                                                    \
        (void)a, (void)lda, (void)work;                                                  \
        ta_sc_no_pivoting(pivots, m < n ? m : n);                                        \
        ta_sc_no_error(info, 1);                                                         \
        return launched(h);                                                              \
    }                                                                                    \
    TA_EXPORT int cusolverDn##T##sytrf(const ta_sc_handle *h, int uplo, int n, void *a,  \
                                       int lda, int *pivots, void *work, int size,       \
                                       int *info)                                        \
    {                                                                                    \
        (void)uplo, (void)a, (void)lda, (void)work, (void)size;                          \
        ta_sc_no_pivoting(pivots, n);                                                    \
        ta_sc_no_error(info, 1);                                                         \
        return launched(h);                                                              \
    }
KERNELS(S, or, sy)
KERNELS(D, or, sy)
KERNELS(C, un, he)
KERNELS(Z, un, he)
KERNEL(cusolverDnXgeev, 21, 0)
KERNEL(cusolverDnXgeqrf, 14, 0)
KERNEL(cusolverDnXpotrf, 12, 0)
KERNEL(cusolverDnXpotrs, 11, 0)
KERNEL(cusolverDnXsyevBatched, 15, 16)
KERNEL(cusolverDnXsyevd, 15, 0)
KERNEL(cusolverDnXsytrs, 15, 0)
