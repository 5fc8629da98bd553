#include "engine/finish/finish_i.h"

#include <stdlib.h>
#include <string.h>

void ocr_table_init(struct ocr_table *t)
{
    *t = (struct ocr_table){0};
    ocr_buf_init(&t->text, UINT32_MAX);
}

void ocr_table_release(struct ocr_table *t)
{
    ocr_buf_release(&t->text);
    free(t->cells);
    free(t->rows);
    ocr_table_init(t);
}

void ocr_table_clear(struct ocr_table *t)
{
    ocr_buf_reset(&t->text);
    t->cell_count = t->row_count = 0;
    t->columns = 0;
    t->headless = t->failed = false;
    memset(t->align, OCR_ALIGN_NONE, sizeof t->align);
}

/* Room for one more element in a growing array; NULL: no memory. */
static void *grown(void *array, size_t count, size_t *size, size_t element)
{
    const size_t want = *size ? *size * 2 : 64;
    void *moved;

    if (count < *size)
        return array;
    moved = realloc(array, want * element);
    if (moved)
        *size = want;
    return moved;
}

void ocr_table_row(struct ocr_table *t, bool head)
{
    struct ocr_row *rows =
        grown(t->rows, t->row_count, &t->row_size, sizeof *rows);

    if (!rows) {
        t->failed = true;
        return;
    }
    t->rows = rows;
    rows[t->row_count++] =
        (struct ocr_row){.first = (uint32_t)t->cell_count, .head = head};
}

void ocr_table_cell(struct ocr_table *t)
{
    struct ocr_cell *cells;

    if (t->failed)
        return;
    cells = grown(t->cells, t->cell_count, &t->cell_size, sizeof *cells);
    if (!cells) {
        t->failed = true;
        return;
    }
    t->cells = cells;
    cells[t->cell_count++] = (struct ocr_cell){.at = (uint32_t)t->text.len};
    t->rows[t->row_count - 1].count++;
}

void ocr_table_cell_end(struct ocr_table *t)
{
    struct ocr_cell *cell;
    size_t end = t->text.len;

    if (t->failed || t->cell_count == 0)
        return;
    cell = &t->cells[t->cell_count - 1];
    while (end > cell->at && t->text.data[end - 1] == ' ')
        end--;
    cell->len = (uint32_t)(end - cell->at);
}

void ocr_table_row_end(struct ocr_table *t)
{
    struct ocr_row *row;

    if (t->failed || t->row_count == 0)
        return;
    row = &t->rows[t->row_count - 1];
    while (row->count > 1 && t->cells[row->first + row->count - 1].len == 0) {
        row->count--;
        t->cell_count--;
    }
    if (row->count > t->columns)
        t->columns = row->count;
}

static const struct ocr_cell *cell_at(const struct ocr_table *t, size_t row,
                                      uint32_t column)
{
    static const struct ocr_cell empty = {0, 0};
    const struct ocr_row *r = &t->rows[row];

    return column < r->count ? &t->cells[r->first + column] : &empty;
}

static const char *text_of(const struct ocr_table *t,
                           const struct ocr_cell *cell)
{
    return cell->len ? t->text.data + cell->at : "";
}

void ocr_table_align(struct ocr_table *t)
{
    bool text[OCR_TABLE_COLUMNS] = {false}, number[OCR_TABLE_COLUMNS] = {false};

    for (size_t r = t->headless ? 0 : 1; r < t->row_count; r++) {
        if (t->rows[r].head)
            continue;
        for (uint32_t c = 0; c < t->rows[r].count; c++) {
            const struct ocr_cell *cell = cell_at(t, r, c);
            const enum ocr_quantity q =
                text[c] ? OCR_QUANTITY_TEXT
                        : ocr_quantity(text_of(t, cell), cell->len);
            text[c] = q == OCR_QUANTITY_TEXT;
            number[c] = number[c] || q == OCR_QUANTITY_NUMBER;
        }
    }
    for (uint32_t c = 0; c < t->columns; c++)
        if (t->align[c] == OCR_ALIGN_NONE && number[c] && !text[c])
            t->align[c] = OCR_ALIGN_RIGHT;
}

/* ---- writing ------------------------------------------------------------ */

/* The delimiter of each alignment, as short as all Markdown readers take. */
static const struct {
    const char *left, *right;
    uint32_t width;
} delimiters[] = {
    [OCR_ALIGN_NONE] = {"", "", 3},
    [OCR_ALIGN_LEFT] = {":", "", 4},
    [OCR_ALIGN_MID] = {":", ":", 5},
    [OCR_ALIGN_RIGHT] = {"", ":", 4},
};

static void repeat(struct ocr_buf *out, char c, uint32_t times)
{
    while (times-- > 0)
        ocr_buf_putc(out, c);
}

/* width 0: not padded. */
static void write_cell(const struct ocr_table *t, const struct ocr_cell *cell,
                       enum ocr_align align, uint32_t width,
                       struct ocr_buf *out)
{
    const char *text = text_of(t, cell);
    const uint32_t own = width ? ocr_display_width(text, cell->len) : 0;
    const uint32_t pad = width > own ? width - own : 0;
    const uint32_t left = align == OCR_ALIGN_RIGHT ? pad
                          : align == OCR_ALIGN_MID ? pad / 2
                                                   : 0;

    ocr_buf_putc(out, ' ');
    repeat(out, ' ', left);
    ocr_buf_add(out, text, cell->len);
    repeat(out, ' ', pad - left);
    ocr_buf_puts(out, " |");
}

static void write_row(const struct ocr_table *t, size_t row, uint32_t columns,
                      const uint32_t *width, struct ocr_buf *out)
{
    ocr_buf_putc(out, '|');
    for (uint32_t c = 0; c < columns && !out->failed; c++)
        write_cell(t, cell_at(t, row, c), t->align[c], width ? width[c] : 0,
                   out);
    ocr_buf_putc(out, '\n');
}

static void write_headless(const struct ocr_table *t, const uint32_t *width,
                           struct ocr_buf *out)
{
    static const struct ocr_cell empty = {0, 0};

    ocr_buf_putc(out, '|');
    for (uint32_t c = 0; c < t->columns; c++)
        write_cell(t, &empty, OCR_ALIGN_NONE, width ? width[c] : 0, out);
    ocr_buf_putc(out, '\n');
}

static void write_delimiters(const struct ocr_table *t, const uint32_t *width,
                             struct ocr_buf *out)
{
    ocr_buf_putc(out, '|');
    for (uint32_t c = 0; c < t->columns; c++) {
        const uint32_t least = delimiters[t->align[c]].width;
        ocr_buf_printf(out, " %s---", delimiters[t->align[c]].left);
        repeat(out, '-', width ? width[c] - least : 0);
        ocr_buf_printf(out, "%s |", delimiters[t->align[c]].right);
    }
    ocr_buf_putc(out, '\n');
}

static void measure(const struct ocr_table *t,
                    uint32_t width[OCR_TABLE_COLUMNS])
{
    for (uint32_t c = 0; c < OCR_TABLE_COLUMNS; c++)
        width[c] = delimiters[t->align[c]].width;
    for (size_t r = 0; r < t->row_count; r++)
        for (uint32_t c = 0; c < t->rows[r].count; c++) {
            const struct ocr_cell *cell = cell_at(t, r, c);
            const uint32_t own = ocr_display_width(text_of(t, cell), cell->len);
            width[c] = own > width[c] ? own : width[c];
        }
}

/* Not padded, a row has only the cells it needs: a wide header over many
 * short rows must not make a long text. */
void ocr_table_write(const struct ocr_table *t, struct ocr_buf *out,
                     bool padded)
{
    uint32_t widths[OCR_TABLE_COLUMNS];
    const uint32_t *width = padded ? widths : NULL;

    if (t->row_count == 0 || t->columns == 0)
        return;
    if (padded)
        measure(t, widths);
    if (t->headless)
        write_headless(t, width, out);
    for (size_t r = 0; r < t->row_count; r++) {
        const bool header = r == 0 && !t->headless;
        if (r == (t->headless ? 0 : 1))
            write_delimiters(t, width, out);
        write_row(t, r, padded || header ? t->columns : t->rows[r].count, width,
                  out);
        if (out->failed)
            return;
    }
    if (t->row_count == 1 && !t->headless)
        write_delimiters(t, width, out);
}
