/* kernels/backend.h as the CPU (or a GPU: tests/lib/device.h) fills it: events
 * and their order, limits, cancelling, pages that fail, and calls that are
 * refused. */
#include "tests/unit/cpu_help.h"

static const struct ocr_backend_ops *ops;

struct fixture {
    struct ocr_model *model;
    struct ocr_backend *b;
    struct ocr_backend_plan plan;
    struct page page[4], *pages[4];
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    f->model = random_model_new(device_shape());
    f->b = backend_open(f->model, OCR_PRECISION_BF16, 2, 4, &f->plan);
    for (unsigned i = 0; i < 4; i++) {
        f->pages[i] = &f->page[i];
        page_init(&f->page[i], f->model, i + 1, 4, 4);
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    ops->close(f->b);
    for (unsigned i = 0; i < 4; i++)
        page_release(&f->page[i]);
    random_model_free(f->model);
    free(f);
    return 0;
}

static struct ocr_slot_config config_of(const struct page *p, uint32_t ids)
{
    return (struct ocr_slot_config){.page = p->id,
                                    .prompt = p->prompt,
                                    .prompt_len = p->prompt_len,
                                    .max_tokens = ids};
}

static void start(struct fixture *f, unsigned i, uint32_t ids)
{
    const struct ocr_slot_config how = {.max_tokens = ids};

    page_start(f->b, &f->plan, &f->page[i], i, &how, 1000);
}

static struct ocr_event next(struct fixture *f)
{
    struct ocr_event e;

    assert_int_equal(ops->poll(f->b, &e, 1, 60000), 1);
    return e;
}

/* The page read once, as the yardstick: greedy ids. */
static void read_greedy(struct fixture *f, uint32_t *ids, uint32_t count)
{
    const unsigned slot = 0;

    start(f, 0, count);
    pages_finish(f->b, f->pages, &slot, 1, 16);
    assert_int_equal(f->page[0].count, count);
    memcpy(ids, f->page[0].ids, count * sizeof *ids);
    ops->slot_close(f->b, 0);
    f->page[0].count = 0;
    f->page[0].done = false;
}

static void events_in_order(void **state)
{
    struct fixture *f = *state;
    const struct ocr_slot_config c = config_of(&f->page[0], 6);
    const unsigned slot = 2;
    struct ocr_event e;

    OK(ops->slot_open(f->b, 2, &c, err));
    for (uint32_t i = 0; i < f->plan.slot_blocks; i++)
        ops->block_table(f->b, 2)[i] = i;
    OK(ops->submit_encode(f->b, 11, c.page, f->page[0].rgb, 56, 56, err));
    OK(ops->submit_prefill(f->b, 12, 2, 0, 5, err));
    OK(ops->submit_prefill(f->b, 13, 2, 5, c.prompt_len - 5, err));
    OK(ops->submit_decode(f->b, 14, &slot, 1, 3, err));
    OK(ops->submit_decode(f->b, 15, &slot, 1, 16, err));
    e = next(f);
    assert_int_equal(e.type, OCR_EVENT_ENCODED);
    assert_int_equal(e.ticket, 11);
    assert_int_equal(e.page, c.page);
    assert_int_equal(e.slot, 2);
    e = next(f);
    assert_int_equal(e.type, OCR_EVENT_PREFILLED);
    assert_int_equal(e.ticket, 12);
    assert_int_equal(e.count, 0);
    e = next(f);
    assert_int_equal(e.type, OCR_EVENT_PREFILLED);
    assert_int_equal(e.ticket, 13);
    assert_int_equal(e.count, 1);
    e = next(f);
    assert_int_equal(e.type, OCR_EVENT_TOKENS);
    assert_int_equal(e.ticket, 14);
    assert_int_equal(e.count, 3);
    e = next(f);
    assert_int_equal(e.type, OCR_EVENT_STEP);
    assert_int_equal(e.ticket, 14);
    e = next(f);
    assert_int_equal(e.type, OCR_EVENT_DONE);
    assert_int_equal(e.ticket, 15);
    assert_int_equal(e.count, 2);
    assert_false(e.stopped);
    e = next(f);
    assert_int_equal(e.type, OCR_EVENT_STEP);
    assert_int_equal(e.ticket, 15);
    assert_int_equal(ops->poll(f->b, &e, 1, 0), 0);
}

static void a_page_of_one_id(void **state)
{
    struct fixture *f = *state;

    start(f, 0, 1);
    assert_int_equal(f->page[0].count, 1);
    assert_int_equal(next(f).type, OCR_EVENT_DONE);
}

static void stop_ids_end_a_page(void **state)
{
    struct fixture *f = *state;
    struct ocr_slot_config how = {.max_tokens = 30, .stop_count = 2};
    struct page *p = &f->page[0];
    const unsigned slot = 0;
    uint32_t ids[30], at = 1;
    struct ocr_event e;

    read_greedy(f, ids, 30);
    while (at < 29) { /* an id that did not come before */
        uint32_t i = 0;
        while (ids[i] != ids[at])
            i++;
        if (i == at)
            break;
        at++;
    }
    how.stop_ids[0] = 98;
    how.stop_ids[1] = ids[at];
    page_start(f->b, &f->plan, p, 0, &how, 1000);
    pages_finish(f->b, f->pages, &slot, 1, 4);
    assert_true(p->stopped);
    assert_int_equal(p->count, at);
    assert_memory_equal(p->ids, ids, at * sizeof *ids);
    ops->slot_close(f->b, 0);

    /* The first id of all. */
    p->count = 0;
    p->done = p->stopped = false;
    how.stop_ids[0] = ids[0];
    page_start(f->b, &f->plan, p, 0, &how, 1000);
    e = next(f);
    assert_int_equal(e.type, OCR_EVENT_DONE);
    assert_true(e.stopped);
    assert_int_equal(p->count, 0);
    ops->slot_close(f->b, 0);

    /* Not before the forced length. */
    how.forced_length = 12;
    p->count = 0;
    p->done = p->stopped = false;
    page_start(f->b, &f->plan, p, 0, &how, 1000);
    pages_finish(f->b, f->pages, &slot, 1, 16);
    assert_int_equal(p->count, 12);
    assert_memory_equal(p->ids, ids, 12 * sizeof *ids);
}

static void many_slots_in_flight(void **state)
{
    struct fixture *f = *state;
    const unsigned slots[] = {3, 0, 2, 1};
    struct page *in_order[] = {f->pages[3], f->pages[0], f->pages[2],
                               f->pages[1]};

    for (unsigned i = 0; i < 4; i++)
        start(f, i, 3 + 5 * i);
    pages_finish(f->b, in_order, slots, 4, 2);
    for (unsigned i = 0; i < 4; i++) {
        assert_false(f->page[i].failed);
        assert_int_equal(f->page[i].count, 3 + 5 * i);
    }
}

static void penalty_covers_generated_ids_only(void **state)
{
    struct fixture *f = *state;
    struct ocr_slot_config how = {.max_tokens = 40,
                                  .sampler = {.repetition_penalty = 1e6f}};
    struct page *p = &f->page[0];
    const unsigned slot = 0;
    uint32_t ids[1];

    /* With this penalty an id comes twice only if no positive logit is left;
     * the first id may well be one of the prompt's. */
    read_greedy(f, ids, 1);
    for (uint32_t i = p->prompt_len - 5; i < p->prompt_len; i++)
        p->prompt[i] = ids[0];
    page_start(f->b, &f->plan, p, 0, &how, 1000);
    pages_finish(f->b, f->pages, &slot, 1, 16);
    for (uint32_t i = 0; i < p->count; i++)
        for (uint32_t j = 0; j < i; j++)
            assert_int_not_equal(p->ids[i], p->ids[j]);
}

static void cancelled_at_once(void **state)
{
    struct fixture *f = *state;
    const unsigned slots[] = {0, 1};
    struct ocr_taps taps = {.fault = OCR_FAULT_HANG, .fault_page = 1};
    struct ocr_event e;

    OK(ops->set_taps(f->b, &taps, err));
    start(f, 1, 9);
    OK(ops->slot_open(
        f->b, 0,
        &(struct ocr_slot_config){.page = 1,
                                  .prompt = f->page[0].prompt,
                                  .prompt_len = f->page[0].prompt_len,
                                  .max_tokens = 9},
        err));
    OK(ops->submit_encode(f->b, 21, 1, f->page[0].rgb, 56, 56, err));
    OK(ops->submit_prefill(f->b, 22, 0, 0, f->page[0].prompt_len, err));
    OK(ops->submit_decode(f->b, 23, slots, 2, 16, err));
    assert_int_equal(ops->poll(f->b, &e, 1, 50), 0); /* it hangs */
    ops->cancel(f->b, 1);
    e = next(f);
    assert_int_equal(e.type, OCR_EVENT_FAILED);
    assert_int_equal(e.ticket, 21);
    assert_string_equal(e.sentence, "cancelled");
    e = next(f);
    assert_int_equal(e.type, OCR_EVENT_FAILED);
    assert_int_equal(e.ticket, 22);
    e = next(f); /* the other page goes on */
    assert_int_equal(e.type, OCR_EVENT_DONE);
    assert_int_equal(e.page, 2);
    assert_int_equal(e.count, 8);
    assert_int_equal(next(f).type, OCR_EVENT_STEP);
    ops->cancel(f->b, 12345); /* unknown: ignored */
    ops->slot_close(f->b, 0);
    f->page[0].id = 77; /* the slot is as good as new */
    start(f, 0, 3);
    pages_finish(f->b, f->pages, slots, 1, 16);
    assert_int_equal(f->page[0].count, 3);
}

static struct ocr_backend *cancel_in;
static unsigned cancel_at, cancel_seen;

static void cancel_behind_layer(void *arg, uint64_t page, unsigned layer,
                                const float *residual, uint32_t first,
                                uint32_t rows, uint32_t hidden)
{
    (void)arg;
    (void)residual;
    (void)first;
    (void)rows;
    (void)hidden;
    cancel_seen = layer;
    if (layer == cancel_at)
        ops->cancel(cancel_in, page);
}

/* Work that is under way ends with the layer, in either tower. */
static void cancelled_between_layers(void **state)
{
    struct fixture *f = *state;
    struct ocr_slot_config c = config_of(&f->page[0], 9);
    struct ocr_event e;

    cancel_in = f->b;
    cancel_at = 0;
    OK(ops->set_taps(f->b, &(struct ocr_taps){.layer = cancel_behind_layer},
                     err));
    OK(ops->slot_open(f->b, 0, &c, err));
    OK(ops->submit_encode(f->b, 31, 1, f->page[0].rgb, 56, 56, err));
    e = next(f);
    assert_int_equal(e.type, OCR_EVENT_FAILED);
    assert_int_equal(cancel_seen, 0);
    ops->slot_close(f->b, 0);

    cancel_at = 1000;
    OK(ops->slot_open(f->b, 0, &c, err));
    OK(ops->submit_encode(f->b, 32, 1, f->page[0].rgb, 56, 56, err));
    assert_int_equal(next(f).type, OCR_EVENT_ENCODED);
    OK(ops->submit_prefill(f->b, 33, 0, 0, c.prompt_len, err));
    e = next(f);
    assert_int_equal(e.type, OCR_EVENT_FAILED);
    assert_int_equal(e.ticket, 33);
    assert_int_equal(cancel_seen, 1000);
}

static void a_nan_page_fails_alone(void **state)
{
    struct fixture *f = *state;
    const unsigned slots[] = {0, 1};

    OK(ops->set_taps(
        f->b, &(struct ocr_taps){.fault = OCR_FAULT_NAN, .fault_page = 2},
        err));
    start(f, 0, 5);
    start(f, 1, 5); /* in its prefill */
    assert_true(f->page[1].failed);
    assert_string_equal(f->page[1].sentence,
                        "the logits of the page are not finite");
    pages_finish(f->b, f->pages, slots, 2, 16);
    assert_false(f->page[0].failed);
    assert_int_equal(f->page[0].count, 5);
}

static void a_lost_device_is_said(void **state)
{
    struct fixture *f = *state;
    const struct ocr_slot_config c = config_of(&f->page[0], 9);
    struct ocr_err why = OCR_ERR_INIT;

    OK(ops->set_taps(
        f->b, &(struct ocr_taps){.fault = OCR_FAULT_LOST, .fault_page = 1},
        err));
    OK(ops->slot_open(f->b, 0, &c, err));
    OK(ops->submit_encode(f->b, 41, 1, f->page[0].rgb, 56, 56, err));
    assert_int_equal(next(f).type, OCR_EVENT_LOST);
    assert_int_equal(ops->submit_prefill(f->b, 42, 0, 0, 2, &why), -EIO);
}

static void a_wrong_block_fails_the_page(void **state)
{
    struct fixture *f = *state;
    const struct ocr_slot_config c = config_of(&f->page[0], 9);
    struct ocr_event e;

    OK(ops->slot_open(f->b, 0, &c, err));
    ops->block_table(f->b, 0)[0] = f->plan.blocks;
    OK(ops->submit_encode(f->b, 51, 1, f->page[0].rgb, 56, 56, err));
    assert_int_equal(next(f).type, OCR_EVENT_ENCODED);
    OK(ops->submit_prefill(f->b, 52, 0, 0, c.prompt_len, err));
    e = next(f);
    assert_int_equal(e.type, OCR_EVENT_FAILED);
    assert_string_equal(e.sentence, "the page's block table is wrong");
}

#define REFUSED(code, call)                                                    \
    do {                                                                       \
        struct ocr_err err_ = OCR_ERR_INIT, *err = &err_;                      \
        assert_int_equal(call, code);                                          \
        assert_true(err->text[0] != 0);                                        \
    } while (0)

static void wrong_calls_are_refused(void **state)
{
    struct fixture *f = *state;
    struct ocr_slot_config c = config_of(&f->page[0], 9);
    const uint32_t bad[] = {f->model->text.vocab};
    const unsigned slot = 0, none = 4;

    REFUSED(-EINVAL, ops->slot_open(f->b, 4, &c, err));
    c.max_tokens = 4000;
    REFUSED(-E2BIG, ops->slot_open(f->b, 0, &c, err));
    c.max_tokens = 9;
    c.forced = bad;
    c.forced_len = 1;
    REFUSED(-EINVAL, ops->slot_open(f->b, 0, &c, err));
    c.forced = NULL;
    OK(ops->slot_open(f->b, 0, &c, err));
    REFUSED(-EBUSY, ops->slot_open(f->b, 0, &c, err));
    REFUSED(-EBUSY, ops->slot_open(f->b, 1, &c, err)); /* the same page */
    REFUSED(-EINVAL, ops->submit_encode(f->b, 1, 9, NULL, 56, 56, err));
    REFUSED(-EINVAL, ops->submit_encode(f->b, 1, 1, NULL, 57, 56, err));
    REFUSED(-EINVAL, ops->submit_encode(f->b, 1, 1, NULL, 28, 56, err));
    REFUSED(-EINVAL, ops->submit_encode(f->b, 1, 1, NULL, 14 * 9, 28, err));
    REFUSED(-EINVAL, ops->submit_prefill(f->b, 1, 1, 0, 1, err));
    REFUSED(-EINVAL, ops->submit_prefill(f->b, 1, 0, 1, 1, err));
    REFUSED(-EINVAL, ops->submit_prefill(f->b, 1, 0, 0, c.prompt_len + 1, err));
    REFUSED(-EINVAL, ops->submit_decode(f->b, 1, &slot, 1, 4, err));
    REFUSED(-EINVAL, ops->submit_decode(f->b, 1, &none, 1, 4, err));
    REFUSED(-EINVAL, ops->submit_decode(f->b, 1, &slot, 0, 4, err));
    REFUSED(-EINVAL, ops->submit_decode(f->b, 1, &slot, 1, 17, err));
    assert_null(ops->block_table(f->b, 4));
}

/* A prompt whose features are missing fails, and a full queue says so. */
static void queues_are_bounded(void **state)
{
    struct fixture *f = *state;
    const struct ocr_slot_config c = config_of(&f->page[0], 9);
    struct ocr_err why = OCR_ERR_INIT;
    struct ocr_event e;
    unsigned n = 0;

    OK(ops->slot_open(f->b, 0, &c, err));
    OK(ops->submit_prefill(f->b, 1, 0, 0, 1, err));
    e = next(f);
    assert_int_equal(e.type, OCR_EVENT_FAILED);
    assert_string_equal(e.sentence, "the page was not encoded");
    while (!ops->submit_encode(f->b, n, 1, f->page[0].rgb, 56, 56, &why))
        assert_true(++n < 10000);
    assert_int_equal(why.code, -EAGAIN);
    assert_true(n >= 4 * 4);
    for (unsigned i = 0; i < n; i++) {
        e = next(f);
        assert_int_equal(e.type, OCR_EVENT_FAILED);
        assert_int_equal(e.ticket, i);
    }
    OK(ops->submit_encode(f->b, n, 1, f->page[0].rgb, 56, 56, err));
    assert_int_equal(next(f).ticket, n);
}

static void waking_a_poll(void **state)
{
    struct fixture *f = *state;
    struct ocr_event e;

    ops->wake(f->b);
    assert_int_equal(ops->poll(f->b, &e, 1, -1), 0);
    assert_int_equal(ops->poll(f->b, &e, 1, 0), 0);
}

/* Closing does not wait for pages. */
static void closed_at_work(void **state)
{
    struct fixture *f = *state;
    const struct ocr_slot_config c = config_of(&f->page[0], 9);

    OK(ops->set_taps(
        f->b, &(struct ocr_taps){.fault = OCR_FAULT_HANG, .fault_page = 1},
        err));
    OK(ops->slot_open(f->b, 0, &c, err));
    OK(ops->submit_encode(f->b, 61, 1, f->page[0].rgb, 56, 56, err));
}

static void memory_limits_slots(void **state)
{
    struct ocr_model *m = random_model_new(&ODD_SHAPE);
    struct ocr_backend_config c = {.precision = OCR_PRECISION_BF16,
                                   .threads = 1,
                                   .slots = 8,
                                   .max_tokens = 256};
    struct ocr_backend_plan plan;
    struct ocr_backend *b = NULL;
    struct ocr_err why = OCR_ERR_INIT;
    uint64_t all;

    (void)state;
    OK(ops->open(&b, &c, m, &plan, err));
    ops->close(b);
    assert_int_equal(plan.slots, 8);
    assert_int_equal(plan.blocks, 8 * plan.slot_blocks);
    all = plan.weight_bytes + plan.kv_bytes + plan.workspace_bytes;
    c.memory = all - 1;
    OK(ops->open(&b, &c, m, &plan, err));
    ops->close(b);
    assert_int_equal(plan.slots, 7);
    c.memory = 1000;
    assert_int_equal(ops->open(&b, &c, m, &plan, &why), -ENOMEM);
    assert_non_null(strstr(why.text, "bytes of memory"));
    random_model_free(m);
}

static void shapes_that_cannot_be(void **state)
{
    struct ocr_model *m = random_model_new(&ODD_SHAPE);
    const struct ocr_backend_config c = {.threads = 1, .slots = 1};
    struct ocr_backend_plan plan;
    struct ocr_backend *b = NULL;
    struct ocr_err why = OCR_ERR_INIT;

    (void)state;
    m->text.kv_heads = 3;
    assert_int_equal(ops->open(&b, &c, m, &plan, &why), -EINVAL);
    assert_non_null(strstr(why.text, "decoder"));
    m->text.kv_heads = 2;
    random_model_free(m);
}

int main(void)
{
#define WITH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH(events_in_order),
        WITH(a_page_of_one_id),
        WITH(stop_ids_end_a_page),
        WITH(many_slots_in_flight),
        WITH(penalty_covers_generated_ids_only),
        WITH(cancelled_at_once),
        WITH(cancelled_between_layers),
        WITH(a_nan_page_fails_alone),
        WITH(a_lost_device_is_said),
        WITH(a_wrong_block_fails_the_page),
        WITH(wrong_calls_are_refused),
        WITH(queues_are_bounded),
        WITH(waking_a_poll),
        WITH(closed_at_work),
        cmocka_unit_test(memory_limits_slots), /* of the CPU alone */
        cmocka_unit_test(shapes_that_cannot_be),
    };
    const size_t count = device_is_cpu() ? COUNT(tests) : COUNT(tests) - 2;

    cmocka_set_message_output(CM_OUTPUT_TAP);
    ops = device_ops(device_name());
    return _cmocka_run_group_tests("contract", tests, count, NULL, NULL);
}
