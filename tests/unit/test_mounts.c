/* The mount table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fs/mounts.h"

#include <string.h>

static const char table[] =
    "22 27 0:21 / /proc rw,nosuid shared:12 - proc proc rw\n"
    "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw,errors=x\n"
    "garbage\n"
    "40 27 0:50 / /mnt/my\\040scans\\054a ro - fuse.ocrfs /data/a\\012b "
    "rw,user_id=0\n"
    "41 27 0:51 / /mnt/x ro,nosuid - fuse.sshfs host: rw\n"
    "42 41 0:52 / /mnt/x ro,nosuid shared:9 master:3 - fuse.ocrfs /s rw\n"
    "43 27 0:z / /bad ro - fuse.ocrfs /s rw\n"
    "44 27 0:53 / /short ro - fuse.ocrfs\n";

static void parse(struct ocr_mounts *mounts)
{
    struct ocr_err err = OCR_ERR_INIT;

    assert_int_equal(ocr_mounts_parse(mounts, strdup(table), &err), 0);
}

static void a_table_is_parsed_and_nonsense_left_out(void **state)
{
    struct ocr_mounts mounts;

    (void)state;
    parse(&mounts);
    assert_int_equal(mounts.count, 5);
    assert_string_equal(mounts.list[0].point, "/proc");
    assert_string_equal(mounts.list[1].source, "/dev/root");
    assert_string_equal(mounts.list[1].options, "rw,errors=x");
    assert_int_equal(mounts.list[1].major, 254);
    ocr_mounts_release(&mounts);
}

static void escapes_are_undone(void **state)
{
    struct ocr_mounts mounts;
    const struct ocr_mount *mount;

    (void)state;
    parse(&mounts);
    mount = ocr_mounts_at(&mounts, "/mnt/my scans,a");
    assert_non_null(mount);
    assert_string_equal(mount->source, "/data/a\nb");
    assert_true(ocr_mount_is_ours(mount));
    ocr_mounts_release(&mounts);
}

static void the_last_mount_at_a_point_is_seen(void **state)
{
    struct ocr_mounts mounts;
    const struct ocr_mount *mount;

    (void)state;
    parse(&mounts);
    mount = ocr_mounts_at(&mounts, "/mnt/x");
    assert_non_null(mount);
    assert_int_equal(mount->minor, 52);
    assert_null(ocr_mounts_at(&mounts, "/mnt"));
    assert_true(ocr_mounts_have(&mounts, 0, 51));
    assert_false(ocr_mounts_have(&mounts, 1, 51));
    assert_false(ocr_mounts_have(&mounts, 0, 53));
    ocr_mounts_release(&mounts);
}

static void our_own_table_has_proc(void **state)
{
    struct ocr_mounts mounts;
    const struct ocr_mount *mount;

    (void)state;
    assert_int_equal(ocr_mounts_read(&mounts, NULL), 0);
    mount = ocr_mounts_at(&mounts, "/proc");
    assert_non_null(mount);
    assert_string_equal(mount->type, "proc");
    assert_false(ocr_mount_is_ours(mount));
    ocr_mounts_release(&mounts);
}

static void below_is_by_whole_names(void **state)
{
    (void)state;
    assert_true(ocr_path_is_below("/a/b", "/a/b"));
    assert_true(ocr_path_is_below("/a/b/c", "/a/b"));
    assert_true(ocr_path_is_below("/a/b/c", "/a/b/"));
    assert_true(ocr_path_is_below("/a", "/"));
    assert_false(ocr_path_is_below("/a/bc", "/a/b"));
    assert_false(ocr_path_is_below("/a", "/a/b"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_is_parsed_and_nonsense_left_out),
        cmocka_unit_test(escapes_are_undone),
        cmocka_unit_test(the_last_mount_at_a_point_is_seen),
        cmocka_unit_test(our_own_table_has_proc),
        cmocka_unit_test(below_is_by_whole_names),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
