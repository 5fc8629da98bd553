#include "kernels/cpu/cpu_i.h"

#include <math.h>
#include <string.h>

static const float NOTHING = -3.4e38f;

void cpu_heads_init(struct cpu_heads *kv, uint32_t head_dim,
                    enum cpu_format format)
{
    const size_t bytes = format == CPU_FP32 ? 4 : 2;

    *kv = (struct cpu_heads){
        .format = format,
        .head_dim = head_dim,
        .k_tiles = (head_dim + CPU_TILE - 1) / CPU_TILE,
        .v_panels = (head_dim + CPU_LANES - 1) / CPU_LANES,
        .v_half = OCR_BLOCK_TOKENS * CPU_LANES * bytes,
    };
    kv->k_bytes = kv->k_tiles * CPU_TILE * CPU_LANES * bytes;
}

static void product(const struct cpu_attend *a, float *c, size_t ldc,
                    const void *rows, size_t stride, unsigned count,
                    const struct cpu_panels *p, unsigned tiles)
{
    if (a->kind == CPU_ROWS_BF16)
        a->isa->mul_half(c, ldc, rows, stride, count, p->p, p->q, tiles);
    else
        a->isa->mul(c, ldc, rows, stride, count, p, tiles, a->kv->format);
}

/* s->scores = q times the K of a split's blocks. */
static void score(const struct cpu_attend *a, struct cpu_scratch *s,
                  const void *q, size_t stride, unsigned rows,
                  const char *const *k, unsigned blocks)
{
    for (unsigned i = 0; i < blocks; i += 2) {
        const struct cpu_panels p = {k[i], i + 1 < blocks ? k[i + 1] : NULL,
                                     i + 2 < blocks ? k[i + 2] : NULL,
                                     i + 3 < blocks ? k[i + 3] : NULL};

        product(a, s->scores + i * CPU_LANES, CPU_SCORE_STRIDE, q, stride, rows,
                &p, a->kv->k_tiles);
    }
}

void cpu_attend_begin(struct cpu_scratch *s, unsigned rows, uint32_t width)
{
    memset(s->acc, 0, (size_t)rows * width * sizeof *s->acc);
    for (unsigned r = 0; r < rows; r++) {
        s->most[r] = NOTHING;
        s->sum[r] = 0;
    }
}

/* Scores of a row become a row of P; what it weighs against the splits before
 * is kept for the merge. */
static void weigh(const struct cpu_attend *a, struct cpu_scratch *s, unsigned r,
                  char *p, unsigned visible, unsigned end)
{
    const float scale = 1.0f / sqrtf((float)a->kv->head_dim);
    float most, all;
    const float sum =
        a->isa->softmax(p, a->kind, s->scores + (size_t)r * CPU_SCORE_STRIDE,
                        visible, end, scale, &most);

    all = s->most[r] > most ? s->most[r] : most;
    s->alpha[r] = a->isa->exp(s->most[r] - all);
    s->beta[r] = a->isa->exp(most - all);
    s->sum[r] = s->sum[r] * s->alpha[r] + sum * s->beta[r];
    s->most[r] = all;
}

void cpu_attend_split(const struct cpu_attend *a, struct cpu_scratch *s,
                      const void *q, size_t stride, unsigned rows,
                      const char *const *k, const char *v, unsigned keys,
                      int64_t visible, int64_t step)
{
    const unsigned blocks = (keys + OCR_BLOCK_TOKENS - 1) / OCR_BLOCK_TOKENS;
    const unsigned tiles = (keys + CPU_TILE - 1) / CPU_TILE;
    const size_t p_stride = cpu_row_stride(a->kind, OCR_SPLIT_TOKENS);
    const size_t panel = a->kv->v_half * CPU_SPLIT_BLOCKS;
    const uint32_t width = a->kv->v_panels * CPU_LANES;

    score(a, s, q, stride, rows, k, blocks);
    for (unsigned r = 0; r < rows; r++, visible += step) {
        const int64_t n = visible < 0 ? 0 : visible > keys ? keys : visible;
        weigh(a, s, r, s->p + r * p_stride, (unsigned)n, tiles * CPU_TILE);
    }
    for (uint32_t i = 0; i < a->kv->v_panels; i += 2) {
        const bool two = i + 1 < a->kv->v_panels;
        const struct cpu_panels p = {.p = v + i * panel,
                                     .q = two ? v + (i + 1) * panel : NULL};

        product(a, s->c, 32, s->p, p_stride, rows, &p, tiles);
        for (unsigned r = 0; r < rows; r++)
            a->isa->merge(s->acc + (size_t)r * width + i * CPU_LANES,
                          s->c + (size_t)r * 32, two ? 32 : 16, s->alpha[r],
                          s->beta[r]);
    }
}

void cpu_attend_blocks(const struct cpu_attend *a, struct cpu_scratch *s,
                       const void *q, size_t stride, unsigned rows,
                       const char *const *k, const char *const *v,
                       unsigned keys)
{
    const unsigned blocks = (keys + OCR_BLOCK_TOKENS - 1) / OCR_BLOCK_TOKENS;
    const unsigned tiles = (blocks + 1) / 2;
    const size_t p_stride = cpu_row_stride(a->kind, OCR_SPLIT_TOKENS);
    const uint32_t width = a->kv->v_panels * CPU_LANES;
    const uint32_t ldc = (width + 31) / 32 * 32;

    score(a, s, q, stride, rows, k, blocks);
    for (unsigned r = 0; r < rows; r++)
        weigh(a, s, r, s->p + r * p_stride, keys, tiles * CPU_TILE);
    a->isa->mul_blocks(s->wide, ldc, s->p, p_stride, rows, v, blocks,
                       a->kv->v_panels, a->kv->format);
    for (unsigned r = 0; r < rows; r++)
        a->isa->merge(s->acc + (size_t)r * width, s->wide + (size_t)r * ldc,
                      width, s->alpha[r], s->beta[r]);
}

void cpu_attend_end(const struct cpu_attend *a, struct cpu_scratch *s,
                    unsigned r, float *out)
{
    const float *acc = s->acc + (size_t)r * a->kv->v_panels * CPU_LANES;
    const float inverse = 1.0f / s->sum[r];

    for (uint32_t i = 0; i < a->kv->head_dim; i++)
        out[i] = acc[i] * inverse;
}

void cpu_gather_v(char *to, const struct cpu_heads *kv, const char *const *v,
                  unsigned blocks)
{
    for (uint32_t p = 0; p < kv->v_panels; p++) {
        char *half = to + (size_t)p * CPU_SPLIT_BLOCKS * kv->v_half;

        for (unsigned i = 0; i < blocks; i++, half += kv->v_half)
            memcpy(half, v[i] + p * kv->v_half, kv->v_half);
        if (blocks % 2)
            memset(half, 0, kv->v_half);
    }
}

void cpu_put_k(char *panel, const struct cpu_heads *kv,
               const struct cpu_isa *isa, unsigned token, const float *x)
{
    for (uint32_t i = 0; i < kv->k_tiles * CPU_TILE; i++) {
        if (kv->format == CPU_FP32) {
            const float f = i < kv->head_dim ? x[i] : 0;
            memcpy(panel + 64 * (size_t)i + 4 * token, &f, sizeof f);
        } else {
            const uint32_t k = i / 16 * 16 + isa->order[i % 16];
            const uint16_t h = cpu_to_bf16(k < kv->head_dim ? x[k] : 0);
            memcpy(panel + 64 * (size_t)(i / 2) + 4 * token + 2 * (i % 2), &h,
                   sizeof h);
        }
    }
}

void cpu_put_v(char *half, size_t next, const struct cpu_heads *kv,
               const struct cpu_isa *isa, unsigned token, const float *x)
{
    unsigned place = 0;

    while (isa->order[place] != token)
        place++;
    for (uint32_t i = 0; i < kv->head_dim; i++) {
        char *at = half + i / CPU_LANES * next + 4 * (i % CPU_LANES);

        if (kv->format == CPU_FP32) {
            memcpy(at + 64 * token, x + i, sizeof *x);
        } else {
            const uint16_t h = cpu_to_bf16(x[i]);
            memcpy(at + 64 * (place / 2) + 2 * (place % 2), &h, sizeof h);
        }
    }
}
