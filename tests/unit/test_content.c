/* The bytes of an image and their digest, read together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/base/io.h"
#include "engine/content.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint8_t secret[OCR_SECRET_BYTES], other_secret[OCR_SECRET_BYTES];

static int temporary_file(void)
{
    char name[] = "/tmp/ocrfs-content-XXXXXX";
    const int fd = mkstemp(name);

    assert_true(fd >= 0);
    unlink(name);
    return fd;
}

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < OCR_SECRET_BYTES; i++) {
        secret[i] = (uint8_t)(i * 37 + 11);
        other_secret[i] = (uint8_t)(i * 41 + 7);
    }
    return 0;
}

static void a_sealed_copy_has_the_bytes_that_were_hashed(void **state)
{
    enum {
        SIZE = 700001
    }; /* several chunks and an odd end */
    char *data = malloc(SIZE), *copy = malloc(SIZE);
    struct ocr_content content;
    struct ocr_digest digest, other;
    const int fd = temporary_file();

    (void)state;
    for (int i = 0; i < SIZE; i++)
        data[i] = (char)(i * 2654435761u >> 13);
    assert_int_equal(ocr_pwrite_full(fd, data, SIZE, 0), 0);
    assert_int_equal(ocr_content_load(&content, fd, secret, true, NULL, NULL),
                     0);
    assert_true(content.sealed && content.fd >= 0);
    assert_true(content.size == SIZE);
    assert_int_equal(ocr_pread_full(content.fd, copy, SIZE, 0), SIZE);
    assert_memory_equal(data, copy, SIZE);
    assert_int_equal(pwrite(content.fd, "x", 1, 0), -1);
    assert_int_equal(ftruncate(content.fd, 0), -1);
    ocr_digest_of(&digest, data, SIZE, secret);
    assert_memory_equal(&digest, &content.digest, sizeof digest);
    ocr_digest_of(&other, data, SIZE, other_secret);
    assert_memory_not_equal(&digest, &other, sizeof digest);
    data[SIZE - 1] ^= 1;
    ocr_digest_of(&other, data, SIZE, secret);
    assert_memory_not_equal(&digest, &other, sizeof digest);
    ocr_content_release(&content);
    assert_int_equal(content.fd, -1);
    ocr_close(fd);
    free(data);
    free(copy);
}

static void hashing_only_keeps_nothing_and_gives_the_same_digest(void **state)
{
    struct ocr_content kept, hashed;
    const int fd = temporary_file();

    (void)state;
    assert_int_equal(ocr_pwrite_full(fd, "page", 4, 0), 0);
    assert_int_equal(ocr_content_load(&kept, fd, secret, true, NULL, NULL), 0);
    assert_int_equal(ocr_content_load(&hashed, fd, secret, false, NULL, NULL),
                     0);
    assert_int_equal(hashed.fd, -1);
    assert_memory_equal(&kept.digest, &hashed.digest, sizeof kept.digest);
    ocr_content_release(&kept);
    ocr_close(fd);
}

static void an_empty_file_is_content_too(void **state)
{
    struct ocr_content content;
    const int fd = temporary_file();

    (void)state;
    assert_int_equal(ocr_content_load(&content, fd, secret, true, NULL, NULL),
                     0);
    assert_true(content.size == 0);
    ocr_content_release(&content);
    ocr_close(fd);
}

static void above_the_memory_limit_the_file_itself_is_passed_on(void **state)
{
    const off_t size = (off_t)OCR_CONTENT_MEMFD_MAX + 1;
    struct ocr_content content;
    const int fd = temporary_file();

    (void)state;
    assert_int_equal(ftruncate(fd, size), 0); /* a hole: quick to read */
    assert_int_equal(ocr_content_load(&content, fd, secret, true, NULL, NULL),
                     0);
    assert_false(content.sealed);
    assert_true(content.fd >= 0 && content.fd != fd);
    assert_true(content.size == (uint64_t)size);
    ocr_content_release(&content);
    ocr_close(fd);
}

static void refusals_say_why(void **state)
{
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_content content;
    const int fd = temporary_file();
    int ends[2];

    (void)state;
    assert_int_equal(ftruncate(fd, (off_t)OCR_CONTENT_MAX + 1), 0);
    assert_int_equal(ocr_content_load(&content, fd, secret, true, NULL, &err),
                     -EFBIG);
    assert_int_equal(err.kind, OCR_KIND_TOO_LARGE);
    assert_int_equal(pipe(ends), 0);
    ocr_err_clear(&err);
    assert_int_equal(
        ocr_content_load(&content, ends[0], secret, true, NULL, &err),
        -EBADMSG);
    assert_int_equal(err.kind, OCR_KIND_NOT_IMAGE);
    ocr_close(ends[0]);
    ocr_close(ends[1]);
    ocr_close(fd);
}

static void a_set_stop_ends_it(void **state)
{
    struct ocr_content content;
    atomic_bool stop = true;
    const int fd = temporary_file();

    (void)state;
    assert_int_equal(ocr_pwrite_full(fd, "page", 4, 0), 0);
    assert_int_equal(ocr_content_load(&content, fd, secret, true, &stop, NULL),
                     -ECANCELED);
    assert_int_equal(content.fd, -1);
    ocr_close(fd);
}

struct writer {
    int fd;
    atomic_bool stop;
};

static void *keep_writing(void *arg)
{
    struct writer *w = arg;

    for (unsigned i = 0; !atomic_load(&w->stop); i++)
        if (ftruncate(w->fd, (off_t)(8u << 20) + (i & 1)))
            break;
    return NULL;
}

static void a_file_that_never_stands_still_is_given_up(void **state)
{
    struct ocr_err err = OCR_ERR_INIT;
    struct writer w = {.fd = temporary_file()};
    struct ocr_content content;
    pthread_t thread;
    int rc = 0;

    (void)state;
    assert_int_equal(ftruncate(w.fd, 8 << 20), 0);
    assert_int_equal(pthread_create(&thread, NULL, keep_writing, &w), 0);
    /* On a busy machine the writer may not run while the file is read. */
    for (int i = 0; i < 1000 && rc == 0; i++) {
        rc = ocr_content_load(&content, w.fd, secret, true, NULL, &err);
        ocr_content_release(&content);
    }
    assert_int_equal(rc, -EBUSY);
    assert_int_equal(err.kind, OCR_KIND_CHANGING);
    atomic_store(&w.stop, true);
    pthread_join(thread, NULL);
    ocr_close(w.fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sealed_copy_has_the_bytes_that_were_hashed),
        cmocka_unit_test(hashing_only_keeps_nothing_and_gives_the_same_digest),
        cmocka_unit_test(an_empty_file_is_content_too),
        cmocka_unit_test(above_the_memory_limit_the_file_itself_is_passed_on),
        cmocka_unit_test(refusals_say_why),
        cmocka_unit_test(a_set_stop_ends_it),
        cmocka_unit_test(a_file_that_never_stands_still_is_given_up),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, setup, NULL);
}
