/* Decoding: every row of tests/data/formats/manifest.tsv, and what no single
 * file can show: cuts at every byte, odd sizes, limits, hostile changes. */
#include "engine/image/canvas.h"
#include "engine/image/exif.h"
#include "engine/image/image.h"

#include "tests/lib/formats.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#define FORMATS "tests/data/formats/"

struct file {
    uint8_t *data;
    size_t len;
};

static struct file load(const char *name)
{
    char path[512];
    struct file file;
    FILE *f;

    snprintf(path, sizeof path, FORMATS "%s", name);
    f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    file.len = (size_t)ftell(f);
    rewind(f);
    file.data = malloc(file.len + 1);
    assert_int_equal(fread(file.data, 1, file.len, f), file.len);
    fclose(f);
    return file;
}

struct memory {
    void *block;
    size_t bytes;
    unsigned calls;
};

static void *take(void *arg, size_t bytes)
{
    struct memory *memory = arg;

    memory->calls++;
    memory->bytes = bytes;
    memory->block = calloc(1, bytes);
    return memory->block;
}

/* Decodes an exact copy, so that a sanitizer sees a read behind the end. The
 * pixels are the test's; they are NULL after an error. */
static int decode(struct ocr_image *out, const uint8_t *data, size_t len,
                  const struct ocr_image_limits *limits, struct ocr_err *err)
{
    static const struct ocr_image_limits standard = OCR_IMAGE_LIMITS_DEFAULT;
    struct memory memory = {0};
    const struct ocr_image_alloc alloc = {take, &memory};
    uint8_t *copy = malloc(len ? len : 1);
    int rc;

    memcpy(copy, data, len);
    ocr_err_clear(err);
    rc = ocr_image_decode(out, copy, len, limits ? limits : &standard, &alloc,
                          err);
    free(copy);
    assert_true(memory.calls <= 1);
    if (rc) {
        assert_int_equal(rc, ocr_kind_errno(err->kind));
        assert_true(ocr_kind_is_verdict(err->kind));
        assert_true(strlen(err->text) > 0);
        assert_null(strchr(err->text, '\n'));
        free(memory.block);
        out->pixels = NULL;
        return rc;
    }
    assert_ptr_equal(out->pixels, memory.block);
    assert_true(ocr_image_bytes(out) <= memory.bytes);
    assert_true(out->channels == 1 || out->channels == 3);
    return 0;
}

static void decode_file(struct ocr_image *out, const char *name)
{
    struct file file = load(name);
    struct ocr_err err = OCR_ERR_INIT;

    if (decode(out, file.data, file.len, NULL, &err))
        fail_msg("%s: %s", name, err.text);
    free(file.data);
}

static double mean_gray(const struct ocr_image *image)
{
    const size_t pixels = (size_t)image->width * image->height;
    double sum = 0;

    for (size_t i = 0; i < pixels; i++) {
        const uint8_t *p = image->pixels + i * image->channels;

        sum += image->channels == 1
                   ? p[0]
                   : 0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2];
    }
    return sum / (double)pixels;
}

/* ---- the manifest ------------------------------------------------------- */

static bool allowed(const char *expected, const char *token)
{
    return strstr(expected, token) != NULL || strstr(expected, "any") != NULL;
}

/* Formats of plugins: this build may lack them. */
static bool is_later(const char *name)
{
    return strstr(name, ".tif") || strstr(name, ".webp") ||
           strstr(name, ".pdf") || strstr(name, ".gif") ||
           strstr(name, ".bmp") || strstr(name, ".heic") ||
           strstr(name, ".avif") || !strncmp(name, "gif-", 4) ||
           !strncmp(name, "webp-", 5);
}

static void check_picture(const char *name, const char *expected,
                          const char *note, const struct ocr_image *image)
{
    unsigned width = 0, height = 0;
    const char *upright = strstr(note, "upright ");
    const char *decodes = strstr(note, "decodes to ");

    if (!allowed(expected, "text:") && !allowed(expected, "empty") &&
        !allowed(expected, "file:"))
        fail_msg("%s: decoded, expected %s", name, expected);
    if (image->blank && !allowed(expected, "empty"))
        fail_msg("%s: blank, expected %s", name, expected);
    if (!image->blank && !strcmp(expected, "empty"))
        fail_msg("%s: not blank", name);
    if (upright)
        sscanf(upright, "upright %ux%u", &width, &height);
    else if (decodes)
        sscanf(decodes, "decodes to %ux%u", &width, &height);
    if (width && (image->width != width || image->height != height))
        fail_msg("%s: %ux%u", name, image->width, image->height);
    if (strstr(note, "mean gray about 219") && fabs(mean_gray(image) - 219) > 2)
        fail_msg("%s: mean gray %.1f", name, mean_gray(image));
}

static void check_row(const char *name, const char *expected, const char *note)
{
    struct file file = load(name);
    struct ocr_image image;
    struct ocr_err err = OCR_ERR_INIT;
    char token[64];

    if (decode(&image, file.data, file.len, NULL, &err) == 0) {
        check_picture(name, expected, note, &image);
    } else {
        snprintf(token, sizeof token, "error:%s", ocr_kind_name(err.kind));
        if (!allowed(expected, token) &&
            !(is_later(name) && err.kind == OCR_KIND_UNSUPPORTED))
            fail_msg("%s: %s (%s), expected %s", name, token, err.text,
                     expected);
    }
    free(image.pixels);
    free(file.data);
}

static void test_every_row_of_the_manifest(void **state)
{
    char line[4096];
    FILE *f = fopen(FORMATS "manifest.tsv", "r");
    unsigned rows = 0;

    (void)state;
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    while (fgets(line, sizeof line, f)) {
        char *rest = line;
        const char *name = strsep(&rest, "\t");
        const char *trait = strsep(&rest, "\t");
        const char *expected = strsep(&rest, "\t");

        assert_non_null(trait);
        assert_non_null(rest);
        check_row(name, expected, rest);
        rows++;
    }
    fclose(f);
    assert_int_equal(rows, 131);
}

/* Without the Adobe marker CMYK may be meant either way; with it, it may not,
 * however dark the picture. All of these show dark text on light paper. */
static void test_cmyk_comes_out_light(void **state)
{
    static const char *const names[] = {
        "jpeg-cmyk-adobe.jpg", "jpeg-cmyk-no-adobe.jpg", "jpeg-ycck-adobe.jpg"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct ocr_image image;

        decode_file(&image, names[i]);
        assert_true(fabs(mean_gray(&image) - 219) < 2);
        free(image.pixels);
    }
}

/* 64 x 64 samples of one value in all four components. */
static struct file make_cmyk(int value, bool marker)
{
    struct jpeg_compress_struct jpeg = {0};
    struct jpeg_error_mgr errors;
    unsigned char *data = NULL;
    unsigned long len = 0;
    JSAMPLE samples[64 * 4];
    JSAMPROW row = samples;

    memset(samples, value, sizeof samples);
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &data, &len);
    jpeg.image_width = jpeg.image_height = 64;
    jpeg.input_components = 4;
    jpeg.in_color_space = JCS_CMYK;
    jpeg_set_defaults(&jpeg);
    jpeg.write_Adobe_marker = marker;
    jpeg.write_JFIF_header = TRUE;
    jpeg.density_unit = 2; /* dots per centimetre */
    jpeg.X_density = jpeg.Y_density = 118;
    jpeg_start_compress(&jpeg, TRUE);
    while (jpeg.next_scanline < 64)
        jpeg_write_scanlines(&jpeg, &row, 1);
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    return (struct file){data, len};
}

static void test_polarity_of_cmyk(void **state)
{
    static const struct {
        int value;
        bool marker;
        bool light;
    } cases[] = {
        {0, true, false},   /* Adobe says full ink: dark it is */
        {255, true, true},  /* no ink */
        {0, false, true},   /* no ink */
        {255, false, true}, /* nobody prints this: inverted */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct file file = make_cmyk(cases[i].value, cases[i].marker);
        struct ocr_err err = OCR_ERR_INIT;
        struct ocr_image image;

        assert_int_equal(decode(&image, file.data, file.len, NULL, &err), 0);
        assert_int_equal(mean_gray(&image) > 128, cases[i].light);
        assert_int_equal(image.dpi, 300);
        free(image.pixels);
        free(file.data);
    }
}

static void test_light_ink_gets_dark_paper(void **state)
{
    struct ocr_image image;

    (void)state;
    decode_file(&image, "png-rgba8-white-text-transparent.png");
    assert_true(mean_gray(&image) < 60);
    assert_false(image.blank);
    free(image.pixels);
}

/* The eight stored forms of one picture are one picture. JPEG is lossy, so
 * only nearly so. */
static void test_orientations_agree(void **state)
{
    struct ocr_image upright, image;

    (void)state;
    decode_file(&upright, "jpeg-exif-orientation-1.jpg");
    for (int o = 2; o <= 8; o++) {
        char name[64];
        uint64_t off = 0;

        snprintf(name, sizeof name, "jpeg-exif-orientation-%d.jpg", o);
        decode_file(&image, name);
        assert_int_equal(ocr_image_bytes(&image), ocr_image_bytes(&upright));
        for (size_t i = 0; i < ocr_image_bytes(&image); i++)
            off += (uint64_t)abs(image.pixels[i] - upright.pixels[i]);
        assert_true(off < 3 * ocr_image_bytes(&image));
        free(image.pixels);
    }
    free(upright.pixels);
}

/* ---- cuts and damage ---------------------------------------------------- */

/* Whatever is cut off, either the file is called truncated or no pixel is
 * missing: never a picture that silently lacks its end. */
static void test_a_cut_never_goes_unnoticed(void **state)
{
    static const char *const names[] = {"jpeg-gray.jpg",
                                        "jpeg-444.jpg",
                                        "jpeg-progressive.jpg",
                                        "jpeg-restart-markers.jpg",
                                        "jpeg-cmyk-adobe.jpg",
                                        "jpeg-arithmetic.jpg",
                                        "png-gray1.png",
                                        "png-interlaced-rgb8.png",
                                        "png-palette8-trns.png",
                                        "jpeg-arithmetic-progressive.jpg",
                                        "png-exif-orientation-6.png"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct file file = load(names[i]);
        struct ocr_image whole, part;
        struct ocr_err err = OCR_ERR_INIT;
        size_t good = 0;

        decode_file(&whole, names[i]);
        for (size_t len = 1; len < file.len;
             len += len + 64 < file.len ? 7 : 1) {
            if (decode(&part, file.data, len, NULL, &err)) {
                if (err.kind != OCR_KIND_TRUNCATED)
                    fail_msg("%s, %zu of %zu bytes: %s", names[i], len,
                             file.len, err.text);
                continue;
            }
            good++;
            assert_int_equal(ocr_image_bytes(&part), ocr_image_bytes(&whole));
            if (memcmp(part.pixels, whole.pixels, ocr_image_bytes(&part)))
                fail_msg("%s: %zu of %zu bytes give other pixels", names[i],
                         len, file.len);
            free(part.pixels);
        }
        assert_true(good < 64);
        free(whole.pixels);
        free(file.data);
    }
}

static void test_partial_shows_what_there_is(void **state)
{
    static const char *const pairs[][2] = {
        {"png-truncated-half.png", "png-gray8.png"},
        {"jpeg-truncated-half.jpg", "jpeg-gray.jpg"}};
    struct ocr_image_limits limits = OCR_IMAGE_LIMITS_DEFAULT;

    (void)state;
    limits.partial = true;
    for (size_t i = 0; i < 2; i++) {
        struct file file = load(pairs[i][0]);
        struct ocr_err err = OCR_ERR_INIT;
        struct ocr_image part, whole;
        size_t same = 0, bytes;

        decode_file(&whole, pairs[i][1]);
        assert_int_equal(decode(&part, file.data, file.len, &limits, &err), 0);
        assert_int_equal(part.partial, 1);
        assert_int_equal(whole.partial, 0);
        bytes = ocr_image_bytes(&part);
        assert_int_equal(bytes, ocr_image_bytes(&whole));
        while (same < bytes && part.pixels[same] == whole.pixels[same])
            same++;
        assert_true(same >= part.width * 16); /* a row of blocks at least */
        for (size_t k = bytes - part.width; k < bytes; k++)
            assert_int_equal(part.pixels[k], 255);
        free(part.pixels);
        free(whole.pixels);
        free(file.data);
    }
}

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Changed bytes give a picture or a verdict, nothing else (the sanitizers see
 * the rest). The pixel limit keeps forged sizes cheap. */
static void test_changed_bytes_do_no_harm(void **state)
{
    static const char *const names[] = {"jpeg-exif-orientation-6.jpg",
                                        "jpeg-progressive.jpg",
                                        "jpeg-cmyk-no-adobe.jpg",
                                        "png-palette4-trns-short.png",
                                        "png-interlaced-gray16.png",
                                        "png-exif-orientation-6.png",
                                        "png-rgba16.png",
                                        "jpeg-arithmetic.jpg"};
    const struct ocr_image_limits limits = {
        .pixels = 1000000, .scans = 50, .partial = false};
    const struct ocr_image_limits partial = {
        .pixels = 1000000, .scans = 50, .partial = true};
    uint32_t seed = 1;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (int round = 0; round < 120; round++) {
            struct file file = load(names[i]);
            struct ocr_err err = OCR_ERR_INIT;
            struct ocr_image image;

            for (int k = round % 4; k >= 0; k--)
                file.data[8 + next_random(&seed) % (file.len - 8)] =
                    (uint8_t)next_random(&seed);
            decode(&image, file.data, file.len, round % 2 ? &limits : &partial,
                   &err);
            free(image.pixels);
            free(file.data);
        }
    }
}

/* ---- sizes, limits, allocation ------------------------------------------ */

static void append(png_structp png, png_bytep data, size_t n)
{
    struct file *file = png_get_io_ptr(png);

    file->data = realloc(file->data, file->len + n);
    memcpy(file->data + file->len, data, n);
    file->len += n;
}

static struct file make_png(const uint8_t *pixels, uint32_t width,
                            uint32_t height, int interlace, uint32_t per_metre)
{
    png_structp png =
        png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    struct file file = {0};
    png_bytep rows[16];

    assert_true(height <= 16);
    for (uint32_t y = 0; y < height; y++) {
        rows[y] = malloc(width);
        memcpy(rows[y], pixels + y * width, width);
    }
    png_set_write_fn(png, &file, append, NULL);
    png_set_IHDR(png, info, width, height, 8, PNG_COLOR_TYPE_GRAY, interlace,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (per_metre)
        png_set_pHYs(png, info, per_metre, per_metre, PNG_RESOLUTION_METER);
    png_set_rows(png, info, rows);
    png_write_png(png, info, PNG_TRANSFORM_IDENTITY, NULL);
    png_destroy_write_struct(&png, &info);
    for (uint32_t y = 0; y < height; y++)
        free(rows[y]);
    return file;
}

/* Adam7 has passes without columns or rows in small pictures. */
static void test_interlaced_in_all_small_sizes(void **state)
{
    uint8_t pixels[16 * 16];
    struct ocr_err err = OCR_ERR_INIT;

    (void)state;
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (uint8_t)(i * 37 + 11);
    for (uint32_t width = 1; width <= 11; width++) {
        for (uint32_t height = 1; height <= 11; height++) {
            struct file file =
                make_png(pixels, width, height, PNG_INTERLACE_ADAM7, 11811);
            struct ocr_image image;

            assert_int_equal(decode(&image, file.data, file.len, NULL, &err),
                             0);
            assert_int_equal(image.width, width);
            assert_int_equal(image.height, height);
            assert_int_equal(image.dpi, 300);
            assert_memory_equal(image.pixels, pixels, width * height);
            free(image.pixels);
            free(file.data);
        }
    }
}

static void test_limits_come_from_the_header(void **state)
{
    static const char *const names[] = {"png-gray8.png", "jpeg-gray.jpg"};
    struct ocr_image_limits limits = OCR_IMAGE_LIMITS_DEFAULT;
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_image image;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct file file = load(names[i]);

        limits.pixels = 300 * 80 - 1;
        assert_int_equal(decode(&image, file.data, file.len, &limits, &err),
                         -EFBIG);
        assert_int_equal(err.kind, OCR_KIND_TOO_LARGE);
        assert_null(image.pixels);
        limits.pixels = 300 * 80;
        assert_int_equal(decode(&image, file.data, file.len, &limits, &err), 0);
        free(image.pixels);
        free(file.data);
    }
}

static void test_scans_are_limited(void **state)
{
    struct ocr_image_limits limits = OCR_IMAGE_LIMITS_DEFAULT;
    struct file file = load("jpeg-progressive.jpg");
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_image image;

    (void)state;
    limits.scans = 2;
    assert_int_equal(decode(&image, file.data, file.len, &limits, &err),
                     -EFBIG);
    limits.scans = 20;
    assert_int_equal(decode(&image, file.data, file.len, &limits, &err), 0);
    free(image.pixels);
    free(file.data);
}

static void *refuse(void *arg, size_t bytes)
{
    (void)arg;
    (void)bytes;
    return NULL;
}

static void test_no_memory_for_pixels(void **state)
{
    static const char *const names[] = {"png-gray8.png", "jpeg-gray.jpg"};
    const struct ocr_image_limits limits = OCR_IMAGE_LIMITS_DEFAULT;
    const struct ocr_image_alloc alloc = {refuse, NULL};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct file file = load(names[i]);
        struct ocr_err err = OCR_ERR_INIT;
        struct ocr_image image;

        assert_int_equal(ocr_image_decode(&image, file.data, file.len, &limits,
                                          &alloc, &err),
                         -ENOMEM); /* no verdict on the image */
        free(file.data);
    }
}

/* RGB in which no pixel has a colour takes a third of the memory. */
static void test_gray_rgb_becomes_gray(void **state)
{
    struct ocr_image image;

    (void)state;
    decode_file(&image, "png-rgb8-trns.png");
    assert_int_equal(image.channels, 1);
    free(image.pixels);
    decode_file(&image, "png-rgb8.png");
    assert_int_equal(image.channels, 3);
    free(image.pixels);
}

/* ---- the parts ---------------------------------------------------------- */

/* Letters of a 2 x 3 picture, and where they must be for each orientation. */
static void test_canvas_turns(void **state)
{
    static const char stored[3][3] = {"ab", "cd", "ef"};
    static const char *const upright[] = {"abcdef", "badcfe", "fedcba",
                                          "efcdab", "acebdf", "ecafdb",
                                          "fdbeca", "bdface"};
    const struct ocr_image_limits limits = OCR_IMAGE_LIMITS_DEFAULT;

    (void)state;
    for (unsigned o = 1; o <= 8; o++) {
        struct memory memory = {0};
        const struct ocr_image_alloc alloc = {take, &memory};
        struct ocr_image image = {0};
        struct ocr_canvas canvas;

        assert_int_equal(
            ocr_canvas_init(&canvas, &image, 2, 3, 1, o, &limits, &alloc, NULL),
            0);
        assert_int_equal(image.width, o < 5 ? 2 : 3);
        assert_int_equal(image.height, o < 5 ? 3 : 2);
        for (uint32_t y = 0; y < 3; y++)
            ocr_canvas_put(&canvas, 0, 1, y, (const uint8_t *)stored[y], 2);
        assert_memory_equal(image.pixels, upright[o - 1], 6);
        free(image.pixels);
    }
}

static const uint8_t exif[] = {
    'M', 'M', 0, 42, 0, 0, 0, 8, 0, 3,
    0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0,
    0x01, 0x1a, 0, 5, 0, 0, 0, 1, 0, 0, 0, 46,
    0x01, 0x28, 0, 3, 0, 0, 0, 1, 0, 3, 0, 0,
    0, 0, 4, 157, 0, 0, 0, 10 /* 118.1 per centimetre */};

static void test_exif(void **state)
{
    struct ocr_exif out;

    (void)state;
    ocr_exif_read(&out, exif, sizeof exif);
    assert_int_equal(out.orientation, 6);
    assert_int_equal(out.dpi, 300);
    for (size_t len = 0; len < sizeof exif; len++) {
        uint8_t *cut = malloc(len ? len : 1);

        memcpy(cut, exif, len);
        ocr_exif_read(&out, cut, len);
        assert_true(out.orientation == 1 || out.orientation == 6);
        assert_true(out.dpi == 0 || len >= 46);
        free(cut);
    }
}

static void test_implausible_dpi_is_none(void **state)
{
    (void)state;
    assert_int_equal(ocr_plausible_dpi(1), 0);
    assert_int_equal(ocr_plausible_dpi(1e12), 0);
    assert_int_equal(ocr_plausible_dpi(-300), 0);
    assert_int_equal(ocr_plausible_dpi(299.9994), 300);
}

static void check_head(const char *head, size_t len, enum ocr_kind kind,
                       const char *word)
{
    struct ocr_err err = OCR_ERR_INIT;
    const int rc = ocr_image_check((const uint8_t *)head, len, &err);

    assert_int_equal(rc, kind ? ocr_kind_errno(kind) : 0);
    assert_int_equal(err.kind, kind);
    assert_non_null(strstr(err.text, word));
}

static void test_type_by_content(void **state)
{
    (void)state;
    check_head("", 0, OCR_KIND_EMPTY, "empty");
    check_head("\x89PNG\r\n\x1a\n", 8, OCR_KIND_NONE, "");
    check_head("\x89PNG\r\n\x1a\n", 7, OCR_KIND_TRUNCATED, "ends");
    check_head("\x89", 1, OCR_KIND_TRUNCATED, "ends");
    check_head("\xff\xd8\xff", 3, OCR_KIND_NONE, "");
    check_head("\xff\xd8", 2, OCR_KIND_TRUNCATED, "ends");
    check_head("\xff\xd8\x00", 3, OCR_KIND_NOT_IMAGE, "");
    check_head("GIF89a", 6, OCR_KIND_NONE, "");
    check_head("II*\0", 4, OCR_KIND_NONE, "");
    check_head("MM\0+", 4, OCR_KIND_NONE, "");
    check_head("RIFF....WEBP", 12, OCR_KIND_NONE, "");
    check_head("RIFF....WAVE", 12, OCR_KIND_NOT_IMAGE, "");
    check_head("%PDF-1.7", 8, OCR_KIND_NONE, "");
    check_head("\0\0\0\x18"
               "ftypheic",
               12, OCR_KIND_NONE, "");
    check_head("\0\0\0\x18"
               "ftypavif",
               12, OCR_KIND_NONE, "");
    check_head("\0\0\0\x18"
               "ftypmp42",
               12, OCR_KIND_NOT_IMAGE, "");
    check_head("BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0", 18, OCR_KIND_NONE,
               "");
    check_head("8BPS\0\1", 6, OCR_KIND_UNSUPPORTED, "PSD");
    check_head("BMW drivers are told", 20, OCR_KIND_NOT_IMAGE, "text");
    check_head("<?xml?><svg xmlns=''/>", 22, OCR_KIND_UNSUPPORTED, "SVG");
    check_head("caf\xe9 cr\xc3\xa8me\n", 12, OCR_KIND_NOT_IMAGE, "text");
    check_head("\x7f"
               "ELF\0\0",
               6, OCR_KIND_NOT_IMAGE, "no known");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_of_the_manifest),
        cmocka_unit_test(test_cmyk_comes_out_light),
        cmocka_unit_test(test_polarity_of_cmyk),
        cmocka_unit_test(test_light_ink_gets_dark_paper),
        cmocka_unit_test(test_orientations_agree),
        cmocka_unit_test(test_a_cut_never_goes_unnoticed),
        cmocka_unit_test(test_partial_shows_what_there_is),
        cmocka_unit_test(test_changed_bytes_do_no_harm),
        cmocka_unit_test(test_interlaced_in_all_small_sizes),
        cmocka_unit_test(test_limits_come_from_the_header),
        cmocka_unit_test(test_scans_are_limited),
        cmocka_unit_test(test_no_memory_for_pixels),
        cmocka_unit_test(test_gray_rgb_becomes_gray),
        cmocka_unit_test(test_canvas_turns),
        cmocka_unit_test(test_exif),
        cmocka_unit_test(test_implausible_dpi_is_none),
        cmocka_unit_test(test_type_by_content),
    };

    use_formats();
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
