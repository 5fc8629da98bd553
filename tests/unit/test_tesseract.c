/* The recogniser tesseract as the engine sees it. */
#include "engine/recogniser.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

ocr_recogniser_plugin_fn ocr_recogniser_plugin;

static const struct ocr_recogniser_ops *ops;
static struct ocr_recogniser *tesseract;

static void *zeroed(void *arg, size_t bytes)
{
    (void)arg;
    return calloc(1, bytes);
}

static void load(struct ocr_image *image, const char *name)
{
    const struct ocr_image_limits limits = OCR_IMAGE_LIMITS_DEFAULT;
    const struct ocr_image_alloc alloc = {zeroed, NULL};
    struct ocr_err err = OCR_ERR_INIT;
    char path[256];
    struct stat st;
    uint8_t *data;
    int fd;

    snprintf(path, sizeof(path), "tests/data/%s", name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    data = malloc((size_t)st.st_size);
    assert_non_null(data);
    assert_int_equal(read(fd, data, (size_t)st.st_size), st.st_size);
    close(fd);
    assert_int_equal(ocr_image_decode(image, data, (size_t)st.st_size, &limits,
                                      &alloc, &err),
                     0);
    free(data);
}

static struct ocr_recognised next(void)
{
    struct ocr_recognised result;

    assert_int_equal(ops->next(tesseract, &result), 0);
    return result;
}

/* Reads one image alone. */
static struct ocr_recognised read_one(const char *name, const char *settings)
{
    struct ocr_page page = {.id = 7, .settings = settings};
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_recognised result;

    load(&page.image, name);
    assert_int_equal(ops->submit(tesseract, &page, &err), 0);
    result = next();
    assert_int_equal(result.id, 7);
    free(page.image.pixels);
    return result;
}

static void assert_reads(const char *name, const char *expected)
{
    struct ocr_recognised result = read_one(name, "lang=eng\n");

    assert_int_equal(result.kind, OCR_KIND_NONE);
    assert_non_null(result.text);
    assert_int_equal(strlen(result.text), result.len);
    assert_string_equal(result.text, expected);
    free(result.text);
}

static void text_is_read_whichever_way_it_lies(void **state)
{
    (void)state;
    assert_reads("formats/png-gray8.png", "OCRFS 2026\n");
    assert_reads("formats/content-upside-down.png",
                 "Fed upside down\ninto the scanner\nInvoice 20-7718\n");
    assert_reads("formats/content-rotated-90.png",
                 "Turned by ninety degrees\nwithout any EXIF tag\n"
                 "Order 55-1093\n");
}

static void light_or_pale_type_is_read(void **state)
{
    (void)state;
    assert_reads("formats/content-light-on-dark.png", "OCRFS 2026\n");
    assert_reads("formats/content-low-contrast.png", "OCRFS 2026\n");
}

static struct ocr_recognised read_image(const struct ocr_image *image)
{
    const struct ocr_page page = {
        .id = 9, .image = *image, .settings = "lang=eng\n"};
    struct ocr_err err = OCR_ERR_INIT;

    assert_int_equal(ops->submit(tesseract, &page, &err), 0);
    return next();
}

static uint32_t random_word(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

/* Black dots of `side` pixels on so many of a thousand places. */
static void pepper(struct ocr_image *image, uint32_t side, uint32_t of_1000)
{
    uint64_t state = side + of_1000;

    for (uint32_t y = 0; y + side <= image->height; y += side)
        for (uint32_t x = 0; x + side <= image->width; x += side) {
            if (random_word(&state) % 1000 >= of_1000)
                continue;
            for (uint32_t i = 0; i < side; i++)
                memset(image->pixels + (size_t)image->channels *
                                           ((size_t)(y + i) * image->width + x),
                       0, (size_t)side * image->channels);
        }
}

/* White, gray. */
static struct ocr_image sheet(uint32_t width, uint32_t height)
{
    struct ocr_image image = {
        .width = width, .height = height, .channels = 1, .dpi = 150};

    image.pixels = malloc((size_t)width * height);
    assert_non_null(image.pixels);
    memset(image.pixels, 255, (size_t)width * height);
    return image;
}

/* Each dot is a blob to libtesseract: it would lay them out for minutes. */
static void text_is_read_among_dots(void **state)
{
    static const struct {
        uint32_t side, of_1000;
    } cases[] = {{1, 50}, {2, 20}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ocr_image image;
        struct ocr_recognised result;

        load(&image, "samples/letters/letter.png");
        pepper(&image, cases[i].side, cases[i].of_1000);
        alarm(60);
        result = read_image(&image);
        alarm(0);
        assert_non_null(result.text);
        if (!strstr(result.text, "the surveyor's report and two estimates"))
            fail_msg("case %zu is not read: %s", i, result.text);
        free(result.text);
        free(image.pixels);
    }
}

static void assert_empty(struct ocr_image *image)
{
    struct ocr_recognised result;

    alarm(60);
    result = read_image(image);
    alarm(0);
    assert_int_equal(result.kind, OCR_KIND_NONE);
    assert_string_equal(result.text, "");
    free(result.text);
    free(image->pixels);
}

static void nothing_is_read_into_noise(void **state)
{
    static const struct {
        uint32_t side, of_1000;
    } cases[] = {{1, 20}, {1, 100}, {1, 500}, {2, 50}, {2, 100}, {3, 100}};
    struct ocr_image image = sheet(1240, 1754);
    uint64_t random = 1;

    (void)state;
    for (size_t i = 0; i < (size_t)image.width * image.height; i++)
        image.pixels[i] = (uint8_t)(random_word(&random) >> 8);
    assert_empty(&image);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        image = sheet(1240, 1754);
        pepper(&image, cases[i].side, cases[i].of_1000);
        assert_empty(&image);
    }
}

static void very_long_images_are_no_failure(void **state)
{
    static const uint32_t sizes[][2] = {
        {65000, 1}, {1, 65000}, {20, 40000}, {40000, 3}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct ocr_image image = sheet(sizes[i][0], sizes[i][1]);

        pepper(&image, 1, 30);
        assert_empty(&image);
    }
}

/* A receipt that is not level, pale rules between its lines. */
static void hairlines_are_no_text(void **state)
{
    static const char *const amounts[] = {"86,64",  "63,73", "23,02", "36,66",
                                          "44,38",  "52,01", "44,17", "24,74",
                                          "81,28",  "11,12", "89,25", "56,19",
                                          "485,82", "59,82", "62,53", "210,05"};
    struct ocr_recognised result = read_one("hairlines.jpg", "lang=eng\n");
    const char *at;

    (void)state;
    assert_non_null(result.text);
    at = result.text;
    for (size_t i = 0; i < sizeof amounts / sizeof *amounts; i++)
        if (!strstr(at, amounts[i]))
            fail_msg("%s is not in:\n%s", amounts[i], at);
    assert_null(strstr(at, "\n\no\n"));
    free(result.text);
}

static void no_text_is_invented(void **state)
{
    (void)state;
    assert_reads("formats/content-blank-white.png", "");
    assert_reads("formats/content-blank-black.png", "");
    assert_reads("formats/content-blank-noise.jpg", "");
    assert_reads("formats/content-showthrough-only.jpg", "");
    assert_reads("formats/png-tiny-1x1.png", "");
    assert_reads("formats/png-strip-1x3000.png", "");
}

static void a_missing_language_names_its_package(void **state)
{
    struct ocr_recognised result =
        read_one("formats/png-gray8.png", "lang=eng+xx_yy\n");
    struct ocr_err err = OCR_ERR_INIT;
    char print[256];

    (void)state;
    assert_int_equal(result.kind, OCR_KIND_FAILED);
    assert_null(result.text);
    assert_non_null(strstr(result.sentence, "tesseract-ocr-xx-yy"));
    assert_int_equal(
        ops->fingerprint(tesseract, "lang=xx_yy\n", print, sizeof(print), &err),
        -ENOENT);
    assert_non_null(strstr(err.text, "tesseract-ocr-xx-yy"));
}

static void a_language_is_no_path(void **state)
{
    static const char *const names[] = {"lang=../eng\n", "lang=/etc/eng\n",
                                        "lang=eng+\n", "lang=+\n",
                                        "lang=eng.x\n"};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        struct ocr_err err = OCR_ERR_INIT;
        char print[256];

        assert_int_equal(
            ops->fingerprint(tesseract, names[i], print, sizeof(print), &err),
            -EINVAL);
    }
}

static void fingerprints_tell_languages_apart(void **state)
{
    char none[256], eng[256], deu[256];

    (void)state;
    assert_int_equal(ops->fingerprint(tesseract, "", none, sizeof(none), NULL),
                     0);
    assert_int_equal(
        ops->fingerprint(tesseract, "lang=eng\n", eng, sizeof(eng), NULL), 0);
    assert_int_equal(
        ops->fingerprint(tesseract, "lang=deu\n", deu, sizeof(deu), NULL), 0);
    assert_string_equal(none, eng);
    assert_string_not_equal(eng, deu);
    assert_null(strpbrk(eng, "\n\t"));
}

static void it_takes_as_many_pages_as_it_says(void **state)
{
    unsigned capacity = ops->capacity(tesseract);
    struct ocr_page page = {.settings = "lang=eng\n"};
    bool seen[256] = {false};

    (void)state;
    load(&page.image, "formats/png-gray8.png");
    for (page.id = 0; page.id < capacity; page.id++)
        assert_int_equal(ops->submit(tesseract, &page, NULL), 0);
    assert_int_equal(ops->submit(tesseract, &page, NULL), -EAGAIN);
    for (unsigned i = 0; i < capacity; i++) {
        struct ocr_recognised result = next();

        assert_string_equal(result.text, "OCRFS 2026\n");
        assert_true(result.id < capacity && !seen[result.id]);
        seen[result.id] = true;
        free(result.text);
    }
    free(page.image.pixels);
}

static void a_cancelled_page_still_gives_a_result(void **state)
{
    unsigned capacity = ops->capacity(tesseract);
    struct ocr_page page = {.settings = "lang=eng\n"};
    unsigned cancelled = 0;

    (void)state;
    load(&page.image, "samples/contract.png");
    for (page.id = 0; page.id < capacity; page.id++)
        assert_int_equal(ops->submit(tesseract, &page, NULL), 0);
    ops->cancel(tesseract, 999); /* unknown: ignored */
    for (uint64_t id = 0; id < capacity; id++)
        ops->cancel(tesseract, id);
    for (unsigned i = 0; i < capacity; i++) {
        struct ocr_recognised result = next();

        cancelled += result.kind == OCR_KIND_CANCELLED;
        assert_true(result.kind == OCR_KIND_CANCELLED ||
                    result.kind == OCR_KIND_NONE);
        assert_true((result.text != NULL) == (result.kind == OCR_KIND_NONE));
        free(result.text);
    }
    /* All but the first are still waiting when they are cancelled. */
    assert_true(cancelled >= 1);
    free(page.image.pixels);
}

/* Last: nothing can be read afterwards. */
static void woken_it_gives_nothing_more(void **state)
{
    struct ocr_page page = {.id = 1, .settings = "lang=eng\n"};
    struct ocr_recognised result;

    (void)state;
    load(&page.image, "formats/png-gray8.png");
    assert_int_equal(ops->submit(tesseract, &page, NULL), 0);
    ops->wake(tesseract);
    while (ops->next(tesseract, &result) == 0)
        free(result.text);
    assert_int_equal(ops->next(tesseract, &result), -ESHUTDOWN);
    ops->close(tesseract);
    free(page.image.pixels);
}

static int start(void **state)
{
    struct ocr_recogniser_config config = {
        .arguments = "", .device = "auto", .model = ""};
    struct ocr_err err = OCR_ERR_INIT;

    (void)state;
    ops = ocr_recogniser_plugin();
    return ops->open(&tesseract, &config, &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_read_whichever_way_it_lies),
        cmocka_unit_test(light_or_pale_type_is_read),
        cmocka_unit_test(text_is_read_among_dots),
        cmocka_unit_test(nothing_is_read_into_noise),
        cmocka_unit_test(very_long_images_are_no_failure),
        cmocka_unit_test(hairlines_are_no_text),
        cmocka_unit_test(no_text_is_invented),
        cmocka_unit_test(a_missing_language_names_its_package),
        cmocka_unit_test(a_language_is_no_path),
        cmocka_unit_test(fingerprints_tell_languages_apart),
        cmocka_unit_test(it_takes_as_many_pages_as_it_says),
        cmocka_unit_test(a_cancelled_page_still_gives_a_result),
        cmocka_unit_test(woken_it_gives_nothing_more),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, start, NULL);
}
