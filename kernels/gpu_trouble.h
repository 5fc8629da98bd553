/* kernels/gpu_trouble.h - why a GPU cannot be used, or stopped being usable,
 * as one sentence that says what to do.
 *
 * One table for the engine, which asks the driver before it loads the plugin,
 * for the plugin itself, and for `ocrfs doctor`. Codes above 0 are CUDA's (the
 * runtime's and the driver's agree where both have one).
 *
 * Layer:   kernels; plain C, knows nothing of CUDA.
 * Threads: any. */
#ifndef OCR_GPU_TROUBLE_H
#define OCR_GPU_TROUBLE_H
#include "engine/base/err.h"

#include <stddef.h>

enum ocr_gpu_trouble {
    OCR_GPU_NO_DRIVER = -1, /* no libcuda.so.1 */
    OCR_GPU_NO_PLUGIN = -2, /* built or installed without ocrfs-cuda.so */
    OCR_GPU_NO_CUBLASLT = -3,
    OCR_GPU_TOO_OLD = -4, /* compute capability below 8.0 */

    OCR_GPU_NO_MEMORY = 2,
    OCR_GPU_OLD_DRIVER = 35,
    OCR_GPU_BUSY = 46,
    OCR_GPU_NONE = 100,
    OCR_GPU_NO_SUCH = 101,
    OCR_GPU_NO_CODE = 209,
    OCR_GPU_ECC = 214,
    OCR_GPU_OLD_PTX = 222,
    OCR_GPU_ADDRESS = 700,
    OCR_GPU_TIMEOUT = 702,
    OCR_GPU_LAUNCH = 719,
    OCR_GPU_NOT_READY = 802,
    OCR_GPU_MISMATCH = 803,
};

/* Sets *err to the sentence for `code`, after `what` and a colon if that is
 * not NULL; of a code that is not in the table, `fallback` and the number.
 * Returns the errno that goes with it: -ENODEV if there is nothing to use,
 * -ENOMEM, else -EIO. */
int ocr_gpu_err(struct ocr_err *err, int code, const char *what,
                const char *fallback);

/* True if after this nothing works any more in this process: its context is
 * gone, and only a new process gets another. */
bool ocr_gpu_is_lost(int code);

/* True if the card or its driver failed: an error that no kernel can cause,
 * whatever it computes. Other errors may be a page's. */
bool ocr_gpu_is_fault(int code);

/* A card with `total` bytes where `needed` are: the sentence, which names a
 * MIG slice as such by the card's `name`. Returns -ENOMEM. */
int ocr_gpu_err_small(struct ocr_err *err, const char *name,
                      unsigned long long total, unsigned long long needed);

#endif
