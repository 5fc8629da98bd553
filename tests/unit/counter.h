/* Weights, pixels and ids from a counter, as tests/reference/counter.py makes
 * them, and the models that are made of them. */
#ifndef TEST_COUNTER_H
#define TEST_COUNTER_H
#include "kernels/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline uint64_t counter_mix(uint64_t x)
{
    x = (x + 1) * 0x9E3779B97F4A7C15;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
}

/* Value i of the stream is counter_mix(seed + i). */
static inline uint64_t counter_seed(const char *name)
{
    uint64_t h = 0xCBF29CE484222325;

    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001B3;
    return h;
}

static inline void counter_pixels(const char *name, uint8_t *rgb, size_t bytes)
{
    const uint64_t seed = counter_seed(name);

    for (size_t i = 0; i < bytes; i++)
        rgb[i] = (uint8_t)(counter_mix(seed + i) >> 56);
}

/* Ids other than `never`. */
static inline void counter_ids(const char *name, uint32_t *ids, uint32_t count,
                               uint32_t vocab, uint32_t never)
{
    const uint64_t seed = counter_seed(name);

    for (uint32_t i = 0; i < count; i++) {
        ids[i] = (uint32_t)((counter_mix(seed + i) >> 32) % vocab);
        if (ids[i] == never)
            ids[i] = (never + 1) % vocab;
    }
}

/* A model and the memory of its tensors. */
struct counter_model {
    struct ocr_model model;
    void *memory[256];
    unsigned count;
};

static inline void *counter_alloc(struct counter_model *m, size_t bytes)
{
    void *p = m->count < 256 ? calloc(1, bytes) : NULL;

    if (!p)
        abort();
    return m->memory[m->count++] = p;
}

/* A number that bf16 holds exactly, as its upper 16 bits; little-endian. */
static inline void counter_put(unsigned char *at, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    at[0] = (unsigned char)(bits >> 16);
    at[1] = (unsigned char)(bits >> 24);
}

/* Matrices: odd 256ths between -1 and 1, times a power of two; smaller ones for
 * patches, so that the epsilon of the first norm counts. Vectors, with rows 0:
 * 128ths from 0.5 to below 1.5. Data begins at odd addresses. */
static inline struct ocr_tensor counter_tensor(struct counter_model *m,
                                               const char *prefix,
                                               const char *name, uint32_t rows,
                                               uint32_t cols)
{
    const size_t n = (size_t)(rows ? rows : 1) * cols;
    unsigned char *data = (unsigned char *)counter_alloc(m, 2 * n + 1) + 1;
    float scale = 1.0F / 256;
    char full[128];
    uint64_t seed;

    snprintf(full, sizeof full, "model.%s%s.weight", prefix, name);
    seed = counter_seed(full);
    for (uint32_t c = cols; c >= 16; c /= 4)
        scale /= 2;
    if (strstr(name, "patch_conv"))
        scale /= 64;
    for (size_t i = 0; i < n; i++) {
        const uint64_t h = counter_mix(seed + i);
        const float k = (float)(h >> (rows ? 56 : 57));

        counter_put(data + 2 * i,
                    rows ? (2 * k - 255) * scale : 1 + (k - 64) / 128);
    }
    return (struct ocr_tensor){data, OCR_DTYPE_BF16, rows ? rows : 1, cols};
}

static inline void counter_vision(struct counter_model *m)
{
    struct ocr_vision *v = &m->model.vision;
    const uint32_t h = v->hidden, w = v->heads * v->head_dim;
    const uint32_t n = v->intermediate;

    v->patch_conv = counter_tensor(m, "vision_encoder.", "patch_conv", h,
                                   3 * v->patch * v->patch);
    v->ln_pre = counter_tensor(m, "vision_encoder.", "ln_pre", 0, h);
    v->layer = counter_alloc(m, v->layers * sizeof *v->layer);
    for (uint32_t i = 0; i < v->layers; i++) {
        struct ocr_vision_layer *l = &v->layer[i];
        char at[64];

        snprintf(at, sizeof at, "vision_encoder.transformer.layers.%u.", i);
        l->attention_norm = counter_tensor(m, at, "attention_norm", 0, h);
        l->q = counter_tensor(m, at, "attention.q_proj", w, h);
        l->k = counter_tensor(m, at, "attention.k_proj", w, h);
        l->v = counter_tensor(m, at, "attention.v_proj", w, h);
        l->o = counter_tensor(m, at, "attention.o_proj", h, w);
        l->ffn_norm = counter_tensor(m, at, "ffn_norm", 0, h);
        l->gate = counter_tensor(m, at, "feed_forward.gate_proj", n, h);
        l->up = counter_tensor(m, at, "feed_forward.up_proj", n, h);
        l->down = counter_tensor(m, at, "feed_forward.down_proj", h, n);
    }
}

static inline void counter_text(struct counter_model *m)
{
    struct ocr_text *t = &m->model.text;
    const uint32_t h = t->hidden, q = t->heads * t->head_dim;
    const uint32_t kv = t->kv_heads * t->head_dim, n = t->intermediate;

    t->embedding =
        counter_tensor(m, "language_model.", "embed_tokens", t->vocab, h);
    t->head = t->embedding;
    t->norm = counter_tensor(m, "language_model.", "norm", 0, h);
    t->layer = counter_alloc(m, t->layers * sizeof *t->layer);
    for (uint32_t i = 0; i < t->layers; i++) {
        struct ocr_text_layer *l = &t->layer[i];
        char at[64];

        snprintf(at, sizeof at, "language_model.layers.%u.", i);
        l->input_norm = counter_tensor(m, at, "input_layernorm", 0, h);
        l->q = counter_tensor(m, at, "self_attn.q_proj", q, h);
        l->k = counter_tensor(m, at, "self_attn.k_proj", kv, h);
        l->v = counter_tensor(m, at, "self_attn.v_proj", kv, h);
        l->o = counter_tensor(m, at, "self_attn.o_proj", h, q);
        l->q_norm = counter_tensor(m, at, "self_attn.q_norm", 0, t->head_dim);
        l->k_norm = counter_tensor(m, at, "self_attn.k_norm", 0, t->head_dim);
        l->post_norm = counter_tensor(m, at, "post_attention_layernorm", 0, h);
        l->gate = counter_tensor(m, at, "mlp.gate_proj", n, h);
        l->up = counter_tensor(m, at, "mlp.up_proj", n, h);
        l->down = counter_tensor(m, at, "mlp.down_proj", h, n);
    }
}

/* Makes the tensors of a model whose numbers are set. */
static inline struct counter_model *counter_model_new(struct ocr_model numbers)
{
    struct counter_model *m = calloc(1, sizeof *m);
    const uint32_t v = numbers.vision.hidden, h = numbers.text.hidden;
    const char *at = "vision_projection.";
    struct ocr_projector *p;

    if (!m)
        abort();
    m->model = numbers;
    p = &m->model.projector;
    counter_vision(m);
    p->norm = counter_tensor(m, at, "norm", 0, v);
    p->merging = counter_tensor(m, at, "patch_merger.merging_layer", v, 4 * v);
    p->linear_1 = counter_tensor(m, at, "linear_1", h, v);
    p->linear_2 = counter_tensor(m, at, "linear_2", h, h);
    counter_text(m);
    return m;
}

static inline void counter_model_free(struct counter_model *m)
{
    for (unsigned i = 0; i < m->count; i++)
        free(m->memory[i]);
    free(m);
}

#define COUNTER_COMMON                                                         \
    .image_mean = {0.48145466F, 0.4578275F, 0.40821073F},                      \
    .image_std = {0.26862954F, 0.26130258F, 0.27577711F},                      \
    .projector = {.merge = 2, .norm_eps = 1e-6F}

/* The model of transformers' own unit test: no width is a multiple of 16. */
static inline struct ocr_model counter_odd(void)
{
    return (struct ocr_model){
        COUNTER_COMMON,
        .image_token = 10,
        .vision = {.layers = 2,
                   .hidden = 32,
                   .heads = 4,
                   .head_dim = 8,
                   .intermediate = 37,
                   .patch = 14,
                   .grid = 8,
                   .rope_theta = 1e4F,
                   .norm_eps = 1e-5F},
        .text = {.layers = 2,
                 .hidden = 32,
                 .heads = 4,
                 .kv_heads = 2,
                 .head_dim = 8,
                 .intermediate = 37,
                 .vocab = 99,
                 .max_positions = 1024,
                 .rope_theta = 1e4F,
                 .norm_eps = 1e-6F},
    };
}

/* The widths and the vocabulary of LightOnOCR-2-1B, two layers each. */
static inline struct ocr_model counter_wide(void)
{
    return (struct ocr_model){
        COUNTER_COMMON,
        .image_token = 151655,
        .vision = {.layers = 2,
                   .hidden = 1024,
                   .heads = 16,
                   .head_dim = 64,
                   .intermediate = 4096,
                   .patch = 14,
                   .grid = 110,
                   .rope_theta = 1e4F,
                   .norm_eps = 1e-5F},
        .text = {.layers = 2,
                 .hidden = 1024,
                 .heads = 16,
                 .kv_heads = 8,
                 .head_dim = 128,
                 .intermediate = 3072,
                 .vocab = 151936,
                 .max_positions = 16384,
                 .rope_theta = 1e6F,
                 .norm_eps = 1e-6F},
    };
}

#endif
