/* Globs of include= and exclude=, and sizes of pictures for min_pixels=. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/pattern.h"
#include "fs/pixels.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void each_pattern_matches_what_it_says(void **state)
{
    static const struct {
        const char *list, *path;
        bool listed;
    } cases[] = {
        {"", "a.png", false},
        {":", "a.png", false},
        {"*.png", "a.png", true},
        {"*.png", "x/y/a.png", true},
        {"*.png", "a.jpg", false},
        {"*.png", "A.PNG", false},
        {"*.[pP][nN][gG]", "A.PNG", true},
        {"*", ".hidden.png", true},
        {"private", "private/x/a.png", true},
        {"private", "x/private/a.png", true},
        {"private", "x/private.png", false},
        {"x/*.png", "x/a.png", true},
        {"/x/*.png", "x/a.png", true},
        {"x/*.png", "x/y/a.png", false},
        {"x/*.png", "y/x/a.png", false},
        {"x/*", "x/y/a.png", true}, /* y matches: all in it does */
        {"x/", "x/y/a.png", true},
        {"x/", "y/x/a.png", false},
        {"/a.png", "a.png", true},
        {"/a.png", "x/a.png", false},
        {"**/a.png", "a.png", true},
        {"**/a.png", "x/y/a.png", true},
        {"x/**/a.png", "x/a.png", true},
        {"x/**/a.png", "x/y/z/a.png", true},
        {"x/**/a.png", "y/x/a.png", false},
        {"x/**", "x/y/a.png", true},
        {"**/y/*.png", "x/y/y/a.png", true},
        {"**/y/z/**/a?.png", "y/y/z/q/y/a1.png", true},
        {"**/y/z/**/a?.png", "y/y/q/y/a1.png", false},
        {"x**/a.png", "x/y/a.png", false}, /* no part of its own */
        {"*.gif:*.png", "a.png", true},
        {"*.gif::*.png", "a.jpg", false},
        {"\\*.png", "*.png", true},
        {"\\*.png", "a.png", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (pattern_listed(cases[i].path, cases[i].list) != cases[i].listed)
            fail_msg("'%s' and '%s'", cases[i].list, cases[i].path);
}

static void long_parts_and_many_stars_end(void **state)
{
    char path[4096], list[64];

    (void)state;
    memset(path, 'a', 300);
    path[300] = '\0';
    assert_false(pattern_listed(path, "*")); /* no name on any disk */
    for (size_t i = 0; i < sizeof path - 1; i++)
        path[i] = i % 2 ? '/' : 'a';
    path[sizeof path - 1] = '\0';
    snprintf(list, sizeof list, "%s", "**/a/**/a/**/a/**/a/**/a/**/a/**/b");
    assert_false(pattern_listed(path, list));
}

static uint64_t pixels_in(const void *bytes, size_t len)
{
    const int fd = memfd_create("picture", 0);
    uint64_t pixels;

    assert_int_equal(write(fd, bytes, len), len);
    pixels = pixels_of(fd);
    close(fd);
    return pixels;
}

static void the_size_stands_at_the_beginning(void **state)
{
    static const uint8_t png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n',
                                  0,    0,   0,   13,  'I',  'H',  'D',  'R',
                                  0,    0,   1,   0,   0,    0,    0,    2};
    static const uint8_t jpeg[] = {
        0xff, 0xd8, 0xff, 0xe0, 0, 6, 'J', 'F', 'I', 'F', 0xff, 0xff, 0xc4, 0,
        3,    0,    0xff, 0xc2, 0, 8, 8,   0,   16,  0,   32,   3,    0,    0};

    (void)state;
    assert_int_equal(pixels_in(png, sizeof png), 512);
    assert_int_equal(pixels_in(jpeg, sizeof jpeg), 512);
    for (size_t n = 0; n < sizeof png; n++)
        assert_int_equal(pixels_in(png, n), 0);
    for (size_t n = 0; n < 25; n++)
        assert_int_equal(pixels_in(jpeg, n), 0);
}

static void other_kinds_have_theirs_elsewhere(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
        uint64_t pixels;
    } cases[] = {
        {"GIF89a\x10\x00\x20\x00\xf7\x00", 12, 512},
        {"BM......\0\0\0\0\x36\0\x28\0\0\0\x10\0\0\0\x20\0\0\0", 26, 512},
        {"BM......\0\0\0\0\x36\0\x28\0\0\0\x10\0\0\0\xe0\xff\xff\xff", 26, 512},
        {"BM......\0\0\0\0\x1a\0\x0c\0\0\0\x10\0\x20\0\1\0\1\0", 26, 512},
        {"RIFF....WEBPVP8X\x0a\0\0\0\0\0\0\0\x0f\0\0\x1f\0\0", 30, 512},
        {"RIFF....WEBPVP8 ....\x30\x01\0\x9d\x01\x2a\x10\x00\x20\x40", 30, 512},
        {"RIFF....WEBPVP8L....\x2f\x0f\xc0\x07\0.....", 30, 512},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (pixels_in(cases[i].bytes, cases[i].len) != cases[i].pixels)
            fail_msg(
                "case %zu: %llu", i,
                (unsigned long long)pixels_in(cases[i].bytes, cases[i].len));
}

static void what_is_no_picture_has_no_size(void **state)
{
    uint8_t ring[512] = {0xff, 0xd8};

    (void)state;
    assert_int_equal(pixels_in("%PDF-1.4\n....", 13), 0);
    assert_int_equal(pixels_in("RIFF....WAVEfmt ................", 32), 0);
    for (size_t i = 2; i + 4 <= sizeof ring; i += 4) /* segments of no end */
        memcpy(ring + i, (uint8_t[]){0xff, 0xe1, 0, 2}, 4);
    assert_int_equal(pixels_in(ring, sizeof ring), 0);
    memcpy(ring + 2, (uint8_t[]){0xff, 0xda, 0, 2}, 4);
    assert_int_equal(pixels_in(ring, sizeof ring), 0);
    memset(ring + 2, 0xff, sizeof ring - 2);
    assert_int_equal(pixels_in(ring, sizeof ring), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_pattern_matches_what_it_says),
        cmocka_unit_test(long_parts_and_many_stars_end),
        cmocka_unit_test(the_size_stands_at_the_beginning),
        cmocka_unit_test(other_kinds_have_theirs_elsewhere),
        cmocka_unit_test(what_is_no_picture_has_no_size),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
