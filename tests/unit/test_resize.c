/* Resizing: the size rule, and Pillow's bits. */
#include "engine/image/resize.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static void the_size_rule(void **state)
{
    static const uint32_t rows[][6] = {
        /* width, height; by 28: width, height; by 14: width, height */
        {1, 1, 28, 28, 14, 14},
        {28, 28, 28, 28, 28, 28},
        {29, 29, 56, 56, 42, 42},
        {100, 3000, 56, 1540, 56, 1540},
        {3000, 100, 1540, 56, 1540, 56},
        {10, 5000, 28, 1540, 14, 1540},
        {600, 800, 616, 812, 602, 812},
        {850, 1100, 868, 1120, 854, 1106},
        {1080, 1920, 868, 1540, 868, 1540},
        {1190, 1540, 1204, 1540, 1190, 1540},
        {1191, 1540, 1204, 1540, 1204, 1540},
        {1275, 1650, 1204, 1540, 1190, 1540},
        {1700, 2200, 1204, 1540, 1190, 1540},
        {2550, 3300, 1204, 1540, 1190, 1540},
        {1540, 1089, 1540, 1092, 1540, 1092},
        {1540, 1090, 1540, 1092, 1540, 1092},
        {1540, 1540, 1540, 1540, 1540, 1540},
        {1541, 1541, 1540, 1540, 1540, 1540},
        {5000, 5000, 1540, 1540, 1540, 1540},
        {1653, 2339, 1092, 1540, 1092, 1540},
        {1654, 2339, 1092, 1540, 1092, 1540},
        {2480, 3508, 1092, 1540, 1092, 1540},
        {4961, 7016, 1092, 1540, 1092, 1540},
        {3508, 2480, 1540, 1092, 1540, 1092},
        {1, 100000, 28, 1540, 14, 1540},
        {100000, 1, 1540, 28, 1540, 14},
        {910, 2000, 700, 1540, 700, 1540}, /* 700.70 is cut */
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        for (int k = 0; k < 2; k++) {
            uint32_t width, height;

            ocr_resize_size(rows[i][0], rows[i][1], 1540, k ? 14 : 28, &width,
                            &height);
            assert_int_equal(width, rows[i][2 + 2 * k]);
            assert_int_equal(height, rows[i][3 + 2 * k]);
        }
    }
}

static void other_longest_edges(void **state)
{
    uint32_t width, height;

    (void)state;
    ocr_resize_size(224, 112, 112, 28, &width, &height);
    assert_int_equal(width, 112);
    assert_int_equal(height, 56);
    ocr_resize_size(UINT32_MAX, UINT32_MAX, 1540, 28, &width, &height);
    assert_int_equal(width, 1540);
    assert_int_equal(height, 1540);
}

static void worked_examples(void **state)
{
    static const uint8_t edge[] = {0, 255}, one[] = {77};
    static const uint8_t grid[] = {0, 100, 255, 50, 200, 10, 255, 0, 128};
    static const uint8_t dots[] = {0, 255, 0, 255, 0, 255, 255, 0, 0, 255};
    static const uint8_t peak[] = {0, 0, 0, 0, 200, 0, 0, 0, 0};
    static const uint8_t ramp[] = {10, 20, 30, 200, 250, 255};
    static const struct {
        const uint8_t *in;
        uint32_t width, height, to_width, to_height;
        uint8_t out[20];
    } cases[] = {
        {edge, 2, 1, 5, 1, {0, 17, 128, 238, 255}},
        {one, 1, 1, 3, 2, {77, 77, 77, 77, 77, 77}},
        {dots, 10, 1, 4, 1, {111, 130, 169, 89}},
        {ramp, 6, 1, 1, 1, {127}},
        {dots, 1, 7, 1, 3, {111, 122, 209}},
        {peak, 9, 1, 5, 1, {0, 0, 111, 0, 0}},
        {peak, 9, 1, 14, 1, {0, 0, 0, 0, 0, 4, 158, 158, 4}},
        {grid, 3, 3, 5, 4, {0,   24,  95,  211, 255, 9,   77,  177, 129, 85,
                            122, 135, 132, 70,  34,  255, 163, 0,   71,  145}},
    };
    uint8_t out[20];

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(ocr_resize_bicubic(
                             cases[i].in, cases[i].width, cases[i].height, 1,
                             out, cases[i].to_width, cases[i].to_height, NULL),
                         0);
        assert_memory_equal(out, cases[i].out,
                            cases[i].to_width * cases[i].to_height);
    }
}

/* As picture() of tests/reference/resize.py. */
static uint8_t *picture(size_t count, uint64_t seed)
{
    uint8_t *out = malloc(count + 8);

    assert_non_null(out);
    for (size_t i = 0; i < count; i += 8) {
        uint64_t z = (i / 8 + 1) * 0x9E3779B97F4A7C15U + seed;

        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
        z = (z ^ z >> 27) * 0x94D049BB133111EBU;
        z ^= z >> 31;
        memcpy(out + i, &z, 8);
    }
    if (seed % 3 == 1)
        for (size_t i = 0; i < count; i++)
            out[i] = out[i] < 128 ? 0 : 255;
    if (seed % 3 == 2)
        for (size_t i = count; i-- > 0;)
            out[i] = out[i / 32] < 128 ? 0 : 255;
    return out;
}

static void same_bits_as_pillow(void **state)
{
    json_t *file = json_load_file("tests/data/resize.json", 0, NULL);
    json_t *cases = json_object_get(file, "cases"), *row;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(cases), 400);
    json_array_foreach(cases, i, row)
    {
        uint32_t n[7], width, height;
        uint8_t *in, *out;

        for (size_t k = 0; k < COUNT(n); k++)
            n[k] = (uint32_t)json_integer_value(json_array_get(row, k));
        if (n[5] < 300) { /* those that are not arbitrary */
            ocr_resize_size(n[0], n[1], 1540, n[5] % 10 == 9 ? 14 : 28, &width,
                            &height);
            assert_int_equal(width, n[2]);
            assert_int_equal(height, n[3]);
        }
        in = picture((size_t)n[0] * n[1] * n[4], n[5]);
        out = malloc((size_t)n[2] * n[3] * n[4]);
        assert_non_null(out);
        assert_int_equal(
            ocr_resize_bicubic(in, n[0], n[1], n[4], out, n[2], n[3], NULL), 0);
        if (crc32(0, out, n[2] * n[3] * n[4]) != n[6])
            fail_msg("%u x %u x %u to %u x %u, seed %u: other bits", n[0], n[1],
                     n[4], n[2], n[3], n[5]);
        free(in);
        free(out);
    }
    json_decref(file);
}

static void gray_pages_become_rgb(void **state)
{
    uint8_t gray[] = {0, 255}, colour[] = {0, 0, 0, 255, 0, 9};
    struct ocr_image image = {
        .width = 2, .height = 1, .channels = 1, .pixels = gray};
    static const uint8_t want[] = {0, 17, 128, 238, 255};
    uint8_t rgb[15];

    (void)state;
    assert_int_equal(ocr_resize_page(&image, 5, 1, rgb, NULL), 0);
    for (size_t i = 0; i < sizeof rgb; i++)
        assert_int_equal(rgb[i], want[i / 3]);
    image.channels = 3;
    image.pixels = colour;
    assert_int_equal(ocr_resize_page(&image, 5, 1, rgb, NULL), 0);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(rgb[3 * i], want[i]);
        assert_int_equal(rgb[3 * i + 1], 0);
    }
}

static void endless_sides_are_refused(void **state)
{
    struct ocr_err err = OCR_ERR_INIT;
    uint8_t pixel = 0;

    (void)state;
    assert_int_equal(
        ocr_resize_bicubic(&pixel, 4000001, 1, 1, &pixel, 1, 1, &err), -EFBIG);
    assert_int_equal(err.kind, OCR_KIND_TOO_LARGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_size_rule),
        cmocka_unit_test(other_longest_edges),
        cmocka_unit_test(worked_examples),
        cmocka_unit_test(same_bits_as_pillow),
        cmocka_unit_test(gray_pages_become_rgb),
        cmocka_unit_test(endless_sides_are_refused),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
