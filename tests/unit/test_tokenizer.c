/* Tokenizers: ids to text and back as the `tokenizers` library does. */
#include "engine/base/utf8.h"
#include "engine/model/tokenizer.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum {
    CHUNK = 512
};

static struct ocr_tokenizer *tiny, *qwen;
static json_t *golden; /* tests/reference/tokenizer.py */

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

static uint32_t number(const json_t *list, size_t i)
{
    return (uint32_t)json_integer_value(json_array_get(list, i));
}

static void expect_prompt(const struct ocr_tokenizer *t, const char *name)
{
    const json_t *expected = json_object_get(golden, name);
    const json_t *want = json_object_get(expected, "prompt");
    const json_t *image = json_object_get(expected, "image_token");
    struct ocr_ids ids = {0};

    assert_int_equal(
        ocr_prompt_build(t, (uint32_t)json_integer_value(image), 3, &ids, NULL),
        0);
    assert_int_equal(ids.count, json_array_size(want));
    for (size_t i = 0; i < ids.count; i++)
        assert_int_equal(ids.id[i], number(want, i));
    free(ids.id);
}

static void the_prompt_comes_from_the_tokenizer(void **state)
{
    static const uint32_t published[] = {151644, 8948, 151645, 198,    151644,
                                         872,    198,  151655, 151655, 151655,
                                         151645, 198,  151644, 77091,  198};
    struct ocr_ids ids = {0};

    (void)state;
    expect_prompt(tiny, "tiny");
    expect_prompt(qwen, "qwen");
    assert_int_equal(ocr_prompt_build(qwen, 151655, 3, &ids, NULL), 0);
    assert_int_equal(ids.count * sizeof *ids.id, sizeof published);
    assert_memory_equal(ids.id, published, sizeof published);
    free(ids.id);
}

static uint32_t crc_of(const struct ocr_buf *text)
{
    return (uint32_t)crc32(0, (const Bytef *)text->data, (uInt)text->len);
}

static void each_id_of(const struct ocr_tokenizer *t, const char *name)
{
    const json_t *expected = json_object_get(golden, name);
    const json_t *each = json_object_get(expected, "each");
    const uint32_t rows =
        (uint32_t)json_integer_value(json_object_get(expected, "rows"));
    struct ocr_buf text;

    ocr_buf_init(&text, 1 << 20);
    assert_true(rows > 256);
    assert_int_equal(json_array_size(each), (rows + CHUNK - 1) / CHUNK);
    for (uint32_t id = 0; id < rows; id++) {
        struct ocr_detokenizer d;

        ocr_detokenizer_init(&d, t);
        ocr_detokenizer_add(&d, id, &text);
        ocr_detokenizer_finish(&d, &text);
        ocr_buf_putc(&text, '\n');
        if ((id + 1) % CHUNK && id + 1 < rows)
            continue;
        if (crc_of(&text) != number(each, id / CHUNK))
            fail_msg("%s: an id from %u to %u", name, id / CHUNK * CHUNK, id);
        ocr_buf_reset(&text);
    }
    ocr_buf_release(&text);
}

static void every_id_decodes(void **state)
{
    (void)state;
    each_id_of(tiny, "tiny");
    each_id_of(qwen, "qwen");
}

/* The i-th draw, from 1, of splitmix64. */
static uint64_t draw(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + i * 0x9E3779B97F4A7C15U;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27) * 0x94D049BB133111EBU;
    return z ^ z >> 31;
}

static void sequences_of(const struct ocr_tokenizer *t, const char *name)
{
    const json_t *expected = json_object_get(golden, name);
    const json_t *decoded = json_object_get(expected, "decoded");
    const json_t *full = json_object_get(expected, "decoded_full");
    const uint64_t rows =
        (uint64_t)json_integer_value(json_object_get(expected, "rows"));
    struct ocr_buf text;

    ocr_buf_init(&text, 1 << 20);
    assert_int_equal(json_array_size(decoded), 1000);
    for (uint64_t i = 0; i < 1000; i++) {
        const uint64_t count = 1 + draw(i << 32, 1) % 63;
        struct ocr_detokenizer d;

        ocr_buf_reset(&text);
        ocr_detokenizer_init(&d, t);
        for (uint64_t k = 0; k < count; k++) {
            ocr_detokenizer_add(&d, (uint32_t)(draw(i << 32, k + 2) % rows),
                                &text);
            /* Whole characters at any time. */
            assert_int_equal(ocr_utf8_valid(text.data, text.len), text.len);
        }
        ocr_detokenizer_finish(&d, &text);
        if (i < json_array_size(full))
            assert_string_equal(text.len ? text.data : "",
                                json_string_value(json_array_get(full, i)));
        if (crc_of(&text) != number(decoded, i))
            fail_msg("%s: sequence %u", name, (unsigned)i);
    }
    ocr_buf_release(&text);
}

static void sequences_decode(void **state)
{
    (void)state;
    sequences_of(tiny, "tiny");
    sequences_of(qwen, "qwen");
}

static void texts_of(const struct ocr_tokenizer *t, const char *name)
{
    const json_t *texts = json_object_get(golden, "texts"), *text;
    const json_t *expected = json_object_get(golden, name);
    const json_t *encoded = json_object_get(expected, "encoded");
    const json_t *full = json_object_get(expected, "encoded_full");
    struct ocr_ids ids = {0};
    size_t i;

    assert_int_equal(json_array_size(texts), 1000);
    json_array_foreach(texts, i, text)
    {
        const json_t *want = json_array_get(full, i);

        ids.count = 0;
        assert_int_equal(ocr_tokenizer_encode(t, json_string_value(text),
                                              json_string_length(text), &ids,
                                              NULL),
                         0);
        for (size_t k = 0; k < json_array_size(want); k++)
            assert_int_equal(ids.id[k], number(want, k));
        if (crc32(0, (const Bytef *)ids.id, (uInt)(ids.count * 4)) !=
            number(encoded, i))
            fail_msg("%s: text %zu: %s", name, i, json_string_value(text));
    }
    free(ids.id);
}

static void texts_encode(void **state)
{
    (void)state;
    texts_of(tiny, "tiny");
    texts_of(qwen, "qwen");
}

static void published_examples(void **state)
{
    static const struct {
        const char *text;
        uint32_t ids[16];
    } rows[] = {
        {"Hello world", {9707, 1879}},
        {" Hello world", {21927, 1879}},
        {"don't can't I'll we've",
         {15007, 944, 646, 944, 358, 3278, 582, 3003}},
        {"  leading and   multiple spaces ",
         {220, 6388, 323, 256, 5248, 12621, 220}},
        {"123 4567 0.5e-3 -42",
         {16, 17, 18, 220, 19, 20, 21, 22, 220, 15, 13, 20, 68, 12, 18}},
        {"()[]{}<>", {368, 1294, 6257, 21122}},
        {"snake_case camelCase kebab-case dot.case",
         {72139, 19096, 49152, 4207, 1962, 47722, 38485, 12756, 68687}},
        {"<|im_start|>system<|im_end|>", {151644, 8948, 151645}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ocr_ids ids = {0};

        assert_int_equal(ocr_tokenizer_encode(qwen, rows[i].text,
                                              strlen(rows[i].text), &ids, NULL),
                         0);
        for (size_t k = 0; k < 16 && rows[i].ids[k]; k++) {
            assert_true(k < ids.count);
            assert_int_equal(ids.id[k], rows[i].ids[k]);
        }
        free(ids.id);
    }
}

static void text_that_is_not_utf8_is_refused(void **state)
{
    struct ocr_ids ids = {0};

    (void)state;
    assert_int_equal(ocr_tokenizer_encode(tiny, "a\xff", 2, &ids, NULL),
                     -EILSEQ);
    free(ids.id);
}

/* A tokenizer of three words, spelled the old and the new way. */
#define SMALL(merges, more)                                                    \
    "{\"normalizer\":{\"type\":\"NFC\"},\"decoder\":{\"type\":"                \
    "\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"Sequence\","                 \
    "\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"           \
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"            \
    "\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*"       \
    "[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}},{\"type\":\"ByteLevel\"}]},"     \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,"          \
    "\"ab\":3,\"abc\":4},\"merges\":[" merges "]}" more "}"

static void expect_small(const char *file, const char *text,
                         const uint32_t *want, size_t count)
{
    struct ocr_tokenizer *t = NULL;
    struct ocr_err err = OCR_ERR_INIT;
    struct ocr_ids ids = {0};

    if (ocr_tokenizer_parse(&t, file, strlen(file), &err))
        fail_msg("%s", err.text);
    assert_int_equal(ocr_tokenizer_encode(t, text, strlen(text), &ids, NULL),
                     0);
    assert_int_equal(ids.count, count);
    assert_memory_equal(ids.id, want, count * sizeof *want);
    free(ids.id);
    ocr_tokenizer_free(t);
}

static void both_spellings_of_merges(void **state)
{
    static const uint32_t want[] = {4, 3};

    (void)state;
    expect_small(SMALL("\"a b\",\"ab c\"", ""), "abcab", want, 2);
    expect_small(SMALL("[\"a\",\"b\"],[\"ab\",\"c\"]", ""), "abcab", want, 2);
}

static void the_longest_added_token_wins(void **state)
{
    static const uint32_t want[] = {0, 6, 5, 1};

    (void)state;
    expect_small(SMALL("", ",\"added_tokens\":[{\"id\":5,\"content\":\"<x\"},"
                           "{\"id\":6,\"content\":\"<x>\"}]"),
                 "a<x><xb", want, 4);
}

/* Of bytes that are no character one U+FFFD for each longest beginning. */
static void broken_characters_are_replaced(void **state)
{
    static const struct {
        const char *bytes, *text;
    } rows[] = {
        {"\xff", "\uFFFD"},
        {"\xe4\xb8", "\uFFFD"},
        {"\xe4\xb8"
         "a",
         "\uFFFD"
         "a"},
        {"\xe4\xb8\xad", "\u4e2d"},
        {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
        {"\xf0\x80\x80", "\uFFFD\uFFFD\uFFFD"},
        {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
        {"\xc0\xaf", "\uFFFD\uFFFD"},
        {"\xf0\x9f\x99\x82", "\U0001F642"},
        {"\xf0\x9f\xe4\xb8\xad", "\uFFFD\u4e2d"},
    };
    uint32_t id_of[256];
    struct ocr_buf text;

    (void)state;
    ocr_buf_init(&text, 1 << 10);
    /* The ids of single bytes, in the order of the byte table. */
    for (uint32_t b = 0, shown = 0, hidden = 188; b < 256; b++)
        id_of[b] =
            (b > 32 && b < 127) || (b > 160 && b != 173) ? shown++ : hidden++;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ocr_detokenizer d;

        ocr_buf_reset(&text);
        ocr_detokenizer_init(&d, qwen);
        for (const char *p = rows[i].bytes; *p; p++)
            ocr_detokenizer_add(&d, id_of[(unsigned char)*p], &text);
        ocr_detokenizer_finish(&d, &text);
        assert_string_equal(text.data, rows[i].text);
    }
    ocr_buf_release(&text);
}

static void expect_refused(const char *file, const char *sentence)
{
    struct ocr_tokenizer *t = NULL;
    struct ocr_err err = OCR_ERR_INIT;

    assert_int_equal(ocr_tokenizer_parse(&t, file, strlen(file), &err),
                     -EINVAL);
    if (strncmp(err.text, "tokenizer.json: ", 16) ||
        !strstr(err.text, sentence))
        fail_msg("\"%s\" instead of \"%s\"", err.text, sentence);
}

static void other_tokenizers_are_refused(void **state)
{
    (void)state;
    expect_refused("{", "bad JSON");
    expect_refused("[]", "not a JSON object");
    expect_refused("{}", "not a BPE tokenizer");
    expect_refused("{\"model\":{\"type\":\"Unigram\"}}", "not a BPE");
    expect_refused("{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true}}",
                   "byte_fallback");
    expect_refused("{\"model\":{\"type\":\"BPE\"}}", "not a byte-level");
    expect_refused(SMALL("\"a x\"", ""), "tokens that there are not");
    expect_refused(SMALL("\"b a\"", ""), "makes a token that there is not");
    expect_refused(SMALL("\"a b c\"", ""), "not a pair");
    expect_refused(SMALL("3", ""), "not a pair");
    expect_refused(SMALL("", ",\"added_tokens\":[{\"id\":-1}]"), "no good id");
    expect_refused(SMALL("", ",\"added_tokens\":[{\"id\":4000000}]"),
                   "no good id");
    expect_refused(SMALL("", ",\"added_tokens\":[{\"id\":5}]"), "no text");
    expect_refused(SMALL("", ",\"added_tokens\":[{\"id\":5,\"content\":\"x\","
                             "\"rstrip\":true}]"),
                   "rstrip");
    expect_refused(SMALL("", ",\"decoder\":{}"), "bad JSON"); /* twice */
}

static int load_both(void **state)
{
    (void)state;
    tiny = load("tests/data/tiny-reader/tokenizer.json");
    qwen = load("tests/data/qwen3-tokenizer.json.gz");
    golden = json_load_file("tests/data/tokenizer.json", 0, NULL);
    return golden ? 0 : -1;
}

static int free_both(void **state)
{
    (void)state;
    ocr_tokenizer_free(tiny);
    ocr_tokenizer_free(qwen);
    json_decref(golden);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_prompt_comes_from_the_tokenizer),
        cmocka_unit_test(every_id_decodes),
        cmocka_unit_test(sequences_decode),
        cmocka_unit_test(texts_encode),
        cmocka_unit_test(published_examples),
        cmocka_unit_test(text_that_is_not_utf8_is_refused),
        cmocka_unit_test(both_spellings_of_merges),
        cmocka_unit_test(the_longest_added_token_wins),
        cmocka_unit_test(broken_characters_are_replaced),
        cmocka_unit_test(other_tokenizers_are_refused),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, load_both, free_both);
}
