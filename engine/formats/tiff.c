/* engine/formats/tiff.c - TIFF with libtiff: every page, whatever its
 * compression, that libtiff can turn into gray or RGB.
 *
 * The chain of directories is followed here and not by libtiff: it says
 * exactly where a file is cut off, ends at a loop, and tells pages from the
 * small previews that some programs put between them. */
#include "engine/image/canvas.h"
#include "engine/image/decoder.h"
#include "engine/image/exif.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tiffio.h>

enum {
    CLASSIC = 42, /* the number of the signature */
    BIG = 43,
    FILE_TYPE = 254,      /* the tag */
    NO_PAGE = 1 | 4,      /* of its value: a preview, a mask */
    STRETCH_MAX = 4,      /* of fax pages with fewer lines than columns */
    ENTRIES_MAX = 1 << 16 /* of a directory */
};

struct tiff {
    const uint8_t *data;
    uint64_t len, at; /* at: where libtiff reads */
    bool big_endian, big;
    TIFF *handle;
    uint64_t *pages; /* where their directories begin */
    uint32_t count;
    bool failed; /* libtiff told of an error */
    char why[160];
};

/* ---- libtiff reads from memory ----------------------------------------- */

static tmsize_t on_read(thandle_t arg, void *to, tmsize_t len)
{
    struct tiff *t = arg;
    const uint64_t left = t->at < t->len ? t->len - t->at : 0;
    const uint64_t n = (uint64_t)len < left ? (uint64_t)len : left;

    memcpy(to, t->data + t->at, n);
    t->at += n;
    return (tmsize_t)n;
}

static tmsize_t on_write(thandle_t arg, void *from, tmsize_t len)
{
    (void)arg;
    (void)from;
    (void)len;
    return 0;
}

static toff_t on_seek(thandle_t arg, toff_t offset, int whence)
{
    struct tiff *t = arg;
    const uint64_t from = whence == SEEK_CUR   ? t->at
                          : whence == SEEK_END ? t->len
                                               : 0;

    t->at = from + offset;
    if (t->at > t->len)
        t->at = t->len;
    return t->at;
}

static int on_close(thandle_t arg)
{
    (void)arg;
    return 0;
}

static toff_t on_size(thandle_t arg)
{
    const struct tiff *t = arg;

    return t->len;
}

static int on_map(thandle_t arg, void **base, toff_t *size)
{
    const struct tiff *t = arg;

    memcpy(base, &t->data, sizeof *base); /* it only reads there */
    *size = t->len;
    return 1;
}

static void on_unmap(thandle_t arg, void *base, toff_t size)
{
    (void)arg;
    (void)base;
    (void)size;
}

/* The first error is the cause of those that follow. */
__attribute__((format(printf, 3, 0))) static void
on_error(thandle_t arg, const char *module, const char *format, va_list args)
{
    struct tiff *t = arg;

    (void)module;
    if (!t || t->failed)
        return;
    t->failed = true;
    vsnprintf(t->why, sizeof t->why, format, args);
}

/* ---- the chain of directories ------------------------------------------- */

/* A number of `bytes` bytes, which the caller knows to be inside. */
static uint64_t number(const struct tiff *t, uint64_t at, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes; i++)
        value = value << 8 | t->data[at + (t->big_endian ? i : bytes - 1 - i)];
    return value;
}

static int cut_off(struct ocr_err *err)
{
    return ocr_err_kind(err, OCR_KIND_TRUNCATED,
                        "the TIFF is cut off: it ends before its directory");
}

/* The directory at `at`: where the next one is, and whether it is a page. */
static int read_directory(const struct tiff *t, uint64_t at, uint64_t *next,
                          bool *is_page, struct ocr_err *err)
{
    const unsigned count_bytes = t->big ? 8 : 2, word = t->big ? 8 : 4;
    const unsigned entry = t->big ? 20 : 12;
    uint64_t entries;

    if (at > t->len || t->len - at < count_bytes)
        return cut_off(err);
    entries = number(t, at, count_bytes);
    if (entries > ENTRIES_MAX)
        return ocr_err_kind(err, OCR_KIND_CORRUPT,
                            "the TIFF is damaged: a directory of %llu entries",
                            (unsigned long long)entries);
    at += count_bytes;
    if (t->len - at < entries * entry + word)
        return cut_off(err);
    *is_page = true;
    for (uint64_t i = 0; i < entries; i++)
        if (number(t, at + i * entry, 2) == FILE_TYPE)
            *is_page = !(number(t, at + i * entry + 4 + word, 4) & NO_PAGE);
    *next = number(t, at + entries * entry, word);
    return 0;
}

static bool is_known(const uint64_t *seen, uint32_t count, uint64_t at)
{
    for (uint32_t i = 0; i < count; i++)
        if (seen[i] == at)
            return true;
    return false;
}

/* A chain that comes back to where it was ends there. */
static int find_pages(struct tiff *t, const struct ocr_image_limits *limits,
                      struct ocr_err *err)
{
    uint64_t at = number(t, t->big ? 8 : 4, t->big ? 8 : 4), next = 0;
    uint32_t seen = 0;
    uint64_t *all = malloc(((size_t)limits->pages + 1) * 2 * sizeof *all);
    bool is_page = false;
    int rc = 0;

    if (!all)
        return ocr_err_set(err, -ENOMEM, "no memory for a list of pages");
    t->pages = all + limits->pages + 1;
    for (; at && !is_known(all, seen, at); at = next) {
        if (seen >= limits->pages)
            rc = ocr_err_kind(err, OCR_KIND_TOO_LARGE,
                              "the TIFF has more than %u pages", limits->pages);
        else
            rc = read_directory(t, at, &next, &is_page, err);
        if (rc)
            break;
        all[seen++] = at;
        if (is_page)
            t->pages[t->count++] = at;
    }
    if (rc == 0 && t->count == 0) /* previews only: better than nothing */
        for (; t->count < seen; t->count++)
            t->pages[t->count] = all[t->count];
    memmove(all, t->pages, t->count * sizeof *all);
    t->pages = all;
    if (rc == 0 && t->count == 0)
        rc = cut_off(err);
    return rc;
}

static int read_header(struct tiff *t, struct ocr_err *err)
{
    if (t->len < 16)
        return cut_off(err);
    t->big_endian = t->data[0] == 'M';
    t->big = number(t, 2, 2) == BIG;
    return 0;
}

/* ---- one page ------------------------------------------------------------ */

struct layout {
    uint32_t width, height, rows; /* rows: of a strip */
    uint16_t bits, samples, photometric, planar, compression, orientation;
    uint16_t format; /* of a sample */
    uint32_t stretch;
    uint32_t dpi;
};

/* Fax machines send fewer lines than columns an inch. */
static void read_resolution(struct tiff *t, struct layout *l)
{
    float x = 0, y = 0;
    uint16_t unit = RESUNIT_INCH;

    l->stretch = 1;
    TIFFGetFieldDefaulted(t->handle, TIFFTAG_RESOLUTIONUNIT, &unit);
    if (!TIFFGetField(t->handle, TIFFTAG_XRESOLUTION, &x) ||
        !TIFFGetField(t->handle, TIFFTAG_YRESOLUTION, &y))
        return;
    if (y > 0 && x / y >= 1.5f && x / y < (float)STRETCH_MAX)
        l->stretch = (uint32_t)(x / y + 0.5f);
    if (unit == RESUNIT_INCH)
        l->dpi = ocr_plausible_dpi((double)x);
    else if (unit == RESUNIT_CENTIMETER)
        l->dpi = ocr_plausible_dpi((double)x * 2.54);
}

static int refuse(const struct tiff *t, enum ocr_kind kind, const char *what,
                  struct ocr_err *err)
{
    return ocr_err_kind(err, kind, "the TIFF %s: %s", what,
                        t->why[0] ? t->why : "libtiff does not say why");
}

static int read_layout(struct tiff *t, struct layout *l, struct ocr_err *err)
{
    TIFF *h = t->handle;

    *l = (struct layout){.photometric = PHOTOMETRIC_MINISBLACK};
    TIFFGetField(h, TIFFTAG_IMAGEWIDTH, &l->width);
    TIFFGetField(h, TIFFTAG_IMAGELENGTH, &l->height);
    TIFFGetFieldDefaulted(h, TIFFTAG_BITSPERSAMPLE, &l->bits);
    TIFFGetFieldDefaulted(h, TIFFTAG_SAMPLESPERPIXEL, &l->samples);
    TIFFGetFieldDefaulted(h, TIFFTAG_PLANARCONFIG, &l->planar);
    TIFFGetFieldDefaulted(h, TIFFTAG_COMPRESSION, &l->compression);
    TIFFGetFieldDefaulted(h, TIFFTAG_SAMPLEFORMAT, &l->format);
    TIFFGetFieldDefaulted(h, TIFFTAG_ROWSPERSTRIP, &l->rows);
    TIFFGetFieldDefaulted(h, TIFFTAG_ORIENTATION, &l->orientation);
    TIFFGetField(h, TIFFTAG_PHOTOMETRIC, &l->photometric);
    if (l->orientation < 1 || l->orientation > 8)
        l->orientation = ORIENTATION_TOPLEFT;
    if (l->rows == 0 || l->rows > l->height)
        l->rows = l->height;
    read_resolution(t, l);
    if (!TIFFIsCODECConfigured(l->compression))
        return ocr_err_kind(err, OCR_KIND_UNSUPPORTED,
                            "the TIFF is compressed in a way (%u) that "
                            "libtiff does not know here",
                            l->compression);
    return 0;
}

/* libtiff reads what is there and leaves the rest white or gray. */
static int check_whole(const struct tiff *t, struct ocr_err *err)
{
    TIFF *h = t->handle;
    const uint32_t count =
        TIFFIsTiled(h) ? TIFFNumberOfTiles(h) : TIFFNumberOfStrips(h);

    for (uint32_t i = 0; i < count; i++) {
        const uint64_t at = TIFFGetStrileOffset(h, i);
        const uint64_t bytes = TIFFGetStrileByteCount(h, i);

        if (at > t->len || bytes > t->len - at)
            return ocr_err_kind(err, OCR_KIND_TRUNCATED,
                                "the TIFF is cut off: it ends before its "
                                "last row");
    }
    return 0;
}

static void put_row(struct ocr_canvas *canvas, const struct layout *l,
                    uint32_t x, uint32_t y, const uint8_t *row, uint32_t n)
{
    for (uint32_t i = 0; i < l->stretch; i++)
        ocr_canvas_put(canvas, x, 1, y * l->stretch + i, row, n);
}

/* What scanners and fax machines write, row by row: little memory, and much
 * faster than by way of RGBA. */
static bool is_plain(const struct tiff *t, const struct layout *l)
{
    return !TIFFIsTiled(t->handle) && l->samples == 1 &&
           l->planar == PLANARCONFIG_CONTIG && l->format == SAMPLEFORMAT_UINT &&
           l->compression != COMPRESSION_OJPEG &&
           (l->bits == 1 || l->bits == 8 || l->bits == 16) &&
           (l->photometric == PHOTOMETRIC_MINISWHITE ||
            l->photometric == PHOTOMETRIC_MINISBLACK);
}

static void to_gray(const struct layout *l, const uint8_t *from, uint8_t *to)
{
    const uint8_t flip = l->photometric == PHOTOMETRIC_MINISWHITE ? 255 : 0;

    for (uint32_t x = 0; x < l->width; x++) {
        uint8_t value;

        if (l->bits == 1) {
            value = from[x / 8] >> (7 - x % 8) & 1 ? 255 : 0;
        } else if (l->bits == 8) {
            value = from[x];
        } else { /* in the order of this machine */
            uint16_t sample;

            memcpy(&sample, from + (size_t)x * 2, sizeof sample);
            value = (uint8_t)(sample >> 8);
        }
        to[x] = value ^ flip;
    }
}

static int copy_rows(struct tiff *t, const struct layout *l,
                     struct ocr_canvas *canvas, uint8_t *row, uint8_t *gray,
                     struct ocr_err *err)
{
    for (uint32_t y = 0; y < l->height; y++) {
        if (TIFFReadScanline(t->handle, row, y, 0) != 1 || t->failed)
            return refuse(t, OCR_KIND_CORRUPT, "is damaged", err);
        to_gray(l, row, gray);
        put_row(canvas, l, 0, y, gray, l->width);
    }
    return 0;
}

static int read_rows(struct tiff *t, const struct layout *l,
                     struct ocr_canvas *canvas, struct ocr_err *err)
{
    const tmsize_t bytes = TIFFScanlineSize(t->handle);
    const bool whole =
        bytes > 0 && (uint64_t)bytes * 8 >= (uint64_t)l->width * l->bits;
    uint8_t *row = whole ? malloc((size_t)bytes) : NULL;
    uint8_t *gray = malloc(l->width);
    const int rc = row && gray
                       ? copy_rows(t, l, canvas, row, gray, err)
                       : ocr_err_set(err, -ENOMEM, "no memory for a row");

    free(row);
    free(gray);
    return rc;
}

/* Pixels with their colours multiplied by alpha, on white paper. */
static void to_rgb(const uint32_t *from, uint8_t *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, to += 3) {
        const unsigned paper = 255 - TIFFGetA(from[i]);
        const unsigned rgb[3] = {TIFFGetR(from[i]), TIFFGetG(from[i]),
                                 TIFFGetB(from[i])};

        for (int c = 0; c < 3; c++)
            to[c] = (uint8_t)(rgb[c] + paper < 255 ? rgb[c] + paper : 255);
    }
}

/* Puts a block of RGBA at (x, y), of which libtiff begins with the last row. */
static void put_block(struct ocr_canvas *canvas, const struct layout *l,
                      uint32_t x, uint32_t y, const uint32_t *block,
                      uint32_t width, uint32_t rows, uint8_t *row)
{
    const uint32_t columns = l->width - x < width ? l->width - x : width;

    for (uint32_t i = 0; i < rows && y + i < l->height; i++) {
        to_rgb(block + (size_t)(rows - 1 - i) * width, row, columns);
        put_row(canvas, l, x, y + i, row, columns);
    }
}

static int read_strips(struct tiff *t, const struct layout *l,
                       struct ocr_canvas *canvas, uint32_t *block, uint8_t *row)
{
    for (uint32_t y = 0; y < l->height; y += l->rows) {
        const uint32_t rows = l->height - y < l->rows ? l->height - y : l->rows;

        if (!TIFFReadRGBAStripExt(t->handle, y, block, 1) || t->failed)
            return -EBADMSG;
        put_block(canvas, l, 0, y, block, l->width, rows, row);
    }
    return 0;
}

static int read_tiles(struct tiff *t, const struct layout *l, uint32_t width,
                      uint32_t height, struct ocr_canvas *canvas,
                      uint32_t *block, uint8_t *row)
{
    for (uint32_t y = 0; y < l->height; y += height)
        for (uint32_t x = 0; x < l->width; x += width) {
            if (!TIFFReadRGBATileExt(t->handle, x, y, block, 1) || t->failed)
                return -EBADMSG;
            put_block(canvas, l, x, y, block, width, height, row);
        }
    return 0;
}

static int read_colours(struct tiff *t, const struct layout *l,
                        struct ocr_canvas *canvas, struct ocr_err *err)
{
    uint32_t width = l->width, height = l->rows;
    uint32_t *block = NULL;
    uint8_t *row = NULL;
    int rc;

    if (TIFFIsTiled(t->handle)) {
        TIFFGetField(t->handle, TIFFTAG_TILEWIDTH, &width);
        TIFFGetField(t->handle, TIFFTAG_TILELENGTH, &height);
    }
    /* A tile may be larger than the page, and its size is only a number. */
    if (width && height && (uint64_t)width * height < (uint64_t)1 << 29) {
        block = malloc((size_t)width * height * sizeof *block);
        row = malloc((size_t)width * 3);
    }
    if (!block || !row)
        rc = ocr_err_set(err, -ENOMEM, "no memory for %u x %u pixels", width,
                         height);
    else if (TIFFIsTiled(t->handle)
                 ? read_tiles(t, l, width, height, canvas, block, row)
                 : read_strips(t, l, canvas, block, row))
        rc = refuse(t, OCR_KIND_CORRUPT, "is damaged", err);
    else
        rc = 0;
    free(block);
    free(row);
    return rc;
}

static int check_page(struct tiff *t, const struct layout *l,
                      const struct ocr_image_limits *limits,
                      struct ocr_err *err)
{
    char why[1024] = "";
    int rc = ocr_canvas_check("TIFF", l->width,
                              (uint64_t)l->height * l->stretch, limits, err);

    if (rc == 0)
        rc = check_whole(t, err);
    if (rc == 0 && !is_plain(t, l) && !TIFFRGBAImageOK(t->handle, why))
        rc = ocr_err_kind(err, OCR_KIND_UNSUPPORTED,
                          "the TIFF is of an unsupported kind: %s", why);
    return rc;
}

static int tiff_page(void *document, uint32_t page, struct ocr_image *out,
                     const struct ocr_image_limits *limits,
                     const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    struct tiff *t = document;
    struct ocr_canvas canvas;
    struct layout l;
    int rc;

    t->failed = false;
    t->why[0] = '\0';
    if (!TIFFSetSubDirectory(t->handle, t->pages[page]))
        return refuse(t, OCR_KIND_CORRUPT, "is damaged", err);
    rc = read_layout(t, &l, err);
    if (rc == 0)
        rc = check_page(t, &l, limits, err);
    if (rc)
        return rc;
    /* Turned by the canvas, and not by libtiff once more. */
    TIFFSetField(t->handle, TIFFTAG_ORIENTATION, ORIENTATION_TOPLEFT);
    t->failed = false; /* odd tags do no harm */
    t->why[0] = '\0';
    rc = ocr_canvas_init(&canvas, out, l.width, l.height * l.stretch,
                         is_plain(t, &l) ? 1 : 3, l.orientation, limits, alloc,
                         err);
    if (rc == 0)
        rc = is_plain(t, &l) ? read_rows(t, &l, &canvas, err)
                             : read_colours(t, &l, &canvas, err);
    if (rc)
        return rc;
    out->dpi = l.dpi;
    ocr_canvas_finish(&canvas);
    return 0;
}

/* ---- the document -------------------------------------------------------- */

static void tiff_close(void *document)
{
    struct tiff *t = document;

    if (!t)
        return;
    if (t->handle)
        TIFFClose(t->handle);
    free(t->pages);
    free(t);
}

static int open_handle(struct tiff *t, struct ocr_err *err)
{
    TIFFSetWarningHandler(NULL);
    TIFFSetErrorHandler(NULL);
    TIFFSetErrorHandlerExt(on_error);
    t->handle = TIFFClientOpen("TIFF", "r", t, on_read, on_write, on_seek,
                               on_close, on_size, on_map, on_unmap);
    return t->handle ? 0 : refuse(t, OCR_KIND_CORRUPT, "is damaged", err);
}

static int tiff_open(void **document, uint32_t *pages, const uint8_t *data,
                     size_t len, const struct ocr_image_limits *limits,
                     struct ocr_err *err)
{
    struct tiff *t = calloc(1, sizeof *t);
    int rc;

    *document = NULL;
    if (!t)
        return ocr_err_set(err, -ENOMEM, "no memory for a TIFF");
    t->data = data;
    t->len = len;
    rc = read_header(t, err);
    if (rc == 0)
        rc = find_pages(t, limits, err);
    if (rc == 0)
        rc = open_handle(t, err);
    if (rc) {
        tiff_close(t);
        return rc;
    }
    *pages = t->count;
    *document = t;
    return 0;
}

/* "LIBTIFF, Version 4.5.0" and lines of copyright. */
static const char *tiff_library(void)
{
    static char name[32];
    const char *version = strstr(TIFFGetVersion(), "Version ");

    snprintf(name, sizeof name, "libtiff %.*s",
             version ? (int)strcspn(version + 8, "\n") : 0,
             version ? version + 8 : "");
    return name;
}

const struct ocr_decoder ocr_decoder_tiff = {
    .abi = OCR_DECODER_ABI,
    .name = "tiff",
    .library = tiff_library,
    .open = tiff_open,
    .page = tiff_page,
    .close = tiff_close,
};
