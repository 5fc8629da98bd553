#include "kernels/cpu/cpu_i.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static uint32_t blocks_of(uint32_t tokens)
{
    return (tokens + OCR_BLOCK_TOKENS - 1) / OCR_BLOCK_TOKENS;
}

static uint32_t splits_of(uint32_t tokens)
{
    return (tokens + OCR_SPLIT_TOKENS - 1) / OCR_SPLIT_TOKENS;
}

/* All tokens that the rows of the pass may see. */
static uint32_t tokens_of(const struct cpu_pass *p)
{
    return p->first + p->rows;
}

static size_t split_bytes(const struct cpu_heads *kv)
{
    return kv->v_panels * kv->v_half * CPU_SPLIT_BLOCKS;
}

static char *k_panel(const struct cpu_pass *p, uint32_t head, uint32_t block)
{
    if (p->tower->causal)
        return cpu_kv_block(p->b, p->slot->table[block], p->number, head);
    return p->b->vision_k +
           ((size_t)head * blocks_of(p->rows) + block) * p->tower->kv.k_bytes;
}

/* V of a split as panels. */
static char *v_split(const struct cpu_pass *p, uint32_t head, uint32_t split)
{
    return p->b->split_v + ((size_t)head * splits_of(tokens_of(p)) + split) *
                               split_bytes(&p->tower->kv);
}

static void put_v(const struct cpu_pass *p, uint32_t head, uint32_t token,
                  const float *x)
{
    const struct cpu_heads *kv = &p->tower->kv;
    const uint32_t block = token / OCR_BLOCK_TOKENS;
    char *to;

    if (p->tower->causal) {
        to = k_panel(p, head, block) + kv->k_bytes;
        cpu_put_v(to, kv->v_half, kv, p->b->isa, token % OCR_BLOCK_TOKENS, x);
        return;
    }
    to = v_split(p, head, token / OCR_SPLIT_TOKENS) +
         block % CPU_SPLIT_BLOCKS * kv->v_half;
    cpu_put_v(to, kv->v_half * CPU_SPLIT_BLOCKS, kv, p->b->isa,
              token % OCR_BLOCK_TOKENS, x);
}

/* V behind the last token counts with probability zero, but zero times NaN is
 * NaN: blocks that are begun are zero first. */
static void clear_v(const struct cpu_pass *p)
{
    const struct cpu_heads *kv = &p->tower->kv;
    const size_t bytes = kv->v_panels * kv->v_half;

    for (uint32_t head = 0; head < p->tower->kv_heads; head++) {
        if (!p->tower->causal) {
            memset(v_split(p, head, p->rows / OCR_SPLIT_TOKENS), 0,
                   p->rows % OCR_SPLIT_TOKENS ? split_bytes(kv) : 0);
            continue;
        }
        for (uint32_t i = blocks_of(p->first); i < blocks_of(tokens_of(p)); i++)
            memset(k_panel(p, head, i) + kv->k_bytes, 0, bytes);
    }
}

/* Cosines and sines of a token: two runs of head_dim / 2. */
static const float *angles(const struct cpu_pass *p, struct cpu_scratch *s,
                           uint32_t token)
{
    const struct ocr_backend *b = p->b;
    const uint32_t half = p->tower->kv.head_dim / 2, part = half / 2;
    const size_t n = half * sizeof(float);

    if (p->tower->causal) {
        memcpy(s->angles, b->text_cosine + (size_t)token * half, n);
        memcpy(s->angles + half, b->text_sine + (size_t)token * half, n);
        return s->angles;
    }
    const size_t row = (size_t)(token / p->grid_columns) * part;
    const size_t column = (size_t)(b->grid + token % p->grid_columns) * part;
    memcpy(s->angles, b->vision_cosine + row, n / 2);
    memcpy(s->angles + part, b->vision_cosine + column, n / 2);
    memcpy(s->angles + half, b->vision_sine + row, n / 2);
    memcpy(s->angles + half + part, b->vision_sine + column, n / 2);
    return s->angles;
}

static size_t q_head_bytes(const struct cpu_pass *p)
{
    const enum cpu_rows kind = cpu_attend_rows(p->b, true);

    return cpu_row_stride(kind, p->tower->kv.head_dim) - 64;
}

static size_t q_stride(const struct cpu_pass *p)
{
    return q_head_bytes(p) * p->tower->heads + 64;
}

/* One row of q, k, v: norms, rotation, and each to its place. */
static void spread(const struct cpu_pass *p, struct cpu_scratch *s,
                   uint32_t row, float *x)
{
    const struct cpu_tower *t = p->tower;
    const struct cpu_isa *isa = p->b->isa;
    const uint32_t d = t->kv.head_dim, token = p->first + row;
    const float *angle = angles(p, s, token);
    const enum cpu_rows kind = cpu_attend_rows(p->b, true);

    for (uint32_t h = 0; h < t->heads; h++, x += d) {
        if (p->layer->q_norm)
            isa->rmsnorm(x, x, p->layer->q_norm, d, t->eps);
        isa->rope(x, angle, angle + d / 2, d);
        isa->to_row(p->b->q + row * q_stride(p) + h * q_head_bytes(p), kind, x,
                    d);
    }
    for (uint32_t h = 0; h < t->kv_heads; h++, x += d) {
        if (p->layer->k_norm)
            isa->rmsnorm(x, x, p->layer->k_norm, d, t->eps);
        isa->rope(x, angle, angle + d / 2, d);
        cpu_put_k(k_panel(p, h, token / OCR_BLOCK_TOKENS), &t->kv, isa,
                  token % OCR_BLOCK_TOKENS, x);
    }
    for (uint32_t h = 0; h < t->kv_heads; h++, x += d)
        put_v(p, h, token, x);
}

/* The next `size` of `all` units of work: returns how many, 0 at the end. */
static uint32_t take(struct cpu_pass *p, uint32_t size, uint32_t all,
                     uint32_t *first)
{
    *first = atomic_fetch_add(&p->unit, size);
    if (*first >= all)
        return 0;
    return all - *first < size ? all - *first : size;
}

static void norm_rows(const struct cpu_pass *p, struct cpu_scratch *s,
                      const float *x, const float *g, uint32_t rows,
                      const struct cpu_matrix *m)
{
    const struct cpu_isa *isa = p->b->isa;
    const uint32_t n = p->tower->hidden;
    const enum cpu_rows kind = cpu_matrix_rows(m, isa, true);
    const size_t stride = cpu_row_stride(kind, n);

    for (uint32_t r = 0; r < rows; r++) {
        isa->rmsnorm(s->row, x + (size_t)r * n, g, n, p->tower->eps);
        isa->to_row(s->a + r * stride, kind, s->row, n);
    }
}

static void multiply(const struct cpu_pass *p, struct cpu_scratch *s,
                     const struct cpu_matrix *m, const char *a, uint32_t inputs,
                     uint32_t rows, struct cpu_finish f)
{
    const enum cpu_rows kind = cpu_matrix_rows(m, p->b->isa, true);

    cpu_matrix_mul(m, p->b->isa, a, cpu_row_stride(kind, inputs), kind, rows, 0,
                   m->columns / CPU_LANES, &f, s->c, s->spare);
}

/* Rows: norm, q k v, rotation. */
static void before_attention(void *arg, unsigned thread, unsigned threads)
{
    struct cpu_pass *p = arg;
    const struct cpu_tower *t = p->tower;
    struct cpu_scratch *s = &p->b->scratch[thread];
    const uint32_t wide = p->layer->qkv.columns;
    uint32_t first, rows;

    (void)threads;
    while ((rows = take(p, p->b->isa->block, p->rows, &first))) {
        norm_rows(p, s, p->b->x + (size_t)first * t->hidden, p->layer->norm1,
                  rows, &p->layer->qkv);
        multiply(p, s, &p->layer->qkv, s->a, t->hidden, rows,
                 (struct cpu_finish){.kind = CPU_STORE,
                                     .out = s->wide,
                                     .stride = wide * sizeof(float)});
        for (uint32_t r = 0; r < rows; r++)
            spread(p, s, first + r, s->wide + (size_t)r * wide);
    }
}

/* Splits of V out of the blocks. */
static void gather(void *arg, unsigned thread, unsigned threads)
{
    struct cpu_pass *p = arg;
    const struct cpu_tower *t = p->tower;
    const uint32_t splits = splits_of(tokens_of(p));
    const uint32_t blocks = blocks_of(tokens_of(p));
    uint32_t unit;

    (void)thread;
    (void)threads;
    while (take(p, 1, splits * t->kv_heads, &unit)) {
        const uint32_t head = unit / splits, split = unit % splits;
        const char *v[CPU_SPLIT_BLOCKS];
        uint32_t n = 0;

        for (uint32_t i = split * CPU_SPLIT_BLOCKS;
             i < blocks && n < CPU_SPLIT_BLOCKS; i++)
            v[n++] = k_panel(p, head, i) + t->kv.k_bytes;
        cpu_gather_v(v_split(p, head, split), &t->kv, v, n);
    }
}

static void attend_rows(struct cpu_pass *p, struct cpu_scratch *s,
                        uint32_t head, uint32_t first, uint32_t rows)
{
    const struct cpu_tower *t = p->tower;
    const struct cpu_attend a = {
        .isa = p->b->isa, .kv = &t->kv, .kind = cpu_attend_rows(p->b, true)};
    const uint32_t kv_head = head / (t->heads / t->kv_heads);
    const uint32_t tokens = t->causal ? p->first + first + rows : tokens_of(p);
    const char *q = p->b->q + first * q_stride(p) + head * q_head_bytes(p);

    cpu_attend_begin(s, rows, t->kv.v_panels * CPU_LANES);
    for (uint32_t i = 0; i < splits_of(tokens); i++) {
        const uint32_t start = i * OCR_SPLIT_TOKENS;
        const uint32_t keys = tokens - start < OCR_SPLIT_TOKENS
                                  ? tokens - start
                                  : OCR_SPLIT_TOKENS;
        const char *k[CPU_SPLIT_BLOCKS];

        for (uint32_t j = 0; j < blocks_of(keys); j++)
            k[j] = k_panel(p, kv_head, i * CPU_SPLIT_BLOCKS + j);
        cpu_attend_split(
            &a, s, q, q_stride(p), rows, k, v_split(p, kv_head, i), keys,
            t->causal ? (int64_t)p->first + first + 1 - start : keys,
            t->causal);
    }
    for (uint32_t r = 0; r < rows; r++)
        cpu_attend_end(&a, s, r,
                       p->b->attended +
                           ((size_t)(first + r) * t->heads + head) *
                               t->kv.head_dim);
}

static void attention(void *arg, unsigned thread, unsigned threads)
{
    struct cpu_pass *p = arg;
    const uint32_t parts = (p->rows + CPU_ATTEND_ROWS - 1) / CPU_ATTEND_ROWS;
    uint32_t unit;

    (void)threads;
    while (take(p, 1, parts * p->tower->heads, &unit)) {
        const uint32_t first = unit % parts * CPU_ATTEND_ROWS;
        const uint32_t rows = p->rows - first < CPU_ATTEND_ROWS
                                  ? p->rows - first
                                  : CPU_ATTEND_ROWS;

        attend_rows(p, &p->b->scratch[thread], unit / parts, first, rows);
    }
}

/* Rows: output of attention, norm, SwiGLU. */
static void after_attention(void *arg, unsigned thread, unsigned threads)
{
    struct cpu_pass *p = arg;
    const struct cpu_tower *t = p->tower;
    const struct cpu_layer *l = p->layer;
    const struct cpu_isa *isa = p->b->isa;
    struct cpu_scratch *s = &p->b->scratch[thread];
    const uint32_t width = t->heads * t->kv.head_dim;
    const enum cpu_rows kind = cpu_matrix_rows(&l->o, isa, true);
    const size_t stride = cpu_row_stride(kind, width);
    uint32_t first, rows;

    (void)threads;
    while ((rows = take(p, isa->block, p->rows, &first))) {
        float *x = p->b->x + (size_t)first * t->hidden;
        const struct cpu_finish add = {
            .kind = CPU_ADD, .out = x, .stride = t->hidden * sizeof *x};

        for (uint32_t r = 0; r < rows; r++)
            isa->to_row(s->a + r * stride, kind,
                        p->b->attended + (size_t)(first + r) * width, width);
        multiply(p, s, &l->o, s->a, width, rows, add);
        norm_rows(p, s, x, l->norm2, rows, &l->gate_up);
        multiply(p, s, &l->gate_up, s->a, t->hidden, rows,
                 (struct cpu_finish){
                     .kind = CPU_SWIGLU,
                     .out = s->h,
                     .stride = cpu_row_stride(
                         cpu_matrix_rows(&l->down, isa, true), t->inner),
                     .rows = cpu_matrix_rows(&l->down, isa, true)});
        multiply(p, s, &l->down, s->h, t->inner, rows, add);
    }
}

static void run(struct cpu_pass *p,
                void (*job)(void *arg, unsigned thread, unsigned threads))
{
    atomic_store(&p->unit, 0);
    cpu_pool_run(p->b->pool, job, p);
}

static void tap(const struct cpu_pass *p)
{
    const struct ocr_taps *taps = &p->b->taps;

    if (taps->layer)
        taps->layer(taps->arg, p->slot->config.page, p->tower->tap + p->number,
                    p->b->x, p->first, p->rows, p->tower->hidden);
}

int cpu_pass_run(struct cpu_pass *p)
{
    const struct cpu_tower *t = p->tower;

    for (p->number = 0; p->number < t->layers; p->number++) {
        if (atomic_load(&p->slot->cancelled))
            return -ECANCELED;
        p->layer = &t->layer[p->number];
        clear_v(p);
        run(p, before_attention);
        if (t->causal)
            run(p, gather);
        run(p, attention);
        run(p, after_attention);
        tap(p);
    }
    return 0;
}
