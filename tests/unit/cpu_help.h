/* tests/unit/cpu_help.h - for the tests of kernels/cpu: the forward pass in
 * double precision, written for reading, and a driver for pages. */
#ifndef CPU_HELP_H
#define CPU_HELP_H
#include "kernels/backend.h"
#include "tests/lib/device.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* The reference: everything in double. */

static inline double *doubles(size_t n)
{
    double *p = (double *)calloc(n, sizeof *p);

    assert_non_null(p);
    return p;
}

static inline double *ref_weights(const struct ocr_tensor *t)
{
    double *w = doubles((size_t)t->rows * t->cols);
    float *row = (float *)malloc(t->cols * sizeof *row);

    for (uint32_t r = 0; r < t->rows; r++) {
        ocr_tensor_row(t, r, row);
        for (uint32_t c = 0; c < t->cols; c++)
            w[(size_t)r * t->cols + c] = (double)row[c];
    }
    free(row);
    return w;
}

static inline double *ref_linear(const double *x, uint32_t rows,
                                 const struct ocr_tensor *t)
{
    double *w = ref_weights(t), *y = doubles((size_t)rows * t->rows);

    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t o = 0; o < t->rows; o++)
            for (uint32_t i = 0; i < t->cols; i++)
                y[(size_t)r * t->rows + o] +=
                    w[(size_t)o * t->cols + i] * x[(size_t)r * t->cols + i];
    free(w);
    return y;
}

static inline double *ref_norm(const double *x, uint32_t rows, uint32_t n,
                               const struct ocr_tensor *g, double eps)
{
    double *w = ref_weights(g), *y = doubles((size_t)rows * n);

    for (uint32_t r = 0; r < rows; r++) {
        double sum = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += x[(size_t)r * n + i] * x[(size_t)r * n + i];
        for (uint32_t i = 0; i < n; i++)
            y[(size_t)r * n + i] =
                w[i] * x[(size_t)r * n + i] / sqrt(sum / n + eps);
    }
    free(w);
    return y;
}

/* Rotates the pairs (i, i + d/2) of a head by angle[i]. */
static inline void ref_rotate(double *x, uint32_t d, const double *angle)
{
    for (uint32_t i = 0; i < d / 2; i++) {
        const double a = x[i], b = x[i + d / 2];
        x[i] = a * cos(angle[i]) - b * sin(angle[i]);
        x[i + d / 2] = b * cos(angle[i]) + a * sin(angle[i]);
    }
}

static inline void ref_attend(double *out, const double *q, const double *k,
                              const double *v, uint32_t keys, uint32_t stride,
                              uint32_t d)
{
    double *p = doubles(keys), most = -INFINITY, sum = 0;

    for (uint32_t j = 0; j < keys; j++) {
        for (uint32_t i = 0; i < d; i++)
            p[j] += q[i] * k[(size_t)j * stride + i];
        p[j] /= sqrt(d);
        most = fmax(most, p[j]);
    }
    for (uint32_t j = 0; j < keys; j++)
        sum += p[j] = exp(p[j] - most);
    for (uint32_t i = 0; i < d; i++) {
        out[i] = 0;
        for (uint32_t j = 0; j < keys; j++)
            out[i] += p[j] / sum * v[(size_t)j * stride + i];
    }
    free(p);
}

static inline void ref_add(double *x, double *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] += y[i];
    free(y);
}

static inline double *ref_swiglu(const double *x, uint32_t rows,
                                 const struct ocr_tensor *gate,
                                 const struct ocr_tensor *up,
                                 const struct ocr_tensor *down)
{
    double *g = ref_linear(x, rows, gate), *u = ref_linear(x, rows, up), *y;

    for (size_t i = 0; i < (size_t)rows * gate->rows; i++)
        g[i] = g[i] / (1 + exp(-g[i])) * u[i];
    y = ref_linear(g, rows, down);
    free(g);
    free(u);
    return y;
}

/* As the reference makes them, rounded to float. */
static inline double ref_angle(double position, uint32_t i, uint32_t d,
                               float theta)
{
    const float power =
        (float)pow((double)theta, (double)((float)(2 * i) / (float)d));
    const float frequency = 1.0f / power;

    return (double)((float)position * frequency);
}

static inline void ref_vision_layer(const struct ocr_vision *v,
                                    const struct ocr_vision_layer *l, double *x,
                                    uint32_t columns, uint32_t n)
{
    const uint32_t h = v->hidden, d = v->head_dim, w = v->heads * d;
    double *a = ref_norm(x, n, h, &l->attention_norm, (double)v->norm_eps);
    double *q = ref_linear(a, n, &l->q), *k = ref_linear(a, n, &l->k);
    double *val = ref_linear(a, n, &l->v), *o = doubles((size_t)n * w);
    double *angle = doubles(d / 2);

    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t i = 0; i < d / 4; i++) {
            angle[i] = ref_angle(t / columns, 2 * i, d, v->rope_theta);
            angle[d / 4 + i] =
                ref_angle(t % columns, 2 * i + 1, d, v->rope_theta);
        }
        for (uint32_t j = 0; j < v->heads; j++) {
            ref_rotate(q + (size_t)t * w + j * d, d, angle);
            ref_rotate(k + (size_t)t * w + j * d, d, angle);
        }
    }
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t j = 0; j < v->heads; j++)
            ref_attend(o + (size_t)t * w + j * d, q + (size_t)t * w + j * d,
                       k + j * d, val + j * d, n, w, d);
    ref_add(x, ref_linear(o, n, &l->o), (size_t)n * h);
    free(a);
    a = ref_norm(x, n, h, &l->ffn_norm, (double)v->norm_eps);
    ref_add(x, ref_swiglu(a, n, &l->gate, &l->up, &l->down), (size_t)n * h);
    free(a);
    free(q);
    free(k);
    free(val);
    free(o);
    free(angle);
}

static inline double *ref_patches(const struct ocr_model *m, const uint8_t *rgb,
                                  uint32_t width, uint32_t height)
{
    const uint32_t p = m->vision.patch, columns = width / p;
    const uint32_t n = columns * (height / p);
    double *in = doubles((size_t)n * 3 * p * p), *e, *x;

    for (uint32_t t = 0; t < n; t++)
        for (uint32_t c = 0; c < 3; c++)
            for (uint32_t y = 0; y < p; y++)
                for (uint32_t i = 0; i < p; i++) {
                    const size_t at = ((size_t)(t / columns * p + y) * width +
                                       t % columns * p + i) *
                                          3 +
                                      c;
                    in[(((size_t)t * 3 + c) * p + y) * p + i] =
                        (rgb[at] / 255.0 - (double)m->image_mean[c]) /
                        (double)m->image_std[c];
                }
    e = ref_linear(in, n, &m->vision.patch_conv);
    x = ref_norm(e, n, m->vision.hidden, &m->vision.ln_pre,
                 (double)m->vision.norm_eps);
    free(in);
    free(e);
    return x;
}

/* Features [tokens][hidden]. */
static inline double *ref_encode(const struct ocr_model *m, const uint8_t *rgb,
                                 uint32_t width, uint32_t height)
{
    const uint32_t h = m->vision.hidden, columns = width / m->vision.patch;
    const uint32_t lines = height / m->vision.patch, n = columns * lines;
    const uint32_t tokens = columns / 2 * (lines / 2);
    double *x = ref_patches(m, rgb, width, height), *z, *merged, *y;

    for (uint32_t i = 0; i < m->vision.layers; i++)
        ref_vision_layer(&m->vision, &m->vision.layer[i], x, columns, n);
    z = ref_norm(x, n, h, &m->projector.norm, (double)m->projector.norm_eps);
    merged = doubles((size_t)tokens * 4 * h);
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t c = 0; c < h; c++)
            for (uint32_t dy = 0; dy < 2; dy++)
                for (uint32_t dx = 0; dx < 2; dx++)
                    merged[(size_t)t * 4 * h + 4 * c + 2 * dy + dx] =
                        z[((size_t)(t / (columns / 2) * 2 + dy) * columns +
                           t % (columns / 2) * 2 + dx) *
                              h +
                          c];
    free(x);
    x = ref_linear(merged, tokens, &m->projector.merging);
    y = ref_linear(x, tokens, &m->projector.linear_1);
    for (size_t i = 0; i < (size_t)tokens * m->text.hidden; i++)
        y[i] = y[i] / 2 * (1 + erf(y[i] / sqrt(2)));
    free(x);
    x = ref_linear(y, tokens, &m->projector.linear_2);
    free(y);
    free(z);
    free(merged);
    return x;
}

static inline void ref_text_layer(const struct ocr_text *t,
                                  const struct ocr_text_layer *l, double *x,
                                  uint32_t n)
{
    const uint32_t h = t->hidden, d = t->head_dim;
    const uint32_t w = t->heads * d, kw = t->kv_heads * d;
    double *a = ref_norm(x, n, h, &l->input_norm, (double)t->norm_eps);
    double *q0 = ref_linear(a, n, &l->q), *k0 = ref_linear(a, n, &l->k);
    double *q = ref_norm(q0, n * t->heads, d, &l->q_norm, (double)t->norm_eps);
    double *k =
        ref_norm(k0, n * t->kv_heads, d, &l->k_norm, (double)t->norm_eps);
    double *v = ref_linear(a, n, &l->v), *o = doubles((size_t)n * w);
    double *angle = doubles(d / 2);

    for (uint32_t p = 0; p < n; p++) {
        for (uint32_t i = 0; i < d / 2; i++)
            angle[i] = ref_angle(p, i, d, t->rope_theta);
        for (uint32_t j = 0; j < t->heads; j++)
            ref_rotate(q + (size_t)p * w + j * d, d, angle);
        for (uint32_t j = 0; j < t->kv_heads; j++)
            ref_rotate(k + (size_t)p * kw + j * d, d, angle);
    }
    for (uint32_t p = 0; p < n; p++)
        for (uint32_t j = 0; j < t->heads; j++) {
            const uint32_t kv = j / (t->heads / t->kv_heads);
            ref_attend(o + (size_t)p * w + j * d, q + (size_t)p * w + j * d,
                       k + kv * d, v + kv * d, p + 1, kw, d);
        }
    ref_add(x, ref_linear(o, n, &l->o), (size_t)n * h);
    free(a);
    a = ref_norm(x, n, h, &l->post_norm, (double)t->norm_eps);
    ref_add(x, ref_swiglu(a, n, &l->gate, &l->up, &l->down), (size_t)n * h);
    free(a);
    free(q0);
    free(k0);
    free(q);
    free(k);
    free(v);
    free(o);
    free(angle);
}

/* Logits [n][vocab] of a sequence whose image tokens are `features`. */
static inline double *ref_logits(const struct ocr_model *m, const uint32_t *ids,
                                 uint32_t n, const double *features)
{
    const uint32_t h = m->text.hidden;
    double *x = doubles((size_t)n * h), *y, *logits;
    float *row = (float *)malloc(h * sizeof *row);

    for (uint32_t i = 0; i < n; i++) {
        ocr_tensor_row(&m->text.embedding, ids[i], row);
        for (uint32_t j = 0; j < h; j++)
            x[(size_t)i * h + j] =
                ids[i] == m->image_token ? *features++ : (double)row[j];
    }
    for (uint32_t i = 0; i < m->text.layers; i++)
        ref_text_layer(&m->text, &m->text.layer[i], x, n);
    y = ref_norm(x, n, h, &m->text.norm, (double)m->text.norm_eps);
    logits = ref_linear(y, n, &m->text.head);
    free(x);
    free(y);
    free(row);
    return logits;
}

/* |a - b| / |b| over n numbers. */
static inline double relative_l2(const float *a, const double *b, size_t n)
{
    double error = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(error / size);
}

/* Pages and the backend. */

enum {
    PAGE_PROMPT = 1024,
    PAGE_IDS = 256,
};

struct page {
    uint64_t id;
    uint32_t width, height;
    uint8_t *rgb;
    uint32_t prompt[PAGE_PROMPT], prompt_len;
    uint32_t ids[PAGE_IDS], count; /* what was read */
    uint64_t hashes[PAGE_IDS];
    bool done, stopped, failed;
    char sentence[160];
};

/* A page of noise, columns x lines patches, between text tokens. */
static inline void page_init(struct page *p, const struct ocr_model *m,
                             uint64_t id, uint32_t columns, uint32_t lines)
{
    const uint32_t tokens = columns / 2 * (lines / 2), vocab = m->text.vocab;

    *p = (struct page){.id = id,
                       .width = columns * m->vision.patch,
                       .height = lines * m->vision.patch};
    p->rgb = (uint8_t *)malloc((size_t)p->width * p->height * 3);
    for (size_t i = 0; i < (size_t)p->width * p->height * 3; i++)
        p->rgb[i] = (uint8_t)(random_word(id * 1000003 + i) >> 32);
    assert_true(tokens + 8 <= PAGE_PROMPT);
    for (uint32_t i = 0; i < tokens + 8; i++) {
        uint32_t text = (uint32_t)(random_word(id * 77 + i) % vocab);
        if (text == m->image_token)
            text++;
        p->prompt[p->prompt_len++] =
            i >= 3 && i < tokens + 3 ? m->image_token : text;
    }
}

static inline void page_release(struct page *p)
{
    free(p->rgb);
}

static inline struct ocr_backend *backend_open(const struct ocr_model *m,
                                               enum ocr_precision precision,
                                               unsigned threads, unsigned slots,
                                               struct ocr_backend_plan *plan)
{
    const struct ocr_backend_config config = {
        .device = device_name(),
        .precision = precision,
        .threads = threads,
        .slots = slots,
        .max_patches = 2048,
        .prompt_tokens = PAGE_PROMPT < m->text.max_positions
                             ? PAGE_PROMPT
                             : m->text.max_positions / 2,
        .max_tokens = PAGE_IDS,
    };
    struct ocr_backend *b = NULL;
    struct ocr_err err = OCR_ERR_INIT;

    if (device_ops(device_name())->open(&b, &config, m, plan, &err))
        fail_msg("%s", err.text);
    return b;
}

static inline void take_event(struct page *p, const struct ocr_event *e)
{
    for (uint32_t i = 0; i < e->count; i++) {
        p->hashes[p->count] = e->hashes[i];
        p->ids[p->count++] = e->ids[i];
    }
    if (e->type == OCR_EVENT_DONE) {
        p->done = true;
        p->stopped = e->stopped;
    }
    if (e->type == OCR_EVENT_FAILED) {
        p->done = p->failed = true;
        memcpy(p->sentence, e->sentence, sizeof p->sentence);
    }
}

/* Takes events until one of `type` with this ticket came; gives each to the
 * page that it names. */
static inline struct ocr_event await(struct ocr_backend *b, uint64_t ticket,
                                     enum ocr_event_type type,
                                     struct page *const *pages, unsigned count)
{
    struct ocr_event e;

    for (;;) {
        assert_int_equal(device_ops(device_name())->poll(b, &e, 1, 60000), 1);
        for (unsigned i = 0; i < count; i++)
            if (pages[i]->id == e.page)
                take_event(pages[i], &e);
        if (e.ticket == ticket &&
            (e.type == type ||
             (e.type == OCR_EVENT_FAILED && type != OCR_EVENT_STEP)))
            return e;
    }
}

#define OK(call)                                                               \
    do {                                                                       \
        struct ocr_err err_ = OCR_ERR_INIT;                                    \
        struct ocr_err *err = &err_;                                           \
        if (call)                                                              \
            fail_msg("%s", err_.text);                                         \
    } while (0)

/* Opens the page in a slot with blocks that stride through the pool, encodes
 * it and reads its prompt in chunks of `chunk`. */
static inline void page_start(struct ocr_backend *b,
                              const struct ocr_backend_plan *plan,
                              struct page *p, unsigned slot,
                              const struct ocr_slot_config *how, uint32_t chunk)
{
    struct ocr_slot_config c = *how;
    uint32_t *table;

    c.page = p->id;
    c.prompt = p->prompt;
    c.prompt_len = p->prompt_len;
    OK(device_ops(device_name())->slot_open(b, slot, &c, err));
    table = device_ops(device_name())->block_table(b, slot);
    for (uint32_t i = 0; i < plan->slot_blocks; i++)
        table[i] = (i * plan->slots + slot) % plan->blocks;
    OK(device_ops(device_name())
           ->submit_encode(b, 100 + slot, p->id, p->rgb, p->width, p->height,
                           err));
    await(b, 100 + slot, OCR_EVENT_ENCODED, &p, 1);
    for (uint32_t at = 0; at < p->prompt_len; at += chunk) {
        const uint32_t n =
            p->prompt_len - at < chunk ? p->prompt_len - at : chunk;
        OK(device_ops(device_name())
               ->submit_prefill(b, 200 + slot, slot, at, n, err));
        await(b, 200 + slot, OCR_EVENT_PREFILLED, &p, 1);
    }
}

/* Decodes until all pages are done. */
static inline void pages_finish(struct ocr_backend *b, struct page *const *p,
                                const unsigned *slots, unsigned count,
                                unsigned steps)
{
    for (;;) {
        unsigned done = 0;

        OK(device_ops(device_name())
               ->submit_decode(b, 1, slots, count, steps, err));
        await(b, 1, OCR_EVENT_STEP, p, count);
        for (unsigned i = 0; i < count; i++)
            done += p[i]->done;
        if (done == count)
            return;
    }
}

#endif
