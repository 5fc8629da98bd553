#include "engine/image/encode.h"

#include <errno.h>
#include <png.h>
#include <stdbool.h>
#include <stdio.h>
#include <zlib.h>

enum {
    BUFFER_BYTES = 64 << 10
};

struct writer {
    void (*sink)(void *arg, const uint8_t *bytes, size_t len);
    void *arg;
    const uint8_t *pixels;
    uint32_t width, height, channels;
    char why[96]; /* libpng's reason */
};

static void on_write(png_structp png, png_bytep bytes, size_t len)
{
    const struct writer *w = png_get_io_ptr(png);

    w->sink(w->arg, bytes, len);
}

static void on_flush(png_structp png)
{
    (void)png;
}

static void on_error(png_structp png, png_const_charp message)
{
    struct writer *w = png_get_error_ptr(png);

    snprintf(w->why, sizeof w->why, "%s", message);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

/* libpng may leave it by longjmp; nothing lives in its frame. */
static bool write_all(const struct writer *w, png_structp png, png_infop info)
{
    if (setjmp(png_jmpbuf(png)))
        return false;
    png_set_IHDR(png, info, w->width, w->height, 8,
                 w->channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_set_compression_level(png, Z_BEST_SPEED);
    png_set_compression_buffer_size(png, BUFFER_BYTES);
    png_set_filter(png, PNG_FILTER_TYPE_BASE, PNG_FILTER_NONE);
    png_write_info(png, info);
    for (uint32_t y = 0; y < w->height; y++)
        png_write_row(png, w->pixels + (size_t)y * w->width * w->channels);
    png_write_end(png, NULL);
    return true;
}

int ocr_png_encode(const uint8_t *pixels, uint32_t width, uint32_t height,
                   uint32_t channels,
                   void (*sink)(void *arg, const uint8_t *bytes, size_t len),
                   void *arg, struct ocr_err *err)
{
    struct writer w = {.sink = sink,
                       .arg = arg,
                       .pixels = pixels,
                       .width = width,
                       .height = height,
                       .channels = channels};
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &w,
                                              on_error, on_warning);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    bool written = false;

    if (info) {
        png_set_write_fn(png, &w, on_write, on_flush);
        written = write_all(&w, png, info);
    }
    png_destroy_write_struct(&png, &info);
    if (written)
        return 0;
    if (!w.why[0])
        return ocr_err_set(err, -ENOMEM, "no memory for the PNG encoder");
    return ocr_err_set(err, -EIO, "the page cannot be encoded: %s", w.why);
}
