#include "engine/image/canvas.h"
#include "engine/image/decoders.h"
#include "engine/image/exif.h"

#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

/* How CMYK samples are to be read. */
enum polarity {
    INK,     /* 0 is no ink, as the standard has it */
    INVERSE, /* 255 is no ink, as Adobe writes it */
};

/* One decoding of one file; a second pass uses it again. */
struct reader {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf leave;
    const uint8_t *data;
    size_t len;
    const struct ocr_image_limits *limits;
    const struct ocr_image_alloc *alloc;
    struct ocr_image *out;
    struct ocr_err *err;
    struct ocr_exif exif;
    struct ocr_canvas canvas;
    JSAMPLE *row;
    enum polarity polarity;
    uint64_t light[2]; /* sum of the reds and greens, by polarity */
    bool eof;          /* libjpeg wanted more than there is */
    bool in_scan;      /* the header is read */
    bool truncated;
    enum ocr_kind kind; /* why it left */
    char why[JMSG_LENGTH_MAX];
};

/* ---- libjpeg's callbacks ----------------------------------------------- */

__attribute__((noreturn)) static void leave(struct reader *r,
                                            enum ocr_kind kind, const char *why)
{
    r->kind = kind;
    snprintf(r->why, sizeof r->why, "%s", why);
    longjmp(r->leave, 1);
}

/* Rows are missing. A picture made of several scans has something of every
 * row by now; with -o partial that is worth showing. */
static void end_early(struct reader *r)
{
    r->truncated = true;
    if (!r->limits->partial || !jpeg_has_multiple_scans(&r->jpeg))
        leave(r, OCR_KIND_TRUNCATED, "it ends before its last row");
}

static enum ocr_kind kind_of_error(const struct reader *r, int code)
{
    switch (code) {
    case JERR_OUT_OF_MEMORY:
    case JERR_IMAGE_TOO_BIG:
    case JERR_WIDTH_OVERFLOW:
        return OCR_KIND_TOO_LARGE;
    case JERR_BAD_PRECISION:
    case JERR_SOF_UNSUPPORTED:
    case JERR_ARITH_NOTIMPL:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_NOTIMPL:
    case JERR_NOT_COMPILED:
    case JERR_CCIR601_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
        return OCR_KIND_UNSUPPORTED;
    case JERR_EMPTY_IMAGE: /* a height of 0 comes later, in a DNL marker */
        return r->jpeg.image_height == 0 && r->jpeg.image_width
                   ? OCR_KIND_UNSUPPORTED
                   : OCR_KIND_CORRUPT;
    default:
        /* At the end libjpeg gets end markers, which confuse it. */
        return r->eof ? OCR_KIND_TRUNCATED : OCR_KIND_CORRUPT;
    }
}

static void on_error(j_common_ptr jpeg)
{
    struct reader *r = jpeg->client_data;
    char why[JMSG_LENGTH_MAX];

    jpeg->err->format_message(jpeg, why);
    leave(r, kind_of_error(r, jpeg->err->msg_code), why);
}

/* libjpeg fills what is missing or garbled with gray and only warns. */
static void on_message(j_common_ptr jpeg, int level)
{
    struct reader *r = jpeg->client_data;
    const bool at_end = r->eof || r->jpeg.unread_marker == JPEG_EOI;

    if (level >= 0 || r->truncated)
        return;
    switch (jpeg->err->msg_code) {
    case JWRN_HIT_MARKER:
    case JWRN_MUST_RESYNC:
        if (at_end)
            end_early(r);
        else
            on_error(jpeg);
        break;
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
        on_error(jpeg);
        break;
    default: /* odd, but nothing that is seen */
        break;
    }
}

static void on_source(j_decompress_ptr jpeg)
{
    (void)jpeg;
}

/* All bytes are in memory: being asked for more means the end of the file. An
 * end marker lets libjpeg finish with what it has. */
static boolean on_fill(j_decompress_ptr jpeg)
{
    static const JOCTET end[] = {0xff, JPEG_EOI};
    struct reader *r = jpeg->client_data;

    r->eof = true;
    if (!r->in_scan)
        leave(r, OCR_KIND_TRUNCATED, "it ends within its header");
    jpeg->src->next_input_byte = end;
    jpeg->src->bytes_in_buffer = sizeof end;
    return TRUE;
}

static void on_skip(j_decompress_ptr jpeg, long n)
{
    struct jpeg_source_mgr *source = jpeg->src;

    if (n <= 0)
        return;
    if ((size_t)n > source->bytes_in_buffer) {
        on_fill(jpeg);
        return;
    }
    source->next_input_byte += n;
    source->bytes_in_buffer -= (size_t)n;
}

/* Called between rows of blocks; scans of nothing can be made by the thousand
 * in few bytes. */
static void on_progress(j_common_ptr jpeg)
{
    struct reader *r = jpeg->client_data;

    if (r->jpeg.input_scan_number > (int64_t)r->limits->scans)
        leave(r, OCR_KIND_TOO_LARGE, "it has more scans than the limit");
}

/* ---- what is read without libjpeg -------------------------------------- */

/* The first EXIF segment before the pixels. */
static void read_exif(struct reader *r)
{
    static const char name[6] = "Exif\0";
    size_t at = 2;

    r->exif = (struct ocr_exif){.orientation = 1};
    while (r->len - at >= 4 && r->data[at] == 0xff) {
        const uint8_t marker = r->data[at + 1];
        const size_t len = (size_t)r->data[at + 2] << 8 | r->data[at + 3];
        const uint8_t *body = r->data + at + 4;

        if (marker == 0xff) { /* fill byte */
            at++;
            continue;
        }
        if (marker == 0xda || len < 2 || len > r->len - at - 2)
            return; /* the pixels, or garbage */
        if (marker == JPEG_APP0 + 1 && len >= 2 + sizeof name &&
            !memcmp(body, name, sizeof name)) {
            ocr_exif_read(&r->exif, body + sizeof name, len - 2 - sizeof name);
            return;
        }
        at += 2 + len;
    }
}

static uint32_t jfif_dpi(const struct jpeg_decompress_struct *jpeg)
{
    if (!jpeg->saw_JFIF_marker)
        return 0;
    if (jpeg->density_unit == 1)
        return ocr_plausible_dpi(jpeg->X_density);
    if (jpeg->density_unit == 2)
        return ocr_plausible_dpi(jpeg->X_density * 2.54);
    return 0;
}

/* ---- pixels ------------------------------------------------------------ */

static J_COLOR_SPACE wanted_space(struct reader *r)
{
    switch (r->jpeg.jpeg_color_space) {
    case JCS_GRAYSCALE:
        return JCS_GRAYSCALE;
    case JCS_RGB:
    case JCS_YCbCr:
        return JCS_RGB;
    case JCS_CMYK:
    case JCS_YCCK:
        return JCS_CMYK;
    default:
        leave(r, OCR_KIND_UNSUPPORTED, "its colours are of an unknown kind");
    }
}

static void read_header(struct reader *r)
{
    jpeg_read_header(&r->jpeg, TRUE);
    r->in_scan = true;
    if (r->jpeg.saw_Adobe_marker)
        r->polarity = INVERSE;
    r->jpeg.out_color_space = wanted_space(r);
}

/* CMYK to RGB, in place. Light is what neither the ink nor black takes. */
static void unmix(struct reader *r)
{
    const unsigned flip = r->polarity == INK ? 255 : 0;
    const uint8_t *from = r->row;
    uint8_t *to = r->row;

    for (JDIMENSION i = 0; i < r->jpeg.output_width; i++, from += 4, to += 3) {
        const unsigned black = from[3];

        for (int c = 0; c < 2; c++) {
            r->light[INK] += (uint64_t)(255 - from[c]) * (255 - black);
            r->light[INVERSE] += (uint64_t)from[c] * black;
        }
        for (int c = 0; c < 3; c++)
            to[c] = (uint8_t)((from[c] ^ flip) * (black ^ flip) / 255);
    }
}

/* Everything that libjpeg does not warn about. */
static void check_complete(struct reader *r)
{
    const struct jpeg_decompress_struct *jpeg = &r->jpeg;

    for (int i = 0; i < jpeg->num_components; i++) {
        if (!jpeg->comp_info[i].quant_table) /* no scan of this component */
            end_early(r);
        for (int k = 0; r->eof && jpeg->coef_bits && k < DCTSIZE2; k++)
            if (jpeg->coef_bits[i][k] != 0) /* not to the last bit */
                end_early(r);
    }
    /* The arithmetic decoder takes zeros at the end for data. */
    if (r->eof && jpeg->arith_code)
        end_early(r);
}

static void read_rows(struct reader *r)
{
    struct jpeg_decompress_struct *jpeg = &r->jpeg;

    jpeg_start_decompress(jpeg);
    while (jpeg->output_scanline < jpeg->output_height) {
        const JDIMENSION y = jpeg->output_scanline;

        jpeg_read_scanlines(jpeg, &r->row, 1);
        if (jpeg->out_color_space == JCS_CMYK)
            unmix(r);
        ocr_canvas_put(&r->canvas, 0, 1, y, r->row, jpeg->output_width);
    }
    check_complete(r);
}

static int prepare(struct reader *r)
{
    const struct jpeg_decompress_struct *jpeg = &r->jpeg;
    const uint32_t channels = jpeg->out_color_space == JCS_GRAYSCALE ? 1 : 3;
    int rc;

    r->row = malloc((size_t)jpeg->image_width * 4);
    if (!r->row)
        return ocr_err_set(r->err, -ENOMEM, "no memory for a row");
    if (r->out->pixels)
        return 0;
    rc = ocr_canvas_check("JPEG", jpeg->image_width, jpeg->image_height,
                          r->limits, r->err);
    if (rc)
        return rc;
    return ocr_canvas_init(&r->canvas, r->out, jpeg->image_width,
                           jpeg->image_height, channels, r->exif.orientation,
                           r->limits, r->alloc, r->err);
}

static void create(struct reader *r)
{
    r->jpeg.err = jpeg_std_error(&r->errors);
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
    jpeg_create_decompress(&r->jpeg);
    r->source =
        (struct jpeg_source_mgr){.next_input_byte = r->data,
                                 .bytes_in_buffer = r->len,
                                 .init_source = on_source,
                                 .fill_input_buffer = on_fill,
                                 .skip_input_data = on_skip,
                                 .resync_to_restart = jpeg_resync_to_restart,
                                 .term_source = on_source};
    r->progress = (struct jpeg_progress_mgr){.progress_monitor = on_progress};
    r->jpeg.src = &r->source;
    r->jpeg.progress = &r->progress;
}

/* Runs a step that libjpeg may leave by longjmp; nothing lives in its frame. */
static bool guarded(struct reader *r, void (*step)(struct reader *))
{
    if (setjmp(r->leave))
        return false;
    step(r);
    return true;
}

static int explain(struct reader *r)
{
    static const char *const verbs[] = {
        [OCR_KIND_TRUNCATED] = "is cut off",
        [OCR_KIND_CORRUPT] = "is damaged",
        [OCR_KIND_UNSUPPORTED] = "is of an unsupported kind",
        [OCR_KIND_TOO_LARGE] = "is too large",
    };

    if (r->kind == OCR_KIND_TRUNCATED && r->limits->partial && r->in_scan &&
        r->jpeg.output_scanline > 0) {
        r->truncated = true;
        return 0;
    }
    return ocr_err_kind(r->err, r->kind, "the JPEG %s: %s", verbs[r->kind],
                        r->why);
}

static int decode_pass(struct reader *r)
{
    int rc = 0;

    r->eof = r->in_scan = false;
    r->jpeg = (struct jpeg_decompress_struct){.client_data = r};
    if (!guarded(r, create) || !guarded(r, read_header))
        rc = explain(r);
    else if ((rc = prepare(r)) == 0 && !guarded(r, read_rows))
        rc = explain(r);
    r->out->dpi = jfif_dpi(&r->jpeg);
    jpeg_destroy_decompress(&r->jpeg);
    free(r->row);
    r->row = NULL;
    return rc;
}

int ocr_jpeg_decode(struct ocr_image *out, const uint8_t *data, size_t len,
                    const struct ocr_image_limits *limits,
                    const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    struct reader r = {.data = data,
                       .len = len,
                       .limits = limits,
                       .alloc = alloc,
                       .out = out,
                       .err = err};
    int rc;

    read_exif(&r);
    rc = decode_pass(&r);
    /* CMYK of unknown origin: a page is the lighter of the two readings. */
    if (rc == 0 && r.polarity == INK && r.light[INVERSE] > r.light[INK]) {
        r.polarity = INVERSE;
        rc = decode_pass(&r);
    }
    if (rc)
        return rc;
    if (!out->dpi)
        out->dpi = r.exif.dpi;
    out->partial = r.truncated;
    ocr_canvas_finish(&r.canvas);
    return 0;
}
