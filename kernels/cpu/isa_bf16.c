/* kernels/cpu/isa_bf16.c - AVX-512 with products of bf16 pairs (VDPBF16PS).
 *
 * The instruction adds the upper product of a pair, then the lower one, each
 * with one rounding. With the inputs in the order of cpu_order_pairs, the first
 * four pairs of each 16 inputs make the even chain and the others the odd one:
 * the bits are those of all other instruction sets. */
#if defined(__x86_64__)
#define V16_BF16
#include "kernels/cpu/v16.h"
#define BODY_ROWS 4
#define BODY_PAIR_ROWS 4
#include "kernels/cpu/body.h"

V16_FN __m512bh pairs(const void *p)
{
    return (__m512bh)_mm512_loadu_si512(p);
}

/* One chain of a tile, as body.h's, from its pairs. */
V16_FN void pair_chain(struct v16 sum[], const uint16_t *a, size_t stride,
                       unsigned rows, const void *const tile[2], unsigned first)
{
    for (unsigned i = 0; i < rows * 2; i++)
        sum[i] = v_zero();
#pragma GCC unroll 2
    for (unsigned half = 0; half < 16; half += 8)
#pragma GCC unroll 4
        for (unsigned k = half + first; k < half + first + 4; k++) {
            const __m512bh b = pairs((const char *)tile[0] + k * 64);
            const __m512bh d = pairs((const char *)tile[1] + k * 64);

#pragma GCC unroll 4
            for (unsigned r = 0; r < rows; r++) {
                uint32_t pair;

                memcpy(&pair, a + r * stride + 2 * k, sizeof pair);
                const __m512bh x = (__m512bh)_mm512_set1_epi32((int)pair);
                sum[2 * r].v = _mm512_dpbf16_ps(sum[2 * r].v, x, b);
                sum[2 * r + 1].v = _mm512_dpbf16_ps(sum[2 * r + 1].v, x, d);
            }
        }
}

V16_FN void half_rows(float *c, size_t ldc, const uint16_t *a, size_t stride,
                      unsigned rows, const void *p, const void *q,
                      unsigned tiles)
{
    struct v16 acc[BODY_SUMS];

    for (unsigned i = 0; i < rows * 2; i++)
        acc[i] = v_zero();
    for (unsigned t = 0; t < tiles; t++) {
        const void *const tile[2] = {(const char *)p + t * (size_t)1024,
                                     (const char *)q + t * (size_t)1024};
        struct v16 even[BODY_SUMS], odd[BODY_SUMS];

        pair_chain(even, a + t * CPU_TILE, stride, rows, tile, 0);
        pair_chain(odd, a + t * CPU_TILE, stride, rows, tile, 4);
#pragma GCC unroll 8
        for (unsigned i = 0; i < rows * 2; i++)
            acc[i] = v_add(acc[i], v_add(even[i], odd[i]));
    }
    for (unsigned r = 0; r < rows; r++) {
        v_store(c + r * ldc, acc[2 * r]);
        v_store(c + r * ldc + 16, acc[2 * r + 1]);
    }
}

V16_OUT void mul_half(float *c, size_t ldc, const void *a, size_t stride,
                      unsigned rows, const void *p, const void *q,
                      unsigned tiles)
{
    const uint16_t *at = a;

    stride /= sizeof *at;
    q = q ? q : p; /* twice the same: simpler than a second loop */
    for (; rows >= 4; rows -= 4, at += 4 * stride, c += 4 * ldc)
        half_rows(c, ldc, at, stride, 4, p, q, tiles);
    if (rows == 3)
        half_rows(c, ldc, at, stride, 3, p, q, tiles);
    else if (rows == 2)
        half_rows(c, ldc, at, stride, 2, p, q, tiles);
    else if (rows == 1)
        half_rows(c, ldc, at, stride, 1, p, q, tiles);
}

V16_OUT void widen(uint16_t *to, const int8_t *panel, unsigned tiles)
{
    widen_panel(to, panel, tiles, cpu_order_pairs);
}

const struct cpu_isa cpu_isa_bf16 = {
    .name = "bf16",
    .order = cpu_order_pairs,
    .half = true,
    .half_decode = true,
    .block = 192,
    .mul_half = mul_half,
    .widen = widen,
    BODY_ISA,
};
#endif
