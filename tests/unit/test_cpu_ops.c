/* The single operations against double precision, at odd sizes, and with the
 * same bits on every instruction set. */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/ops.h"
#include "tests/unit/cpu_help.h"

static float *floats(size_t n, uint64_t seed)
{
    float *x = malloc(n * sizeof *x);

    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = 2 * random_float(seed * 1000003 + i);
    return x;
}

static double *widened(const float *x, size_t n)
{
    double *y = doubles(n);

    for (size_t i = 0; i < n; i++)
        y[i] = (double)x[i];
    return y;
}

/* Runs `make` (fills out[n]) on every instruction set of this machine: the
 * bits must be those of the first. */
static void same_everywhere(void (*make)(float *out, const void *arg),
                            const void *arg, float *out, size_t n)
{
    static const char *const names[] = {"scalar", "avx2", "avx512", "bf16",
                                        "amx"};
    float *again = malloc(n * sizeof *again);

    for (size_t i = 0; i < COUNT(names); i++) {
        if (!cpu_isa_find(names[i]))
            continue;
        setenv("OCRFS_ISA", names[i], 1);
        make(i ? again : out, arg);
        if (i && memcmp(again, out, n * sizeof *out))
            fail_msg("%s gives other bits", names[i]);
    }
    unsetenv("OCRFS_ISA");
    free(again);
}

static void assert_close(const float *x, const double *want, size_t n,
                         double limit)
{
    const double error = relative_l2(x, want, n);

    if (!(error <= limit))
        fail_msg("relative error %g above %g", error, limit);
}

struct linear {
    const float *x;
    uint32_t rows;
    struct ocr_tensor w;
    bool bf16;
};

static void make_linear(float *out, const void *arg)
{
    const struct linear *l = arg;

    OK(ocr_op_linear(out, l->x, l->rows, &l->w, l->bf16, err));
}

static void linear_at_all_sizes(void **state)
{
    static const uint32_t sizes[][3] = {
        {1, 1, 1},    {1, 16, 32},  {3, 17, 33},  {37, 99, 45},
        {7, 5, 1024}, {70, 48, 96}, {2, 31, 588}, {33, 64, 64}};
    static const enum ocr_dtype dtypes[] = {OCR_DTYPE_FP32, OCR_DTYPE_BF16};

    (void)state;
    for (size_t i = 0; i < 2 * COUNT(sizes); i++) {
        const uint32_t *size = sizes[i / 2];
        uint64_t n = 0;
        struct linear l = {.rows = size[0]};
        float *x = floats((size_t)size[0] * size[2], i);
        float *y = malloc((size_t)size[0] * size[1] * sizeof *y);
        double *in = widened(x, (size_t)size[0] * size[2]), *want;

        l.x = x;
        l.w = random_tensor(size[1], size[2], dtypes[i % 2], 0, 1, &n);
        want = ref_linear(in, size[0], &l.w);
        same_everywhere(make_linear, &l, y, (size_t)size[0] * size[1]);
        assert_close(y, want, (size_t)size[0] * size[1], 1e-6);
        l.bf16 = true;
        same_everywhere(make_linear, &l, y, (size_t)size[0] * size[1]);
        assert_close(y, want, (size_t)size[0] * size[1], 0x1p-7);
        random_free_tensor(&l.w);
        free(x);
        free(y);
        free(in);
        free(want);
    }
}

struct attention {
    const float *q, *k, *v;
    uint32_t rows, keys, n;
    bool causal, bf16;
};

static void make_attention(float *out, const void *arg)
{
    const struct attention *a = arg;

    OK(ocr_op_attention(out, a->q, a->k, a->v, a->rows, a->keys, a->n,
                        a->causal, a->bf16, err));
}

/* Around the borders of blocks and splits. */
static void attention_at_all_lengths(void **state)
{
    static const uint32_t sizes[][3] = {
        {1, 1, 8},      {1, 16, 64},   {2, 17, 64},   {5, 255, 20},
        {130, 256, 64}, {3, 257, 128}, {9, 700, 128}, {300, 513, 8}};

    (void)state;
    for (size_t i = 0; i < 2 * COUNT(sizes); i++) {
        const uint32_t *s = sizes[i / 2], rows = s[0], keys = s[1], n = s[2];
        float *q = floats((size_t)rows * n, 1),
              *out = floats((size_t)rows * n, 2);
        float *k = floats((size_t)keys * n, 3),
              *v = floats((size_t)keys * n, 4);
        struct attention a = {.q = q,
                              .k = k,
                              .v = v,
                              .rows = rows,
                              .keys = keys,
                              .n = n,
                              .causal = i % 2};
        double *dq = widened(q, (size_t)rows * n);
        double *dk = widened(k, (size_t)keys * n);
        double *dv = widened(v, (size_t)keys * n);
        double *want = doubles((size_t)rows * n);

        for (uint32_t r = 0; r < rows; r++)
            ref_attend(want + (size_t)r * n, dq + (size_t)r * n, dk, dv,
                       a.causal ? keys - rows + r + 1 : keys, n, n);
        same_everywhere(make_attention, &a, out, (size_t)rows * n);
        assert_close(out, want, (size_t)rows * n, 2e-6);
        a.bf16 = true;
        same_everywhere(make_attention, &a, out, (size_t)rows * n);
        assert_close(out, want, (size_t)rows * n, 0x1p-6);
        free(q);
        free(k);
        free(v);
        free(out);
        free(dq);
        free(dk);
        free(dv);
        free(want);
    }
}

/* Scores far apart: the largest comes late, so everything before it is scaled
 * down again and again. */
static void attention_with_a_late_peak(void **state)
{
    enum {
        KEYS = 600,
        N = 16
    };
    float q[N] = {16}, *k = floats(KEYS * N, 5), *v = floats(KEYS * N, 6);
    float out[N];
    double *dq = widened(q, N), *dk, *dv = widened(v, KEYS * N);
    double want[N];

    (void)state;
    for (uint32_t j = 0; j < KEYS; j++)
        k[j * N] = 0.05f * (float)j;
    dk = widened(k, KEYS * N);
    ref_attend(want, dq, dk, dv, KEYS, N, N);
    OK(ocr_op_attention(out, q, k, v, 1, KEYS, N, false, false, err));
    assert_close(out, want, N, 2e-6);
    free(k);
    free(v);
    free(dq);
    free(dk);
    free(dv);
}

struct vectors {
    const float *x, *g;
    uint32_t n;
};

static void make_rmsnorm(float *out, const void *arg)
{
    const struct vectors *v = arg;

    ocr_op_rmsnorm(out, v->x, v->g, 3, v->n, 1e-6f);
}

static void make_swiglu(float *out, const void *arg)
{
    const struct vectors *v = arg;

    ocr_op_swiglu(out, v->x, v->g, v->n);
}

static void make_rope(float *out, const void *arg)
{
    const struct vectors *v = arg;

    memcpy(out, v->x, v->n / 2 * 2 * sizeof *out);
    ocr_op_rope(out, v->g, v->n / 2 * 2);
}

static void rows_at_all_widths(void **state)
{
    static const uint32_t widths[] = {1, 8, 15, 16, 37, 128, 1024};

    (void)state;
    for (size_t i = 0; i < COUNT(widths); i++) {
        const uint32_t n = widths[i], even = n / 2 * 2;
        float *x = floats(3 * n, 7), *g = floats(n, 8), *y = floats(3 * n, 9);
        const struct vectors v = {x, g, n};
        const struct ocr_tensor t = {.data = (const unsigned char *)g,
                                     .dtype = OCR_DTYPE_FP32,
                                     .rows = 1,
                                     .cols = n};
        double *in = widened(x, 3 * n), *angle = widened(g, n);
        double *want = ref_norm(in, 3, n, &t, 1e-6);

        same_everywhere(make_rmsnorm, &v, y, 3 * n);
        assert_close(y, want, 3 * n, 5e-7);
        same_everywhere(make_swiglu, &v, y, n);
        for (uint32_t j = 0; j < n; j++)
            want[j] = in[j] / (1 + exp(-in[j])) * angle[j];
        assert_close(y, want, n, 5e-7);
        if (even) {
            same_everywhere(make_rope, &v, y, even);
            ref_rotate(in, even, angle);
            assert_close(y, in, even, 5e-7);
        }
        free(x);
        free(g);
        free(y);
        free(in);
        free(angle);
        free(want);
    }
}

/* Exponents from where SiLU is zero to where it is its argument. */
static void silu_at_the_ends(void **state)
{
    static const float x[] = {-200, -90, -88, -20, -1e-3f, 0, 1e-3f, 20, 200};
    float one[COUNT(x)], y[COUNT(x)];

    (void)state;
    for (size_t i = 0; i < COUNT(x); i++)
        one[i] = 1;
    ocr_op_swiglu(y, x, one, COUNT(x));
    for (size_t i = 0; i < COUNT(x); i++) {
        const double want = (double)x[i] / (1 + exp(-(double)x[i]));
        /* The exponent ends at 88.3: e^-88.3 is small enough. */
        assert_true(fabs((double)y[i] - want) <= 1e-6 * fabs(want) + 1e-35);
    }
}

/* lightonocr.md 11.1, 11.2: frequencies; exact erf, not its tanh stand-in. */
static void golden_values(void **state)
{
    float f[64], x[] = {-3, -1, -0.1f, 0, 0.5f, 2, 6};

    (void)state;
    ocr_op_frequencies(f, 64, 1e4f);
    assert_true(fabs((double)f[1] - 0.749894209) < 1e-8);
    assert_true(fabs((double)f[2] - 0.562341325) < 1e-8);
    assert_true(fabs((double)f[31] - 0.000133352143) < 1e-11);
    ocr_op_frequencies(f, 128, 1e6f);
    assert_true(fabs((double)f[1] - 0.805842188) < 1e-7);
    assert_true(fabs((double)f[63] - 1.24093776e-06) < 1e-13);
    ocr_op_gelu(x, COUNT(x));
    assert_true(fabs((double)x[0] + 0.00404969409489) < 1e-8);
    assert_true(fabs((double)x[1] + 0.158655253931) < 1e-7);
    assert_true(fabs((double)x[4] - 0.345731230631) < 1e-7);
    assert_true(fabs((double)x[5] - 1.95449973610) < 1e-6);
}

/* Random123's known answers for Philox4x32-10, and its all-ones case. */
static void philox_known_answers(void **state)
{
    (void)state;
    assert_int_equal(ocr_op_philox(0, 0, 0), 0x6627e8d5);
    assert_int_not_equal(ocr_op_philox(0, 0, 1), 0x6627e8d5);
    assert_int_not_equal(ocr_op_philox(0, 1, 0), ocr_op_philox(1, 0, 0));
    assert_int_not_equal(ocr_op_philox(0, (uint64_t)1 << 32, 0),
                         ocr_op_philox(0, 1, 0));
}

static void the_lowest_of_equals(void **state)
{
    const float x[] = {1, 3, 3, 2, 3};

    (void)state;
    assert_int_equal(ocr_op_argmax(x, 5), 1);
}

static void penalty_by_sign(void **state)
{
    float x[70] = {0};
    const uint64_t seen[2] = {1u << 3 | 1u << 5, 1u << 2};

    (void)state;
    x[3] = 4;
    x[4] = 4;
    x[5] = -4;
    x[66] = 1;
    ocr_op_penalty(x, 70, seen, 2);
    assert_true(x[3] == 2 && x[4] == 4 && x[5] == -8 && x[66] == 0.5f);
}

/* Draws follow the probabilities, within the mass that top_p keeps. */
static void draws_follow_probabilities(void **state)
{
    enum {
        IDS = 5,
        DRAWS = 20000
    };
    /* Probabilities 0.4, 0.3, 0.2, 0.1 and one in a billion, out of order. */
    const float p[IDS] = {0.1f, 0.4f, 1e-9f, 0.2f, 0.3f};
    float logits[IDS];
    void *scratch = malloc(ocr_op_sample_scratch(IDS));
    unsigned all[IDS] = {0}, most[IDS] = {0};

    (void)state;
    for (int i = 0; i < IDS; i++)
        logits[i] = 0.5f * logf(p[i]);
    for (uint32_t i = 0; i < DRAWS; i++) {
        const uint32_t word = ocr_op_philox(7, 8, i);
        all[ocr_op_sample(logits, IDS, 0.5f, 1, word, scratch)]++;
        most[ocr_op_sample(logits, IDS, 0.5f, 0.65f, word, scratch)]++;
    }
    for (int i = 0; i < IDS; i++) {
        const double kept = i == 1 ? 4.0 / 7 : i == 4 ? 3.0 / 7 : 0;
        assert_true(fabs((double)all[i] / DRAWS - (double)p[i]) < 0.015);
        assert_true(fabs((double)most[i] / DRAWS - kept) < 0.015);
    }
    /* The least and the largest number. */
    assert_int_equal(ocr_op_sample(logits, IDS, 0.5f, 0.65f, 0, scratch), 1);
    assert_int_equal(ocr_op_sample(logits, IDS, 0.5f, 0.65f, ~0u, scratch), 4);
    assert_int_equal(ocr_op_sample(logits, IDS, 0.01f, 0.9f, ~0u, scratch), 1);
    free(scratch);
}

static void fp16_is_exact(void **state)
{
    static const uint16_t bits[] = {0x0000, 0x8000, 0x0001, 0x03ff, 0x0400,
                                    0x3c00, 0xc001, 0x7bff, 0x3555};
    static const double want[] = {
        0, -0.0,         0x1p-24, 0x3ffp-24,     0x1p-14,
        1, -2.001953125, 65504,   0.333251953125};
    float x[COUNT(bits)];
    const struct ocr_tensor t = {.data = (const unsigned char *)bits,
                                 .dtype = OCR_DTYPE_FP16,
                                 .rows = 1,
                                 .cols = COUNT(bits)};

    (void)state;
    ocr_tensor_row(&t, 0, x);
    for (size_t i = 0; i < COUNT(bits); i++)
        assert_true((double)x[i] == want[i]);
    assert_true(signbit(x[1]));
}

static void hash_knows_places(void **state)
{
    const float a[] = {1, 2, 3}, b[] = {2, 1, 3}, c[] = {0, -0.0f};

    (void)state;
    assert_int_not_equal(ocr_logits_hash(a, 3), ocr_logits_hash(b, 3));
    assert_int_not_equal(ocr_logits_hash(a, 3), ocr_logits_hash(a, 2));
    assert_int_not_equal(ocr_logits_hash(c, 1), ocr_logits_hash(c + 1, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_at_all_sizes),
        cmocka_unit_test(attention_at_all_lengths),
        cmocka_unit_test(attention_with_a_late_peak),
        cmocka_unit_test(rows_at_all_widths),
        cmocka_unit_test(silu_at_the_ends),
        cmocka_unit_test(golden_values),
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(the_lowest_of_equals),
        cmocka_unit_test(penalty_by_sign),
        cmocka_unit_test(draws_follow_probabilities),
        cmocka_unit_test(fp16_is_exact),
        cmocka_unit_test(hash_knows_places),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
