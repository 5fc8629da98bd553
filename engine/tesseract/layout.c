/* Blocks: paragraphs, headings, list items, tables, and lines that stay
 * lines. A break between two lines is soft if the next word would not have
 * fitted, hard if it would: the writer wanted it. */
#include "engine/tesseract/layout_i.h"
#include "engine/tesseract/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct writer {
    struct ocr_buf *out;
    struct page page;
    float largest; /* x-height of the largest heading: level 1 */
};

/* Lines of one region, with what holds for all of them. */
struct region {
    struct line *lines;
    size_t n;
    struct tess_box box;
    float pitch; /* usual step from line to line, in x-heights */
};

enum kind {
    PARAGRAPH,
    HEADING,
    ITEM
};

static int by_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* ---- lines ---- */

static float step(const struct region *region, size_t i)
{
    return region->lines[i].base - region->lines[i - 1].base;
}

/* The step that most lines of running text keep: a low quartile, since blank
 * lines only ever add. */
static float usual_pitch(const struct region *region)
{
    float *steps = malloc((region->n + 1) * sizeof(*steps)), pitch = 2.6f;
    size_t n = 0;

    for (size_t i = 1; steps && i < region->n; i++) {
        float s = step(region, i) / region->lines[i].xh;

        if (s > 1.5f && s < 5)
            steps[n++] = s;
    }
    if (n >= 3) {
        qsort(steps, n, sizeof(*steps), by_float);
        pitch = steps[n / 4];
    }
    free(steps);
    return pitch;
}

static bool is_bold(const struct writer *w, const struct line *line)
{
    return w->page.weight > 0 && line->weight > 1.22f * w->page.weight;
}

/* "- ", "1. ": a mark, a gap, and text behind it. */
static bool is_item(const struct line *line)
{
    if (line->n < 2)
        return false;
    return line->words[0]->bullet || text_is_number(line->words[0]->text);
}

/* True if the first word of `next` would not have fitted behind `line`. */
static bool is_soft(const struct region *region, const struct line *line,
                    const struct line *next)
{
    const struct tess_word *word = next->words[0];
    float room = (float)(region->box.x1 - line->box.x1);

    return room < (float)(word->box.x1 - word->box.x0) + 1.2f * line->xh;
}

/* ---- blocks ---- */

/* True if lines [from, i) are full but for the last, as those of a paragraph
 * are. */
static bool ends_prose(const struct region *region, size_t from, size_t i)
{
    if (i - from < 2 || region->lines[from].n < 5)
        return false;
    for (size_t k = from + 1; k < i; k++)
        if (!is_soft(region, &region->lines[k - 1], &region->lines[k]))
            return false;
    return !is_soft(region, &region->lines[i - 1], &region->lines[i]);
}

static bool begins_block(const struct writer *w, const struct region *region,
                         size_t from, size_t i)
{
    const struct line *line = &region->lines[i], *prev = line - 1;
    const struct line *first = &region->lines[from];
    float small = line->xh < prev->xh ? line->xh : prev->xh;
    float large = line->xh > prev->xh ? line->xh : prev->xh;
    float usual = region->pitch * large;

    if (i - from >= 2)
        usual = region->lines[from + 1].base - first->base;
    if (step(region, i) > 1.3f * usual)
        return true;
    if (large > 1.25f * small && text_alnum(line->words[0]->text) > 0)
        return true;
    if (is_bold(w, line) != is_bold(w, prev))
        return true;
    if (is_item(line) &&
        (is_item(first) || is_soft(region, prev, line) == false))
        return true;
    if (ends_prose(region, from, i))
        return true;
    /* The first line of a paragraph set in. */
    return !is_item(first) && is_soft(region, prev, line) &&
           (float)(line->box.x0 - prev->box.x0) > 1.5f * small &&
           (float)(line->box.x0 - prev->box.x0) < 6 * small;
}

static size_t block_end(const struct writer *w, const struct region *region,
                        size_t from)
{
    size_t i = from + 1;

    while (i < region->n && !begins_block(w, region, from, i))
        i++;
    return i;
}

static size_t count_words(const struct region *region, size_t from, size_t to)
{
    size_t n = 0;

    for (size_t i = from; i < to; i++)
        n += region->lines[i].n;
    return n;
}

static size_t count_letters(const struct line *line)
{
    size_t n = 0;

    for (size_t i = 0; i < line->n; i++)
        n += text_alnum(line->words[i]->text);
    return n;
}

/* Lines that end where the widest one does, give or take a letter. */
static bool is_justified(const struct region *region, size_t from, size_t to)
{
    int right = region->lines[from].box.x1;
    size_t n = 0;

    for (size_t i = from; i < to; i++)
        if (region->lines[i].box.x1 > right)
            right = region->lines[i].box.x1;
    for (size_t i = from; i < to; i++)
        n += (float)(right - region->lines[i].box.x1) < region->lines[i].xh;
    return n >= 3 && 2 * n >= to - from;
}

/* Short lines that begin like names and numbers do: an address, whose
 * longest line only looks as if it had been full. */
static bool looks_listed(const struct line *line, const struct line *next)
{
    const char *text = next->words[0]->text;
    uint32_t c = text_next(&text);

    return line->n <= 5 && !text_is_lower(c) && c != '(';
}

/* The writer's own line breaks: as many as the soft ones or more. */
static bool keeps_lines(const struct region *region, size_t from, size_t to)
{
    bool prose = is_justified(region, from, to);
    size_t hard = 0;

    for (size_t i = from + 1; i < to; i++) {
        const struct line *line = &region->lines[i - 1], *next = line + 1;

        hard += !is_soft(region, line, next) ||
                (!prose && looks_listed(line, next));
    }
    return hard * 2 >= to - from - 1 && hard > 0;
}

/* Bold over an address or a few entries, set as tight as they are, is only
 * their first line. */
static bool heads_lines(const struct writer *w, const struct region *region,
                        size_t at)
{
    size_t end;

    if (at >= region->n || is_item(&region->lines[at]))
        return false;
    end = block_end(w, region, at);
    return end - at > 1 && keeps_lines(region, at, end) &&
           step(region, at) < 1.15f * step(region, at + 1);
}

/* A heading stands alone, is short, and larger or bolder than the body. */
static bool is_heading(const struct writer *w, const struct region *region,
                       size_t from, size_t to)
{
    const struct line *line = &region->lines[from];
    const struct line *last = &region->lines[to - 1];
    const char *end = last->words[last->n - 1]->text;
    char mark = end[strlen(end) - 1];
    bool larger = line->xh > 1.2f * w->page.xh;
    bool apart = from == 0 || step(region, from) > 3.1f * line->xh ||
                 line->xh > 1.08f * w->page.xh;

    if (to - from > 3 || count_words(region, from, to) > 16 ||
        count_letters(line) < 3 || line->words[0]->bullet)
        return false;
    if (mark == ',' || mark == ';' || (mark == '.' && !larger))
        return false;
    if (line->xh < 0.9f * w->page.xh)
        return false;
    return larger || (is_bold(w, line) && apart && !heads_lines(w, region, to));
}

static enum kind kind_of(const struct writer *w, const struct region *region,
                         size_t from, size_t to)
{
    if (is_heading(w, region, from, to))
        return HEADING;
    return is_item(&region->lines[from]) ? ITEM : PARAGRAPH;
}

/* ---- writing ---- */

static void write_words(struct writer *w, const struct line *line, size_t from)
{
    for (size_t i = from; i < line->n; i++) {
        if (i > from)
            ocr_buf_putc(w->out, ' ');
        markdown_word(w->out, line->words[i]->text, i == 0, false);
    }
}

static void write_heading(struct writer *w, const struct region *region,
                          size_t from, size_t to)
{
    const struct line *line = &region->lines[from];

    ocr_buf_puts(w->out, line->xh > 0.85f * w->largest ? "# " : "## ");
    for (size_t i = from; i < to; i++) {
        if (i > from)
            ocr_buf_putc(w->out, ' ');
        write_words(w, &region->lines[i], 0);
    }
    ocr_buf_puts(w->out, "\n");
}

static void write_lines(struct writer *w, const struct region *region,
                        size_t from, size_t to)
{
    bool keep = keeps_lines(region, from, to);

    for (size_t i = from; i < to; i++) {
        if (i > from && keep)
            ocr_buf_putc(w->out, '\n');
        else if (i > from)
            markdown_wrap(w->out, region->lines[i].words[0]->text);
        write_words(w, &region->lines[i], 0);
    }
    ocr_buf_puts(w->out, "\n");
}

static void write_item(struct writer *w, const struct region *region,
                       size_t from, size_t to)
{
    const struct tess_word *mark = region->lines[from].words[0];

    ocr_buf_puts(w->out, mark->bullet ? "-" : mark->text);
    ocr_buf_putc(w->out, ' ');
    for (size_t i = from; i < to; i++) {
        if (i > from)
            markdown_wrap(w->out, region->lines[i].words[0]->text);
        write_words(w, &region->lines[i], i == from ? 1 : 0);
    }
    ocr_buf_puts(w->out, "\n");
}

/* Blocks stand apart by a blank line, the items of a list do not. */
static void write_gap(struct writer *w, bool tight)
{
    if (w->out->len && !tight)
        ocr_buf_putc(w->out, '\n');
}

static void write_blocks(struct writer *w, const struct region *region)
{
    bool after_item = false;

    for (size_t from = 0, to; from < region->n; from = to) {
        enum kind kind;
        size_t start;

        to = block_end(w, region, from);
        kind = kind_of(w, region, from, to);
        write_gap(w, kind == ITEM && after_item);
        start = w->out->len;
        if (kind == HEADING)
            write_heading(w, region, from, to);
        else if (kind == ITEM)
            write_item(w, region, from, to);
        else
            write_lines(w, region, from, to);
        markdown_close(w->out, start);
        after_item = kind == ITEM;
    }
}

/* ---- regions ---- */

static void region_measure(struct region *region)
{
    region->box = region->lines[0].box;
    for (size_t i = 1; i < region->n; i++)
        box_join(&region->box, &region->lines[i].box);
    region->pitch = usual_pitch(region);
}

/* Lines [from, to) as blocks; the margins are those of the whole region. */
static void write_part(struct writer *w, const struct region *region,
                       size_t from, size_t to)
{
    struct region part = *region;

    part.lines += from;
    part.n = to - from;
    if (part.n)
        write_blocks(w, &part);
}

static void write_region(struct writer *w, const struct region *region)
{
    size_t from = 0, i = 0;

    while (i < region->n) {
        int *edges;
        size_t columns;
        size_t rows = table_find(region->lines + i, region->n - i, w->page.xh,
                                 &edges, &columns);

        if (!rows) {
            i++;
            continue;
        }
        write_part(w, region, from, i);
        write_gap(w, false);
        table_write(w->out, region->lines + i, rows, edges, columns, &w->page);
        free(edges);
        from = i += rows;
    }
    write_part(w, region, from, region->n);
}

static int each_region(void *arg, struct tess_word **words, size_t n)
{
    struct region region = {0};
    int code = lines_make(&region.lines, &region.n, words, n,
                          &((struct writer *)arg)->page);

    if (code == 0 && region.n) {
        region_measure(&region);
        write_region(arg, &region);
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
