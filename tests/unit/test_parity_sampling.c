/* Which id is taken, judged by the logits that the backend shows. */
#include "kernels/cpu/ops.h"
#include "tests/unit/counter.h"
#include "tests/unit/parity_help.h"

enum {
    COUNT = 60
};

static struct counter_model *model;
static uint32_t ids[12];
static uint8_t pixels[112 * 84 * 3];

/* One page by the odd model. */
static struct sheet read_with(struct ocr_sampler sampler,
                              const uint32_t *stop_ids, uint32_t stop_count)
{
    struct sheet sheet = {.rgb = pixels,
                          .width = 112,
                          .height = 84,
                          .max_tokens = COUNT,
                          .stop_ids = stop_ids,
                          .stop_count = stop_count,
                          .sampler = sampler};
    struct session s;
    struct ocr_taps taps;

    sheet_prompt(&sheet, ids, &model->model);
    session_open(&s, &model->model,
                 (struct ocr_backend_config){.precision = OCR_PRECISION_FP32,
                                             .slots = 1},
                 &sheet, 1);
    taps = parity_taps(&s);
    session_taps(&s, &taps);
    session_read(&s, &sheet);
    session_close(&s);
    assert_false(sheet.failed);
    return sheet;
}

static void sheet_free(struct sheet *sheet)
{
    free(sheet->prompt);
    sheet_release(sheet);
}

/* The best id if those in `seen` are penalised. */
static uint32_t best(const float *logits, const bool *seen, float penalty)
{
    const uint32_t vocab = model->model.text.vocab;
    uint32_t id = 0;
    float most = -INFINITY;

    for (uint32_t i = 0; i < vocab; i++) {
        float x = logits[i];

        if (seen[i])
            x = x > 0 ? x / penalty : x * penalty;
        if (x > most) {
            most = x;
            id = i;
        }
    }
    return id;
}

/* Follows a page with a penalty; `prompt` counts the prompt's ids too. Returns
 * the number of ids that are not the best. */
static unsigned unlike(const struct sheet *sheet, float penalty, bool prompt)
{
    bool seen[128] = {false};
    unsigned wrong = 0;

    for (uint32_t i = 0; prompt && i < sheet->prompt_len; i++)
        seen[sheet->prompt[i]] = true;
    for (uint32_t k = 0; k < sheet->count; k++) {
        const float *row = sheet->logits + (size_t)k * model->model.text.vocab;

        wrong += sheet->ids[k] != best(row, seen, penalty);
        seen[sheet->ids[k]] = true;
    }
    return wrong;
}

static void the_best_id_is_taken(void **state)
{
    struct sheet sheet = read_with((struct ocr_sampler){0}, NULL, 0);

    (void)state;
    assert_int_equal(sheet.count, COUNT);
    assert_int_equal(unlike(&sheet, 1, false), 0);
    sheet_free(&sheet);
}

static void penalty_covers_generated_ids_only(void **state)
{
    const float penalty = 1.5F;
    struct sheet sheet =
        read_with((struct ocr_sampler){.repetition_penalty = penalty}, NULL, 0);

    (void)state;
    assert_int_equal(sheet.count, COUNT);
    assert_int_equal(unlike(&sheet, penalty, false), 0);
    /* Other rules would have taken other ids here. */
    assert_int_not_equal(unlike(&sheet, 1, false), 0);
    assert_int_not_equal(unlike(&sheet, penalty, true), 0);
    sheet_free(&sheet);
}

/* Ids that the rule does not draw from the logits that were shown, with the
 * position of the first id moved by `shift`. */
static unsigned undrawn(const struct sheet *sheet, uint32_t shift)
{
    const struct ocr_sampler *how = &sheet->sampler;
    const uint32_t vocab = model->model.text.vocab;
    void *scratch = malloc(ocr_op_sample_scratch(vocab));
    unsigned wrong = 0;

    assert_non_null(scratch);
    for (uint32_t k = 0; k < sheet->count; k++)
        wrong += sheet->ids[k] !=
                 ocr_op_sample(sheet->logits + (size_t)k * vocab, vocab,
                               how->temperature, how->top_p,
                               ocr_op_philox(how->seed, how->page_hash,
                                             sheet->prompt_len + shift + k),
                               scratch);
    free(scratch);
    return wrong;
}

static void random_ids_follow_seed_page_and_position(void **state)
{
    const struct ocr_sampler sampler = {.temperature = 1.5F,
                                        .top_p = 0.9F,
                                        .seed = 0x123456789abcdef0,
                                        .page_hash = 0xfedcba9876543210};
    struct sheet sheet = read_with(sampler, NULL, 0);

    (void)state;
    assert_int_equal(sheet.count, COUNT);
    assert_int_equal(undrawn(&sheet, 0), 0);
    assert_true(undrawn(&sheet, 1) > COUNT / 4);
    sheet.sampler.seed ^= (uint64_t)1 << 63;
    assert_true(undrawn(&sheet, 0) > COUNT / 4);
    sheet.sampler.seed = sampler.seed;
    sheet.sampler.page_hash ^= (uint64_t)1 << 63;
    assert_true(undrawn(&sheet, 0) > COUNT / 4);
    sheet_free(&sheet);
}

static void a_stop_id_ends_the_page_and_is_left_out(void **state)
{
    struct sheet all = read_with((struct ocr_sampler){0}, NULL, 0);
    const uint32_t stop = all.ids[COUNT - 1];
    uint32_t at = 0;
    struct sheet sheet;

    (void)state;
    while (all.ids[at] != stop)
        at++;
    sheet = read_with((struct ocr_sampler){0}, &stop, 1);
    assert_true(sheet.stopped);
    assert_int_equal(sheet.count, at);
    assert_memory_equal(sheet.ids, all.ids, at * sizeof *sheet.ids);
    sheet_free(&sheet);
    sheet_free(&all);
}

static int setup(void **state)
{
    (void)state;
    model = counter_model_new(counter_odd());
    counter_ids("odd.ids", ids, 12, model->model.text.vocab,
                model->model.image_token);
    counter_pixels("odd.pixels", pixels, sizeof pixels);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    counter_model_free(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_id_is_taken),
        cmocka_unit_test(penalty_covers_generated_ids_only),
        cmocka_unit_test(random_ids_follow_seed_page_and_position),
        cmocka_unit_test(a_stop_id_ends_the_page_and_is_left_out),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, setup, teardown);
}
