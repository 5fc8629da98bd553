/* Reading order: where a page divides into columns that are read one after
 * the other, and where the eye goes across (tables, forms, receipts).
 *
 * The page is searched for tall white rectangles with text on both sides. Each
 * is judged by that text: lines that share their baselines across the gap, or
 * amounts on one side, are rows of a table; prose on both sides, lines that
 * do not meet, or blocks set tight like addresses, are columns. The tallest
 * that passes divides the region into what stands above, left, right, and
 * below, and each part is divided again. */
#include "engine/tesseract/layout_i.h"
#include "engine/tesseract/text.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SIDES_MAX = 4000, /* cells of the grid on one side */
    TRIES = 96,       /* white rectangles judged in one region */
    DEPTH_MAX = 12,
};

struct gap {
    struct tess_box box;
    float score;
};

/* The text beside a gap, as lines. */
struct side {
    struct line *at;
    size_t n;
    float pitch; /* from baseline to baseline, 0 with one line */
    float words; /* in a line, on average */
    float prose; /* share of lines that fill the column with words */
    float figures;
    float labels; /* share of lines that end with a colon */
};

/* ---- the white rectangles of a region ---- */

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
               (size_t)(x1 - x0 + 1));
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

/* Keeps the best TRIES rectangles, best first. */
static void keep(struct gap *gaps, size_t *n, const struct gap *gap)
{
    size_t at = *n;

    while (at > 0 && gaps[at - 1].score < gap->score)
        at--;
    if (at == TRIES)
        return;
    if (*n < TRIES)
        ++*n;
    memmove(gaps + at + 1, gaps + at, (*n - at - 1) * sizeof(*gaps));
    gaps[at] = *gap;
}

static void offer(const struct grid *grid, struct gap *gaps, size_t *n, int x0,
                  int x1, int y0, int y1)
{
    struct gap gap;

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
static size_t find_gaps(const struct grid *grid, struct gap *gaps)
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

/* ---- judging ---- */

static int by_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static float side_pitch(const struct side *side)
{
    float *steps = malloc((side->n + 1) * sizeof(*steps)), pitch = 0;

    for (size_t i = 1; steps && i < side->n; i++)
        steps[i - 1] = side->at[i].base - side->at[i - 1].base;
    if (steps && side->n > 1) {
        qsort(steps, side->n - 1, sizeof(*steps), by_float);
        pitch = steps[(side->n - 1) / 2];
    }
    free(steps);
    return pitch;
}

static void side_measure(struct side *side)
{
    struct tess_box box = side->at[0].box;
    float prose = 0, words = 0, figures = 0, labels = 0, n = (float)side->n;

    for (size_t i = 1; i < side->n; i++)
        box_join(&box, &side->at[i].box);
    for (size_t i = 0; i < side->n; i++) {
        const struct line *line = &side->at[i];
        const char *last = line->words[line->n - 1]->text;

        prose += line->n >= 4 &&
                 (line->box.x1 - line->box.x0) * 10 > (box.x1 - box.x0) * 7;
        words += (float)line->n;
        figures += line->n <= 2 && (text_is_figure(line->words[0]->text) ||
                                    text_is_figure(last));
        labels += last[strlen(last) - 1] == ':';
    }
    side->prose = prose / n;
    side->words = words / n;
    side->figures = figures / n;
    side->labels = labels / n;
    side->pitch = side_pitch(side);
}

/* Share of the lines of `a` that have a line of `b` beside them. */
static float shared(const struct side *a, const struct side *b)
{
    size_t n = 0, j = 0;

    for (size_t i = 0; i < a->n; i++) {
        float near = 0.4f * a->at[i].xh;

        while (j < b->n && b->at[j].base < a->at[i].base - near)
            j++;
        n += j < b->n && b->at[j].base <= a->at[i].base + near;
    }
    return (float)n / (float)a->n;
}

/* True if the two sides are read one after the other. */
static bool is_column_gap(const struct side *l, const struct side *r, int width,
                          float xh)
{
    const struct side *few = l->n <= r->n ? l : r, *many = few == l ? r : l;
    float meet = shared(few, many), tight = 2.85f * xh;
    bool wide = (float)width > 3 * xh;

    if (l->n >= 3 && r->n >= 3 && l->prose >= 0.5f && r->prose >= 0.5f)
        return true;
    if (l->n >= 2 && r->n >= 2 && meet < 0.55f)
        return true;
    if (l->figures > 0.5f || r->figures > 0.5f || l->labels > 0.4f || !wide)
        return false;
    /* Blocks like addresses, set tight beside each other. */
    if (many->n < 2 || many->pitch > tight)
        return false;
    if (few->n == 1)
        return many->n <= 6;
    return few->pitch < tight && l->words >= 1.5f;
}

/* ---- dividing ---- */

static int center(const struct tess_word *word)
{
    return (word->box.y0 + word->box.y1) / 2;
}

/* The lines of the words within `box` on one side of the gap. */
static int side_init(struct side *side, const struct page *page,
                     struct tess_word **words, size_t n,
                     const struct tess_box *box, bool left)
{
    struct tess_word **mine = malloc((n + 1) * sizeof(*mine));
    size_t k = 0;
    int code = 0;

    memset(side, 0, sizeof(*side));
    if (!mine)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        int y = center(words[i]), x = (words[i]->box.x0 + words[i]->box.x1) / 2;

        if (y >= box->y0 && y < box->y1 && (x < box->x0) == left)
            mine[k++] = words[i];
    }
    if (k)
        code = lines_make(&side->at, &side->n, mine, k, page);
    free(mine);
    return code;
}

static void side_release(struct side *side)
{
    lines_free(side->at, side->n);
}

/* Where text ends on the shorter side, the longer one may go on past the
 * region that they share: up to the first clear gap. */
static int shared_end(const struct side *l, const struct side *r, int limit,
                      float xh)
{
    const struct line *a = &l->at[l->n - 1], *b = &r->at[r->n - 1];
    const struct side *longer = a->box.y1 > b->box.y1 ? l : r;
    int end = a->box.y1 < b->box.y1 ? a->box.y1 : b->box.y1;

    for (size_t i = 1; i < longer->n; i++) {
        const struct line *prev = &longer->at[i - 1], *next = &longer->at[i];

        if (next->box.y0 >= end &&
            (float)(next->box.y0 - prev->box.y1) > 3.2f * xh)
            return (next->box.y0 + (prev->box.y1 > end ? prev->box.y1 : end)) /
                   2;
    }
    return limit;
}

static int shared_start(const struct side *l, const struct side *r, int limit,
                        float xh)
{
    const struct line *a = &l->at[0], *b = &r->at[0];
    const struct side *longer = a->box.y0 < b->box.y0 ? l : r;
    int start = a->box.y0 > b->box.y0 ? a->box.y0 : b->box.y0;

    for (size_t i = longer->n; i-- > 1;) {
        const struct line *prev = &longer->at[i - 1], *next = &longer->at[i];

        if (prev->box.y1 <= start &&
            (float)(next->box.y0 - prev->box.y1) > 3.2f * xh)
            return (prev->box.y1 +
                    (next->box.y0 < start ? next->box.y0 : start)) /
                   2;
    }
    return limit;
}

/* Judges one white rectangle; trims it to the text that stands side by side.
 * 1: it divides the region, 0: it does not. */
static int judge(const struct page *page, struct tess_word **words, size_t n,
                 struct tess_box *box)
{
    struct side l, r = {0};
    int code = side_init(&l, page, words, n, box, true), yes = 0;

    for (int pass = 0; code == 0 && pass < 2; pass++) {
        side_release(&r);
        code = side_init(&r, page, words, n, box, false);
        if (code || !l.n || !r.n)
            break;
        if (pass == 1) {
            side_measure(&l);
            side_measure(&r);
            yes = is_column_gap(&l, &r, box->x1 - box->x0, page->xh);
            break;
        }
        box->y1 = shared_end(&l, &r, box->y1, page->xh);
        box->y0 = shared_start(&l, &r, box->y0, page->xh);
        side_release(&l);
        code = side_init(&l, page, words, n, box, true);
    }
    side_release(&l);
    side_release(&r);
    return code ? code : yes;
}

/* Where a word belongs: 0 above, 1 left, 2 right, 3 below. */
static int part_of(const struct tess_word *word, const struct tess_box *gap)
{
    int y = center(word);

    if (y < gap->y0)
        return 0;
    if (y >= gap->y1)
        return 3;
    return (word->box.x0 + word->box.x1) / 2 < gap->x0 ? 1 : 2;
}

/* Sorts the words into the four parts, keeping their order. */
static int part(struct tess_word **words, size_t n, const struct tess_box *gap,
                size_t sizes[4])
{
    struct tess_word **copy = malloc(n * sizeof(*copy));
    size_t k = 0;

    if (!copy)
        return -ENOMEM;
    memcpy(copy, words, n * sizeof(*copy));
    for (int p = 0; p < 4; p++) {
        sizes[p] = k;
        for (size_t i = 0; i < n; i++)
            if (part_of(copy[i], gap) == p)
                words[k++] = copy[i];
        sizes[p] = k - sizes[p];
    }
    free(copy);
    return 0;
}

/* The best dividing gap; 1 found, 0 none. */
static int find_division(const struct page *page, struct tess_word **words,
                         size_t n, struct tess_box *out)
{
    struct gap gaps[TRIES];
    struct grid grid;
    size_t found;
    int code = grid_init(&grid, page, words, n);

    if (code)
        return code == -E2BIG ? 0 : code;
    found = find_gaps(&grid, gaps);
    free(grid.ink);
    for (size_t i = 0; code == 0 && i < found; i++) {
        *out = gaps[i].box;
        code = judge(page, words, n, out);
    }
    return code;
}

int columns_divide(const struct page *page, struct tess_word **words, size_t n,
                   int depth,
                   int (*each)(void *arg, struct tess_word **words, size_t n),
                   void *arg)
{
    struct tess_box gap;
    size_t sizes[4];
    int code;

    if (n == 0)
        return 0;
    code =
        depth < DEPTH_MAX && n >= 4 ? find_division(page, words, n, &gap) : 0;
    if (code <= 0)
        return code < 0 ? code : each(arg, words, n);
    if ((code = part(words, n, &gap, sizes)))
        return code;
    for (int p = 0; code == 0 && p < 4; words += sizes[p++])
        code = columns_divide(page, words, sizes[p],
                              sizes[p] == n ? DEPTH_MAX : depth + 1, each, arg);
    return code;
}
