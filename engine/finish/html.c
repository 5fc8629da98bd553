/* Tables as models write them in HTML, read the way a browser would, as far
 * as rows and cells go: end tags may be missing, tables may be nested (their
 * cells become words of the outer cell), a merged cell has its text once and
 * empty cells for the rest. Text outside any cell ends the table, so that an
 * unclosed one does not swallow the page. */
#include "engine/finish/finish_i.h"

#include "engine/base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum pending {
    PENDING_NONE,
    PENDING_SPACE,
    PENDING_BREAK
};

struct html {
    const char *text;
    size_t len, at;
    struct ocr_table *table;
    struct ocr_buf *caption;
    size_t *spare;  /* cells that spans may still add */
    unsigned depth; /* of nested tables, 1: the outer */
    bool head;      /* in <thead> */
    bool in_row, in_cell, in_caption;
    bool skipping; /* in <script> or <style> */
    bool done;
    enum pending pending; /* blank or break before the next character */
    uint32_t colspan;     /* of the open cell */
    uint32_t column;      /* of the next cell */
    uint32_t rows_left[OCR_TABLE_COLUMNS]; /* below a cell with a rowspan */
};

/* ---- tags --------------------------------------------------------------- */

struct tag {
    char name[12]; /* lower case */
    bool closing;
    const char *attributes;
    size_t attributes_len, len; /* len: from '<' to '>' */
};

static bool letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n';
}

/* Reads the tag at `s`. One that meets another '<' before its '>' is none:
 * this keeps a text of nothing but '<' linear. */
static bool read_tag(struct tag *tag, const char *s, size_t len)
{
    size_t at = 1, n = 0;

    *tag = (struct tag){0};
    if (len > 1 && s[1] == '/') {
        tag->closing = true;
        at++;
    }
    while (at < len && n + 1 < sizeof tag->name &&
           (letter(s[at]) || (n && s[at] >= '0' && s[at] <= '9')))
        tag->name[n++] = lower(s[at++]);
    if (n == 0 || at >= len || !(blank(s[at]) || s[at] == '>' || s[at] == '/'))
        return false;
    tag->attributes = s + at;
    while (at < len && s[at] != '>' && s[at] != '<')
        at++;
    tag->attributes_len = (size_t)(s + at - tag->attributes);
    tag->len = at + 1;
    return at < len && s[at] == '>';
}

static bool is(const struct tag *tag, const char *name)
{
    return strcmp(tag->name, name) == 0;
}

/* The number behind `name=`, from 1 to `most`. */
static uint32_t span_of(const struct tag *tag, const char *name, uint32_t most)
{
    const size_t n = strlen(name);
    uint32_t value = 0;

    for (size_t i = 0; i + n < tag->attributes_len; i++) {
        const char *s = tag->attributes + i;
        const char *end = tag->attributes + tag->attributes_len;
        if (strncasecmp(s, name, n) != 0)
            continue;
        for (s += n; s < end && (blank(*s) || strchr("=\"'", *s)); s++)
            ;
        for (; s < end && *s >= '0' && *s <= '9' && value < most; s++)
            value = value * 10 + (uint32_t)(*s - '0');
        break;
    }
    return value < 1 ? 1 : value > most ? most : value;
}

const char *ocr_html_find(const char *line, size_t len)
{
    struct tag tag;

    for (size_t at = 0; at < len; at++) {
        const char *s = memchr(line + at, '<', len - at);
        if (!s)
            return NULL;
        at = (size_t)(s - line);
        if (len - at > 6 && strncasecmp(s, "<table", 6) == 0 &&
            (blank(s[6]) || s[6] == '>' || s[6] == '/') &&
            read_tag(&tag, s, len - at))
            return s;
    }
    return NULL;
}

bool ocr_html_unclosed(const char *text, size_t len)
{
    const char *open = NULL, *end = text + len;

    for (const char *s = text; (s = ocr_html_find(s, (size_t)(end - s))); s++)
        open = s;
    for (const char *s = open; s; s = memchr(s + 1, '<', (size_t)(end - s - 1)))
        if (end - s >= 8 && strncasecmp(s, "</table>", 8) == 0)
            return false;
    return open != NULL;
}

/* ---- cells -------------------------------------------------------------- */

static struct ocr_buf *target(struct html *h)
{
    if (h->skipping)
        return NULL;
    if (h->in_cell)
        return &h->table->text;
    return h->in_caption ? h->caption : NULL;
}

static bool target_is_empty(const struct html *h)
{
    const struct ocr_table *t = h->table;

    if (h->in_cell)
        return t->cell_count == 0 ||
               t->cells[t->cell_count - 1].at == t->text.len;
    return h->caption->len == 0;
}

static void put(struct html *h, const char *bytes, size_t len)
{
    struct ocr_buf *out = target(h);

    if (!out)
        return;
    if (!target_is_empty(h) && h->pending != PENDING_NONE)
        ocr_buf_puts(out, h->pending == PENDING_BREAK ? "<br>" : " ");
    h->pending = PENDING_NONE;
    /* A backslash before the pipe would undo the one that escapes it. */
    if (len == 1 && *bytes == '|' && h->in_cell)
        ocr_buf_puts(out, !target_is_empty(h) && out->data[out->len - 1] == '\\'
                              ? "&#124;"
                              : "\\|");
    else
        ocr_buf_add(out, bytes, len);
}

static void put_pending(struct html *h, enum pending pending)
{
    if (pending > h->pending)
        h->pending = pending;
}

static void empty_cell(struct html *h)
{
    ocr_table_cell(h->table);
    ocr_table_cell_end(h->table);
}

/* Adds an empty cell that no tag stands for, if there may be one more. */
static bool spare_cell(struct html *h)
{
    if (*h->spare == 0 || h->column >= OCR_TABLE_COLUMNS)
        return false;
    --*h->spare;
    h->column++;
    empty_cell(h);
    return true;
}

static void end_cell(struct html *h)
{
    if (!h->in_cell)
        return;
    ocr_table_cell_end(h->table);
    h->in_cell = false;
    h->pending = PENDING_NONE;
    while (--h->colspan > 0 && spare_cell(h))
        ;
}

static void end_row(struct html *h)
{
    end_cell(h);
    if (!h->in_row)
        return;
    for (uint32_t c = h->column; c < OCR_TABLE_COLUMNS; c++)
        h->rows_left[c] -= h->rows_left[c] > 0;
    ocr_table_row_end(h->table);
    h->in_row = false;
}

/* The row itself is made by its first cell: an empty <tr> is nothing. */
static void begin_row(struct html *h)
{
    end_row(h);
    h->column = 0;
}

/* Cells under a cell with a rowspan. */
static void skip_covered(struct html *h)
{
    while (h->column < OCR_TABLE_COLUMNS && h->rows_left[h->column]) {
        h->rows_left[h->column]--;
        if (!spare_cell(h))
            return;
    }
}

static void begin_cell(struct html *h, const struct tag *tag)
{
    const bool head = h->head || is(tag, "th");
    uint32_t rows;

    end_cell(h);
    h->in_caption = false;
    if (!h->in_row)
        ocr_table_row(h->table, head);
    else if (!head && !h->table->failed)
        h->table->rows[h->table->row_count - 1].head = h->head;
    h->in_row = h->in_cell = true;
    skip_covered(h);
    if (h->column >= OCR_TABLE_COLUMNS) {
        h->colspan = 1; /* goes on in the last cell */
        put_pending(h, PENDING_SPACE);
        return;
    }
    ocr_table_cell(h->table);
    h->colspan = span_of(tag, "colspan", OCR_TABLE_COLUMNS);
    rows = span_of(tag, "rowspan", 1000);
    for (uint32_t c = 0; c < h->colspan && h->column + c < OCR_TABLE_COLUMNS;
         c++)
        h->rows_left[h->column + c] = rows - 1;
    h->column++;
}

/* ---- characters --------------------------------------------------------- */

static const struct {
    const char *name, *text;
} entities[] = {
    {"amp;", "&"},
    {"lt;", "<"},
    {"gt;", ">"},
    {"quot;", "\""},
    {"apos;", "'"},
    {"nbsp;", " "},
    {"euro;", "\xe2\x82\xac"},
    {"pound;", "\xc2\xa3"},
    {"yen;", "\xc2\xa5"},
    {"cent;", "\xc2\xa2"},
    {"copy;", "\xc2\xa9"},
    {"reg;", "\xc2\xae"},
    {"deg;", "\xc2\xb0"},
    {"plusmn;", "\xc2\xb1"},
    {"times;", "\xc3\x97"},
    {"divide;", "\xc3\xb7"},
    {"middot;", "\xc2\xb7"},
    {"sect;", "\xc2\xa7"},
    {"micro;", "\xc2\xb5"},
    {"frac12;", "\xc2\xbd"},
    {"frac14;", "\xc2\xbc"},
    {"laquo;", "\xc2\xab"},
    {"raquo;", "\xc2\xbb"},
    {"ndash;", "\xe2\x80\x93"},
    {"mdash;", "\xe2\x80\x94"},
    {"minus;", "\xe2\x88\x92"},
    {"hellip;", "\xe2\x80\xa6"},
    {"bull;", "\xe2\x80\xa2"},
    {"lsquo;", "\xe2\x80\x98"},
    {"rsquo;", "\xe2\x80\x99"},
    {"ldquo;", "\xe2\x80\x9c"},
    {"rdquo;", "\xe2\x80\x9d"},
    {"rarr;", "\xe2\x86\x92"},
    {"le;", "\xe2\x89\xa4"},
    {"ge;", "\xe2\x89\xa5"},
    {"ne;", "\xe2\x89\xa0"},
    {"auml;", "\xc3\xa4"},
    {"ouml;", "\xc3\xb6"},
    {"uuml;", "\xc3\xbc"},
    {"Auml;", "\xc3\x84"},
    {"Ouml;", "\xc3\x96"},
    {"Uuml;", "\xc3\x9c"},
    {"szlig;", "\xc3\x9f"},
    {"eacute;", "\xc3\xa9"},
    {"egrave;", "\xc3\xa8"},
    {"agrave;", "\xc3\xa0"},
    {"ccedil;", "\xc3\xa7"},
    {"ntilde;", "\xc3\xb1"},
};

/* A decoded '<' must not make a tag with what follows. */
static void put_text(struct html *h, const char *s, size_t len)
{
    const char *next = h->text + h->at;

    if (len == 1 && blank(*s))
        put_pending(h, PENDING_SPACE);
    else if (len == 1 && *s == '<' && h->at < h->len &&
             (letter(*next) || strchr("/!?&<", *next)))
        put(h, "&lt;", 4);
    else
        put(h, s, len);
}

/* Bytes of the reference &#...; at `s`, its code point in *cp; 0: none. */
static size_t numeric(const char *s, size_t len, uint32_t *cp)
{
    const bool hex = len > 2 && (s[2] == 'x' || s[2] == 'X');
    const size_t first = hex ? 3 : 2;
    char digits[9] = "", *end;
    size_t n = 0;

    if (len < 4 || s[1] != '#')
        return 0;
    while (n < 8 && first + n < len && s[first + n] != ';') {
        digits[n] = s[first + n];
        n++;
    }
    if (n == 0 || first + n >= len || s[first + n] != ';' ||
        strspn(digits, hex ? "0123456789abcdefABCDEF" : "0123456789") != n)
        return 0;
    *cp = (uint32_t)strtoul(digits, &end, hex ? 16 : 10);
    return first + n + 1;
}

static void put_code_point(struct html *h, uint32_t cp)
{
    char bytes[4];
    const size_t n = ocr_utf8_put(bytes, cp);

    if (cp == 0xa0 || ocr_clean_class(cp) == OCR_CLEAN_NEWLINE)
        put_pending(h, PENDING_SPACE);
    else if (n && ocr_clean_class(cp) == OCR_CLEAN_KEEP)
        put_text(h, bytes, n);
}

/* At an '&'. */
static void take_entity(struct html *h)
{
    const char *s = h->text + h->at;
    const size_t left = h->len - h->at;
    uint32_t cp;
    const size_t n = numeric(s, left, &cp);

    if (n) {
        h->at += n;
        put_code_point(h, cp);
        return;
    }
    for (size_t i = 0; i < sizeof entities / sizeof *entities; i++) {
        const size_t k = strlen(entities[i].name);
        if (left <= k || memcmp(s + 1, entities[i].name, k) != 0)
            continue;
        h->at += k + 1;
        put_text(h, entities[i].text, strlen(entities[i].text));
        return;
    }
    h->at++;
    put(h, "&", 1);
}

/* ---- what a tag does ---------------------------------------------------- */

static bool one_of(const struct tag *tag, const char *const *names)
{
    for (; *names; names++)
        if (is(tag, *names))
            return true;
    return false;
}

static void end_table(struct html *h)
{
    end_row(h);
    h->done = true;
}

/* Inside a nested table its structure only parts words. */
static void nested_tag(struct html *h, const struct tag *tag)
{
    if (is(tag, "table"))
        h->depth = tag->closing ? h->depth - 1 : h->depth + 1;
    put_pending(h, PENDING_SPACE);
}

static void open_tag(struct html *h, const struct tag *tag)
{
    if (is(tag, "tr"))
        begin_row(h);
    else if (is(tag, "td") || is(tag, "th"))
        begin_cell(h, tag);
    else if (is(tag, "caption"))
        h->in_caption = !h->in_row;
    else if (is(tag, "table") && h->in_cell)
        nested_tag(h, tag);
    else if (!is(tag, "table"))
        end_row(h);
    if (is(tag, "thead"))
        h->head = true;
    else if (is(tag, "tbody") || is(tag, "tfoot"))
        h->head = false;
}

static void close_tag(struct html *h, const struct tag *tag)
{
    if (is(tag, "table"))
        end_table(h);
    else if (is(tag, "td") || is(tag, "th"))
        end_cell(h);
    else if (is(tag, "caption"))
        h->in_caption = false;
    else
        end_row(h);
    if (is(tag, "thead"))
        h->head = false;
}

/* False: the tag is not known, its bytes are text. */
static bool take_tag(struct html *h, const struct tag *tag)
{
    static const char *const structure[] = {
        "table", "tr", "td", "th", "thead", "tbody", "tfoot", "caption", NULL};
    static const char *const lines[] = {"br", "p",  "div", "li", "ul",
                                        "ol", "h1", "h2",  "h3", "h4",
                                        "h5", "h6", NULL};
    static const char *const dropped[] = {
        "b",   "strong", "i",     "em",  "u",   "span",     "font", "small",
        "big", "center", "label", "col", "pre", "colgroup", "code", NULL};

    if (is(tag, "script") || is(tag, "style"))
        h->skipping = !tag->closing;
    else if (h->skipping && !is(tag, "table"))
        return false;
    else if (one_of(tag, structure) && h->depth > 1)
        nested_tag(h, tag);
    else if (one_of(tag, structure))
        tag->closing ? close_tag(h, tag) : open_tag(h, tag);
    else if (one_of(tag, lines))
        put_pending(h, PENDING_BREAK);
    else
        return one_of(tag, dropped);
    return true;
}

/* True if the text at h->at lies in no cell, so the table is over. */
static bool outside(const struct html *h)
{
    return !h->skipping && !h->in_cell && !h->in_caption;
}

/* A table that begins outside the cells of this one is the next. */
static bool begins_another(const struct html *h, const struct tag *tag)
{
    return h->at > 0 && is(tag, "table") && !tag->closing && !h->in_cell;
}

static void step(struct html *h)
{
    const char *s = h->text + h->at;
    struct tag tag;
    size_t n;

    if (*s == '<' && read_tag(&tag, s, h->len - h->at)) {
        if (begins_another(h, &tag)) {
            end_table(h);
            return;
        }
        if (take_tag(h, &tag)) {
            h->at += tag.len;
            return;
        }
    }
    if (blank(*s)) {
        put_pending(h, PENDING_SPACE);
        h->at++;
    } else if (outside(h)) {
        end_table(h);
    } else if (*s == '&') {
        take_entity(h);
    } else if (*s == '<') {
        h->at++;
        put(h, s, 1);
    } else {
        n = ocr_utf8_next(s, h->len - h->at, NULL);
        n = n ? n : 1; /* cleaned text has no such byte */
        h->at += n;
        put(h, s, n);
    }
}

/* ---- the header --------------------------------------------------------- */

static const struct ocr_cell *cells_of(const struct ocr_table *t, size_t row)
{
    return &t->cells[t->rows[row].first];
}

/* Many tables have a first row of <td> that is a header all the same: words
 * only, one over every column. */
static bool reads_like_header(const struct ocr_table *t)
{
    if (t->row_count < 2 || t->rows[0].count != t->columns)
        return false;
    for (uint32_t c = 0; c < t->rows[0].count; c++) {
        const struct ocr_cell *cell = cells_of(t, 0) + c;
        if (cell->len == 0 || ocr_quantity(t->text.data + cell->at,
                                           cell->len) != OCR_QUANTITY_TEXT)
            return false;
    }
    return true;
}

size_t ocr_html_read(struct ocr_table *t, struct ocr_buf *caption,
                     size_t *spare, const char *text, size_t len)
{
    struct html h = {
        .text = text,
        .len = len,
        .table = t,
        .caption = caption,
        .spare = spare,
        .depth = 1,
        .colspan = 1,
    };

    while (h.at < len && !h.done && !t->failed)
        step(&h);
    end_row(&h);
    if (t->row_count && !t->failed)
        t->headless = !t->rows[0].head && !reads_like_header(t);
    return h.at;
}
