/* Models whose weights a counter makes, against float64: widths that are no
 * multiple of anything, and the widths of LightOnOCR-2-1B. */
#include "tests/unit/golden.h"
#include "tests/unit/parity_help.h"

struct wanted {
    const char *name;
    struct ocr_model (*numbers)(void);
    uint32_t width, height, count;
};

static const struct wanted odd = {"odd", counter_odd, 112, 84, 300};
static const struct wanted odd_small = {"odd-small", counter_odd, 28, 28, 20};
static const struct wanted wide = {"wide", counter_wide, 140, 84, 32};

static void print_distance(const char *name, const char *what,
                           struct golden_distance d)
{
    print_message("# %-9s %-8s relative L2 %.2e, worst row %u with %.2e\n",
                  name, what, d.all, d.worst_row, d.worst);
}

/* Where it matters: gaps that no order of summing closes. */
static void check_best(const struct golden *g, const float *logits)
{
    for (uint32_t r = 0; r < g->logits.count; r++)
        if (golden_gap(g, r) > 1e-3)
            assert_int_equal(golden_best(logits + (size_t)r * g->logits.width,
                                         g->logits.width),
                             g->likeliest_ids[(size_t)r * g->likeliest]);
}

static void check(const struct wanted *w, const struct sheet *sheet)
{
    struct golden_distance logits, features;
    struct golden g;

    assert_false(sheet->failed);
    golden_open(&g, w->name);
    assert_int_equal(g.logits.count, w->count);
    assert_int_equal(sheet->rows, w->count);
    assert_int_equal(sheet->tokens, g.features.count);
    logits = golden_distance(&g.logits, sheet->logits);
    features = golden_distance(&g.features, sheet->features);
    print_distance(w->name, "logits", logits);
    print_distance(w->name, "features", features);
    assert_true(logits.all <= 2e-5);
    assert_true(logits.worst <= 2e-4);
    assert_true(features.all <= 1e-5);
    assert_true(features.worst <= 5e-5);
    check_best(&g, sheet->logits);
    golden_close(&g);
}

static void fp32_near_float64(void **state)
{
    const struct wanted *w = *state;
    struct counter_model *m = counter_model_new(w->numbers());
    uint32_t *ids = parity_alloc(12 + w->count, sizeof *ids);
    uint8_t *rgb = parity_alloc((size_t)w->width * w->height, 3);
    struct sheet sheet = {.rgb = rgb,
                          .width = w->width,
                          .height = w->height,
                          .forced = ids + 12,
                          .max_tokens = w->count};
    struct session s;
    struct ocr_taps taps;
    char name[32];

    snprintf(name, sizeof name, "%s.ids", w->name);
    counter_ids(name, ids, 12 + w->count, m->model.text.vocab,
                m->model.image_token);
    snprintf(name, sizeof name, "%s.pixels", w->name);
    counter_pixels(name, rgb, (size_t)w->width * w->height * 3);
    sheet_prompt(&sheet, ids, &m->model);
    session_open(&s, &m->model,
                 (struct ocr_backend_config){.precision = OCR_PRECISION_FP32,
                                             .slots = 1},
                 &sheet, 1);
    taps = parity_taps(&s);
    session_taps(&s, &taps);
    session_read(&s, &sheet);
    session_close(&s);
    check(w, &sheet);
    free(sheet.prompt);
    sheet_release(&sheet);
    counter_model_free(m);
    free(rgb);
    free(ids);
}

/* The estimate of distances: sums are made here as they were made there. */
static void rows_have_the_sums_that_are_kept(void **state)
{
    static const char *const names[] = {"odd", "wide"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct golden g;

        golden_open(&g, names[i]);
        for (uint32_t k = 0; k < g.logits.whole; k++) {
            const size_t r = (size_t)g.logits.whole_rows[k];
            double sums[GOLDEN_SUMS];

            golden_sums(g.logits.whole_values + k * g.logits.width,
                        g.logits.width, sums);
            for (unsigned j = 0; j < GOLDEN_SUMS; j++)
                assert_true(
                    fabs(sums[j] - g.logits.sums[r * GOLDEN_SUMS + j]) <=
                    1e-6 * g.logits.norms[r]);
        }
        golden_close(&g);
    }
}

#define CASE(name, wanted)                                                     \
    {                                                                          \
        name, fp32_near_float64, NULL, NULL, (void *)(uintptr_t) & (wanted)    \
    }

int main(void)
{
    /* With a sanitizer the last one would take minutes. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_sums_that_are_kept),
        CASE("odd_fp32_near_float64", odd),
        CASE("odd_small_fp32_near_float64", odd_small),
        CASE("wide_fp32_near_float64", wide),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return _cmocka_run_group_tests("tests", tests, PARITY_SLOW ? 3 : 4, NULL,
                                   NULL);
}
