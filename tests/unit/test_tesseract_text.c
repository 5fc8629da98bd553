/* What letters tell, and how words are written as Markdown. */
#include "engine/tesseract/layout_i.h"
#include "engine/tesseract/text.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Words of a line as a block. */
static void assert_written(const char *line, bool in_table,
                           const char *expected)
{
    struct ocr_buf out;
    char copy[256], *rest = copy, *word;
    bool first = true;

    strcpy(copy, line);
    ocr_buf_init(&out, 1 << 16);
    while ((word = strsep(&rest, " "))) {
        if (!first)
            ocr_buf_putc(&out, ' ');
        markdown_word(&out, word, first, in_table);
        first = false;
    }
    markdown_close(&out, 0);
    assert_string_equal(out.data, expected);
    ocr_buf_release(&out);
}

static void plain_text_stays_as_it_is(void **state)
{
    static const char *const plain[] = {
        "Total: 12,345.67 - 3_4 foo_bar 50% (a) [b] $5 #412 a.b@c.example",
        "2 * 3 105* 107* and AT&T 3 < 4 C:\\temp 1.5~2 x > y no. 7!",
        "card: ****4410 is 2 * 2",
        "12. 5% | 6) ~ [x] \xe2\x98\x92 na\xc3\xafve",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(plain) / sizeof(*plain); i++)
        assert_written(plain[i], false, plain[i]);
}

static void marks_of_markdown_are_escaped(void **state)
{
    (void)state;
    assert_written("# 1 `x` <b> &amp; [a](b)", false,
                   "\\# 1 \\`x\\` &lt;b> &amp;amp; [a]\\(b)");
    assert_written("*so* it is", false, "\\*so\\* it is");
    assert_written("*so 2 * 3 is*", false, "\\*so 2 * 3 is\\*");
    assert_written("_so_ it_is", false, "\\_so\\_ it_is");
    assert_written("> x ~~y~~", false, "\\> x \\~\\~y\\~\\~");
    assert_written("a | b", true, "a \\| b");
    assert_written("| b", false, "\\| b");
}

static void assert_wrapped(const char *text, const char *next,
                           const char *expected)
{
    struct ocr_buf out;

    ocr_buf_init(&out, 1 << 16);
    ocr_buf_puts(&out, text);
    markdown_wrap(&out, next);
    ocr_buf_puts(&out, next);
    assert_string_equal(out.data, expected);
    ocr_buf_release(&out);
}

static void only_words_broken_at_the_line_end_are_joined(void **state)
{
    (void)state;
    assert_wrapped("an oyster-", "catcher", "an oystercatcher");
    assert_wrapped("Strom-", "und", "Strom- und");
    assert_wrapped("Lindqvist-", "Moore", "Lindqvist- Moore");
    assert_wrapped("A4-", "page", "A4- page");
    assert_wrapped("well-known-", "fact", "well-known- fact");
    assert_wrapped("-", "fact", "- fact");
    assert_wrapped("the end", "of it", "the end of it");
}

static void kinds_of_words_are_told(void **state)
{
    (void)state;
    assert_true(text_is_number("1."));
    assert_true(text_is_number("12)"));
    assert_true(text_is_number("(iv)"));
    assert_true(text_is_number("a)"));
    assert_false(text_is_number("1.2"));
    assert_false(text_is_number("2026."));
    assert_false(text_is_number("(a"));
    assert_false(text_is_number("Mr."));
    assert_true(text_is_figure("1.475,00"));
    assert_true(text_is_figure("20%"));
    assert_false(text_is_figure("March"));
    assert_true(text_is_rule("-----"));
    assert_false(text_is_rule("---"));
    assert_false(text_is_rule("-1.41"));
    assert_true(text_is_bullet("\xe2\x80\xa2"));
    assert_false(text_is_bullet("\xe2\x80\xa2x"));
}

static void broken_utf8_ends_nowhere_but_at_the_end(void **state)
{
    const char *text = "\xe2\x80";

    (void)state;
    assert_int_not_equal(text_next(&text), 0);
    assert_int_equal(text_next(&text), 0);
    assert_int_equal(text_letters("\xc3\xa4\xff z"), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_text_stays_as_it_is),
        cmocka_unit_test(marks_of_markdown_are_escaped),
        cmocka_unit_test(only_words_broken_at_the_line_end_are_joined),
        cmocka_unit_test(kinds_of_words_are_told),
        cmocka_unit_test(broken_utf8_ends_nowhere_but_at_the_end),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
