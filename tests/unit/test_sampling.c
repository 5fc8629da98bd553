/* Which ids are drawn, against tests/reference/sampling.py, an independent
 * version of the rule of struct ocr_sampler. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "kernels/cpu/ops.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    COUNT_MAX = 4096,
    DRAWS = 200000
};

static json_t *golden;
static float logits[COUNT_MAX];
static uint64_t seen[COUNT_MAX / 64 + 1];
static void *scratch;

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double value(const char *kind, uint64_t word)
{
    if (!strcmp(kind, "wide"))
        return (double)(word >> 48) / 4096 - 8;
    if (!strcmp(kind, "steep"))
        return (double)(word >> 48) / 1024 - 32;
    if (!strcmp(kind, "tied"))
        return (double)(word >> 61) / 2 - 2;
    if (!strcmp(kind, "peak"))
        return (double)(word >> 48) / 32768 - 2;
    return 1.5; /* flat */
}

static uint64_t hex(const json_t *row, const char *name)
{
    return strtoull(json_string_value(json_object_get(row, name)), NULL, 16);
}

static double number(const json_t *row, const char *name)
{
    return json_number_value(json_object_get(row, name));
}

static uint32_t make_logits(const json_t *row)
{
    const char *kind = json_string_value(json_object_get(row, "kind"));
    const uint32_t count = (uint32_t)number(row, "count");
    const uint64_t seed = (uint64_t)number(row, "logits");

    assert_true(count > 0 && count <= COUNT_MAX);
    for (uint32_t i = 0; i < count; i++)
        logits[i] = (float)value(kind, mix(seed << 32 | i));
    if (!strcmp(kind, "peak"))
        logits[seed % count] = 12;
    return count;
}

static void penalise(const json_t *row, uint32_t count)
{
    const uint32_t every = (uint32_t)number(row, "every");

    if (!every)
        return;
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < count; i += every)
        seen[i / 64] |= (uint64_t)1 << i % 64;
    ocr_op_penalty(logits, count, seen, (float)number(row, "penalty"));
}

static uint32_t choose(const json_t *row, uint32_t count, uint32_t position)
{
    const float temperature = (float)number(row, "temperature");

    if (!(temperature > 0))
        return ocr_op_argmax(logits, count);
    return ocr_op_sample(
        logits, count, temperature, (float)number(row, "top_p"),
        ocr_op_philox(hex(row, "seed"), hex(row, "hash"), position), scratch);
}

static void words_of_philox(void **state)
{
    const json_t *words = json_object_get(golden, "words");
    const json_t *row;
    size_t i;

    (void)state;
    assert_true(json_array_size(words) >= 48);
    json_array_foreach(words, i, row)
    {
        const char *seed = json_string_value(json_array_get(row, 0));
        const char *hash = json_string_value(json_array_get(row, 1));
        const json_int_t position = json_integer_value(json_array_get(row, 2));

        assert_int_equal(ocr_op_philox(strtoull(seed, NULL, 16),
                                       strtoull(hash, NULL, 16),
                                       (uint32_t)position),
                         json_integer_value(json_array_get(row, 3)));
    }
}

/* Ids of a row; how many there were to compare. */
static size_t check_row(const json_t *row)
{
    const json_t *ids = json_object_get(row, "ids"), *id;
    const uint32_t count = make_logits(row);
    size_t i, compared = 0;

    penalise(row, count);
    json_array_foreach(ids, i, id)
    {
        const uint32_t position = (uint32_t)(number(row, "first") + (double)i);
        const uint32_t got = choose(row, count, position);

        if (json_is_null(id)) /* too near to a border to say */
            continue;
        if (got != json_integer_value(id))
            fail_msg("%s: draw %zu gave %u",
                     json_dumps(row, JSON_COMPACT | JSON_SORT_KEYS), i, got);
        compared++;
    }
    return compared;
}

static void the_same_ids_are_drawn(void **state)
{
    const json_t *rows = json_object_get(golden, "rows"), *row;
    size_t i, compared = 0;

    (void)state;
    json_array_foreach(rows, i, row) compared += check_row(row);
    assert_true(compared > 2900);
}

/* Every share within five standard deviations, and what has none never. */
static void check_shares(const json_t *row)
{
    const uint32_t count = make_logits(row);
    unsigned got[64] = {0};

    assert_true(count <= 64);
    for (uint32_t i = 0; i < DRAWS; i++)
        got[ocr_op_sample(logits, count, (float)number(row, "temperature"),
                          (float)number(row, "top_p"),
                          ocr_op_philox(i / 1000, mix(i), i % 1000),
                          scratch)]++;
    for (uint32_t i = 0; i < count; i++) {
        const double p =
            json_number_value(json_array_get(json_object_get(row, "share"), i));
        const double off = fabs(got[i] - p * DRAWS);

        if (p == 0.0)
            assert_int_equal(got[i], 0);
        else if (off > 5 * sqrt(p * (1 - p) * DRAWS) + 1)
            fail_msg("id %u got %u of %d, its share is %g", i, got[i], DRAWS,
                     p);
    }
}

static void shares_are_those_of_the_probabilities(void **state)
{
    const json_t *rows = json_object_get(golden, "shares"), *row;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(rows), 5);
    json_array_foreach(rows, i, row) check_shares(row);
}

/* What no options give, but a caller may. */
static void numbers_out_of_range_give_an_id(void **state)
{
    static const float odd[] = {0, -1, 1.5F, 1e30F, NAN, INFINITY};
    uint32_t best;

    (void)state;
    for (uint32_t i = 0; i < 64; i++)
        logits[i] = (float)value("wide", mix(i));
    best = ocr_op_argmax(logits, 64);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        assert_true(ocr_op_sample(logits, 64, 1, odd[i], ~0u, scratch) < 64);
        assert_true(ocr_op_sample(logits, 64, 1, odd[i], 0, scratch) == best);
    }
    /* Next to no temperature: only what is as good as the best. */
    assert_int_equal(ocr_op_sample(logits, 64, 1e-30F, 1, ~0u, scratch), best);
    assert_int_equal(ocr_op_sample(logits, 64, 1e-45F, 1, ~0u, scratch), best);
}

static int setup(void **state)
{
    (void)state;
    golden = json_load_file("tests/data/sampling.json", 0, NULL);
    scratch = malloc(ocr_op_sample_scratch(COUNT_MAX));
    return golden && scratch ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    json_decref(golden);
    free(scratch);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_philox),
        cmocka_unit_test(the_same_ids_are_drawn),
        cmocka_unit_test(shares_are_those_of_the_probabilities),
        cmocka_unit_test(numbers_out_of_range_give_an_id),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, setup, teardown);
}
