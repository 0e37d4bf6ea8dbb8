/* cublas.c - cuBLAS and cuBLASLt.
 *
 * Called by PyTorch. Nothing is computed: a function that would launch kernels queues work on
 * its handle's stream, answers 0 on the host, and leaves the status that all went well.
 * Workspaces are PyTorch's own, from its allocator. cuBLASLt finds one
 * algorithm that needs none. Thread-safe as cuBLAS is: one handle, one thread. */
#include <stdlib.h>
#include <string.h>

#include "simcuda.h"

enum { BLAS_OK = 0, BLAS_NO_MEMORY = 3, BLAS_INVALID = 7, BLAS_FAILED = 13 };

static const char *const blas[] = {"libcublas.so.13", "libcublas.so.12", NULL};
static const char *const lt[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};

static int of(int result) { return result == TA_CU_OK ? BLAS_OK : BLAS_FAILED; }

/* --- handles ------------------------------------------------------------------------------ */
TA_EXPORT int cublasCreate_v2(ta_sc_handle **handle)
{
    *handle = ta_sc_machine_get() ? ta_sc_handle_new() : NULL;
    return *handle ? BLAS_OK : BLAS_NO_MEMORY;
}
TA_EXPORT int cublasDestroy_v2(ta_sc_handle *handle)
{
    free(handle);
    return BLAS_OK;
}
TA_EXPORT int cublasSetStream_v2(ta_sc_handle *handle, ta_stream stream)
{
    handle->stream = stream;
    return BLAS_OK;
}
TA_EXPORT int cublasGetStream_v2(ta_sc_handle *handle, ta_stream *stream)
{
    *stream = handle->stream;
    return BLAS_OK;
}
TA_EXPORT int cublasSetWorkspace_v2(ta_sc_handle *handle, void *workspace, size_t size)
{
    (void)handle, (void)workspace, (void)size;
    return BLAS_OK;
}
TA_EXPORT int cublasSetMathMode(ta_sc_handle *handle, int mode)
{
    handle->math_mode = mode;
    return BLAS_OK;
}
TA_EXPORT int cublasGetMathMode(ta_sc_handle *handle, int *mode)
{
    *mode = handle->math_mode;
    return BLAS_OK;
}
TA_EXPORT int cublasSetPointerMode_v2(ta_sc_handle *handle, int mode)
{
    handle->pointer_mode = mode;
    return BLAS_OK;
}
TA_EXPORT int cublasGetPointerMode_v2(ta_sc_handle *handle, int *mode)
{
    *mode = handle->pointer_mode;
    return BLAS_OK;
}
TA_EXPORT int cublasSetAtomicsMode(ta_sc_handle *handle, int mode)
{
    (void)handle, (void)mode;
    return BLAS_OK;
}
TA_EXPORT int cublasSetSmCountTarget(ta_sc_handle *handle, int count)
{
    (void)handle, (void)count;
    return BLAS_OK;
}
TA_EXPORT int cublasSetEmulationStrategy(ta_sc_handle *handle, int strategy)
{
    (void)handle, (void)strategy;
    return BLAS_OK;
}
TA_EXPORT int cublasGetVersion_v2(ta_sc_handle *handle, int *version)
{
    int (*ask)(void *, int *);
    *(void **)&ask = ta_sc_real(blas, "cublasGetVersion_v2");
    (void)handle;
    *version = 130000;
    return ask ? ask(NULL, version) : BLAS_OK;
}
TA_EXPORT const char *cublasGetStatusString(int status)
{
    return status == BLAS_OK ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_EXECUTION_FAILED";
}
TA_EXPORT const char *cublasGetStatusName(int status)
{
    return cublasGetStatusString(status);
}

/* --- moves between host and device ------------------------------------------------------------ */
static int move(int rows, int columns, int size, const void *from, int from_pitch,
                void *to, int to_pitch, ta_stream stream)
{
    if (rows < 0 || columns < 0 || size <= 0) return BLAS_INVALID;
    size_t unit = (size_t)size;
    return of(ta_sc_copy_2d(to, (size_t)to_pitch * unit, from, (size_t)from_pitch * unit,
                            (size_t)rows * unit, (size_t)columns, stream, false));
}
TA_EXPORT int cublasSetMatrixAsync(int rows, int columns, int size, const void *from,
                                   int from_pitch, void *to, int to_pitch, ta_stream s)
{
    return move(rows, columns, size, from, from_pitch, to, to_pitch, s);
}
TA_EXPORT int cublasGetMatrixAsync(int rows, int columns, int size, const void *from,
                                   int from_pitch, void *to, int to_pitch, ta_stream s)
{
    return move(rows, columns, size, from, from_pitch, to, to_pitch, s);
}
TA_EXPORT int cublasSetVectorAsync(int count, int size, const void *from, int from_step,
                                   void *to, int to_step, ta_stream s)
{
    return move(1, count, size, from, from_step, to, to_step, s);
}
TA_EXPORT int cublasGetVectorAsync(int count, int size, const void *from, int from_step,
                                   void *to, int to_step, ta_stream s)
{
    return move(1, count, size, from, from_step, to, to_step, s);
}

/* --- what computes: queued ---------------------------------------------------------------------- */
static int launched(const ta_sc_handle *handle)
{
    return of(ta_sc_handle_launch(handle));
}
#define KERNEL(name)                                                                     \
    TA_EXPORT int name(const ta_sc_handle *handle) { return launched(handle); }
#define EVERY_TYPE(T)                                                                    \
    KERNEL(cublas##T##axpy_v2)                                                           \
    KERNEL(cublas##T##copy_v2)                                                           \
    KERNEL(cublas##T##gemmBatched)                                                       \
    KERNEL(cublas##T##gemmStridedBatched)                                                \
    KERNEL(cublas##T##gemm_v2)                                                           \
    KERNEL(cublas##T##gemv_v2)                                                           \
    KERNEL(cublas##T##rot_v2)                                                            \
    KERNEL(cublas##T##scal_v2)                                                           \
    KERNEL(cublas##T##swap_v2)                                                           \
    KERNEL(cublas##T##symm_v2)                                                           \
    KERNEL(cublas##T##symv_v2)                                                           \
    KERNEL(cublas##T##syr2_v2)                                                           \
    KERNEL(cublas##T##syr2k_v2)                                                          \
    KERNEL(cublas##T##syr_v2)                                                            \
    KERNEL(cublas##T##syrk_v2)                                                           \
    KERNEL(cublas##T##trmm_v2)                                                           \
    KERNEL(cublas##T##trmv_v2)                                                           \
    KERNEL(cublas##T##trsmBatched)                                                       \
    KERNEL(cublas##T##trsm_v2)                                                           \
    KERNEL(cublas##T##trsv_v2)
#define REAL(T)                                                                          \
    KERNEL(cublas##T##ger_v2)                                                            \
    KERNEL(cublas##T##rotm_v2)
#define COMPLEX(T)                                                                       \
    KERNEL(cublas##T##gerc_v2)                                                           \
    KERNEL(cublas##T##geru_v2)                                                           \
    KERNEL(cublas##T##hemm_v2)                                                           \
    KERNEL(cublas##T##hemv_v2)                                                           \
    KERNEL(cublas##T##her2_v2)                                                           \
    KERNEL(cublas##T##her2k_v2)                                                          \
    KERNEL(cublas##T##her_v2)                                                            \
    KERNEL(cublas##T##herk_v2)
EVERY_TYPE(S)
EVERY_TYPE(D)
EVERY_TYPE(C)
EVERY_TYPE(Z)
REAL(S)
REAL(D)
COMPLEX(C)
COMPLEX(Z)
KERNEL(cublasCsrot_v2)
KERNEL(cublasZdrot_v2)
KERNEL(cublasCsscal_v2)
KERNEL(cublasZdscal_v2)
KERNEL(cublasSgemmEx)
KERNEL(cublasGemmEx)
KERNEL(cublasGemmStridedBatchedEx)

/* --- what answers: numbers on the host, by the handle's mode, are written ------------------------ */
/* An answer of `size` bytes: 0, where the host is to have it. */
static int answer(const ta_sc_handle *handle, void *result, size_t size)
{
    if (handle && handle->pointer_mode == 0 && result) memset(result, 0, size);
    return launched(handle);
}
#define DOT(name, size)                                                                  \
    TA_EXPORT int name(const ta_sc_handle *handle, int n, void *x, int step, void *y,    \
                       int other, void *result)                                          \
    {                                                                                    \
        (void)n, (void)x, (void)step, (void)y, (void)other;                              \
        return answer(handle, result, size);                                             \
    }
#define OF_ONE(name, size)                                                               \
    TA_EXPORT int name(const ta_sc_handle *handle, int n, void *x, int step,             \
                       void *result)                                                     \
    {                                                                                    \
        (void)n, (void)x, (void)step;                                                    \
        return answer(handle, result, size);                                             \
    }
/* A rotation that turns nothing: what it is given stays, cosine and sine are answers. */
#define ROTATION(T, size)                                                                \
    TA_EXPORT int cublas##T##rotg_v2(const ta_sc_handle *handle, void *a, void *b,       \
                                     void *cosine, void *sine)                           \
    {                                                                                    \
        (void)a, (void)b;                                                                \
        answer(handle, cosine, size);                                                    \
        return answer(handle, sine, size);                                               \
    }
#define MODIFIED(T, size)                                                                \
    TA_EXPORT int cublas##T##rotmg_v2(const ta_sc_handle *handle, void *d1, void *d2,    \
                                      void *x, void *y, void *parameters)                \
    {                                                                                    \
        (void)d1, (void)d2, (void)x, (void)y;                                            \
        return answer(handle, parameters, (size_t)5 * (size));                           \
    }
DOT(cublasSdot_v2, 4)
DOT(cublasDdot_v2, 8)
DOT(cublasCdotc_v2, 8)
DOT(cublasCdotu_v2, 8)
DOT(cublasZdotc_v2, 16)
DOT(cublasZdotu_v2, 16)
OF_ONE(cublasSasum_v2, 4)
OF_ONE(cublasDasum_v2, 8)
OF_ONE(cublasScasum_v2, 4)
OF_ONE(cublasDzasum_v2, 8)
OF_ONE(cublasSnrm2_v2, 4)
OF_ONE(cublasDnrm2_v2, 8)
OF_ONE(cublasScnrm2_v2, 4)
OF_ONE(cublasDznrm2_v2, 8)
OF_ONE(cublasIsamax_v2, 4)
OF_ONE(cublasIdamax_v2, 4)
OF_ONE(cublasIcamax_v2, 4)
OF_ONE(cublasIzamax_v2, 4)
OF_ONE(cublasIsamin_v2, 4)
OF_ONE(cublasIdamin_v2, 4)
OF_ONE(cublasIcamin_v2, 4)
OF_ONE(cublasIzamin_v2, 4)
ROTATION(S, 4)
ROTATION(D, 8)
ROTATION(C, 4)
ROTATION(Z, 8)
MODIFIED(S, 4)
MODIFIED(D, 8)
TA_EXPORT int cublasDotEx(const ta_sc_handle *handle, int n, void *x, int type, int step,
                          void *y, int type_y, int step_y, void *result, int type_of)
{
    (void)n, (void)x, (void)type, (void)step, (void)y, (void)type_y, (void)step_y;
    /* cudaDataType: 1 double, 5 complex double, 2 half, 14 bfloat16, 4 complex float */
    size_t size = type_of == 5                    ? 16
                  : type_of == 1 || type_of == 4  ? 8
                  : type_of == 2 || type_of == 14 ? 2
                                                  : 4;
    return answer(handle, result, size);
}

/* --- factorisations: they went well --------------------------------------------------------------- */
#define FACTORS(T)                                                                       \
    TA_EXPORT int cublas##T##getrfBatched(const ta_sc_handle *handle, int n, void *a,    \
                                          int lda, int *pivots, int *info, int batch)    \
    {                                                                                    \
        (void)a, (void)lda;                                                              \
        for (int i = 0; pivots && i < batch; i++)                                        \
            ta_sc_no_pivoting(pivots + (size_t)i * (size_t)n, n);                        \
        ta_sc_no_error(info, batch);                                                     \
        return launched(handle);                                                         \
    }                                                                                    \
    TA_EXPORT int cublas##T##getrsBatched(                                               \
        const ta_sc_handle *handle, int trans, int n, int columns, void *a, int lda,     \
        const int *pivots, void *b, int ldb, int *info)                                  \
    {                                                                                    \
        (void)trans, (void)n, (void)columns, (void)a, (void)lda, (void)pivots, (void)b;  \
        (void)ldb;                                                                       \
        ta_sc_no_error(info, 1);                                                         \
        return launched(handle);                                                         \
    }                                                                                    \
    TA_EXPORT int cublas##T##geqrfBatched(const ta_sc_handle *handle, int m, int n,      \
                                          void *a, int lda, void *tau, int *info)        \
    {                                                                                    \
        (void)m, (void)n, (void)a, (void)lda, (void)tau;                                 \
        ta_sc_no_error(info, 1);                                                         \
        return launched(handle);                                                         \
    }                                                                                    \
    TA_EXPORT int cublas##T##gelsBatched(const ta_sc_handle *handle, int trans, int m,   \
                                         int n, int columns, void *a, int lda, void *c,  \
                                         int ldc, int *info, int *each, int batch)       \
    {                                                                                    \
        (void)trans, (void)m, (void)n, (void)columns, (void)a, (void)lda, (void)c;       \
        (void)ldc;                                                                       \
        ta_sc_no_error(info, 1);                                                         \
        ta_sc_no_error(each, batch);                                                     \
        return launched(handle);                                                         \
    }
FACTORS(S)
FACTORS(D)
FACTORS(C)
FACTORS(Z)

/* --- cuBLASLt ---------------------------------------------------------------------------------------- */
typedef struct heuristic {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} heuristic;
/* Descriptors remember nothing: nobody asks. */
typedef struct description {
    int kind;
} description;

static int describe(description **out, int kind)
{
    *out = malloc(sizeof **out);
    if (!*out) return BLAS_NO_MEMORY;
    (*out)->kind = kind;
    return BLAS_OK;
}
static int drop(description *d)
{
    free(d);
    return BLAS_OK;
}
TA_EXPORT size_t cublasLtGetVersion(void)
{
    size_t (*ask)(void);
    *(void **)&ask = ta_sc_real(lt, "cublasLtGetVersion");
    return ask ? ask() : 130000;
}
TA_EXPORT size_t cublasLtGetCudartVersion(void)
{
    return (size_t)ta_sc_runtime_version();
}
TA_EXPORT int cublasLtCreate(ta_sc_handle **handle) { return cublasCreate_v2(handle); }
TA_EXPORT int cublasLtDestroy(ta_sc_handle *handle) { return cublasDestroy_v2(handle); }
TA_EXPORT int cublasLtMatmulDescCreate(description **d) { return describe(d, 0); }
TA_EXPORT int cublasLtMatmulDescDestroy(description *d) { return drop(d); }
TA_EXPORT int cublasLtMatmulDescSetAttribute(description *d)
{
    return d ? BLAS_OK : BLAS_INVALID;
}
TA_EXPORT int cublasLtMatrixLayoutCreate(description **d) { return describe(d, 1); }
TA_EXPORT int cublasLtMatrixLayoutDestroy(description *d) { return drop(d); }
TA_EXPORT int cublasLtMatrixLayoutSetAttribute(description *d)
{
    return d ? BLAS_OK : BLAS_INVALID;
}
TA_EXPORT int cublasLtMatmulPreferenceCreate(description **d) { return describe(d, 2); }
TA_EXPORT int cublasLtMatmulPreferenceDestroy(description *d) { return drop(d); }
TA_EXPORT int cublasLtMatmulPreferenceSetAttribute(description *d)
{
    return d ? BLAS_OK : BLAS_INVALID;
}
TA_EXPORT int cublasLtMatmulAlgoGetHeuristic(const void *handle, const void *operation,
                                             const void *a, const void *b, const void *c,
                                             const void *d, const void *preference,
                                             int wanted, heuristic *results, int *count)
{
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
    if (wanted < 1) return BLAS_INVALID;
    *results = (heuristic){.algorithm = {1}, .waves = 1.0F};
    *count = 1;
    return BLAS_OK;
}
TA_EXPORT int cublasLtMatmulAlgoInit(const void *handle, int compute, int scale, int a,
                                     int b, int c, int d, int id, uint64_t *algorithm)
{
    (void)handle, (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d;
    memset(algorithm, 0, 64);
    algorithm[0] = (uint64_t)id;
    return BLAS_OK;
}
TA_EXPORT int cublasLtMatmulAlgoConfigSetAttribute(void *algorithm)
{
    return algorithm ? BLAS_OK : BLAS_INVALID;
}
TA_EXPORT int cublasLtMatmulAlgoConfigGetAttribute(const void *algorithm, int attribute,
                                                   void *value, size_t size,
                                                   size_t *written)
{
    (void)algorithm, (void)attribute;
    memset(value, 0, size);
    if (written) *written = size;
    return BLAS_OK;
}
TA_EXPORT int cublasLtMatmulAlgoCheck(const void *handle, const void *operation,
                                      const void *a, const void *b, const void *c,
                                      const void *d, const void *algorithm,
                                      heuristic *result)
{
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)algorithm;
    *result = (heuristic){.algorithm = {1}, .waves = 1.0F};
    return BLAS_OK;
}
TA_EXPORT int cublasLtMatmul(const void *handle, const void *operation, const void *alpha,
                             const void *a, const void *a_layout, const void *b,
                             const void *b_layout, const void *beta, const void *c,
                             const void *c_layout, void *d, const void *d_layout,
                             const void *algorithm, void *workspace, size_t size,
                             ta_stream stream)
{
    (void)handle, (void)operation, (void)alpha, (void)a, (void)a_layout, (void)b;
    (void)b_layout, (void)beta, (void)c, (void)c_layout, (void)d, (void)d_layout;
    (void)algorithm, (void)workspace, (void)size;
    return of(ta_sc_launch(stream));
}
