/* tests/fuzz/images.h - image files, as a decode helper gets them. */
#ifndef FUZZ_IMAGES_H
#define FUZZ_IMAGES_H
#include "engine/image/exif.h"
#include "engine/image/image.h"
#include "tests/lib/formats.h"
#include "tests/fuzz/must.h"

#include <errno.h>
#include <zlib.h>

static inline void *fuzz_alloc(void *arg, size_t bytes)
{
    uint8_t **pixels = arg;

    must(!*pixels && bytes > 0);
    *pixels = calloc(1, bytes);
    return *pixels;
}

static inline int fuzz_decode(const uint8_t *data, size_t size, bool partial)
{
    const struct ocr_image_limits limits = {
        .pixels = 1 << 20, .scans = 100, .partial = partial, .pages = 50};
    struct ocr_err err = OCR_ERR_INIT;
    uint8_t *pixels = NULL;
    const struct ocr_image_alloc alloc = {fuzz_alloc, &pixels};
    struct ocr_image image = {0};
    const int rc = ocr_image_decode(&image, data, size, &limits, &alloc, &err);

    if (rc) {
        must(rc < 0 && *err.text && (err.kind || rc == -ENOMEM));
    } else {
        must(image.pixels == pixels && pixels);
        must(image.width > 0 && image.height > 0);
        must((uint64_t)image.width * image.height <= limits.pixels);
        must(image.channels == 1 || image.channels == 3);
        must(partial || !image.partial);
        must(image.blank == ocr_image_is_blank(&image));
    }
    free(pixels);
    return 0;
}

/* Makes the checksums of chunks right, or hardly any change would get behind
 * the first of them. */
static inline void fuzz_mend_png(uint8_t *png, size_t size)
{
    size_t at = 8;

    while (at + 12 <= size) {
        const size_t len = (size_t)png[at] << 24 | (size_t)png[at + 1] << 16 |
                           (size_t)png[at + 2] << 8 | png[at + 3];
        uint32_t sum;

        if (len > size - at - 12)
            return;
        sum = (uint32_t)crc32(crc32(0, NULL, 0), png + at + 4, (uInt)len + 4);
        for (int i = 0; i < 4; i++)
            png[at + 8 + len + (size_t)i] = (uint8_t)(sum >> (24 - 8 * i));
        at += len + 12;
    }
}

/* The last byte says whether to take what there is of a truncated one. */
static inline int fuzz_image(const uint8_t *data, size_t size,
                             enum ocr_format format)
{
    uint8_t *copy;

    if (size == 0 || ocr_image_sniff(data, size) != format)
        return 0;
    copy = malloc(size);
    must(copy);
    memcpy(copy, data, size);
    if (format == OCR_FORMAT_PNG && data[size - 1] % 4)
        fuzz_mend_png(copy, size);
    fuzz_decode(copy, size, data[size - 1] & 1);
    free(copy);
    return 0;
}

static inline int fuzz_png(const uint8_t *data, size_t size)
{
    return fuzz_image(data, size, OCR_FORMAT_PNG);
}

static inline int fuzz_jpeg(const uint8_t *data, size_t size)
{
    return fuzz_image(data, size, OCR_FORMAT_JPEG);
}

static inline int fuzz_format(const uint8_t *data, size_t size,
                              enum ocr_format format)
{
    static bool used;

    if (!used)
        use_formats();
    used = true;
    return fuzz_image(data, size, format);
}

static inline int fuzz_tiff(const uint8_t *data, size_t size)
{
    return fuzz_format(data, size, OCR_FORMAT_TIFF);
}

static inline int fuzz_webp(const uint8_t *data, size_t size)
{
    return fuzz_format(data, size, OCR_FORMAT_WEBP);
}

static inline int fuzz_gif(const uint8_t *data, size_t size)
{
    return fuzz_format(data, size, OCR_FORMAT_GIF);
}

static inline int fuzz_bmp(const uint8_t *data, size_t size)
{
    return fuzz_format(data, size, OCR_FORMAT_BMP);
}

static inline int fuzz_heif(const uint8_t *data, size_t size)
{
    return fuzz_format(data, size, OCR_FORMAT_AVIF);
}

static inline int fuzz_exif(const uint8_t *data, size_t size)
{
    struct ocr_exif exif;

    ocr_exif_read(&exif, data, size);
    must(exif.orientation >= 1 && exif.orientation <= 8);
    must(exif.dpi == ocr_plausible_dpi(exif.dpi));
    must(ocr_format_name(ocr_image_sniff(data, size)));
    return 0;
}

#endif
