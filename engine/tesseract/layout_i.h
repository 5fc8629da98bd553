/* engine/tesseract/layout_i.h - from words to lines, blocks and Markdown.
 *
 * Layer:   engine, plugin.
 * Threads: no state. */
#ifndef OCR_TESSERACT_LAYOUT_I_H
#define OCR_TESSERACT_LAYOUT_I_H
#include "engine/tesseract/tesseract_i.h"

/* What is the same for all of a page. */
struct page {
    float xh;     /* of the body text */
    float weight; /* stroke / x-height of the body text */
    BOXA *rules;
};

/* Words on one baseline, from left to right. */
struct line {
    struct tess_word **words;
    size_t n;
    struct tess_box box;
    float base;   /* y of the baseline */
    float xh;     /* x-height */
    float weight; /* stroke / x-height */
};

static inline void box_join(struct tess_box *box, const struct tess_box *other)
{
    box->x0 = other->x0 < box->x0 ? other->x0 : box->x0;
    box->y0 = other->y0 < box->y0 ? other->y0 : box->y0;
    box->x1 = other->x1 > box->x1 ? other->x1 : box->x1;
    box->y1 = other->y1 > box->y1 ? other->y1 : box->y1;
}

/* Lines of one part of the page, with what holds for all of them. */
struct region {
    struct line *lines;
    size_t n;
    struct tess_box box;
    float pitch; /* usual step from line to line of the body, in pixels */
};

struct writer {
    struct ocr_buf *out;
    struct page page;
    float largest; /* x-height of the largest heading: level 1 */
    int end;       /* where the last line of the page ends */
};

/* The step from the line before. */
static inline float region_step(const struct region *region, size_t i)
{
    return region->lines[i].base - region->lines[i - 1].base;
}

/* ---- blocks.c ---- */

/* Writes the lines of a region that are no table. */
void blocks_write(struct writer *w, const struct region *region);
/* A blank line in front of what comes next, unless it is the first. */
void blocks_gap(struct writer *w);

/* ---- lines.c ---- */

/* The lines of `n` words, from top to bottom. *out is malloc'd. */
int lines_make(struct line **out, size_t *n_out, struct tess_word **words,
               size_t n, const struct page *page);
void lines_free(struct line *lines, size_t n);
/* Fills box and sizes from the words. */
int line_measure(struct line *line, const struct page *page);

/* ---- gaps.c ---- */

enum {
    GAPS_MAX = 96
};

struct white {
    struct tess_box box;
    float score;
};

/* The tallest and widest white rectangles between the words, best first, at
 * most GAPS_MAX. Rules across the page end them. */
int gaps_find(struct white *gaps, size_t *n_out, const struct page *page,
              struct tess_word **words, size_t n);

/* ---- columns.c ---- */

/* Calls `each` for the parts of the page in reading order. The array is
 * sorted in place; `depth` is 0 for a page. */
int columns_divide(const struct page *page, struct tess_word **words, size_t n,
                   int depth,
                   int (*each)(void *arg, struct tess_word **words, size_t n),
                   void *arg);

/* ---- table.c ---- */

/* Lines from `at` on that share columns; 0: they do not. *edges gets the
 * x coordinates between the columns, malloc'd, *columns their number + 1; 0:
 * they share them, but are better read as lines. */
size_t table_find(const struct line *lines, size_t n, float xh, int **edges,
                  size_t *columns);
/* Writes them as a pipe table. */
void table_write(struct ocr_buf *out, const struct line *lines, size_t n,
                 const int *edges, size_t columns, const struct page *page);

/* ---- markdown.c ---- */

/* Appends a word; marks that would be read as Markdown are escaped. `first`:
 * it begins a line. */
void markdown_word(struct ocr_buf *out, const char *word, bool first,
                   bool in_table);
/* Ends the block or cell that began at `start`: stars and underscores that
 * would make emphasis together are escaped. */
void markdown_close(struct ocr_buf *out, size_t start);
/* Joins the next word: a space, or nothing after a broken word, whose hyphen
 * is taken back. */
void markdown_wrap(struct ocr_buf *out, const char *next);

#endif
