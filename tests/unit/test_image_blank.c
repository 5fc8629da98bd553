/* Blank pages: what paper does without any writing is blank, the least that
 * may be writing is not. (The real examples are in test_image.) */
#include "engine/image/image.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct page {
    struct ocr_image image;
    uint32_t seed;
};

static void page_init(struct page *page, uint32_t width, uint32_t height,
                      uint8_t paper)
{
    page->image =
        (struct ocr_image){.width = width, .height = height, .channels = 1};
    page->image.pixels = malloc((size_t)width * height);
    page->seed = 7;
    memset(page->image.pixels, paper, (size_t)width * height);
}

static void check(struct page *page, bool blank)
{
    assert_int_equal(ocr_image_is_blank(&page->image), blank);
    free(page->image.pixels);
}

static double uniform(struct page *page)
{
    page->seed = page->seed * 1664525u + 1013904223u;
    return (page->seed >> 8) / 16777216.0;
}

static uint8_t *at(struct page *page, uint32_t x, uint32_t y)
{
    return page->image.pixels + (size_t)y * page->image.width + x;
}

static void add(uint8_t *pixel, double value)
{
    const double sum = *pixel + value;

    *pixel = (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void add_noise(struct page *page, double sigma)
{
    for (uint32_t y = 0; y < page->image.height; y++) {
        for (uint32_t x = 0; x < page->image.width; x++) {
            double sum = 0;

            for (int i = 0; i < 12; i++)
                sum += uniform(page);
            add(at(page, x, y), (sum - 6) * sigma);
        }
    }
}

/* A seven, `height` pixels high, with strokes of a sixth, made soft by
 * `blur` pixels; what gray it is beside its paper is `contrast`. */
static void write_seven(struct page *page, uint32_t left, uint32_t top,
                        double height, double blur, double contrast)
{
    const double half = height / 12;
    const uint32_t margin = (uint32_t)(3 * blur + 3);

    for (uint32_t v = 0; v < height + 2 * margin; v++) {
        for (uint32_t u = 0; u < height * 0.6 + 2 * margin; u++) {
            const double x = (double)u - margin, y = (double)v - margin;
            const double along = y < 0 ? 0 : y > height ? height : y;
            const double bar =
                hypot(x - fmin(fmax(x, 0), height * 0.6), y - half);
            const double leg =
                fabs(x - (0.6 * height - along * 0.4)) + fabs(y - along);
            const double away = fmin(bar, leg) - half;

            add(at(page, left + u, top + v),
                contrast / (1 + exp(away / fmax(blur, 0.2) * 2)));
        }
    }
}

static void test_plain_pages_are_blank(void **state)
{
    static const uint32_t sizes[][2] = {{1, 1},    {2, 2},      {3, 2},
                                        {1, 3000}, {3000, 1},   {7, 7},
                                        {8, 4000}, {827, 1169}, {2480, 3508}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int paper = 0; paper < 256; paper += 85) {
            struct page page;

            page_init(&page, sizes[i][0], sizes[i][1], (uint8_t)paper);
            check(&page, true);
        }
    }
}

static void test_uneven_light_is_blank(void **state)
{
    struct page page;

    (void)state;
    page_init(&page, 900, 1200, 0);
    for (uint32_t y = 0; y < 1200; y++)
        for (uint32_t x = 0; x < 900; x++)
            *at(&page, x, y) = (uint8_t)(60 + x / 9 + y / 15);
    add_noise(&page, 3);
    check(&page, true);
}

static void test_noise_is_blank(void **state)
{
    (void)state;
    for (int sigma = 1; sigma <= 12; sigma += 3) {
        struct page page;

        page_init(&page, 900, 1200, 230);
        add_noise(&page, sigma);
        check(&page, true);
    }
}

static void test_specks_are_blank(void **state)
{
    struct page page;

    (void)state;
    page_init(&page, 900, 1200, 245);
    add_noise(&page, 2);
    for (int i = 0; i < 200; i++) {
        /* On a grid, so that no two make a larger one. */
        const uint32_t x = 20 + (uint32_t)(i % 14) * 60;
        const uint32_t y = 20 + (uint32_t)(i / 14) * 75;
        const uint32_t size = 1 + (uint32_t)i % 4;

        for (uint32_t k = 0; k < size * size; k++)
            *at(&page, x + k % size, y + k / size) = 10;
    }
    check(&page, true);
}

static void test_soft_faint_writing_is_the_reverse(void **state)
{
    struct page page;

    (void)state;
    page_init(&page, 900, 1200, 245);
    for (int i = 0; i < 300; i++)
        write_seven(&page, 40 + (uint32_t)(i % 20) * 40,
                    40 + (uint32_t)(i / 20) * 70, 36, 3, -28);
    add_noise(&page, 2);
    check(&page, true);
}

static void test_sharp_faint_writing_is_writing(void **state)
{
    struct page page;

    (void)state;
    page_init(&page, 900, 1200, 245);
    write_seven(&page, 400, 600, 24, 0, -30);
    add_noise(&page, 1);
    check(&page, false);
}

static void test_one_character_is_writing(void **state)
{
    static const struct {
        uint8_t paper;
        double contrast;
    } cases[] = {{255, -255}, {255, -100}, {0, 200}, {90, 60}, {200, -60}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct page page;

        page_init(&page, 827, 1169, cases[i].paper);
        write_seven(&page, 700, 1100, 12, 0.5, cases[i].contrast);
        check(&page, false);
    }
}

/* The same page by a scanner of three times the resolution. */
static void test_one_character_of_a_large_page(void **state)
{
    struct page page;

    (void)state;
    page_init(&page, 2480, 3508, 250);
    write_seven(&page, 2100, 3300, 36, 1, -180);
    add_noise(&page, 3);
    check(&page, false);
}

static void test_blurred_writing_is_writing(void **state)
{
    struct page page;

    (void)state;
    page_init(&page, 900, 1200, 200);
    write_seven(&page, 400, 600, 40, 4, -150);
    add_noise(&page, 3);
    check(&page, false);
}

static void test_writing_in_noise_is_writing(void **state)
{
    struct page page;

    (void)state;
    page_init(&page, 900, 1200, 180);
    write_seven(&page, 400, 600, 30, 1, -150);
    add_noise(&page, 10);
    check(&page, false);
}

/* Half of the neighbours differ fully: not noise, whatever the statistics. */
static void test_halftones_are_not_blank(void **state)
{
    struct page page;

    (void)state;
    page_init(&page, 900, 1200, 255);
    for (uint32_t y = 0; y < 1200; y++)
        for (uint32_t x = 0; x < 900; x++)
            if (uniform(&page) < 0.5)
                *at(&page, x, y) = 0;
    check(&page, false);
}

static void test_colour_counts(void **state)
{
    struct ocr_image image = {.width = 60, .height = 60, .channels = 3};

    (void)state;
    image.pixels = malloc(60 * 60 * 3);
    memset(image.pixels, 255, 60 * 60 * 3);
    assert_true(ocr_image_is_blank(&image));
    for (int i = 20; i < 40; i++) /* yellow on white */
        image.pixels[(i * 60 + 30) * 3 + 2] =
            image.pixels[(i * 60 + 31) * 3 + 2] = 0;
    assert_false(ocr_image_is_blank(&image));
    free(image.pixels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_pages_are_blank),
        cmocka_unit_test(test_uneven_light_is_blank),
        cmocka_unit_test(test_noise_is_blank),
        cmocka_unit_test(test_specks_are_blank),
        cmocka_unit_test(test_soft_faint_writing_is_the_reverse),
        cmocka_unit_test(test_sharp_faint_writing_is_writing),
        cmocka_unit_test(test_one_character_is_writing),
        cmocka_unit_test(test_one_character_of_a_large_page),
        cmocka_unit_test(test_blurred_writing_is_writing),
        cmocka_unit_test(test_writing_in_noise_is_writing),
        cmocka_unit_test(test_halftones_are_not_blank),
        cmocka_unit_test(test_colour_counts),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
