#include "engine/image/canvas.h"
#include "engine/image/decoders.h"
#include "engine/image/exif.h"

#include <errno.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum {
    SIGNATURE_BYTES = 8,
    CHUNK_FRAME = 12, /* length, type, CRC */
    IHDR_BYTES = 13,
    WHITE = 255,
    BLACK = 0,
};

/* One decoding of one file; a second pass uses it again. */
struct reader {
    const uint8_t *data;
    size_t len, at;
    const struct ocr_image_limits *limits;
    const struct ocr_image_alloc *alloc;
    struct ocr_image *out;
    struct ocr_err *err;
    uint32_t width, height;
    struct ocr_exif exif; /* dpi from pHYs if that is there */
    struct ocr_canvas canvas;
    png_structp png;
    png_infop info;
    uint8_t *row;
    unsigned in, channels; /* per pixel, as libpng gives and as we keep */
    uint8_t paper;         /* what transparent parts lie on */
    uint64_t ink, dark_ink, seen; /* alpha: sum, of dark pixels, pixels x 255 */
    uint64_t rows;                /* put on the canvas */
    bool eof, no_memory;
    char why[96]; /* libpng's reason */
};

/* ---- libpng's callbacks ------------------------------------------------ */

static void on_error(png_structp png, png_const_charp message)
{
    struct reader *r = png_get_error_ptr(png);

    snprintf(r->why, sizeof r->why, "%s", message);
    png_longjmp(png, 1);
}

/* Broken ancillary chunks and the like: the pixels are what counts. */
static void on_warning(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void on_read(png_structp png, png_bytep to, size_t n)
{
    struct reader *r = png_get_io_ptr(png);

    if (n > r->len - r->at) {
        r->eof = true;
        png_error(png, "end of file");
    }
    memcpy(to, r->data + r->at, n);
    r->at += n;
}

static png_voidp on_malloc(png_structp png, png_alloc_size_t n)
{
    struct reader *r = png_get_mem_ptr(png);
    void *memory = malloc(n);

    if (!memory)
        r->no_memory = true;
    return memory;
}

static void on_free(png_structp png, png_voidp memory)
{
    (void)png;
    free(memory);
}

/* ---- what is read without libpng --------------------------------------- */

static uint32_t number(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 |
           (uint32_t)at[2] << 8 | at[3];
}

/* The limits come before libpng sees the file. */
static int read_header(struct reader *r)
{
    const uint8_t *ihdr = r->data + SIGNATURE_BYTES;

    if (r->len < SIGNATURE_BYTES + CHUNK_FRAME + IHDR_BYTES)
        return ocr_err_kind(r->err, OCR_KIND_TRUNCATED,
                            "the PNG ends within its header");
    if (!memcmp(ihdr + 4, "CgBI", 4))
        return ocr_err_kind(r->err, OCR_KIND_UNSUPPORTED,
                            "PNG in Apple's own variant (CgBI) is not "
                            "supported");
    if (number(ihdr) != IHDR_BYTES || memcmp(ihdr + 4, "IHDR", 4))
        return ocr_err_kind(r->err, OCR_KIND_CORRUPT, "the PNG has no header");
    r->width = number(ihdr + 8);
    r->height = number(ihdr + 12);
    return ocr_canvas_check("PNG", r->width, r->height, r->limits, r->err);
}

static void take_chunk(struct reader *r, const uint8_t *type, uint32_t len)
{
    const uint8_t *body = type + 4;

    if (crc32(crc32(0, NULL, 0), type, len + 4) != number(body + len))
        return;
    if (!memcmp(type, "eXIf", 4)) {
        const uint32_t dpi = r->exif.dpi;

        ocr_exif_read(&r->exif, body, len);
        r->exif.dpi = dpi ? dpi : r->exif.dpi;
    } else if (len == 9 && body[8] == 1) { /* pHYs, dots per metre */
        r->exif.dpi = ocr_plausible_dpi(number(body) * 0.0254);
    }
}

/* eXIf may stand behind the pixels, but is needed before them. */
static void read_facts(struct reader *r)
{
    size_t at = SIGNATURE_BYTES;

    r->exif = (struct ocr_exif){.orientation = 1};
    while (r->len - at >= CHUNK_FRAME) {
        const uint32_t len = number(r->data + at);
        const uint8_t *type = r->data + at + 4;

        if (len > r->len - at - CHUNK_FRAME || !memcmp(type, "IEND", 4))
            break;
        if (!memcmp(type, "eXIf", 4) || !memcmp(type, "pHYs", 4))
            take_chunk(r, type, len);
        at += CHUNK_FRAME + (size_t)len;
    }
}

/* ---- pixels ------------------------------------------------------------ */

static bool palette_is_gray(struct reader *r)
{
    png_colorp palette;
    int n;

    if (!png_get_PLTE(r->png, r->info, &palette, &n))
        return false;
    for (int i = 0; i < n; i++)
        if (palette[i].red != palette[i].green ||
            palette[i].red != palette[i].blue)
            return false;
    return true;
}

/* Everything becomes 8 bit gray or RGB, with alpha where the file has it. */
static void set_up(struct reader *r)
{
    png_structp png = r->png;

    png_set_read_fn(png, r, on_read);
    png_set_user_limits(png, INT32_MAX, INT32_MAX); /* read_header checked */
    /* No profiles, no gamma, no texts (which would be inflated): tRNS alone
     * among the ancillary chunks decides about what is seen. */
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_crc_action(png, PNG_CRC_ERROR_QUIT, PNG_CRC_WARN_DISCARD);
    /* A read past the end fails as a whole: lose little by it. */
    if (r->limits->partial)
        png_set_compression_buffer_size(png, 64);
    png_read_info(png, r->info);
    switch (png_get_color_type(png, r->info)) {
    case PNG_COLOR_TYPE_GRAY:
    case PNG_COLOR_TYPE_GRAY_ALPHA:
        r->channels = 1;
        break;
    case PNG_COLOR_TYPE_PALETTE:
        r->channels = palette_is_gray(r) ? 1 : 3;
        break;
    default:
        r->channels = 3;
    }
    png_set_expand(png);
    png_set_scale_16(png);
    png_read_update_info(png, r->info);
    r->in = png_get_channels(png, r->info);
}

static unsigned luma(const uint8_t *pixel, unsigned channels)
{
    if (channels == 1)
        return pixel[0];
    return (77u * pixel[0] + 150u * pixel[1] + 29u * pixel[2]) >> 8;
}

/* From r->in to r->channels bytes a pixel, in place, blended on the paper. */
static void blend(struct reader *r, uint32_t n)
{
    const unsigned in = r->in, channels = r->channels;
    const bool has_alpha = in % 2 == 0;
    const uint8_t *from = r->row;
    uint8_t *to = r->row;
    uint64_t ink = 0, dark = 0;

    for (uint32_t i = 0; i < n; i++, from += in, to += channels) {
        const unsigned alpha = has_alpha ? from[in - 1] : 255;

        ink += alpha;
        if (luma(from, channels) < 128)
            dark += alpha;
        for (unsigned c = 0; c < channels; c++)
            to[c] =
                (uint8_t)((from[c] * alpha + r->paper * (255 - alpha) + 127) /
                          255);
    }
    r->ink += ink;
    r->dark_ink += dark;
    r->seen += (uint64_t)n * 255;
}

/* Without png_set_interlace_handling libpng gives the rows of each pass as
 * they are stored, so that no whole picture has to be kept for it. */
static void read_rows(struct reader *r)
{
    const bool adam7 =
        png_get_interlace_type(r->png, r->info) == PNG_INTERLACE_ADAM7;

    for (int pass = 0; pass < (adam7 ? PNG_INTERLACE_ADAM7_PASSES : 1);
         pass++) {
        const uint32_t columns =
            adam7 ? PNG_PASS_COLS(r->width, pass) : r->width;
        const uint32_t rows =
            adam7 ? PNG_PASS_ROWS(r->height, pass) : r->height;
        const uint32_t x = adam7 ? PNG_PASS_START_COL(pass) : 0;
        const uint32_t step = adam7 ? PNG_PASS_COL_OFFSET(pass) : 1;

        for (uint32_t i = 0; columns && i < rows; i++) {
            const uint32_t y = adam7 ? PNG_ROW_FROM_PASS_ROW(i, pass) : i;

            png_read_row(r->png, r->row, NULL);
            if (r->in != r->channels)
                blend(r, columns);
            ocr_canvas_put(&r->canvas, x, step, y, r->row, columns);
            r->rows++;
        }
    }
}

/* The row of libpng is copied in full width, also for narrow passes. */
static int prepare(struct reader *r)
{
    int rc = 0;

    if (!r->out->pixels)
        rc = ocr_canvas_init(&r->canvas, r->out, r->width, r->height,
                             r->channels, r->exif.orientation, r->limits,
                             r->alloc, r->err);
    if (rc)
        return rc;
    r->row = png_malloc_warn(r->png, png_get_rowbytes(r->png, r->info));
    if (!r->row)
        return ocr_err_set(r->err, -ENOMEM, "no memory for a row of %u pixels",
                           r->width);
    return 0;
}

/* Runs a step that libpng may leave by longjmp; nothing lives in its frame. */
static bool guarded(struct reader *r, void (*step)(struct reader *))
{
    if (setjmp(png_jmpbuf(r->png)))
        return false;
    step(r);
    return true;
}

static int explain(struct reader *r)
{
    if (r->no_memory)
        return ocr_err_kind(r->err, OCR_KIND_TOO_LARGE,
                            "the PNG needs more memory than a decoder may use");
    /* Chunks all there, but their stream ends early: rows are missing too. */
    if (!r->eof && strncmp(r->why, "Not enough image data", 21))
        return ocr_err_kind(r->err, OCR_KIND_CORRUPT, "the PNG is damaged: %s",
                            r->why);
    if (r->limits->partial && r->rows) {
        r->out->partial = 1;
        return 0;
    }
    return ocr_err_kind(r->err, OCR_KIND_TRUNCATED,
                        "the PNG ends before its last row");
}

static int decode_pass(struct reader *r)
{
    int rc = 0;

    r->at = 0;
    r->rows = 0;
    r->png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, r, on_error,
                                      on_warning, r, on_malloc, on_free);
    r->info = r->png ? png_create_info_struct(r->png) : NULL;
    if (!r->info)
        rc = ocr_err_set(r->err, -ENOMEM, "no memory for the PNG decoder");
    else if (!guarded(r, set_up))
        rc = explain(r);
    else if ((rc = prepare(r)) == 0 && !guarded(r, read_rows))
        rc = explain(r);
    png_free(r->png, r->row);
    r->row = NULL;
    png_destroy_read_struct(&r->png, &r->info, NULL);
    return rc;
}

/* Writing on a transparent ground shows only in its alpha: if nearly all that
 * is opaque is light, white paper would swallow it. */
static bool needs_dark_paper(const struct reader *r)
{
    return (r->seen - r->ink) * 64 > r->seen && r->ink > 0 &&
           r->dark_ink * 64 < r->ink;
}

int ocr_png_decode(struct ocr_image *out, const uint8_t *data, size_t len,
                   const struct ocr_image_limits *limits,
                   const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    struct reader r = {.data = data,
                       .len = len,
                       .limits = limits,
                       .alloc = alloc,
                       .out = out,
                       .err = err,
                       .paper = WHITE};
    int rc = read_header(&r);

    if (rc)
        return rc;
    read_facts(&r);
    rc = decode_pass(&r);
    if (rc == 0 && needs_dark_paper(&r)) {
        r.paper = BLACK;
        rc = decode_pass(&r);
    }
    if (rc)
        return rc;
    out->dpi = r.exif.dpi;
    ocr_canvas_finish(&r.canvas);
    return 0;
}
