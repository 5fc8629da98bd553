/* kernels/cpu/body.h - the inner loops in terms of v16.h; isa_*.c include it.
 *
 * Layer:   kernels/cpu, private.
 * Threads: no state. */
#include "kernels/cpu/isa.h"

/* BODY_ROWS and BODY_PAIR_ROWS, at most 4: rows whose sums stay in registers,
 * with one panel and with two. (More rows have registers, too, but compilers
 * then lose themselves: measured.) */

enum {
    BODY_SUMS = 8,     /* of 4 rows and two panels */
    BODY_AHEAD = 2048, /* bytes of each panel: measured */
};

/* Input k of a tile for 16 outputs, as floats. */
V16_FN struct v16 tile_input(const void *tile, unsigned k,
                             enum cpu_format format)
{
    const size_t at = (size_t)k * CPU_LANES;

    if (format == CPU_FP32)
        return v_load((const float *)tile + at);
    if (format == CPU_INT8)
        return v_int8((const int8_t *)tile + at);
    if (k & 1)
        return v_upper((const uint16_t *)tile + at - CPU_LANES);
    return v_lower((const uint16_t *)tile + at);
}

V16_FN size_t tile_bytes(enum cpu_format format)
{
    const size_t n = (size_t)CPU_TILE * CPU_LANES;

    return format == CPU_FP32 ? 4 * n : format == CPU_BF16 ? 2 * n : n;
}

/* Half a chain of a tile: the inputs first, first + 2, ... of 16, for `rows`
 * rows and one or two panels. */
V16_FN void half_chain(struct v16 sum[], const float *a, size_t stride,
                       unsigned rows, unsigned panels,
                       const char *const half[2], unsigned first,
                       enum cpu_format format)
{
    for (unsigned k = first; k < CPU_TILE / 2; k += 2) {
        struct v16 b[2];

        b[0] = tile_input(half[0], k, format);
        if (panels == 2)
            b[1] = tile_input(half[1], k, format);
#pragma GCC unroll 4
        for (unsigned r = 0; r < rows; r++) {
            const struct v16 x = v_set1(a[r * stride + k]);
#pragma GCC unroll 2
            for (unsigned p = 0; p < panels; p++)
                sum[r * panels + p] =
                    format == CPU_FP32
                        ? v_fma(x, b[p], sum[r * panels + p])
                        : v_fma_exact(x, b[p], sum[r * panels + p]);
        }
    }
}

/* c += a times a tile of one or two panels, whose halves lie anywhere. */
V16_FN void add_tile(float *c, size_t ldc, const float *a, size_t stride,
                     unsigned rows, unsigned panels, const char *const lower[2],
                     const char *const upper[2], enum cpu_format format)
{
    struct v16 sum[2][BODY_SUMS];

#pragma GCC unroll 2
    for (unsigned odd = 0; odd < 2; odd++) {
        for (unsigned i = 0; i < rows * panels; i++)
            sum[odd][i] = v_zero();
        half_chain(sum[odd], a, stride, rows, panels, lower, odd, format);
        half_chain(sum[odd], a + CPU_TILE / 2, stride, rows, panels, upper, odd,
                   format);
    }
#pragma GCC unroll 4
    for (unsigned r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (unsigned i = 0; i < panels; i++) {
            float *at = c + r * ldc + i * 16;
            const unsigned n = r * panels + i;

            v_store(at, v_add(v_load(at), v_add(sum[0][n], sum[1][n])));
        }
}

V16_FN void clear(float *c, size_t ldc, unsigned rows, unsigned columns)
{
    for (unsigned r = 0; r < rows; r++)
        for (unsigned i = 0; i < columns; i += 16)
            v_store(c + r * ldc + i, v_zero());
}

V16_FN void fetch(const char *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        v_prefetch(p + i);
}

/* The tile that follows BODY_AHEAD bytes behind tile t of a panel. */
V16_FN void fetch_tile(const char *panel, const char *next, unsigned t,
                       unsigned tiles, size_t bytes)
{
    const unsigned ahead = t + (unsigned)(BODY_AHEAD / bytes);

    fetch(ahead < tiles ? panel + ahead * bytes
                        : next + (ahead - tiles) * bytes,
          bytes);
}

V16_FN void mul_rows(float *c, size_t ldc, const float *a, size_t stride,
                     unsigned rows, unsigned panels,
                     const struct cpu_panels *from, unsigned tiles,
                     enum cpu_format format)
{
    const size_t step = tile_bytes(format);
    const char *const p = from->p, *const q = panels == 2 ? from->q : p;

    clear(c, ldc, rows, panels * 16);
    for (unsigned t = 0; t < tiles; t++) {
        const char *const lower[2] = {p + t * step, q + t * step};
        const char *const upper[2] = {lower[0] + step / 2, lower[1] + step / 2};

        if (from->next_p) {
            fetch_tile(p, from->next_p, t, tiles, step);
            if (panels == 2 && from->next_q)
                fetch_tile(q, from->next_q, t, tiles, step);
        }
        add_tile(c, ldc, a + t * CPU_TILE, stride, rows, panels, lower, upper,
                 format);
    }
}

/* The blocks after those of a tile are fetched while it is multiplied. */
V16_FN void mul_blocks_rows(float *c, size_t ldc, const float *a, size_t stride,
                            unsigned rows, const char *const *block,
                            unsigned blocks, unsigned panels,
                            enum cpu_format format)
{
    static const _Alignas(64) char nothing[2 * CPU_TILE * CPU_LANES];
    const size_t half = tile_bytes(format) / 2;

    clear(c, ldc, rows, (panels + 1) / 2 * 32);
    for (unsigned t = 0; t < blocks; t += 2)
        for (unsigned i = 0; i < panels; i += 2) {
            const size_t p = i * half, q = i + 1 < panels ? p + half : p;
            const char *const lower[2] = {block[t] + p, block[t] + q};
            const bool two = t + 1 < blocks;
            const char *const upper[2] = {two ? block[t + 1] + p : nothing,
                                          two ? block[t + 1] + q : nothing};

            if (t + 2 < blocks)
                fetch(block[t + 2] + p, 2 * half);
            if (t + 3 < blocks)
                fetch(block[t + 3] + p, 2 * half);
            add_tile(c + i * CPU_LANES, ldc, a + t * 16, stride, rows, 2, lower,
                     upper, format);
        }
}

/* A function for each number of rows and panels, so that the compiler knows
 * all counts and keeps the sums in registers. */
#define BODY_MUL(rows, panels)                                                 \
    V16_OUT __attribute__((noinline)) void mul_##rows##_##panels(              \
        float *c, size_t ldc, const float *a, size_t stride,                   \
        const struct cpu_panels *p, unsigned tiles, enum cpu_format format)    \
    {                                                                          \
        if (format == CPU_BF16)                                                \
            mul_rows(c, ldc, a, stride, rows, panels, p, tiles, CPU_BF16);     \
        else if (format == CPU_FP32)                                           \
            mul_rows(c, ldc, a, stride, rows, panels, p, tiles, CPU_FP32);     \
        else                                                                   \
            mul_rows(c, ldc, a, stride, rows, panels, p, tiles, CPU_INT8);     \
    }
BODY_MUL(1, 1)
BODY_MUL(2, 1)
BODY_MUL(3, 1)
BODY_MUL(4, 1)
BODY_MUL(1, 2)
BODY_MUL(2, 2)
BODY_MUL(3, 2)
BODY_MUL(4, 2)

typedef void mul_fn(float *c, size_t ldc, const float *a, size_t stride,
                    const struct cpu_panels *p, unsigned tiles,
                    enum cpu_format format);
static mul_fn *const mul_one[] = {NULL, mul_1_1, mul_2_1, mul_3_1, mul_4_1};
static mul_fn *const mul_two[] = {NULL, mul_1_2, mul_2_2, mul_3_2, mul_4_2};

static void mul_panels(mul_fn *const fn[], unsigned at_once, float *c,
                       size_t ldc, const float *a, size_t stride, unsigned rows,
                       const struct cpu_panels *p, unsigned tiles,
                       enum cpu_format format)
{
    const struct cpu_panels once = {.p = p->p, .q = p->q};

    /* Where many rows share the panels, time goes elsewhere. */
    p = rows > at_once ? &once : p;
    while (rows) {
        const unsigned n = rows < at_once ? rows : at_once;

        fn[n](c, ldc, a, stride, p, tiles, format);
        c += n * ldc;
        a += n * stride;
        rows -= n;
    }
}

/* Two panels together where that has registers, or where there are few rows:
 * then memory is the limit, and two streams of it are faster than one. */
static void mul(float *c, size_t ldc, const void *a, size_t stride,
                unsigned rows, const struct cpu_panels *panels, unsigned tiles,
                enum cpu_format format)
{
    const struct cpu_panels second = {.p = panels->q};

    stride /= sizeof(float);
    if (second.p && (rows <= BODY_PAIR_ROWS || BODY_PAIR_ROWS >= BODY_ROWS)) {
        mul_panels(mul_two, BODY_PAIR_ROWS, c, ldc, a, stride, rows, panels,
                   tiles, format);
        return;
    }
    mul_panels(mul_one, BODY_ROWS, c, ldc, a, stride, rows, panels, tiles,
               format);
    if (second.p)
        mul_panels(mul_one, BODY_ROWS, c + 16, ldc, a, stride, rows, &second,
                   tiles, format);
}

#define BODY_BLOCKS(rows)                                                      \
    V16_OUT __attribute__((noinline)) void mul_blocks_##rows(                  \
        float *c, size_t ldc, const float *a, size_t stride,                   \
        const char *const *block, unsigned blocks, unsigned panels,            \
        enum cpu_format format)                                                \
    {                                                                          \
        if (format == CPU_BF16)                                                \
            mul_blocks_rows(c, ldc, a, stride, rows, block, blocks, panels,    \
                            CPU_BF16);                                         \
        else                                                                   \
            mul_blocks_rows(c, ldc, a, stride, rows, block, blocks, panels,    \
                            CPU_FP32);                                         \
    }
BODY_BLOCKS(1)
BODY_BLOCKS(2)
BODY_BLOCKS(3)
BODY_BLOCKS(4)

static void mul_blocks(float *c, size_t ldc, const void *a, size_t stride,
                       unsigned rows, const char *const *block, unsigned blocks,
                       unsigned panels, enum cpu_format format)
{
    static void (*const fn[])(float *, size_t, const float *, size_t,
                              const char *const *, unsigned, unsigned,
                              enum cpu_format) = {
        NULL, mul_blocks_1, mul_blocks_2, mul_blocks_3, mul_blocks_4};
    const float *at = a;

    stride /= sizeof(float);
    while (rows) {
        const unsigned n = rows < BODY_PAIR_ROWS ? rows : BODY_PAIR_ROWS;

        fn[n](c, ldc, at, stride, block, blocks, panels, format);
        c += n * ldc;
        at += n * stride;
        rows -= n;
    }
}

#if defined(V16_AVX512) || defined(V16_BF16)
V16_FN void widen_panel(uint16_t *to, const int8_t *panel, unsigned tiles,
                        const uint8_t *order)
{
    for (unsigned k = 0; k < tiles * CPU_TILE; k += 2, to += 32) {
        const int8_t *in = panel + k / 16 * 256;

        v_store_pairs(to, v_int8(in + order[k % 16] * 16),
                      v_int8(in + order[k % 16 + 1] * 16));
    }
}
#endif

V16_FN void put16(void *row, enum cpu_rows kind, unsigned i, struct v16 x)
{
    if (kind == CPU_ROWS_BF16)
        v_store_bf16((uint16_t *)row + i, x);
    else
        v_store((float *)row + i, kind == CPU_ROWS_FP32 ? x : v_round(x));
}

V16_FN struct v16 silu(struct v16 x)
{
    const struct v16 one = v_set1(1);

    return v_div(x, v_add(one, v_exp(v_sub(v_zero(), x))));
}

V16_FN void finish_swiglu(const struct cpu_finish *f, void *row, float *c,
                          unsigned at, unsigned columns)
{
    put16(row, f->rows, at / 2, v_mul(silu(v_load(c)), v_load(c + 16)));
    if (at + 32 >= columns && (at / 2 + 16) % CPU_TILE)
        put16(row, f->rows, at / 2 + 16, v_zero());
}

V16_OUT void finish(const struct cpu_finish *f, float *c, unsigned rows,
                    unsigned at, unsigned columns)
{
    for (unsigned r = 0; r < rows; r++, c += 32) {
        char *row = (char *)f->out + r * f->stride;

        if (f->scale)
            for (unsigned i = 0; i < 32 && at + i < columns; i += 16)
                v_store(c + i, v_mul(v_load(c + i), v_load(f->scale + at + i)));
        if (f->kind == CPU_SWIGLU) {
            finish_swiglu(f, row, c, at, columns);
            continue;
        }
        for (unsigned i = 0; i < 32 && at + i < columns; i += 16) {
            float *out = (float *)(void *)row + at + i;
            const unsigned n = columns - at - i;
            struct v16 x = v_load(c + i);

            if (f->kind == CPU_ADD)
                x = v_add(v_load_n(out, n), x);
            v_store_n(out, x, n);
        }
    }
}

V16_OUT void to_row(void *dst, enum cpu_rows kind, const float *src, unsigned n)
{
    const unsigned end = (n + CPU_TILE - 1) / CPU_TILE * CPU_TILE;

    for (unsigned i = 0; i < end; i += 16)
        put16(dst, kind, i, i < n ? v_load_n(src + i, n - i) : v_zero());
}

V16_OUT void rmsnorm(float *y, const float *x, const float *g, unsigned n,
                     float eps)
{
    struct v16 sum = v_zero(), inv;

    for (unsigned i = 0; i < n; i += 16) {
        const struct v16 v = v_load_n(x + i, n - i);
        sum = v_fma(v, v, sum);
    }
    inv = v_set1(1.0f / sqrtf(v_sum(sum) / (float)n + eps));
    for (unsigned i = 0; i < n; i += 16)
        v_store_n(
            y + i,
            v_mul(v_mul(v_load_n(x + i, n - i), inv), v_load_n(g + i, n - i)),
            n - i);
}

V16_OUT void rope(float *x, const float *cosine, const float *sine, unsigned n)
{
    const unsigned half = n / 2;

    for (unsigned i = 0; i < half; i += 16) {
        const unsigned m = half - i;
        const struct v16 a = v_load_n(x + i, m), b = v_load_n(x + half + i, m);
        const struct v16 c = v_load_n(cosine + i, m);
        const struct v16 s = v_load_n(sine + i, m);

        v_store_n(x + i, v_sub(v_mul(a, c), v_mul(b, s)), m);
        v_store_n(x + half + i, v_add(v_mul(b, c), v_mul(a, s)), m);
    }
}

static const float NOTHING = -3.4e38f; /* less than any score */

/* e^(scale s - max) of 16 scores, those from n on zero. */
V16_FN struct v16 weight(const float *s, unsigned i, unsigned n, float scale,
                         float max)
{
    struct v16 x;

    if (i >= n)
        return v_zero();
    x = v_mul(v_load(s + i), v_set1(scale));
    x = v_exp_negative(v_sub(x, v_set1(max)));
    return n - i < 16 ? v_first(x, n - i) : x;
}

V16_OUT float softmax(void *p, enum cpu_rows kind, float *s, unsigned n,
                      unsigned end, float scale, float *max)
{
    const unsigned all = (n + 15) / 16 * 16;
    struct v16 most = v_set1(NOTHING), sum = v_zero();

    for (unsigned i = n; i < all; i++)
        s[i] = NOTHING;
    for (unsigned i = 0; i < all; i += 16)
        most = v_max(v_load(s + i), most);
    /* As large as if each had been scaled before: rounding keeps the order. */
    *max = n ? v_largest(most) * scale : NOTHING;
    for (unsigned i = 0; i < end; i += CPU_TILE) {
        struct v16 x = weight(s, i, n, scale, *max);
        struct v16 y = weight(s, i + 16, n, scale, *max);

        if (kind != CPU_ROWS_FP32) {
            x = v_round(x);
            y = v_round(y);
        }
        sum = v_add(v_add(sum, x), y);
        if (kind == CPU_ROWS_BF16) {
            v_store_halves((uint16_t *)p + i, x, y);
        } else {
            v_store((float *)p + i, x);
            v_store((float *)p + i + 16, y);
        }
    }
    return v_sum(sum);
}

V16_OUT void merge(float *acc, const float *add, unsigned n, float alpha,
                   float beta)
{
    const struct v16 a = v_set1(alpha), b = v_set1(beta);

    for (unsigned i = 0; i < n; i += 16) {
        const struct v16 x = v_mul(v_load_n(acc + i, n - i), a);
        v_store_n(acc + i, v_fma(v_load_n(add + i, n - i), b, x), n - i);
    }
}

V16_OUT float exp_one(float x)
{
    float f[16];

    if (x == 0)
        return 1;
    v_store(f, v_exp(v_set1(x)));
    return f[0];
}

V16_OUT void silu_mul(float *y, const float *gate, const float *up, unsigned n)
{
    for (unsigned i = 0; i < n; i += 16)
        v_store_n(
            y + i,
            v_mul(silu(v_load_n(gate + i, n - i)), v_load_n(up + i, n - i)),
            n - i);
}

#define BODY_ISA                                                               \
    .mul = mul, .mul_blocks = mul_blocks, .finish = finish, .to_row = to_row,  \
    .rmsnorm = rmsnorm, .rope = rope, .softmax = softmax, .merge = merge,      \
    .exp = exp_one, .silu_mul = silu_mul
