#include "engine/finish/finish_i.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

enum {
    FENCES = 64,         /* longer runs of ` or ~ are rules, not fences */
    SPARE_CELLS = 32768, /* more than fit into a page of text anyway */
};

struct line {
    const char *at;
    size_t len;
};

struct layout {
    const char *text;
    size_t len, at;
    struct ocr_buf *out;
    struct ocr_table table;
    struct ocr_buf caption;
    enum ocr_tables tables;
    bool padded;
    bool gap; /* an empty line before the next one */
    size_t spare;
    /* Where the last line begins that can close a fence of at least so many
     * ` or ~: a fence that nothing closes is none, or one stray line of ~~~
     * would take the tables of a page away. */
    size_t closes[2][FENCES];
};

static struct line line_at(const struct layout *l, size_t at)
{
    const char *from = l->text + at;
    const char *end = at < l->len ? memchr(from, '\n', l->len - at) : NULL;

    return (struct line){from, end ? (size_t)(end - from) : l->len - at};
}

static size_t after(const struct layout *l, struct line line)
{
    const size_t at = (size_t)(line.at - l->text) + line.len;

    return at < l->len ? at + 1 : at;
}

static struct line stripped(struct line line)
{
    while (line.len &&
           (line.at[line.len - 1] == ' ' || line.at[line.len - 1] == '\t'))
        line.len--;
    return line;
}

static void put_gap(struct layout *l)
{
    if (l->gap && l->out->len)
        ocr_buf_putc(l->out, '\n');
    l->gap = false;
}

static void put_raw(struct layout *l, struct line line)
{
    put_gap(l);
    ocr_buf_add(l->out, line.at, line.len);
    ocr_buf_putc(l->out, '\n');
}

static void put_line(struct layout *l, struct line line)
{
    line = stripped(line);
    if (line.len)
        put_raw(l, line);
    else
        l->gap = true;
}

/* ---- code fences -------------------------------------------------------- */

struct fence {
    unsigned kind; /* 0: `, 1: ~ */
    size_t run;    /* how many, 0: no fence */
    bool bare;     /* nothing behind it: it can close */
};

static struct fence fence_of(struct line line)
{
    struct fence f = {0};
    size_t at = 0;

    while (at < line.len && at < 3 && line.at[at] == ' ')
        at++;
    if (at == line.len || (line.at[at] != '`' && line.at[at] != '~'))
        return f;
    f.kind = line.at[at] == '~';
    while (at + f.run < line.len && line.at[at + f.run] == "`~"[f.kind])
        f.run++;
    f.bare = at + f.run == stripped(line).len;
    if (f.run < 3 || f.run >= FENCES ||
        (f.kind == 0 &&
         memchr(line.at + at + f.run, '`', line.len - at - f.run)))
        f.run = 0;
    return f;
}

static void find_fences(struct layout *l)
{
    for (size_t at = 0; at < l->len;) {
        const struct line line = line_at(l, at);
        const struct fence f = fence_of(line);
        if (f.run && f.bare)
            l->closes[f.kind][f.run] = at;
        at = after(l, line);
    }
    for (unsigned kind = 0; kind < 2; kind++)
        for (size_t run = FENCES - 1; run-- > 0;)
            if (l->closes[kind][run] < l->closes[kind][run + 1])
                l->closes[kind][run] = l->closes[kind][run + 1];
}

/* Takes a whole fenced block, as it is. */
static bool take_fence(struct layout *l, struct line line)
{
    const struct fence open = fence_of(line);
    struct fence f;

    if (!open.run || l->closes[open.kind][open.run] <= l->at)
        return false;
    put_line(l, line);
    do {
        l->at = after(l, line);
        line = line_at(l, l->at);
        f = fence_of(line);
        if (f.run >= open.run && f.kind == open.kind && f.bare)
            break;
        put_raw(l, line);
    } while (l->at < l->len);
    put_line(l, line);
    l->at = after(l, line);
    return true;
}

/* ---- tables ------------------------------------------------------------- */

static void put_table(struct layout *l)
{
    if (l->table.failed || l->table.text.failed) {
        l->out->failed = true;
        return;
    }
    ocr_table_align(&l->table);
    l->gap = true;
    put_gap(l);
    ocr_table_write(&l->table, l->out, l->padded);
    l->gap = true;
}

static bool take_pipes(struct layout *l, struct line line)
{
    const struct line next = line_at(l, after(l, line));

    if (l->tables == OCR_TABLES_HTML ||
        !ocr_pipes_begin(line.at, line.len, next.at, next.len))
        return false;
    ocr_table_clear(&l->table);
    l->at += ocr_pipes_read(&l->table, line.at, l->len - l->at);
    put_table(l);
    return true;
}

static void put_caption(struct layout *l)
{
    if (l->caption.len == 0)
        return;
    l->gap = true;
    put_line(l, (struct line){l->caption.data, l->caption.len});
}

static bool ends_with_tag(const char *text, size_t len)
{
    return len > 8 && strncasecmp(text + len - 8, "</table>", 8) == 0;
}

/* What stands before the table on its line is a line, what stands behind it
 * another one. */
static bool take_html(struct layout *l, struct line line)
{
    const char *tag =
        l->tables == OCR_TABLES_HTML ? NULL : ocr_html_find(line.at, line.len);
    size_t at, taken;

    if (!tag)
        return false;
    at = (size_t)(tag - l->text);
    ocr_table_clear(&l->table);
    ocr_buf_reset(&l->caption);
    taken = ocr_html_read(&l->table, &l->caption, &l->spare, tag, l->len - at);
    if (l->table.row_count == 0 && !ends_with_tag(tag, taken))
        return false; /* somebody writes about <table> */
    if (tag > line.at)
        put_line(l, (struct line){line.at, (size_t)(tag - line.at)});
    put_caption(l);
    if (l->table.row_count)
        put_table(l);
    l->at = at + taken;
    if (l->at < l->len && l->text[l->at] == '\n')
        l->at++;
    return true;
}

int ocr_layout(struct ocr_buf *out, const char *text, size_t len,
               enum ocr_tables tables, bool padded)
{
    struct layout l = {
        .text = text,
        .len = len,
        .out = out,
        .tables = tables,
        .padded = padded,
        .spare = SPARE_CELLS,
    };

    ocr_table_init(&l.table);
    ocr_buf_init(&l.caption, len);
    find_fences(&l);
    while (l.at < len && !out->failed) {
        const struct line line = line_at(&l, l.at);
        if (take_fence(&l, line) || take_pipes(&l, line) || take_html(&l, line))
            continue;
        put_line(&l, line);
        l.at = after(&l, line);
    }
    ocr_table_release(&l.table);
    ocr_buf_release(&l.caption);
    return out->failed ? -ENOMEM : 0;
}
