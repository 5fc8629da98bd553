/* The fuzz targets with the seeds that are kept, and with each of them cut
 * short and with bytes flipped. */
#include "engine/base/log.h"
#include "tests/fuzz/targets.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <syslog.h>

typedef int target_fn(const uint8_t *data, size_t size);

/* A copy of exactly this size, so that a sanitizer sees reads behind it. */
static void feed(target_fn *target, const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1);

    assert_non_null(exact);
    memcpy(exact, data, size);
    target(exact, size);
    free(exact);
}

static void feed_file(target_fn *target, const char *path)
{
    static uint8_t data[1 << 16];
    FILE *file = fopen(path, "rb");
    size_t size;

    assert_non_null(file);
    size = fread(data, 1, sizeof data, file);
    fclose(file);
    assert_true(size > 0 && size < sizeof data);
    feed(target, data, size);
    for (size_t i = 0; i < size; i += 1 + size / 200) {
        feed(target, data, i);
        data[i] ^= (uint8_t)(1U << i % 8);
        feed(target, data, size);
        data[i] ^= (uint8_t)(1U << i % 8);
    }
}

static void feed_folder(target_fn *target, const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    int files = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        char file[512];

        if (entry->d_name[0] == '.')
            continue;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        feed_file(target, file);
        files++;
    }
    closedir(dir);
    assert_true(files > 0);
}

/* Those of tests/data are looked at by test_image. */
#define SEEDS(name)                                                            \
    static void name(void **state)                                             \
    {                                                                          \
        (void)state;                                                           \
        feed_folder(fuzz_##name, "tests/fuzz/seeds/" #name);                   \
    }
SEEDS(safetensors)
SEEDS(config)
SEEDS(tokenizer)
SEEDS(exif)
SEEDS(server)
SEEDS(client)
SEEDS(finish)
SEEDS(html)
SEEDS(options)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(safetensors), cmocka_unit_test(config),
        cmocka_unit_test(tokenizer),   cmocka_unit_test(exif),
        cmocka_unit_test(server),      cmocka_unit_test(client),
        cmocka_unit_test(finish),      cmocka_unit_test(html),
        cmocka_unit_test(options),
    };

    setlogmask(LOG_MASK(LOG_EMERG)); /* what is wrong with an engine */
    ocr_log_to_syslog();
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
