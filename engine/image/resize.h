/* engine/image/resize.h - pages at the size a model reads.
 *
 * Antialiased bicubic (a = -0.5) on bytes, bit for bit what Pillow computes
 * up to its version 12.0: weights in fixed point, first along the rows,
 * rounded to bytes, then along the columns; a direction that keeps its length
 * is left alone. (Pillow 12.3 takes the columns first where a page is more
 * than a hundred times as high as wide, Pillow 13 where it gets much shorter:
 * up to some gray levels away.)
 *
 * Rows are made as they are needed and kept only while they are: beside input
 * and output this takes a few rows and the weights.
 *
 * Layer:   engine.
 * Threads: no state. */
#ifndef OCR_RESIZE_H
#define OCR_RESIZE_H
#include "engine/image/image.h"

/* The size at which a page of width x height is read: not larger than
 * `longest_edge`, then each side rounded up to a multiple of `multiple`. Only
 * that rounding ever enlarges; the picture is stretched, nothing is padded. */
void ocr_resize_size(uint32_t width, uint32_t height, uint32_t longest_edge,
                     uint32_t multiple, uint32_t *out_width,
                     uint32_t *out_height);

/* Resizes `in` [height][width][channels], 1 or 3 channels, into `out`
 * [out_height][out_width][channels]. OCR_KIND_TOO_LARGE for a side of more
 * than four million pixels. */
int ocr_resize_bicubic(const uint8_t *in, uint32_t width, uint32_t height,
                       uint32_t channels, uint8_t *out, uint32_t out_width,
                       uint32_t out_height, struct ocr_err *err);

/* The same for a decoded image of either kind into RGB, `rgb` being
 * [height][width][3]. */
int ocr_resize_page(const struct ocr_image *image, uint32_t width,
                    uint32_t height, uint8_t *rgb, struct ocr_err *err);

#endif
