/* A page is blank if nothing on it has the edge of a stroke.
 *
 * Uneven light, paper colour, and the reverse shining through are soft: they
 * change slowly from pixel to pixel, so looking at steps between neighbours
 * flattens the background by itself. What remains are specks, which are sharp
 * but small. Both sizes are meant for a page of about a megapixel, to which
 * the picture is reduced first; that also averages noise away. */
#include "engine/image/image.h"

#include <math.h>
#include <stdlib.h>

enum {
    PAGE_PIXELS = 1200000, /* A4 at 110 dpi */
    /* Gray levels within two pixels. Writing of the faintest kind, 28 levels
     * on its paper, has 25; show-through as dark as that has 12. */
    STEP_MIN = 18,
    STEP_MAX = 72, /* whatever the noise: halftones are no noise */
    /* JPEG puts ripples around a speck, within its block of 8 x 8 and the
     * next: nothing counts that is so many times weaker than its neighbour. */
    CELL = 8,
    RIPPLE = 6,
    /* Pixels across, edges of both sides counted in: a speck or a punctuation
     * mark is smaller, a letter of 8 points is not. */
    MARK_EXTENT = 10,
};

/* The picture in gray, turned into steps from the top down as they are
 * needed: a page with writing is known as such after a few lines. */
struct plane {
    uint32_t width, height;
    uint32_t across; /* cells in a row of cells */
    uint32_t ready;  /* rows of cells that hold steps */
    uint8_t least;   /* steps below are noise */
    uint8_t *pixels;
    uint8_t *peaks; /* the greatest step of each cell */
};

static void add_row(uint32_t *sums, const struct ocr_image *image, uint32_t y,
                    uint32_t factor, uint32_t width)
{
    const uint8_t *from =
        image->pixels + (size_t)y * image->width * image->channels;

    for (uint32_t x = 0; x < width; x++) {
        uint32_t sum = 0;

        for (uint32_t i = 0; i < factor; i++, from += image->channels)
            sum += image->channels == 1
                       ? from[0]
                       : (from[0] + 2u * from[1] + from[2]) / 4;
        sums[x] += sum;
    }
}

/* Each pixel the mean of factor x factor. */
static void reduce(struct plane *plane, const struct ocr_image *image,
                   uint32_t factor, uint32_t *sums)
{
    uint8_t *to = plane->pixels;

    for (uint32_t y = 0; y < plane->height; y++, to += plane->width) {
        for (uint32_t i = 0; i < factor; i++)
            add_row(sums, image, y * factor + i, factor, plane->width);
        for (uint32_t x = 0; x < plane->width; x++) {
            to[x] = (uint8_t)(sums[x] / (factor * factor));
            sums[x] = 0;
        }
    }
}

/* The median step of a page is that of its bare paper; several times as much
 * is beyond chance. Every eighth row tells enough. */
static uint8_t noise_limit(const struct plane *plane)
{
    size_t counts[256] = {0}, steps = 0, below = 0;
    unsigned limit = 0;

    for (size_t y = 0; y < plane->height; y += 8) {
        const uint8_t *p = plane->pixels + y * plane->width;

        for (size_t x = 0; x + 2 < plane->width; x++, steps++)
            counts[abs(p[x + 2] - p[x])]++;
    }
    while (limit < 255 && (below += counts[limit]) * 2 < steps)
        limit++;
    limit *= 5;
    return (uint8_t)(limit < STEP_MIN   ? STEP_MIN
                     : limit > STEP_MAX ? STEP_MAX
                                        : limit);
}

static bool plane_init(struct plane *plane, const struct ocr_image *image)
{
    const double pixels = (double)image->width * image->height;
    const uint32_t fit = (uint32_t)lround(sqrt(pixels / PAGE_PIXELS));
    const uint32_t least =
        image->width < image->height ? image->width : image->height;
    const uint32_t factor = fit < 1 ? 1 : fit > least ? least : fit;
    uint32_t *sums;

    plane->width = image->width / factor;
    plane->height = image->height / factor;
    plane->across = plane->width / CELL + 1;
    plane->pixels = malloc((size_t)plane->width * plane->height);
    plane->peaks = calloc(plane->across, plane->height / CELL + 1);
    sums = calloc(plane->width, sizeof *sums);
    if (sums && plane->pixels && plane->peaks) {
        reduce(plane, image, factor, sums);
        plane->least = noise_limit(plane);
    }
    free(sums);
    return sums && plane->pixels && plane->peaks;
}

static void plane_release(struct plane *plane)
{
    free(plane->pixels);
    free(plane->peaks);
}

/* Puts in place of each pixel the step around its right lower neighbour; two
 * pixels at the far edges have none. */
static void make_steps(struct plane *plane, uint32_t y)
{
    const size_t width = plane->width;
    const size_t below = y + 2 < plane->height ? 2 * width : 0;
    uint8_t *p = plane->pixels + y * width;
    uint8_t *peaks = plane->peaks + (size_t)(y / CELL) * plane->across;

    for (size_t x = 0; x < width; x++) {
        const int across = x + 2 < width ? abs(p[x + 2] - p[x]) : 0;
        const int down = x + 2 < width ? abs(p[x + 1 + below] - p[x + 1]) : 0;

        p[x] = (uint8_t)(across > down ? across : down);
        if (p[x] > peaks[x / CELL])
            peaks[x / CELL] = p[x];
    }
}

static void make_ready(struct plane *plane, uint32_t cells)
{
    for (; plane->ready < cells; plane->ready++)
        for (uint32_t i = 0; i < CELL; i++)
            if (plane->ready * CELL + i < plane->height)
                make_steps(plane, plane->ready * CELL + i);
}

/* A step that is more than noise and ripples. */
static bool is_steep(const struct plane *plane, uint32_t x, uint32_t y)
{
    const uint8_t step = plane->pixels[(size_t)y * plane->width + x];
    const uint32_t cx = x / CELL, cy = y / CELL;

    if (step < plane->least)
        return false;
    for (uint32_t j = cy ? cy - 1 : 0; j <= cy + 1; j++)
        for (uint32_t i = cx ? cx - 1 : 0; i <= cx + 1; i++)
            if (i < plane->across && j <= plane->height / CELL &&
                plane->peaks[(size_t)j * plane->across + i] > step * RIPPLE)
                return false;
    return true;
}

struct spot {
    uint32_t x, y;
};

/* Follows the connected steep pixels from (x, y) on, rubbing them out; true as
 * soon as they reach the extent of a mark, so only that square is seen. */
static bool is_mark(struct plane *plane, uint32_t x, uint32_t y)
{
    struct spot stack[4 * MARK_EXTENT * MARK_EXTENT];
    uint32_t left = x, right = x;
    size_t n = 0;

    stack[n++] = (struct spot){x, y};
    plane->pixels[(size_t)y * plane->width + x] = 0;
    while (n > 0) {
        const struct spot at = stack[--n];

        left = at.x < left ? at.x : left;
        right = at.x > right ? at.x : right;
        if (right - left + 1 >= MARK_EXTENT || at.y - y + 1 >= MARK_EXTENT)
            return true;
        for (uint32_t i = 0; i < 9; i++) {
            const uint32_t nx = at.x + i % 3 - 1, ny = at.y + i / 3 - 1;

            if (nx >= plane->width || ny >= plane->height ||
                !is_steep(plane, nx, ny))
                continue;
            plane->pixels[(size_t)ny * plane->width + nx] = 0;
            stack[n++] = (struct spot){nx, ny};
        }
    }
    return false;
}

static bool has_mark(struct plane *plane)
{
    /* How far below the first row of a mark its last cell may be. */
    const uint32_t reach = MARK_EXTENT / CELL + 3;

    for (uint32_t y = 0; y < plane->height; y++) {
        make_ready(plane, y / CELL + reach);
        for (uint32_t x = 0; x < plane->width; x++)
            if (plane->pixels[(size_t)y * plane->width + x] >= plane->least &&
                is_steep(plane, x, y) && is_mark(plane, x, y))
                return true;
    }
    return false;
}

bool ocr_image_is_blank(const struct ocr_image *image)
{
    struct plane plane = {0};
    const bool blank = plane_init(&plane, image) && !has_mark(&plane);

    plane_release(&plane);
    return blank;
}
