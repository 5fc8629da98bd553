/* The bits of a page depend on the page alone: the hash of every step's logits
 * is equal alone and beside others, in any slot, with other blocks, with one
 * thread and with several, in other chunks, on every instruction set, and
 * beside a page that fails. */
#include "tests/unit/cpu_help.h"
#include "kernels/cpu/isa.h"

enum {
    IDS = 40,
    PAGES = 4,
};

static struct ocr_model *model;
static struct page alone[3][PAGES]; /* by precision */

static const struct ocr_slot_config HOW = {
    .max_tokens = IDS,
    .forced_length = IDS,
    .sampler = {.temperature = 0.7f,
                .top_p = 0.9f,
                .repetition_penalty = 1.1f,
                .seed = 5,
                .page_hash = 99},
};

static void make_page(struct page *p, unsigned number)
{
    static const uint32_t size[PAGES][2] = {{34, 32}, {6, 4}, {12, 30}, {3, 2}};

    page_init(p, model, 10 + number, size[number][0], size[number][1]);
}

static struct ocr_backend *open_hashing(enum ocr_precision precision,
                                        unsigned threads, unsigned slots,
                                        struct ocr_backend_plan *plan,
                                        uint64_t nan_page)
{
    struct ocr_backend *b =
        backend_open(model, precision, threads, slots, plan);
    const struct ocr_taps taps = {
        .hashes = true,
        .fault = nan_page ? OCR_FAULT_NAN : OCR_FAULT_NONE,
        .fault_page = nan_page,
        .fault_at = 7,
    };

    OK(ocr_backend_cpu.set_taps(b, &taps, err));
    return b;
}

/* Page `number` by itself, on a backend of its own. */
static void read_alone(struct page *p, enum ocr_precision precision,
                       unsigned number, unsigned threads, uint32_t chunk)
{
    struct ocr_backend_plan plan;
    struct ocr_backend *b = open_hashing(precision, threads, 1, &plan, 0);
    const unsigned slot = 0;

    make_page(p, number);
    page_start(b, &plan, p, 0, &HOW, chunk);
    pages_finish(b, &p, &slot, 1, 16);
    assert_false(p->failed);
    assert_int_equal(p->count, IDS);
    ocr_backend_cpu.close(b);
}

static void assert_same(const struct page *p, const struct page *q)
{
    assert_int_equal(p->count, q->count);
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->hashes[i] != q->hashes[i])
            fail_msg("page %d differs at id %d", (int)p->id, (int)i);
        assert_int_equal(p->ids[i], q->ids[i]);
    }
}

static int setup(void **state)
{
    const struct random_shape shape = {
        .vision_layers = 2,
        .vision_hidden = 64,
        .vision_heads = 1,
        .vision_inner = 96,
        .text_layers = 2,
        .hidden = 64,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 32,
        .inner = 100,
        .vocab = 301,
        .patch = 14,
        .grid = 60,
        .max_positions = 2048,
        .text_theta = 1e6f,
        .dtype = OCR_DTYPE_BF16,
    };

    (void)state;
    model = random_model_new(&shape);
    for (int precision = 0; precision < 3; precision++)
        for (unsigned i = 0; i < PAGES; i++)
            read_alone(&alone[precision][i], (enum ocr_precision)precision, i,
                       2, 1000);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int precision = 0; precision < 3; precision++)
        for (unsigned i = 0; i < PAGES; i++)
            page_release(&alone[precision][i]);
    random_model_free(model);
    return 0;
}

/* All pages at once, page i in slot (i + shift) % PAGES; the NaN page (not 0)
 * fails, the others read as alone. */
static void read_together(enum ocr_precision precision, unsigned threads,
                          unsigned shift, uint64_t nan_page)
{
    struct ocr_backend_plan plan;
    struct ocr_backend *b =
        open_hashing(precision, threads, PAGES, &plan, nan_page);
    struct page page[PAGES], *pages[PAGES];
    unsigned slots[PAGES];

    for (unsigned i = 0; i < PAGES; i++) {
        pages[i] = &page[i];
        slots[i] = (i + shift) % PAGES;
        make_page(&page[i], i);
        page_start(b, &plan, &page[i], slots[i], &HOW, 64);
    }
    pages_finish(b, pages, slots, PAGES, 3);
    for (unsigned i = 0; i < PAGES; i++) {
        assert_int_equal(page[i].failed, page[i].id == nan_page);
        if (!page[i].failed)
            assert_same(&page[i], &alone[precision][i]);
        page_release(&page[i]);
    }
    ocr_backend_cpu.close(b);
}

/* Different pages do differ, or equal hashes would say nothing. */
static void pages_differ(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        for (unsigned j = 1; j < PAGES; j++)
            assert_true(alone[i][j].hashes[0] != alone[i][0].hashes[0]);
    assert_true(alone[0][0].hashes[0] != alone[1][0].hashes[0]);
    assert_true(alone[0][0].hashes[9] != alone[2][0].hashes[9]);
}

static void one_thread_and_three(void **state)
{
    struct page p;

    (void)state;
    for (int precision = 0; precision < 3; precision++)
        for (unsigned threads = 1; threads <= 3; threads += 2) {
            read_alone(&p, (enum ocr_precision)precision, 0, threads, 1000);
            assert_same(&p, &alone[precision][0]);
            page_release(&p);
        }
}

/* Whether a token came by prefill or by decoding would be no difference
 * either; chunks of 1 token are nearly that. */
static void chunks_of_the_prompt(void **state)
{
    static const uint32_t sizes[] = {1, 7, 16, 100};
    struct page p;

    (void)state;
    for (int precision = 0; precision < 3; precision++)
        for (size_t i = 0; i < COUNT(sizes); i++) {
            read_alone(&p, (enum ocr_precision)precision, 2, 2, sizes[i]);
            assert_same(&p, &alone[precision][2]);
            page_release(&p);
        }
}

static void four_pages_in_any_slot(void **state)
{
    (void)state;
    for (int precision = 0; precision < 3; precision++) {
        read_together((enum ocr_precision)precision, 2, 0, 0);
        read_together((enum ocr_precision)precision, 1, 3, 0);
    }
}

static void beside_a_nan_page(void **state)
{
    (void)state;
    for (int precision = 0; precision < 3; precision++) {
        read_together((enum ocr_precision)precision, 2, 1, 10 + 1);
        read_together((enum ocr_precision)precision, 2, 2, 10 + 0);
    }
}

/* Blocks that a page filled with NaN are given to the next page. */
static void after_a_nan_page(void **state)
{
    (void)state;
    for (int precision = 0; precision < 3; precision++) {
        struct ocr_backend_plan plan;
        struct ocr_backend *b =
            open_hashing((enum ocr_precision)precision, 2, 1, &plan, 10 + 2);
        const unsigned slot = 0;
        struct page p, *pages = &p;

        make_page(&p, 2);
        page_start(b, &plan, &p, 0, &HOW, 50);
        pages_finish(b, &pages, &slot, 1, 8);
        assert_true(p.failed);
        assert_string_equal(p.sentence,
                            "the logits of the page are not finite");
        page_release(&p);
        ocr_backend_cpu.slot_close(b, 0);
        for (unsigned i = 0; i < PAGES; i += 3) {
            make_page(&p, i);
            page_start(b, &plan, &p, 0, &HOW, 1000);
            pages_finish(b, &pages, &slot, 1, 16);
            assert_same(&p, &alone[precision][i]);
            page_release(&p);
            ocr_backend_cpu.slot_close(b, 0);
        }
        ocr_backend_cpu.close(b);
    }
}

static void every_instruction_set(void **state)
{
    static const char *const names[] = {"scalar", "avx2", "avx512", "bf16",
                                        "amx"};
    const char *before = getenv("OCRFS_ISA");
    char *kept = before ? strdup(before) : NULL;
    struct page p;

    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        if (!cpu_isa_find(names[i])) {
            print_message("no %s here\n", names[i]);
            continue;
        }
        setenv("OCRFS_ISA", names[i], 1);
        assert_string_equal(cpu_isa_choose(NULL)->name, names[i]);
        for (int precision = 0; precision < 3; precision++) {
            read_alone(&p, (enum ocr_precision)precision, 0, 2, 1000);
            assert_same(&p, &alone[precision][0]);
            page_release(&p);
        }
    }
    if (kept)
        setenv("OCRFS_ISA", kept, 1);
    else
        unsetenv("OCRFS_ISA");
    free(kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_differ),
        cmocka_unit_test(one_thread_and_three),
        cmocka_unit_test(chunks_of_the_prompt),
        cmocka_unit_test(four_pages_in_any_slot),
        cmocka_unit_test(beside_a_nan_page),
        cmocka_unit_test(after_a_nan_page),
        cmocka_unit_test(every_instruction_set),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, setup, teardown);
}
