/* Rows that share columns: the white gaps that run through all of them. */
#include "engine/tesseract/layout_i.h"
#include "engine/tesseract/text.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    COLUMNS_MAX = 64
};

struct gap {
    int x0, x1;
    int support; /* rows with text on both sides of it */
};

struct gaps {
    struct gap at[COLUMNS_MAX];
    size_t n;
};

static bool text_left(const struct line *line, int x)
{
    return line->words[0]->box.x1 <= x;
}

static bool text_right(const struct line *line, int x)
{
    return line->words[line->n - 1]->box.x0 >= x;
}

/* Appends the parts of `gap` that are white in `line` too and at least `least`
 * wide: none if text runs through it, two if a cell stands in it. */
static void narrow(struct gaps *out, const struct line *line,
                   const struct gap *gap, int least)
{
    int from = gap->x0;

    for (size_t i = 0; i <= line->n; i++) {
        bool end = i == line->n;
        int to = end ? gap->x1 : line->words[i]->box.x0;

        to = to < gap->x1 ? to : gap->x1;
        if (to - from >= least && out->n < COLUMNS_MAX)
            out->at[out->n++] = (struct gap){
                from, to,
                gap->support + (text_left(line, from) && text_right(line, to))};
        if (!end && line->words[i]->box.x1 > from)
            from = line->words[i]->box.x1;
    }
}

/* The gaps of the first line, and the margins: cells may stand there too. */
static void begin(struct gaps *gaps, const struct line *line, int least)
{
    int from = INT_MIN / 2;

    gaps->n = 0;
    for (size_t i = 0; i <= line->n && gaps->n < COLUMNS_MAX; i++) {
        bool end = i == line->n;
        int to = end ? INT_MAX / 2 : line->words[i]->box.x0;

        if (to - from >= least)
            gaps->at[gaps->n++] = (struct gap){from, to, i > 0 && !end};
        if (!end)
            from = line->words[i]->box.x1;
    }
}

/* Least width of a gap to be left by one more line: wide gaps must not end
 * as the space between two words of a sentence. */
static int least_width(const struct gap *gap, float xh)
{
    float width = (float)gap->x1 - (float)gap->x0;

    return (int)(width > 5 * xh ? 1.6f * xh : 0.8f * xh);
}

/* Narrows the gaps to what `line` leaves white. False, and nothing changed,
 * if that would close one that the rows so far depend on. */
static bool extend(struct gaps *gaps, const struct line *line, float xh)
{
    struct gaps next = {.n = 0};

    for (size_t i = 0; i < gaps->n; i++) {
        const struct gap *gap = &gaps->at[i];
        bool strong =
            (float)(gap->x1 - gap->x0) > 1.8f * xh || gap->support > 2;
        size_t before = next.n;

        narrow(&next, line, gap, least_width(gap, xh));
        if (next.n == before && strong)
            return false;
    }
    if (!next.n)
        return false;
    *gaps = next;
    return true;
}

/* Cells of a line: index of the column of each word. */
static size_t column_of(const struct tess_word *word, const int *edges,
                        size_t columns)
{
    size_t c = 0;
    int x = (word->box.x0 + word->box.x1) / 2;

    while (c + 1 < columns && x > edges[c])
        c++;
    return c;
}

static size_t cells_filled(const struct line *line, const int *edges,
                           size_t columns)
{
    size_t n = 0, last = columns;

    for (size_t i = 0; i < line->n; i++) {
        size_t c = column_of(line->words[i], edges, columns);

        n += c != last;
        last = c;
    }
    return n;
}

/* The widest gap decides whether the lines are more than loosely set prose. */
static bool has_wide_gap(const struct line *line, float xh)
{
    for (size_t i = 1; i < line->n; i++)
        if ((float)(line->words[i]->box.x0 - line->words[i - 1]->box.x1) >
            1.8f * xh)
            return true;
    return false;
}

/* A line without wide gaps, larger or bolder than the row above: what it
 * heads is no longer this table. */
static bool heads_part(const struct line *lines, size_t i)
{
    const struct line *line = &lines[i], *above = line - 1;

    return !has_wide_gap(line, line->xh) && line->n <= 8 &&
           (line->xh > 1.12f * above->xh ||
            line->weight > 1.25f * above->weight);
}

/* How many lines from the first on fit together. */
static size_t grow(struct gaps *gaps, const struct line *lines, size_t n,
                   float xh)
{
    size_t rows = 1;
    float pitch = 0;

    begin(gaps, &lines[0], (int)(0.8f * xh));
    for (; gaps->n && rows < n; rows++) {
        float step = lines[rows].base - lines[rows - 1].base;

        if (heads_part(lines, rows))
            break;

        if (step > 7 * xh || (pitch > 0 && step > 2.2f * pitch))
            break;
        if (!extend(gaps, &lines[rows], xh))
            break;
        pitch = pitch > 0 && pitch < step ? pitch : step;
    }
    return rows;
}

/* Rows with text in column `c`. */
static size_t column_rows(const struct line *lines, size_t n, size_t c,
                          const int *edges, size_t columns)
{
    size_t rows = 0;

    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < lines[i].n; k++)
            if (column_of(lines[i].words[k], edges, columns) == c) {
                rows++;
                break;
            }
    return rows;
}

/* Keeps the gaps that part the text of at least two rows, and takes out
 * columns that only one row has: it is that row which is odd. */
static int *settle(struct gaps *gaps, const struct line *lines, size_t n,
                   size_t *columns)
{
    int *edges = malloc((gaps->n + 1) * sizeof(*edges));

    *columns = 1;
    for (size_t i = 0; edges && i < gaps->n; i++)
        if (gaps->at[i].support >= 2)
            edges[(*columns)++ - 1] = gaps->at[i].x0 / 2 + gaps->at[i].x1 / 2;
    for (size_t c = *columns; edges && n >= 4 && c-- > 0;) {
        if (*columns < 3 || column_rows(lines, n, c, edges, *columns) > 1)
            continue;
        for (size_t i = c ? c - 1 : 0; i + 2 < *columns; i++)
            edges[i] = edges[i + 1];
        --*columns;
    }
    return edges;
}

static bool ends_inside(const struct line *line, const int *edges,
                        size_t columns)
{
    return cells_filled(line, edges, columns) < 2;
}

/* "1. Name   Brown": the fields of a form, which are a list, not a table.
 * Amounts on the right make it one. */
static bool is_form(const struct line *lines, size_t n)
{
    size_t numbered = 0, figures = 0;

    for (size_t i = 0; i < n; i++) {
        numbered += text_is_number(lines[i].words[0]->text);
        figures += text_is_figure(lines[i].words[lines[i].n - 1]->text);
    }
    return n >= 3 && numbered * 10 >= n * 7 && figures * 2 < n;
}

size_t table_find(const struct line *lines, size_t n, float xh, int **edges,
                  size_t *columns)
{
    struct gaps gaps;
    size_t rows, full = 0;

    *edges = NULL;
    if (!has_wide_gap(&lines[0], xh))
        return 0;
    rows = grow(&gaps, lines, n, xh);
    if (rows < 2 || !(*edges = settle(&gaps, lines, rows, columns)))
        return 0;
    while (rows > 1 && ends_inside(&lines[rows - 1], *edges, *columns))
        rows--;
    for (size_t i = 0; i < rows; i++)
        full += cells_filled(&lines[i], *edges, *columns) >= 2;
    if (*columns >= 2 && rows >= 2 && full * 10 >= rows * 6) {
        if (*columns == 2 && is_form(lines, rows))
            *columns = 0;
        return rows;
    }
    free(*edges);
    *edges = NULL;
    return 0;
}

/* ---- writing ---- */

static void write_row(struct ocr_buf *out, const struct line *lines, size_t n,
                      const int *edges, size_t columns)
{
    for (size_t c = 0; c < columns; c++) {
        bool first = true;
        size_t start;

        ocr_buf_puts(out, c ? " | " : "| ");
        start = out->len;
        for (size_t l = 0; l < n; l++)
            for (size_t i = 0; i < lines[l].n; i++) {
                if (column_of(lines[l].words[i], edges, columns) != c)
                    continue;
                if (!first)
                    ocr_buf_putc(out, ' ');
                markdown_word(out, lines[l].words[i]->text, false, true);
                first = false;
            }
        markdown_close(out, start);
    }
    ocr_buf_puts(out, " |\n");
}

/* A head names its columns: no figures in it, or set bolder than the rest. */
static bool is_head(const struct line *lines, size_t n, const int *edges,
                    size_t columns)
{
    size_t figures = 0;

    if (cells_filled(&lines[0], edges, columns) + 1 < columns)
        return false;
    for (size_t i = 0; i < lines[0].n; i++)
        figures += text_is_figure(lines[0].words[i]->text);
    if (lines[0].weight > 1.2f * lines[n > 2 ? n / 2 : n - 1].weight)
        return true;
    return figures == 0 && columns > 2;
}

/* A line that goes on with the cells of the one above: fewer cells, none
 * where that has none, closer than the rows are to each other. */
static bool goes_on(const struct line *lines, size_t i, size_t n, float pitch,
                    const int *edges, size_t columns)
{
    bool above[COLUMNS_MAX + 1] = {false};
    float step = lines[i].base - lines[i - 1].base;

    (void)n;
    if (step > 0.8f * pitch ||
        column_of(lines[i].words[0], edges, columns) == 0)
        return false;
    for (size_t k = 0; k < lines[i - 1].n; k++)
        above[column_of(lines[i - 1].words[k], edges, columns)] = true;
    for (size_t k = 0; k < lines[i].n; k++)
        if (!above[column_of(lines[i].words[k], edges, columns)])
            return false;
    return cells_filled(&lines[i], edges, columns) <
           cells_filled(&lines[i - 1], edges, columns);
}

static int by_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static float row_pitch(const struct line *lines, size_t n, float xh)
{
    float *steps = malloc(n * sizeof(*steps)), pitch = 3 * xh;

    for (size_t i = 1; steps && i < n; i++)
        steps[i - 1] = lines[i].base - lines[i - 1].base;
    if (steps && n > 1) {
        qsort(steps, n - 1, sizeof(*steps), by_float);
        pitch = steps[(n - 1) / 2];
    }
    free(steps);
    return pitch;
}

void table_write(struct ocr_buf *out, const struct line *lines, size_t n,
                 const int *edges, size_t columns, const struct page *page)
{
    float pitch = row_pitch(lines, n, page->xh);
    size_t from = 0;

    if (is_head(lines, n, edges, columns)) {
        write_row(out, lines, 1, edges, columns);
        from = 1;
    } else {
        for (size_t c = 0; c < columns; c++)
            ocr_buf_puts(out, "|  ");
        ocr_buf_puts(out, "|\n");
    }
    for (size_t c = 0; c < columns; c++)
        ocr_buf_puts(out, c ? " | ---" : "| ---");
    ocr_buf_puts(out, " |\n");
    for (size_t i = from, to; i < n; i = to) {
        for (to = i + 1; to < n; to++)
            if (!goes_on(lines, to, n, pitch, edges, columns))
                break;
        write_row(out, lines + i, to - i, edges, columns);
    }
}
