/* engine/image/encode.h - pixels to PNG, for recognisers that send pages away.
 *
 * Made to be fast: zlib's level 1 and no filter. On scanned pages that takes a
 * sixth of the time of libpng's usual settings for 15 % more bytes, and neither
 * filters nor other strategies were faster.
 *
 * Layer:   engine.
 * Threads: no state. */
#ifndef OCR_IMAGE_ENCODE_H
#define OCR_IMAGE_ENCODE_H
#include "engine/base/err.h"

#include <stddef.h>
#include <stdint.h>

/* Gives the PNG of `pixels` [height][width][channels] (1 gray, 3 RGB) to `sink`
 * piece by piece, in order. -ENOMEM, or -EIO with libpng's reason; then the
 * sink has got a part. */
int ocr_png_encode(const uint8_t *pixels, uint32_t width, uint32_t height,
                   uint32_t channels,
                   void (*sink)(void *arg, const uint8_t *bytes, size_t len),
                   void *arg, struct ocr_err *err);

#endif
