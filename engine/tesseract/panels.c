/* Bars, buttons and table heads with light text on dark ground. A panel is a
 * dark area, solid somewhere over more than the strokes of the type, with
 * letters cut out of it. It becomes dark text on white like the rest. */
#include "engine/tesseract/tesseract_i.h"

enum {
    DARK = 128
};

/* Fills the holes of `panel` that are small enough for letters; returns how
 * many there were. */
static int fill_letters(PIX *panel, float xh)
{
    PIX *outside = pixInvert(NULL, panel);
    PIXA *parts = NULL;
    BOXA *boxes = outside ? pixConnComp(outside, &parts, 4) : NULL;
    int n = boxes ? boxaGetCount(boxes) : 0, letters = 0;
    int width = pixGetWidth(panel), height = pixGetHeight(panel);

    for (int i = 0; i < n; i++) {
        int x, y, w, h;
        PIX *part;

        boxaGetBoxGeometry(boxes, i, &x, &y, &w, &h);
        if (x == 0 || y == 0 || x + w == width || y + h == height)
            continue; /* open to the outside */
        if ((float)h > 6 * xh || (float)w > 40 * xh)
            continue;
        letters += h > 3;
        part = pixaGetPix(parts, i, L_CLONE);
        pixRasterop(panel, x, y, w, h, PIX_SRC | PIX_DST, part, 0, 0);
        pixDestroy(&part);
    }
    boxaDestroy(&boxes);
    pixaDestroy(&parts);
    pixDestroy(&outside);
    return letters;
}

/* True if the dark area with its holes filled is worth turning round: text in
 * it, or solid up to the edge of the page (the lid of a scanner). */
static bool is_panel(PIX *filled, int letters, bool at_edge)
{
    int width = pixGetWidth(filled), height = pixGetHeight(filled), area = 0;

    pixCountPixels(filled, &area, NULL);
    if (letters >= 3)
        return true;
    if (letters >= 1)
        return area > 0.85 * width * height && width >= 2 * height;
    return at_edge;
}

static void invert_one(PIX *gray, PIX *blob, BOX *box, float xh)
{
    int x, y, w, h, letters;
    PIX *panel = pixAddBorder(blob, 1, 0), *part, *mask;
    bool at_edge;

    if (!panel)
        return;
    boxGetGeometry(box, &x, &y, &w, &h);
    at_edge = x == 0 || y == 0 || x + w == pixGetWidth(gray) ||
              y + h == pixGetHeight(gray);
    letters = fill_letters(panel, xh);
    mask = pixRemoveBorder(panel, 1);
    if (mask && is_panel(mask, letters, at_edge)) {
        part = pixClipRectangle(gray, box, NULL);
        if (part) {
            pixInvert(part, part);
            pixCombineMaskedGeneral(gray, part, mask, x, y);
        }
        pixDestroy(&part);
    }
    pixDestroy(&mask);
    pixDestroy(&panel);
}

static void invert_all(PIX *gray, float xh)
{
    int brick = xh < 6 ? 14 : (int)(2.2f * xh);
    PIX *dark = pixThresholdToBinary(gray, DARK);
    PIX *seed = dark ? pixOpenCompBrick(NULL, dark, brick, brick) : NULL;
    PIX *solid = seed ? pixSeedfillBinary(NULL, seed, dark, 8) : NULL;
    PIXA *blobs = NULL;
    BOXA *boxes = solid ? pixConnComp(solid, &blobs, 8) : NULL;
    int n = boxes ? boxaGetCount(boxes) : 0;

    for (int i = 0; i < n; i++) {
        BOX *box = boxaGetBox(boxes, i, L_CLONE);
        PIX *blob = pixaGetPix(blobs, i, L_CLONE);

        invert_one(gray, blob, box, xh < 6 ? 6 : xh);
        boxDestroy(&box);
        pixDestroy(&blob);
    }
    boxaDestroy(&boxes);
    pixaDestroy(&blobs);
    pixDestroy(&solid);
    pixDestroy(&seed);
    pixDestroy(&dark);
}

void tess_panels_invert(PIX *gray, float xh)
{
    invert_all(gray, xh);
    /* A light button in a dark bar came out dark. */
    invert_all(gray, xh);
}
