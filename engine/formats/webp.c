/* engine/formats/webp.c - WebP with libwebp: lossy and lossless, and of an
 * animation its first frame, as for PNG and GIF. */
#include "engine/image/canvas.h"
#include "engine/image/decoder.h"
#include "engine/image/exif.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <webp/decode.h>
#include <webp/demux.h>

static int cut_off(struct ocr_err *err)
{
    return ocr_err_kind(err, OCR_KIND_TRUNCATED,
                        "the WebP is cut off: it ends before its last row");
}

static int damaged(struct ocr_err *err)
{
    return ocr_err_kind(err, OCR_KIND_CORRUPT, "the WebP is damaged");
}

static unsigned orientation_of(WebPDemuxer *demuxer)
{
    static const char name[6] = "Exif\0";
    struct ocr_exif exif = {.orientation = 1};
    WebPChunkIterator chunk;

    if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk)) {
        const uint8_t *tiff = chunk.chunk.bytes;
        size_t len = chunk.chunk.size;

        if (len >= sizeof name && !memcmp(tiff, name, sizeof name)) {
            tiff += sizeof name; /* some programs leave it, as in JPEG */
            len -= sizeof name;
        }
        ocr_exif_read(&exif, tiff, len);
        WebPDemuxReleaseChunkIterator(&chunk);
    }
    return exif.orientation;
}

/* On white; on dark if what is seen is light, as a text on nothing. */
static uint8_t background_of(const uint8_t *rgba, size_t pixels)
{
    uint64_t light = 0, seen = 0;
    bool clear = false;

    for (size_t i = 0; i < pixels; i++, rgba += 4) {
        clear |= rgba[3] < 128;
        seen += rgba[3];
        light += (uint64_t)rgba[3] * ((rgba[0] + 2u * rgba[1] + rgba[2]) / 4);
    }
    return clear && seen && light / seen > 192 ? 0 : 255;
}

static void blend(const uint8_t *rgba, uint8_t *rgb, uint32_t n, uint8_t paper)
{
    for (uint32_t i = 0; i < n; i++, rgba += 4, rgb += 3)
        for (int c = 0; c < 3; c++)
            rgb[c] =
                (uint8_t)((rgba[c] * rgba[3] + paper * (255 - rgba[3]) + 127) /
                          255);
}

static int put_frame(const WebPIterator *frame, unsigned orientation,
                     struct ocr_image *out,
                     const struct ocr_image_limits *limits,
                     const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    int width = 0, height = 0, rc;
    struct ocr_canvas canvas;
    uint8_t *rgba = WebPDecodeRGBA(frame->fragment.bytes, frame->fragment.size,
                                   &width, &height);
    uint8_t *row = malloc((size_t)frame->width * 3), paper;

    if (!rgba || !row || width != frame->width || height != frame->height) {
        rc = frame->complete ? damaged(err) : cut_off(err);
    } else {
        rc = ocr_canvas_init(&canvas, out, (uint32_t)width, (uint32_t)height, 3,
                             orientation, limits, alloc, err);
        paper = background_of(rgba, (size_t)width * (size_t)height);
        for (int y = 0; rc == 0 && y < height; y++) {
            blend(rgba + (size_t)y * (size_t)width * 4, row, (uint32_t)width,
                  paper);
            ocr_canvas_put(&canvas, 0, 1, (uint32_t)y, row, (uint32_t)width);
        }
        if (rc == 0)
            ocr_canvas_finish(&canvas);
    }
    WebPFree(rgba);
    free(row);
    return rc;
}

static int webp_decode(struct ocr_image *out, const uint8_t *data, size_t len,
                       const struct ocr_image_limits *limits,
                       const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    const WebPData all = {data, len};
    WebPDemuxState state = WEBP_DEMUX_PARSE_ERROR;
    WebPDemuxer *demuxer = WebPDemuxPartial(&all, &state);
    WebPIterator frame = {0};
    int rc;

    if (!demuxer)
        return state == WEBP_DEMUX_PARSE_ERROR ? damaged(err) : cut_off(err);
    if (!WebPDemuxGetFrame(demuxer, 1, &frame))
        rc = state == WEBP_DEMUX_PARSE_ERROR ? damaged(err) : cut_off(err);
    else
        rc = ocr_canvas_check("WebP", (uint64_t)frame.width,
                              (uint64_t)frame.height, limits, err);
    if (rc == 0)
        rc = frame.complete ? put_frame(&frame, orientation_of(demuxer), out,
                                        limits, alloc, err)
                            : cut_off(err);
    WebPDemuxReleaseIterator(&frame);
    WebPDemuxDelete(demuxer);
    return rc;
}

static const char *webp_library(void)
{
    static char name[32];
    const int version = WebPGetDecoderVersion();

    snprintf(name, sizeof name, "libwebp %d.%d.%d", version >> 16,
             version >> 8 & 255, version & 255);
    return name;
}

const struct ocr_decoder ocr_decoder_webp = {
    .abi = OCR_DECODER_ABI,
    .name = "webp",
    .library = webp_library,
    .decode = webp_decode,
};
