/* Which names are images, and which names are texts. */
#include "fs/fs_i.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

static void endings_of_images_count_in_any_case(void **state)
{
    (void)state;
    assert_true(names_is_image("a.png"));
    assert_true(names_is_image("A.PNG"));
    assert_true(names_is_image("a.b.JpEg"));
    assert_true(names_is_image("a.jpe"));
    assert_true(names_is_image("a.jfif"));
    assert_true(names_is_image("\xff\xfe.jpg"));
    assert_false(names_is_image("png"));
    assert_false(names_is_image(".png"));
    assert_false(names_is_image("a.png.md"));
    assert_false(names_is_image("a.pngx"));
    assert_false(names_is_image("a.tif"));
    assert_false(names_is_image(""));
}

static void only_regular_images_have_texts(void **state)
{
    (void)state;
    assert_true(names_has_text("a.png", S_IFREG | 0644, ".md", false));
    assert_false(names_has_text("a.png", S_IFREG | 0644, ".md", true));
    assert_false(names_has_text("a.png", S_IFDIR | 0755, ".md", false));
    assert_false(names_has_text("a.png", S_IFLNK | 0777, ".md", false));
    assert_false(names_has_text("a.png", S_IFIFO, ".md", false));
    assert_false(names_has_text("a.txt", S_IFREG, ".md", false));
}

/* A name of `len` bytes that ends so. */
static void long_name(char name[300], size_t len, const char *end)
{
    memset(name, 'x', 300);
    memcpy(name + len - strlen(end), end, strlen(end) + 1);
}

static void a_text_name_has_255_bytes_at_most(void **state)
{
    char name[300];

    (void)state;
    long_name(name, 252, ".png");
    assert_true(names_has_text(name, S_IFREG, ".md", false));
    long_name(name, 253, ".png");
    assert_false(names_has_text(name, S_IFREG, ".md", false));
}

static void a_text_name_leads_to_its_image(void **state)
{
    char name[300];

    (void)state;
    assert_int_equal(names_image_len("a.png.md", ".md"), 5);
    assert_int_equal(names_image_len("a.PNG.md", ".md"), 5);
    assert_int_equal(names_image_len("a.png.MD", ".md"), 0);
    assert_int_equal(names_image_len("a.png", ".md"), 0);
    assert_int_equal(names_image_len(".md", ".md"), 0);
    assert_int_equal(names_image_len("a.txt.md", ".md"), 0);
    assert_int_equal(names_image_len("a.png.png", ".png"), 5);
    long_name(name, 256, ".png.md");
    assert_int_equal(names_image_len(name, ".md"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(endings_of_images_count_in_any_case),
        cmocka_unit_test(only_regular_images_have_texts),
        cmocka_unit_test(a_text_name_has_255_bytes_at_most),
        cmocka_unit_test(a_text_name_leads_to_its_image),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
