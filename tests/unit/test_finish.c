#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/utf8.h"
#include "engine/finish.h"
#include "engine/finish/finish_i.h"
#include "engine/protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct finished {
    char *text;
    size_t len;
    unsigned flags;
};

static struct finished finish(const char *text, size_t len)
{
    struct finished f;

    assert_int_equal(
        ocr_finish(&f.text, &f.len, &f.flags, text, len, OCR_TABLES_PIPE, NULL),
        0);
    assert_int_equal(f.text[f.len], '\0');
    return f;
}

static uint32_t seed;

static uint32_t rnd(uint32_t below)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % below;
}

/* What holds for every finished text. */
static void assert_sound(const struct finished *f)
{
    struct finished again;

    assert_int_equal(strlen(f->text), f->len);
    assert_int_equal(ocr_utf8_valid(f->text, f->len), f->len);
    assert_in_range(f->len, 0, OCR_PAGE_TEXT_MAX);
    for (size_t i = 0; i < f->len; i++) {
        const unsigned char c = (unsigned char)f->text[i];
        assert_true(c >= ' ' || c == '\n' || c == '\t');
        assert_int_not_equal(c, 0x7f);
    }
    if (f->len) {
        assert_int_equal(f->text[f->len - 1], '\n');
        assert_true(f->len == 1 || f->text[f->len - 2] != '\n');
        assert_int_not_equal(f->text[0], '\n');
    }
    again = finish(f->text, f->len);
    assert_int_equal(again.len, f->len);
    assert_memory_equal(again.text, f->text, f->len);
    free(again.text);
}

static void assert_finish_n(const char *text, size_t len, const char *expected)
{
    struct finished f = finish(text, len);

    assert_string_equal(f.text, expected);
    assert_sound(&f);
    free(f.text);
}

static void assert_finish(const char *text, const char *expected)
{
    assert_finish_n(text, strlen(text), expected);
}

static void characters(void **state)
{
    (void)state;
    assert_finish("", "");
    assert_finish("\n \n\t\n", "");
    assert_finish("a", "a\n");
    assert_finish_n("a\0b\x1b[31m\x7f\tc", 11, "ab[31m\tc\n");
    assert_finish("\xef\xbb\xbf\xef\xbb\xbfx\xef\xbb\xbf", "x\n");
    assert_finish("a\r\nb\rc\x0b"
                  "d\x0c"
                  "e\xc2\x85"
                  "f\xe2\x80\xa8g"
                  "\xe2\x80\xa9h",
                  "a\nb\nc\nd\ne\nf\ng\nh\n");
    assert_finish("a\r\r\nb", "a\n\nb\n");
    assert_finish("\xff", "\xef\xbf\xbd\n");
    assert_finish("a\xe2\x82z", "a\xef\xbf\xbdz\n"); /* cut off: one */
    assert_finish("\xc0\xaf\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\n");
    assert_finish("\xc2\x9b"
                  "x",
                  "x\n");                                        /* C1 */
    assert_finish("e\xcc\x81 \xc3\xa9", "e\xcc\x81 \xc3\xa9\n"); /* as it is */
}

static void lines(void **state)
{
    (void)state;
    assert_finish("\n\n a  \t\n\n\n\nb\n\n", " a\n\nb\n");
    assert_finish("a\n \n\t\nb", "a\n\nb\n");
    assert_finish("a\n```c\nx  \n\n\n\ny\n```  \n\n\n\nb",
                  "a\n```c\nx  \n\n\n\ny\n```\n\nb\n");
    assert_finish("~~~~\n|a|\n|-|\n```\n\n\n~~~\n~~~~\n",
                  "~~~~\n|a|\n|-|\n```\n\n\n~~~\n~~~~\n");
    /* Nothing closes it: a rule, not a fence. */
    assert_finish("~~~~~~~\na\n\n\n\nb", "~~~~~~~\na\n\nb\n");
}

static void html_tables(void **state)
{
    (void)state;
    assert_finish("<table><thead><tr><th>Item</th><th>Amount</th></tr></thead>"
                  "<tbody><tr><td>Pipe</td><td>1,558.00</td></tr>"
                  "<tr><td>Valve</td><td>-7.50</td></tr></tbody></table>",
                  "| Item  |   Amount |\n"
                  "| ----- | -------: |\n"
                  "| Pipe  | 1,558.00 |\n"
                  "| Valve |    -7.50 |\n");
    assert_finish("Before<TABLE border=1>\n<tr>\n <td>Net</td>\n <td>1</td>\n"
                  "</tr>\n</TABLE>after",
                  "Before\n\n"
                  "|     |      |\n"
                  "| --- | ---: |\n"
                  "| Net |    1 |\n\n"
                  "after\n");
    assert_finish("<table><tr><td>Name</td><td>Town</td></tr>"
                  "<tr><td>Moss</td><td>Oakhaven</td></tr></table>",
                  "| Name | Town     |\n"
                  "| ---- | -------- |\n"
                  "| Moss | Oakhaven |\n");
    assert_finish("<table></table>", "");
    assert_finish("a\n<table><tr></tr><tr> </tr></table>\nb", "a\nb\n");
}

static void html_cells(void **state)
{
    (void)state;
    assert_finish("<table><tr><th>a|b</th><th>c &amp; d &lt; e</th></tr>"
                  "<tr><td> x <br/> y\n z <br></td>"
                  "<td>&#8364;&#x41;&nbsp;&euro;&bogus;&#0;</td></tr></table>",
                  "| a\\|b     | c & d < e   |\n"
                  "| -------- | ----------- |\n"
                  "| x<br>y z | \xe2\x82\xac"
                  "A \xe2\x82\xac&bogus; |\n");
    assert_finish("<table><tr><th>\\|</th><th>&lt;b&gt;</th>"
                  "<th>&lt;table></th></tr></table>",
                  "| \\&#124; | &lt;b> | &lt;table> |\n"
                  "| ------- | ------ | ---------- |\n");
    assert_finish("<table><tr><th><b>x</b> <sup>2</sup> 1 < 2</th></tr>"
                  "<tr><td><script>alert('<td>')</script>ok</td></tr></table>",
                  "| x <sup>2</sup> 1 < 2 |\n"
                  "| -------------------- |\n"
                  "| ok                   |\n");
    assert_finish("<table><caption>Prices <i>2026</i></caption>"
                  "<tr><th>a</th></tr><tr><td>b</td></tr></table>",
                  "Prices 2026\n\n| a   |\n| --- |\n| b   |\n");
}

static void html_spans(void **state)
{
    (void)state;
    assert_finish("<table><tr><th colspan=\"2\">wide</th><th>c</th></tr>"
                  "<tr><td rowspan='2'>tall</td><td>x</td><td>y</td></tr>"
                  "<tr><td>z</td></tr><tr><td>1</td><td>2</td></tr></table>",
                  "| wide |     | c   |\n"
                  "| ---- | --- | --- |\n"
                  "| tall | x   | y   |\n"
                  "|      | z   |     |\n"
                  "| 1    | 2   |     |\n");
    assert_finish("<table><tr><td colspan=4000000000 rowspan=99999999>x</td>"
                  "</tr></table>",
                  "|     |\n| --- |\n| x   |\n");
}

static void html_that_is_broken(void **state)
{
    (void)state;
    assert_finish("<table><tr><th>a<th>b<tr><td>1<td>x",
                  "|    a | b   |\n| ---: | --- |\n|    1 | x   |\n");
    assert_finish("<table><tr><th>a</th></tr><tr><td>b</td></tr>\n\nNext par.",
                  "| a   |\n| --- |\n| b   |\n\nNext par.\n");
    assert_finish("<table><tr><th>a</th><th>in</th></tr><tr><td>b</td><td>"
                  "<table><tr><td>c</td><td>d</td></tr></table></td></tr>"
                  "</table>",
                  "| a   | in  |\n| --- | --- |\n| b   | c d |\n");
    assert_finish("The <table> tag, <tr> and 1 < 2.",
                  "The <table> tag, <tr> and 1 < 2.\n");
    assert_finish("<table><tr><th>a</th></tr><tr><td>1</td></tr>"
                  "<table><tr><th>b</th></tr><tr><td>2</td></tr></table>",
                  "|    a |\n| ---: |\n|    1 |\n\n"
                  "|    b |\n| ---: |\n|    2 |\n");
    assert_finish("<table", "<table\n");
    assert_finish("<table <table <table", "<table <table <table\n");
}

static void pipe_tables(void **state)
{
    (void)state;
    assert_finish("Text\n|a|Betrag|\n|-|-|\n|Käse \\| Wurst|1.558,00|\n"
                  "||12|\nmore",
                  "Text\n\n"
                  "| a             |   Betrag |\n"
                  "| ------------- | -------: |\n"
                  "| Käse \\| Wurst | 1.558,00 |\n"
                  "|               |       12 |\n\n"
                  "more\n");
    assert_finish("a | b\n:-- | :-:\n1 | xyzxyz\n",
                  "| a    |   b    |\n| :--- | :----: |\n| 1    | xyzxyz |\n");
    /* Wide characters take two columns. */
    assert_finish("|\xe6\x96\xbd\xe8\xa8\xad|x|\n|---|---|\n|ab|y|",
                  "| \xe6\x96\xbd\xe8\xa8\xad | x   |\n"
                  "| ---- | --- |\n"
                  "| ab   | y   |\n");
    /* More cells than the header: they stay. */
    assert_finish("|a|\n|-|\n|1|2|", "|    a |      |\n| ---: | ---: |\n"
                                     "|    1 |    2 |\n");
    assert_finish("a | b\nno table", "a | b\nno table\n");
    assert_finish("Heading\n---\n", "Heading\n---\n");
    assert_finish("    | a |\n    |---|\n", "    | a |\n    |---|\n");
}

static void html_tables_may_stay(void **state)
{
    static const char text[] =
        "<table>\n<tr><td>a | b</td></tr>\n</table>  \n\n\n|a|\n|-|\n";
    struct finished f;

    (void)state;
    assert_int_equal(ocr_finish(&f.text, &f.len, &f.flags, text,
                                sizeof text - 1, OCR_TABLES_HTML, NULL),
                     0);
    assert_string_equal(f.text, "<table>\n<tr><td>a | b</td></tr>\n</table>\n\n"
                                "|a|\n|-|\n");
    free(f.text);
}

static void numbers(void **state)
{
    static const char *const yes[] = {
        "0",
        "12",
        "389.50",
        "1,558.00",
        "1.558,00",
        "1 558,00",
        "1'558.00",
        "1\342\200\231558.00",
        "12,34,567.00",
        "1,234,567",
        "-20%",
        "20 %",
        "(31.80)",
        "\342\210\2225",
        "12.00-",
        "+3",
        "$1,200",
        "1.200 EUR",
        "\xe2\x82\xac 5",
        "5\xc2\xa0\xe2\x82\xac",
        "CHF 1'000.00",
        "**9.15**",
        ".5",
        "1234567",
        "< 0.05",
        "100\xe5\x86\x86",
        "12,\xe2\x80\x93",
        "99,-",
    };
    static const char *const no[] = {
        "x",     "05:42",         "9 March 2026", "01.02.2026", "2026-03-09",
        "1.2.3", "0555 010 4471", "LT-440",       "12 kg",      "A4",
        "4 0",   "1,23,4",        "EUR",          "1..2",       "1,",
        "12a",   "5-7",           "3/4",
    };
    static const char *const nothing[] = {"", "-", "\xe2\x80\x93", "---",
                                          "..."};

    (void)state;
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        if (ocr_quantity(yes[i], strlen(yes[i])) != OCR_QUANTITY_NUMBER)
            fail_msg("%s should be a number", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (ocr_quantity(no[i], strlen(no[i])) != OCR_QUANTITY_TEXT)
            fail_msg("%s should be text", no[i]);
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++)
        if (ocr_quantity(nothing[i], strlen(nothing[i])) != OCR_QUANTITY_NONE)
            fail_msg("%s should be nothing", nothing[i]);
}

static void widths(void **state)
{
    (void)state;
    assert_int_equal(ocr_display_width("abc", 3), 3);
    assert_int_equal(ocr_display_width("\xc3\xa9", 2), 1);
    assert_int_equal(ocr_display_width("e\xcc\x81", 3), 1);
    assert_int_equal(ocr_display_width("\xe6\x97\xa5", 3), 2);
    assert_int_equal(ocr_display_width("\xef\xbc\xa3", 3), 2);
    assert_int_equal(ocr_display_width("\xf0\x9f\x98\x80", 4), 2);
    assert_int_equal(ocr_display_width("\xf4\x8f\xbf\xbf", 4), 1);
}

/* ---- bound and loops ---------------------------------------------------- */

static struct finished finish_repeated(const char *before, const char *part,
                                       size_t times, const char *after)
{
    const size_t n = strlen(part);
    const size_t len = strlen(before) + n * times + strlen(after);
    char *text = malloc(len + 1), *at = stpcpy(text, before);
    struct finished f;

    for (size_t i = 0; i < times; i++)
        at = stpcpy(at, part);
    stpcpy(at, after);
    f = finish(text, len);
    free(text);
    return f;
}

static void numbered_lines(char *out, size_t lines_wanted, const char *before,
                           const char *after)
{
    for (size_t i = 0; i < lines_wanted; i++)
        out += sprintf(out, "%s%05u%s\n", before, (unsigned)(i * 7919 % 100003),
                       after);
}

static void long_texts_are_cut_at_a_line_end(void **state)
{
    char *text = malloc(1 << 20);
    struct finished f;

    (void)state;
    numbered_lines(text, 20000, "Line with number ", ".");
    f = finish(text, strlen(text));
    assert_int_equal(f.flags, OCR_TEXT_CUT);
    assert_in_range(f.len, OCR_PAGE_TEXT_MAX - 30, OCR_PAGE_TEXT_MAX);
    assert_memory_equal(f.text, text, f.len);
    assert_sound(&f);
    free(f.text);

    memset(text, 'x', 1 << 20); /* one line; not a loop: */
    for (size_t i = 0; i < 1 << 20; i++)
        text[i] = (char)('a' + rnd(26));
    f = finish(text, 1 << 20);
    assert_int_equal(f.flags, OCR_TEXT_CUT);
    assert_int_equal(f.len, OCR_PAGE_TEXT_MAX);
    assert_sound(&f);
    free(f.text);
    free(text);
}

static void padding_goes_before_text(void **state)
{
    char *text = malloc(1 << 20), *at = text;
    struct finished f;

    (void)state;
    at += sprintf(at, "| a | %0200d |\n| --- | --- |\n", 0);
    numbered_lines(at, 3000, "| x | ", " |");
    f = finish(text, strlen(text));
    assert_int_equal(f.flags, 0);
    assert_non_null(strstr(f.text, "\n| x | 00000 |\n"));
    assert_non_null(strstr(f.text, "\n| x | 48370 |\n")); /* the last */
    assert_sound(&f);
    free(f.text);
    free(text);
}

static void loops_end(void **state)
{
    struct finished f;

    (void)state;
    f = finish_repeated("Text.\n", "the same again and ", 2000, "the sa");
    assert_int_equal(f.flags, OCR_TEXT_LOOP);
    assert_string_equal(f.text, "Text.\nthe same again and the same again and "
                                "the same again and\n");
    assert_sound(&f);
    free(f.text);

    f = finish_repeated("# A\n\n", "| 1 | 2 |\n", 3000, "| 1 |");
    assert_int_equal(f.flags, OCR_TEXT_LOOP);
    assert_in_range(f.len, 20, 60);
    assert_sound(&f);
    free(f.text);

    f = finish_repeated("<table><tr><th>a</th><th>b</th></tr>",
                        "<tr><td>some words</td><td>12.00</td></tr>", 500,
                        "<tr><td>some wo");
    assert_int_equal(f.flags, OCR_TEXT_LOOP);
    assert_in_range(f.len, 60, 200);
    assert_sound(&f);
    free(f.text);

    f = finish_repeated("Sum: ", "\xe2\x82\xac ", 9000, "");
    assert_int_equal(f.flags, OCR_TEXT_LOOP);
    assert_sound(&f);
    free(f.text);
}

static void real_repetition_stays(void **state)
{
    struct finished f;

    (void)state;
    f = finish_repeated("<table><tr><th>a much wider header</th><th>b</th>"
                        "<th>c</th><th>d</th></tr>",
                        "<tr><td>closed</td><td>0.00</td><td>0</td><td>n</td>"
                        "</tr>",
                        200, "</table>");
    assert_int_equal(f.flags, 0);
    assert_sound(&f);
    free(f.text);

    f = finish_repeated("Introduction ", ".", 200, " 7\n");
    assert_int_equal(f.flags, 0);
    free(f.text);

    f = finish_repeated("Name: ", "_", 240, "");
    assert_int_equal(f.flags, 0);
    assert_int_equal(f.len, 247);
    free(f.text);

    f = finish_repeated("", "la la la\n", 4000, "\nThe end of the song.");
    assert_int_equal(f.flags, 0);
    assert_non_null(strstr(f.text, "\nThe end of the song.\n"));
    free(f.text);
}

/* ---- hostile ------------------------------------------------------------ */

/* A quadratic step would take minutes here, and the time limit of the test
 * run would end it; no time is measured. */
static void a_mebibyte_of_anything(void **state)
{
    static const char *const parts[] = {
        "<",
        "|",
        "\n",
        "<table>",
        "<table",
        "<table>\n",
        "<td>",
        "<tr>",
        "<table><tr>\n",
        "<table><td>",
        "</table>",
        "<tr><td colspan=128>",
        "<table><tr><td rowspan=9999 colspan=9999>",
        "&",
        "&#",
        "&lt;",
        "\\",
        "\\|",
        "`",
        "```\n",
        "~~~\n",
        "|-|\n",
        "|\n|-\n",
        "a|b\n-|-\n",
        "|||||||||||||||||||||||||\n|-\n",
        "<script>",
        "<table><script><",
        "\xff",
        "\xe2\x80\xa8",
        "\xef\xbb\xbf",
        "    \n",
        "\t",
        " ",
        "\r\n",
        "<table><caption>x",
        "<br>",
        "<!--",
        "\xcc\x81",
        "| 1 | 22 |\n",
        "<table>x</table>",
        "<table></table>",
        "(",
        "1,",
        "<td><table>",
    };

    (void)state;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct finished f =
            finish_repeated("", parts[i], (1 << 20) / strlen(parts[i]), "");
        assert_sound(&f);
        free(f.text);
        f = finish_repeated("|a|b|\n|-|-|\n<table><tr><td>", parts[i], 3000,
                            "x");
        assert_sound(&f);
        free(f.text);
    }
}

static size_t random_text(char *out, size_t pieces)
{
    static const char *const words[] = {
        "<table>",
        "</table>",
        "<tr>",
        "</tr>",
        "<td>",
        "</td>",
        "<th>",
        "<td colspan=3>",
        "<td rowspan=2>",
        "<thead>",
        "</thead>",
        "<br>",
        "<p>",
        "<b>",
        "<caption>",
        "</caption>",
        "<script>",
        "</script>",
        "&lt;",
        "&amp;",
        "&#124;",
        "&#10;",
        "&",
        "<",
        ">",
        "|",
        "|",
        "|",
        "\\",
        "\\|",
        "\n",
        "\n",
        "\n",
        "\n\n\n",
        "|---|---|\n",
        "|---:|:-:|\n",
        "| a | b |\n",
        "---|---\n",
        "```",
        "~~~",
        "```\n",
        "~~~\n",
        " ",
        "  ",
        "\t",
        "-",
        "--",
        ":",
        "1",
        "12.50",
        "1,000",
        "EUR",
        "word",
        "\xff",
        "\xe6\x97\xa5",
        "\xcc\x81",
        "\xe2\x80\xa8",
        "\xef\xbb\xbf",
        "\r",
        "# ",
        "* ",
        "table",
        "/",
        "=",
        "\"",
        "    ",
    };
    char *at = out;

    for (size_t i = 0; i < pieces; i++)
        at = stpcpy(at, words[rnd(sizeof words / sizeof *words)]);
    return (size_t)(at - out);
}

static void random_texts_are_sound(void **state)
{
    char *text = malloc(1 << 20);

    (void)state;
    for (uint32_t n = 0; n < 6000; n++) {
        struct finished f;
        size_t len;
        seed = n;
        len = random_text(text, 1 + rnd(n % 50 == 0 ? 20000 : 60));
        for (size_t i = rnd(4); i > 0 && len; i--)
            text[rnd((uint32_t)len)] = (char)rnd(256);
        f = finish(text, len);
        assert_sound(&f);
        free(f.text);
    }
    free(text);
}

static void test_plain_text_stays_what_it_is(void **state)
{
    static const struct {
        const char *plain, *marked;
    } texts[] = {
        {"", ""},
        {"12,345.67 foo_bar $5", "12,345.67 foo_bar $5\n"},
        {"  indented\n\tmore\n", "indented\nmore\n"},
        {"# 1 | 2 * 3 <b> `x` [a](b)",
         "\\# 1 \\| 2 \\* 3 \\<b> \\`x\\` [a\\](b)\n"},
        {"> said\na > b\nc:\\d", "\\> said\na > b\nc:\\\\d\n"},
        {"Title\n---\n- item\n===", "Title\n\\---\n- item\n\\===\n"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *out;
        size_t len;

        assert_int_equal(ocr_finish_plain(&out, &len, texts[i].plain,
                                          strlen(texts[i].plain), NULL),
                         0);
        assert_string_equal(out, texts[i].marked);
        assert_int_equal(len, strlen(out));
        free(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_text_stays_what_it_is),
        cmocka_unit_test(characters),
        cmocka_unit_test(lines),
        cmocka_unit_test(html_tables),
        cmocka_unit_test(html_cells),
        cmocka_unit_test(html_spans),
        cmocka_unit_test(html_that_is_broken),
        cmocka_unit_test(pipe_tables),
        cmocka_unit_test(html_tables_may_stay),
        cmocka_unit_test(numbers),
        cmocka_unit_test(widths),
        cmocka_unit_test(long_texts_are_cut_at_a_line_end),
        cmocka_unit_test(padding_goes_before_text),
        cmocka_unit_test(loops_end),
        cmocka_unit_test(real_repetition_stays),
        cmocka_unit_test(a_mebibyte_of_anything),
        cmocka_unit_test(random_texts_are_sound),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
