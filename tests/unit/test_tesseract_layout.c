/* Words with boxes become Markdown in reading order. */
#include "engine/tesseract/layout_i.h"
#include "engine/tesseract/text.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum {
    XH = 20,
    PITCH = 52,
    SPACE = 12,
    LETTER = 20
};

struct sheet {
    struct tess_words words;
    char *text;
};

/* One line of type of x-height `xh`, its baseline at y. Words are parted by
 * one space in `line`, wider gaps by more: each is 40 pixels more. */
static void set_type(struct sheet *sheet, float x, float y, float xh,
                     float stroke, const char *line)
{
    sheet->words.lines++;
    while (*line) {
        size_t n = strcspn(line, " "), gap = strspn(line + n, " ");
        struct tess_word *word = tess_words_add(&sheet->words);
        float width;

        assert_non_null(word);
        word->text = strndup(line, n);
        assert_non_null(word->text);
        width = (float)text_letters(word->text) * LETTER * xh / XH;
        word->conf = 95;
        word->line = sheet->words.lines;
        word->xh = xh;
        word->stroke = stroke;
        word->bullet = text_is_bullet(word->text);
        word->box.x0 = (int)x;
        word->box.x1 = (int)(x + width);
        word->box.y1 = (int)(y + text_depth(word->text) * xh);
        word->box.y0 = (int)(y - 1.4f * xh);
        x += width + SPACE + (gap > 1 ? 40 * (float)(gap - 1) : 0);
        line += n + gap;
    }
}

static void body(struct sheet *sheet, float x, float y, const char *line)
{
    set_type(sheet, x, y, XH, 3, line);
}

static void assert_layout(struct sheet *sheet, const char *expected)
{
    struct tess_image image = {.xh = XH};
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_buf out;

    ocr_buf_init(&out, 1 << 20);
    assert_int_equal(tess_layout(&out, &sheet->words, &image, &err), 0);
    assert_string_equal(out.data ? out.data : "", expected);
    ocr_buf_release(&out);
    tess_words_release(&sheet->words);
}

static void a_page_without_words_is_empty(void **state)
{
    struct sheet sheet = {0};

    (void)state;
    assert_layout(&sheet, "");
}

static void full_lines_flow_and_broken_words_are_joined(void **state)
{
    struct sheet sheet = {0};

    (void)state;
    body(&sheet, 0, 100, "The ferry leaves at nine and takes some min-");
    body(&sheet, 0, 100 + PITCH, "utes to cross the bay, unless the fog has");
    body(&sheet, 0, 100 + 2 * PITCH, "come in.");
    assert_layout(&sheet,
                  "The ferry leaves at nine and takes some minutes to cross "
                  "the bay, unless the fog has come in.\n");
}

static void lines_with_room_to_spare_stay_lines(void **state)
{
    struct sheet sheet = {0};

    (void)state;
    body(&sheet, 0, 100, "Harriet Whitlock");
    body(&sheet, 0, 100 + PITCH, "Orchard Lane 12");
    body(&sheet, 0, 100 + 2 * PITCH, "4711 Quenby");
    assert_layout(&sheet, "Harriet Whitlock\nOrchard Lane 12\n4711 Quenby\n");
}

static void larger_type_is_a_heading_and_marks_make_items(void **state)
{
    struct sheet sheet = {0};

    (void)state;
    set_type(&sheet, 0, 100, 34, 5, "Winter report");
    body(&sheet, 0, 220,
         "The bridge was closed twice for repairs and painting.");
    body(&sheet, 0, 320, "\xe2\x80\xa2 first of all");
    body(&sheet, 0, 320 + PITCH, "\xe2\x80\xa2 and then");
    body(&sheet, 0, 520, "1. one of two");
    body(&sheet, 0, 520 + PITCH, "2. two of two");
    assert_layout(&sheet,
                  "# Winter report\n\n"
                  "The bridge was closed twice for repairs and painting.\n\n"
                  "- first of all\n- and then\n"
                  "1. one of two\n2. two of two\n");
}

static void bold_lines_that_stand_apart_are_headings(void **state)
{
    struct sheet sheet = {0};

    (void)state;
    body(&sheet, 0, 100, "We ask all members to return their keys this week.");
    set_type(&sheet, 0, 200, XH, 5, "What to bring");
    body(&sheet, 0, 200 + PITCH,
         "A small fee covers the cost of printing it all.");
    assert_layout(&sheet,
                  "We ask all members to return their keys this week.\n\n"
                  "## What to bring\n\n"
                  "A small fee covers the cost of printing it all.\n");
}

static void columns_of_prose_are_read_one_after_the_other(void **state)
{
    struct sheet sheet = {0};
    static const char *const left[] = {
        "alpha one two three four", "five six seven eight nine",
        "ten eleven and twelve are", "the end of this column."};
    static const char *const right[] = {
        "omega one two three four", "five six seven eight nine",
        "ten eleven and twelve are", "the end of that column."};

    (void)state;
    for (int i = 0; i < 4; i++) {
        body(&sheet, 0, 100.0f + (float)i * PITCH, left[i]);
        body(&sheet, 700, 100.0f + (float)i * PITCH, right[i]);
    }
    assert_layout(&sheet,
                  "alpha one two three four five six seven eight nine ten "
                  "eleven and twelve are the end of this column.\n\n"
                  "omega one two three four five six seven eight nine ten "
                  "eleven and twelve are the end of that column.\n");
}

static void rows_with_amounts_are_a_table(void **state)
{
    struct sheet sheet = {0};

    (void)state;
    body(&sheet, 0, 100, "Item         Paid         Due");
    body(&sheet, 0, 170, "Lamp         9.50         1,20");
    body(&sheet, 0, 240, "Rope         0.75         2,40");
    body(&sheet, 0, 310, "Tape         3.25         7,00");
    assert_layout(&sheet, "| Item | Paid | Due |\n"
                          "| --- | --- | --- |\n"
                          "| Lamp | 9.50 | 1,20 |\n"
                          "| Rope | 0.75 | 2,40 |\n"
                          "| Tape | 3.25 | 7,00 |\n");
}

static void a_column_may_begin_in_a_later_row(void **state)
{
    struct sheet sheet = {0};

    (void)state;
    body(&sheet, 0, 100, "Balance");
    body(&sheet, 800, 100, "10.00");
    body(&sheet, 0, 170, "Cheque");
    body(&sheet, 400, 170, "2.50");
    body(&sheet, 800, 170, "7.50");
    body(&sheet, 0, 240, "Refund");
    body(&sheet, 400, 240, "1.00");
    body(&sheet, 800, 240, "8.50");
    assert_layout(&sheet, "|  |  |  |\n"
                          "| --- | --- | --- |\n"
                          "| Balance |  | 10.00 |\n"
                          "| Cheque | 2.50 | 7.50 |\n"
                          "| Refund | 1.00 | 8.50 |\n");
}

static void a_side_bar_is_read_before_the_page(void **state)
{
    struct sheet sheet = {0};
    static const char *const bar[] = {"News", "Sport", "Letters", "Weather"};

    (void)state;
    for (int i = 0; i < 4; i++)
        body(&sheet, 0, 113.0f + (float)i * 71, bar[i]);
    for (int i = 0; i < 5; i++)
        body(&sheet, 500, 100.0f + (float)i * PITCH,
             "every line of the article is full");
    assert_layout(&sheet,
                  "News\nSport\nLetters\nWeather\n\n"
                  "every line of the article is full every line of the "
                  "article is full every line of the article is full every "
                  "line of the article is full every line of the article is "
                  "full\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_without_words_is_empty),
        cmocka_unit_test(full_lines_flow_and_broken_words_are_joined),
        cmocka_unit_test(lines_with_room_to_spare_stay_lines),
        cmocka_unit_test(larger_type_is_a_heading_and_marks_make_items),
        cmocka_unit_test(bold_lines_that_stand_apart_are_headings),
        cmocka_unit_test(columns_of_prose_are_read_one_after_the_other),
        cmocka_unit_test(rows_with_amounts_are_a_table),
        cmocka_unit_test(a_column_may_begin_in_a_later_row),
        cmocka_unit_test(a_side_bar_is_read_before_the_page),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
