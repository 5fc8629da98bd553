#include "kernels/cpu/cpu_i.h"

#include <string.h>

/* A decode step: one row for each of `count` slots. */
struct step {
    struct ocr_backend *b;
    struct cpu_slot *const *slots;
    unsigned count;
    uint32_t number; /* of the layer */
    const struct cpu_layer *layer;
    const struct cpu_matrix *m;
    const char *a;
    uint32_t inputs;
    struct cpu_finish finish;
    atomic_uint unit;
};

static enum cpu_rows kind_of(const struct step *p, const struct cpu_matrix *m)
{
    return cpu_matrix_rows(m, p->b->isa, false);
}

/* Outputs for all slots at once, some panels at a time: a thread that other
 * programs hold up gets fewer of them. */
static void multiply_share(void *arg, unsigned thread, unsigned threads)
{
    enum {
        AT_ONCE = 16
    };
    struct step *p = arg;
    const uint32_t panels = p->m->columns / CPU_LANES;
    const enum cpu_rows kind = kind_of(p, p->m);
    uint32_t first;

    (void)threads;
    while ((first = atomic_fetch_add(&p->unit, AT_ONCE)) < panels)
        cpu_matrix_mul(p->m, p->b->isa, p->a, cpu_row_stride(kind, p->inputs),
                       kind, p->count, first,
                       first + AT_ONCE < panels ? first + AT_ONCE : panels,
                       &p->finish, p->b->scratch[thread].c,
                       p->b->scratch[thread].spare);
}

static void run(struct step *p,
                void (*job)(void *arg, unsigned thread, unsigned threads))
{
    atomic_store(&p->unit, 0);
    cpu_pool_run(p->b->pool, job, p);
}

static void multiply(struct step *p, const struct cpu_matrix *m, const char *a,
                     uint32_t inputs, struct cpu_finish finish)
{
    p->m = m;
    p->a = a;
    p->inputs = inputs;
    p->finish = finish;
    run(p, multiply_share);
}

/* b->rows_a = rows of `n` numbers, normalised if g is given. */
static void make_rows(struct step *p, const float *x, const float *g,
                      uint32_t n, const struct cpu_matrix *m)
{
    struct ocr_backend *b = p->b;
    const enum cpu_rows kind = kind_of(p, m);
    float *row = b->scratch[0].row;

    for (unsigned i = 0; i < p->count; i++) {
        const float *from = x + (size_t)i * n;

        if (g) {
            b->isa->rmsnorm(row, from, g, n, b->text.eps);
            from = row;
        }
        b->isa->to_row(b->rows_a + i * cpu_row_stride(kind, n), kind, from, n);
    }
}

static float *qkv_row(const struct step *p, unsigned i)
{
    return p->b->wide + (size_t)i * p->layer->qkv.columns;
}

/* q of the heads that share K and V of `head`, k and v of slot i: norms,
 * rotation, k and v into the cache. */
static void enter(const struct step *p, struct cpu_scratch *s, unsigned i,
                  uint32_t head, char *q, size_t q_stride)
{
    const struct ocr_backend *b = p->b;
    const struct cpu_tower *t = &b->text;
    const struct cpu_isa *isa = b->isa;
    const struct cpu_slot *slot = p->slots[i];
    const uint32_t d = t->kv.head_dim, group = t->heads / t->kv_heads;
    const uint32_t token = slot->position % OCR_BLOCK_TOKENS;
    const float *cosine = b->text_cosine + (size_t)slot->position * (d / 2);
    const float *sine = b->text_sine + (size_t)slot->position * (d / 2);
    float *row = qkv_row(p, i), *k = row + (size_t)(t->heads + head) * d;
    char *block = cpu_kv_block(
        b, slot->table[slot->position / OCR_BLOCK_TOKENS], p->number, head);

    (void)s;
    for (uint32_t g = 0; g < group; g++) {
        float *x = row + (size_t)(head * group + g) * d;

        isa->rmsnorm(x, x, p->layer->q_norm, d, t->eps);
        isa->rope(x, cosine, sine, d);
        isa->to_row(q + g * q_stride, cpu_attend_rows(b, false), x, d);
    }
    isa->rmsnorm(k, k, p->layer->k_norm, d, t->eps);
    isa->rope(k, cosine, sine, d);
    cpu_put_k(block, &t->kv, isa, token, k);
    block += t->kv.k_bytes;
    if (!token) /* see clear_v in tower.c */
        memset(block, 0, t->kv.v_panels * t->kv.v_half);
    cpu_put_v(block, t->kv.v_half, &t->kv, isa, token,
              k + (size_t)t->kv_heads * d);
}

static void attend_head(const struct step *p, struct cpu_scratch *s, unsigned i,
                        uint32_t head)
{
    const struct ocr_backend *b = p->b;
    const struct cpu_tower *t = &b->text;
    const struct cpu_slot *slot = p->slots[i];
    const uint32_t group = t->heads / t->kv_heads, d = t->kv.head_dim;
    const uint32_t tokens = slot->position + 1;
    const struct cpu_attend a = {
        .isa = b->isa, .kv = &t->kv, .kind = cpu_attend_rows(b, false)};
    const size_t q_stride = cpu_row_stride(a.kind, d);

    enter(p, s, i, head, s->a, q_stride);
    cpu_attend_begin(s, group, t->kv.v_panels * CPU_LANES);
    for (uint32_t start = 0; start < tokens; start += OCR_SPLIT_TOKENS) {
        const uint32_t keys = tokens - start < OCR_SPLIT_TOKENS
                                  ? tokens - start
                                  : OCR_SPLIT_TOKENS;
        const char *k[CPU_SPLIT_BLOCKS], *v[CPU_SPLIT_BLOCKS];
        unsigned n = 0;

        for (; n * OCR_BLOCK_TOKENS < keys; n++) {
            k[n] = cpu_kv_block(b, slot->table[start / OCR_BLOCK_TOKENS + n],
                                p->number, head);
            v[n] = k[n] + t->kv.k_bytes;
        }
        if (a.kind != CPU_ROWS_BF16) {
            cpu_attend_blocks(&a, s, s->a, q_stride, group, k, v, keys);
            continue;
        }
        cpu_gather_v(s->v, &t->kv, v, n);
        cpu_attend_split(&a, s, s->a, q_stride, group, k, s->v, keys, keys, 0);
    }
    for (uint32_t g = 0; g < group; g++)
        cpu_attend_end(&a, s, g,
                       b->attended +
                           ((size_t)i * t->heads + head * group + g) * d);
}

static void attend_share(void *arg, unsigned thread, unsigned threads)
{
    struct step *p = arg;
    const uint32_t heads = p->b->text.kv_heads, units = heads * p->count;
    uint32_t u;

    (void)threads;
    while ((u = atomic_fetch_add(&p->unit, 1)) < units)
        attend_head(p, &p->b->scratch[thread], u / heads, u % heads);
}

static void decode_layer(struct step *p)
{
    struct ocr_backend *b = p->b;
    const struct cpu_tower *t = &b->text;
    const struct cpu_layer *l = p->layer;
    const uint32_t width = t->heads * t->kv.head_dim;
    const struct cpu_finish add = {
        .kind = CPU_ADD, .out = b->x, .stride = t->hidden * sizeof *b->x};
    const enum cpu_rows down = kind_of(p, &l->down);

    make_rows(p, b->x, l->norm1, t->hidden, &l->qkv);
    multiply(p, &l->qkv, b->rows_a, t->hidden,
             (struct cpu_finish){.kind = CPU_STORE,
                                 .out = qkv_row(p, 0),
                                 .stride = l->qkv.columns * sizeof(float)});
    run(p, attend_share);
    make_rows(p, b->attended, NULL, width, &l->o);
    multiply(p, &l->o, b->rows_a, width, add);
    make_rows(p, b->x, l->norm2, t->hidden, &l->gate_up);
    multiply(p, &l->gate_up, b->rows_a, t->hidden,
             (struct cpu_finish){.kind = CPU_SWIGLU,
                                 .out = b->rows_h,
                                 .stride = cpu_row_stride(down, t->inner),
                                 .rows = down});
    multiply(p, &l->down, b->rows_h, t->inner, add);
}

static void tap(const struct step *p)
{
    const struct ocr_backend *b = p->b;
    const uint32_t n = b->text.hidden;

    for (unsigned i = 0; b->taps.layer && i < p->count; i++)
        b->taps.layer(b->taps.arg, p->slots[i]->config.page,
                      b->text.tap + p->number, b->x + (size_t)i * n,
                      p->slots[i]->position, 1, n);
}

void cpu_decode_step(struct ocr_backend *b, struct cpu_slot *const *slots,
                     unsigned count)
{
    struct step p = {.b = b, .slots = slots, .count = count};

    for (p.number = 0; p.number < b->text.layers; p.number++) {
        p.layer = &b->text.layer[p.number];
        decode_layer(&p);
        tap(&p);
    }
    cpu_logits(b, slots, count, b->x);
}

void cpu_logits(struct ocr_backend *b, struct cpu_slot *const *slots,
                unsigned count, float *x)
{
    const struct cpu_matrix *m = b->tied ? &b->embedding : &b->head;
    struct step p = {.b = b, .slots = slots, .count = count};
    float *logits = b->wide;

    make_rows(&p, x, b->text_norm, b->text.hidden, m);
    multiply(&p, m, b->rows_a, b->text.hidden,
             (struct cpu_finish){.kind = CPU_STORE,
                                 .out = logits,
                                 .stride = m->columns * sizeof *logits});
    for (unsigned i = 0; i < count; i++)
        memcpy(slots[i]->logits, logits + (size_t)i * m->columns,
               b->vocab * sizeof *logits);
}
