/* What the first look left out. libtesseract drops parts of lines, or takes a
 * column of figures for one word that runs downwards. Ink that no word covers
 * is put together with the line it stands in, and that line is read alone. */
#include "engine/tesseract/tesseract_i.h"
#include "engine/tesseract/text.h"

#include <errno.h>
#include <stdlib.h>
#include <tesseract/capi.h>

enum {
    PLACES_MAX = 400,
    MANY = 12, /* places: reading all of the page again is cheaper */
    LOOKS_MAX = 60
};

/* A line to be read again. */
struct place {
    struct tess_box box;
    bool gone; /* became part of another */
};

struct places {
    struct place at[PLACES_MAX];
    size_t n;
};

static int width_of(const struct tess_box *box)
{
    return box->x1 - box->x0;
}

static int height_of(const struct tess_box *box)
{
    return box->y1 - box->y0;
}

static void join(struct tess_box *box, const struct tess_box *other)
{
    box->x0 = other->x0 < box->x0 ? other->x0 : box->x0;
    box->y0 = other->y0 < box->y0 ? other->y0 : box->y0;
    box->x1 = other->x1 > box->x1 ? other->x1 : box->x1;
    box->y1 = other->y1 > box->y1 ? other->y1 : box->y1;
}

/* Several letters in a box higher than wide: read downwards, and wrong. */
static bool runs_down(const struct tess_word *word, float xh)
{
    int w = width_of(&word->box), h = height_of(&word->box);

    return (float)h > 3 * xh && h > 2 * w && text_letters(word->text) > 1;
}

static void drop_runs_down(struct tess_words *words, float xh)
{
    size_t kept = 0;

    for (size_t i = 0; i < words->n; i++) {
        if (runs_down(&words->at[i], xh))
            free(words->at[i].text);
        else
            words->at[kept++] = words->at[i];
    }
    words->n = kept;
}

/* Ink that no word covers, run together to lines. */
static BOXA *left_out(const struct tess_image *image,
                      const struct tess_words *words)
{
    PIX *rest = pixCopy(NULL, image->ink), *runs, *text;
    int xh = (int)image->xh, by = xh / 4;
    BOXA *boxes = NULL;

    for (size_t i = 0; rest && i < words->n; i++) {
        const struct tess_box *at = &words->at[i].box;
        BOX *box = boxCreate(at->x0 - by, at->y0 - by, width_of(at) + 2 * by,
                             height_of(at) + 2 * by);

        if (box)
            pixClearInRect(rest, box);
        boxDestroy(&box);
    }
    text = rest ? pixSelectBySize(rest, 0, xh * 4 / 5, 8, L_SELECT_HEIGHT,
                                  L_SELECT_IF_GTE, NULL)
                : NULL;
    runs = text ? pixCloseCompBrick(NULL, text, 2 * xh, 1) : NULL;
    if (runs)
        boxes = pixConnCompBB(runs, 8);
    pixDestroy(&rest);
    pixDestroy(&text);
    pixDestroy(&runs);
    return boxes;
}

/* Side by side on one line, no further apart than columns. */
static bool on_line(const struct tess_box *a, const struct tess_box *b,
                    float xh)
{
    int top = a->y0 > b->y0 ? a->y0 : b->y0;
    int end = a->y1 < b->y1 ? a->y1 : b->y1;
    int low = height_of(a) < height_of(b) ? height_of(a) : height_of(b);
    int apart =
        (a->x0 > b->x0 ? a->x0 : b->x0) - (a->x1 < b->x1 ? a->x1 : b->x1);

    return (end - top) * 2 > low && (float)apart < 2.5f * xh;
}

/* Lets the place grow over the words of its line; true if it did. */
static bool grow(struct place *place, const struct tess_words *words, float xh)
{
    bool grew = false;

    for (size_t i = 0; i < words->n; i++) {
        const struct tess_box *box = &words->at[i].box;
        bool inside = box->x0 >= place->box.x0 && box->x1 <= place->box.x1 &&
                      box->y0 >= place->box.y0 && box->y1 <= place->box.y1;

        if (inside || (float)height_of(box) > 3 * xh ||
            !on_line(&place->box, box, xh))
            continue;
        join(&place->box, box);
        grew = true;
    }
    return grew;
}

static void add_place(struct places *places, struct tess_box box,
                      const struct tess_words *words, float xh)
{
    struct place *place = &places->at[places->n];

    if (places->n == PLACES_MAX || (float)height_of(&box) > 4 * xh ||
        (float)width_of(&box) < 0.3f * xh)
        return;
    *place = (struct place){box, false};
    while (grow(place, words, xh) && height_of(&place->box) < 4 * xh)
        ;
    places->n++;
}

static void add_left_out(struct places *places, const struct tess_image *image,
                         const struct tess_words *words)
{
    BOXA *boxes = left_out(image, words);
    int n = boxes ? boxaGetCount(boxes) : 0;

    for (int i = 0; i < n; i++) {
        int x, y, w, h;

        boxaGetBoxGeometry(boxes, i, &x, &y, &w, &h);
        add_place(places, (struct tess_box){x, y, x + w, y + h}, words,
                  image->xh);
    }
    boxaDestroy(&boxes);
}

/* One word torn in two: "52." in one line of libtesseract and "73" in
 * another, with no space between. */
static bool is_torn(const struct tess_word *a, const struct tess_word *b,
                    float xh)
{
    float apart = (float)(b->box.x0 - a->box.x1);

    return a->line != b->line && apart > -0.3f * xh && apart < 0.75f * xh &&
           on_line(&a->box, &b->box, xh);
}

static void add_torn(struct places *places, const struct tess_words *words,
                     float xh)
{
    for (size_t i = 0; i < words->n; i++)
        for (size_t j = 0; j < words->n; j++) {
            struct tess_box box = words->at[i].box;

            if (!is_torn(&words->at[i], &words->at[j], xh))
                continue;
            join(&box, &words->at[j].box);
            add_place(places, box, words, xh);
        }
}

/* Places on one line are one. */
static void merge_places(struct places *places, float xh)
{
    for (size_t i = 0; i < places->n; i++)
        for (size_t j = i + 1; j < places->n && !places->at[i].gone; j++)
            if (!places->at[j].gone &&
                on_line(&places->at[i].box, &places->at[j].box, xh)) {
                join(&places->at[j].box, &places->at[i].box);
                places->at[i].gone = true;
            }
}

static bool within(const struct tess_word *word, const struct tess_box *box)
{
    int x = (word->box.x0 + word->box.x1) / 2;
    int y = (word->box.y0 + word->box.y1) / 2;

    return x >= box->x0 && x < box->x1 && y >= box->y0 && y < box->y1;
}

/* Letters read with confidence: what a reading is worth. */
static float gain(const struct tess_words *words, const struct tess_box *box)
{
    float sum = 0;

    for (size_t i = 0; i < words->n; i++)
        if (!box || within(&words->at[i], box))
            sum +=
                (words->at[i].conf - 40) * (float)text_alnum(words->at[i].text);
    return sum;
}

/* Puts `found` in the place of what was read there before. */
static int exchange(struct tess_words *words, struct tess_words *found,
                    const struct tess_box *box)
{
    size_t kept = 0;

    for (size_t i = 0; i < words->n; i++) {
        if (within(&words->at[i], box))
            free(words->at[i].text);
        else
            words->at[kept++] = words->at[i];
    }
    words->n = kept;
    words->lines = found->lines;
    for (size_t i = 0; i < found->n; i++) {
        struct tess_word *word = tess_words_add(words);

        if (!word)
            return -ENOMEM;
        *word = found->at[i];
        found->at[i].text = NULL;
    }
    return 0;
}

static PIX *cut_out(const struct tess_image *image, struct tess_box *box,
                    int margin)
{
    BOX *clip =
        boxCreate(box->x0 - margin, box->y0 - margin,
                  width_of(box) + 2 * margin, height_of(box) + 2 * margin);
    BOX *real = NULL;
    PIX *part = clip ? pixClipRectangle(image->gray, clip, &real) : NULL;
    PIX *framed = part ? pixAddBorder(part, margin, 255) : NULL;

    if (framed)
        boxGetGeometry(real, &box->x0, &box->y0, NULL, NULL);
    box->x0 -= margin;
    box->y0 -= margin;
    boxDestroy(&clip);
    boxDestroy(&real);
    pixDestroy(&part);
    return framed;
}

static int look_again(struct tess_reader *reader,
                      const struct tess_image *image, struct tess_words *words,
                      const struct tess_box *box, const atomic_bool *cancel,
                      struct ocr_err *err)
{
    struct tess_words found = {.lines = words->lines};
    struct tess_box origin = *box;
    PIX *part = cut_out(image, &origin, (int)image->xh / 2);
    int code = -ENOMEM;

    if (part)
        code = tess_reader_read(reader, part, image->dpi, PSM_SINGLE_LINE, NULL,
                                cancel, &found, err);
    pixDestroy(&part);
    for (size_t i = 0; i < found.n; i++) {
        struct tess_box *at = &found.at[i].box;

        *at = (struct tess_box){at->x0 + origin.x0, at->y0 + origin.y0,
                                at->x1 + origin.x0, at->y1 + origin.y0};
    }
    if (code == 0 && gain(&found, NULL) > gain(words, box))
        code = exchange(words, &found, box);
    tess_words_release(&found);
    return code;
}

/* Reads the whole page as one block, which loses no lines but may run columns
 * together; keeps that if it is the better reading. */
static int read_as_block(struct tess_reader *reader,
                         const struct tess_image *image,
                         struct tess_words *words, const atomic_bool *cancel,
                         struct ocr_err *err)
{
    struct tess_words found = {0};
    int code = tess_reader_read(reader, image->gray, image->dpi,
                                PSM_SINGLE_BLOCK, NULL, cancel, &found, err);

    drop_runs_down(&found, image->xh);
    if (code == 0 && gain(&found, NULL) > gain(words, NULL)) {
        struct tess_words old = *words;

        *words = found;
        found = old;
    }
    tess_words_release(&found);
    return code;
}

/* Finds the places that were left out. */
static void look_for(struct places *places, const struct tess_image *image,
                     const struct tess_words *words)
{
    places->n = 0;
    add_left_out(places, image, words);
    add_torn(places, words, image->xh);
    merge_places(places, image->xh);
}

static int look_at(struct places *places, struct tess_reader *reader,
                   const struct tess_image *image, struct tess_words *words,
                   const atomic_bool *cancel, struct ocr_err *err)
{
    int code = 0, looks = 0;

    for (size_t i = 0; code == 0 && i < places->n && looks < LOOKS_MAX; i++) {
        const struct tess_box *box = &places->at[i].box;

        if (places->at[i].gone || (float)height_of(box) > 5 * image->xh ||
            (float)width_of(box) < 0.6f * image->xh)
            continue;
        looks++;
        code = look_again(reader, image, words, box, cancel, err);
    }
    return code;
}

int tess_rescue(struct tess_reader *reader, const struct tess_image *image,
                struct tess_words *words, const atomic_bool *cancel,
                struct ocr_err *err)
{
    struct places *places = calloc(1, sizeof(*places));
    int code = 0;

    if (!places)
        return ocr_err_set(err, -ENOMEM, "no memory to look again");
    drop_runs_down(words, image->xh);
    look_for(places, image, words);
    if (places->n > MANY) {
        code = read_as_block(reader, image, words, cancel, err);
        look_for(places, image, words);
    }
    if (code == 0)
        code = look_at(places, reader, image, words, cancel, err);
    free(places);
    return code;
}
