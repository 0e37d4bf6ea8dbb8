/* cublas.c - cuBLAS and cuBLASLt.
 *
 * Called by PyTorch. Nothing is computed: a function that would launch kernels queues work on
 * its handle's stream. Workspaces are PyTorch's own, from its allocator. cuBLASLt finds one
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
/* clang-format off */
#define KERNELS(X)                                                                                  \
    X(cublasCaxpy_v2) X(cublasCcopy_v2) X(cublasCdotc_v2) X(cublasCdotu_v2)                 \
    X(cublasCgelsBatched) X(cublasCgemmBatched) X(cublasCgemmStridedBatched)                \
    X(cublasCgemm_v2) X(cublasCgemv_v2) X(cublasCgeqrfBatched) X(cublasCgerc_v2)            \
    X(cublasCgeru_v2) X(cublasCgetrfBatched) X(cublasCgetrsBatched) X(cublasChemm_v2)       \
    X(cublasChemv_v2) X(cublasCher2_v2) X(cublasCher2k_v2) X(cublasCher_v2)                 \
    X(cublasCherk_v2) X(cublasCrot_v2) X(cublasCrotg_v2) X(cublasCscal_v2)                  \
    X(cublasCsrot_v2) X(cublasCsscal_v2) X(cublasCswap_v2) X(cublasCsymm_v2)                \
    X(cublasCsymv_v2) X(cublasCsyr2_v2) X(cublasCsyr2k_v2) X(cublasCsyr_v2)                 \
    X(cublasCsyrk_v2) X(cublasCtrmm_v2) X(cublasCtrmv_v2) X(cublasCtrsmBatched)             \
    X(cublasCtrsm_v2) X(cublasCtrsv_v2) X(cublasDasum_v2) X(cublasDaxpy_v2)                 \
    X(cublasDcopy_v2) X(cublasDdot_v2) X(cublasDgelsBatched) X(cublasDgemmBatched)          \
    X(cublasDgemmStridedBatched) X(cublasDgemm_v2) X(cublasDgemv_v2)                        \
    X(cublasDgeqrfBatched) X(cublasDger_v2) X(cublasDgetrfBatched)                          \
    X(cublasDgetrsBatched) X(cublasDnrm2_v2) X(cublasDotEx) X(cublasDrot_v2)                \
    X(cublasDrotg_v2) X(cublasDrotm_v2) X(cublasDrotmg_v2) X(cublasDscal_v2)                \
    X(cublasDswap_v2) X(cublasDsymm_v2) X(cublasDsymv_v2) X(cublasDsyr2_v2)                 \
    X(cublasDsyr2k_v2) X(cublasDsyr_v2) X(cublasDsyrk_v2) X(cublasDtrmm_v2)                 \
    X(cublasDtrmv_v2) X(cublasDtrsmBatched) X(cublasDtrsm_v2) X(cublasDtrsv_v2)             \
    X(cublasDzasum_v2) X(cublasDznrm2_v2) X(cublasGemmEx) X(cublasGemmStridedBatchedEx)     \
    X(cublasIcamax_v2) X(cublasIcamin_v2) X(cublasIdamax_v2) X(cublasIdamin_v2)             \
    X(cublasIsamax_v2) X(cublasIsamin_v2) X(cublasIzamax_v2) X(cublasIzamin_v2)             \
    X(cublasSasum_v2) X(cublasSaxpy_v2) X(cublasScasum_v2) X(cublasScnrm2_v2)               \
    X(cublasScopy_v2) X(cublasSdot_v2) X(cublasSgelsBatched) X(cublasSgemmBatched)          \
    X(cublasSgemmEx) X(cublasSgemmStridedBatched) X(cublasSgemm_v2) X(cublasSgemv_v2)       \
    X(cublasSgeqrfBatched) X(cublasSger_v2) X(cublasSgetrfBatched)                          \
    X(cublasSgetrsBatched) X(cublasSnrm2_v2) X(cublasSrot_v2) X(cublasSrotg_v2)             \
    X(cublasSrotm_v2) X(cublasSrotmg_v2) X(cublasSscal_v2) X(cublasSswap_v2)                \
    X(cublasSsymm_v2) X(cublasSsymv_v2) X(cublasSsyr2_v2) X(cublasSsyr2k_v2)                \
    X(cublasSsyr_v2) X(cublasSsyrk_v2) X(cublasStrmm_v2) X(cublasStrmv_v2)                  \
    X(cublasStrsmBatched) X(cublasStrsm_v2) X(cublasStrsv_v2) X(cublasZaxpy_v2)             \
    X(cublasZcopy_v2) X(cublasZdotc_v2) X(cublasZdotu_v2) X(cublasZdrot_v2)                 \
    X(cublasZdscal_v2) X(cublasZgelsBatched) X(cublasZgemmBatched)                          \
    X(cublasZgemmStridedBatched) X(cublasZgemm_v2) X(cublasZgemv_v2)                        \
    X(cublasZgeqrfBatched) X(cublasZgerc_v2) X(cublasZgeru_v2) X(cublasZgetrfBatched)       \
    X(cublasZgetrsBatched) X(cublasZhemm_v2) X(cublasZhemv_v2) X(cublasZher2_v2)            \
    X(cublasZher2k_v2) X(cublasZher_v2) X(cublasZherk_v2) X(cublasZrot_v2)                  \
    X(cublasZrotg_v2) X(cublasZscal_v2) X(cublasZswap_v2) X(cublasZsymm_v2)                 \
    X(cublasZsymv_v2) X(cublasZsyr2_v2) X(cublasZsyr2k_v2) X(cublasZsyr_v2)                 \
    X(cublasZsyrk_v2) X(cublasZtrmm_v2) X(cublasZtrmv_v2) X(cublasZtrsmBatched)             \
    X(cublasZtrsm_v2) X(cublasZtrsv_v2)
/* clang-format on */
#define X(name)                                                                          \
    TA_EXPORT int name(const ta_sc_handle *handle)                                       \
    {                                                                                    \
        return of(ta_sc_handle_launch(handle));                                          \
    }
KERNELS(X)
#undef X

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
