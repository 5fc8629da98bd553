#include "engine/image/decoders.h"

int ocr_image_decode(struct ocr_image *out, const uint8_t *data, size_t len,
                     const struct ocr_image_limits *limits,
                     const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    int rc = ocr_image_check(data, len, err);

    *out = (struct ocr_image){0};
    if (rc)
        return rc;
    if (ocr_image_sniff(data, len) == OCR_FORMAT_PNG)
        rc = ocr_png_decode(out, data, len, limits, alloc, err);
    else
        rc = ocr_jpeg_decode(out, data, len, limits, alloc, err);
    if (rc == 0)
        out->blank = ocr_image_is_blank(out);
    return rc;
}
