/* The settings that travel with a page. */
#include "engine/base/setting.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

static const char *get(const char *settings, const char *name)
{
    static char out[8];

    return ocr_setting(settings, name, "none", out, sizeof(out));
}

static void a_value_is_found_by_its_whole_name(void **state)
{
    (void)state;
    assert_string_equal(get("lang=deu\n", "lang"), "deu");
    assert_string_equal(get("xlang=a\nlang=b\nlanguage=c\n", "lang"), "b");
    assert_string_equal(get("lang=a=b\n", "lang"), "a=b");
    assert_string_equal(get("lang=\n", "lang"), "");
    assert_string_equal(get("a=1\nlang=deu", "lang"), "deu");
}

static void the_last_of_two_lines_counts(void **state)
{
    (void)state;
    assert_string_equal(get("lang=a\nlang=b\n", "lang"), "b");
}

static void without_a_line_the_fallback_is_given(void **state)
{
    (void)state;
    assert_string_equal(get(NULL, "lang"), "none");
    assert_string_equal(get("", "lang"), "none");
    assert_string_equal(get("lang\n\n=x\n", "lang"), "none");
}

static void a_long_value_is_cut_and_terminated(void **state)
{
    (void)state;
    assert_string_equal(get("lang=123456789\n", "lang"), "1234567");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_is_found_by_its_whole_name),
        cmocka_unit_test(the_last_of_two_lines_counts),
        cmocka_unit_test(without_a_line_the_fallback_is_given),
        cmocka_unit_test(a_long_value_is_cut_and_terminated),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
