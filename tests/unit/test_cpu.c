/* The forward pass on the CPU against one in double precision, on models whose
 * weights a counter makes. */
#include "tests/unit/cpu_help.h"

enum {
    NEW_IDS = 24
};

/* What the taps saw of a page. */
struct seen {
    float *logits; /* [NEW_IDS][vocab] */
    float *features;
    uint32_t steps, first_position, tokens;
    unsigned layers;
};

static void see_logits(void *arg, uint64_t page, uint32_t position,
                       const float *logits, uint32_t vocab)
{
    struct seen *s = arg;

    (void)page;
    if (!s->steps)
        s->first_position = position;
    assert_int_equal(position, s->first_position + s->steps);
    memcpy(s->logits + (size_t)s->steps++ * vocab, logits,
           vocab * sizeof *logits);
}

static void see_features(void *arg, uint64_t page, const float *features,
                         uint32_t tokens, uint32_t hidden)
{
    struct seen *s = arg;

    (void)page;
    s->tokens = tokens;
    memcpy(s->features, features, (size_t)tokens * hidden * sizeof *features);
}

static void see_layer(void *arg, uint64_t page, unsigned layer,
                      const float *residual, uint32_t first, uint32_t rows,
                      uint32_t hidden)
{
    struct seen *s = arg;

    (void)page;
    (void)residual;
    (void)first;
    (void)hidden;
    assert_true(rows > 0);
    if (layer == OCR_TAP_PATCHES)
        s->layers |= 1u << 31;
    else
        s->layers |=
            1u << (layer >= OCR_TAP_TEXT ? layer - OCR_TAP_TEXT + 16 : layer);
}

/* Reads a page with NEW_IDS forced ids. */
static void read_forced(const struct ocr_model *m, enum ocr_precision precision,
                        struct page *p, const uint32_t *forced, struct seen *s)
{
    const struct ocr_slot_config how = {
        .max_tokens = NEW_IDS, .forced = forced, .forced_len = NEW_IDS};
    struct ocr_backend_plan plan;
    struct ocr_backend *b = backend_open(m, precision, 2, 1, &plan);
    const unsigned slot = 0;

    s->logits = malloc(sizeof(float) * NEW_IDS * m->text.vocab);
    s->features = malloc(sizeof(float) * p->prompt_len * m->text.hidden);
    OK(ocr_backend_cpu.set_taps(b,
                                &(struct ocr_taps){.arg = s,
                                                   .logits = see_logits,
                                                   .features = see_features,
                                                   .layer = see_layer},
                                err));
    page_start(b, &plan, p, 0, &how, 1000);
    pages_finish(b, &p, &slot, 1, 5);
    assert_false(p->failed);
    assert_int_equal(p->count, NEW_IDS);
    assert_memory_equal(p->ids, forced, NEW_IDS * sizeof *forced);
    ocr_backend_cpu.close(b);
}

struct limits {
    double features, features_worst, page, worst;
};

static void compare(const struct ocr_model *m, enum ocr_precision precision,
                    uint32_t columns, uint32_t lines,
                    const struct limits *limits)
{
    const uint32_t vocab = m->text.vocab, hidden = m->text.hidden;
    uint32_t ids[PAGE_PROMPT + NEW_IDS], n;
    struct seen s = {0};
    struct page p;
    double *features, *logits, *tail, worst = 0, page, all;

    page_init(&p, m, 7, columns, lines);
    n = p.prompt_len;
    memcpy(ids, p.prompt, n * sizeof *ids);
    for (uint32_t i = 0; i < NEW_IDS; i++)
        ids[n + i] = 11 + (uint32_t)(random_word(i) % (vocab - 11));
    read_forced(m, precision, &p, ids + n, &s);
    features = ref_encode(m, p.rgb, p.width, p.height);
    logits = ref_logits(m, ids, n + NEW_IDS - 1, features);
    tail = logits + (size_t)(n - 1) * vocab;

    assert_int_equal(s.steps, NEW_IDS);
    assert_int_equal(s.first_position, n);
    assert_int_equal(s.tokens, n - 8);
    assert_true(s.layers & 1u << 31);
    for (uint32_t i = 0; i < m->vision.layers; i++)
        assert_true(s.layers & 1u << i);
    for (uint32_t i = 0; i < m->text.layers; i++)
        assert_true(s.layers & 1u << (i + 16));
    all = relative_l2(s.features, features, (size_t)s.tokens * hidden);
    for (uint32_t i = 0; i < s.tokens; i++)
        worst = fmax(worst, relative_l2(s.features + (size_t)i * hidden,
                                        features + (size_t)i * hidden, hidden));
    print_message("features %.2g, worst token %.2g\n", all, worst);
    assert_true(all <= limits->features && worst <= limits->features_worst);
    page = relative_l2(s.logits, tail, (size_t)NEW_IDS * vocab);
    worst = 0;
    for (uint32_t i = 0; i < NEW_IDS; i++)
        worst = fmax(worst, relative_l2(s.logits + (size_t)i * vocab,
                                        tail + (size_t)i * vocab, vocab));
    print_message("logits %.2g, worst position %.2g\n", page, worst);
    assert_true(page <= limits->page && worst <= limits->worst);
    free(s.logits);
    free(s.features);
    free(features);
    free(logits);
    page_release(&p);
}

static const struct limits EXACT = {1e-5, 5e-5, 2e-5, 2e-4};
/* 8 significant bits per input of a product, a few products behind each other.
 */
static const struct limits ROUNDED = {2e-2, 4e-2, 2e-2, 4e-2};
static const struct limits COARSE = {2e-2, 4e-2, 4e-2, 8e-2};

static void odd_shapes(void **state)
{
    struct random_shape shape = ODD_SHAPE;
    struct ocr_model *m = random_model_new(&shape);

    (void)state;
    compare(m, OCR_PRECISION_FP32, 8, 8, &EXACT);
    compare(m, OCR_PRECISION_FP32, 2, 2, &EXACT);
    compare(m, OCR_PRECISION_FP32, 5, 7,
            &EXACT); /* odd: a row, a column less */
    compare(m, OCR_PRECISION_BF16, 8, 8, &ROUNDED);
    compare(m, OCR_PRECISION_INT8, 8, 8, &COARSE);
    random_model_free(m);
    shape.own_head = true;
    m = random_model_new(&shape);
    compare(m, OCR_PRECISION_FP32, 4, 6, &EXACT);
    random_model_free(m);
}

/* More than one split and more than one block of rows, both in vision and in
 * the decoder, and heads as the published model has them. */
static void several_splits(void **state)
{
    const struct random_shape shape = {
        .vision_layers = 2,
        .vision_hidden = 64,
        .vision_heads = 1,
        .vision_inner = 96,
        .text_layers = 2,
        .hidden = 64,
        .heads = 2,
        .kv_heads = 1,
        .head_dim = 128,
        .inner = 96,
        .vocab = 301,
        .patch = 14,
        .grid = 60,
        .max_positions = 2048,
        .text_theta = 1e6f,
        .dtype = OCR_DTYPE_BF16,
    };
    struct ocr_model *m = random_model_new(&shape);

    (void)state;
    compare(m, OCR_PRECISION_FP32, 34, 32, &EXACT);
    compare(m, OCR_PRECISION_BF16, 34, 32, &ROUNDED);
    compare(m, OCR_PRECISION_INT8, 20, 22, &COARSE);
    random_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_shapes),
        cmocka_unit_test(several_splits),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
