/* engine/image/image.h - from the bytes of an image file to upright pixels.
 *
 * Decoding runs only in helper processes (engine/decode.h), never in the
 * engine or the mount: images are other people's bytes. What comes out is what
 * a person would see: upright after EXIF, transparent parts blended on white
 * (on dark if the opaque pixels are light), 8 bits, gray or RGB.
 *
 * Layer:   engine.
 * Threads: no state but the decoders in use; a call uses only its arguments.
 * Errors:  OCR_KIND_* verdicts with a sentence that names format and reason,
 *          without a path (the client adds it). */
#ifndef OCR_IMAGE_H
#define OCR_IMAGE_H
#include "engine/base/err.h"

#include <stddef.h>
#include <stdint.h>

enum ocr_format {
    OCR_FORMAT_UNKNOWN,
    OCR_FORMAT_PNG,
    OCR_FORMAT_JPEG,
    /* With a plugin (engine/image/decoder.h). */
    OCR_FORMAT_GIF,
    OCR_FORMAT_TIFF,
    OCR_FORMAT_WEBP,
    OCR_FORMAT_PDF,
    OCR_FORMAT_BMP,
    OCR_FORMAT_HEIC,
    OCR_FORMAT_AVIF,
    /* Known by name only, so that the message can say what it is. */
    OCR_FORMAT_JPEG2000,
    OCR_FORMAT_JPEGXL,
    OCR_FORMAT_PSD,
    OCR_FORMAT_SVG,
    OCR_FORMAT_TEXT, /* text or HTML: no picture */
    OCR_FORMATS,
};

/* Bytes ocr_image_sniff() wants to see, fewer if the file is shorter. */
enum {
    OCR_SNIFF_BYTES = 512
};

/* The format by the first bytes, whatever the name says. Safe on any input. */
enum ocr_format ocr_image_sniff(const uint8_t *head, size_t len);

/* "PNG", "HEIC"; "unknown" for OCR_FORMAT_UNKNOWN. */
const char *ocr_format_name(enum ocr_format format);

/* True for formats that can have more than one page. */
bool ocr_format_has_pages(enum ocr_format format);

/* 0 if the file that begins with `head` is of a format that this build decodes
 * or there is a plugin for; else a verdict: empty, not-an-image, unsupported
 * (the sentence names the format), truncated (shorter than any signature but
 * a prefix of one). */
int ocr_image_check(const uint8_t *head, size_t len, struct ocr_err *err);

struct ocr_image_limits {
    uint64_t pixels; /* width x height, refused from the header */
    uint32_t scans;  /* of a progressive JPEG */
    bool partial;    /* -o partial: a truncated image gives what there is */
    uint32_t pages;  /* of a document */
    bool text;       /* -o pdf=text: a page may give its text, see below */
};
#define OCR_IMAGE_LIMITS_DEFAULT                                               \
    {                                                                          \
        .pixels = UINT64_C(250000000), .scans = 1000, .pages = 10000           \
    }

struct ocr_image {
    uint32_t width, height; /* upright, in pixels, >= 1 */
    uint32_t channels;      /* 1 gray, 3 RGB */
    uint32_t dpi;           /* as the file says, 0 if it does not */
    uint8_t blank;          /* ocr_image_is_blank() */
    uint8_t partial;        /* rows are missing (limits->partial): white */
    uint32_t text;          /* not 0: no picture, `pixels` are so many bytes of
                               plain UTF-8, and all above means nothing */
    uint8_t *pixels;        /* [height][width][channels], no padding */
};

enum {
    OCR_LAYER_MAX = 1 << 20 /* bytes of the text of a page */
};

/* Bytes of the pixels; no overflow for images within the limits. */
static inline size_t ocr_image_bytes(const struct ocr_image *image)
{
    return image->text ? image->text
                       : (size_t)image->width * image->height * image->channels;
}

/* Where decoded pixels go: shared memory in the helper, malloc in tests.
 * Returns `bytes` of zeroed memory or NULL; called once per image, after the
 * header passed the limits. */
struct ocr_image_alloc {
    void *(*alloc)(void *arg, size_t bytes);
    void *arg;
};

/* Decodes the file `data` (`len` bytes, all of it mapped or read), of a
 * document its first page. On success *out is filled, the pixels are what
 * alloc gave. */
int ocr_image_decode(struct ocr_image *out, const uint8_t *data, size_t len,
                     const struct ocr_image_limits *limits,
                     const struct ocr_image_alloc *alloc, struct ocr_err *err);

/* A file that stays open while its pages are decoded, one at a time. */
struct ocr_document; /* opaque */

/* `data` stays until close. Formats of one picture always open, and fail when
 * they are decoded. */
int ocr_document_open(struct ocr_document **out, const uint8_t *data,
                      size_t len, const struct ocr_image_limits *limits,
                      struct ocr_err *err);
uint32_t ocr_document_pages(const struct ocr_document *document);

/* As ocr_image_decode; page 0 is the first. */
int ocr_document_decode(struct ocr_document *document, uint32_t page,
                        struct ocr_image *out,
                        const struct ocr_image_limits *limits,
                        const struct ocr_image_alloc *alloc,
                        struct ocr_err *err);
void ocr_document_close(struct ocr_document *document); /* NULL: no-op */

/* Files of `format` are decoded by `decoder` from now on. Before other threads
 * are there; for the life of the process. */
struct ocr_decoder;
void ocr_image_use(enum ocr_format format, const struct ocr_decoder *decoder);

/* True for a page without anything to read: white, black, paper with noise and
 * specks, or the faint mirrored reverse of a printed sheet. When in doubt it
 * says false: the recogniser decides. */
bool ocr_image_is_blank(const struct ocr_image *image);

#endif
