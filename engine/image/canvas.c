#include "engine/image/canvas.h"

#include <errno.h>
#include <string.h>

int ocr_canvas_check(const char *format, uint64_t width, uint64_t height,
                     const struct ocr_image_limits *limits, struct ocr_err *err)
{
    if (width == 0 || height == 0 || width > INT32_MAX || height > INT32_MAX)
        return ocr_err_kind(
            err, OCR_KIND_CORRUPT, "%s of %llu x %llu pixels cannot be", format,
            (unsigned long long)width, (unsigned long long)height);
    if (width * height > limits->pixels)
        return ocr_err_kind(
            err, OCR_KIND_TOO_LARGE,
            "%s of %llu x %llu pixels is over the limit of %llu megapixels",
            format, (unsigned long long)width, (unsigned long long)height,
            (unsigned long long)(limits->pixels / 1000000));
    return 0;
}

/* Where the stored pixels go, for each EXIF orientation. */
static void orient(struct ocr_canvas *canvas, ptrdiff_t width, ptrdiff_t height,
                   unsigned orientation)
{
    const bool turned = orientation >= 5; /* rows become columns */
    const bool from_right = orientation == 2 || orientation == 3 ||
                            orientation == 6 || orientation == 7;
    const bool from_below = orientation == 3 || orientation == 4 ||
                            orientation == 7 || orientation == 8;
    const ptrdiff_t across = turned ? height : width;
    const ptrdiff_t down = turned ? width : height;
    const ptrdiff_t column = from_right ? -1 : 1;
    const ptrdiff_t line = from_below ? -across : across;

    canvas->origin =
        (from_right ? across - 1 : 0) + (from_below ? (down - 1) * across : 0);
    canvas->dx = turned ? line : column;
    canvas->dy = turned ? column : line;
    canvas->image->width = (uint32_t)across;
    canvas->image->height = (uint32_t)down;
}

int ocr_canvas_init(struct ocr_canvas *canvas, struct ocr_image *image,
                    uint32_t width, uint32_t height, uint32_t channels,
                    unsigned orientation, const struct ocr_image_limits *limits,
                    const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    *canvas = (struct ocr_canvas){.image = image};
    orient(canvas, width, height, orientation);
    image->channels = channels;
    image->pixels = alloc->alloc(alloc->arg, ocr_image_bytes(image));
    if (!image->pixels)
        return ocr_err_set(err, -ENOMEM, "no memory for %u x %u pixels", width,
                           height);
    if (limits->partial)
        memset(image->pixels, 255, ocr_image_bytes(image));
    return 0;
}

static bool has_colour(const uint8_t *row, uint32_t n)
{
    uint8_t differs = 0;

    for (uint32_t i = 0; i < n; i++, row += 3)
        differs |= (uint8_t)((row[0] ^ row[1]) | (row[0] ^ row[2]));
    return differs != 0;
}

void ocr_canvas_put(struct ocr_canvas *canvas, uint32_t x, uint32_t step,
                    uint32_t y, const uint8_t *row, uint32_t n)
{
    const uint32_t channels = canvas->image->channels;
    const ptrdiff_t at =
        canvas->origin + (ptrdiff_t)x * canvas->dx + (ptrdiff_t)y * canvas->dy;
    const ptrdiff_t stride = (ptrdiff_t)step * canvas->dx;
    uint8_t *to = canvas->image->pixels + at * (ptrdiff_t)channels;

    if (channels == 3 && !canvas->coloured)
        canvas->coloured = has_colour(row, n);
    if (stride == 1) {
        memcpy(to, row, (size_t)n * channels);
    } else if (channels == 1) {
        for (ptrdiff_t i = 0; i < (ptrdiff_t)n; i++)
            to[i * stride] = row[i];
    } else {
        for (ptrdiff_t i = 0; i < (ptrdiff_t)n; i++)
            memcpy(to + i * stride * 3, row + i * 3, 3);
    }
}

void ocr_canvas_finish(struct ocr_canvas *canvas)
{
    struct ocr_image *image = canvas->image;
    const size_t pixels = (size_t)image->width * image->height;

    if (image->channels == 1 || canvas->coloured)
        return;
    for (size_t i = 0; i < pixels; i++)
        image->pixels[i] = image->pixels[i * 3];
    image->channels = 1;
}
