/* engine/formats/heif.c - HEIC and AVIF with libheif: the primary picture, as
 * phones and cameras mean it. libheif turns it upright by itself. */
#include "engine/image/canvas.h"
#include "engine/image/decoder.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <libheif/heif.h>

static int refuse(struct heif_error why, struct ocr_err *err)
{
    enum ocr_kind kind = OCR_KIND_CORRUPT;

    if (why.code == heif_error_Unsupported_feature ||
        why.code == heif_error_Unsupported_filetype ||
        why.code == heif_error_Decoder_plugin_error)
        kind = OCR_KIND_UNSUPPORTED;
    else if (why.subcode == heif_suberror_No_meta_box) /* a film, for one */
        kind = OCR_KIND_UNSUPPORTED;
    else if (why.code == heif_error_Memory_allocation_error)
        kind = OCR_KIND_TOO_LARGE;
    else if (why.subcode == heif_suberror_End_of_data)
        kind = OCR_KIND_TRUNCATED;
    return ocr_err_kind(err, kind, "the HEIC or AVIF cannot be decoded: %.*s",
                        (int)strcspn(why.message, "\n"), why.message);
}

static int put(const struct heif_image *image, struct ocr_image *out,
               const struct ocr_image_limits *limits,
               const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    const int width = heif_image_get_primary_width(image);
    const int height = heif_image_get_primary_height(image);
    struct ocr_canvas canvas;
    int stride = 0, rc;
    const uint8_t *rows =
        heif_image_get_plane_readonly(image, heif_channel_interleaved, &stride);

    if (!rows)
        return ocr_err_kind(err, OCR_KIND_CORRUPT, "the HEIC has no pixels");
    rc = ocr_canvas_check("HEIC", (uint64_t)width, (uint64_t)height, limits,
                          err);
    if (rc == 0)
        rc = ocr_canvas_init(&canvas, out, (uint32_t)width, (uint32_t)height, 3,
                             1, limits, alloc, err);
    for (int y = 0; rc == 0 && y < height; y++)
        ocr_canvas_put(&canvas, 0, 1, (uint32_t)y,
                       rows + (size_t)y * (size_t)stride, (uint32_t)width);
    if (rc == 0)
        ocr_canvas_finish(&canvas);
    return rc;
}

static int decode_primary(struct heif_context *context, struct ocr_image *out,
                          const struct ocr_image_limits *limits,
                          const struct ocr_image_alloc *alloc,
                          struct ocr_err *err)
{
    struct heif_image_handle *handle = NULL;
    struct heif_image *image = NULL;
    struct heif_error why =
        heif_context_get_primary_image_handle(context, &handle);
    int rc = 0;

    if (why.code == heif_error_Ok)
        rc = ocr_canvas_check(
            "HEIC", (uint64_t)heif_image_handle_get_width(handle),
            (uint64_t)heif_image_handle_get_height(handle), limits, err);
    if (rc == 0 && why.code == heif_error_Ok)
        why = heif_decode_image(handle, &image, heif_colorspace_RGB,
                                heif_chroma_interleaved_RGB, NULL);
    if (why.code != heif_error_Ok)
        rc = refuse(why, err);
    else if (rc == 0)
        rc = put(image, out, limits, alloc, err);
    heif_image_release(image);
    heif_image_handle_release(handle);
    return rc;
}

static int heif_decode(struct ocr_image *out, const uint8_t *data, size_t len,
                       const struct ocr_image_limits *limits,
                       const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    struct heif_context *context = heif_context_alloc();
    struct heif_error why;
    int rc;

    if (!context)
        return ocr_err_set(err, -ENOMEM, "no memory for a HEIC");
    why = heif_context_read_from_memory_without_copy(context, data, len, NULL);
    rc = why.code == heif_error_Ok
             ? decode_primary(context, out, limits, alloc, err)
             : refuse(why, err);
    heif_context_free(context);
    return rc;
}

static const char *heif_library(void)
{
    static char name[32];

    snprintf(name, sizeof name, "libheif %s", heif_get_version());
    return name;
}

const struct ocr_decoder ocr_decoder_heif = {
    .abi = OCR_DECODER_ABI,
    .name = "heif",
    .library = heif_library,
    .decode = heif_decode,
};
