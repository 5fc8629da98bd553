/* The recogniser lighton, with the small trained checkpoint: pages are read,
 * whatever runs beside them, and given up when nobody wants them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/base/io.h"
#include "engine/image/image.h"
#include "engine/protocol.h"
#include "engine/recogniser.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FOLDER "tests/data/tiny-reader"

static const struct ocr_recogniser_ops *const ops = &ocr_recogniser_lighton;

static void *allocate(void *arg, size_t bytes)
{
    (void)arg;
    return calloc(1, bytes);
}

/* Pixels of a page of the checkpoint's; the caller frees them. */
static struct ocr_image page_image(const char *name)
{
    const struct ocr_image_limits limits = OCR_IMAGE_LIMITS_DEFAULT;
    const struct ocr_image_alloc alloc = {.alloc = allocate};
    struct ocr_image image = {0};
    char path[200];
    struct stat st = {0};
    uint8_t *data;
    int fd;

    snprintf(path, sizeof path, FOLDER "/pages/%s.png", name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    data = malloc((size_t)st.st_size + 1);
    assert_non_null(data);
    assert_int_equal(ocr_pread_full(fd, data, (size_t)st.st_size, 0),
                     st.st_size);
    assert_int_equal(ocr_image_decode(&image, data, (size_t)st.st_size, &limits,
                                      &alloc, NULL),
                     0);
    free(data);
    ocr_close(fd);
    return image;
}

static struct ocr_recogniser *open_it(const char *arguments)
{
    const struct ocr_recogniser_config config = {
        .arguments = arguments, .device = "cpu", .model = FOLDER};
    struct ocr_recogniser *r = NULL;
    struct ocr_err err = OCR_ERR_INIT;

    if (ops->open(&r, &config, &err))
        fail_msg("%s", err.text);
    return r;
}

static void close_it(struct ocr_recogniser *r)
{
    struct ocr_recognised out;

    ops->wake(r);
    assert_int_equal(ops->next(r, &out), -ESHUTDOWN);
    ops->close(r);
}

static int submit(struct ocr_recogniser *r, uint64_t id,
                  const struct ocr_image *image, const char *settings)
{
    const struct ocr_page page = {
        .id = id, .image = *image, .settings = settings};

    return ops->submit(r, &page, NULL);
}

/* Pixels that are needed no more come before. */
static void next_result(struct ocr_recogniser *r, struct ocr_recognised *out)
{
    do
        assert_int_equal(ops->next(r, out), 0);
    while (out->pixels_done);
}

/* The text of a page that is read alone; the caller frees it. */
static char *read_alone(struct ocr_recogniser *r, const char *name,
                        const char *settings, unsigned *flags)
{
    struct ocr_image image = page_image(name);
    struct ocr_recognised out;

    assert_int_equal(submit(r, 1, &image, settings), 0);
    next_result(r, &out);
    assert_int_equal(out.id, 1);
    assert_int_equal(out.kind, OCR_KIND_NONE);
    if (flags)
        *flags = out.flags;
    free(image.pixels);
    return out.text;
}

static void a_page_is_read(void **state)
{
    struct ocr_recogniser *r = open_it("");
    unsigned flags = 99;
    char *text = read_alone(r, "page-04-448x140", "", &flags);

    (void)state;
    assert_non_null(strstr(text, "Aburguesei que os"));
    assert_int_equal(flags, 0);
    assert_string_equal(ops->device(r), "cpu");
    free(text);
    close_it(r);
}

/* With a GPU or without, something reads. */
static void the_device_auto_always_reads(void **state)
{
    const struct ocr_recogniser_config config = {
        .arguments = "", .device = "auto", .model = FOLDER};
    struct ocr_recogniser *r = NULL;
    struct ocr_err err = OCR_ERR_INIT;
    char *text;

    (void)state;
    if (ops->open(&r, &config, &err))
        fail_msg("%s", err.text);
    text = read_alone(r, "page-04-448x140", "", NULL);
    assert_non_null(strstr(text, "Aburguesei que os"));
    free(text);
    close_it(r);
}

static void pages_beside_each_other_read_as_if_alone(void **state)
{
    static const char *const names[] = {"page-01-280x56", "page-02-448x84",
                                        "page-03-448x84", "page-04-448x140"};
    enum {
        PAGES = sizeof names / sizeof *names
    };
    struct ocr_recogniser *r = open_it("slots=4");
    const unsigned held = ops->capacity(r);
    struct ocr_image images[PAGES];
    char *alone[PAGES];

    (void)state;
    assert_true(held > PAGES); /* some are made ready beside those that run */
    for (int i = 0; i < PAGES; i++) {
        alone[i] = read_alone(r, names[i], "", NULL);
        images[i] = page_image(names[i]);
    }
    for (unsigned i = 0; i < held; i++)
        assert_int_equal(submit(r, i, &images[i % PAGES], ""), 0);
    assert_int_equal(submit(r, 99, &images[0], ""), -EAGAIN);
    for (unsigned i = 0; i < held; i++) {
        struct ocr_recognised out;

        next_result(r, &out);
        assert_true(out.id < held);
        assert_string_equal(out.text, alone[out.id % PAGES]);
        free(out.text);
    }
    for (int i = 0; i < PAGES; i++) {
        free(images[i].pixels);
        free(alone[i]);
    }
    close_it(r);
}

static void a_limit_of_tokens_cuts_and_says_so(void **state)
{
    struct ocr_recogniser *r = open_it("");
    unsigned flags = 0;
    char *whole = read_alone(r, "page-04-448x140", "", NULL);
    char *cut = read_alone(r, "page-04-448x140", "max_tokens=5\n", &flags);

    (void)state;
    assert_int_equal(flags, OCR_TEXT_CUT);
    assert_true(strlen(cut) > 0 && strlen(cut) < strlen(whole));
    assert_memory_equal(whole, cut, strlen(cut));
    free(whole);
    free(cut);
    close_it(r);
}

static void more_tokens_than_positions_are_said(void **state)
{
    struct ocr_recogniser *r = open_it("");
    struct ocr_recogniser *longer = open_it("max_tokens=6000");
    unsigned flags = 0;
    char *a = read_alone(r, "page-01-280x56", "max_tokens=100000\n", &flags);
    char *b;

    (void)state;
    assert_int_equal(flags, OCR_TEXT_LOWERED);
    b = read_alone(longer, "page-01-280x56", "max_tokens=6000\n", &flags);
    assert_int_equal(flags, 0);
    assert_string_equal(a, b);
    free(a);
    free(b);
    close_it(r);
    close_it(longer);
}

static void it_says_what_it_works_with(void **state)
{
    struct ocr_recogniser *r = open_it("slots=2:precision=int8:threads=1");
    char text[256];

    (void)state;
    ops->describe(r, text, sizeof text);
    assert_non_null(strstr(text, "int8"));
    assert_non_null(strstr(text, "1 thread;"));
    assert_non_null(strstr(text, "MiB (weights "));
    assert_non_null(strstr(text, "2 pages at once"));
    close_it(r);
}

static void sampling_repeats_for_a_page(void **state)
{
    static const char settings[] = "temperature=2\ntop_p=1\n"
                                   "max_tokens=40\n";
    struct ocr_recogniser *r = open_it("");
    char *greedy = read_alone(r, "page-04-448x140", "max_tokens=40\n", NULL);
    char *first = read_alone(r, "page-04-448x140", settings, NULL);
    char *second = read_alone(r, "page-04-448x140", settings, NULL);

    (void)state;
    assert_string_equal(first, second);
    assert_string_not_equal(first, greedy);
    free(greedy);
    free(first);
    free(second);
    close_it(r);
}

static void a_cancelled_page_ends_and_the_others_go_on(void **state)
{
    struct ocr_recogniser *r = open_it("slots=2");
    char *alone = read_alone(r, "page-02-448x84", "", NULL);
    struct ocr_image first = page_image("page-01-280x56");
    struct ocr_image second = page_image("page-02-448x84");
    struct ocr_recognised out[2];

    (void)state;
    assert_int_equal(submit(r, 1, &first, ""), 0);
    assert_int_equal(submit(r, 2, &second, ""), 0);
    ops->cancel(r, 1);
    ops->cancel(r, 77);
    for (int i = 0; i < 2; i++)
        next_result(r, &out[i]);
    for (int i = 0; i < 2; i++) {
        if (out[i].id == 1)
            assert_int_equal(out[i].kind, OCR_KIND_CANCELLED);
        else
            assert_string_equal(out[i].text, alone);
        free(out[i].text);
    }
    free(alone);
    free(first.pixels);
    free(second.pixels);
    close_it(r);
}

static void it_closes_with_pages_in_it(void **state)
{
    struct ocr_recogniser *r = open_it("");
    struct ocr_image image = page_image("page-05-560x224");

    (void)state;
    for (uint64_t id = 0; id < 4; id++)
        assert_int_equal(submit(r, id, &image, ""), 0);
    ops->wake(r);
    ops->close(r);
    free(image.pixels);
}

static void the_fingerprint_tells_precisions_apart(void **state)
{
    struct ocr_recogniser *bf16 = open_it(""),
                          *fp32 = open_it("precision=fp32");
    char a[256], b[256];

    (void)state;
    assert_int_equal(ops->fingerprint(bf16, "", a, sizeof a, NULL), 0);
    assert_int_equal(ops->fingerprint(fp32, "", b, sizeof b, NULL), 0);
    assert_string_not_equal(a, b);
    close_it(bf16);
    close_it(fp32);
}

static void refusals_say_what_is_wrong(void **state)
{
    static const struct {
        const char *arguments, *device, *model;
        const char *words;
    } cases[] = {
        {"", "auto", "", "model=DIR"},
        {"", "cuda:900", FOLDER, "there is no"}, /* driver, GPU, or 900 */
        {"precision=fp16", "cpu", FOLDER, "fp16 is for GPUs"},
        {"memory=1X", "cpu", FOLDER, "'1X' is no size"},
        {"precision=fp4", "cpu", FOLDER, "precision is auto, bf16"},
        {"slots=0", "cpu", FOLDER, "not a number from 1"},
        {"nonsense=1", "cpu", FOLDER, "no argument nonsense"},
        {"", "cpu", "tests/data", "config.json"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct ocr_recogniser_config config = {.arguments =
                                                         cases[i].arguments,
                                                     .device = cases[i].device,
                                                     .model = cases[i].model};
        struct ocr_recogniser *r = NULL;
        struct ocr_err err = OCR_ERR_INIT;

        assert_true(ops->open(&r, &config, &err) < 0);
        assert_null(r);
        if (!strstr(err.text, cases[i].words))
            fail_msg("'%s' does not say '%s'", err.text, cases[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_is_read),
        cmocka_unit_test(the_device_auto_always_reads),
        cmocka_unit_test(pages_beside_each_other_read_as_if_alone),
        cmocka_unit_test(a_limit_of_tokens_cuts_and_says_so),
        cmocka_unit_test(more_tokens_than_positions_are_said),
        cmocka_unit_test(it_says_what_it_works_with),
        cmocka_unit_test(sampling_repeats_for_a_page),
        cmocka_unit_test(a_cancelled_page_ends_and_the_others_go_on),
        cmocka_unit_test(it_closes_with_pages_in_it),
        cmocka_unit_test(the_fingerprint_tells_precisions_apart),
        cmocka_unit_test(refusals_say_what_is_wrong),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
