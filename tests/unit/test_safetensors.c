/* Headers of safetensors files, good and bad, without files. */
#include "engine/model/safetensors.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static void tensors_are_found_by_name(void **state)
{
    static const char header[] =
        "{\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[6,30]},"
        "\"__metadata__\":{\"format\":\"pt\"},"
        "\"a\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"
        "\"one\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[30,38]},"
        "\"none\":{\"dtype\":\"F16\",\"shape\":[0,7],"
        "\"data_offsets\":[38,38]}}  ";
    struct ocr_safetensors file;
    const struct ocr_safetensor *t;

    (void)state;
    assert_int_equal(
        ocr_safetensors_parse(&file, header, strlen(header), 38, "x", NULL), 0);
    assert_int_equal(file.count, 4);
    t = ocr_safetensors_find(&file, "b");
    assert_non_null(t);
    assert_string_equal(t->dtype, "F32");
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->offset, 6);
    assert_int_equal(t->bytes, 24);
    assert_int_equal(ocr_safetensors_find(&file, "one")->rank, 0);
    assert_int_equal(ocr_safetensors_find(&file, "none")->bytes, 0);
    assert_null(ocr_safetensors_find(&file, "c"));
    assert_null(ocr_safetensors_find(&file, "__metadata__"));
    ocr_safetensors_release(&file);
    ocr_safetensors_release(&file);
}

#define T(name, dtype, shape, offsets)                                         \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape                   \
    ",\"data_offsets\":" offsets "}"

static void bad_headers(void **state)
{
    static const struct {
        const char *header;
        uint64_t data;
        const char *sentence;
    } rows[] = {
        {"", 0, "x: bad JSON"},
        {"[]", 0, "x: not a JSON object"},
        {"{}", 1, "x: 1 bytes at the end belong to no tensor"},
        {"{\"a\":[]}", 0, "tensor a: its entry is not an object"},
        {"{\"a\":{}}", 0, "tensor a: no data type"},
        {"{" T("a", "F33", "[1]", "[0,4]") "}", 4, "unknown data type F33"},
        {"{" T("a", "F32", "1", "[0,4]") "}", 4, "tensor a: no shape"},
        {"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, "whole numbers"},
        {"{" T("a", "F32", "[1.0]", "[0,4]") "}", 4, "whole numbers"},
        {"{" T("a", "F32", "[\"1\"]", "[0,4]") "}", 4, "whole numbers"},
        {"{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1,
         "more than 8 dimensions"},
        {"{" T("a", "F32", "[4294967296,4294967296]", "[0,4]") "}", 4,
         "its shape overflows"},
        {"{" T("a", "F32", "[0,4294967296,4294967296]", "[0,0]") "}", 1,
         "1 bytes at the end"},
        {"{" T("a", "F32", "[1152921504606846976]", "[0,4]") "}", 4,
         "its size overflows"},
        {"{" T("a", "F32", "[18446744073709551616]", "[0,4]") "}", 4,
         "bad JSON"},
        {"{" T("a", "F4", "[3]", "[0,1]") "}", 1, "its size overflows"},
        {"{" T("a", "F32", "[1]", "[0]") "}", 4, "data offsets"},
        {"{" T("a", "F32", "[1]", "[0,4,8]") "}", 4, "data offsets"},
        {"{" T("a", "F32", "[1]", "[-4,0]") "}", 4, "data offsets"},
        {"{" T("a", "F32", "[1]", "[0,4.0]") "}", 4, "data offsets"},
        {"{" T("a", "F32", "[1]", "{}") "}", 4, "data offsets"},
        {"{" T("a", "F32", "[1]", "[8,4]") "}", 8, "ends before it begins"},
        {"{" T("a", "F32", "[1]", "[0,5]") "}", 4,
         "tensor a: its data ends at byte 5, behind the end"},
        {"{" T("a", "F32", "[1]",
               "[9223372036854775803,9223372036854775807]") "}",
         4, "behind the end"},
        {"{" T("a", "F32", "[2]", "[0,4]") "}", 4,
         "tensor a: 4 bytes of data, but its shape needs 8"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]",
                                                 "[2,6]") "}",
         6, "tensor b: its data overlaps that of a"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]",
                                                 "[0,4]") "}",
         4, "overlaps"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "U8", "[1]", "[4,5]") "}",
         8, "tensor b: its data overlaps that of a"},
        {"{" T("a", "F32", "[1]", "[1,5]") "}", 5,
         "tensor a: 1 bytes before its data belong to nothing"},
        {"{" T("a", "F32", "[1]", "[0,4]") "}", 5, "1 bytes at the end"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]",
                                                 "[4,8]") "}",
         8, "duplicate object key"},
        {"{" T("a", "F32", "[1]", "[0,4]") "} x", 4, "bad JSON"},
        {"{" T("a", "F32", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]", "1") "}", 4,
         "nested deeper than 32 levels"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct ocr_safetensors file;
        struct ocr_err err = OCR_ERR_INIT;
        const int rc =
            ocr_safetensors_parse(&file, rows[i].header, strlen(rows[i].header),
                                  rows[i].data, "x", &err);

        assert_int_equal(rc, -EINVAL);
        if (strncmp(err.text, "x: ", 3) || !strstr(err.text, rows[i].sentence))
            fail_msg("\"%s\" instead of \"%s\"", err.text, rows[i].sentence);
    }
}

static void too_many_values(void **state)
{
    const size_t len = 5 << 20;
    char *header = malloc(len);
    struct ocr_safetensors file;
    struct ocr_err err = OCR_ERR_INIT;

    (void)state;
    assert_non_null(header);
    memset(header, ',', len);
    header[0] = '{';
    assert_true(ocr_safetensors_parse(&file, header, len, 0, "x", &err) < 0);
    assert_non_null(strstr(err.text, "more than 2000000 values"));
    free(header);
}

static void lengths_of_headers(void **state)
{
    static const struct {
        uint8_t first[8];
        uint64_t size;
        int rc;
    } rows[] = {
        {{2}, 10, 0},
        {{0, 0}, 8, 0},
        {{3}, 10, -EINVAL},
        {{0}, 7, -EINVAL},
        {{0, 0xe1, 0xf5, 5}, 100000008, 0}, /* 100 MB */
        {{1, 0xe1, 0xf5, 5}, 100000009, -EFBIG},
        {{0, 0, 0, 0, 1}, UINT64_MAX, -EFBIG},
        {{255, 255, 255, 255, 255, 255, 255, 255}, UINT64_MAX, -EFBIG},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        uint64_t length;

        assert_int_equal(ocr_safetensors_header(rows[i].first, rows[i].size,
                                                "x", &length, NULL),
                         rows[i].rc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_found_by_name),
        cmocka_unit_test(bad_headers),
        cmocka_unit_test(too_many_values),
        cmocka_unit_test(lengths_of_headers),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
