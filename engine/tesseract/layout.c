/* A page of words: divided into regions, each a run of tables and of lines
 * that make blocks. */
#include "engine/tesseract/layout_i.h"
#include "engine/tesseract/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int by_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* The step that most lines of the body keep: a low quartile, since blank lines
 * only ever add. */
static float usual_pitch(const struct region *region, float xh)
{
    float *steps = malloc((region->n + 1) * sizeof(*steps)), pitch = 2.6f * xh;
    size_t n = 0;

    for (size_t i = 1; steps && i < region->n; i++) {
        float step = region_step(region, i), size = region->lines[i].xh;

        if (step > 1.5f * xh && step < 5 * xh && size > 0.85f * xh &&
            size < 1.15f * xh)
            steps[n++] = step;
    }
    if (n >= 3) {
        qsort(steps, n, sizeof(*steps), by_float);
        pitch = steps[n / 4];
    }
    free(steps);
    return pitch;
}

/* ---- regions ---- */

static void region_measure(struct region *region, float xh)
{
    region->box = region->lines[0].box;
    for (size_t i = 1; i < region->n; i++)
        box_join(&region->box, &region->lines[i].box);
    region->pitch = usual_pitch(region, xh);
}

static bool is_large(const struct writer *w, const struct line *line)
{
    return line->xh > 1.3f * w->page.xh;
}

/* Appends the parts of a row that wide gaps make, if it is mostly type larger
 * than the body: "Invoice" beside the name of a firm is two headings.
 * The parts borrow the words of the row. */
static size_t split_row(const struct writer *w, const struct line *row,
                        struct line *out)
{
    size_t n = 0, from = 0, large = 0;

    for (size_t i = 1; i <= row->n; i++) {
        if (i < row->n && (float)(row->words[i]->box.x0 -
                                  row->words[i - 1]->box.x1) < 3.2f * row->xh)
            continue;
        out[n] = (struct line){.words = row->words + from, .n = i - from};
        if (line_measure(&out[n], &w->page))
            break;
        large += is_large(w, &out[n++]);
        from = i;
    }
    if (from == row->n && 2 * large >= n)
        return n;
    out[0] = *row;
    return 1;
}

/* Lines [from, to) as blocks; the margins are those of the whole region. */
static int write_part(struct writer *w, const struct region *region,
                      size_t from, size_t to)
{
    struct region part = *region;
    size_t most = 1;

    for (size_t i = from; i < to; i++)
        most += region->lines[i].n;
    part.n = 0;
    part.lines = malloc(most * sizeof(*part.lines));
    if (!part.lines)
        return -ENOMEM;
    for (size_t i = from; i < to; i++)
        part.n += split_row(w, &region->lines[i], part.lines + part.n);
    blocks_write(w, &part);
    free(part.lines);
    return 0;
}

static int write_region(struct writer *w, const struct region *region)
{
    size_t from = 0, i = 0;
    int code = 0;

    while (code == 0 && i < region->n) {
        int *edges;
        size_t columns = 1;
        size_t rows = table_find(region->lines + i, region->n - i, w->page.xh,
                                 &edges, &columns);

        if (!rows || !columns) {
            free(edges);
            i += rows ? rows : 1;
            continue;
        }
        code = write_part(w, region, from, i);
        blocks_gap(w);
        table_write(w->out, region->lines + i, rows, edges, columns, &w->page);
        free(edges);
        from = i += rows;
    }
    return code ? code : write_part(w, region, from, region->n);
}

static int each_region(void *arg, struct tess_word **words, size_t n)
{
    struct region region = {0};
    int code = lines_make(&region.lines, &region.n, words, n,
                          &((struct writer *)arg)->page);

    if (code == 0 && region.n) {
        region_measure(&region, ((struct writer *)arg)->page.xh);
        code = write_region(arg, &region);
    }
    lines_free(region.lines, region.n);
    return code;
}

/* ---- the page ---- */

/* Size and weight of the body: the medians over letters, so that a table of
 * small figures or a bold heading does not count as much as the text. */
static void page_measure(struct writer *w, const struct tess_words *words)
{
    float *values = malloc((words->n + 1) * sizeof(*values));
    size_t n = 0;

    w->page.xh = tess_words_xh(words, w->page.xh);
    for (size_t i = 0; values && i < words->n; i++) {
        const struct tess_word *word = &words->at[i];

        if (word->box.y1 > w->end)
            w->end = word->box.y1;
        if (word->xh > 0.8f * w->page.xh && word->xh < 1.25f * w->page.xh &&
            word->stroke > 0 && text_alnum(word->text) > 1)
            values[n++] = word->stroke / word->xh;
        if (word->xh > w->largest && word->xh > 1.2f * w->page.xh &&
            text_alnum(word->text) > 2)
            w->largest = word->xh;
    }
    if (n) {
        qsort(values, n, sizeof(*values), by_float);
        w->page.weight = values[n * 2 / 5];
    }
    free(values);
}

int tess_layout(struct ocr_buf *out, struct tess_words *words,
                const struct tess_image *image, struct ocr_err *err)
{
    struct writer w = {.out = out};
    struct tess_word **order = malloc((words->n + 1) * sizeof(*order));
    int code = 0;

    if (!order)
        return ocr_err_set(err, -ENOMEM, "no memory to lay out a page");
    w.page.xh = image->xh;
    w.page.rules = image->rules;
    page_measure(&w, words);
    for (size_t i = 0; i < words->n; i++)
        order[i] = &words->at[i];
    code = columns_divide(&w.page, order, words->n, 0, each_region, &w);
    free(order);
    return code ? ocr_err_set(err, code, "no memory to lay out a page") : 0;
}
