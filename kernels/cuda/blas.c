#include "kernels/cuda/blas.h"

#include "kernels/gpu_trouble.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The functions that are used, by their names in the library. */
#define FUNCTIONS(X)                                                           \
    X(Create)                                                                  \
    X(Destroy)                                                                 \
    X(Matmul)                                                                  \
    X(MatmulAlgoGetHeuristic)                                                  \
    X(MatmulAlgoConfigGetAttribute)                                            \
    X(MatmulDescCreate)                                                        \
    X(MatmulDescSetAttribute)                                                  \
    X(MatmulDescDestroy)                                                       \
    X(MatrixLayoutCreate)                                                      \
    X(MatrixLayoutDestroy)                                                     \
    X(MatmulPreferenceCreate)                                                  \
    X(MatmulPreferenceSetAttribute)                                            \
    X(MatmulPreferenceDestroy)

struct library {
#define MEMBER(name) __typeof__(&cublasLt##name) name;
    FUNCTIONS(MEMBER)
#undef MEMBER
};

enum {
    WAYS = 4
};

struct size {
    uint32_t rows, n, k; /* k 0: none */
    bool add;
};

/* Layouts and algorithm for one size. */
struct choice {
    struct size size;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulAlgo_t algorithm;
};

struct cuda_products {
    struct library lt;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatmulPreference_t preference;
    cudaDataType_t half;
    void *workspace;
    struct choice choice[CUDA_PRODUCT_KEPT]; /* in sets of WAYS, by size */
    unsigned next; /* of a full set, which is replaced */
};

static void *open_library(void)
{
    static const char *const places[] = {
        "libcublasLt.so.13",
        "/usr/local/cuda/lib64/libcublasLt.so.13",
        "/usr/local/cuda-13/lib64/libcublasLt.so.13",
    };
    void *handle = NULL;

    for (size_t i = 0; !handle && i < sizeof places / sizeof *places; i++)
        handle = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    return handle;
}

static int load(struct library *lt, struct ocr_err *err)
{
    void *handle = open_library(), *symbol;

    if (!handle) {
        ocr_gpu_err(err, OCR_GPU_NO_CUBLASLT, NULL, "");
        return -ENODEV;
    }
#define LOAD(name)                                                             \
    symbol = dlsym(handle, "cublasLt" #name);                                  \
    if (!symbol) {                                                             \
        ocr_err_set(err, -ENOEXEC, "libcublasLt.so.13 lacks cublasLt" #name);  \
        return -ENOEXEC;                                                       \
    }                                                                          \
    memcpy(&lt->name, &symbol, sizeof symbol); /* POSIX allows, C does not */
    FUNCTIONS(LOAD)
#undef LOAD
    return 0;
}

int cuda_products_check(struct ocr_err *err)
{
    struct library lt;

    return load(&lt, err);
}

static int complain(struct ocr_err *err, cublasStatus_t status,
                    const char *what)
{
    return ocr_err_set(
        err, status == CUBLAS_STATUS_ALLOC_FAILED ? -ENOMEM : -EIO,
        "cuda: cuBLASLt cannot %s (status %d)", what, (int)status);
}

static cublasStatus_t make_preference(struct cuda_products *p)
{
    const uint64_t bytes = CUDA_PRODUCT_WORKSPACE;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasStatus_t s = p->lt.MatmulPreferenceCreate(&p->preference);

    if (!s)
        s = p->lt.MatmulPreferenceSetAttribute(
            p->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
            sizeof bytes);
    if (!s)
        s = p->lt.MatmulPreferenceSetAttribute(
            p->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
            &reduction, sizeof reduction);
    return s;
}

/* The library counts in columns: our rows of w are its columns, transposed
 * back, and y's rows are its columns. */
static cublasStatus_t make_product(struct cuda_products *p)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasStatus_t s =
        p->lt.MatmulDescCreate(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (!s)
        s = p->lt.MatmulDescSetAttribute(p->product,
                                         CUBLASLT_MATMUL_DESC_TRANSA,
                                         &transposed, sizeof transposed);
    return s;
}

int cuda_products_open(struct cuda_products **out, void *workspace, bool fp16,
                       struct ocr_err *err)
{
    struct cuda_products *p = calloc(1, sizeof *p);
    cublasStatus_t s;
    int rc;

    if (!p)
        return ocr_err_set(err, -ENOMEM, "cuda: no memory");
    p->workspace = workspace;
    p->half = fp16 ? CUDA_R_16F : CUDA_R_16BF;
    rc = load(&p->lt, err);
    if (rc) {
        free(p);
        return rc;
    }
    s = p->lt.Create(&p->handle);
    s = s ? s : make_preference(p);
    s = s ? s : make_product(p);
    if (s) {
        cuda_products_close(p);
        return complain(err, s, "start");
    }
    *out = p;
    return 0;
}

static void release(struct cuda_products *p, struct choice *c)
{
    if (c->w)
        p->lt.MatrixLayoutDestroy(c->w);
    if (c->x)
        p->lt.MatrixLayoutDestroy(c->x);
    if (c->y)
        p->lt.MatrixLayoutDestroy(c->y);
    memset(c, 0, sizeof *c);
}

void cuda_products_close(struct cuda_products *p)
{
    if (!p)
        return;
    for (unsigned i = 0; i < CUDA_PRODUCT_KEPT; i++)
        release(p, &p->choice[i]);
    if (p->preference)
        p->lt.MatmulPreferenceDestroy(p->preference);
    if (p->product)
        p->lt.MatmulDescDestroy(p->product);
    if (p->handle)
        p->lt.Destroy(p->handle);
    free(p);
}

/* True if one sum gives an output: no parts of it are added up later. */
static bool is_whole(const struct cuda_products *p,
                     const cublasLtMatmulAlgo_t *a)
{
    uint32_t split = 0, reduction = 0;
    size_t size;

    if (p->lt.MatmulAlgoConfigGetAttribute(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                           &split, sizeof split, &size) ||
        p->lt.MatmulAlgoConfigGetAttribute(
            a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
            sizeof reduction, &size))
        return false;
    return split <= 1 && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static cublasStatus_t choose(struct cuda_products *p, struct choice *c)
{
    enum {
        ASKED = 8
    };
    cublasLtMatmulHeuristicResult_t found[ASKED];
    const struct size *z = &c->size;
    int count = 0;
    cublasStatus_t s =
        p->lt.MatrixLayoutCreate(&c->w, p->half, z->k, z->n, z->k);

    s = s ? s : p->lt.MatrixLayoutCreate(&c->x, p->half, z->k, z->rows, z->k);
    s = s ? s
          : p->lt.MatrixLayoutCreate(&c->y, CUDA_R_32F, z->n, z->rows, z->n);
    s = s ? s
          : p->lt.MatmulAlgoGetHeuristic(p->handle, p->product, c->w, c->x,
                                         c->y, c->y, p->preference, ASKED,
                                         found, &count);
    for (int i = 0; !s && i < count; i++) {
        if (found[i].state || !is_whole(p, &found[i].algo))
            continue;
        c->algorithm = found[i].algo;
        return CUBLAS_STATUS_SUCCESS;
    }
    return s ? s : CUBLAS_STATUS_NOT_SUPPORTED;
}

static bool same(const struct size *a, const struct size *b)
{
    return a->rows == b->rows && a->n == b->n && a->k == b->k &&
           a->add == b->add;
}

static struct choice *set_of(struct cuda_products *p, const struct size *size)
{
    const uint32_t mixed = (size->rows * 0x9e3779b1u) ^
                           (size->n * 0x85ebca6bu) ^ (size->k * 0xc2b2ae35u) ^
                           size->add;

    return &p->choice[(mixed ^ mixed >> 15) % (CUDA_PRODUCT_KEPT / WAYS) *
                      WAYS];
}

static struct choice *find(struct cuda_products *p, const struct size *size,
                           cublasStatus_t *s)
{
    struct choice *set = set_of(p, size), *c = NULL;

    *s = CUBLAS_STATUS_SUCCESS;
    for (unsigned i = 0; i < WAYS; i++) {
        if (same(&set[i].size, size))
            return &set[i];
        if (!c && !set[i].size.k)
            c = &set[i];
    }
    c = c ? c : &set[p->next++ % WAYS];
    release(p, c);
    c->size = *size;
    *s = choose(p, c);
    if (*s)
        release(p, c);
    return c;
}

int cuda_product(struct cuda_products *p, cudaStream_t stream, float *y,
                 const uint16_t *x, const uint16_t *w, uint32_t rows,
                 uint32_t n, uint32_t k, bool add, struct ocr_err *err)
{
    const struct size size = {.rows = rows, .n = n, .k = k, .add = add};
    const float one = 1, beta = add ? 1 : 0;
    cublasStatus_t s;
    const struct choice *c = find(p, &size, &s);

    if (s)
        return ocr_err_set(err, -EIO,
                           "cuda: cuBLASLt has no product of %" PRIu32
                           " rows with %" PRIu32 " x %" PRIu32 " (status %d)",
                           rows, n, k, (int)s);
    s = p->lt.Matmul(p->handle, p->product, &one, w, c->w, x, c->x, &beta, y,
                     c->y, y, c->y, &c->algorithm, p->workspace,
                     CUDA_PRODUCT_WORKSPACE, stream);
    return s ? complain(err, s, "multiply") : 0;
}
