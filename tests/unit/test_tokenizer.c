/* Tokenizers: ids to text and back as the `tokenizers` library does. */
#include "engine/model/tokenizer.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static struct ocr_tokenizer *tiny, *qwen;

/* Both plain and compressed files. */
static struct ocr_tokenizer *load(const char *path)
{
    struct ocr_tokenizer *t = NULL;
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_buf text;
    char chunk[65536];
    gzFile file = gzopen(path, "rb");
    int n;

    assert_non_null(file);
    ocr_buf_init(&text, OCR_TOKENIZER_BYTES_MAX);
    while ((n = gzread(file, chunk, sizeof chunk)) > 0)
        ocr_buf_add(&text, chunk, (size_t)n);
    gzclose(file);
    if (ocr_tokenizer_parse(&t, text.data, text.len, &err))
        fail_msg("%s", err.text);
    ocr_buf_release(&text);
    return t;
}

static void expect_prompt(const struct ocr_tokenizer *t, uint32_t image,
                          const uint32_t *want, size_t count)
{
    struct ocr_ids ids = {0};

    assert_int_equal(ocr_prompt_build(t, image, 3, &ids, NULL), 0);
    assert_int_equal(ids.count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(ids.id[i], want[i]);
    free(ids.id);
}

static void the_prompt_comes_from_the_tokenizer(void **state)
{
    static const uint32_t of_tiny[] = {4090, 82,  2496, 4091, 198,  4090, 302,
                                       256,  198, 4095, 4095, 4095, 4091, 198,
                                       4090, 321, 373,  375,  198};
    static const uint32_t of_qwen[] = {151644, 8948, 151645, 198,    151644,
                                       872,    198,  151655, 151655, 151655,
                                       151645, 198,  151644, 77091,  198};

    (void)state;
    expect_prompt(tiny, 4095, of_tiny, sizeof of_tiny / sizeof *of_tiny);
    expect_prompt(qwen, 151655, of_qwen, sizeof of_qwen / sizeof *of_qwen);
}

static int load_both(void **state)
{
    (void)state;
    tiny = load("tests/data/tiny-reader/tokenizer.json");
    qwen = load("tests/data/qwen3-tokenizer.json.gz");
    return 0;
}

static int free_both(void **state)
{
    (void)state;
    ocr_tokenizer_free(tiny);
    ocr_tokenizer_free(qwen);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_prompt_comes_from_the_tokenizer),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, load_both, free_both);
}
