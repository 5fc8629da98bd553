/* engine/image/canvas.h - where decoders put their rows.
 *
 * A decoder gives the rows as they are stored; the canvas puts each pixel
 * where it belongs in the upright picture, so that no second copy of the
 * picture exists at any time.
 *
 * Layer:   engine, inside engine/image.
 * Threads: no state beyond the struct. */
#ifndef OCR_CANVAS_H
#define OCR_CANVAS_H
#include "engine/image/image.h"

struct ocr_canvas {
    struct ocr_image *image;
    ptrdiff_t origin, dx, dy; /* in pixels: of stored pixel (0, 0), of a step
                                 to the right, of a step down */
    bool coloured;            /* a pixel with r, g, b not all equal was put */
};

/* Refuses what is over the limits and what has no pixels; `format` begins the
 * sentence. Call it with the numbers of the header, before anything big is
 * allocated. */
int ocr_canvas_check(const char *format, uint64_t width, uint64_t height,
                     const struct ocr_image_limits *limits,
                     struct ocr_err *err);

/* Fills in size, channels and pixels of `image` for a stored picture of width
 * x height with EXIF `orientation`. With limits->partial the paper is white
 * where no row ever comes. */
int ocr_canvas_init(struct ocr_canvas *canvas, struct ocr_image *image,
                    uint32_t width, uint32_t height, uint32_t channels,
                    unsigned orientation, const struct ocr_image_limits *limits,
                    const struct ocr_image_alloc *alloc, struct ocr_err *err);

/* Puts `n` pixels of image->channels bytes: stored pixels (x, y), (x + step,
 * y), ... which the caller knows to be inside. */
void ocr_canvas_put(struct ocr_canvas *canvas, uint32_t x, uint32_t step,
                    uint32_t y, const uint8_t *row, uint32_t n);

/* After the last row: RGB without any colour becomes gray. */
void ocr_canvas_finish(struct ocr_canvas *canvas);

#endif
