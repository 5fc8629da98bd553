/* What the memory of a GPU is spent on: pages at once by the size of cards,
 * and places that do not overlap. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cuda/plan.h"
#include "tests/lib/random_model.h"

#include <errno.h>

enum {
    A4_TOKENS = 2157 + 4096 + 1, /* prompt, written, one more */
    MIB = 1 << 20
};

/* What the driver and the library take for themselves beside the arena, as the
 * backend reckons with it. */
static const uint64_t context = 768 * (uint64_t)MIB;

/* A model without weights: the plan looks at shapes only. */
static struct ocr_model shape_of(const struct random_shape *s)
{
    return (struct ocr_model){
        .vision = {.layers = s->vision_layers,
                   .hidden = s->vision_hidden,
                   .heads = s->vision_heads,
                   .head_dim = s->vision_hidden / s->vision_heads,
                   .intermediate = s->vision_inner,
                   .patch = s->patch,
                   .grid = s->grid},
        .projector = {.merge = 2},
        .text = {.layers = s->text_layers,
                 .hidden = s->hidden,
                 .heads = s->heads,
                 .kv_heads = s->kv_heads,
                 .head_dim = s->head_dim,
                 .intermediate = s->inner,
                 .vocab = s->vocab,
                 .max_positions = s->max_positions},
    };
}

static struct cuda_want want_of(const struct ocr_model *m, uint64_t bytes)
{
    struct cuda_want want = {.bytes = bytes,
                             .step_scratch = 64 * MIB,
                             .first_scratch = 8 * MIB,
                             .lt = 32 * MIB};

    cuda_want_complete(&want, m);
    return want;
}

static unsigned a4_pages(double gib)
{
    const struct ocr_model m = shape_of(&FULL_SHAPE);
    const struct cuda_want want =
        want_of(&m, (uint64_t)(gib * 0x1p30) - context);
    struct cuda_plan plan;

    assert_int_equal(cuda_plan_make(&plan, &m, &want), 0);
    assert_true(plan.total <= want.bytes);
    return plan.blocks /
           ((A4_TOKENS + OCR_BLOCK_TOKENS - 1) / OCR_BLOCK_TOKENS);
}

static void cards_hold_as_many_pages_as_promised(void **state)
{
    (void)state;
    print_message("# A4 pages at once: A10 %u, V100 %u, A100 %u\n",
                  a4_pages(22.09), a4_pages(31.7), a4_pages(39.4));
    assert_true(a4_pages(22.09) >= 24);
    assert_true(a4_pages(31.7) >= 36);
    assert_true(a4_pages(39.4) >= 46);
}

static void without_a_limit_every_slot_has_its_blocks(void **state)
{
    const struct ocr_model m = shape_of(&FULL_SHAPE);
    const struct cuda_want want = want_of(&m, 0);
    struct cuda_plan plan;

    (void)state;
    assert_int_equal(cuda_plan_make(&plan, &m, &want), 0);
    assert_int_equal(plan.slots, 64);
    assert_int_equal(plan.slot_blocks, (3025 + 64 + 4096 + 1 + 15) / 16);
    assert_int_equal(plan.blocks, 64 * plan.slot_blocks);
    assert_int_equal(plan.bytes[CUDA_KV_POOL],
                     (uint64_t)plan.blocks * 16 * 114688);
}

static void regions_are_aligned_and_apart(void **state)
{
    const struct ocr_model m = shape_of(&FULL_SHAPE);
    const struct cuda_want want = want_of(&m, 24ull << 30);
    struct cuda_plan plan;

    (void)state;
    assert_int_equal(cuda_plan_make(&plan, &m, &want), 0);
    for (int i = 0; i < CUDA_REGIONS; i++) {
        const uint64_t end = plan.offset[i] + plan.bytes[i];

        assert_true(plan.bytes[i] > 0);
        assert_int_equal(plan.offset[i] % CUDA_ALIGN, 0);
        assert_true(end <=
                    (i + 1 < CUDA_REGIONS ? plan.offset[i + 1] : plan.total));
    }
}

static void weights_are_those_of_the_published_file(void **state)
{
    const struct ocr_model m = shape_of(&FULL_SHAPE);
    const uint64_t bytes = cuda_plan_weights(&m);

    (void)state;
    /* 2 bytes a weight (lightonocr.md 2.1), norms and padding above that. */
    assert_true(bytes >= 2 * 1005647872ull);
    assert_true(bytes < 2 * 1005647872ull + MIB);
}

static void less_memory_gives_fewer_pages_then_none(void **state)
{
    const struct ocr_model m = shape_of(&FULL_SHAPE);
    struct cuda_want want = want_of(&m, 0);
    struct cuda_plan plan;
    uint32_t blocks = UINT32_MAX;

    (void)state;
    for (uint64_t gib = 60; gib >= 4; gib -= 4) {
        want.bytes = gib << 30;
        assert_int_equal(cuda_plan_make(&plan, &m, &want), 0);
        assert_true(plan.total <= want.bytes);
        assert_true(plan.blocks <= blocks && plan.blocks >= plan.slot_blocks);
        /* Every slot can hold a page at least. */
        assert_true(plan.blocks >= plan.slots * (4096 / 16));
        blocks = plan.blocks;
    }
    want.bytes = plan.needed;
    assert_int_equal(cuda_plan_make(&plan, &m, &want), 0);
    assert_int_equal(plan.slots, 1);
    want.bytes = plan.needed - 1;
    assert_int_equal(cuda_plan_make(&plan, &m, &want), -ENOMEM);
    assert_int_equal(plan.needed, want.bytes + 1);
}

static void positions_bound_the_blocks(void **state)
{
    struct random_shape shape = FULL_SHAPE;
    struct cuda_want want;
    struct cuda_plan plan;
    struct ocr_model m;

    (void)state;
    shape.max_positions = 4096;
    m = shape_of(&shape);
    want = want_of(&m, 0);
    assert_int_equal(cuda_plan_make(&plan, &m, &want), 0);
    assert_int_equal(plan.slot_blocks, 4096 / 16);
}

static void large_pages_cost_blocks(void **state)
{
    const struct ocr_model m = shape_of(&FULL_SHAPE);
    struct cuda_want want = want_of(&m, 16ull << 30);
    struct cuda_plan large, small;

    (void)state;
    assert_int_equal(cuda_plan_make(&large, &m, &want), 0);
    want.max_patches = 8580;
    want.prompt_tokens = 2157;
    assert_int_equal(cuda_plan_make(&small, &m, &want), 0);
    assert_true(small.blocks > large.blocks);
    assert_true(small.slot_blocks < large.slot_blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cards_hold_as_many_pages_as_promised),
        cmocka_unit_test(without_a_limit_every_slot_has_its_blocks),
        cmocka_unit_test(regions_are_aligned_and_apart),
        cmocka_unit_test(weights_are_those_of_the_published_file),
        cmocka_unit_test(less_memory_gives_fewer_pages_then_none),
        cmocka_unit_test(positions_bound_the_blocks),
        cmocka_unit_test(large_pages_cost_blocks),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
