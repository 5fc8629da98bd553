/* engine/image/decoders.h - one function per format, all with the contract of
 * ocr_image_decode(); `blank` is left to the caller.
 *
 * Layer:   engine, inside engine/image.
 * Threads: no state. */
#ifndef OCR_DECODERS_H
#define OCR_DECODERS_H
#include "engine/image/image.h"

int ocr_png_decode(struct ocr_image *out, const uint8_t *data, size_t len,
                   const struct ocr_image_limits *limits,
                   const struct ocr_image_alloc *alloc, struct ocr_err *err);

int ocr_jpeg_decode(struct ocr_image *out, const uint8_t *data, size_t len,
                    const struct ocr_image_limits *limits,
                    const struct ocr_image_alloc *alloc, struct ocr_err *err);

#endif
