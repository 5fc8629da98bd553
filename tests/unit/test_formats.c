/* What the decoders beyond PNG and JPEG have of their own: pages, orientation,
 * resolution, and what no row of the manifest can show. */
#include "tests/lib/formats.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA "tests/data/formats/"

static const struct ocr_image_limits standard = OCR_IMAGE_LIMITS_DEFAULT;

struct file {
    uint8_t *data;
    size_t len;
};

static struct file load(const char *name)
{
    char path[256];
    struct file file;
    FILE *f;

    snprintf(path, sizeof path, DATA "%s", name);
    f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    file.len = (size_t)ftell(f);
    rewind(f);
    file.data = malloc(file.len);
    assert_non_null(file.data);
    assert_int_equal(fread(file.data, 1, file.len, f), file.len);
    fclose(f);
    return file;
}

static void *take(void *arg, size_t bytes)
{
    void **block = arg;

    assert_null(*block);
    return *block = calloc(1, bytes);
}

/* Pixels are the caller's, NULL after an error. */
static int decode_page(struct ocr_document *d, uint32_t page,
                       struct ocr_image *out,
                       const struct ocr_image_limits *limits,
                       struct ocr_err *err)
{
    void *block = NULL;
    const struct ocr_image_alloc alloc = {take, &block};
    const int rc = ocr_document_decode(d, page, out, limits, &alloc, err);

    if (rc) {
        free(block);
        out->pixels = NULL;
        if (!*err->text || strchr(err->text, 10))
            fail_msg("%d \"%s\"", rc, err->text);
    }
    return rc;
}

static int decode(struct ocr_image *out, const uint8_t *data, size_t len,
                  const struct ocr_image_limits *limits, struct ocr_err *err)
{
    struct ocr_document *d;
    uint8_t *exact = malloc(len ? len : 1);
    int rc;

    memcpy(exact, data, len);
    *out = (struct ocr_image){0};
    rc = ocr_document_open(&d, exact, len, limits, err);
    if (rc == 0)
        rc = decode_page(d, 0, out, limits, err);
    ocr_document_close(d);
    free(exact);
    return rc;
}

/* ---- files cut short and changed ----------------------------------------- */

static const char *const samples[] = {
#ifdef HAVE_FORMAT_tiff
    "tiff-g3.tif",
    "tiff-g4-miniswhite.tif",
    "tiff-lzw-rgb.tif",
    "tiff-jpeg.tif",
    "tiff-orientation-6.tif",
    "tiff-tiled-bigtiff.tif",
    "tiff-deflate-gray16.tif",
    "tiff-multipage-3.tif",
#endif
#ifdef HAVE_FORMAT_webp
    "webp-lossy.webp",
    "webp-lossless-alpha.webp",
#endif
#ifdef HAVE_FORMAT_gif
    "gif-plain.gif",
#endif
#ifdef HAVE_FORMAT_bmp
    "bmp-gray8.bmp",
    "bmp-bilevel.bmp",
#endif
#ifdef HAVE_FORMAT_heif
    "avif-rgb8.avif",
#endif
#ifdef HAVE_FORMAT_pdf
    "pdf-image-2pages.pdf",
    "pdf-text.pdf",
#endif
    NULL};

/* What is cut off is refused, or was not needed for a pixel. */
static void test_a_cut_never_goes_unnoticed(void **state)
{
    (void)state;
    for (int i = 0; samples[i]; i++) {
        struct file file = load(samples[i]);
        struct ocr_err err = OCR_ERR_INIT;
        struct ocr_image whole, image;

        assert_int_equal(decode(&whole, file.data, file.len, &standard, &err),
                         0);
        for (size_t len = 4; len < file.len; len += 1 + file.len / 90) {
            ocr_err_clear(&err);
            if (decode(&image, file.data, len, &standard, &err))
                continue;
            if (image.width != whole.width || image.height != whole.height ||
                memcmp(image.pixels, whole.pixels, ocr_image_bytes(&whole)))
                fail_msg("%s cut to %zu bytes", samples[i], len);
            free(image.pixels);
        }
        free(whole.pixels);
        free(file.data);
    }
}

static void test_changed_bytes_do_no_harm(void **state)
{
    struct ocr_image_limits limits = OCR_IMAGE_LIMITS_DEFAULT;
    uint32_t seed = 1;

    (void)state;
    limits.pixels = 1000000;
    limits.pages = 20;
    for (int i = 0; samples[i]; i++) {
        struct file file = load(samples[i]);

        for (int round = 0; round < 150; round++) {
            struct ocr_err err = OCR_ERR_INIT;
            struct ocr_image image;
            uint8_t *copy = malloc(file.len);

            memcpy(copy, file.data, file.len);
            for (int k = round % 4; k >= 0; k--) {
                seed = seed * 1664525 + 1013904223;
                copy[4 + (seed >> 8) % (file.len - 4)] = (uint8_t)(seed >> 4);
            }
            decode(&image, copy, file.len, &limits, &err);
            free(image.pixels);
            free(copy);
        }
        free(file.data);
    }
}

/* ---- TIFF -----------------------------------------------------------------
 */

#ifdef HAVE_FORMAT_tiff
#include <tiffio.h>

static struct file read_back(FILE *f)
{
    struct file file;

    fseek(f, 0, SEEK_END);
    file.len = (size_t)ftell(f);
    rewind(f);
    file.data = malloc(file.len);
    assert_int_equal(fread(file.data, 1, file.len, f), file.len);
    fclose(f);
    return file;
}

struct page {
    uint32_t type; /* of the directory */
    uint16_t orientation;
    float x, y; /* resolution */
    uint8_t gray;
};

/* 40 x 20 pixels of `gray`, the first of them black. */
static void write_page(TIFF *t, const struct page *page)
{
    uint8_t row[40];

    TIFFSetField(t, TIFFTAG_SUBFILETYPE, page->type);
    TIFFSetField(t, TIFFTAG_IMAGEWIDTH, 40);
    TIFFSetField(t, TIFFTAG_IMAGELENGTH, 20);
    TIFFSetField(t, TIFFTAG_BITSPERSAMPLE, 8);
    TIFFSetField(t, TIFFTAG_SAMPLESPERPIXEL, 1);
    TIFFSetField(t, TIFFTAG_PHOTOMETRIC, PHOTOMETRIC_MINISBLACK);
    TIFFSetField(t, TIFFTAG_COMPRESSION, COMPRESSION_LZW);
    TIFFSetField(t, TIFFTAG_ROWSPERSTRIP, 7);
    TIFFSetField(t, TIFFTAG_ORIENTATION, page->orientation);
    if (page->x > 0) {
        TIFFSetField(t, TIFFTAG_XRESOLUTION, (double)page->x);
        TIFFSetField(t, TIFFTAG_YRESOLUTION, (double)page->y);
    }
    for (uint32_t y = 0; y < 20; y++) {
        memset(row, page->gray, sizeof row);
        if (y == 0)
            row[0] = 0;
        assert_int_equal(TIFFWriteScanline(t, row, y, 0), 1);
    }
    assert_int_equal(TIFFWriteDirectory(t), 1);
}

static struct file make_tiff(const struct page *pages, int count,
                             const char *mode)
{
    FILE *f = tmpfile();
    TIFF *t;

    assert_non_null(f);
    t = TIFFFdOpen(dup(fileno(f)), "made", mode);
    assert_non_null(t);
    for (int i = 0; i < count; i++)
        write_page(t, &pages[i]);
    TIFFClose(t);
    return read_back(f);
}

static void test_pages_in_order_without_previews(void **state)
{
    static const char *const modes[] = {"w", "wb", "wl", "w8"};
    const struct page pages[] = {{0, 1, 0, 0, 200},
                                 {FILETYPE_REDUCEDIMAGE, 1, 0, 0, 1},
                                 {FILETYPE_PAGE, 1, 0, 0, 210},
                                 {FILETYPE_MASK, 1, 0, 0, 2},
                                 {0, 1, 0, 0, 220}};

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct file file = make_tiff(pages, 5, modes[i]);
        struct ocr_err err = OCR_ERR_INIT;
        struct ocr_document *d;
        struct ocr_image image;

        assert_int_equal(
            ocr_document_open(&d, file.data, file.len, &standard, &err), 0);
        assert_int_equal(ocr_document_pages(d), 3);
        for (uint32_t k = 3; k-- > 0;) { /* in any order */
            assert_int_equal(decode_page(d, k, &image, &standard, &err), 0);
            assert_int_equal(image.width, 40);
            assert_int_equal(image.pixels[0], 0);
            assert_int_equal(image.pixels[799], 200 + 10 * k);
            free(image.pixels);
        }
        assert_int_not_equal(decode_page(d, 3, &image, &standard, &err), 0);
        ocr_document_close(d);
        free(file.data);
    }
}

static void test_too_many_pages(void **state)
{
    struct ocr_image_limits limits = OCR_IMAGE_LIMITS_DEFAULT;
    struct page pages[6] = {{0, 1, 0, 0, 1}, {0, 1, 0, 0, 2}, {0, 1, 0, 0, 3},
                            {0, 1, 0, 0, 4}, {0, 1, 0, 0, 5}, {0, 1, 0, 0, 6}};
    struct file file = make_tiff(pages, 6, "w");
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_document *d;

    (void)state;
    limits.pages = 6;
    assert_int_equal(ocr_document_open(&d, file.data, file.len, &limits, &err),
                     0);
    ocr_document_close(d);
    limits.pages = 5;
    ocr_document_open(&d, file.data, file.len, &limits, &err);
    assert_null(d);
    assert_int_equal(err.kind, OCR_KIND_TOO_LARGE);
    free(file.data);
}

static void test_a_chain_of_pages_ends(void **state)
{
    static const struct {
        const char *name;
        uint32_t pages;
    } files[] = {{"tiff-multipage-3.tif", 3}, {"tiff-ifd-loop.tif", 2}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct file file = load(files[i].name);
        struct ocr_err err = OCR_ERR_INIT;
        struct ocr_document *d;

        assert_int_equal(
            ocr_document_open(&d, file.data, file.len, &standard, &err), 0);
        assert_int_equal(ocr_document_pages(d), files[i].pages);
        ocr_document_close(d);
        free(file.data);
    }
}

/* Where the stored first pixel is seen, for each orientation. */
static void test_tiff_is_upright(void **state)
{
    static const struct {
        bool turned;
        size_t black;
    } seen[] = {{false, 0}, {false, 39}, {false, 799}, {false, 760},
                {true, 0},  {true, 19},  {true, 799},  {true, 780}};

    (void)state;
    for (uint16_t i = 0; i < 8; i++) {
        const struct page page = {0, (uint16_t)(i + 1), 0, 0, 255};
        struct file file = make_tiff(&page, 1, "w");
        struct ocr_err err = OCR_ERR_INIT;
        struct ocr_image image;

        assert_int_equal(decode(&image, file.data, file.len, &standard, &err),
                         0);
        assert_int_equal(image.width, seen[i].turned ? 20 : 40);
        assert_int_equal(image.pixels[seen[i].black], 0);
        free(image.pixels);
        free(file.data);
    }
}

static void test_resolution_and_fax(void **state)
{
    const struct page even = {0, 1, 300, 300, 9}, fax = {0, 1, 204, 98, 9};
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_image image;
    struct file file = make_tiff(&even, 1, "w");

    (void)state;
    assert_int_equal(decode(&image, file.data, file.len, &standard, &err), 0);
    assert_int_equal(image.dpi, 300);
    assert_int_equal(image.height, 20);
    free(image.pixels);
    free(file.data);
    file = make_tiff(&fax, 1, "w");
    assert_int_equal(decode(&image, file.data, file.len, &standard, &err), 0);
    assert_int_equal(image.height, 40);
    assert_int_equal(image.pixels[40], 0); /* the first row, twice */
    assert_int_equal(image.pixels[80], 9);
    free(image.pixels);
    free(file.data);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_cut_never_goes_unnoticed),
        cmocka_unit_test(test_changed_bytes_do_no_harm),
#ifdef HAVE_FORMAT_tiff
        cmocka_unit_test(test_pages_in_order_without_previews),
        cmocka_unit_test(test_too_many_pages),
        cmocka_unit_test(test_a_chain_of_pages_ends),
        cmocka_unit_test(test_tiff_is_upright),
        cmocka_unit_test(test_resolution_and_fax),
#endif
    };

    use_formats();
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
