/* kernels/cpu/v16.h - sixteen floats at once, in four widths.
 *
 * Included by the isa_*.c files only, after one of V16_SCALAR, V16_AVX2,
 * V16_AVX512, V16_BF16 was defined. Every operation gives the same bits in all
 * of them: IEEE operations lane by lane, real fused multiply-adds, sums over
 * lanes in one order. So what is written with it has the same bits on every
 * processor.
 *
 * Layer:   kernels/cpu, private.
 * Threads: no state. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(V16_AVX512) || defined(V16_BF16)

#include <immintrin.h>
#ifdef V16_BF16
#define V16_FN                                                                 \
    static inline __attribute__((                                              \
        always_inline, target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16," \
                              "avx2,fma")))
#define V16_OUT                                                                \
    static __attribute__((                                                     \
        target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")))
#else
#define V16_FN                                                                 \
    static inline __attribute__((                                              \
        always_inline, target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define V16_OUT                                                                \
    static                                                                     \
        __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#endif

struct v16 {
    __m512 v;
};
#define V(x) ((struct v16){x})

V16_FN struct v16 v_set1(float x)
{
    return V(_mm512_set1_ps(x));
}
V16_FN struct v16 v_load(const float *p)
{
    return V(_mm512_loadu_ps(p));
}
V16_FN void v_store(float *p, struct v16 a)
{
    _mm512_storeu_ps(p, a.v);
}
V16_FN struct v16 v_add(struct v16 a, struct v16 b)
{
    return V(_mm512_add_ps(a.v, b.v));
}
V16_FN struct v16 v_sub(struct v16 a, struct v16 b)
{
    return V(_mm512_sub_ps(a.v, b.v));
}
V16_FN struct v16 v_mul(struct v16 a, struct v16 b)
{
    return V(_mm512_mul_ps(a.v, b.v));
}
V16_FN struct v16 v_div(struct v16 a, struct v16 b)
{
    return V(_mm512_div_ps(a.v, b.v));
}
/* a > b ? a : b, so b if one is NaN. */
V16_FN struct v16 v_max(struct v16 a, struct v16 b)
{
    return V(_mm512_max_ps(a.v, b.v));
}
V16_FN struct v16 v_min(struct v16 a, struct v16 b)
{
    return V(_mm512_min_ps(a.v, b.v));
}
V16_FN struct v16 v_fma(struct v16 a, struct v16 b, struct v16 c)
{
    return V(_mm512_fmadd_ps(a.v, b.v, c.v));
}
/* The same where a * b is exact (both have 8 significant bits). */
#define v_fma_exact v_fma
/* a * 2^n for integers n, of which t = n + 1.5 * 2^23 has the low bits. */
V16_FN struct v16 v_scale(struct v16 a, struct v16 n, struct v16 t)
{
    (void)t;
    return V(_mm512_scalef_ps(a.v, n.v));
}
V16_FN __m256 v_fold(struct v16 a, __m256 *upper)
{
    *upper = _mm512_extractf32x8_ps(a.v, 1);
    return _mm512_castps512_ps256(a.v);
}
V16_FN __m512i v_round_bits(struct v16 a)
{
    const __m512i u = _mm512_castps_si512(a.v);
    const __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));

    return _mm512_add_epi32(u,
                            _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}
/* Rounded to bf16, as floats. */
V16_FN struct v16 v_round(struct v16 a)
{
    return V(_mm512_castsi512_ps(
        _mm512_and_si512(v_round_bits(a), _mm512_set1_epi32((int)0xffff0000))));
}
V16_FN void v_store_bf16(uint16_t *p, struct v16 a)
{
    __m256i h = _mm512_cvtepi32_epi16(_mm512_srli_epi32(v_round_bits(a), 16));
#ifdef V16_BF16
    /* As cpu_order_pairs: for sums of pairs that give the two chains. */
    const __m256i order =
        _mm256_setr_epi16(2, 0, 6, 4, 10, 8, 14, 12, 3, 1, 7, 5, 11, 9, 15, 13);
    h = _mm256_permutexvar_epi16(order, h);
#endif
    _mm256_storeu_si256((__m256i *)(void *)p, h);
}
/* The upper halves of 32 floats that are bf16 values. */
V16_FN void v_store_halves(uint16_t *p, struct v16 a, struct v16 b)
{
#ifdef V16_BF16
    const __m512i order = _mm512_set_epi16(
        59, 63, 51, 55, 43, 47, 35, 39, 57, 61, 49, 53, 41, 45, 33, 37, 27, 31,
        19, 23, 11, 15, 3, 7, 25, 29, 17, 21, 9, 13, 1, 5);
#else
    const __m512i order = _mm512_set_epi16(
        63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29,
        27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
#endif
    _mm512_storeu_si512(
        (void *)p, _mm512_permutex2var_epi16(_mm512_castps_si512(a.v), order,
                                             _mm512_castps_si512(b.v)));
}
/* Pairs of two floats each that are bf16 values. */
V16_FN void v_store_pairs(uint16_t *p, struct v16 lower, struct v16 upper)
{
    _mm512_storeu_si512(
        (void *)p,
        _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(lower.v), 16),
                        _mm512_castps_si512(upper.v)));
}
/* The lower or upper bf16 of each of 16 pairs. */
V16_FN struct v16 v_lower(const uint16_t *pairs)
{
    return V(_mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_loadu_si512((const void *)pairs), 16)));
}
V16_FN struct v16 v_upper(const uint16_t *pairs)
{
    return V(_mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512((const void *)pairs),
                         _mm512_set1_epi32((int)0xffff0000))));
}
V16_FN struct v16 v_int8(const int8_t *p)
{
    return V(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
        _mm_loadu_si128((const __m128i *)(const void *)p))));
}
V16_FN void v_prefetch(const void *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

#elif defined(V16_AVX2)

#include <immintrin.h>
#define V16_FN static inline __attribute__((always_inline, target("avx2,fma")))
#define V16_OUT static __attribute__((target("avx2,fma")))

struct v16 {
    __m256 a, b;
};
#define V(x, y) ((struct v16){x, y})

V16_FN struct v16 v_set1(float x)
{
    return V(_mm256_set1_ps(x), _mm256_set1_ps(x));
}
V16_FN struct v16 v_load(const float *p)
{
    return V(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
V16_FN void v_store(float *p, struct v16 a)
{
    _mm256_storeu_ps(p, a.a);
    _mm256_storeu_ps(p + 8, a.b);
}
#define V16_BOTH(name, op)                                                     \
    V16_FN struct v16 name(struct v16 x, struct v16 y)                         \
    {                                                                          \
        return V(op(x.a, y.a), op(x.b, y.b));                                  \
    }
V16_BOTH(v_add, _mm256_add_ps)
V16_BOTH(v_sub, _mm256_sub_ps)
V16_BOTH(v_mul, _mm256_mul_ps)
V16_BOTH(v_div, _mm256_div_ps)
V16_BOTH(v_max, _mm256_max_ps)
V16_BOTH(v_min, _mm256_min_ps)
V16_FN struct v16 v_fma(struct v16 x, struct v16 y, struct v16 z)
{
    return V(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}
#define v_fma_exact v_fma
V16_FN __m256 v_pow2_half(__m256 t)
{
    const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);

    return _mm256_castsi256_ps(
        _mm256_add_epi32(n, _mm256_set1_epi32(0x3f800000)));
}
V16_FN struct v16 v_scale(struct v16 x, struct v16 n, struct v16 t)
{
    (void)n;
    return V(_mm256_mul_ps(x.a, v_pow2_half(t.a)),
             _mm256_mul_ps(x.b, v_pow2_half(t.b)));
}
V16_FN __m256 v_fold(struct v16 x, __m256 *upper)
{
    *upper = x.b;
    return x.a;
}
V16_FN __m256i v_round_bits(__m256 a)
{
    const __m256i u = _mm256_castps_si256(a);
    const __m256i odd =
        _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));

    return _mm256_and_si256(
        _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))),
        _mm256_set1_epi32((int)0xffff0000));
}
V16_FN struct v16 v_round(struct v16 x)
{
    return V(_mm256_castsi256_ps(v_round_bits(x.a)),
             _mm256_castsi256_ps(v_round_bits(x.b)));
}
V16_FN void v_store_bf16(uint16_t *p, struct v16 x)
{
    const __m256i h =
        _mm256_packus_epi32(_mm256_srli_epi32(v_round_bits(x.a), 16),
                            _mm256_srli_epi32(v_round_bits(x.b), 16));

    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm256_permute4x64_epi64(h, 0xd8));
}
V16_FN void v_store_halves(uint16_t *p, struct v16 x, struct v16 y)
{
    v_store_bf16(p, x);
    v_store_bf16(p + 16, y);
}
V16_FN __m256i v_pairs(const uint16_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
V16_FN struct v16 v_lower(const uint16_t *p)
{
    return V(_mm256_castsi256_ps(_mm256_slli_epi32(v_pairs(p), 16)),
             _mm256_castsi256_ps(_mm256_slli_epi32(v_pairs(p + 16), 16)));
}
V16_FN struct v16 v_upper(const uint16_t *p)
{
    const __m256i mask = _mm256_set1_epi32((int)0xffff0000);

    return V(_mm256_castsi256_ps(_mm256_and_si256(v_pairs(p), mask)),
             _mm256_castsi256_ps(_mm256_and_si256(v_pairs(p + 16), mask)));
}
V16_FN struct v16 v_int8(const int8_t *p)
{
    const __m128i q = _mm_loadu_si128((const __m128i *)(const void *)p);

    return V(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)),
             _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(q, 8))));
}
V16_FN void v_prefetch(const void *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

#else

#define V16_FN static inline
#define V16_OUT static

struct v16 {
    float f[16];
};

V16_FN struct v16 v_set1(float x)
{
    struct v16 r;

    for (int i = 0; i < 16; i++)
        r.f[i] = x;
    return r;
}
V16_FN struct v16 v_load(const float *p)
{
    struct v16 r;

    memcpy(r.f, p, sizeof r.f);
    return r;
}
V16_FN void v_store(float *p, struct v16 a)
{
    memcpy(p, a.f, sizeof a.f);
}
#define V16_EACH(name, expression)                                             \
    V16_FN struct v16 name(struct v16 a, struct v16 b)                         \
    {                                                                          \
        for (int i = 0; i < 16; i++)                                           \
            a.f[i] = expression;                                               \
        return a;                                                              \
    }
V16_EACH(v_add, a.f[i] + b.f[i])
V16_EACH(v_sub, a.f[i] - b.f[i])
V16_EACH(v_mul, a.f[i] * b.f[i])
V16_EACH(v_div, a.f[i] / b.f[i])
V16_EACH(v_max, a.f[i] > b.f[i] ? a.f[i] : b.f[i])
V16_EACH(v_min, a.f[i] < b.f[i] ? a.f[i] : b.f[i])
V16_FN struct v16 v_fma(struct v16 a, struct v16 b, struct v16 c)
{
    for (int i = 0; i < 16; i++)
        c.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
    return c;
}
V16_FN struct v16 v_fma_exact(struct v16 a, struct v16 b, struct v16 c)
{
    for (int i = 0; i < 16; i++)
        c.f[i] += a.f[i] * b.f[i];
    return c;
}
V16_FN struct v16 v_scale(struct v16 a, struct v16 n, struct v16 t)
{
    (void)n;
    for (int i = 0; i < 16; i++) {
        uint32_t u;

        memcpy(&u, &t.f[i], sizeof u);
        u = (u << 23) + 0x3f800000u;
        memcpy(&t.f[i], &u, sizeof u);
        a.f[i] *= t.f[i];
    }
    return a;
}
V16_FN uint32_t v_round_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u + 0x7fff + ((u >> 16) & 1);
}
V16_FN struct v16 v_round(struct v16 a)
{
    for (int i = 0; i < 16; i++) {
        const uint32_t u = v_round_bits(a.f[i]) & 0xffff0000u;

        memcpy(&a.f[i], &u, sizeof u);
    }
    return a;
}
V16_FN void v_store_bf16(uint16_t *p, struct v16 a)
{
    for (int i = 0; i < 16; i++)
        p[i] = (uint16_t)(v_round_bits(a.f[i]) >> 16);
}
V16_FN void v_store_halves(uint16_t *p, struct v16 a, struct v16 b)
{
    v_store_bf16(p, a);
    v_store_bf16(p + 16, b);
}
V16_FN struct v16 v_widen(const uint16_t *p)
{
    struct v16 r;

    for (int i = 0; i < 16; i++) {
        const uint32_t u = (uint32_t)p[2 * i] << 16;

        memcpy(&r.f[i], &u, sizeof u);
    }
    return r;
}
V16_FN struct v16 v_lower(const uint16_t *pairs)
{
    return v_widen(pairs);
}
V16_FN struct v16 v_upper(const uint16_t *pairs)
{
    return v_widen(pairs + 1);
}
V16_FN struct v16 v_int8(const int8_t *p)
{
    struct v16 r;

    for (int i = 0; i < 16; i++)
        r.f[i] = p[i];
    return r;
}
V16_FN void v_prefetch(const void *p)
{
    (void)p;
}

#endif

/* What follows is built from the above and so equal everywhere. */

V16_FN struct v16 v_zero(void)
{
    return v_set1(0);
}

/* The first n lanes (n <= 16), zero above. */
V16_FN struct v16 v_load_n(const float *p, unsigned n)
{
    float all[16] = {0};

    if (n >= 16)
        return v_load(p);
    memcpy(all, p, n * sizeof *p);
    return v_load(all);
}

V16_FN void v_store_n(float *p, struct v16 a, unsigned n)
{
    float all[16];

    if (n >= 16) {
        v_store(p, a);
        return;
    }
    v_store(all, a);
    memcpy(p, all, n * sizeof *p);
}

/* The first n lanes of a, zero above. */
V16_FN struct v16 v_first(struct v16 a, unsigned n)
{
    float all[16];

    v_store(all, a);
    return v_load_n(all, n);
}

/* The lanes are taken by halves: 8 and 8, 4 and 4, 2 and 2, 1 and 1. */
#ifdef V16_SCALAR
V16_FN float v_sum(struct v16 a)
{
    float f[16];

    v_store(f, a);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            f[i] += f[i + half];
    return f[0];
}

V16_FN float v_largest(struct v16 a)
{
    float f[16];

    v_store(f, a);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            f[i] = f[i] > f[i + half] ? f[i] : f[i + half];
    return f[0];
}
#else
#define V16_FOLD(name, op)                                                     \
    V16_FN float name(struct v16 a)                                            \
    {                                                                          \
        __m256 upper, lower = v_fold(a, &upper);                               \
        __m128 x;                                                              \
                                                                               \
        lower = _mm256_##op##_ps(lower, upper);                                \
        x = _mm_##op##_ps(_mm256_castps256_ps128(lower),                       \
                          _mm256_extractf128_ps(lower, 1));                    \
        x = _mm_##op##_ps(x, _mm_movehl_ps(x, x));                             \
        return _mm_cvtss_f32(_mm_##op##_ss(x, _mm_movehdup_ps(x)));            \
    }
V16_FOLD(v_sum, add)
V16_FOLD(v_largest, max)
#endif

/* e^x with 2 units in the last place: x = n ln 2 + r, |r| <= ln 2 / 2, and a
 * polynomial in r. x from -87.3 to 88.3: neither zero nor infinity. */
V16_FN struct v16 v_exp_within(struct v16 x)
{
    const struct v16 magic = v_set1(0x1.8p23f);
    struct v16 t, n, r, p;

    t = v_fma(x, v_set1(0x1.715476p+0f), magic);
    n = v_sub(t, magic);
    r = v_fma(n, v_set1(-0x1.62e400p-1f), x);
    r = v_fma(n, v_set1(-0x1.7f7d1cp-20f), r);
    p = v_set1(0x1.6c16c2p-10f);
    p = v_fma(p, r, v_set1(0x1.111112p-7f));
    p = v_fma(p, r, v_set1(0x1.555556p-5f));
    p = v_fma(p, r, v_set1(0x1.555556p-3f));
    p = v_fma(p, r, v_set1(0.5f));
    p = v_fma(p, r, v_set1(1));
    p = v_fma(p, r, v_set1(1));
    return v_scale(p, n, t);
}

/* x outside of it counts as its ends, NaN as the lower one. */
V16_FN struct v16 v_exp(struct v16 x)
{
    return v_exp_within(v_min(v_max(x, v_set1(-87.3f)), v_set1(88.3f)));
}

/* The same for x that is not above 0. */
V16_FN struct v16 v_exp_negative(struct v16 x)
{
    return v_exp_within(v_max(x, v_set1(-87.3f)));
}
