#include "engine/image/resize.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SIDE_MAX = 4 * 1000 * 1000, /* the weights grow with it */
    FRACTION = 22,              /* bits behind the point of a weight */
    HALF = 1 << (FRACTION - 1),
    BLOCK = 64, /* bytes of a row that are summed in registers */
};

/* How each of `out` pixels is made of pixels of the input. */
struct filter {
    uint32_t taps; /* at most, for one pixel */
    uint32_t *first, *count;
    int32_t *weight; /* [out][taps], in units of 2^-FRACTION */
};

/* Both directions, and the rows that are resized along the first. */
struct resizer {
    const uint8_t *in;
    uint32_t width, height, channels, out_width;
    struct filter across, down;
    uint8_t *ring; /* [down.taps][stride] */
    size_t stride;
    uint32_t made; /* rows so far */
};

static uint32_t round_up(double side, uint32_t multiple)
{
    const uint32_t whole = side < 1 ? 1 : (uint32_t)side;

    return ((whole - 1) / multiple + 1) * multiple;
}

void ocr_resize_size(uint32_t width, uint32_t height, uint32_t longest_edge,
                     uint32_t multiple, uint32_t *out_width,
                     uint32_t *out_height)
{
    const double edge = longest_edge;
    const double ratio = fmax(height / edge, width / edge);

    *out_width = round_up(ratio > 1 ? floor(width / ratio) : width, multiple);
    *out_height =
        round_up(ratio > 1 ? floor(height / ratio) : height, multiple);
}

static double bicubic(double x)
{
    const double a = -0.5;

    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

/* Weights of output pixel i: as doubles that sum up to 1, then rounded. Every
 * operation is in the order that makes the same bits. */
static void fill_weights(struct filter *f, uint32_t i, double scale,
                         uint32_t in, double *exact)
{
    const double stretch = scale < 1 ? 1 : scale, support = 2 * stretch;
    const double center = (i + 0.5) * scale, step = 1 / stretch;
    const double from = center - support + 0.5, to = center + support + 0.5;
    const uint32_t first = from < 0 ? 0 : (uint32_t)from;
    const uint32_t end = to > in ? in : (uint32_t)to;
    double sum = 0;

    f->first[i] = first;
    f->count[i] = end - first;
    for (uint32_t k = 0; k < end - first; k++) {
        exact[k] = bicubic((k + first - center + 0.5) * step);
        sum += exact[k];
    }
    for (uint32_t k = 0; k < end - first; k++) {
        const double weight = exact[k] / sum * (1 << FRACTION);

        f->weight[(size_t)i * f->taps + k] =
            (int32_t)(weight < 0 ? weight - 0.5 : weight + 0.5);
    }
}

static void filter_release(struct filter *f)
{
    free(f->first);
    free(f->count);
    free(f->weight);
}

static int filter_init(struct filter *f, uint32_t in, uint32_t out,
                       struct ocr_err *err)
{
    const double scale = (double)in / out;
    double *exact;

    f->taps = 2 * (uint32_t)ceil(2 * (scale < 1 ? 1 : scale)) + 1;
    f->first = calloc(out, sizeof *f->first);
    f->count = calloc(out, sizeof *f->count);
    f->weight = calloc(out, f->taps * sizeof *f->weight);
    exact = calloc(f->taps, sizeof *exact);
    if (!f->first || !f->count || !f->weight || !exact) {
        free(exact);
        return ocr_err_set(err, -ENOMEM, "no memory to resize a page");
    }
    for (uint32_t i = 0; i < out; i++)
        fill_weights(f, i, scale, in, exact);
    free(exact);
    return 0;
}

static uint8_t to_byte(int32_t sum)
{
    const int32_t value = sum >> FRACTION;

    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static void across_gray(const struct filter *f, uint32_t width,
                        const uint8_t *in, uint8_t *out)
{
    for (uint32_t x = 0; x < width; x++) {
        const int32_t *weight = f->weight + (size_t)x * f->taps;
        const uint8_t *from = in + f->first[x];
        int32_t sum = HALF;

        for (uint32_t k = 0; k < f->count[x]; k++)
            sum += from[k] * weight[k];
        out[x] = to_byte(sum);
    }
}

static void across_rgb(const struct filter *f, uint32_t width,
                       const uint8_t *in, uint8_t *out)
{
    for (uint32_t x = 0; x < width; x++) {
        const int32_t *weight = f->weight + (size_t)x * f->taps;
        const uint8_t *from = in + 3 * (size_t)f->first[x];
        int32_t r = HALF, g = HALF, b = HALF;

        for (uint32_t k = 0; k < f->count[x]; k++, from += 3) {
            r += from[0] * weight[k];
            g += from[1] * weight[k];
            b += from[2] * weight[k];
        }
        out[3 * (size_t)x] = to_byte(r);
        out[3 * (size_t)x + 1] = to_byte(g);
        out[3 * (size_t)x + 2] = to_byte(b);
    }
}

/* Where row y of those resized across is, or goes. */
static uint8_t *ring_row(const struct resizer *r, uint32_t y)
{
    return r->ring + y % r->down.taps * r->stride;
}

/* Resizes rows across until there are `end` of them. */
static void make_rows(struct resizer *r, uint32_t end)
{
    const size_t in_stride = (size_t)r->width * r->channels;

    for (; r->made < end; r->made++) {
        const uint8_t *in = r->in + r->made * in_stride;
        uint8_t *out = ring_row(r, r->made);

        if (r->width == r->out_width)
            memcpy(out, in, in_stride);
        else if (r->channels == 1)
            across_gray(&r->across, r->out_width, in, out);
        else
            across_rgb(&r->across, r->out_width, in, out);
    }
}

/* One block of output row y, from byte `at` of the rows on. */
static void down_block(const struct resizer *r, uint32_t y, size_t at,
                       uint8_t out[BLOCK])
{
    const int32_t *weight = r->down.weight + (size_t)y * r->down.taps;
    int32_t sum[BLOCK];

    for (int i = 0; i < BLOCK; i++)
        sum[i] = HALF;
    for (uint32_t k = 0; k < r->down.count[y]; k++) {
        const uint8_t *row = ring_row(r, r->down.first[y] + k) + at;

        for (int i = 0; i < BLOCK; i++)
            sum[i] += row[i] * weight[k];
    }
    for (int i = 0; i < BLOCK; i++)
        out[i] = to_byte(sum[i]);
}

static void down_row(const struct resizer *r, uint32_t y, uint8_t *out)
{
    const size_t bytes = (size_t)r->out_width * r->channels;
    uint8_t block[BLOCK];

    for (size_t at = 0; at < bytes; at += BLOCK) {
        const size_t n = bytes - at < BLOCK ? bytes - at : BLOCK;

        down_block(r, y, at, block);
        memcpy(out + at, block, n);
    }
}

static int run(struct resizer *r, uint8_t *out, uint32_t out_height,
               struct ocr_err *err)
{
    const size_t bytes = (size_t)r->out_width * r->channels;
    int rc = filter_init(&r->across, r->width, r->out_width, err);

    if (!rc)
        rc = filter_init(&r->down, r->height, out_height, err);
    if (rc)
        return rc;
    r->stride = (bytes + BLOCK - 1) / BLOCK * BLOCK;
    r->ring = calloc(r->down.taps, r->stride);
    if (!r->ring)
        return ocr_err_set(err, -ENOMEM, "no memory to resize a page");
    for (uint32_t y = 0; y < out_height; y++, out += bytes) {
        if (r->height == out_height) {
            make_rows(r, y + 1);
            memcpy(out, ring_row(r, y), bytes);
        } else {
            make_rows(r, r->down.first[y] + r->down.count[y]);
            down_row(r, y, out);
        }
    }
    return 0;
}

int ocr_resize_bicubic(const uint8_t *in, uint32_t width, uint32_t height,
                       uint32_t channels, uint8_t *out, uint32_t out_width,
                       uint32_t out_height, struct ocr_err *err)
{
    struct resizer r = {.in = in,
                        .width = width,
                        .height = height,
                        .channels = channels,
                        .out_width = out_width};
    int rc;

    if (width > SIDE_MAX || height > SIDE_MAX)
        return ocr_err_kind(err, OCR_KIND_TOO_LARGE,
                            "a side of %u pixels: too long to resize",
                            width > height ? width : height);
    rc = run(&r, out, out_height, err);
    filter_release(&r.across);
    filter_release(&r.down);
    free(r.ring);
    return rc;
}

int ocr_resize_page(const struct ocr_image *image, uint32_t width,
                    uint32_t height, uint8_t *rgb, struct ocr_err *err)
{
    const int rc =
        ocr_resize_bicubic(image->pixels, image->width, image->height,
                           image->channels, rgb, width, height, err);

    if (rc || image->channels == 3)
        return rc;
    /* Gray pixels stand in the first third: spread them out from the end. */
    for (size_t i = (size_t)width * height; i-- > 0;)
        rgb[3 * i] = rgb[3 * i + 1] = rgb[3 * i + 2] = rgb[i];
    return 0;
}
