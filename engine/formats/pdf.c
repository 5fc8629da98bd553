/* engine/formats/pdf.c - PDF with poppler's library for C: every page as it
 * would be printed, turned as /Rotate says, with form fields filled in.
 *
 * The library and not pdftoppm: a program would have to be started for each
 * page, with a file to read, and a helper starts nothing and opens nothing;
 * and a document that stays open is parsed once.
 *
 * A scanned page is rendered at the resolution of its scan, so that its pixels
 * come out as they are; any other at 300 dots an inch, or, if it is larger than
 * A4, so that its longest edge has as many pixels as that of A4 then has. */
#include "engine/image/canvas.h"
#include "engine/image/decoder.h"
#include "engine/image/exif.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cairo.h>
#include <poppler.h>

enum {
    EDGE = 3508,       /* pixels */
    DPI_LEAST = 150,   /* of large pages */
    DPI_MOST = 300,    /* of small ones */
    DPI_SCAN = 600,    /* of scans, at most */
    POINTS = 72,       /* an inch */
    PIXELS_MOST = 100, /* million, of a page */
    TAIL = 4096,       /* bytes at the end that must have the end mark */
};

struct pdf {
    PopplerDocument *document;
    GBytes *bytes;
};

/* poppler repairs what it gets: half a file would be shown as all of it. */
static bool is_cut_off(const uint8_t *data, size_t len)
{
    const size_t tail = len < TAIL ? len : TAIL;

    return !memmem(data + len - tail, tail, "%%EOF", 5);
}

static int refuse(const GError *why, struct ocr_err *err)
{
    if (why && g_error_matches(why, POPPLER_ERROR, POPPLER_ERROR_ENCRYPTED))
        return ocr_err_kind(err, OCR_KIND_UNSUPPORTED,
                            "the PDF is encrypted and needs a password");
    return ocr_err_kind(err, OCR_KIND_CORRUPT, "the PDF is damaged: %.*s",
                        why ? (int)strcspn(why->message, "\n") : 8,
                        why ? why->message : "no pages");
}

static void pdf_close(void *document)
{
    struct pdf *pdf = document;

    if (!pdf)
        return;
    g_clear_object(&pdf->document);
    g_bytes_unref(pdf->bytes);
    free(pdf);
}

static int load(struct pdf *pdf, uint32_t *pages,
                const struct ocr_image_limits *limits, struct ocr_err *err)
{
    GError *why = NULL;
    int count, rc;

    pdf->document = poppler_document_new_from_bytes(pdf->bytes, NULL, &why);
    if (!pdf->document) {
        rc = refuse(why, err);
        g_clear_error(&why);
        return rc;
    }
    count = poppler_document_get_n_pages(pdf->document);
    if (count < 1)
        return refuse(NULL, err);
    if ((uint32_t)count > limits->pages)
        return ocr_err_kind(err, OCR_KIND_TOO_LARGE,
                            "the PDF has %d pages, more than the limit of %u",
                            count, limits->pages);
    *pages = (uint32_t)count;
    return 0;
}

static int pdf_open(void **document, uint32_t *pages, const uint8_t *data,
                    size_t len, const struct ocr_image_limits *limits,
                    struct ocr_err *err)
{
    struct pdf *pdf;
    int rc;

    *document = NULL;
    if (is_cut_off(data, len) && !limits->partial)
        return ocr_err_kind(err, OCR_KIND_TRUNCATED,
                            "the PDF is cut off: it has no end mark");
    pdf = calloc(1, sizeof *pdf);
    if (!pdf)
        return ocr_err_set(err, -ENOMEM, "no memory for a PDF");
    pdf->bytes = g_bytes_new_static(data, len);
    rc = load(pdf, pages, limits, err);
    if (rc)
        pdf_close(pdf);
    else
        *document = pdf;
    return rc;
}

/* ---- resolution -----------------------------------------------------------
 */

/* A page is a scan if one image covers nearly all of it. */
static const PopplerImageMapping *find_scan(const GList *images, double width,
                                            double height)
{
    for (const GList *at = images; at; at = at->next) {
        const PopplerImageMapping *image = at->data;
        const double w = image->area.x2 - image->area.x1;
        const double h = image->area.y2 - image->area.y1;

        if (w * h >= 0.9 * width * height)
            return image;
    }
    return NULL;
}

/* poppler gives places in whole points: an edge that is nearly the page's is.
 */
static double snap(double length, double of_page)
{
    return fabs(length - of_page) <= 2 ? of_page : length;
}

/* Dots an inch of the scan, 0 if it is none. */
static double scan_dpi(PopplerPage *page, double width, double height)
{
    GList *images = poppler_page_get_image_mapping(page);
    const PopplerImageMapping *scan = find_scan(images, width, height);
    cairo_surface_t *pixels =
        scan ? poppler_page_get_image(page, scan->image_id) : NULL;
    double dpi = 0;

    if (pixels) {
        const int across = cairo_image_surface_get_width(pixels);
        const int down = cairo_image_surface_get_height(pixels);
        const double longest =
            fmax(scan->area.x2 - scan->area.x1, scan->area.y2 - scan->area.y1);

        /* The longest edges belong together, however it was turned. */
        dpi = fmax(across, down) / snap(longest, fmax(width, height)) * POINTS;
        cairo_surface_destroy(pixels);
    }
    poppler_page_free_image_mapping(images);
    return dpi;
}

/* Pixels a point. */
static double scale_of(PopplerPage *page, double width, double height)
{
    const double area = width * height;
    double dpi = scan_dpi(page, width, height);

    if (dpi > DPI_SCAN)
        dpi = DPI_SCAN;
    if (dpi <= 0)
        dpi = fmin(DPI_MOST,
                   fmax(DPI_LEAST, EDGE / fmax(width, height) * POINTS));
    return fmin(dpi / POINTS, sqrt(PIXELS_MOST * 1e6 / area));
}

/* ---- pixels ---------------------------------------------------------------
 */

static cairo_surface_t *render(PopplerPage *page, int width, int height,
                               double scale)
{
    cairo_surface_t *surface =
        cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height);
    cairo_t *cairo = cairo_create(surface);

    cairo_set_source_rgb(cairo, 1, 1, 1);
    cairo_paint(cairo);
    cairo_scale(cairo, scale, scale);
    poppler_page_render(page, cairo);
    cairo_destroy(cairo);
    cairo_surface_flush(surface);
    return surface;
}

static void to_rgb(const uint8_t *from, uint8_t *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, from += 4, to += 3) {
        uint32_t pixel;

        memcpy(&pixel, from, sizeof pixel);
        to[0] = (uint8_t)(pixel >> 16);
        to[1] = (uint8_t)(pixel >> 8);
        to[2] = (uint8_t)pixel;
    }
}

static int put(cairo_surface_t *surface, struct ocr_canvas *canvas,
               struct ocr_err *err)
{
    const uint32_t width = canvas->image->width;
    const uint32_t height = canvas->image->height;
    const size_t stride = (size_t)cairo_image_surface_get_stride(surface);
    const uint8_t *pixels = cairo_image_surface_get_data(surface);
    uint8_t *row = malloc((size_t)width * 3);

    if (!row || !pixels) {
        free(row);
        return ocr_err_set(err, -ENOMEM, "no memory for a page");
    }
    for (uint32_t y = 0; y < height; y++) {
        to_rgb(pixels + y * stride, row, width);
        ocr_canvas_put(canvas, 0, 1, y, row, width);
    }
    free(row);
    ocr_canvas_finish(canvas);
    return 0;
}

static int draw(PopplerPage *page, struct ocr_image *out,
                const struct ocr_image_limits *limits,
                const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    double width = 0, height = 0, scale;
    struct ocr_canvas canvas;
    cairo_surface_t *surface;
    uint32_t across, down;
    int rc;

    poppler_page_get_size(page, &width, &height);
    if (!(width >= 1 && width < 1e6 && height >= 1 && height < 1e6))
        return ocr_err_kind(err, OCR_KIND_CORRUPT,
                            "the PDF is damaged: a page of %g x %g points",
                            width, height);
    scale = scale_of(page, width, height);
    across = (uint32_t)fmax(1, round(width * scale));
    down = (uint32_t)fmax(1, round(height * scale));
    rc = ocr_canvas_check("PDF page", across, down, limits, err);
    if (rc == 0)
        rc = ocr_canvas_init(&canvas, out, across, down, 3, 1, limits, alloc,
                             err);
    if (rc)
        return rc;
    surface = render(page, (int)across, (int)down, scale);
    if (cairo_surface_status(surface) == CAIRO_STATUS_SUCCESS)
        rc = put(surface, &canvas, err);
    else
        rc = ocr_err_set(err, -ENOMEM, "no memory for %u x %u pixels", across,
                         down);
    cairo_surface_destroy(surface);
    out->dpi = ocr_plausible_dpi(scale * POINTS);
    return rc;
}

static bool is_white(const struct ocr_image *image)
{
    const size_t bytes = ocr_image_bytes(image);

    return bytes > 0 && image->pixels[0] == 255 &&
           !memcmp(image->pixels, image->pixels + 1, bytes - 1);
}

/* Text in a font that is neither in the file nor here is simply not drawn. */
static int check_fonts(PopplerPage *page, const struct ocr_image *image,
                       struct ocr_err *err)
{
    char *text;
    bool missing;

    if (!is_white(image))
        return 0;
    text = poppler_page_get_text(page);
    missing = text && text[strspn(text, " \t\r\n\f")] != '\0';
    g_free(text);
    if (!missing)
        return 0;
    return ocr_err_kind(err, OCR_KIND_UNSUPPORTED,
                        "the PDF has text in fonts that this machine lacks; "
                        "run: apt-get install fonts-urw-base35");
}

/* The text of a page that was made on a computer; 0 and no out->text if it has
 * none, or is a scan whose text is somebody's reading of it. */
static int take_text(PopplerPage *page, struct ocr_image *out,
                     const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    double width = 0, height = 0;
    GList *images = poppler_page_get_image_mapping(page);
    char *text;
    size_t len;
    int rc = 0;

    poppler_page_get_size(page, &width, &height);
    text =
        find_scan(images, width, height) ? NULL : poppler_page_get_text(page);
    poppler_page_free_image_mapping(images);
    len = text ? strnlen(text, OCR_LAYER_MAX) : 0;
    if (len > 0 && text[strspn(text, " \t\r\n\f")] != '\0') {
        out->pixels = alloc->alloc(alloc->arg, len);
        if (out->pixels) {
            memcpy(out->pixels, text, len);
            out->text = (uint32_t)len;
        } else {
            rc = ocr_err_set(err, -ENOMEM, "no memory for the text of a page");
        }
    }
    g_free(text);
    return rc;
}

static int pdf_page(void *document, uint32_t page, struct ocr_image *out,
                    const struct ocr_image_limits *limits,
                    const struct ocr_image_alloc *alloc, struct ocr_err *err)
{
    const struct pdf *pdf = document;
    PopplerPage *one = poppler_document_get_page(pdf->document, (int)page);
    int rc;

    if (!one)
        return ocr_err_kind(err, OCR_KIND_CORRUPT,
                            "the PDF is damaged: this page is missing");
    rc = limits->text ? take_text(one, out, alloc, err) : 0;
    if (rc == 0 && !out->text)
        rc = draw(one, out, limits, alloc, err);
    if (rc == 0 && !out->text)
        rc = check_fonts(one, out, err);
    g_object_unref(one);
    return rc;
}

static const char *pdf_library(void)
{
    static char name[32];

    snprintf(name, sizeof name, "poppler %s", poppler_get_version());
    return name;
}

const struct ocr_decoder ocr_decoder_pdf = {
    .abi = OCR_DECODER_ABI,
    .name = "pdf",
    .library = pdf_library,
    .open = pdf_open,
    .page = pdf_page,
    .close = pdf_close,
};
