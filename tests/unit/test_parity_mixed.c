/* Pages that come and go while others are read: vision and prefill of one
 * beside the decoding of others, one that is cancelled, one that becomes NaN.
 * The bits of all others are those they have alone. With the argument `full`
 * the model has the size of LightOnOCR-2-1B: for a GPU. */
#include "engine/model/model.h"
#include "tests/unit/counter.h"
#include "tests/unit/parity_help.h"

enum {
    PAGES = 20,
    SLOTS = 6,
    IDS = PARITY_SLOW ? 32 : 48,
    CANCELLED = 4, /* numbers of pages, from 1 on */
    BROKEN = 7,
    BROKEN_AT = 3,
};

static struct ocr_model_folder *folder;
static const struct ocr_model *model;
static unsigned scale = 1; /* of the pages */

static struct sheet sheet_new(unsigned number)
{
    const uint32_t width = scale * (56 + 28 * (number % 5));
    const uint32_t height = scale * (28 + 28 * (number % 7));
    const size_t bytes = (size_t)width * height * 3;
    uint8_t *rgb = parity_alloc(1, bytes);
    uint32_t *ids = parity_alloc(12 + IDS, sizeof *ids);
    char name[32];
    struct sheet sheet = {.rgb = rgb,
                          .width = width,
                          .height = height,
                          .max_tokens = IDS - number % 9,
                          .forced = ids + 12};

    snprintf(name, sizeof name, "mixed %u", number);
    counter_pixels(name, rgb, bytes);
    counter_ids(name, ids, 12 + IDS, model->text.vocab, model->image_token);
    sheet_prompt(&sheet, ids, model);
    return sheet;
}

static void sheet_free(struct sheet *sheet)
{
    free((void *)(uintptr_t)sheet->rgb);
    free((void *)(uintptr_t)(sheet->forced - 12));
    free(sheet->prompt);
    sheet_release(sheet);
}

/* ---- pages that come and go --------------------------------------------- */

/* The state of a page beside what its sheet says. */
struct visitor {
    struct sheet *sheet;
    bool prefilled;
    unsigned flights; /* decodes under way that have its slot */
};

struct room {
    struct session s;
    struct visitor visitor[SLOTS];
    unsigned next; /* of the sheets */
    bool encoding;
    unsigned flights, taking[2][SLOTS], count[2];
    uint64_t ticket[2];
};

static unsigned slot_of(const struct room *r, uint64_t page)
{
    for (unsigned i = 0; i < SLOTS; i++)
        if (r->visitor[i].sheet &&
            r->visitor[i].sheet == &r->s.sheets[page - 1])
            return i;
    fail_msg("an event of page %u, which is not here", (unsigned)page);
    return 0;
}

static void let_in(struct room *r)
{
    struct ocr_err err = OCR_ERR_INIT;

    for (unsigned i = 0; i < SLOTS && !r->encoding && r->next < PAGES; i++) {
        struct visitor *v = &r->visitor[i];

        if (v->sheet)
            continue;
        *v = (struct visitor){.sheet = &r->s.sheets[r->next++]};
        session_slot(&r->s, i, v->sheet);
        if (r->s.ops->submit_encode(r->s.backend, 1000 + i, r->next,
                                    v->sheet->rgb, v->sheet->width,
                                    v->sheet->height, &err))
            fail_msg("%s", err.text);
        r->encoding = true;
    }
}

static void let_out(struct room *r)
{
    for (unsigned i = 0; i < SLOTS; i++) {
        struct visitor *v = &r->visitor[i];

        if (!v->sheet || !v->sheet->done || v->flights)
            continue;
        r->s.ops->slot_close(r->s.backend, i);
        v->sheet = NULL;
    }
}

/* Two decodes are under way whenever there are pages for them. */
static void decode(struct room *r)
{
    struct ocr_err err = OCR_ERR_INIT;

    for (unsigned f = 0; f < 2; f++) {
        unsigned *slots = r->taking[f], n = 0;

        if (r->ticket[f])
            continue;
        for (unsigned i = 0; i < SLOTS; i++)
            if (r->visitor[i].sheet && r->visitor[i].prefilled &&
                !r->visitor[i].sheet->done)
                slots[n++] = i;
        if (!n)
            return;
        r->ticket[f] = ++r->s.ticket;
        r->count[f] = n;
        for (unsigned i = 0; i < n; i++)
            r->visitor[slots[i]].flights++;
        if (r->s.ops->submit_decode(r->s.backend, r->ticket[f], slots, n,
                                    1 + r->next % 5, &err))
            fail_msg("%s", err.text);
    }
}

static void on_step(struct room *r, uint64_t ticket)
{
    const unsigned f = ticket == r->ticket[1];

    assert_int_equal(r->ticket[f], ticket);
    r->ticket[f] = 0;
    for (unsigned i = 0; i < r->count[f]; i++)
        r->visitor[r->taking[f][i]].flights--;
}

static void on_event(struct room *r, const struct ocr_event *e)
{
    struct ocr_err err = OCR_ERR_INIT;
    struct visitor *v;
    unsigned slot;

    if (e->type == OCR_EVENT_STEP) {
        on_step(r, e->ticket);
        return;
    }
    slot = slot_of(r, e->page);
    v = &r->visitor[slot];
    session_take(&r->s, e);
    if (e->ticket == 1000 + slot)
        r->encoding = false;
    if (e->type == OCR_EVENT_ENCODED &&
        r->s.ops->submit_prefill(r->s.backend, 2000 + slot, slot, 0,
                                 v->sheet->prompt_len, &err))
        fail_msg("%s", err.text);
    v->prefilled = v->prefilled || e->type == OCR_EVENT_PREFILLED;
    if (e->page == CANCELLED && v->sheet->count > 5)
        r->s.ops->cancel(r->s.backend, CANCELLED);
}

static bool is_empty(const struct room *r)
{
    for (unsigned i = 0; i < SLOTS; i++)
        if (r->visitor[i].sheet)
            return false;
    return r->next == PAGES;
}

static void read_mixed(struct sheet *sheets)
{
    struct room r = {.next = 0};
    struct ocr_taps taps = {.hashes = true,
                            .fault = OCR_FAULT_NAN,
                            .fault_page = BROKEN,
                            .fault_at = BROKEN_AT};

    session_open(&r.s, model,
                 (struct ocr_backend_config){.slots = SLOTS, .threads = 2},
                 sheets, PAGES);
    r.s.interleaved = true;
    session_taps(&r.s, &taps);
    while (!is_empty(&r)) {
        struct ocr_event e;

        let_in(&r);
        decode(&r);
        assert_int_equal(r.s.ops->poll(r.s.backend, &e, 1, 60000), 1);
        on_event(&r, &e);
        let_out(&r);
    }
    session_close(&r.s);
}

static void read_alone(struct sheet *sheets)
{
    struct session s;
    const struct ocr_taps taps = {.hashes = true};

    session_open(&s, model,
                 (struct ocr_backend_config){.slots = 1, .threads = 1}, sheets,
                 PAGES);
    session_taps(&s, &taps);
    for (unsigned i = 0; i < PAGES; i++)
        session_read(&s, &sheets[i]);
    session_close(&s);
}

static void check(const struct sheet *alone, const struct sheet *mixed,
                  unsigned number)
{
    if (number == CANCELLED || number == BROKEN) {
        assert_true(mixed->failed);
        assert_true(mixed->count < alone->count);
        assert_string_equal(mixed->sentence,
                            number == BROKEN
                                ? "the logits of the page are not finite"
                                : "cancelled");
    } else {
        assert_false(mixed->failed);
        assert_int_equal(mixed->count, alone->count);
    }
    for (uint32_t i = 0; i < mixed->count; i++)
        if (mixed->hashes[i] != alone->hashes[i])
            fail_msg("page %u differs in step %u", number, i);
}

static void pages_that_come_and_go_keep_their_bits(void **state)
{
    struct sheet alone[PAGES], mixed[PAGES];

    (void)state;
    for (unsigned i = 0; i < PAGES; i++) {
        alone[i] = sheet_new(i);
        mixed[i] = sheet_new(i);
    }
    read_alone(alone);
    read_mixed(mixed);
    for (unsigned i = 0; i < PAGES; i++) {
        assert_int_equal(alone[i].count, IDS - i % 9);
        check(&alone[i], &mixed[i], i + 1);
        sheet_free(&alone[i]);
        sheet_free(&mixed[i]);
    }
}

static int setup(void **state)
{
    struct ocr_err err = OCR_ERR_INIT;

    if (*state) {
        model = random_model_new(&FULL_SHAPE);
        scale = 5;
        return 0;
    }
    if (ocr_model_folder_open(&folder, "tests/data/tiny-reader", &err))
        fail_msg("%s", err.text);
    model = &folder->model;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ocr_model_folder_close(folder);
    return 0;
}

int main(int argc, char **argv)
{
    const bool full = argc > 1 && !strcmp(argv[1], "full");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate_setup_teardown(
            pages_that_come_and_go_keep_their_bits, setup, teardown,
            full ? &scale : NULL),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
