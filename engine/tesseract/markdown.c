/* Plain words in Markdown. Only what would otherwise change its meaning is
 * escaped: people search these texts for "12,345.67" and "foo_bar". */
#include "engine/tesseract/layout_i.h"
#include "engine/tesseract/text.h"

#include <string.h>

static bool is_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
           (c >= 'A' && c <= 'Z') || (c & 0x80);
}

/* "&amp;" and "&#38;" would become one character. */
static bool is_entity(const char *at)
{
    size_t n = strspn(at + 1, "#abcdefghijklmnopqrstuvwxyz"
                              "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");

    return n > 0 && at[1 + n] == ';';
}

static bool is_tag(const char *at)
{
    return is_word(at[1]) || at[1] == '/' || at[1] == '!' || at[1] == '?';
}

/* True if the character at `at` needs a backslash. */
static bool is_mark(const char *word, const char *at, bool in_table)
{
    char before = at > word ? at[-1] : ' ', after = at[1] ? at[1] : ' ';

    switch (*at) {
    case '`':
        return true;
    case '\\':
        return after > ' ' && !is_word(after);
    case '~':
        return after == '~' || before == '~';
    case '(': /* a link, if a bracket closed before */
    case '[':
        return before == ']';
    case '|':
        return in_table;
    default:
        return false;
    }
}

/* Marks that mean something at the beginning of a line only. */
static bool is_line_mark(const char *word)
{
    size_t n = strspn(word, "#");

    if (n)
        return n <= 6 && word[n] == '\0';
    if (*word == '|' || *word == '>')
        return true;
    return strcmp(word, "+") == 0;
}

void markdown_word(struct ocr_buf *out, const char *word, bool first,
                   bool in_table)
{
    if (first && is_line_mark(word))
        ocr_buf_putc(out, '\\');
    for (const char *at = word; *at; at++) {
        if (*at == '<' && is_tag(at)) {
            ocr_buf_puts(out, "&lt;");
            continue;
        }
        if (*at == '&' && is_entity(at)) {
            ocr_buf_puts(out, "&amp;");
            continue;
        }
        if (is_mark(word, at, in_table))
            ocr_buf_putc(out, '\\');
        ocr_buf_putc(out, *at);
    }
}

/* Whether a run of stars or underscores [at, end) can begin or end emphasis. */
static void flanks(const struct ocr_buf *out, size_t start, size_t at,
                   size_t end, bool *opens, bool *closes)
{
    char before = at > start ? out->data[at - 1] : ' ';
    char after = end < out->len ? out->data[end] : ' ';
    bool inside = out->data[at] == '_' && is_word(before) && is_word(after);

    *opens = after > ' ' && !inside;
    *closes = before > ' ' && before != '\\' && !inside;
}

/* True if some run of `mark` opens and a later one closes. */
static bool has_pair(const struct ocr_buf *out, size_t start, char mark)
{
    bool open = false, opens, closes;

    for (size_t at = start, end; at < out->len; at = end) {
        for (end = at; end < out->len && out->data[end] == mark; end++)
            ;
        if (end == at) {
            end++;
            continue;
        }
        flanks(out, start, at, end, &opens, &closes);
        if (open && closes)
            return true;
        open = open || opens;
    }
    return false;
}

/* Writes `text` again, with a backslash in front of what can begin or end
 * emphasis. */
static void escape_pairs(struct ocr_buf *out, size_t start,
                         const struct ocr_buf *from, bool stars, bool lines)
{
    bool opens, closes;

    for (size_t at = start, end; at < from->len; at = end) {
        char c = from->data[at];

        for (end = at; end < from->len && from->data[end] == c; end++)
            ;
        opens = closes = false;
        if ((c == '*' && stars) || (c == '_' && lines))
            flanks(from, start, at, end, &opens, &closes);
        for (size_t i = at; i < end; i++) {
            if (opens || closes)
                ocr_buf_putc(out, '\\');
            ocr_buf_putc(out, c);
        }
    }
}

void markdown_close(struct ocr_buf *out, size_t start)
{
    bool stars, lines;
    struct ocr_buf copy;

    if (out->failed || out->len <= start)
        return;
    stars = has_pair(out, start, '*');
    lines = has_pair(out, start, '_');
    if (!stars && !lines)
        return;
    ocr_buf_init(&copy, out->limit);
    ocr_buf_add(&copy, out->data, out->len);
    ocr_buf_truncate(out, start);
    if (copy.failed)
        out->failed = true;
    else
        escape_pairs(out, start, &copy, stars, lines);
    ocr_buf_release(&copy);
}

/* "Strom- und", "pre- or": the hyphen stands for a part left out. */
static bool is_joining(const char *word)
{
    static const char *const words[] = {
        "und", "oder", "bis", "and", "or",    "et", "ou", "y", "o",
        "e",   "en",   "of",  "och", "eller", "og", "to", "ed"};

    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
        if (strcmp(word, words[i]) == 0)
            return true;
    return false;
}

/* True if the last word of `out` is the first part of one that was broken at
 * the end of a line: letters, one hyphen, and a small letter to go on. */
static bool is_broken(const struct ocr_buf *out, const char *next)
{
    size_t i = out->len;
    const char *rest = next;

    if (i < 3 || out->data[i - 1] != '-' || is_joining(next) ||
        !text_is_lower(text_next(&rest)))
        return false;
    for (i--; i > 0 && out->data[i - 1] > ' ' + 0; i--)
        if (out->data[i - 1] == '-' || !is_word(out->data[i - 1]) ||
            (out->data[i - 1] >= '0' && out->data[i - 1] <= '9'))
            return false;
    return out->len - i > 2;
}

void markdown_wrap(struct ocr_buf *out, const char *next)
{
    if (is_broken(out, next))
        ocr_buf_truncate(out, out->len - 1);
    else
        ocr_buf_putc(out, ' ');
}
