/* The tall white rectangles of a region, among which those between columns
 * are. All maximal ones are found, in time proportional to the area. */
#include "engine/tesseract/layout_i.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    SIDES_MAX = 4000 /* cells of the grid on one side */
};

struct grid {
    int width, height, cell;
    struct tess_box box; /* of the region */
    unsigned char *ink;
};

static struct tess_box bounds(struct tess_word **words, size_t n)
{
    struct tess_box box = words[0]->box;

    for (size_t i = 1; i < n; i++)
        box_join(&box, &words[i]->box);
    return box;
}

static void grid_fill(struct grid *grid, const struct tess_box *box)
{
    int x0 = (box->x0 - grid->box.x0) / grid->cell;
    int x1 = (box->x1 - 1 - grid->box.x0) / grid->cell;
    int y0 = (box->y0 - grid->box.y0) / grid->cell;
    int y1 = (box->y1 - 1 - grid->box.y0) / grid->cell;

    x0 = x0 < 0 ? 0 : x0;
    y0 = y0 < 0 ? 0 : y0;
    x1 = x1 >= grid->width ? grid->width - 1 : x1;
    y1 = y1 >= grid->height ? grid->height - 1 : y1;
    for (int y = y0; y <= y1 && x0 <= x1; y++)
        memset(grid->ink + (size_t)y * (size_t)grid->width + x0, 1,
               (size_t)(x1 - x0) + 1);
}

/* A rule across a gap ties its two sides together. */
static void grid_rules(struct grid *grid, const struct page *page)
{
    int n = page->rules ? boxaGetCount(page->rules) : 0;

    for (int i = 0; i < n; i++) {
        struct tess_box box;
        int w, h;

        boxaGetBoxGeometry(page->rules, i, &box.x0, &box.y0, &w, &h);
        box.x1 = box.x0 + w;
        box.y1 = box.y0 + h;
        if (w > h && box.y0 > grid->box.y0 && box.y1 < grid->box.y1)
            grid_fill(grid, &box);
    }
}

static int grid_init(struct grid *grid, const struct page *page,
                     struct tess_word **words, size_t n)
{
    grid->box = bounds(words, n);
    grid->cell = (int)(page->xh / 2);
    grid->cell = grid->cell < 2 ? 2 : grid->cell;
    grid->width = (grid->box.x1 - grid->box.x0) / grid->cell + 1;
    grid->height = (grid->box.y1 - grid->box.y0) / grid->cell + 1;
    if (grid->width > SIDES_MAX || grid->height > 4 * SIDES_MAX)
        return -E2BIG;
    grid->ink = calloc((size_t)grid->width, (size_t)grid->height);
    if (!grid->ink)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        grid_fill(grid, &words[i]->box);
    grid_rules(grid, page);
    return 0;
}

/* Keeps the best GAPS_MAX rectangles, best first. */
static void keep(struct white *gaps, size_t *n, const struct white *gap)
{
    size_t at = *n;

    while (at > 0 && gaps[at - 1].score < gap->score)
        at--;
    if (at == GAPS_MAX)
        return;
    if (*n < GAPS_MAX)
        ++*n;
    memmove(gaps + at + 1, gaps + at, (*n - at - 1) * sizeof(*gaps));
    gaps[at] = *gap;
}

static void offer(const struct grid *grid, struct white *gaps, size_t *n,
                  int x0, int x1, int y0, int y1)
{
    struct white gap;

    /* Not the margins; wider than a space, taller than two lines. */
    if (x0 == 0 || x1 >= grid->width || x1 - x0 < 3 || y1 - y0 < 7)
        return;
    gap.box = (struct tess_box){
        grid->box.x0 + x0 * grid->cell, grid->box.y0 + y0 * grid->cell,
        grid->box.x0 + x1 * grid->cell, grid->box.y0 + y1 * grid->cell};
    gap.score = (float)(y1 - y0) * (x1 - x0 < 12 ? (float)(x1 - x0 + 12) : 24);
    keep(gaps, n, &gap);
}

/* All maximal white rectangles, row by row: `run[x]` counts the white cells
 * above; the stack holds the columns where a rectangle of that height began. */
static size_t sweep(const struct grid *grid, struct white *gaps)
{
    int width = grid->width;
    int *run = calloc((size_t)width + 1, sizeof(*run));
    int *from = calloc((size_t)width + 1, sizeof(*from));
    int *high = calloc((size_t)width + 1, sizeof(*high));
    size_t n = 0;

    for (int y = 0; run && from && high && y < grid->height; y++) {
        const unsigned char *row = grid->ink + (size_t)y * (size_t)width;
        const unsigned char *next = y + 1 < grid->height ? row + width : NULL;
        int top = 0;

        for (int x = 0; x <= width; x++) {
            int start = x;

            if (x < width)
                run[x] = row[x] ? 0 : run[x] + 1;
            while (top && high[top - 1] > (x < width ? run[x] : 0)) {
                int tall = high[--top];

                start = from[top];
                /* Only if the row below ends it. */
                if (!next || memchr(next + start, 1, (size_t)(x - start)))
                    offer(grid, gaps, &n, start, x, y + 1 - tall, y + 1);
            }
            if (x < width && run[x] && (!top || high[top - 1] < run[x])) {
                from[top] = start;
                high[top++] = run[x];
            }
        }
    }
    free(run);
    free(from);
    free(high);
    return n;
}

int gaps_find(struct white *gaps, size_t *n_out, const struct page *page,
              struct tess_word **words, size_t n)
{
    struct grid grid;
    int code = grid_init(&grid, page, words, n);

    *n_out = 0;
    if (code)
        return code == -E2BIG ? 0 : code;
    *n_out = sweep(&grid, gaps);
    free(grid.ink);
    return 0;
}
