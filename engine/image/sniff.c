#include "engine/image/image.h"

#include <ctype.h>
#include <string.h>

struct signature {
    enum ocr_format format;
    unsigned at, len;
    const char *bytes;
};

/* The first two are always decoded, see is_begun. */
static const struct signature signatures[] = {
    {OCR_FORMAT_PNG, 0, 8, "\x89PNG\r\n\x1a\n"},
    {OCR_FORMAT_JPEG, 0, 3, "\xff\xd8\xff"},
    {OCR_FORMAT_GIF, 0, 6, "GIF87a"},
    {OCR_FORMAT_GIF, 0, 6, "GIF89a"},
    {OCR_FORMAT_TIFF, 0, 4, "II*\0"},
    {OCR_FORMAT_TIFF, 0, 4, "MM\0*"},
    {OCR_FORMAT_TIFF, 0, 4, "II+\0"},
    {OCR_FORMAT_TIFF, 0, 4, "MM\0+"},
    {OCR_FORMAT_PDF, 0, 5, "%PDF-"},
    {OCR_FORMAT_JPEG2000, 0, 8, "\0\0\0\x0cjP  "},
    {OCR_FORMAT_JPEG2000, 0, 4, "\xff\x4f\xff\x51"},
    {OCR_FORMAT_JPEGXL, 0, 8, "\0\0\0\x0cJXL "},
    {OCR_FORMAT_JPEGXL, 0, 2, "\xff\x0a"},
    {OCR_FORMAT_PSD, 0, 4, "8BPS"},
    {OCR_FORMAT_AVIF, 4, 8, "ftypavif"},
    {OCR_FORMAT_AVIF, 4, 8, "ftypavis"},
    {OCR_FORMAT_HEIC, 4, 7, "ftyphei"},
    {OCR_FORMAT_HEIC, 4, 7, "ftyphev"},
    {OCR_FORMAT_HEIC, 4, 8, "ftypmif1"},
    {OCR_FORMAT_HEIC, 4, 8, "ftypmsf1"},
};

static const char *const names[] = {
    [OCR_FORMAT_UNKNOWN] = "unknown",
    [OCR_FORMAT_PNG] = "PNG",
    [OCR_FORMAT_JPEG] = "JPEG",
    [OCR_FORMAT_GIF] = "GIF",
    [OCR_FORMAT_TIFF] = "TIFF",
    [OCR_FORMAT_WEBP] = "WebP",
    [OCR_FORMAT_PDF] = "PDF",
    [OCR_FORMAT_BMP] = "BMP",
    [OCR_FORMAT_HEIC] = "HEIC",
    [OCR_FORMAT_AVIF] = "AVIF",
    [OCR_FORMAT_JPEG2000] = "JPEG 2000",
    [OCR_FORMAT_JPEGXL] = "JPEG XL",
    [OCR_FORMAT_PSD] = "PSD",
    [OCR_FORMAT_SVG] = "SVG",
    [OCR_FORMAT_TEXT] = "text",
};

/* "BM" alone could begin a text; the four reserved bytes are zero. */
static bool is_bmp(const uint8_t *head, size_t len)
{
    return len >= 18 && !memcmp(head, "BM", 2) &&
           !memcmp(head + 6, "\0\0\0\0", 4);
}

static bool is_webp(const uint8_t *head, size_t len)
{
    return len >= 12 && !memcmp(head, "RIFF", 4) &&
           !memcmp(head + 8, "WEBP", 4);
}

/* No control characters but white space. Any byte above 127 may be part of a
 * letter: Latin-1 and cut UTF-8 are text, too. */
static bool is_text(const uint8_t *head, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (head[i] == 0x7f || (head[i] < ' ' && !isspace(head[i])))
            return false;
    return len > 0;
}

enum ocr_format ocr_image_sniff(const uint8_t *head, size_t len)
{
    if (len > OCR_SNIFF_BYTES)
        len = OCR_SNIFF_BYTES;
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++) {
        const struct signature *s = &signatures[i];

        if (len >= s->at + s->len && !memcmp(head + s->at, s->bytes, s->len))
            return s->format;
    }
    if (is_bmp(head, len))
        return OCR_FORMAT_BMP;
    if (is_webp(head, len))
        return OCR_FORMAT_WEBP;
    if (!is_text(head, len))
        return OCR_FORMAT_UNKNOWN;
    return memmem(head, len, "<svg", 4) ? OCR_FORMAT_SVG : OCR_FORMAT_TEXT;
}

const char *ocr_format_name(enum ocr_format format)
{
    return (size_t)format < sizeof names / sizeof *names ? names[format]
                                                         : names[0];
}

/* The beginning of a signature and nothing behind it. */
static bool is_begun(const uint8_t *head, size_t len)
{
    for (size_t i = 0; i < 2; i++)
        if (len < signatures[i].len && !memcmp(head, signatures[i].bytes, len))
            return true;
    return false;
}

bool ocr_format_has_pages(enum ocr_format format)
{
    return format == OCR_FORMAT_TIFF || format == OCR_FORMAT_PDF;
}

int ocr_image_check(const uint8_t *head, size_t len, struct ocr_err *err)
{
    const enum ocr_format format = ocr_image_sniff(head, len);

    if (len == 0)
        return ocr_err_kind(err, OCR_KIND_EMPTY, "the file is empty");
    if (format >= OCR_FORMAT_PNG && format <= OCR_FORMAT_AVIF)
        return 0;
    if (is_begun(head, len))
        return ocr_err_kind(err, OCR_KIND_TRUNCATED,
                            "the file ends within its signature");
    if (format == OCR_FORMAT_TEXT)
        return ocr_err_kind(err, OCR_KIND_NOT_IMAGE,
                            "the content is text, not a picture");
    if (format == OCR_FORMAT_UNKNOWN)
        return ocr_err_kind(err, OCR_KIND_NOT_IMAGE,
                            "the content is no known kind of picture");
    return ocr_err_kind(err, OCR_KIND_UNSUPPORTED, "%s is not supported",
                        ocr_format_name(format));
}
