/* engine/image/decoder.h - a decoder beyond PNG and JPEG: what ocrfs-NAME.so
 * gives.
 *
 * Each is a plugin of its own with a library of its own, so that ocrfs-engine
 * needs none of them. A decode helper loads those that are there before it
 * locks itself in (engine/server/helper.c); nobody else does.
 *
 * Layer:   engine. A plugin links nothing of the engine but engine/base and
 *          engine/image/{canvas,exif}.c.
 * Threads: a document belongs to one thread.
 * Errors:  as ocr_image_decode: verdicts with a sentence. */
#ifndef OCR_DECODER_H
#define OCR_DECODER_H
#include "engine/image/image.h"

enum {
    OCR_DECODER_ABI = 1
};

struct ocr_decoder {
    uint32_t abi;     /* OCR_DECODER_ABI */
    const char *name; /* of the plugin: "tiff" */
    /* "libtiff 4.5.0": what it decodes with, for people. Borrowed. */
    const char *(*library)(void);

    /* A format of one picture a file: decode, and the rest NULL. The contract
     * is that of ocr_image_decode; `blank` is left to the caller. */
    int (*decode)(struct ocr_image *out, const uint8_t *data, size_t len,
                  const struct ocr_image_limits *limits,
                  const struct ocr_image_alloc *alloc, struct ocr_err *err);

    /* A format of many pages. `data` stays until close. Counts the pages, at
     * least 1; over limits->pages is too large. */
    int (*open)(void **document, uint32_t *pages, const uint8_t *data,
                size_t len, const struct ocr_image_limits *limits,
                struct ocr_err *err);
    /* Page 0 is the first; the contract is that of decode. */
    int (*page)(void *document, uint32_t page, struct ocr_image *out,
                const struct ocr_image_limits *limits,
                const struct ocr_image_alloc *alloc, struct ocr_err *err);
    void (*close)(void *document); /* NULL is a no-op */
};

/* The one symbol a plugin exports is "ocr_decoder_" and its name. */
extern const struct ocr_decoder ocr_decoder_tiff;
extern const struct ocr_decoder ocr_decoder_webp;
extern const struct ocr_decoder ocr_decoder_gif;
extern const struct ocr_decoder ocr_decoder_bmp;
extern const struct ocr_decoder ocr_decoder_heif;
extern const struct ocr_decoder ocr_decoder_pdf;

#endif
