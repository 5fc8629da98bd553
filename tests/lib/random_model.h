/* tests/lib/random_model.h - a model of any shape whose weights a counter
 * makes: the same on every machine, nothing to store.
 *
 * Weights are spread so that activations keep their size through the layers
 * and attention looks at some tokens more than at others. */
#ifndef RANDOM_MODEL_H
#define RANDOM_MODEL_H
#include "kernels/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct random_shape {
    uint32_t vision_layers, vision_hidden, vision_heads, vision_inner;
    uint32_t text_layers, hidden, heads, kv_heads, head_dim, inner, vocab;
    uint32_t patch, grid, max_positions;
    float text_theta;
    enum ocr_dtype dtype;
    bool own_head;
};

/* Shapes of lightonocr.md 1.4 and 1.1. */
static const struct random_shape ODD_SHAPE = {
    .vision_layers = 2,
    .vision_hidden = 32,
    .vision_heads = 4,
    .vision_inner = 37,
    .text_layers = 2,
    .hidden = 32,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 8,
    .inner = 37,
    .vocab = 99,
    .patch = 14,
    .grid = 8,
    .max_positions = 512,
    .text_theta = 1e4f,
    .dtype = OCR_DTYPE_FP32,
};
static const struct random_shape FULL_SHAPE = {
    .vision_layers = 24,
    .vision_hidden = 1024,
    .vision_heads = 16,
    .vision_inner = 4096,
    .text_layers = 28,
    .hidden = 1024,
    .heads = 16,
    .kv_heads = 8,
    .head_dim = 128,
    .inner = 3072,
    .vocab = 151936,
    .patch = 14,
    .grid = 110,
    .max_positions = 16384,
    .text_theta = 1e6f,
    .dtype = OCR_DTYPE_BF16,
};

static inline uint64_t random_word(uint64_t counter)
{
    uint64_t x = counter * 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Evenly from -1 to 1. */
static inline float random_float(uint64_t counter)
{
    return (float)(random_word(counter) >> 40) * 0x1p-23f - 1;
}

static inline size_t random_size(const struct ocr_tensor *t)
{
    return (size_t)t->rows * t->cols * (t->dtype == OCR_DTYPE_FP32 ? 4 : 2);
}

/* Memory of its own for each tensor, so that it can be given back. */
static inline struct ocr_tensor random_tensor(uint32_t rows, uint32_t cols,
                                              enum ocr_dtype dtype,
                                              float middle, float spread,
                                              uint64_t *counter)
{
    struct ocr_tensor t = {.dtype = dtype, .rows = rows, .cols = cols};
    unsigned char *data =
        (unsigned char *)mmap(NULL, random_size(&t), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (data == MAP_FAILED)
        abort();
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        const float x = middle + spread * random_float(++*counter);
        uint32_t u;

        memcpy(&u, &x, sizeof u);
        if (dtype == OCR_DTYPE_FP32) {
            memcpy(data + 4 * i, &u, 4);
        } else { /* bf16, cut: random anyway */
            const uint16_t h = (uint16_t)(u >> 16);
            memcpy(data + 2 * i, &h, 2);
        }
    }
    t.data = data;
    return t;
}

static inline void random_forget(const struct ocr_tensor *t)
{
    madvise((void *)(uintptr_t)t->data, random_size(t), MADV_DONTNEED);
}

static inline void random_free_tensor(const struct ocr_tensor *t)
{
    munmap((void *)(uintptr_t)t->data, random_size(t));
}

#define RANDOM_MATRIX(rows, cols, gain)                                        \
    random_tensor(rows, cols, s->dtype, 0, (gain)*sqrtf(3.0f / (cols)), &n)
#define RANDOM_NORM(cols) random_tensor(1, cols, s->dtype, 1, 0.25f, &n)

static inline struct ocr_vision_layer
random_vision_layer(const struct random_shape *s, uint64_t *counter)
{
    const uint32_t h = s->vision_hidden;
    uint64_t n = *counter;
    const struct ocr_vision_layer l = {
        .attention_norm = RANDOM_NORM(h),
        .q = RANDOM_MATRIX(h, h, 1.2f),
        .k = RANDOM_MATRIX(h, h, 1.2f),
        .v = RANDOM_MATRIX(h, h, 1),
        .o = RANDOM_MATRIX(h, h, 0.7f),
        .ffn_norm = RANDOM_NORM(h),
        .gate = RANDOM_MATRIX(s->vision_inner, h, 1),
        .up = RANDOM_MATRIX(s->vision_inner, h, 1),
        .down = RANDOM_MATRIX(h, s->vision_inner, 0.7f),
    };

    *counter = n;
    return l;
}

static inline struct ocr_text_layer
random_text_layer(const struct random_shape *s, uint64_t *counter)
{
    const uint32_t h = s->hidden, d = s->head_dim;
    uint64_t n = *counter;
    const struct ocr_text_layer l = {
        .input_norm = RANDOM_NORM(h),
        .q = RANDOM_MATRIX(s->heads * d, h, 1),
        .k = RANDOM_MATRIX(s->kv_heads * d, h, 1),
        .v = RANDOM_MATRIX(s->kv_heads * d, h, 1),
        .o = RANDOM_MATRIX(h, s->heads * d, 0.7f),
        .q_norm = RANDOM_NORM(d),
        .k_norm = RANDOM_NORM(d),
        .post_norm = RANDOM_NORM(h),
        .gate = RANDOM_MATRIX(s->inner, h, 1),
        .up = RANDOM_MATRIX(s->inner, h, 1),
        .down = RANDOM_MATRIX(h, s->inner, 0.7f),
    };

    *counter = n;
    return l;
}

static inline struct ocr_model *random_model_new(const struct random_shape *s)
{
    struct ocr_model *m = (struct ocr_model *)calloc(1, sizeof *m);
    const uint32_t vh = s->vision_hidden, h = s->hidden;
    uint64_t n = 0;

    if (!m)
        abort();
    m->vision = (struct ocr_vision){
        .layers = s->vision_layers,
        .hidden = vh,
        .heads = s->vision_heads,
        .head_dim = vh / s->vision_heads,
        .intermediate = s->vision_inner,
        .patch = s->patch,
        .grid = s->grid,
        .rope_theta = 1e4f,
        .norm_eps = 1e-5f,
        .patch_conv = RANDOM_MATRIX(vh, 3 * s->patch * s->patch, 1),
        .ln_pre = RANDOM_NORM(vh),
        .layer = (struct ocr_vision_layer *)calloc(s->vision_layers,
                                                   sizeof *m->vision.layer),
    };
    for (uint32_t i = 0; i < s->vision_layers; i++)
        m->vision.layer[i] = random_vision_layer(s, &n);
    m->projector = (struct ocr_projector){
        .merge = 2,
        .norm_eps = 1e-6f,
        .norm = RANDOM_NORM(vh),
        .merging = RANDOM_MATRIX(vh, 4 * vh, 1),
        .linear_1 = RANDOM_MATRIX(h, vh, 1),
        .linear_2 = RANDOM_MATRIX(h, h, 1),
    };
    m->text = (struct ocr_text){
        .layers = s->text_layers,
        .hidden = h,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .intermediate = s->inner,
        .vocab = s->vocab,
        .max_positions = s->max_positions,
        .rope_theta = s->text_theta,
        .norm_eps = 1e-6f,
        .embedding = RANDOM_MATRIX(s->vocab, h, 2),
        .norm = RANDOM_NORM(h),
        .layer = (struct ocr_text_layer *)calloc(s->text_layers,
                                                 sizeof *m->text.layer),
    };
    m->text.head =
        s->own_head ? RANDOM_MATRIX(s->vocab, h, 2) : m->text.embedding;
    for (uint32_t i = 0; i < s->text_layers; i++)
        m->text.layer[i] = random_text_layer(s, &n);
    m->image_token = 10;
    for (int c = 0; c < 3; c++) {
        m->image_mean[c] = 0.48f - 0.03f * (float)c;
        m->image_std[c] = 0.27f;
    }
    return m;
}

static inline void random_model_free(struct ocr_model *m)
{
    for (uint32_t i = 0; i < m->vision.layers; i++) {
        const struct ocr_vision_layer *l = &m->vision.layer[i];
        const struct ocr_tensor *all[] = {
            &l->attention_norm, &l->q,    &l->k,  &l->v,   &l->o,
            &l->ffn_norm,       &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            random_free_tensor(all[j]);
    }
    for (uint32_t i = 0; i < m->text.layers; i++) {
        const struct ocr_text_layer *l = &m->text.layer[i];
        const struct ocr_tensor *all[] = {
            &l->input_norm, &l->q,      &l->k,      &l->v,
            &l->o,          &l->q_norm, &l->k_norm, &l->post_norm,
            &l->gate,       &l->up,     &l->down};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            random_free_tensor(all[j]);
    }
    if (m->text.head.data != m->text.embedding.data)
        random_free_tensor(&m->text.head);
    random_free_tensor(&m->text.embedding);
    random_free_tensor(&m->text.norm);
    random_free_tensor(&m->vision.patch_conv);
    random_free_tensor(&m->vision.ln_pre);
    random_free_tensor(&m->projector.norm);
    random_free_tensor(&m->projector.merging);
    random_free_tensor(&m->projector.linear_1);
    random_free_tensor(&m->projector.linear_2);
    free(m->vision.layer);
    free(m->text.layer);
    free(m);
}

#endif
