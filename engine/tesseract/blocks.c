/* Blocks: paragraphs, headings, list items, and lines that stay lines. A break
 * between two lines is soft if the next word would not have fitted, hard if it
 * would: the writer wanted it. */
#include "engine/tesseract/layout_i.h"
#include "engine/tesseract/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    PARAGRAPH,
    HEADING,
    ITEM
};

/* ---- lines ---- */

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

/* True if `line` goes on with the list item that begins at `first`: full line
 * before it, and not further left than the item. */
static bool continues_item(const struct region *region,
                           const struct line *first, const struct line *line)
{
    const struct line *prev = line - 1;
    float hang = (float)(line->box.x0 - first->words[1]->box.x0);

    if ((float)(first->box.x0 - line->box.x0) > 0.7f * line->xh)
        return false;
    return is_soft(region, prev, line) ||
           (hang > -0.7f * line->xh && hang < 0.7f * line->xh);
}

/* The step that the next line of one paragraph takes. */
static float usual_step(const struct writer *w, const struct region *region,
                        size_t from, size_t i, float xh)
{
    if (i - from >= 2)
        return region->lines[from + 1].base - region->lines[from].base;
    return region->pitch * (xh > 1.15f * w->page.xh ? xh / w->page.xh : 1);
}

static bool begins_block(const struct writer *w, const struct region *region,
                         size_t from, size_t i)
{
    const struct line *line = &region->lines[i], *prev = line - 1;
    const struct line *first = &region->lines[from];
    float small = line->xh < prev->xh ? line->xh : prev->xh;
    float large = line->xh > prev->xh ? line->xh : prev->xh;
    float step = region_step(region, i);

    if (step > 1.22f * usual_step(w, region, from, i, large) ||
        step < 0.5f * small)
        return true;
    if (text_alnum(line->words[0]->text) > 0 &&
        (large > 1.25f * small ||
         (large > 1.1f * small && step > 1.15f * region->pitch)))
        return true;
    if (is_bold(w, line) != is_bold(w, prev))
        return true;
    if (is_item(first) &&
        (is_item(line) || !continues_item(region, first, line)))
        return true;
    if (is_item(line) && !is_soft(region, prev, line))
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
           region_step(region, at) < 1.15f * region_step(region, at + 1);
}

/* A little larger than the body is enough where it stands apart and smaller
 * type follows. */
static bool heads_smaller(const struct writer *w, const struct region *region,
                          size_t from, size_t to)
{
    float xh = region->lines[from].xh;

    return to < region->n && xh > 1.1f * w->page.xh &&
           region->lines[to].xh < 0.93f * xh &&
           (from == 0 || region_step(region, from) > 1.3f * region->pitch);
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
    bool apart = from == 0 || region_step(region, from) > 3.1f * line->xh ||
                 line->xh > 1.08f * w->page.xh;

    if (to - from > 3 || count_words(region, from, to) > 16 ||
        count_letters(line) < 3 || line->words[0]->bullet)
        return false;
    if (mark == ',' || mark == ';')
        return false;
    /* What a sentence says, or what ends the page, heads nothing. */
    if ((mark == '.' || last->box.y1 >= w->end) &&
        line->xh < 1.35f * w->page.xh)
        return false;
    if (line->xh < 0.9f * w->page.xh)
        return false;
    return larger || heads_smaller(w, region, from, to) ||
           (is_bold(w, line) && apart && !heads_lines(w, region, to));
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

    bool first = line->xh > 0.85f * w->largest && line->xh > 1.15f * w->page.xh;

    ocr_buf_puts(w->out, first ? "# " : "## ");
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

static void write_block(struct writer *w, const struct region *region,
                        size_t from, size_t to, enum kind kind)
{
    size_t start = w->out->len;

    if (kind == HEADING)
        write_heading(w, region, from, to);
    else if (kind == ITEM)
        write_item(w, region, from, to);
    else
        write_lines(w, region, from, to);
    markdown_close(w->out, start);
}

void blocks_gap(struct writer *w)
{
    if (w->out->len)
        ocr_buf_putc(w->out, '\n');
}

void blocks_write(struct writer *w, const struct region *region)
{
    bool after_item = false;

    for (size_t from = 0, to; from < region->n; from = to) {
        enum kind kind;

        to = block_end(w, region, from);
        kind = kind_of(w, region, from, to);
        /* The items of a list stand together. */
        if (kind != ITEM || !after_item)
            blocks_gap(w);
        write_block(w, region, from, to, kind);
        after_item = kind == ITEM;
    }
}
