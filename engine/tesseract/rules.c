/* What is ink but no text: ruled lines and frames, boxes to tick, dust. Rules
 * make the layout analysis take tables for pictures; they are remembered,
 * since they part what stands on their two sides. */
#include "engine/tesseract/tesseract_i.h"

#include <string.h>

enum {
    PALE = 220 /* darker than this is ink, if it is a hairline */
};

/* Long thin runs of ink in one direction, as a mask. The ink is widened a
 * little first: a rule that is not quite level steps by a pixel. */
static PIX *find_lines(PIX *ink, int length, int thick, bool across)
{
    PIX *even = pixDilateBrick(NULL, ink, across ? 1 : 3, across ? 3 : 1);
    PIX *runs = even ? pixOpenCompBrick(NULL, even, across ? length : 1,
                                        across ? 1 : length)
                     : NULL;
    PIX *bulk = runs ? pixOpenCompBrick(NULL, runs, across ? 1 : thick + 2,
                                        across ? thick + 2 : 1)
                     : NULL;

    if (bulk) {
        /* Thicker than a rule: a panel or a picture. */
        PIX *whole = pixSeedfillBinary(NULL, bulk, runs, 8);

        if (whole)
            pixSubtract(runs, runs, whole);
        pixDestroy(&whole);
    }
    pixDestroy(&even);
    pixDestroy(&bulk);
    return runs;
}

static void remember(BOXA *rules, PIX *lines)
{
    BOXA *found = pixConnCompBB(lines, 8);

    if (found)
        boxaJoin(rules, found, 0, -1);
    boxaDestroy(&found);
}

/* Paints the lines white, with the gray fringe of their edges. */
static void erase(struct tess_image *image, PIX *lines, bool across)
{
    PIX *wide = pixDilateBrick(NULL, lines, across ? 5 : 3, across ? 3 : 5);

    if (!wide)
        return;
    pixSubtract(image->ink, image->ink, wide);
    pixPaintThroughMask(image->gray, wide, 0, 0, 255);
    pixDestroy(&wide);
}

static void remove_lines(struct tess_image *image, PIX *ink, float length,
                         float thick, bool across)
{
    PIX *lines = find_lines(ink, (int)(length * image->xh),
                            2 + (int)(thick * image->xh), across);

    if (!lines)
        return;
    remember(image->rules, lines);
    erase(image, lines, across);
    pixDestroy(&lines);
}

/* A hairline that was turned or scaled is paler than type, and of what is so
 * pale only the longest and thinnest is one. */
static void remove_hairlines(struct tess_image *image)
{
    PIX *pale = pixThresholdToBinary(image->gray, PALE);

    if (!pale)
        return;
    remove_lines(image, pale, 12, 0.1f, true);
    remove_lines(image, pale, 12, 0.1f, false);
    pixDestroy(&pale);
}

/* Share of ink in a part of the page. */
static float density(PIX *ink, int x, int y, int w, int h)
{
    BOX *box = boxCreate(x, y, w, h);
    PIX *part = box ? pixClipRectangle(ink, box, NULL) : NULL;
    int count = 0;

    if (part)
        pixCountPixels(part, &count, NULL);
    boxDestroy(&box);
    pixDestroy(&part);
    return w > 0 && h > 0 ? (float)count / (float)(w * h) : 0;
}

/* Share of the columns (or rows) of a part of the page that have ink. */
static float coverage(PIX *ink, int x, int y, int w, int h, bool columns)
{
    BOX *box = boxCreate(x, y, w, h);
    PIX *part = box ? pixClipRectangle(ink, box, NULL) : NULL;
    NUMA *counts = !part     ? NULL
                   : columns ? pixCountPixelsByColumn(part)
                             : pixCountPixelsByRow(part, NULL);
    int n = counts ? numaGetCount(counts) : 0, covered = 0;

    for (int i = 0; i < n; i++) {
        int count = 0;

        numaGetIValue(counts, i, &count);
        covered += count > 0;
    }
    boxDestroy(&box);
    pixDestroy(&part);
    numaDestroy(&counts);
    return n ? (float)covered / (float)n : 0;
}

/* A square outline about as high as a capital: ink along four sides and in
 * four corners, which no letter has. */
static bool is_tick_box(PIX *ink, float xh, int x, int y, int w, int h)
{
    int edge = h / 7 + 1, corner = h / 10 + 1;
    float low = 1.15f * xh, high = 2.6f * xh;

    if ((float)h < low || (float)h > high || w < h * 88 / 100 ||
        w > h * 114 / 100 || density(ink, x, y, w, h) > 0.7f)
        return false;
    if (coverage(ink, x, y, w, edge, true) < 0.9f ||
        coverage(ink, x, y + h - edge, w, edge, true) < 0.9f ||
        coverage(ink, x, y, edge, h, false) < 0.9f ||
        coverage(ink, x + w - edge, y, edge, h, false) < 0.9f)
        return false;
    return density(ink, x, y, corner, corner) > 0.2f &&
           density(ink, x + w - corner, y, corner, corner) > 0.2f &&
           density(ink, x, y + h - corner, corner, corner) > 0.2f &&
           density(ink, x + w - corner, y + h - corner, corner, corner) > 0.2f;
}

static void add_tick(struct tess_image *image, int x, int y, int w, int h)
{
    struct tess_word *word = tess_words_add(&image->ticks);
    int in = h / 4;
    bool ticked =
        density(image->ink, x + in, y + in, w - 2 * in, h - 2 * in) > 0.08f;

    if (!word)
        return;
    word->text = strdup(ticked ? "☒" : "☐");
    word->conf = 95;
    word->line = -1;
    word->box = (struct tess_box){x, y, x + w, y + h};
}

static void paint(struct tess_image *image, int x, int y, int w, int h)
{
    BOX *box = boxCreate(x, y, w, h);

    if (box) {
        pixSetInRect(image->gray, box);
        pixClearInRect(image->ink, box);
    }
    boxDestroy(&box);
}

static void take_ticks(struct tess_image *image, BOXA *blobs)
{
    int n = boxaGetCount(blobs);

    for (int i = 0; i < n; i++) {
        int x, y, w, h;

        boxaGetBoxGeometry(blobs, i, &x, &y, &w, &h);
        if (!is_tick_box(image->ink, image->xh, x, y, w, h))
            continue;
        add_tick(image, x, y, w, h);
        paint(image, x - 2, y - 2, w + 4, h + 4);
    }
}

/* Short upright rules, alone after those across are gone, are told from an
 * "l" or "I" of large type by being more slender than any. */
static void remove_slivers(struct tess_image *image)
{
    BOXA *blobs = pixConnCompBB(image->ink, 8);
    int n = blobs ? boxaGetCount(blobs) : 0;

    for (int i = 0; i < n; i++) {
        BOX *box = boxaGetBox(blobs, i, L_CLONE);
        int x, y, w, h;

        boxGetGeometry(box, &x, &y, &w, &h);
        if ((float)h > 2.2f * image->xh && h > 12 * w) {
            boxaAddBox(image->rules, box, L_COPY);
            paint(image, x - 1, y - 1, w + 2, h + 2);
        }
        boxDestroy(&box);
    }
    boxaDestroy(&blobs);
}

/* Blobs of ink up to `tiny` across without a larger one near. */
static PIX *find_dust(PIX *ink, int tiny, int across, int down)
{
    PIX *large = pixSelectBySize(ink, tiny, tiny, 8, L_SELECT_IF_EITHER,
                                 L_SELECT_IF_GT, NULL);
    PIX *around =
        large ? pixDilateCompBrick(NULL, large, 2 * across + 1, 2 * down + 1)
              : NULL;
    PIX *dust = around ? pixSubtract(NULL, ink, around) : NULL;

    pixDestroy(&large);
    pixDestroy(&around);
    return dust;
}

static void take_dust(struct tess_image *image, PIX *dust)
{
    PIX *wide = dust ? pixDilateBrick(NULL, dust, 3, 3) : NULL;

    if (wide) {
        pixSubtract(image->ink, image->ink, wide);
        pixPaintThroughMask(image->gray, wide, 0, 0, 255);
    }
    pixDestroy(&wide);
}

/* The size that nearly all grains have; 0 if there are too few to tell. */
static int grain_size(PIX *dust)
{
    BOXA *grains = pixConnCompBB(dust, 8);
    int n = grains ? boxaGetCount(grains) : 0, counts[64] = {0}, sum = 0;

    for (int i = 0; i < n; i++) {
        int w, h;

        boxaGetBoxGeometry(grains, i, NULL, NULL, &w, &h);
        w = w > h ? w : h;
        counts[w < 63 ? w : 63]++;
    }
    boxaDestroy(&grains);
    for (int size = 0; n >= 40 && size < 64; size++)
        if ((sum += counts[size]) * 10 >= n * 9)
            return size;
    return 0;
}

/* Dust is small and alone: dots and colons have letters near, if not as near
 * as in English. Where the empty parts of a page are full of grains, there
 * are some between the words too: of that size, and nearer to letters. */
static void remove_dust(struct tess_image *image)
{
    float xh = image->xh;
    PIX *dust =
        find_dust(image->ink, (int)(xh * 0.34f), (int)(xh * 2), (int)xh);
    int grain = dust ? grain_size(dust) : 0;

    take_dust(image, dust);
    pixDestroy(&dust);
    if (!grain || (float)grain > 0.34f * xh)
        return;
    dust = find_dust(image->ink, grain, (int)(xh * 0.55f), (int)(xh * 0.55f));
    take_dust(image, dust);
    pixDestroy(&dust);
}

void tess_rules_remove(struct tess_image *image)
{
    BOXA *blobs;

    image->rules = boxaCreate(0);
    if (image->xh < 5 || !image->rules)
        return;
    blobs = pixConnCompBB(image->ink, 8);
    if (blobs)
        take_ticks(image, blobs);
    boxaDestroy(&blobs);
    remove_lines(image, image->ink, 5, 0.45f, true);
    remove_lines(image, image->ink, 4, 0.45f, false);
    remove_hairlines(image);
    remove_slivers(image);
    remove_dust(image);
}
