#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/finish.h"

#include <stdlib.h>
#include <string.h>

struct verdict {
    size_t noticed; /* symbols when add first said so, 0: never */
    size_t keep;
    bool at_end;
};

static struct verdict watch(const uint32_t *symbols, size_t count)
{
    struct ocr_repeat *r = ocr_repeat_new();
    struct verdict v = {0};

    assert_non_null(r);
    for (size_t i = 0; i < count; i++) {
        v.at_end = ocr_repeat_add(r, symbols[i]);
        if (v.at_end && !v.noticed)
            v.noticed = i + 1;
    }
    v.keep = ocr_repeat_keep(r);
    ocr_repeat_free(r);
    return v;
}

static struct verdict watch_text(const char *before, const char *phrase,
                                 size_t turns, const char *after)
{
    const size_t lead = strlen(before), n = strlen(phrase);
    const size_t count = lead + n * turns + strlen(after);
    uint32_t *symbols = calloc(count, sizeof *symbols);
    struct verdict v;

    for (size_t i = 0; i < count; i++) {
        const char *from = i < lead ? before + i
                           : i < lead + n * turns
                               ? phrase + (i - lead) % n
                               : after + i - lead - n * turns;
        symbols[i] = (unsigned char)*from;
    }
    v = watch(symbols, count);
    free(symbols);
    return v;
}

static void assert_passes(const char *phrase, size_t turns)
{
    static const char before[] = "# Some page\n\n";
    const struct verdict v = watch_text(before, phrase, turns, "");

    assert_int_equal(v.noticed, 0);
    assert_int_equal(v.keep, sizeof before - 1 + strlen(phrase) * turns);
}

static void real_repetition_passes(void **state)
{
    char line[121];

    (void)state;
    memset(line, 'x', sizeof line);
    memcpy(line, "| 2026 |", 8);
    line[118] = '|';
    line[119] = '\n';
    line[120] = '\0';
    assert_passes("| 4 | Level transmitter, stainless | 389.50 |\n", 30);
    assert_passes(line, 30);
    assert_passes("| 0 | 0 | 0 | 0 | closed |\n", 200);
    assert_passes("|  |  |  |  |\n", 200);
    assert_passes(".", 300);
    assert_passes(". ", 150);
    assert_passes("-", 200);
    assert_passes("_", 250);
    assert_passes("________________________________________\n", 30);
    assert_passes("", 0);
    assert_passes("a", 1);
}

static void loops_of_every_length_end(void **state)
{
    (void)state;
    for (size_t period = 1; period <= 300; period += period < 20 ? 1 : 7) {
        const size_t lead = 777, count = lead + 16000;
        uint32_t *symbols = calloc(count, sizeof *symbols);
        struct verdict v;

        for (size_t i = 0; i < count; i++)
            symbols[i] = i < lead ? (uint32_t)(i * 2654435761u) >> 7
                                  : (uint32_t)((i - lead) % period) + 100000;
        v = watch(symbols, count);
        assert_true(v.at_end);
        assert_true(v.noticed > lead + 1000);
        assert_int_equal(v.keep, lead + 3 * period);
        free(symbols);
    }
}

static void a_phrase_with_repetition_inside_is_one_phrase(void **state)
{
    struct verdict v;

    (void)state;
    v = watch_text("Start:", "no no no no no yes, 12345 12345 12345 again; ",
                   300, "");
    assert_true(v.at_end);
    assert_int_equal(v.keep, 6 + 3 * 45);
}

static void what_goes_on_is_no_loop(void **state)
{
    struct verdict v;

    (void)state;
    v = watch_text("", "la ", 2000, "and then the page ends.");
    assert_true(v.noticed > 0);
    assert_false(v.at_end);
    assert_int_equal(v.keep, 6023);
}

static void the_end_is_judged_exactly(void **state)
{
    (void)state;
    /* 1,024 symbols count, one less does not, wherever they begin. */
    for (size_t lead = 0; lead < 1500; lead += 83) {
        char *before = calloc(1, lead + 1);
        for (size_t i = 0; i < lead; i++)
            before[i] = (char)('A' + (i * i + i / 7) % 23);
        assert_int_equal(watch_text(before, "-", 1024, "").keep, lead + 3);
        assert_int_equal(watch_text(before, "-", 1023, "").keep, lead + 1023);
        free(before);
    }
}

static void noticed_soon(void **state)
{
    const struct verdict v = watch_text("0123456789", "x", 4000, "");

    (void)state;
    assert_in_range(v.noticed, 10 + 1024, 10 + 1024 + 512);
}

static void random_symbols_never_loop(void **state)
{
    const size_t count = 200000;
    uint32_t *symbols = calloc(count, sizeof *symbols), seed = 1;

    (void)state;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        symbols[i] = seed >> 31; /* bits: the most repetitive there is */
    }
    assert_int_equal(watch(symbols, count).noticed, 0);
    free(symbols);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_repetition_passes),
        cmocka_unit_test(loops_of_every_length_end),
        cmocka_unit_test(a_phrase_with_repetition_inside_is_one_phrase),
        cmocka_unit_test(what_goes_on_is_no_loop),
        cmocka_unit_test(the_end_is_judged_exactly),
        cmocka_unit_test(noticed_soon),
        cmocka_unit_test(random_symbols_never_loop),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
