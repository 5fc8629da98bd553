/* engine/formats/gif.c - GIF with giflib: the first frame, on the whole
 * screen, as every program shows it that does not play it. */
#include "engine/image/canvas.h"
#include "engine/image/decoder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gif_lib.h>

struct reader {
    const uint8_t *data;
    size_t len, at;
    bool ended; /* giflib wanted more than there is */
};

static int on_read(GifFileType *gif, GifByteType *to, int len)
{
    struct reader *r = gif->UserData;
    const size_t left = r->len - r->at;
    const size_t n = (size_t)len < left ? (size_t)len : left;

    memcpy(to, r->data + r->at, n);
    r->at += n;
    r->ended |= n < (size_t)len;
    return (int)n;
}

static int refuse(const struct reader *r, const GifFileType *gif,
                  struct ocr_err *err)
{
    const char *why = gif ? GifErrorString(gif->Error) : NULL;

    if (r->ended)
        return ocr_err_kind(err, OCR_KIND_TRUNCATED,
                            "the GIF is cut off: it ends before its last row");
    return ocr_err_kind(err, OCR_KIND_CORRUPT, "the GIF is damaged: %s",
                        why ? why : "no header");
}

/* The block before a picture that says which colour is none. */
static int read_extension(GifFileType *gif, int *transparent)
{
    GraphicsControlBlock control;
    GifByteType *block;
    int code;

    if (DGifGetExtension(gif, &code, &block) != GIF_OK)
        return -EBADMSG;
    if (code == GRAPHICS_EXT_FUNC_CODE && block &&
        DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK)
        *transparent = control.TransparentColor;
    while (block)
        if (DGifGetExtensionNext(gif, &block) != GIF_OK)
            return -EBADMSG;
    return 0;
}

/* Up to the description of the first picture. */
static int find_picture(GifFileType *gif, int *transparent)
{
    GifRecordType record;

    for (;;) {
        if (DGifGetRecordType(gif, &record) != GIF_OK)
            return -EBADMSG;
        if (record == IMAGE_DESC_RECORD_TYPE)
            return DGifGetImageDesc(gif) == GIF_OK ? 0 : -EBADMSG;
        if (record == TERMINATE_RECORD_TYPE ||
            (record == EXTENSION_RECORD_TYPE &&
             read_extension(gif, transparent)))
            return -EBADMSG;
    }
}

static void to_rgb(const ColorMapObject *map, int transparent,
                   const GifPixelType *from, uint8_t *to, uint32_t n)
{
    static const GifColorType paper = {255, 255, 255};

    for (uint32_t i = 0; i < n; i++, to += 3) {
        const GifColorType *colour =
            from[i] == transparent || from[i] >= map->ColorCount
                ? &paper
                : &map->Colors[from[i]];

        to[0] = colour->Red;
        to[1] = colour->Green;
        to[2] = colour->Blue;
    }
}

/* The order in which rows of an interlaced picture come. */
static uint32_t row_of(uint32_t n, uint32_t height, bool interlaced)
{
    static const uint32_t first[] = {0, 4, 2, 1}, step[] = {8, 8, 4, 2};

    if (!interlaced)
        return n;
    for (unsigned pass = 0; pass < 4; pass++) {
        const uint32_t rows =
            height > first[pass]
                ? (height - first[pass] + step[pass] - 1) / step[pass]
                : 0;

        if (n < rows)
            return first[pass] + n * step[pass];
        n -= rows;
    }
    return 0;
}

static int read_rows(GifFileType *gif, const ColorMapObject *map,
                     int transparent, struct ocr_canvas *canvas)
{
    const GifImageDesc *picture = &gif->Image;
    const uint32_t width = (uint32_t)picture->Width;
    const uint32_t height = (uint32_t)picture->Height;
    GifPixelType *pixels = malloc(width);
    uint8_t *row = malloc((size_t)width * 3);
    int rc = pixels && row ? 0 : -ENOMEM;

    for (uint32_t i = 0; rc == 0 && i < height; i++) {
        const uint32_t y = row_of(i, height, picture->Interlace);

        if (DGifGetLine(gif, pixels, (int)width) != GIF_OK) {
            rc = -EBADMSG;
            break;
        }
        to_rgb(map, transparent, pixels, row, width);
        ocr_canvas_put(canvas, (uint32_t)picture->Left, 1,
                       (uint32_t)picture->Top + y, row, width);
    }
    free(pixels);
    free(row);
    return rc;
}

static bool is_inside(const GifFileType *gif)
{
    const GifImageDesc *picture = &gif->Image;

    return picture->Width > 0 && picture->Height > 0 && picture->Left >= 0 &&
           picture->Top >= 0 && picture->Left + picture->Width <= gif->SWidth &&
           picture->Top + picture->Height <= gif->SHeight;
}

static int read_picture(GifFileType *gif, struct ocr_image *out,
                        const struct ocr_image_limits *limits,
                        const struct ocr_image_alloc *alloc,
                        struct ocr_err *err)
{
    const struct reader *r = gif->UserData;
    struct ocr_canvas canvas;
    const ColorMapObject *map;
    int transparent = NO_TRANSPARENT_COLOR;
    int rc = ocr_canvas_check("GIF", (uint64_t)gif->SWidth,
                              (uint64_t)gif->SHeight, limits, err);

    if (rc)
        return rc;
    if (find_picture(gif, &transparent))
        return refuse(r, gif, err);
    map = gif->Image.ColorMap ? gif->Image.ColorMap : gif->SColorMap;
    if (!map || !is_inside(gif))
        return ocr_err_kind(err, OCR_KIND_CORRUPT,
                            "the GIF is damaged: its picture is outside of it "
                            "or has no colours");
    rc = ocr_canvas_init(&canvas, out, (uint32_t)gif->SWidth,
                         (uint32_t)gif->SHeight, 3, 1, limits, alloc, err);
    if (rc)
        return rc;
    memset(out->pixels, 255, ocr_image_bytes(out));
    rc = read_rows(gif, map, transparent, &canvas);
    if (rc == -ENOMEM)
        return ocr_err_set(err, rc, "no memory for a row");
    if (rc)
        return refuse(r, gif, err);
    ocr_canvas_finish(&canvas);
    return 0;
}

static int gif_decode(struct ocr_image *out, const uint8_t *data, size_t len,
                      const struct ocr_image_limits *limits,
                      const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    struct reader r = {.data = data, .len = len};
    int code, rc;
    GifFileType *gif = DGifOpen(&r, on_read, &code);

    if (!gif)
        return refuse(&r, NULL, err);
    rc = read_picture(gif, out, limits, alloc, err);
    DGifCloseFile(gif, &code);
    return rc;
}

static const char *gif_library(void)
{
    static char name[32];

    snprintf(name, sizeof name, "giflib %d.%d.%d", GIFLIB_MAJOR, GIFLIB_MINOR,
             GIFLIB_RELEASE);
    return name;
}

const struct ocr_decoder ocr_decoder_gif = {
    .abi = OCR_DECODER_ABI,
    .name = "gif",
    .library = gif_library,
    .decode = gif_decode,
};
