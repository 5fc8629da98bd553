/* What a person would do to a page before reading it out: light on dark turned
 * round, shadows evened out, straightened, small type under the glass. */
#include "engine/tesseract/tesseract_i.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum {
    INK = 170,                   /* darker than this on an even ground is ink */
    SIDE_MAX = 30000,            /* libtesseract keeps coordinates in 16 bits */
    AREA_MAX = 60 * 1000 * 1000, /* pixels: more is no better, only larger */
};

/* The recogniser was trained on type of about this x-height. */
static const float XH_GOOD = 21, XH_SMALL = 16, XH_LARGE = 60;
/* Smaller type does not survive among dots: what is left is dots, too. */
static const float XH_SPECKLED = 7;

static void row_to_gray(l_uint32 *line, const uint8_t *from, int width,
                        int channels)
{
    for (int x = 0; x < width; x++, from += channels) {
        unsigned v = from[0];

        if (channels == 3)
            v = (299u * from[0] + 587u * from[1] + 114u * from[2] + 500) / 1000;
        SET_DATA_BYTE(line, x, v);
    }
}

PIX *tess_gray(const struct ocr_image *image)
{
    int width = (int)image->width, height = (int)image->height;
    size_t row = (size_t)image->width * image->channels;
    PIX *gray = pixCreateNoInit(width, height, 8);

    if (!gray)
        return NULL;
    for (int y = 0; y < height; y++)
        row_to_gray(pixGetData(gray) + (size_t)y * (size_t)pixGetWpl(gray),
                    image->pixels + row * (size_t)y, width,
                    (int)image->channels);
    return gray;
}

/* The gray value below which `share` of the pixels lie. */
static int rank(PIX *gray, double share)
{
    int step = 1 + pixGetWidth(gray) / 1000;
    l_float32 value = 0;

    pixGetRankValueMasked(gray, NULL, 0, 0, step, (l_float32)share, &value,
                          NULL);
    return (int)value;
}

/* A page is dark if most of it is nearer to its darkest than to its lightest
 * parts. */
static bool is_dark(PIX *gray)
{
    int low = rank(gray, 0.005), middle = rank(gray, 0.5);
    int high = rank(gray, 0.995);

    return high - low > 24 && middle - low < (high - low) * 2 / 5 &&
           middle < 128;
}

/* The ground under the type: one pixel for each 8 x 8, small dark things
 * closed away. */
static PIX *ground(PIX *gray)
{
    PIX *small = pixScaleGrayRankCascade(gray, 3, 3, 3, 0);
    PIX *closed = small ? pixCloseGray(small, 9, 9) : NULL;
    PIX *smooth = closed ? pixBlockconv(closed, 2, 2) : NULL;

    pixDestroy(&small);
    pixDestroy(&closed);
    return smooth;
}

/* `*pix` becomes `next`; false if that is NULL. */
static bool replace(PIX **pix, PIX *next)
{
    pixDestroy(pix);
    *pix = next;
    return next != NULL;
}

/* Divides by the ground, so that it is white everywhere. Pages that are white
 * already, and ones too small to tell, stay as they are. */
static PIX *flatten(PIX *gray)
{
    PIX *under, *inverse = NULL, *flat = NULL;

    if (pixGetWidth(gray) < 64 || pixGetHeight(gray) < 64)
        return pixClone(gray);
    under = ground(gray);
    if (!under || rank(under, 0.01) >= 248) {
        pixDestroy(&under);
        return pixClone(gray);
    }
    /* A ground of 0 would be divided by. */
    pixAddConstantGray(under, 1);
    /* One more row and column for what 8 does not divide. */
    if (replace(&under, pixExtendByReplication(under, 1, 1)) &&
        (inverse = pixGetInvBackgroundMap(under, 250, 0, 0)))
        flat = pixApplyInvBackgroundGrayMap(gray, inverse, 8, 8);
    pixDestroy(&under);
    pixDestroy(&inverse);
    return flat ? flat : pixClone(gray);
}

/* Spreads the gray values where even the darkest ink is pale. */
static void deepen(PIX *gray)
{
    int low = rank(gray, 0.002), high = rank(gray, 0.7);

    if (low < 90 || high - low < 12)
        return;
    pixGammaTRC(gray, gray, 1.0f, low, high);
}

static int by_value(const void *a, const void *b)
{
    const int *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Among sorted heights, that of small letters. The median is it in running
 * text; where figures and capitals outnumber them, it is the smallest height
 * that many share. */
static int small_letters(const int *heights, int n)
{
    int median = heights[n / 2], from = 0;

    while (heights[from] * 100 < median * 64)
        from++;
    for (int i = from; heights[i] < median; i++) {
        int low = i, high = i;

        while (low > 0 && heights[low - 1] * 20 >= heights[i] * 19)
            low--;
        while (high < n && heights[high] * 20 <= heights[i] * 21)
            high++;
        if ((high - low) * 5 >= n)
            return heights[i];
    }
    return median;
}

float tess_blob_size(PIX *ink)
{
    BOXA *blobs = pixConnCompBB(ink, 8);
    int n = blobs ? boxaGetCount(blobs) : 0, used = 0;
    int tallest = pixGetHeight(ink);
    int *heights = n ? malloc((size_t)n * sizeof(*heights)) : NULL;
    float size = 0;

    for (int i = 0; heights && i < n; i++) {
        int w, h;

        boxaGetBoxGeometry(blobs, i, NULL, NULL, &w, &h);
        /* Letters: neither dust, nor rules, nor pictures. */
        if (h >= 4 && w >= 2 && h <= tallest && w <= 6 * h && h <= 8 * w)
            heights[used++] = h;
    }
    if (used >= 4) {
        qsort(heights, (size_t)used, sizeof(*heights), by_value);
        size = (float)small_letters(heights, used);
    }
    free(heights);
    boxaDestroy(&blobs);
    return size;
}

static PIX *ink_of(PIX *gray)
{
    return pixThresholdToBinary(gray, INK);
}

/* The angle by which the lines of type climb or fall, in degrees. */
static float skew(PIX *ink)
{
    l_float32 angle = 0, confidence = 0;

    if (pixGetWidth(ink) < 200 || pixGetHeight(ink) < 100)
        return 0;
    if (pixFindSkewSweepAndSearch(ink, &angle, &confidence, 2, 1, 7.0f, 1.0f,
                                  0.02f))
        return 0;
    return confidence < 3.0f || fabsf(angle) < 0.15f ? 0 : angle;
}

static PIX *straighten(PIX *gray, PIX *ink)
{
    float angle = skew(ink);

    if (angle == 0)
        return pixClone(gray);
    return pixRotate(gray, angle * (float)M_PI / 180, L_ROTATE_AREA_MAP,
                     L_BRING_IN_WHITE, 0, 0);
}

/* How much to enlarge type of x-height `xh`, within what fits a worker. */
static float enlargement(float xh, int width, int height)
{
    int side = width > height ? width : height;
    float factor = 1;

    if (xh > 0 && xh < XH_SMALL)
        factor = XH_GOOD / xh;
    else if (xh > XH_LARGE)
        factor = XH_LARGE / 2 / xh;
    if (factor > 4)
        factor = 4;
    if (factor > 1 && factor * factor * (float)width * (float)height > AREA_MAX)
        factor = sqrtf(AREA_MAX / ((float)width * (float)height));
    if (factor < 1 && xh < XH_SMALL)
        factor = 1;
    if ((float)side * factor > SIDE_MAX)
        factor = (float)SIDE_MAX / (float)side;
    return factor;
}

static PIX *scale(PIX *gray, float factor)
{
    if (factor > 0.95f && factor < 1.05f)
        return pixClone(gray);
    if (factor < 1)
        return pixScaleAreaMap(gray, factor, factor);
    return pixScaleGrayLI(gray, factor, factor);
}

static int guess_dpi(int told, float scale_by, float xh)
{
    int dpi = (int)((float)told * scale_by);

    /* 10 point type has an x-height of about 21 pixels at 300 dpi. */
    if (told < 70 || told > 1200)
        dpi = xh > 0 ? (int)(xh * 300 / 21) : 150;
    return dpi < 70 ? 70 : dpi > 2400 ? 2400 : dpi;
}

/* Upright, dark on white, even: the steps that need no enlarging. */
static PIX *clean(PIX *gray, float *xh, enum tess_speckle *speckle)
{
    PIX *page = is_dark(gray) ? pixInvert(NULL, gray) : pixCopy(NULL, gray);
    PIX *ink = NULL;

    if (!page || !(ink = ink_of(page)))
        goto out;
    *xh = tess_blob_size(ink);
    tess_panels_invert(page, *xh);
    if (!replace(&page, flatten(page)))
        goto out;
    deepen(page);
    *speckle = tess_speckle_remove(&page);
    if (!replace(&ink, ink_of(page)))
        goto out;
    *xh = tess_blob_size(ink);
    if (*speckle == TESS_SPECKLE_ALL ||
        (*speckle == TESS_SPECKLE_TAKEN && *xh < XH_SPECKLED))
        *xh = 0;
    replace(&page, straighten(page, ink));
out:
    pixDestroy(&ink);
    return page;
}

int tess_prepare(struct tess_image *out, PIX *gray, int dpi,
                 struct ocr_err *err)
{
    memset(out, 0, sizeof(*out));
    out->gray = tess_is_grain(gray) ? pixClone(gray)
                                    : clean(gray, &out->xh, &out->speckle);
    if (!out->gray)
        return ocr_err_set(err, -ENOMEM, "no memory to prepare a page");
    out->scale = 1;
    if (out->xh > 0)
        out->scale =
            enlargement(out->xh, pixGetWidth(gray), pixGetHeight(gray));
    out->xh *= out->scale;
    out->dpi = guess_dpi(dpi, out->scale, out->xh);
    if (replace(&out->gray, scale(out->gray, out->scale)))
        out->ink = ink_of(out->gray);
    if (!out->ink) {
        tess_image_release(out);
        return ocr_err_set(err, -ENOMEM, "no memory to enlarge a page");
    }
    tess_rules_remove(out);
    return 0;
}

void tess_image_release(struct tess_image *image)
{
    pixDestroy(&image->gray);
    pixDestroy(&image->ink);
    boxaDestroy(&image->rules);
    tess_words_release(&image->ticks);
    memset(image, 0, sizeof(*image));
}
