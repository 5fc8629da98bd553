/* The bits of a page depend on the page alone: the hash of every step's logits
 * is the same alone, as one of four, in other blocks, with other numbers of
 * threads, and beside a page that becomes NaN. */
#include "engine/model/model.h"
#include "tests/unit/counter.h"
#include "tests/unit/parity_help.h"

enum {
    SHEETS = 4,
    STEPS = PARITY_SLOW ? 20 : 40
};

/* Pages of noise; what is read does not matter, ids are given. */
struct desk {
    struct sheet sheets[SHEETS];
    uint8_t *rgb[SHEETS];
    uint32_t *ids[SHEETS];
};

/* How the pages are read. */
struct way {
    unsigned threads, slots, steps;
    bool interleaved;
    unsigned broken; /* number of a page that becomes NaN, 0: none */
    uint32_t broken_at;
};

static struct ocr_model_folder *folder;

static struct desk desk_open(const struct ocr_model *model)
{
    /* Decoding takes the second beyond a split of attention. With a sanitizer
     * pages are smaller. */
    static const uint32_t sides[2][SHEETS][2] = {
        {{280, 56}, {448, 420}, {28, 28}, {140, 616}},
        {{112, 56}, {84, 140}, {28, 28}, {28, 224}}};
    struct desk d = {0};

    for (unsigned i = 0; i < SHEETS; i++) {
        const uint32_t width = sides[PARITY_SLOW][i][0];
        const uint32_t height = sides[PARITY_SLOW][i][1];
        const size_t bytes = (size_t)width * height * 3;
        char name[32];

        d.rgb[i] = parity_alloc(1, bytes);
        d.ids[i] = parity_alloc(12 + STEPS, sizeof *d.ids[i]);
        snprintf(name, sizeof name, "page %u", i);
        counter_pixels(name, d.rgb[i], bytes);
        counter_ids(name, d.ids[i], 12 + STEPS, model->text.vocab,
                    model->image_token);
        d.sheets[i] = (struct sheet){.rgb = d.rgb[i],
                                     .width = width,
                                     .height = height,
                                     .forced = d.ids[i] + 12,
                                     .max_tokens = STEPS};
        sheet_prompt(&d.sheets[i], d.ids[i], model);
    }
    return d;
}

static void desk_close(struct desk *d)
{
    for (unsigned i = 0; i < SHEETS; i++) {
        free(d->sheets[i].prompt);
        sheet_release(&d->sheets[i]);
        free(d->rgb[i]);
        free(d->ids[i]);
    }
}

/* All pages, `way.slots` at once; slots are filled from the last page on, so
 * that order and slot differ too. */
static void read_desk(struct desk *d, enum ocr_precision precision,
                      const struct way *way)
{
    const struct ocr_backend_config config = {
        .precision = precision, .threads = way->threads, .slots = way->slots};
    struct session s;
    struct ocr_taps taps;

    session_open(&s, &folder->model, config, d->sheets, SHEETS);
    s.interleaved = way->interleaved;
    taps =
        (struct ocr_taps){.arg = &s,
                          .hashes = true,
                          .fault = way->broken ? OCR_FAULT_NAN : OCR_FAULT_NONE,
                          .fault_page = way->broken,
                          .fault_at = way->broken_at};
    session_taps(&s, &taps);
    for (unsigned at = 0; at < SHEETS; at += way->slots) {
        struct sheet *now[SHEETS];

        for (unsigned i = 0; i < way->slots; i++) {
            now[i] = &d->sheets[way->slots > 1 ? SHEETS - 1 - at - i : at];
            session_begin(&s, i, now[i]);
        }
        while (session_step(&s, now, way->slots, way->steps))
            ;
        for (unsigned i = 0; i < way->slots; i++)
            s.ops->slot_close(s.backend, i);
    }
    session_close(&s);
}

static void check(const struct desk *right, const struct desk *found,
                  const struct way *way)
{
    for (unsigned i = 0; i < SHEETS; i++) {
        const struct sheet *a = &right->sheets[i], *b = &found->sheets[i];

        if (i + 1 == way->broken) {
            assert_true(b->failed);
            /* Ids of the step that failed may be lost. */
            assert_true(b->count <= way->broken_at);
            assert_true(b->count + way->steps >= way->broken_at);
            assert_memory_equal(a->hashes, b->hashes,
                                b->count * sizeof *b->hashes);
            continue;
        }
        assert_false(b->failed);
        assert_int_equal(b->count, STEPS);
        for (unsigned k = 0; k < STEPS; k++)
            if (a->hashes[k] != b->hashes[k])
                fail_msg("page %u differs in step %u", i, k);
    }
}

static void pages_are_independent(void **state)
{
    static const struct way alone = {1, 1, 16, false, 0, 0};
    static const struct way ways[] = {
        {2, 1, 16, false, 0, 0}, {1, 4, 1, true, 0, 0}, {2, 4, 7, true, 0, 0},
        {2, 2, 16, true, 0, 0},  {2, 4, 3, true, 2, 5}, {1, 4, 16, true, 4, 0},
        {1, 2, 5, false, 4, 17}, /* then others get its blocks */
    };
    const enum ocr_precision precision = *(const enum ocr_precision *)*state;
    struct desk right = desk_open(&folder->model);
    const struct sheet *first = &right.sheets[0];

    read_desk(&right, precision, &alone);
    for (unsigned i = 0; i < SHEETS; i++)
        assert_int_equal(right.sheets[i].count, STEPS);
    /* Steps have hashes, and they differ. */
    for (unsigned k = 1; k < STEPS; k++)
        assert_int_not_equal(first->hashes[k], first->hashes[k - 1]);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct desk found = desk_open(&folder->model);

        read_desk(&found, precision, &ways[i]);
        check(&right, &found, &ways[i]);
        desk_close(&found);
    }
    desk_close(&right);
}

static int setup(void **state)
{
    struct ocr_err err = OCR_ERR_INIT;

    (void)state;
    if (ocr_model_folder_open(&folder, "tests/data/tiny-reader", &err))
        fail_msg("%s", err.text);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ocr_model_folder_close(folder);
    return 0;
}

int main(void)
{
    static enum ocr_precision precisions[] = {
        OCR_PRECISION_BF16, OCR_PRECISION_FP32, OCR_PRECISION_INT8};
    const struct CMUnitTest tests[] = {
        {"bf16_pages_are_independent", pages_are_independent, NULL, NULL,
         &precisions[0]},
        {"fp32_pages_are_independent", pages_are_independent, NULL, NULL,
         &precisions[1]},
        {"int8_pages_are_independent", pages_are_independent, NULL, NULL,
         &precisions[2]},
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return _cmocka_run_group_tests("independence", tests,
                                   device_is_cpu() ? 3 : 1, setup, teardown);
}
