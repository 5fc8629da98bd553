/* Plain text as Markdown. People search for "12,345.67" and "foo_bar": only
 * what would be taken for a mark gets a backslash. */
#include "engine/finish.h"

#include "engine/base/buf.h"

#include <errno.h>
#include <string.h>

/* At the beginning of a line these make a heading or a quotation, and a row of
 * dashes makes a heading of the line before. */
static bool begins(const char *at, const char *end)
{
    if (*at == '#' || *at == '>')
        return true;
    return (*at == '=' || *at == '-') && (at + 1 == end || at[1] == *at);
}

static bool is_mark(const char *at, const char *end)
{
    return *at == '\\' || *at == '`' || *at == '*' || *at == '<' ||
           *at == '|' || (*at == ']' && at + 1 < end && at[1] == '(');
}

/* Spaces in front of a line make it code: layout of the page, no more. */
static void add_line(struct ocr_buf *out, const char *line, const char *end)
{
    while (line < end && (*line == ' ' || *line == '\t'))
        line++;
    for (const char *at = line; at < end; at++) {
        if (is_mark(at, end) || (at == line && begins(at, end)))
            ocr_buf_putc(out, '\\');
        ocr_buf_putc(out, *at);
    }
    ocr_buf_putc(out, '\n');
}

int ocr_finish_plain(char **out, size_t *out_len, const char *text, size_t len,
                     struct ocr_err *err)
{
    const char *const all = text + len;
    struct ocr_buf buf;

    ocr_buf_init(&buf, 2 * len + 2);
    while (text < all) {
        const char *end = memchr(text, '\n', (size_t)(all - text));

        if (!end)
            end = all;
        add_line(&buf, text, end);
        text = end + (end < all);
    }
    ocr_buf_add(&buf, "", 0);
    *out = ocr_buf_detach(&buf, out_len);
    return *out ? 0 : ocr_err_set(err, -ENOMEM, "no memory for a text");
}
