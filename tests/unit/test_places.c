/* SOURCE and MOUNTPOINT before a mount. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fs/places.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char base[64], source[100], mountpoint[100], file[100];
static struct ocr_err err;

static int setup(void **state)
{
    (void)state;
    snprintf(base, sizeof base, "/tmp/ocrfs-test-XXXXXX");
    assert_non_null(mkdtemp(base));
    snprintf(source, sizeof source, "%s/source", base);
    snprintf(mountpoint, sizeof mountpoint, "%s/mnt", base);
    snprintf(file, sizeof file, "%s/file", base);
    assert_int_equal(mkdir(source, 0700) | mkdir(mountpoint, 0700), 0);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    ocr_err_clear(&err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(file);
    rmdir(source);
    rmdir(mountpoint);
    rmdir(base);
    return 0;
}

static void refused(enum ocr_exit status, const char *from, const char *at,
                    const char *word)
{
    struct ocr_places p;

    ocr_err_clear(&err);
    assert_int_equal(ocr_places_open(&p, from, at, &err), status);
    assert_non_null(strstr(err.text, word));
    assert_null(p.source);
    assert_int_equal(p.source_fd, -1);
}

static void both_are_resolved(void **state)
{
    struct ocr_places p;
    struct stat a, b;
    char relative[200], link[150];

    (void)state;
    snprintf(relative, sizeof relative, "%s/../source", source);
    snprintf(link, sizeof link, "%s/link", base);
    assert_int_equal(symlink(mountpoint, link), 0);
    assert_int_equal(ocr_places_open(&p, relative, link, &err), OCR_EXIT_OK);
    assert_string_equal(p.source, source);
    assert_string_equal(p.name, relative);
    assert_string_equal(p.mountpoint, mountpoint);
    assert_int_equal(p.device, -1);
    assert_int_equal(fstat(p.source_fd, &a) | stat(source, &b), 0);
    assert_true(a.st_ino == b.st_ino);
    assert_true(fcntl(p.source_fd, F_GETFD) & FD_CLOEXEC);
    ocr_places_release(&p);
    unlink(link);
}

static void what_is_missing_has_its_own_status(void **state)
{
    char nowhere[150];

    (void)state;
    snprintf(nowhere, sizeof nowhere, "%s/nowhere", base);
    refused(OCR_EXIT_NO_MOUNTPOINT, source, nowhere, nowhere);
    refused(OCR_EXIT_NO_MOUNTPOINT, source, file, "Not a directory");
    refused(OCR_EXIT_SETUP, nowhere, mountpoint, nowhere);
    refused(OCR_EXIT_SETUP, file, mountpoint, "Not a directory");
}

static void a_passed_device_is_taken_as_it_is(void **state)
{
    struct ocr_places p;

    (void)state;
    assert_int_equal(ocr_places_open(&p, source, "/dev/fd/7", &err),
                     OCR_EXIT_OK);
    assert_int_equal(p.device, 7);
    assert_string_equal(p.mountpoint, "/dev/fd/7");
    assert_int_equal(ocr_places_allow(&p, source, "cache", &err), OCR_EXIT_OK);
    ocr_places_release(&p);
    refused(OCR_EXIT_NO_MOUNTPOINT, source, "/dev/fd/7x", "/dev/fd/7x");
}

static void own_folders_below_the_mount_point_are_refused(void **state)
{
    struct ocr_places p;
    char inside[150];

    (void)state;
    snprintf(inside, sizeof inside, "%s/cache", mountpoint);
    assert_int_equal(mkdir(inside, 0700), 0);
    assert_int_equal(ocr_places_open(&p, source, mountpoint, &err),
                     OCR_EXIT_OK);
    assert_int_equal(ocr_places_allow(&p, source, "cache", &err), OCR_EXIT_OK);
    assert_int_equal(ocr_places_allow(&p, inside, "cache", &err),
                     OCR_EXIT_MOUNT);
    assert_non_null(strstr(err.text, "-o cache=DIR"));
    snprintf(inside, sizeof inside, "%s/not/there/yet", mountpoint);
    assert_int_equal(ocr_places_allow(&p, inside, "cache", &err),
                     OCR_EXIT_MOUNT);
    snprintf(inside, sizeof inside, "%s/not/there/yet", source);
    assert_int_equal(ocr_places_allow(&p, inside, "cache", &err), OCR_EXIT_OK);
    assert_int_equal(ocr_places_allow(&p, "/x/y", "cache", &err), OCR_EXIT_OK);
    snprintf(inside, sizeof inside, "%s/cache", mountpoint);
    ocr_err_clear(&err);
    assert_int_equal(ocr_places_allow(&p, mountpoint, "runtime", &err),
                     OCR_EXIT_MOUNT);
    ocr_places_release(&p);
    rmdir(inside);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(both_are_resolved),
        TEST(what_is_missing_has_its_own_status),
        TEST(a_passed_device_is_taken_as_it_is),
        TEST(own_folders_below_the_mount_point_are_refused),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
