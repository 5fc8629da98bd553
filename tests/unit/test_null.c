#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/io.h"
#include "engine/recogniser.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct ocr_recogniser_ops *const null = &ocr_recogniser_null;

static struct ocr_recogniser *opened(const char *arguments)
{
    const struct ocr_recogniser_config config = {
        .arguments = arguments, .device = "auto", .model = ""};
    struct ocr_recogniser *r = NULL;

    assert_int_equal(null->open(&r, &config, NULL), 0);
    return r;
}

static uint8_t pixels[64 * 64];

static int submit(struct ocr_recogniser *r, uint64_t id, uint32_t width,
                  uint32_t height)
{
    const struct ocr_page page = {
        .id = id,
        .image = {.width = width,
                  .height = height,
                  .channels = 1,
                  .pixels = pixels},
        .settings = "",
    };

    return null->submit(r, &page, NULL);
}

static struct ocr_recognised next(struct ocr_recogniser *r)
{
    struct ocr_recognised out;

    assert_int_equal(null->next(r, &out), 0);
    return out;
}

static void close_it(struct ocr_recogniser *r)
{
    struct ocr_recognised out;

    null->wake(r);
    assert_int_equal(null->next(r, &out), -ESHUTDOWN);
    null->close(r);
}

static void text_is_made_from_the_pixels(void **state)
{
    struct ocr_recogniser *r = opened("");
    struct ocr_recognised out;

    (void)state;
    for (uint8_t i = 0; i < 9; i++)
        pixels[i] = '1' + i;
    assert_int_equal(submit(r, 7, 9, 1), 0);
    out = next(r);
    assert_int_equal(out.id, 7);
    assert_int_equal(out.kind, OCR_KIND_NONE);
    /* The check value of CRC-32. */
    assert_string_equal(out.text, "# null 9x1\n\nchecksum cbf43926\n");
    assert_int_equal(out.len, strlen(out.text));
    free(out.text);
    close_it(r);
}

static void pages_sleep_side_by_side(void **state)
{
    struct ocr_recogniser *r = opened("50ms:workers=20");
    const int64_t start = ocr_now_ms();

    (void)state;
    assert_int_equal(null->capacity(r), 20);
    for (uint64_t id = 1; id <= 20; id++)
        assert_int_equal(submit(r, id, 8, 8), 0);
    assert_int_equal(submit(r, 21, 8, 8), -EAGAIN);
    for (uint64_t id = 1; id <= 20; id++) {
        const struct ocr_recognised out = next(r);
        assert_int_equal(out.id, id);
        free(out.text);
    }
    assert_true(ocr_now_ms() - start >= 50);
    assert_int_equal(submit(r, 22, 8, 8), 0); /* room again */
    close_it(r);
}

static void failing_and_large_pages(void **state)
{
    struct ocr_recogniser *r = opened("fail=3x4:big=5x6x100000");
    struct ocr_recognised out;

    (void)state;
    assert_int_equal(submit(r, 1, 3, 4), 0);
    assert_int_equal(submit(r, 2, 5, 6), 0);
    out = next(r);
    assert_int_equal(out.kind, OCR_KIND_FAILED);
    assert_null(out.text);
    assert_non_null(strstr(out.sentence, "3x4"));
    out = next(r);
    assert_int_equal(out.kind, OCR_KIND_NONE);
    assert_int_equal(out.len, 100000);
    assert_int_equal(strlen(out.text), 100000);
    free(out.text);
    close_it(r);
}

static void a_hanging_page_can_be_cancelled(void **state)
{
    struct ocr_recogniser *r = opened("hang=8x8");
    struct ocr_recognised out;

    (void)state;
    assert_int_equal(submit(r, 1, 8, 8), 0);
    assert_int_equal(submit(r, 2, 4, 4), 0);
    out = next(r);
    assert_int_equal(out.id, 2);
    free(out.text);
    null->cancel(r, 99);
    null->cancel(r, 1);
    out = next(r);
    assert_int_equal(out.id, 1);
    assert_int_equal(out.kind, OCR_KIND_CANCELLED);
    close_it(r);
}

static void *wake_later(void *arg)
{
    usleep(20000);
    null->wake(arg);
    return NULL;
}

static void wake_ends_a_waiting_next(void **state)
{
    struct ocr_recogniser *r = opened("10s");
    struct ocr_recognised out;
    pthread_t thread;

    (void)state;
    assert_int_equal(submit(r, 1, 8, 8), 0);
    assert_int_equal(pthread_create(&thread, NULL, wake_later, r), 0);
    assert_int_equal(null->next(r, &out), -ESHUTDOWN);
    assert_int_equal(null->next(r, &out), -ESHUTDOWN);
    pthread_join(thread, NULL);
    null->close(r);
}

static void the_crashing_page_kills_the_process(void **state)
{
    pid_t pid;
    int status;

    (void)state;
    pid = fork();
    if (pid == 0) {
        struct ocr_recogniser *r = opened("crash=8x8");
        signal(SIGSEGV, SIG_DFL); /* not cmocka's */
        submit(r, 1, 8, 8);
        next(r);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSEGV);
}

static void wrong_arguments_are_named(void **state)
{
    static const char *const wrong[] = {
        "slow",
        "200",
        "-5ms",
        "ms",
        "workers=0",
        "crash=8",
        "crash=8x8x",
        "big=8x8",
        "2h",
        "workers=9999999",
        "fail=axb",
        "big=1x1x99999999999",
        "200ms:nonsense",
    };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const struct ocr_recogniser_config config = {
            .arguments = wrong[i], .device = "auto", .model = ""};
        struct ocr_recogniser *r = NULL;
        struct ocr_err err = OCR_ERR_INIT;
        assert_int_equal(null->open(&r, &config, &err), -EINVAL);
        assert_non_null(strstr(err.text, "null"));
        assert_null(r);
    }
}

static void it_has_a_fingerprint(void **state)
{
    struct ocr_recogniser *r = opened("2s");
    char out[64];

    (void)state;
    assert_int_equal(null->fingerprint(r, "lang=deu\n", out, sizeof out, NULL),
                     0);
    assert_string_equal(out, "null 1");
    null->wake(r);
    null->close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_made_from_the_pixels),
        cmocka_unit_test(pages_sleep_side_by_side),
        cmocka_unit_test(failing_and_large_pages),
        cmocka_unit_test(a_hanging_page_can_be_cancelled),
        cmocka_unit_test(wake_ends_a_waiting_next),
        cmocka_unit_test(the_crashing_page_kills_the_process),
        cmocka_unit_test(wrong_arguments_are_named),
        cmocka_unit_test(it_has_a_fingerprint),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
