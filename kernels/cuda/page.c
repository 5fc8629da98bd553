#include "kernels/cuda/cuda_i.h"

#include <stdlib.h>
#include <string.h>

/* ---- ops in a row ------------------------------------------------------- */

static void multiply(struct cuda_run *r, float *y, const uint16_t *x,
                     const uint16_t *w, uint32_t rows, uint32_t n, uint32_t k,
                     bool add)
{
    struct ocr_backend *b = r->b;

    if (!r->code && cuda_product(b->products, b->page_stream, y, x, w, rows, n,
                                 k, add, &r->err))
        r->code = -1;
}

static bool is_cancelled(struct cuda_run *r)
{
    if (r->slot && !r->code &&
        (atomic_load(&r->slot->cancelled) || cuda_stopping(r->b)))
        r->cancelled = true;
    return r->cancelled;
}

/* Before a layer: not too many are on the way, so that a page that is not
 * wanted any more ends soon. False: it ends here. */
static bool begin_layer(struct cuda_run *r, uint32_t layer)
{
    if (layer >= CUDA_AHEAD)
        CUDA_RUN(r, cudaEventSynchronize(r->b->layer_done[layer % CUDA_AHEAD]));
    return !r->code && !is_cancelled(r);
}

static void tap_layer(struct cuda_run *r, unsigned number, uint32_t first,
                      uint32_t rows, uint32_t hidden)
{
    struct ocr_backend *b = r->b;

    if (b->taps.layer && r->slot && !r->code)
        cuda_tap_layer(b, r->slot, number, cuda_at(b, CUDA_X), first, rows,
                       hidden, b->page_stream);
}

static void end_layer(struct cuda_run *r, uint32_t layer)
{
    CUDA_RUN(r, cudaEventRecord(r->b->layer_done[layer % CUDA_AHEAD],
                                r->b->page_stream));
}

/* ---- vision ------------------------------------------------------------- */

struct page {
    uint32_t lines, columns, patches;
    float *x, *wide;
    uint16_t *a, *h;
};

static void page_attention(struct cuda_run *r, const struct page *p,
                           const struct cuda_page_layer *l)
{
    const struct ocr_backend *b = r->b;
    const struct ocr_vision *v = &b->vision;
    const uint32_t width = v->heads * CUDA_VISION_DIM;
    const size_t part = (size_t)p->patches * width;
    const float *rope = cuda_at(b, CUDA_PAGE_ROPE);
    const float *sine = rope + b->memory.bytes[CUDA_PAGE_ROPE] / 8;
    uint16_t *q = p->h, *k = q + part, *w = k + part;

    CUDA_RUN(r, cuda_rmsnorm(b->page_stream, b->half, p->a, p->x,
                             l->attention_norm, p->patches, v->hidden,
                             v->norm_eps));
    multiply(r, p->wide, p->a, l->qkv, p->patches, 3 * width, v->hidden, false);
    CUDA_RUN(r, cuda_vision_split(b->page_stream, b->half, q, k, w, p->wide,
                                  rope, sine, v->grid, p->patches, p->columns,
                                  v->heads));
    CUDA_RUN(r, cuda_vision_attention(b->page_stream, b->half, p->a, q, k, w,
                                      p->patches, v->heads));
    multiply(r, p->x, p->a, l->o, p->patches, v->hidden, width, true);
}

static void page_inner(struct cuda_run *r, const struct page *p,
                       const struct cuda_page_layer *l)
{
    const struct ocr_backend *b = r->b;
    const struct ocr_vision *v = &b->vision;

    CUDA_RUN(r, cuda_rmsnorm(b->page_stream, b->half, p->a, p->x, l->ffn_norm,
                             p->patches, v->hidden, v->norm_eps));
    multiply(r, p->wide, p->a, l->gate_up, p->patches, 2 * v->intermediate,
             v->hidden, false);
    CUDA_RUN(r, cuda_swiglu(b->page_stream, b->half, p->h, p->wide, p->patches,
                            v->intermediate));
    multiply(r, p->x, p->h, l->down, p->patches, v->hidden, v->intermediate,
             true);
}

static void embed_patches(struct cuda_run *r, const struct page *p)
{
    const struct ocr_backend *b = r->b;
    const struct ocr_vision *v = &b->vision;

    CUDA_RUN(r,
             cuda_patches(b->page_stream, b->half, p->a, cuda_at(b, CUDA_RGB),
                          cuda_at(b, CUDA_PIXELS), p->lines, p->columns));
    multiply(r, p->x, p->a, b->weights.patch_conv, p->patches, v->hidden,
             CUDA_PATCH_COLUMNS, false);
    CUDA_RUN(r, cuda_rmsnorm32(b->page_stream, p->x, p->x, b->weights.ln_pre,
                               p->patches, v->hidden, v->norm_eps));
}

static void project(struct cuda_run *r, const struct page *p, float *features)
{
    const struct ocr_backend *b = r->b;
    const uint32_t n = b->vision.hidden, out = b->text.hidden;
    const uint32_t tokens = p->lines / b->merge * (p->columns / b->merge);

    CUDA_RUN(r, cuda_merge(b->page_stream, b->half, p->a, p->x,
                           b->weights.projector_norm, p->lines, p->columns, n,
                           b->projector_eps));
    multiply(r, p->wide, p->a, b->weights.merging, tokens, n,
             b->merge * b->merge * n, false);
    CUDA_RUN(r, cuda_round(b->page_stream, b->half, p->h, p->wide,
                           (uint64_t)tokens * n));
    multiply(r, p->wide, p->h, b->weights.linear_1, tokens, out, n, false);
    CUDA_RUN(r, cuda_gelu(b->page_stream, b->half, p->h, p->wide,
                          (uint64_t)tokens * out));
    multiply(r, features, p->h, b->weights.linear_2, tokens, out, out, false);
}

void cuda_encode(struct cuda_run *r, uint32_t lines, uint32_t columns,
                 float *features)
{
    const struct ocr_backend *b = r->b;
    const struct page p = {.lines = lines,
                           .columns = columns,
                           .patches = lines * columns,
                           .x = cuda_at(b, CUDA_X),
                           .wide = cuda_at(b, CUDA_WIDE),
                           .a = cuda_at(b, CUDA_ROWS_A),
                           .h = cuda_at(b, CUDA_ROWS_H)};

    embed_patches(r, &p);
    tap_layer(r, OCR_TAP_PATCHES, 0, p.patches, b->vision.hidden);
    for (uint32_t i = 0; i < b->vision.layers; i++) {
        if (!begin_layer(r, i))
            return;
        page_attention(r, &p, &b->weights.vision[i]);
        page_inner(r, &p, &b->weights.vision[i]);
        end_layer(r, i);
        tap_layer(r, i, 0, p.patches, b->vision.hidden);
    }
    project(r, &p, features);
}

/* ---- prefill ------------------------------------------------------------ */

static struct cuda_prefill prefill_of(const struct ocr_backend *b,
                                      const uint32_t *table, uint32_t first,
                                      uint32_t rows)
{
    return (struct cuda_prefill){.kv = b->step.kv,
                                 .heads = b->text.heads,
                                 .first = first,
                                 .rows = rows,
                                 .table = table,
                                 .cosine = b->step.cosine,
                                 .sine = b->step.sine,
                                 .eps = b->text.norm_eps};
}

static void text_attention(struct cuda_run *r, struct cuda_prefill *p,
                           uint32_t layer)
{
    const struct ocr_backend *b = r->b;
    const struct cuda_text_layer *l = &b->weights.text[layer];
    const uint32_t width = b->text.heads * CUDA_TEXT_DIM;
    const uint32_t all = width + 2 * b->text.kv_heads * CUDA_TEXT_DIM;
    float *x = cuda_at(b, CUDA_X), *wide = cuda_at(b, CUDA_WIDE);
    uint16_t *a = cuda_at(b, CUDA_ROWS_A), *q = cuda_at(b, CUDA_ROWS_H);

    p->layer = layer;
    p->q_norm = l->q_norm;
    p->k_norm = l->k_norm;
    CUDA_RUN(r, cuda_rmsnorm(b->page_stream, b->half, a, x, l->input_norm,
                             p->rows, b->text.hidden, p->eps));
    multiply(r, wide, a, l->qkv, p->rows, all, b->text.hidden, false);
    CUDA_RUN(r, cuda_text_split(b->page_stream, b->half, p, q, wide));
    CUDA_RUN(r, cuda_prefill_attention(b->page_stream, b->half, p, a, q));
    multiply(r, x, a, l->o, p->rows, b->text.hidden, width, true);
}

static void text_inner(struct cuda_run *r, uint32_t layer, uint32_t rows)
{
    const struct ocr_backend *b = r->b;
    const struct cuda_text_layer *l = &b->weights.text[layer];
    const uint32_t n = b->text.hidden, inner = b->text.intermediate;
    float *x = cuda_at(b, CUDA_X), *wide = cuda_at(b, CUDA_WIDE);
    uint16_t *a = cuda_at(b, CUDA_ROWS_A), *h = cuda_at(b, CUDA_ROWS_H);

    CUDA_RUN(r, cuda_rmsnorm(b->page_stream, b->half, a, x, l->post_norm, rows,
                             n, b->text.norm_eps));
    multiply(r, wide, a, l->gate_up, rows, 2 * inner, n, false);
    CUDA_RUN(r, cuda_swiglu(b->page_stream, b->half, h, wide, rows, inner));
    multiply(r, x, h, l->down, rows, n, inner, true);
}

void cuda_prefill(struct cuda_run *r, const uint32_t *table, uint32_t first,
                  uint32_t rows, const float *features)
{
    const struct ocr_backend *b = r->b;
    const uint32_t n = b->text.hidden;
    struct cuda_prefill p = prefill_of(b, table, first, rows);
    float *x = cuda_at(b, CUDA_X);

    CUDA_RUN(r, cuda_embed(b->page_stream, b->half, x, cuda_at(b, CUDA_SOURCE),
                           b->weights.embedding, features, rows, n));
    if (r->poison) /* all bits set are a NaN */
        CUDA_RUN(r, cudaMemsetAsync(x + (size_t)(rows - 1) * n, 0xff, sizeof *x,
                                    b->page_stream));
    for (uint32_t i = 0; i < b->text.layers; i++) {
        if (!begin_layer(r, i))
            return;
        text_attention(r, &p, i);
        text_inner(r, i, rows);
        end_layer(r, i);
        tap_layer(r, OCR_TAP_TEXT + i, first, rows, n);
    }
}

/* ---- a page, encoded ---------------------------------------------------- */

static float *features_of(const struct ocr_backend *b,
                          const struct cuda_page_slot *s)
{
    char *all = cuda_at(b, CUDA_FEATURES);

    return (float *)(void *)(all + b->memory.bytes[CUDA_FEATURES] /
                                       b->memory.slots *
                                       cuda_slot_number(b, s));
}

/* True if the page cannot go on: its event is out. */
static bool is_over(struct ocr_backend *b, const struct cuda_page_work *w,
                    struct cuda_page_slot *s)
{
    if (cuda_misbehave(b, w->ticket, s))
        return true;
    if (atomic_load(&s->cancelled))
        cuda_fail(b, w->ticket, s, "cancelled");
    else if (s->failed)
        cuda_fail(b, w->ticket, s, "the page failed before");
    else
        return false;
    return true;
}

/* Waits for what r put on the stream. True if it went well, else the event is
 * out. */
static bool finish(struct cuda_run *r, const struct cuda_page_work *w)
{
    struct ocr_backend *b = r->b;

    int code = r->code > 0 ? r->code : 0;

    if (!code)
        code = (int)cudaEventRecord(b->page_done, b->page_stream);
    if (!code)
        code = (int)cudaEventSynchronize(b->page_done);
    if (code)
        r->code = code;
    if (r->code > 0)
        cuda_lose(b, w->ticket, r->code, NULL);
    else if (r->code < 0)
        cuda_fail(b, w->ticket, r->slot, "%s", r->err.text);
    else if (r->cancelled)
        cuda_fail(b, w->ticket, r->slot, "cancelled");
    return !r->code && !r->cancelled;
}

/* While one piece is on its way, the next is copied. */
static void send_pixels(struct cuda_run *r, const struct cuda_page_work *w)
{
    enum {
        PIECE = 1 << 20
    };
    struct ocr_backend *b = r->b;
    const size_t bytes = (size_t)w->width * w->height * 3;
    char *to = cuda_at(b, CUDA_RGB);

    for (size_t at = 0; at < bytes && !r->code; at += PIECE) {
        const size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        char *from = b->stage + at % CUDA_STAGE_PIXELS;

        if (at && at % CUDA_STAGE_PIXELS == 0)
            CUDA_RUN(r, cudaStreamSynchronize(b->page_stream));
        memcpy(from, w->rgb + at, n);
        CUDA_RUN(r, cudaMemcpyAsync(to + at, from, n, cudaMemcpyHostToDevice,
                                    b->page_stream));
    }
}

static void tap_features(struct ocr_backend *b, const struct cuda_page_slot *s,
                         const float *features)
{
    const size_t n = (size_t)s->image_tokens * b->text.hidden;
    float *copy = cuda_copy_back(features, n, b->page_stream);

    if (copy) {
        pthread_mutex_lock(&b->tap_lock);
        b->taps.features(b->taps.arg, s->config.page, copy, s->image_tokens,
                         b->text.hidden);
        pthread_mutex_unlock(&b->tap_lock);
    }
    free(copy);
}

static void run_encode(struct ocr_backend *b, const struct cuda_page_work *w)
{
    struct cuda_page_slot *s = &b->slot[w->slot];
    const struct ocr_event e = cuda_event(b, w->ticket, s, OCR_EVENT_ENCODED);
    struct cuda_run r = {.b = b, .slot = s};
    const uint64_t values = (uint64_t)s->image_tokens * b->text.hidden;
    float *features = features_of(b, s);
    uint32_t *flag = cuda_at(b, CUDA_FLAG);
    uint32_t *bad = (uint32_t *)(void *)(b->stage + CUDA_STAGE_PIXELS);

    if (is_over(b, w, s))
        return;
    send_pixels(&r, w);
    CUDA_RUN(&r, cudaMemsetAsync(flag, 0, sizeof *flag, b->page_stream));
    cuda_encode(&r, w->height / CUDA_PATCH, w->width / CUDA_PATCH, features);
    CUDA_RUN(&r, cuda_finite(b->page_stream, flag, features, values));
    CUDA_RUN(&r, cudaMemcpyAsync(bad, flag, sizeof *bad, cudaMemcpyDeviceToHost,
                                 b->page_stream));
    if (!finish(&r, w))
        return;
    if (b->taps.features)
        tap_features(b, s, features);
    if (*bad) {
        cuda_fail(b, w->ticket, s, "the features of the page are not finite");
        return;
    }
    s->encoded = true;
    cuda_emit(b, &e);
}

/* ---- a prompt, prefilled ------------------------------------------------ */

/* Copies to the device through the pinned stage, one piece behind the other. */
struct packet {
    struct cuda_run *r;
    char *next;
};

static void send(struct packet *p, void *to, const void *from, size_t bytes)
{
    memcpy(p->next, from, bytes);
    CUDA_RUN(p->r, cudaMemcpyAsync(to, p->next, bytes, cudaMemcpyHostToDevice,
                                   p->r->b->page_stream));
    p->next += cuda_align(bytes);
}

static void send_source(struct packet *p, struct cuda_page_slot *s,
                        uint32_t from, uint32_t count)
{
    const struct ocr_backend *b = p->r->b;
    uint32_t *source = (uint32_t *)(void *)p->next;

    for (uint32_t i = 0; i < count; i++) {
        const uint32_t id = s->config.prompt[from + i];

        source[i] = id == b->image_token && s->image_used < s->image_tokens
                        ? CUDA_FEATURE | s->image_used++
                        : id;
    }
    CUDA_RUN(p->r, cudaMemcpyAsync(cuda_at(b, CUDA_SOURCE), source,
                                   count * sizeof *source,
                                   cudaMemcpyHostToDevice, b->page_stream));
    p->next += cuda_align(count * sizeof *source);
}

static const uint32_t *send_forced(struct packet *p,
                                   const struct cuda_page_slot *s)
{
    const struct ocr_backend *b = p->r->b;
    const struct ocr_slot_config *c = &s->config;
    uint32_t *to = cuda_at(b, CUDA_FORCED);

    if (!c->forced)
        return NULL;
    to += (size_t)b->memory.slot_blocks * OCR_BLOCK_TOKENS *
          cuda_slot_number(b, s);
    send(p, to, c->forced, s->limit * sizeof *to);
    return to;
}

static uint32_t poison_at(const struct ocr_backend *b,
                          const struct cuda_page_slot *s)
{
    return b->taps.fault == OCR_FAULT_NAN && b->taps.fault_at &&
                   b->taps.fault_page == s->config.page
               ? b->taps.fault_at
               : UINT32_MAX;
}

/* All that the first id and the steps behind it need to know of the page. */
static void send_slot(struct packet *p, const struct cuda_page_slot *s)
{
    const struct ocr_backend *b = p->r->b;
    const struct ocr_slot_config *c = &s->config;
    const unsigned number = cuda_slot_number(b, s);
    const size_t words = cuda_seen_words(b->text.vocab);
    struct cuda_slot slot = {
        .status = CUDA_RUNNING,
        .position = c->prompt_len - 1,
        .limit = s->limit,
        .keep = c->forced_length,
        .poison_at = poison_at(b, s),
        .stop_count = c->forced ? 0 : c->stop_count,
        .seed = c->sampler.seed,
        .page_hash = c->sampler.page_hash,
        .temperature = c->sampler.temperature,
        .top_p = c->sampler.top_p,
        .penalty = c->sampler.repetition_penalty > 0
                       ? c->sampler.repetition_penalty
                       : 1,
    };
    uint32_t rows[CUDA_TILE_ROWS];

    memset(rows, 0xff, sizeof rows);
    rows[0] = number;
    memcpy(slot.stop_ids, c->stop_ids, sizeof slot.stop_ids);
    slot.forced = send_forced(p, s);
    send(p, b->step.slot + number, &slot, sizeof slot);
    send(p, cuda_at(b, CUDA_FIRST_ROWS), rows, sizeof rows);
    CUDA_RUN(p->r,
             cudaMemsetAsync(b->step.seen + words * number, 0,
                             words * sizeof *b->step.seen, b->page_stream));
}

static void put_first_id(struct cuda_run *r, uint32_t rows)
{
    struct ocr_backend *b = r->b;
    const size_t n = b->text.hidden;
    const float *x = cuda_at(b, CUDA_X);

    CUDA_RUN(r, cudaMemcpyAsync(b->first.x, x + (rows - 1) * n, n * sizeof *x,
                                cudaMemcpyDeviceToDevice, b->page_stream));
    CUDA_RUN(r, cuda_decode_end(b->page_stream, &b->first, 1));
}

/* What the first id became. */
static void take_first_id(struct ocr_backend *b, const struct cuda_page_work *w,
                          struct cuda_page_slot *s)
{
    struct ocr_event e = cuda_event(b, w->ticket, s, OCR_EVENT_PREFILLED);
    struct ocr_event done = cuda_event(b, w->ticket, s, OCR_EVENT_DONE);
    const struct cuda_out *out = &b->out[cuda_slot_number(b, s) * CUDA_RING];

    s->read = 1;
    s->launched = 0;
    if (b->taps.logits)
        cuda_tap_logits(b, s, s->config.prompt_len, b->first.logits,
                        b->page_stream);
    if (out->status == CUDA_BAD) {
        cuda_fail(b, w->ticket, s, "the logits of the page are not finite");
        return;
    }
    if (out->status != CUDA_STOPPED) {
        e.ids[0] = out->id;
        e.hashes[0] = out->hash;
        e.count = 1;
    }
    done.stopped = out->status == CUDA_STOPPED;
    pthread_mutex_lock(&b->lock);
    s->running = out->status == CUDA_RUNNING;
    pthread_mutex_unlock(&b->lock);
    cuda_emit(b, &e);
    if (out->status != CUDA_RUNNING)
        cuda_emit(b, &done);
}

static void run_prefill(struct ocr_backend *b, const struct cuda_page_work *w)
{
    struct cuda_page_slot *s = &b->slot[w->slot];
    const uint32_t *table =
        b->step.tables + (size_t)b->memory.slot_blocks * w->slot;
    const bool last = w->from + w->count == s->config.prompt_len;
    struct cuda_run r = {.b = b,
                         .slot = s,
                         .poison = b->taps.fault == OCR_FAULT_NAN &&
                                   !b->taps.fault_at &&
                                   b->taps.fault_page == s->config.page};
    struct packet p = {&r, b->stage};
    uint32_t *stage = (uint32_t *)(void *)b->stage;

    if (is_over(b, w, s))
        return;
    if (s->image_tokens && !s->encoded) {
        cuda_fail(b, w->ticket, s, "the page was not encoded");
        return;
    }
    if (!cuda_push_table(b, s, 0, w->from + w->count, b->page_stream, &stage,
                         &r.code)) {
        cuda_fail(b, w->ticket, s, "the page's block table is wrong");
        return;
    }
    p.next += cuda_align((uint64_t)((char *)stage - p.next));
    send_source(&p, s, w->from, w->count);
    if (last)
        send_slot(&p, s);
    cuda_prefill(&r, table, w->from, w->count, features_of(b, s));
    if (last && !r.cancelled)
        put_first_id(&r, w->count);
    if (!finish(&r, w))
        return;
    if (last) {
        take_first_id(b, w, s);
    } else {
        const struct ocr_event e =
            cuda_event(b, w->ticket, s, OCR_EVENT_PREFILLED);
        cuda_emit(b, &e);
    }
}

/* ---- the thread --------------------------------------------------------- */

void *cuda_pages_run(void *backend)
{
    struct ocr_backend *b = backend;

    cudaSetDevice(b->device);
    pthread_mutex_lock(&b->lock);
    while (!b->stop) {
        const struct cuda_page_work *w = &b->page_work[b->page_first];

        if (!b->page_count || b->lost) {
            pthread_cond_wait(&b->wanted, &b->lock);
            continue;
        }
        pthread_mutex_unlock(&b->lock);
        if (w->encode)
            run_encode(b, w);
        else
            run_prefill(b, w);
        pthread_mutex_lock(&b->lock);
        b->slot[w->slot].pending--;
        b->event_promised -= CUDA_PAGE_EVENTS;
        b->page_first = (b->page_first + 1) % b->page_size;
        b->page_count--;
        pthread_cond_broadcast(&b->wanted); /* a decode may wait for it */
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}
