/* Salt and pepper, dust, the grain of a bad copy: dots that no letter is made
 * of. libtesseract lays out each of them, which takes minutes if there are a
 * hundred thousand, and leaves the letters between them unread. */
#include "engine/tesseract/tesseract_i.h"

#include <stdlib.h>

enum {
    INK = 170,   /* as in prepare.c */
    DOT = 3,     /* pixels a side at most */
    LETTER = 7,  /* pixels high at least: lower ones may be dots that touch */
    MANY = 5000, /* dots on a page that no printer makes, ... */
    RATHER = 4,  /* ... and so many for each letter */
    MEDIANS = 2, /* each takes away what is alone among 9 pixels */
    HOPELESS = 8 /* dots for each letter that stay where there is no text */
};

enum {
    SAMPLES = 200 * 1000, /* pixels looked at */
    STANDS_OUT = 60,      /* gray values from the median of its surroundings */
    GRAIN_SHARE = 20      /* per cent; of print at most 8, of noise 25 and up */
};

/* The median of the 9 pixels around x, y. */
static int median_at(PIX *gray, int x, int y)
{
    int sorted[9], n = 0;

    for (int dy = -1; dy <= 1; dy++) {
        const l_uint32 *line =
            pixGetData(gray) + (size_t)(y + dy) * (size_t)pixGetWpl(gray);

        for (int dx = -1; dx <= 1; dx++) {
            const int v = GET_DATA_BYTE(line, x + dx);
            int at = n++;

            for (; at > 0 && sorted[at - 1] > v; at--)
                sorted[at] = sorted[at - 1];
            sorted[at] = v;
        }
    }
    return sorted[4];
}

bool tess_is_grain(PIX *gray)
{
    const int width = pixGetWidth(gray), height = pixGetHeight(gray);
    const int64_t pixels = (int64_t)width * height;
    const int64_t step = pixels > SAMPLES ? pixels / SAMPLES | 1 : 1;
    int64_t looked = 0, out = 0;

    if (width < 64 || height < 64)
        return false;
    for (int64_t i = 0; i < pixels; i += step) {
        const int x = (int)(i % width), y = (int)(i / width);
        const l_uint32 *line =
            pixGetData(gray) + (size_t)y * (size_t)pixGetWpl(gray);

        if (x == 0 || y == 0 || x == width - 1 || y == height - 1)
            continue;
        looked++;
        out += abs(GET_DATA_BYTE(line, x) - median_at(gray, x, y)) > STANDS_OUT;
    }
    return out * 100 > looked * GRAIN_SHARE;
}

struct marks {
    int dots, letters;
};

static struct marks count(PIX *ink)
{
    BOXA *boxes = pixConnCompBB(ink, 8);
    const int n = boxes ? boxaGetCount(boxes) : 0;
    struct marks m = {0};

    for (int i = 0; i < n; i++) {
        int w, h;

        boxaGetBoxGeometry(boxes, i, NULL, NULL, &w, &h);
        if (w <= DOT && h <= DOT)
            m.dots++;
        else if (h >= LETTER && w <= 6 * h && h <= 8 * w)
            m.letters++;
    }
    boxaDestroy(&boxes);
    return m;
}

static bool is_speckled(const struct marks *m)
{
    return m->dots >= MANY && m->dots / RATHER >= m->letters;
}

/* Counts the dots of *gray, 8 bits. */
static struct marks look(PIX *gray)
{
    PIX *ink = pixThresholdToBinary(gray, INK);
    struct marks m = {0};

    if (ink)
        m = count(ink);
    pixDestroy(&ink);
    return m;
}

/* Whitens the dots and the gray around them, nothing else. */
static void wipe(PIX *gray)
{
    PIX *ink = pixThresholdToBinary(gray, INK);
    PIX *dots = ink ? pixSelectBySize(ink, DOT, DOT, 8, L_SELECT_IF_BOTH,
                                      L_SELECT_IF_LTE, NULL)
                    : NULL;
    PIX *around = dots ? pixDilateBrick(NULL, dots, 3, 3) : NULL;

    if (around && pixXor(ink, ink, dots) && pixSubtract(around, around, ink))
        pixSetMasked(gray, around, 255);
    pixDestroy(&ink);
    pixDestroy(&dots);
    pixDestroy(&around);
}

enum tess_speckle tess_speckle_remove(PIX **gray)
{
    struct marks m = look(*gray);

    if (!is_speckled(&m))
        return TESS_SPECKLE_NONE;
    for (int i = 0; i < MEDIANS && m.dots >= MANY; i++) {
        PIX *median = pixMedianFilter(*gray, 3, 3);

        if (!median)
            break;
        pixDestroy(gray);
        *gray = median;
        m = look(median);
    }
    if (m.dots >= MANY && m.dots / HOPELESS >= m.letters)
        return TESS_SPECKLE_ALL;
    wipe(*gray);
    return TESS_SPECKLE_TAKEN;
}
