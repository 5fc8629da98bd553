/* kernels/cpu/isa_amx.c on processors without tiles: the instructions are done
 * in C as Intel's manual describes them, and products and attention must have
 * the bits of the portable loops. Where there are tiles, cpu_isa_find compares
 * the real ones before they are used. */
#include "tests/unit/cpu_help.h"

#if defined(__x86_64__)
#include <immintrin.h>

static uint8_t registers[8][16][64];

static void tile_load(int t, const void *from, size_t stride)
{
    for (int r = 0; r < 16; r++)
        memcpy(registers[t][r], (const char *)from + r * stride, 64);
}

static void tile_store(int t, void *to, size_t stride)
{
    for (int r = 0; r < 16; r++)
        memcpy((char *)to + r * stride, registers[t][r], 64);
}

static float pair_half(int t, int row, int pair, int half)
{
    uint32_t u = 0;
    float x;

    memcpy((char *)&u + 2, registers[t][row] + 4 * pair + 2 * half, 2);
    memcpy(&x, &u, sizeof x);
    return x;
}

/* TDPBF16PS: two sums from zero for each result, added, and added to it. */
static void tile_multiply(int c, int a, int b)
{
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            float even = 0, odd = 0, sum;

            for (int k = 0; k < 16; k++) {
                even = fmaf(pair_half(a, m, k, 0), pair_half(b, k, n, 0), even);
                odd = fmaf(pair_half(a, m, k, 1), pair_half(b, k, n, 1), odd);
            }
            memcpy(&sum, registers[c][m] + 4 * n, sizeof sum);
            sum += even + odd;
            memcpy(registers[c][m] + 4 * n, &sum, sizeof sum);
        }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_loadconfig
#undef _tile_release
#define _tile_loadd(t, from, stride) tile_load(t, from, stride)
#define _tile_stored(t, to, stride) tile_store(t, to, stride)
#define _tile_zero(t) memset(registers[t], 0, sizeof registers[t])
#define _tile_dpbf16ps(c, a, b) tile_multiply(c, a, b)
#define _tile_loadconfig(shape) assert_int_equal((shape)->palette, 1)
#define _tile_release()
#define cpu_isa_amx cpu_isa_emulated
#include "kernels/cpu/cpu_i.h"
/* Its instructions are replaced. NOLINTNEXTLINE */
#include "kernels/cpu/isa_amx.c"

static float *floats(size_t n, uint64_t seed)
{
    float *x = malloc(n * sizeof *x);

    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = 2 * random_float(seed * 1000003 + i);
    return x;
}

/* x [rows][w.cols] times w. */
static float *product(const struct cpu_isa *isa, const float *x, uint32_t rows,
                      const struct ocr_tensor *w, enum cpu_format format)
{
    const struct cpu_source source = {.part = {w}};
    const uint32_t all = (rows + 31) / 32 * 32;
    struct cpu_matrix m;
    const size_t bytes = cpu_matrix_shape(&m, &source, format);
    const enum cpu_rows kind = cpu_matrix_rows(&m, isa, true);
    const size_t stride = cpu_row_stride(kind, w->cols);
    char *a = calloc(all, stride), *spare = malloc((size_t)m.tiles * 2048);
    float *c = malloc(all * 32 * sizeof *c);
    float *out = malloc((size_t)rows * m.columns * sizeof *out);

    assert_int_equal(kind == CPU_ROWS_BF16, isa->half);
    m.data = malloc(bytes);
    m.scale = malloc(m.columns * sizeof *m.scale);
    cpu_matrix_pack(&m, &source, isa, 0, 1);
    if (format != CPU_INT8) {
        free(m.scale);
        m.scale = NULL;
    }
    for (uint32_t r = 0; r < rows; r++)
        isa->to_row(a + r * stride, kind, x + (size_t)r * w->cols, w->cols);
    cpu_matrix_mul(&m, isa, a, stride, kind, rows, 0, m.columns / CPU_LANES,
                   &(struct cpu_finish){.kind = CPU_STORE,
                                        .out = out,
                                        .stride = m.columns * sizeof *out},
                   c, spare);
    free(a);
    free(c);
    free(spare);
    free(m.data);
    free(m.scale);
    return out;
}

static void products_have_the_same_bits(void **state)
{
    static const uint32_t sizes[][3] = {
        {1, 16, 32}, {31, 48, 64}, {32, 32, 37}, {33, 99, 1024}, {70, 17, 96}};
    static const enum cpu_format formats[] = {CPU_BF16, CPU_INT8};

    (void)state;
    if (!cpu_isa_find("avx512")) /* rows are made with it */
        skip();
    for (size_t i = 0; i < 2 * COUNT(sizes); i++) {
        const uint32_t *size = sizes[i / 2];
        const uint32_t columns = (size[1] + 15) / 16 * 16;
        uint64_t n = i;
        const struct ocr_tensor w =
            random_tensor(size[1], size[2], OCR_DTYPE_BF16, 0, 1, &n);
        float *x = floats((size_t)size[0] * size[2], i);
        float *a = product(&cpu_isa_emulated, x, size[0], &w, formats[i % 2]);
        float *b = product(&cpu_isa_scalar, x, size[0], &w, formats[i % 2]);

        assert_memory_equal(a, b, (size_t)size[0] * columns * sizeof *a);
        random_free_tensor(&w);
        free(x);
        free(a);
        free(b);
    }
}

/* `rows` queries of 40 against `keys` tokens, all seen. */
static float *attended(const struct cpu_isa *isa, const float *q,
                       const float *kv, unsigned rows, unsigned keys)
{
    enum {
        D = 40
    };
    struct cpu_heads heads;
    struct cpu_attend a = {.isa = isa,
                           .kv = &heads,
                           .kind =
                               isa->half ? CPU_ROWS_BF16 : CPU_ROWS_ROUNDED};
    const size_t stride = cpu_row_stride(a.kind, D);
    static struct cpu_scratch s;
    char *k = calloc(CPU_SPLIT_BLOCKS, 65536), *v = calloc(1, 1 << 20);
    char *rows_q = calloc(CPU_ATTEND_ROWS, stride);
    const char *panels[CPU_SPLIT_BLOCKS];
    float *out = calloc((size_t)rows * D, sizeof *out);

    cpu_heads_init(&heads, D, CPU_BF16);
    s.scores = calloc(CPU_ATTEND_ROWS, CPU_SCORE_STRIDE * sizeof(float));
    s.p = calloc(CPU_ATTEND_ROWS, cpu_row_stride(a.kind, OCR_SPLIT_TOKENS));
    s.acc = calloc(CPU_ATTEND_ROWS, 64 * sizeof(float));
    s.c = calloc(CPU_ATTEND_ROWS, 32 * sizeof(float));
    for (unsigned i = 0; i < CPU_SPLIT_BLOCKS; i++)
        panels[i] = k + (size_t)i * 65536;
    for (unsigned i = 0; i < keys; i++) {
        cpu_put_k(k + (size_t)(i / 16) * 65536, &heads, isa, i % 16,
                  kv + (size_t)i * D);
        cpu_put_v(v + i / 16 * heads.v_half, heads.v_half * CPU_SPLIT_BLOCKS,
                  &heads, isa, i % 16, kv + (size_t)(keys - 1 - i) * D);
    }
    for (unsigned r = 0; r < rows; r++)
        isa->to_row(rows_q + r * stride, a.kind, q + (size_t)r * D, D);
    cpu_attend_begin(&s, rows, heads.v_panels * CPU_LANES);
    cpu_attend_split(&a, &s, rows_q, stride, rows, panels, v, keys, keys, 0);
    for (unsigned r = 0; r < rows; r++)
        cpu_attend_end(&a, &s, r, out + (size_t)r * D);
    free(k);
    free(v);
    free(rows_q);
    free(s.scores);
    free(s.p);
    free(s.acc);
    free(s.c);
    return out;
}

static void attention_has_the_same_bits(void **state)
{
    static const unsigned sizes[][2] = {{1, 1},    {5, 16},    {32, 33},
                                        {100, 80}, {128, 256}, {3, 250}};
    float *q = floats(CPU_ATTEND_ROWS * 40, 1), *kv = floats(256 * 40, 2);

    (void)state;
    if (!cpu_isa_find("avx512"))
        skip();
    for (size_t i = 0; i < COUNT(sizes); i++) {
        float *a = attended(&cpu_isa_emulated, q, kv, sizes[i][0], sizes[i][1]);
        float *b = attended(&cpu_isa_scalar, q, kv, sizes[i][0], sizes[i][1]);

        assert_memory_equal(a, b, sizes[i][0] * 40 * sizeof *a);
        free(a);
        free(b);
    }
    free(q);
    free(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_the_same_bits),
        cmocka_unit_test(attention_has_the_same_bits),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    puts("1..0 # skip other processors have no tiles");
    return 0;
}

#endif
