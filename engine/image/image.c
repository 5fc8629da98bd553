#include "engine/image/image.h"

#include "engine/image/decoder.h"
#include "engine/image/decoders.h"

#include <errno.h>
#include <stdlib.h>

static const struct ocr_decoder *used[OCR_FORMATS];

void ocr_image_use(enum ocr_format format, const struct ocr_decoder *decoder)
{
    used[format] = decoder;
}

static int decode_first_page(const struct ocr_decoder *decoder,
                             struct ocr_image *out, const uint8_t *data,
                             size_t len, const struct ocr_image_limits *limits,
                             const struct ocr_image_alloc *alloc,
                             struct ocr_err *err)
{
    void *document = NULL;
    uint32_t pages;
    int rc = decoder->open(&document, &pages, data, len, limits, err);

    if (rc == 0)
        rc = decoder->page(document, 0, out, limits, alloc, err);
    decoder->close(document);
    return rc;
}

int ocr_image_decode(struct ocr_image *out, const uint8_t *data, size_t len,
                     const struct ocr_image_limits *limits,
                     const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    const enum ocr_format format = ocr_image_sniff(data, len);
    const struct ocr_decoder *decoder = used[format];
    int rc = ocr_image_check(data, len, err);

    *out = (struct ocr_image){0};
    if (rc)
        return rc;
    if (format == OCR_FORMAT_PNG)
        rc = ocr_png_decode(out, data, len, limits, alloc, err);
    else if (format == OCR_FORMAT_JPEG)
        rc = ocr_jpeg_decode(out, data, len, limits, alloc, err);
    else if (!decoder)
        rc = ocr_err_kind(err, OCR_KIND_UNSUPPORTED,
                          "%s is not supported: ocrfs doctor says what is "
                          "missing",
                          ocr_format_name(format));
    else if (decoder->decode)
        rc = decoder->decode(out, data, len, limits, alloc, err);
    else
        rc = decode_first_page(decoder, out, data, len, limits, alloc, err);
    if (rc == 0)
        out->blank = ocr_image_is_blank(out);
    return rc;
}

/* ---- documents ----------------------------------------------------------- */

struct ocr_document {
    const uint8_t *data;
    size_t len;
    const struct ocr_decoder *decoder; /* NULL: one picture */
    void *inner;                       /* the decoder's */
    uint32_t pages;
};

int ocr_document_open(struct ocr_document **out, const uint8_t *data,
                      size_t len, const struct ocr_image_limits *limits,
                      struct ocr_err *err)
{
    const struct ocr_decoder *decoder = used[ocr_image_sniff(data, len)];
    struct ocr_document *d = calloc(1, sizeof *d);
    int rc = 0;

    *out = NULL;
    if (!d)
        return ocr_err_set(err, -ENOMEM, "no memory for a document");
    *d = (struct ocr_document){.data = data, .len = len, .pages = 1};
    if (decoder && decoder->open) {
        d->decoder = decoder;
        rc = decoder->open(&d->inner, &d->pages, data, len, limits, err);
    }
    if (rc)
        free(d);
    else
        *out = d;
    return rc;
}

uint32_t ocr_document_pages(const struct ocr_document *document)
{
    return document->pages;
}

int ocr_document_decode(struct ocr_document *document, uint32_t page,
                        struct ocr_image *out,
                        const struct ocr_image_limits *limits,
                        const struct ocr_image_alloc *alloc,
                        struct ocr_err *err)
{
    int rc;

    if (page >= document->pages)
        return ocr_err_kind(err, OCR_KIND_FAILED, "there is no page %u",
                            page + 1);
    if (!document->decoder)
        return ocr_image_decode(out, document->data, document->len, limits,
                                alloc, err);
    *out = (struct ocr_image){0};
    rc =
        document->decoder->page(document->inner, page, out, limits, alloc, err);
    if (rc == 0 && !out->text)
        out->blank = ocr_image_is_blank(out);
    return rc;
}

void ocr_document_close(struct ocr_document *document)
{
    if (!document)
        return;
    if (document->decoder)
        document->decoder->close(document->inner);
    free(document);
}
