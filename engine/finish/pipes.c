#include "engine/finish/finish_i.h"

#include <string.h>

static bool blank(char c)
{
    return c == ' ' || c == '\t';
}

/* One row, as a reader that gives its cells one after the other. */
struct reader {
    const char *at, *end;
    bool over;
};

/* Takes indent, trailing blanks and the outer pipes off. */
static struct reader reader_of(const char *line, size_t len)
{
    struct reader r = {line, line + len, false};

    while (r.at < r.end && blank(*r.at))
        r.at++;
    while (r.end > r.at && blank(r.end[-1]))
        r.end--;
    if (r.at < r.end && *r.at == '|')
        r.at++;
    return r;
}

/* The next cell without the blanks around it. A backslash keeps the byte
 * behind it, so `\|` parts nothing. */
static bool next_cell(struct reader *r, const char **cell, size_t *len)
{
    const char *from = r->at, *to;

    if (r->over)
        return false;
    while (r->at < r->end && *r->at != '|')
        r->at += *r->at == '\\' && r->at + 1 < r->end ? 2 : 1;
    to = r->at;
    /* Over after the last cell, and after the closing pipe of the row. */
    r->over = r->at >= r->end || r->at + 1 == r->end;
    if (r->at < r->end)
        r->at++;
    while (from < to && blank(*from))
        from++;
    while (to > from && blank(to[-1]))
        to--;
    *cell = from;
    *len = (size_t)(to - from);
    return true;
}

/* Alignment of one cell of the line under the header; false: it is none. */
static bool delimiter(const char *cell, size_t len, enum ocr_align *align)
{
    const bool left = len > 0 && cell[0] == ':';
    const bool right = len > 1 && cell[len - 1] == ':';
    const size_t dashes = len - left - right;

    for (size_t i = left; i < left + dashes; i++)
        if (cell[i] != '-')
            return false;
    *align = left && right ? OCR_ALIGN_MID
             : left        ? OCR_ALIGN_LEFT
             : right       ? OCR_ALIGN_RIGHT
                           : OCR_ALIGN_NONE;
    return dashes > 0;
}

/* Columns of the delimiter row, 0 if it is none. */
static uint32_t delimiters(const char *line, size_t len,
                           uint8_t align[OCR_TABLE_COLUMNS])
{
    struct reader r = reader_of(line, len);
    uint32_t columns = 0;
    enum ocr_align a;
    const char *cell;
    size_t n;

    if (!memchr(line, '|', len))
        return 0;
    while (next_cell(&r, &cell, &n)) {
        if (columns == OCR_TABLE_COLUMNS || !delimiter(cell, n, &a))
            return 0;
        align[columns++] = (uint8_t)a;
    }
    return columns;
}

static bool indented(const char *line, size_t len)
{
    size_t n = 0;

    while (n < len && line[n] == ' ')
        n++;
    return n > 3 || (n < len && line[n] == '\t');
}

bool ocr_pipes_row(const char *line, size_t len)
{
    struct reader r = reader_of(line, len);
    uint32_t columns = 0;
    const char *cell;
    size_t n;

    if (indented(line, len) || !memchr(line, '|', len))
        return false;
    while (columns <= OCR_TABLE_COLUMNS && next_cell(&r, &cell, &n))
        columns++;
    return columns <= OCR_TABLE_COLUMNS;
}

bool ocr_pipes_begin(const char *line, size_t len, const char *next,
                     size_t next_len)
{
    uint8_t align[OCR_TABLE_COLUMNS];

    return ocr_pipes_row(line, len) && !indented(next, next_len) &&
           delimiters(next, next_len, align) > 0;
}

static void read_row(struct ocr_table *t, const char *line, size_t len)
{
    struct reader r = reader_of(line, len);
    const char *cell;
    size_t n;

    ocr_table_row(t, false);
    while (next_cell(&r, &cell, &n)) {
        ocr_table_cell(t);
        for (size_t i = 0; i < n; i++)
            ocr_buf_putc(&t->text, cell[i] == '\t' ? ' ' : cell[i]);
        ocr_table_cell_end(t);
    }
    ocr_table_row_end(t);
}

size_t ocr_pipes_read(struct ocr_table *t, const char *text, size_t len)
{
    size_t at = 0;

    for (size_t row = 0; at < len; row++) {
        const char *line = text + at, *end = memchr(line, '\n', len - at);
        const size_t n = end ? (size_t)(end - line) : len - at;

        if (row == 1)
            t->columns = delimiters(line, n, t->align);
        else if (ocr_pipes_row(line, n))
            read_row(t, line, n);
        else
            break;
        at += end ? n + 1 : n;
    }
    /* read_row(0) came before the delimiters: the wider of the two. */
    if (t->row_count && t->rows[0].count > t->columns)
        t->columns = t->rows[0].count;
    return at;
}
