/* engine/finish/finish_i.h - the steps of finishing; private to this folder.
 *
 *   clean    any bytes -> UTF-8 lines without control characters
 *   layout   lines -> lines, tables in one of two forms, blank lines squeezed
 *   guard    ends a tail that only repeats itself
 *   bound    at most OCR_PAGE_TEXT_MAX bytes
 *
 * ocr_finish repeats layout, guard and bound on the compact form until nothing
 * moves, then pads the tables. So finishing a finished text changes nothing.
 *
 * Layer:   engine.
 * Threads: no state. */
#ifndef OCR_FINISH_I_H
#define OCR_FINISH_I_H
#include "engine/base/buf.h"
#include "engine/finish.h"

#include <stdint.h>

/* ---- clean.c ------------------------------------------------------------ */

enum ocr_cleaned {
    OCR_CLEAN_KEEP,
    OCR_CLEAN_NEWLINE,
    OCR_CLEAN_DROP
};

/* What becomes of a character: kept, a line end, or nothing. */
enum ocr_cleaned ocr_clean_class(uint32_t cp);

/* Appends `text` as valid UTF-8 without control characters; what is not UTF-8
 * becomes U+FFFD, every kind of line end becomes '\n'. */
void ocr_clean(struct ocr_buf *out, const char *text, size_t len);

/* ---- width.c ------------------------------------------------------------ */

/* Columns of a terminal that valid UTF-8 takes: East Asian wide characters
 * two, combining marks none. */
uint32_t ocr_display_width(const char *text, size_t len);

/* ---- number.c ----------------------------------------------------------- */

enum ocr_quantity {
    OCR_QUANTITY_TEXT,
    OCR_QUANTITY_NUMBER,
    OCR_QUANTITY_NONE
};

/* Whether a cell is a number as people write it (1,558.00  1 558,00 EUR
 * -20%  (31.80)), nothing (empty, a dash), or text. */
enum ocr_quantity ocr_quantity(const char *text, size_t len);

/* ---- table.c ------------------------------------------------------------ */

/* More columns than this are no table: pipes are left alone, cells of HTML
 * go into the last column. */
enum {
    OCR_TABLE_COLUMNS = 128
};

enum ocr_align {
    OCR_ALIGN_NONE,
    OCR_ALIGN_LEFT,
    OCR_ALIGN_MID,
    OCR_ALIGN_RIGHT
};

struct ocr_cell {
    uint32_t at, len; /* in text */
};

struct ocr_row {
    uint32_t first, count; /* in cells; empty cells at the end are left out */
    bool head;             /* made of <th> or in <thead> */
};

struct ocr_table {
    struct ocr_buf text; /* of all cells */
    struct ocr_cell *cells;
    struct ocr_row *rows;
    size_t cell_count, cell_size, row_count, row_size;
    uint32_t columns;
    uint8_t align[OCR_TABLE_COLUMNS]; /* enum ocr_align */
    bool headless; /* a row of empty cells stands for the header */
    bool failed;   /* no memory */
};

void ocr_table_init(struct ocr_table *t);
void ocr_table_release(struct ocr_table *t);
void ocr_table_clear(struct ocr_table *t); /* empty, memory kept */

/* Begins a row; cells are added to the last row. */
void ocr_table_row(struct ocr_table *t, bool head);

/* Begins an empty cell: what is appended to t->text from now on is its text,
 * up to ocr_table_cell_end, which takes blanks off its end. */
void ocr_table_cell(struct ocr_table *t);
void ocr_table_cell_end(struct ocr_table *t);

/* Takes empty cells off the end of the last row. */
void ocr_table_row_end(struct ocr_table *t);

/* Aligns right the columns of numbers that say nothing else. */
void ocr_table_align(struct ocr_table *t);

/* Appends the table, each line with its newline; padded to columns or not. */
void ocr_table_write(const struct ocr_table *t, struct ocr_buf *out,
                     bool padded);

/* ---- pipes.c ------------------------------------------------------------ */

/* True if `line` and `next`, the line under it, begin a pipe table. */
bool ocr_pipes_begin(const char *line, size_t len, const char *next,
                     size_t next_len);

/* True if `line` goes on with one. */
bool ocr_pipes_row(const char *line, size_t len);

/* Reads the table at the beginning of `text` into the cleared *t. Returns the
 * bytes it takes. */
size_t ocr_pipes_read(struct ocr_table *t, const char *text, size_t len);

/* ---- html.c ------------------------------------------------------------- */

/* First `<table` tag in `line`, or NULL. */
const char *ocr_html_find(const char *line, size_t len);

/* True if the last table of `text` has no end tag. */
bool ocr_html_unclosed(const char *text, size_t len);

/* Reads the HTML table at the beginning of `text` into the cleared *t and its
 * caption into the empty buffer *caption. `spare` bounds the cells that spans
 * may add, over the whole text. Returns the bytes it takes; t->row_count is 0
 * if there was no cell in it. */
size_t ocr_html_read(struct ocr_table *t, struct ocr_buf *caption,
                     size_t *spare, const char *text, size_t len);

/* ---- layout.c ----------------------------------------------------------- */

/* Appends cleaned `text`, laid out, to *out. 0 or -ENOMEM. */
int ocr_layout(struct ocr_buf *out, const char *text, size_t len,
               enum ocr_tables tables, bool padded);

#endif
