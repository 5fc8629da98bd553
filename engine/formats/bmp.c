/* engine/formats/bmp.c - BMP with Leptonica, which tesseract needs anyway. */
#include "engine/image/canvas.h"
#include "engine/image/decoder.h"
#include "engine/image/exif.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <leptonica/allheaders.h>

enum {
    HEADER = 54, /* of the file and of the picture, as all but OS/2 write it */
};

struct header {
    uint64_t at; /* of the pixels */
    int64_t width, height;
    uint32_t bits, compression;
    double dpi;
};

static uint32_t word(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
           (uint32_t)at[3] << 24;
}

static int read_header(struct header *h, const uint8_t *data, size_t len,
                       struct ocr_err *err)
{
    if (len < HEADER)
        return ocr_err_kind(err, OCR_KIND_TRUNCATED,
                            "the BMP ends within its header");
    if (word(data + 14) < 40)
        return ocr_err_kind(err, OCR_KIND_UNSUPPORTED,
                            "BMP of OS/2 is not supported");
    h->at = word(data + 10);
    h->width = (int32_t)word(data + 18);
    h->height = llabs((long long)(int32_t)word(data + 22));
    h->bits = word(data + 26) >> 16;
    h->compression = word(data + 30);
    h->dpi = word(data + 38) * 0.0254;
    return 0;
}

static int check(const struct header *h, size_t len,
                 const struct ocr_image_limits *limits, struct ocr_err *err)
{
    const uint64_t width = h->width > 0 ? (uint64_t)h->width : 0;
    int rc = ocr_canvas_check("BMP", width, (uint64_t)h->height, limits, err);

    if (rc)
        return rc;
    if (h->compression)
        return ocr_err_kind(err, OCR_KIND_UNSUPPORTED,
                            "compressed BMP is not supported");
    if (h->at > len ||
        (width * h->bits + 31) / 32 * 4 * (uint64_t)h->height > len - h->at)
        return ocr_err_kind(err, OCR_KIND_TRUNCATED,
                            "the BMP is cut off: it ends before its last row");
    return 0;
}

/* One row of 32 bits a pixel, red first. */
static void to_rgb(const l_uint32 *from, uint8_t *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, to += 3) {
        to[0] = (uint8_t)(from[i] >> 24);
        to[1] = (uint8_t)(from[i] >> 16);
        to[2] = (uint8_t)(from[i] >> 8);
    }
}

static int put(PIX *pix, struct ocr_image *out,
               const struct ocr_image_limits *limits,
               const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    const uint32_t width = (uint32_t)pixGetWidth(pix);
    const uint32_t height = (uint32_t)pixGetHeight(pix);
    const l_uint32 *words = pixGetData(pix);
    uint8_t *row = malloc((size_t)width * 3);
    struct ocr_canvas canvas;
    int rc;

    if (!row)
        return ocr_err_set(err, -ENOMEM, "no memory for a row");
    rc = ocr_canvas_init(&canvas, out, width, height, 3, 1, limits, alloc, err);
    for (uint32_t y = 0; rc == 0 && y < height; y++) {
        to_rgb(words + (size_t)y * (size_t)pixGetWpl(pix), row, width);
        ocr_canvas_put(&canvas, 0, 1, y, row, width);
    }
    if (rc == 0)
        ocr_canvas_finish(&canvas);
    free(row);
    return rc;
}

static int bmp_decode(struct ocr_image *out, const uint8_t *data, size_t len,
                      const struct ocr_image_limits *limits,
                      const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    struct header h = {0};
    PIX *stored, *pix;
    int rc = read_header(&h, data, len, err);

    if (rc == 0)
        rc = check(&h, len, limits, err);
    if (rc)
        return rc;
    setMsgSeverity(L_SEVERITY_NONE);
    stored = pixReadMemBmp(data, len);
    pix = stored ? pixConvertTo32(stored) : NULL;
    if (!pix)
        rc = ocr_err_kind(err, OCR_KIND_UNSUPPORTED,
                          "this kind of BMP is not supported");
    else
        rc = put(pix, out, limits, alloc, err);
    pixDestroy(&stored);
    pixDestroy(&pix);
    out->dpi = ocr_plausible_dpi(h.dpi);
    return rc;
}

static const char *bmp_library(void)
{
    static char name[32];
    char *version = getLeptonicaVersion(); /* "leptonica-1.82.0" */

    if (version && strlen(version) < sizeof name)
        strcpy(name, version);
    lept_free(version);
    return name;
}

const struct ocr_decoder ocr_decoder_bmp = {
    .abi = OCR_DECODER_ABI,
    .name = "bmp",
    .library = bmp_library,
    .decode = bmp_decode,
};
