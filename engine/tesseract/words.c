/* Words as libtesseract gives them: how large, how bold, how believable. */
#include "engine/tesseract/tesseract_i.h"
#include "engine/tesseract/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tess_word *tess_words_add(struct tess_words *words)
{
    struct tess_word *word;

    if (words->n == words->size) {
        size_t size = words->size ? 2 * words->size : 256;
        void *at = realloc(words->at, size * sizeof(*words->at));

        if (!at)
            return NULL;
        words->at = at;
        words->size = size;
    }
    word = &words->at[words->n++];
    memset(word, 0, sizeof(*word));
    return word;
}

void tess_words_release(struct tess_words *words)
{
    for (size_t i = 0; i < words->n; i++)
        free(words->at[i].text);
    free(words->at);
    memset(words, 0, sizeof(*words));
}

float tess_words_confidence(const struct tess_words *words)
{
    double sum = 0, letters = 0;

    for (size_t i = 0; i < words->n; i++) {
        double n = (double)text_letters(words->at[i].text);

        sum += words->at[i].conf * n;
        letters += n;
    }
    return letters > 0 ? (float)(sum / letters) : 0;
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static int space_after(const struct tess_words *words, size_t i)
{
    return words->at[i + 1].box.x0 - words->at[i].box.x1;
}

/* The usual space between two words of a line. */
static float usual_space(const struct tess_words *words, float xh)
{
    float *spaces = malloc((words->n + 1) * sizeof(*spaces)), usual = 0;
    size_t n = 0;

    for (size_t i = 0; spaces && i + 1 < words->n; i++) {
        float space = (float)space_after(words, i);

        if (words->at[i].line == words->at[i + 1].line && space > 0 &&
            space < 3 * xh)
            spaces[n++] = space;
    }
    if (n) {
        qsort(spaces, n, sizeof(*spaces), by_size);
        usual = spaces[n / 2];
    }
    free(spaces);
    return usual;
}

/* "52." and "10", "maeve" and "-bakes": marks that stand free in type of one
 * width are taken for the end of a word. */
static bool may_join(const char *a, const char *b)
{
    size_t n = strlen(a);
    char end = a[n - 1], before = n > 1 ? a[n - 2] : ' ';
    bool digits = *b >= '0' && *b <= '9';

    if (strchr(".,:", end))
        return digits && before >= '0' && before <= '9';
    if (strchr("-@/", end))
        return n == 1 || text_alnum(b) > 0;
    return strchr("-@/", *b) ||
           (strchr(".,", *b) && text_has_digit(b) && end >= '0' && end <= '9');
}

static bool join_next(struct tess_words *words, size_t i)
{
    struct tess_word *a = &words->at[i], *b = a + 1;
    char *text;

    if (asprintf(&text, "%s%s", a->text, b->text) < 0)
        return false;
    free(a->text);
    free(b->text);
    a->text = text;
    a->conf = a->conf < b->conf ? a->conf : b->conf;
    a->box.x1 = b->box.x1;
    a->box.y0 = a->box.y0 < b->box.y0 ? a->box.y0 : b->box.y0;
    a->box.y1 = a->box.y1 > b->box.y1 ? a->box.y1 : b->box.y1;
    memmove(b, b + 1, (words->n - i - 2) * sizeof(*b));
    words->n--;
    return true;
}

void tess_words_join(struct tess_words *words, float xh)
{
    float usual = usual_space(words, xh);

    for (size_t i = 0; i + 1 < words->n; i++)
        while (i + 1 < words->n && words->at[i].line == words->at[i + 1].line &&
               (float)space_after(words, i) < 0.6f * usual &&
               may_join(words->at[i].text, words->at[i + 1].text))
            if (!join_next(words, i))
                return;
}

/* Ink and its outline within the box of a word. */
static void count_ink(PIX *ink, const struct tess_box *box, int *area,
                      int *outline)
{
    BOX *clip =
        boxCreate(box->x0, box->y0, box->x1 - box->x0, box->y1 - box->y0);
    PIX *part = clip ? pixClipRectangle(ink, clip, NULL) : NULL;
    PIX *inner = part ? pixErodeBrick(NULL, part, 3, 3) : NULL;
    int left = 0;

    *area = *outline = 0;
    if (inner) {
        pixCountPixels(part, area, NULL);
        pixCountPixels(inner, &left, NULL);
        *outline = *area - left;
    }
    boxDestroy(&clip);
    pixDestroy(&part);
    pixDestroy(&inner);
}

/* Dots, squares and dashes in front of list items are read as letters ("e",
 * "¢"). They are lower than any letter, and full of ink. */
static bool is_bullet(const struct tess_word *word, float xh, int area)
{
    float w = (float)(word->box.x1 - word->box.x0);
    float h = (float)(word->box.y1 - word->box.y0);

    if (text_is_bullet(word->text))
        return true;
    if (text_letters(word->text) > 2 || xh <= 0)
        return false;
    return w < 1.1f * xh && h < 0.85f * xh && w > 0.2f * xh && h > 0.2f * xh &&
           w < 1.5f * h && h < 1.5f * w && (float)area > 0.6f * w * h;
}

float tess_words_xh(const struct tess_words *words, float otherwise)
{
    float *sizes = malloc((words->n + 1) * sizeof(*sizes)), xh = otherwise;
    size_t n = 0;

    for (size_t i = 0; sizes && i < words->n; i++)
        if (words->at[i].xh > 0)
            sizes[n++] = words->at[i].xh;
    if (n) {
        qsort(sizes, n, sizeof(*sizes), by_size);
        xh = sizes[n / 2];
    }
    free(sizes);
    return xh;
}

void tess_words_measure(struct tess_words *words, PIX *ink)
{
    float xh;

    for (size_t i = 0; i < words->n; i++) {
        struct tess_word *word = &words->at[i];
        float factor = text_height(word->text);

        if (factor > 0)
            word->xh = (float)(word->box.y1 - word->box.y0) / factor;
    }
    xh = tess_words_xh(words, 0);
    for (size_t i = 0; i < words->n; i++) {
        struct tess_word *word = &words->at[i];
        int area, outline;

        count_ink(ink, &word->box, &area, &outline);
        if (outline > 0)
            word->stroke = 2.0f * (float)area / (float)outline;
        word->bullet = is_bullet(word, xh, area);
    }
}

/* True if words of the same line stand before and behind. */
static bool is_inner(const struct tess_words *words, size_t i)
{
    int line = words->at[i].line;

    return i > 0 && i + 1 < words->n && words->at[i - 1].line == line &&
           words->at[i + 1].line == line;
}

/* What libtesseract makes of dashed lines, frames, stains and photographs.
 * Words of letters in a line that is believed are kept, even bad ones. */
static bool is_rubbish(const struct tess_word *word, bool inner, float xh)
{
    float h = (float)(word->box.y1 - word->box.y0);
    size_t letters = text_alnum(word->text);

    if (word->bullet)
        return false;
    if (text_is_rule(word->text))
        return true;
    if (inner && letters > 0)
        return false;
    if (letters == 0)
        return word->conf < (inner ? 25 : 40) || (xh > 0 && h > 4 * xh);
    return letters < 3 && word->conf < 30;
}

static void drop(struct tess_words *words, size_t i)
{
    free(words->at[i].text);
    words->at[i].text = NULL;
}

/* True if some word has the size of type and looks like a word or number. */
static bool has_shape(const struct tess_words *words, size_t from, size_t to,
                      float xh)
{
    for (size_t i = from; i < to; i++) {
        float h = (float)(words->at[i].box.y1 - words->at[i].box.y0);

        if (h > 0.8f * xh && h < 2.2f * xh && text_alnum(words->at[i].text) > 3)
            return true;
    }
    return false;
}

/* A line none of whose words is believed is a stain. */
static void drop_line(struct tess_words *words, size_t from, size_t to,
                      float xh)
{
    float least = has_shape(words, from, to, xh) ? 25 : 38;
    double sum = 0, n = 0;

    for (size_t i = from; i < to; i++) {
        double letters = (double)text_letters(words->at[i].text);

        sum += words->at[i].conf * letters;
        n += letters;
    }
    if (n > 0 && sum / n >= least)
        return;
    for (size_t i = from; i < to; i++)
        drop(words, i);
}

/* The space to the next word of the line on one side; large at its end. */
static int space_beside(const struct tess_words *words, size_t i, int side)
{
    const struct tess_word *word = &words->at[i];
    size_t k = side < 0 ? i - 1 : i + 1;

    if (k >= words->n || words->at[k].line != word->line)
        return 1 << 20;
    return side < 0 ? word->box.x0 - words->at[k].box.x1
                    : words->at[k].box.x0 - word->box.x1;
}

/* "|" is often an "I": as high as one, in a line of words that go on small.
 * Taller ones that stand apart are what is left of a rule. */
static void judge_bar(struct tess_words *words, size_t i, float xh)
{
    struct tess_word *word = &words->at[i];
    float h = (float)(word->box.y1 - word->box.y0);
    const char *next = "";

    if (!word->text || strcmp(word->text, "|") != 0)
        return;
    if (i + 1 < words->n && words->at[i + 1].text &&
        words->at[i + 1].line == word->line)
        next = words->at[i + 1].text;
    if (h > 2.6f * xh ||
        (h > 1.9f * xh && ((float)space_beside(words, i, -1) > 1.8f * xh ||
                           (float)space_beside(words, i, 1) > 1.8f * xh)))
        drop(words, i);
    else if (text_is_lower(text_next(&next)))
        word->text[0] = 'I';
}

void tess_words_clean(struct tess_words *words, float xh)
{
    size_t kept = 0;

    for (size_t i = 0, to; i < words->n; i = to) {
        for (to = i + 1; to < words->n; to++)
            if (words->at[to].line != words->at[i].line)
                break;
        drop_line(words, i, to, xh);
    }
    for (size_t i = 0; i < words->n; i++)
        judge_bar(words, i, xh);
    for (size_t i = 0; i < words->n; i++)
        if (words->at[i].text &&
            is_rubbish(&words->at[i], is_inner(words, i), xh))
            drop(words, i);
    for (size_t i = 0; i < words->n; i++)
        if (words->at[i].text)
            words->at[kept++] = words->at[i];
    words->n = kept;
}
