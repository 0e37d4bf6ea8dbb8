/* cusparse.c - cuSPARSE: sparse matrices.
 *
 * Sparse descriptors remember rows, columns and non-zeros, since PyTorch asks. Index
 * conversions are done for real: sizes follow from them. Products compute nothing; buffer
 * sizes are guesses. Thread-safe as cuSPARSE is. */
#include <stdlib.h>

#include "simcuda.h"

enum { SPARSE_OK = 0, SPARSE_NO_MEMORY = 2, SPARSE_INVALID = 3, SPARSE_FAILED = 6 };

typedef struct matrix {
    int64_t rows, columns, count;
} matrix;

static int of(int result) { return result == TA_CU_OK ? SPARSE_OK : SPARSE_FAILED; }

TA_EXPORT int cusparseCreate(ta_sc_handle **handle)
{
    *handle = ta_sc_machine_get() ? ta_sc_handle_new() : NULL;
    return *handle ? SPARSE_OK : SPARSE_NO_MEMORY;
}
TA_EXPORT int cusparseDestroy(ta_sc_handle *handle)
{
    free(handle);
    return SPARSE_OK;
}
TA_EXPORT int cusparseSetStream(ta_sc_handle *handle, ta_stream stream)
{
    handle->stream = stream;
    return SPARSE_OK;
}
TA_EXPORT int cusparseSetPointerMode(ta_sc_handle *handle, int mode)
{
    handle->pointer_mode = mode;
    return SPARSE_OK;
}
TA_EXPORT const char *cusparseGetErrorString(int status)
{
    return status == SPARSE_OK ? "success" : "simulated cuSPARSE failed";
}

/* A buffer's size, of the right order. */
static int state(size_t bytes, size_t *size)
{
    *size = bytes;
    ta_sc_workspace(TA_SC_DEFAULT, bytes);
    return SPARSE_OK;
}

/* --- descriptors ---------------------------------------------------------------------------- */
static int make(matrix **m, int64_t rows, int64_t columns, int64_t count)
{
    *m = malloc(sizeof **m);
    if (!*m) return SPARSE_NO_MEMORY;
    **m = (matrix){rows, columns, count};
    return SPARSE_OK;
}
TA_EXPORT int cusparseCreateCsr(matrix **m, int64_t rows, int64_t columns, int64_t count)
{
    return make(m, rows, columns, count);
}
TA_EXPORT int cusparseCreateCoo(matrix **m, int64_t rows, int64_t columns, int64_t count)
{
    return make(m, rows, columns, count);
}
TA_EXPORT int cusparseCreateDnMat(matrix **m, int64_t rows, int64_t columns)
{
    return make(m, rows, columns, 0);
}
TA_EXPORT int cusparseCreateDnVec(matrix **m, int64_t size)
{
    return make(m, size, 1, 0);
}
TA_EXPORT int cusparseSpMatGetSize(const matrix *m, int64_t *rows, int64_t *columns,
                                   int64_t *count)
{
    *rows = m->rows;
    *columns = m->columns;
    *count = m->count;
    return SPARSE_OK;
}
#define PLAIN(name)                                                                      \
    TA_EXPORT int name(matrix **m) { return make(m, 0, 0, 0); }
PLAIN(cusparseCreateMatDescr)
PLAIN(cusparseCreateBsrsm2Info)
PLAIN(cusparseCreateBsrsv2Info)
PLAIN(cusparseSpGEMM_createDescr)
PLAIN(cusparseSpSM_createDescr)
PLAIN(cusparseSpSV_createDescr)
#define DESTROY(name)                                                                    \
    TA_EXPORT int name(matrix *m)                                                        \
    {                                                                                    \
        free(m);                                                                         \
        return SPARSE_OK;                                                                \
    }
DESTROY(cusparseDestroyMatDescr)
DESTROY(cusparseDestroyBsrsm2Info)
DESTROY(cusparseDestroyBsrsv2Info)
DESTROY(cusparseDestroyDnMat)
DESTROY(cusparseDestroyDnVec)
DESTROY(cusparseDestroySpMat)
DESTROY(cusparseSpGEMM_destroyDescr)
DESTROY(cusparseSpSM_destroyDescr)
DESTROY(cusparseSpSV_destroyDescr)
#define SETTER(name)                                                                     \
    TA_EXPORT int name(const matrix *m) { return m ? SPARSE_OK : SPARSE_INVALID; }
SETTER(cusparseCsrSetPointers)
SETTER(cusparseCsrSetStridedBatch)
SETTER(cusparseDnMatSetStridedBatch)
SETTER(cusparseSetMatDiagType)
SETTER(cusparseSetMatFillMode)
SETTER(cusparseSetMatIndexBase)
SETTER(cusparseSetMatType)
SETTER(cusparseSpMatSetAttribute)

/* --- indices: real ------------------------------------------------------------------------------ */
TA_EXPORT int cusparseCreateIdentityPermutation(const ta_sc_handle *h, int count,
                                                int *out)
{
    for (int i = 0; i < count; i++) out[i] = i;
    return of(ta_sc_handle_launch(h));
}
TA_EXPORT int cusparseXcoo2csr(const ta_sc_handle *h, const int *rows, int count,
                               int height, int *starts, int base)
{
    int at = 0;
    for (int row = 0; row <= height; row++) {
        while (at < count && rows[at] - base < row) at++;
        starts[row] = at + base;
    }
    return of(ta_sc_handle_launch(h));
}

/* --- products: their result's non-zeros are guessed ---------------------------------------------- */
/* As if spread evenly: every non-zero of A meets the average row of B. */
static int spgemm(const ta_sc_handle *h, const matrix *a, const matrix *b, matrix *c,
                  size_t *size)
{
    int64_t each = b->rows ? (b->count + b->rows - 1) / b->rows : 0;
    int64_t most = c->rows * c->columns, count = a->count * each;
    c->count = count < most ? count : most;
    state((size_t)c->count * 16 + 1024, size);
    return of(ta_sc_handle_launch(h));
}
TA_EXPORT int cusparseSpGEMM_workEstimation(const ta_sc_handle *h, int oa, int ob,
                                            const void *alpha, const matrix *a,
                                            const matrix *b, const void *beta, matrix *c,
                                            int type, int algorithm, void *descriptor,
                                            size_t *size, void *buffer)
{
    (void)oa, (void)ob, (void)alpha, (void)beta, (void)type, (void)algorithm;
    (void)descriptor, (void)buffer;
    return spgemm(h, a, b, c, size);
}
TA_EXPORT int cusparseSpGEMM_compute(const ta_sc_handle *h, int oa, int ob,
                                     const void *alpha, const matrix *a, const matrix *b,
                                     const void *beta, matrix *c, int type, int algorithm,
                                     void *descriptor, size_t *size, void *buffer)
{
    (void)oa, (void)ob, (void)alpha, (void)beta, (void)type, (void)algorithm;
    (void)descriptor, (void)buffer;
    return spgemm(h, a, b, c, size);
}
TA_EXPORT int cusparseXcsrgeam2Nnz(const ta_sc_handle *h, int m, int n, const void *da,
                                   int count_a, const int *ra, const int *ca,
                                   const void *db, int count_b, const int *rb,
                                   const int *cb, const void *dc, int *rc, int *total,
                                   void *buffer)
{
    (void)n, (void)da, (void)ca, (void)db, (void)cb, (void)dc, (void)buffer;
    /* as if no two met */
    for (int row = 0; row <= m; row++) rc[row] = ra[row] + rb[row] - rb[0];
    *total = count_a + count_b;
    return of(ta_sc_handle_launch(h));
}

/* --- buffer sizes ----------------------------------------------------------------------------------- */
TA_EXPORT int cusparseSpMM_bufferSize(void *h, int oa, int ob, void *alpha,
                                      const matrix *a, void *b, void *beta, void *c,
                                      int type, int algorithm, size_t *size)
{
    (void)h, (void)oa, (void)ob, (void)alpha, (void)b, (void)beta, (void)c, (void)type;
    (void)algorithm;
    return state((size_t)a->rows * 4 + 1024, size);
}
TA_EXPORT int cusparseSDDMM_bufferSize(void *h, int oa, int ob, void *alpha, void *a,
                                       void *b, void *beta, void *c, int type,
                                       int algorithm, size_t *size)
{
    (void)h, (void)oa, (void)ob, (void)alpha, (void)a, (void)b, (void)beta, (void)c;
    (void)type, (void)algorithm;
    return state(1024, size);
}
TA_EXPORT int cusparseSpMV_bufferSize(void *h, int op, void *alpha, const matrix *a,
                                      void *x, void *beta, void *y, int type,
                                      int algorithm, size_t *size)
{
    (void)h, (void)op, (void)alpha, (void)x, (void)beta, (void)y, (void)type;
    (void)algorithm;
    return state((size_t)a->rows * 4 + 1024, size);
}
TA_EXPORT int cusparseSpSM_bufferSize(void *h, int oa, int ob, void *alpha,
                                      const matrix *a, void *b, void *c, int type,
                                      int algorithm, void *descriptor, size_t *size)
{
    (void)h, (void)oa, (void)ob, (void)alpha, (void)b, (void)c, (void)type;
    (void)algorithm, (void)descriptor;
    return state((size_t)(a->rows + a->count) * 8 + 1024, size);
}
TA_EXPORT int cusparseSpSV_bufferSize(void *h, int op, void *alpha, const matrix *a,
                                      void *x, void *y, int type, int algorithm,
                                      void *descriptor, size_t *size)
{
    (void)h, (void)op, (void)alpha, (void)x, (void)y, (void)type, (void)algorithm;
    (void)descriptor;
    return state((size_t)(a->rows + a->count) * 8 + 1024, size);
}
#define SORT(name)                                                                       \
    TA_EXPORT int name(void *h, int m, int n, int count, const void *rows,               \
                       const void *columns, size_t *size)                                \
    {                                                                                    \
        (void)h, (void)m, (void)n, (void)rows, (void)columns;                            \
        return state((size_t)count * 8 + 1024, size);                                    \
    }
SORT(cusparseXcoosort_bufferSizeExt)
SORT(cusparseXcsrsort_bufferSizeExt)
/* Bytes of a solver's buffer; at most what an int holds. */
static int words(int rows, int count)
{
    int64_t all = ((int64_t)rows + count) * 8 + 1024;
    all = all > INT32_MAX ? INT32_MAX : all;
    ta_sc_workspace(TA_SC_DEFAULT, (uint64_t)all);
    return (int)all;
}
#define TYPED(T)                                                                         \
    TA_EXPORT int cusparse##T##csrgeam2_bufferSizeExt(                                   \
        void *h, int m, int n, void *alpha, void *da, int na, void *va, void *ra,        \
        void *ca, void *beta, void *db, int nb, void *vb, void *rb, void *cb, void *dc,  \
        void *vc, void *rc, void *cc, size_t *size)                                      \
    {                                                                                    \
        (void)h, (void)n, (void)alpha, (void)da, (void)na, (void)va, (void)ra, (void)ca; \
        (void)beta, (void)db, (void)nb, (void)vb, (void)rb, (void)cb, (void)dc,          \
            (void)vc;                                                                    \
        (void)rc, (void)cc;                                                              \
        return state((size_t)m * 4 + 1024, size);                                        \
    }                                                                                    \
    TA_EXPORT int cusparse##T##bsrsv2_bufferSize(                                        \
        void *h, int dir, int op, int rows, int count, void *d, void *v, void *r,        \
        void *c, int block, void *info, int *size)                                       \
    {                                                                                    \
        (void)h, (void)dir, (void)op, (void)d, (void)v, (void)r, (void)c, (void)block;   \
        (void)info;                                                                      \
        *size = words(rows, count);                                                      \
        return SPARSE_OK;                                                                \
    }                                                                                    \
    TA_EXPORT int cusparse##T##bsrsm2_bufferSize(                                        \
        void *h, int dir, int oa, int ox, int rows, int n, int count, void *d, void *v,  \
        void *r, void *c, int block, void *info, int *size)                              \
    {                                                                                    \
        (void)h, (void)dir, (void)oa, (void)ox, (void)n, (void)d, (void)v, (void)r,      \
            (void)c;                                                                     \
        (void)block, (void)info;                                                         \
        *size = words(rows, count);                                                      \
        return SPARSE_OK;                                                                \
    }
TYPED(S)
TYPED(D)
TYPED(C)
TYPED(Z)

/* --- what computes: queued ------------------------------------------------------------------------------ */
#define KERNEL(name)                                                                     \
    TA_EXPORT int name(const ta_sc_handle *h) { return of(ta_sc_handle_launch(h)); }
#define KERNELS(T)                                                                       \
    KERNEL(cusparse##T##bsrmm)                                                           \
    KERNEL(cusparse##T##bsrmv)                                                           \
    KERNEL(cusparse##T##bsrsm2_analysis)                                                 \
    KERNEL(cusparse##T##bsrsm2_solve)                                                    \
    KERNEL(cusparse##T##bsrsv2_analysis)                                                 \
    KERNEL(cusparse##T##bsrsv2_solve)                                                    \
    KERNEL(cusparse##T##csrgeam2)
KERNELS(S)
KERNELS(D)
KERNELS(C)
KERNELS(Z)
KERNEL(cusparseSDDMM)
KERNEL(cusparseSDDMM_preprocess)
KERNEL(cusparseSpGEMM_copy)
KERNEL(cusparseSpMM)
KERNEL(cusparseSpMV)
KERNEL(cusparseSpSM_analysis)
KERNEL(cusparseSpSM_solve)
KERNEL(cusparseSpSV_analysis)
KERNEL(cusparseSpSV_solve)
KERNEL(cusparseXcoosortByRow)
KERNEL(cusparseXcsrsort)

/* No pivot is zero. */
#define PIVOT(name)                                                                      \
    TA_EXPORT int name(const ta_sc_handle *h, const void *info, int *position)           \
    {                                                                                    \
        (void)info;                                                                      \
        *position = -1;                                                                  \
        return of(ta_sc_handle_launch(h));                                               \
    }
PIVOT(cusparseXbsrsm2_zeroPivot)
PIVOT(cusparseXbsrsv2_zeroPivot)
