/* kernels/cuda/blas.h - products of many rows with a matrix (vision,
 * prefill) through cuBLASLt, which is loaded at run time.
 *
 * The algorithm is the first that the library's heuristic names for exactly
 * these sizes, without a split of the inner sum that is reduced afterwards:
 * never timed, so a page gets the same bits whenever and beside whatever it
 * is read. Each choice is kept.
 *
 * Layer:   kernels/cuda, private.
 * Threads: one at a time; work runs on the stream that is given.
 * Errors:  negative errno and a sentence; of CUDA itself, its code. */
#ifndef OCR_CUDA_BLAS_H
#define OCR_CUDA_BLAS_H
#include "engine/base/err.h"

#include <cuda_runtime_api.h>
#include <stdint.h>

enum {
    CUDA_PRODUCT_WORKSPACE = 32 << 20, /* bytes on the device */
    CUDA_PRODUCT_KEPT = 4096,          /* sizes whose algorithm is kept */
};

struct cuda_products; /* opaque */

/* Is the library there? For probe: nothing is kept. */
int cuda_products_check(struct ocr_err *err);

/* `workspace`: CUDA_PRODUCT_WORKSPACE bytes, borrowed. */
int cuda_products_open(struct cuda_products **out, void *workspace, bool fp16,
                       struct ocr_err *err);
void cuda_products_close(struct cuda_products *p);

/* y[rows][n] (fp32) = x[rows][k] times w[n][k] (16 bit both), plus y itself if
 * `add`. All of them aligned to 256 bytes. */
int cuda_product(struct cuda_products *p, cudaStream_t stream, float *y,
                 const uint16_t *x, const uint16_t *w, uint32_t rows,
                 uint32_t n, uint32_t k, bool add, struct ocr_err *err);

#endif
