#include "kernels/cpu/ops.h"
#include "kernels/cpu/cpu_i.h"
#include "kernels/tables.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void ocr_op_rmsnorm(float *y, const float *x, const float *g, uint32_t rows,
                    uint32_t n, float eps)
{
    const struct cpu_isa *isa = cpu_isa_choose(NULL);

    for (uint32_t r = 0; r < rows; r++)
        isa->rmsnorm(y + (size_t)r * n, x + (size_t)r * n, g, n, eps);
}

void ocr_op_frequencies(float *out, uint32_t n, float theta)
{
    ocr_frequencies(out, n, theta);
}

void ocr_op_rope(float *x, const float *angle, uint32_t n)
{
    const struct cpu_isa *isa = cpu_isa_choose(NULL);

    for (uint32_t i = 0; i < n / 2; i++) {
        const float cosine = (float)cos(angle[i]), sine = (float)sin(angle[i]);
        float pair[2] = {x[i], x[i + n / 2]};

        isa->rope(pair, &cosine, &sine, 2);
        x[i] = pair[0];
        x[i + n / 2] = pair[1];
    }
}

void ocr_op_swiglu(float *y, const float *gate, const float *up, uint32_t n)
{
    cpu_isa_choose(NULL)->silu_mul(y, gate, up, n);
}

void ocr_op_gelu(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(0.5 * x[i] * (1 + erf(x[i] * 0x1.6a09e667f3bcdp-1)));
}

int ocr_op_linear(float *y, const float *x, uint32_t rows,
                  const struct ocr_tensor *w, bool bf16, struct ocr_err *err)
{
    const struct cpu_isa *isa = cpu_isa_choose(NULL);
    const struct cpu_source source = {.part = {w}};
    struct cpu_matrix m;
    const size_t bytes =
        cpu_matrix_shape(&m, &source, bf16 ? CPU_BF16 : CPU_FP32);
    const enum cpu_rows kind = cpu_matrix_rows(&m, isa, true);
    const size_t stride = cpu_row_stride(kind, w->cols);
    const size_t all = ((size_t)rows + 31) / 32 * 32;
    char *a = calloc(all, stride);
    float *c = malloc(all * 32 * sizeof *c);
    float *wide = malloc(all * m.columns * sizeof *wide);

    m.data = malloc(bytes);
    if (!a || !c || !wide || !m.data)
        goto out;
    cpu_matrix_pack(&m, &source, isa, 0, 1);
    for (uint32_t r = 0; r < rows; r++)
        isa->to_row(a + r * stride, kind, x + (size_t)r * w->cols, w->cols);
    cpu_matrix_mul(&m, isa, a, stride, kind, rows, 0, m.columns / CPU_LANES,
                   &(struct cpu_finish){.kind = CPU_STORE,
                                        .out = wide,
                                        .stride = m.columns * sizeof *wide},
                   c, NULL);
    for (uint32_t r = 0; r < rows; r++)
        memcpy(y + (size_t)r * w->rows, wide + (size_t)r * m.columns,
               w->rows * sizeof *y);
out:
    rows = a && c && wide && m.data;
    free(a);
    free(c);
    free(wide);
    free(m.data);
    return rows ? 0 : ocr_err_set(err, -ENOMEM, "linear: no memory");
}

/* K and V of one head in blocks and splits, and the buffers to attend. */
struct attention {
    struct cpu_attend a;
    struct cpu_heads kv;
    struct cpu_scratch s;
    uint32_t splits;
    size_t split_bytes, stride;
    char *k, *v, *q;
};

static bool attention_init(struct attention *t, uint32_t rows, uint32_t keys,
                           uint32_t n, bool bf16)
{
    const struct cpu_isa *isa = cpu_isa_choose(NULL);
    const uint32_t blocks = (keys + OCR_BLOCK_TOKENS - 1) / OCR_BLOCK_TOKENS;
    const enum cpu_rows kind = !bf16       ? CPU_ROWS_FP32
                               : isa->half ? CPU_ROWS_BF16
                                           : CPU_ROWS_ROUNDED;

    cpu_heads_init(&t->kv, n, bf16 ? CPU_BF16 : CPU_FP32);
    t->a = (struct cpu_attend){.isa = isa, .kv = &t->kv, .kind = kind};
    t->splits = (keys + OCR_SPLIT_TOKENS - 1) / OCR_SPLIT_TOKENS;
    t->split_bytes = t->kv.v_panels * t->kv.v_half * CPU_SPLIT_BLOCKS;
    t->stride = cpu_row_stride(kind, n);
    t->k = calloc(blocks, t->kv.k_bytes);
    t->v = calloc(t->splits, t->split_bytes);
    t->q = calloc((size_t)rows + CPU_ATTEND_ROWS, t->stride);
    t->s.scores = calloc(CPU_ATTEND_ROWS, CPU_SCORE_STRIDE * sizeof(float));
    t->s.p = calloc(CPU_ATTEND_ROWS, cpu_row_stride(kind, OCR_SPLIT_TOKENS));
    t->s.acc =
        calloc(CPU_ATTEND_ROWS, t->kv.v_panels * CPU_LANES * sizeof(float));
    t->s.c = calloc(CPU_ATTEND_ROWS, 32 * sizeof(float));
    return t->k && t->v && t->q && t->s.scores && t->s.p && t->s.acc && t->s.c;
}

static void attention_release(struct attention *t)
{
    free(t->k);
    free(t->v);
    free(t->q);
    free(t->s.scores);
    free(t->s.p);
    free(t->s.acc);
    free(t->s.c);
}

static void attend(struct attention *t, float *out, uint32_t first,
                   uint32_t rows, uint32_t keys, int64_t visible, int64_t step)
{
    cpu_attend_begin(&t->s, rows, t->kv.v_panels * CPU_LANES);
    for (uint32_t i = 0; i < t->splits; i++) {
        const uint32_t start = i * OCR_SPLIT_TOKENS;
        const uint32_t n =
            keys - start < OCR_SPLIT_TOKENS ? keys - start : OCR_SPLIT_TOKENS;
        const char *k[CPU_SPLIT_BLOCKS];

        for (uint32_t j = 0; j * OCR_BLOCK_TOKENS < n; j++)
            k[j] = t->k + ((size_t)i * CPU_SPLIT_BLOCKS + j) * t->kv.k_bytes;
        cpu_attend_split(&t->a, &t->s, t->q + first * t->stride, t->stride,
                         rows, k, t->v + i * t->split_bytes, n, visible - start,
                         step);
    }
    for (uint32_t r = 0; r < rows; r++)
        cpu_attend_end(&t->a, &t->s, r,
                       out + (size_t)(first + r) * t->kv.head_dim);
}

int ocr_op_attention(float *out, const float *q, const float *k, const float *v,
                     uint32_t rows, uint32_t keys, uint32_t n, bool causal,
                     bool bf16, struct ocr_err *err)
{
    struct attention t = {0};
    const struct cpu_isa *isa = cpu_isa_choose(NULL);

    if (!attention_init(&t, rows, keys, n, bf16)) {
        attention_release(&t);
        return ocr_err_set(err, -ENOMEM, "attention: no memory");
    }
    for (uint32_t i = 0; i < keys; i++) {
        const uint32_t block = i / OCR_BLOCK_TOKENS;
        char *half = t.v + block / CPU_SPLIT_BLOCKS * t.split_bytes +
                     block % CPU_SPLIT_BLOCKS * t.kv.v_half;

        cpu_put_k(t.k + block * t.kv.k_bytes, &t.kv, isa, i % OCR_BLOCK_TOKENS,
                  k + (size_t)i * n);
        cpu_put_v(half, t.kv.v_half * CPU_SPLIT_BLOCKS, &t.kv, isa,
                  i % OCR_BLOCK_TOKENS, v + (size_t)i * n);
    }
    for (uint32_t r = 0; r < rows; r++)
        isa->to_row(t.q + r * t.stride, t.a.kind, q + (size_t)r * n, n);
    for (uint32_t r = 0; r < rows; r += CPU_ATTEND_ROWS)
        attend(&t, out, r,
               rows - r < CPU_ATTEND_ROWS ? rows - r : CPU_ATTEND_ROWS, keys,
               causal ? (int64_t)keys - rows + r + 1 : keys, causal);
    attention_release(&t);
    return 0;
}
