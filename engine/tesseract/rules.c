/* What is ink but no text: ruled lines and frames, boxes to tick, dust. Rules
 * make the layout analysis take tables for pictures; they are remembered,
 * since they part what stands on their two sides. */
#include "engine/tesseract/tesseract_i.h"

#include <string.h>

/* Long thin runs of ink in one direction, as a mask. */
static PIX *find_lines(PIX *ink, int length, int thick, bool across)
{
    PIX *runs =
        pixOpenBrick(NULL, ink, across ? length : 1, across ? 1 : length);
    PIX *bulk =
        runs ? pixOpenBrick(NULL, runs, across ? 1 : thick, across ? thick : 1)
             : NULL;

    if (bulk) {
        /* Thicker than a rule: a panel or a picture. */
        PIX *whole = pixSeedfillBinary(NULL, bulk, runs, 8);

        if (whole)
            pixSubtract(runs, runs, whole);
        pixDestroy(&whole);
    }
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

static void remove_lines(struct tess_image *image, bool across)
{
    int length = (int)(across ? 5 * image->xh : 4 * image->xh);
    int thick = 2 + (int)(image->xh * 0.45f);
    PIX *lines = find_lines(image->ink, length, thick, across);

    if (!lines)
        return;
    remember(image->rules, lines);
    erase(image, lines, across);
    pixDestroy(&lines);
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

/* A square outline with straight sides about as high as a capital. */
static bool is_tick_box(PIX *ink, float xh, int x, int y, int w, int h)
{
    int edge = h / 8 > 1 ? h / 8 : 2, in = h / 4;
    float low = 1.1f * xh, high = 2.6f * xh;

    if ((float)h < low || (float)h > high || w < h * 85 / 100 ||
        w > h * 115 / 100)
        return false;
    if (density(ink, x, y, w, edge) < 0.8f ||
        density(ink, x, y + h - edge, w, edge) < 0.8f ||
        density(ink, x, y, edge, h) < 0.8f ||
        density(ink, x + w - edge, y, edge, h) < 0.8f)
        return false;
    /* Hollow just inside of its sides, away from corners and middle. */
    return density(ink, x + edge + 1, y + in, edge, in) < 0.5f &&
           density(ink, x + w - 2 * edge - 1, y + in, edge, in) < 0.5f;
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

/* Dust is small and alone; dots and colons have letters near, if not as near
 * as in English. */
static void take_dust(struct tess_image *image)
{
    int tiny = (int)(image->xh * 0.34f), near = (int)(image->xh * 2);
    PIX *large = pixSelectBySize(image->ink, tiny, tiny, 8, L_SELECT_IF_EITHER,
                                 L_SELECT_IF_GTE, NULL);
    PIX *around =
        large ? pixDilateBrick(NULL, large, 2 * near + 1, near + 1) : NULL;
    PIX *dust = around ? pixSubtract(NULL, image->ink, around) : NULL;
    PIX *wide = dust ? pixDilateBrick(NULL, dust, 3, 3) : NULL;

    if (wide) {
        pixSubtract(image->ink, image->ink, wide);
        pixPaintThroughMask(image->gray, wide, 0, 0, 255);
    }
    pixDestroy(&large);
    pixDestroy(&around);
    pixDestroy(&dust);
    pixDestroy(&wide);
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
    remove_lines(image, true);
    remove_lines(image, false);
    take_dust(image);
}
