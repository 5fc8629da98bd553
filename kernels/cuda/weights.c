#include "kernels/cuda/cuda_i.h"
#include "kernels/gpu_trouble.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    HALF_BYTES = CUDA_STAGE_PIXELS / CUDA_STAGE_HALVES,
    GROUP = 8 /* rows of gate, then as many of up */
};

/* A matrix of the device as the model's files have it. */
struct source {
    const struct ocr_tensor *part[3]; /* rows one below the other */
    bool interleave;                  /* groups of rows in turn */
    uint32_t unfold; /* columns channel * n + i become i * channels + channel */
    uint32_t cols;   /* with zeros behind; 0: the parts' */
};

/* While one half of the stage is on its way, the other is filled. */
struct sender {
    struct ocr_backend *b;
    const struct ocr_model *model;
    uint64_t used; /* bytes of the region */
    unsigned half;
    cudaEvent_t sent[CUDA_STAGE_HALVES];
    float *row;
    bool overflow;
    int code;
};

static uint16_t to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 64);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* To the nearest, ties to even; what is too large becomes infinite. */
static uint16_t to_fp16(float x)
{
    const float most = 65504, size = fabsf(x);
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    uint32_t u;
    int exponent;

    if (!(size < 65520)) /* half way to the next power of two */
        return sign | (size == size ? 0x7c00 : 0x7e00);
    if (size > most)
        return sign | 0x7bff;
    if (size < 0x1p-14f) /* below the normal numbers: units of 2^-24 */
        return sign | (uint16_t)lrintf(size * 0x1p24f);
    memcpy(&u, &size, sizeof u);
    exponent = (int)(u >> 23) - 127;
    u = (u & 0x7fffff) | (uint32_t)(exponent + 15) << 23;
    return sign | (uint16_t)((u + 0xfff + (u >> 13 & 1)) >> 13);
}

static uint16_t round_to(struct sender *s, float x)
{
    if (s->b->half == OCR_HALF_BF16)
        return to_bf16(x);
    s->overflow = s->overflow || fabsf(x) >= 65520;
    return to_fp16(x);
}

static const struct ocr_tensor *find_row(const struct source *from,
                                         uint32_t row, uint32_t *at)
{
    if (from->interleave) {
        *at = row / (2 * GROUP) * GROUP + row % GROUP;
        return from->part[row / GROUP % 2];
    }
    *at = row;
    for (int i = 0;; i++) {
        if (*at < from->part[i]->rows)
            return from->part[i];
        *at -= from->part[i]->rows;
    }
}

static void fill_row(struct sender *s, const struct source *from, uint32_t row,
                     uint32_t cols, uint16_t *out)
{
    uint32_t at;
    const struct ocr_tensor *t = find_row(from, row, &at);
    const uint32_t fold = from->unfold ? from->unfold : 1;
    const uint32_t channels = t->cols / fold;

    if (t->dtype == OCR_DTYPE_BF16 && s->b->half == OCR_HALF_BF16 &&
        fold == 1) {
        memcpy(out, t->data + (size_t)at * t->cols * 2, (size_t)t->cols * 2);
    } else {
        ocr_tensor_row(t, at, s->row);
        for (uint32_t c = 0; c < t->cols; c++)
            out[c % fold * channels + c / fold] = round_to(s, s->row[c]);
    }
    memset(out + t->cols, 0, (size_t)(cols - t->cols) * 2);
}

/* The half that is free next. */
static char *stage(struct sender *s)
{
    s->half = (s->half + 1) % CUDA_STAGE_HALVES;
    if (!s->code)
        s->code = (int)cudaEventSynchronize(s->sent[s->half]);
    return s->b->stage + (size_t)s->half * HALF_BYTES;
}

static void send(struct sender *s, char *to, const char *from, size_t bytes)
{
    if (!s->code)
        s->code = (int)cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice,
                                       s->b->page_stream);
    if (!s->code)
        s->code = (int)cudaEventRecord(s->sent[s->half], s->b->page_stream);
}

static char *take(struct sender *s, uint64_t bytes)
{
    char *p = (char *)cuda_at(s->b, CUDA_WEIGHTS) + s->used;

    s->used += cuda_align(bytes);
    return p;
}

static const float *vector(struct sender *s, const struct ocr_tensor *t)
{
    const size_t bytes = t->cols * sizeof(float);
    char *to = take(s, bytes), *from = stage(s);

    ocr_tensor_row(t, 0, s->row);
    memcpy(from, s->row, bytes);
    send(s, to, from, bytes);
    return (const float *)(const void *)to;
}

static const uint16_t *matrix(struct sender *s, struct source from)
{
    const uint32_t cols = from.cols ? from.cols : from.part[0]->cols;
    const uint32_t most = HALF_BYTES / 2 / cols;
    uint32_t rows = 0;
    char *to;

    for (int i = 0; i < 3 && from.part[i]; i++)
        rows += from.part[i]->rows;
    to = take(s, (uint64_t)rows * cols * 2);
    for (uint32_t first = 0; first < rows && !s->code; first += most) {
        const uint32_t count = rows - first < most ? rows - first : most;
        char *half = stage(s);

        for (uint32_t r = 0; r < count; r++)
            fill_row(s, &from, first + r, cols,
                     (uint16_t *)(void *)half + (size_t)r * cols);
        send(s, to + (size_t)first * cols * 2, half, (size_t)count * cols * 2);
    }
    for (int i = 0; s->model->forget && i < 3 && from.part[i]; i++)
        s->model->forget(from.part[i]);
    return (const uint16_t *)(const void *)to;
}

static void send_page_layer(struct sender *s, struct cuda_page_layer *to,
                            const struct ocr_vision_layer *l)
{
    to->attention_norm = vector(s, &l->attention_norm);
    to->ffn_norm = vector(s, &l->ffn_norm);
    to->qkv = matrix(s, (struct source){.part = {&l->q, &l->k, &l->v}});
    to->o = matrix(s, (struct source){.part = {&l->o}});
    to->gate_up = matrix(
        s, (struct source){.part = {&l->gate, &l->up}, .interleave = true});
    to->down = matrix(s, (struct source){.part = {&l->down}});
}

static void send_text_layer(struct sender *s, struct cuda_text_layer *to,
                            const struct ocr_text_layer *l)
{
    to->input_norm = vector(s, &l->input_norm);
    to->post_norm = vector(s, &l->post_norm);
    to->q_norm = vector(s, &l->q_norm);
    to->k_norm = vector(s, &l->k_norm);
    to->qkv = matrix(s, (struct source){.part = {&l->q, &l->k, &l->v}});
    to->o = matrix(s, (struct source){.part = {&l->o}});
    to->gate_up = matrix(
        s, (struct source){.part = {&l->gate, &l->up}, .interleave = true});
    to->down = matrix(s, (struct source){.part = {&l->down}});
}

static void send_all(struct sender *s, struct cuda_weights *w)
{
    const struct ocr_model *m = s->model;
    const struct ocr_projector *p = &m->projector;

    for (uint32_t i = 0; i < m->vision.layers; i++)
        send_page_layer(s, &w->vision[i], &m->vision.layer[i]);
    for (uint32_t i = 0; i < m->text.layers; i++)
        send_text_layer(s, &w->text[i], &m->text.layer[i]);
    w->ln_pre = vector(s, &m->vision.ln_pre);
    w->projector_norm = vector(s, &p->norm);
    w->text_norm = vector(s, &m->text.norm);
    w->patch_conv = matrix(s, (struct source){.part = {&m->vision.patch_conv},
                                              .cols = CUDA_PATCH_COLUMNS});
    w->merging = matrix(s, (struct source){.part = {&p->merging},
                                           .unfold = p->merge * p->merge});
    w->linear_1 = matrix(s, (struct source){.part = {&p->linear_1}});
    w->linear_2 = matrix(s, (struct source){.part = {&p->linear_2}});
    w->embedding = matrix(s, (struct source){.part = {&m->text.embedding}});
    w->head = m->text.head.data == m->text.embedding.data
                  ? w->embedding
                  : matrix(s, (struct source){.part = {&m->text.head}});
}

static uint32_t longest_row(const struct ocr_model *m)
{
    const uint32_t columns[] = {
        m->projector.merge * m->projector.merge * m->vision.hidden,
        m->vision.intermediate,
        m->text.intermediate,
        m->text.heads * m->text.head_dim,
        m->text.hidden,
        CUDA_PATCH_COLUMNS,
    };
    uint32_t most = 0;

    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        most = columns[i] > most ? columns[i] : most;
    return most;
}

int cuda_weights_send(struct ocr_backend *b, const struct ocr_model *model,
                      struct ocr_err *err)
{
    struct sender s = {.b = b, .model = model};

    b->weights.vision = calloc(model->vision.layers, sizeof *b->weights.vision);
    b->weights.text = calloc(model->text.layers, sizeof *b->weights.text);
    s.row = calloc(longest_row(model), sizeof *s.row);
    if (!b->weights.vision || !b->weights.text || !s.row) {
        free(s.row);
        return ocr_err_set(err, -ENOMEM, "cuda: no memory for lists");
    }
    for (int i = 0; i < CUDA_STAGE_HALVES && !s.code; i++)
        s.code =
            (int)cudaEventCreateWithFlags(&s.sent[i], cudaEventDisableTiming);
    send_all(&s, &b->weights);
    if (!s.code)
        s.code = (int)cudaStreamSynchronize(b->page_stream);
    for (int i = 0; i < CUDA_STAGE_HALVES; i++)
        if (s.sent[i])
            cudaEventDestroy(s.sent[i]);
    free(s.row);
    if (s.code)
        return ocr_gpu_err(err, s.code, "cuda: weights", "they were not sent");
    if (s.overflow)
        return ocr_err_set(err, -ERANGE,
                           "cuda: weights of this model are too large for "
                           "precision=fp16");
    return 0;
}
