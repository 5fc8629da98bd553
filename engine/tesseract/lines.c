/* Words to lines. libtesseract's own lines end at wide gaps, so that a row of
 * a table is several; what stands on one baseline is put together again. */
#include "engine/tesseract/layout_i.h"
#include "engine/tesseract/text.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The y of the baseline under a word. */
static float word_base(const struct tess_word *word, float xh)
{
    float size = word->xh > 0 ? word->xh : xh; /* NOLINT: a line has words */

    if (word->bullet || strspn(word->text, "-*'\"") == strlen(word->text))
        return (float)(word->box.y0 + word->box.y1) / 2 + 0.5f * size;
    return (float)word->box.y1 - text_depth(word->text) * size;
}

static int by_place(const void *a, const void *b)
{
    const struct tess_word *x = *(struct tess_word *const *)a;
    const struct tess_word *y = *(struct tess_word *const *)b;
    int dx = x->box.x0 - y->box.x0;

    if (x->line != y->line)
        return x->line < y->line ? -1 : 1;
    return dx;
}

static int by_x(const void *a, const void *b)
{
    const struct tess_word *x = *(struct tess_word *const *)a;
    const struct tess_word *y = *(struct tess_word *const *)b;

    return x->box.x0 - y->box.x0;
}

static int by_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static float median(float *values, size_t n)
{
    if (!n)
        return 0;
    qsort(values, n, sizeof(*values), by_float);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

int line_measure(struct line *line, const struct page *page)
{
    float *values = malloc(line->n * sizeof(*values));
    size_t sizes = 0, weights = 0;

    if (!values)
        return -ENOMEM;
    line->box = line->words[0]->box;
    for (size_t i = 0; i < line->n; i++) {
        box_join(&line->box, &line->words[i]->box);
        if (line->words[i]->xh > 0 && !line->words[i]->bullet)
            values[sizes++] = line->words[i]->xh;
    }
    line->xh = sizes ? median(values, sizes) : page->xh;
    for (size_t i = 0; i < line->n; i++)
        values[i] = word_base(line->words[i], line->xh);
    line->base = median(values, line->n);
    for (size_t i = 0; i < line->n; i++)
        if (line->words[i]->stroke > 0 && !line->words[i]->bullet &&
            text_alnum(line->words[i]->text) > 1)
            values[weights++] = line->words[i]->stroke / line->xh;
    line->weight = median(values, weights);
    free(values);
    return 0;
}

/* The words of one line of libtesseract. */
static int fragments_make(struct line *lines, size_t *n_out,
                          struct tess_word **words, size_t n,
                          const struct page *page)
{
    size_t k = 0;
    int code = 0;

    for (size_t i = 0, to; code == 0 && i < n; i = to) {
        for (to = i + 1; to < n && words[to]->line == words[i]->line; to++)
            ;
        lines[k].n = to - i;
        lines[k].words = malloc((to - i) * sizeof(*words));
        if (!lines[k].words)
            return -ENOMEM;
        memcpy(lines[k].words, words + i, (to - i) * sizeof(*words));
        code = line_measure(&lines[k], page);
        *n_out = ++k;
    }
    return code;
}

static int overlap(int a0, int a1, int b0, int b1)
{
    return (a1 < b1 ? a1 : b1) - (a0 > b0 ? a0 : b0);
}

/* The two words of the lines that are nearest to each other; returns by how
 * much they overlap, negative if there is room between them. */
static int nearest(const struct line *a, const struct line *b,
                   const struct tess_word **u, const struct tess_word **v)
{
    int best = INT_MIN;

    for (size_t i = 0; i < a->n; i++)
        for (size_t j = 0; j < b->n; j++) {
            const struct tess_word *x = a->words[i], *y = b->words[j];
            int over = overlap(x->box.x0, x->box.x1, y->box.x0, y->box.x1);

            if (over <= best)
                continue;
            best = over;
            *u = x;
            *v = y;
        }
    return best;
}

/* True if the lines stand on one baseline. Where they are nearest counts:
 * skew and bent paper move the far ends apart. */
static bool same_row(const struct line *a, const struct line *b, float xh)
{
    const struct tess_word *u = NULL, *v = NULL;
    float small = a->xh < b->xh ? a->xh : b->xh, step;

    if (nearest(a, b, &u, &v) > (int)(0.5f * xh) || !u || !v)
        return false;
    step = fabsf(word_base(u, xh) - word_base(v, xh));
    if (fabsf(a->base - b->base) < step)
        step = fabsf(a->base - b->base);
    return step < 0.5f * small;
}

static int merge(struct line *into, struct line *from, const struct page *page)
{
    size_t n = into->n + from->n;
    struct tess_word **words = realloc(into->words, n * sizeof(*words));

    if (!words)
        return -ENOMEM;
    memcpy(words + into->n, from->words, from->n * sizeof(*words));
    qsort(words, n, sizeof(*words), by_x);
    into->words = words;
    into->n = n;
    free(from->words);
    from->words = NULL;
    from->n = 0;
    return line_measure(into, page);
}

static int by_base(const void *a, const void *b)
{
    const struct line *x = a, *y = b;

    return (x->base > y->base) - (x->base < y->base);
}

/* Puts fragments on one baseline together; each with its nearest first. */
static int rows_make(struct line *lines, size_t *n, const struct page *page)
{
    size_t kept = 0;
    int code = 0;

    qsort(lines, *n, sizeof(*lines), by_base);
    for (size_t i = 0; i < *n; i++) {
        float reach = 2.5f * (lines[i].xh > page->xh ? lines[i].xh : page->xh);

        for (size_t j = i + 1; code == 0 && lines[i].n && j < *n; j++) {
            if (lines[j].n && lines[j].base > lines[i].base + reach)
                break;
            if (lines[j].n && same_row(&lines[i], &lines[j], page->xh)) {
                code = merge(&lines[i], &lines[j], page);
                j = i;
            }
        }
    }
    for (size_t i = 0; i < *n; i++)
        if (lines[i].n)
            lines[kept++] = lines[i];
    *n = kept;
    qsort(lines, *n, sizeof(*lines), by_base);
    return code;
}

int lines_make(struct line **out, size_t *n_out, struct tess_word **words,
               size_t n, const struct page *page)
{
    struct tess_word **sorted = malloc((n + 1) * sizeof(*sorted));
    int code = 0;

    *n_out = 0;
    *out = calloc(n + 1, sizeof(**out));
    if (!*out || !sorted)
        code = -ENOMEM;
    if (!code) {
        memcpy(sorted, words, n * sizeof(*sorted));
        qsort(sorted, n, sizeof(*sorted), by_place);
        code = fragments_make(*out, n_out, sorted, n, page);
    }
    if (!code)
        code = rows_make(*out, n_out, page);
    free(sorted);
    if (code) {
        lines_free(*out, *n_out);
        *out = NULL;
        *n_out = 0;
    }
    return code;
}

void lines_free(struct line *lines, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(lines[i].words);
    free(lines);
}
