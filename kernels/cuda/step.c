#include "kernels/cuda/cuda_i.h"

#include <string.h>

/* A submit that is put on the stream. */
struct launch {
    struct ocr_backend *b;
    const struct cuda_step_work *w;
    struct cuda_flight *flight;
    uint32_t *stage; /* free part of the flight's */
    int code;
    unsigned count; /* slots that take part */
    struct cuda_page_slot *slots[CUDA_MAX_TILES * CUDA_TILE_ROWS];
    bool alive[CUDA_MAX_TILES * CUDA_TILE_ROWS]; /* with taps: still running */
};

/* A step crosses from one block to the next at most every 16 tokens. */
enum {
    ENTRIES = OCR_EVENT_IDS / OCR_BLOCK_TOKENS + 1,
    ROWS = CUDA_MAX_TILES * CUDA_TILE_ROWS,
};

size_t cuda_flight_words(const struct ocr_backend *b)
{
    return ROWS + (size_t)b->memory.slots * ENTRIES;
}

/* ---- who takes part ----------------------------------------------------- */

static bool is_running(struct ocr_backend *b, const struct cuda_page_slot *s)
{
    bool running;

    pthread_mutex_lock(&b->lock);
    running = s->running;
    pthread_mutex_unlock(&b->lock);
    return running;
}

/* Blocks for the tokens of these steps, as far as the page may still go. */
static bool send_blocks(struct launch *l, struct cuda_page_slot *s)
{
    const uint32_t from = s->config.prompt_len + s->launched;
    const uint32_t end = s->config.prompt_len + s->limit - 1;
    const uint32_t to = from + l->w->steps < end ? from + l->w->steps : end;

    return from >= to || cuda_push_table(l->b, s, from, to, l->b->step_stream,
                                         &l->stage, &l->code);
}

static void gather(struct launch *l)
{
    const struct cuda_step_work *w = l->w;

    for (unsigned i = 0; i < w->count; i++) {
        struct cuda_page_slot *s = &l->b->slot[w->slots[i]];

        if (!is_running(l->b, s) || cuda_misbehave(l->b, w->ticket, s))
            continue;
        if (send_blocks(l, s))
            l->slots[l->count++] = s;
        else
            cuda_fail(l->b, w->ticket, s, "the page's block table is wrong");
    }
}

static unsigned tiles_of(unsigned rows)
{
    return (rows + CUDA_TILE_ROWS - 1) / CUDA_TILE_ROWS;
}

static void send_rows(struct launch *l)
{
    struct ocr_backend *b = l->b;
    uint32_t *rows = l->flight->stage;
    const size_t bytes = tiles_of(l->count) * CUDA_TILE_ROWS * sizeof *rows;

    memset(rows, 0xff, ROWS * sizeof *rows);
    for (unsigned i = 0; i < l->count; i++)
        rows[i] = cuda_slot_number(b, l->slots[i]);
    if (l->code || !memcmp(rows, b->rows, bytes))
        return;
    memcpy(b->rows, rows, bytes);
    l->code = (int)cudaMemcpyAsync(cuda_at(b, CUDA_STEP_ROWS), rows, bytes,
                                   cudaMemcpyHostToDevice, b->step_stream);
}

/* ---- steps with somebody looking ---------------------------------------- */

static void tap_layer(struct launch *l, unsigned step, uint32_t layer)
{
    const struct ocr_backend *b = l->b;
    const uint32_t n = b->text.hidden;

    for (unsigned i = 0; i < l->count; i++) {
        const struct cuda_page_slot *s = l->slots[i];

        if (l->alive[i])
            cuda_tap_layer(l->b, s, OCR_TAP_TEXT + layer,
                           b->step.x + (size_t)i * n,
                           s->config.prompt_len + s->launched + step, 1, n,
                           b->step_stream);
    }
}

/* Logits of the rows that chose an id in this step. */
static void tap_logits(struct launch *l, unsigned step)
{
    const struct ocr_backend *b = l->b;

    for (unsigned i = 0; i < l->count; i++) {
        const struct cuda_page_slot *s = l->slots[i];
        const uint32_t number = s->launched + step + 1; /* of the id */
        const struct cuda_out *out =
            &b->out[cuda_slot_number(b, s) * CUDA_RING + number % CUDA_RING];

        if (!l->alive[i])
            continue;
        l->alive[i] = out->status == CUDA_RUNNING;
        if (b->taps.logits && out->status != CUDA_CANCELLED)
            cuda_tap_logits(l->b, s, s->config.prompt_len + number,
                            b->step.logits + (size_t)i * b->text.vocab,
                            b->step_stream);
    }
}

static void tapped_step(struct launch *l, unsigned step)
{
    struct ocr_backend *b = l->b;
    const unsigned tiles = tiles_of(l->count);

    l->code = (int)cuda_decode_begin(b->step_stream, &b->step, tiles);
    for (uint32_t i = 0; i < b->text.layers && !l->code; i++) {
        l->code = (int)cuda_decode_layer(b->step_stream, &b->step, tiles, i);
        if (b->taps.layer)
            tap_layer(l, step, i);
    }
    if (!l->code)
        l->code = (int)cuda_decode_end(b->step_stream, &b->step, tiles);
    if (!l->code)
        l->code = (int)cudaStreamSynchronize(b->step_stream);
    if (!l->code)
        tap_logits(l, step);
}

/* ---- the stream --------------------------------------------------------- */

static void put_step(struct launch *l, unsigned step)
{
    struct ocr_backend *b = l->b;
    const unsigned tiles = tiles_of(l->count);

    if (b->taps.logits || b->taps.layer)
        tapped_step(l, step);
    else if (b->taps.direct)
        l->code = (int)cuda_decode_step(b->step_stream, &b->step, tiles);
    else
        l->code = (int)cudaGraphLaunch(b->graph[tiles], b->step_stream);
}

static void launch(struct launch *l)
{
    l->stage = l->flight->stage + ROWS;
    gather(l);
    memset(l->alive, 1, sizeof l->alive);
    send_rows(l);
    for (unsigned i = 0; l->count && i < l->w->steps && !l->code; i++)
        put_step(l, i);
    for (unsigned i = 0; i < l->count; i++)
        l->slots[i]->launched += l->w->steps;
    if (!l->code)
        l->code = (int)cudaEventRecord(l->flight->done, l->b->step_stream);
}

static struct cuda_step_work *work_at(const struct cuda_step_queue *q,
                                      unsigned i)
{
    return &q->work[(q->first + i) % q->size];
}

/* The next work can be put on the stream: what was submitted before for its
 * slots is through. With taps, so is every step before. */
static bool is_ready(const struct ocr_backend *b)
{
    const struct cuda_step_queue *q = &b->queue;
    const bool tapped = b->taps.logits || b->taps.layer;
    const struct cuda_step_work *w = work_at(q, q->launched);

    if (b->lost || q->launched == q->count ||
        q->launched >= (tapped ? 1 : CUDA_FLIGHTS))
        return false;
    for (unsigned i = 0; i < w->count; i++)
        if (b->slot[w->slots[i]].pending)
            return false;
    return true;
}

void *cuda_steps_run(void *backend)
{
    struct ocr_backend *b = backend;
    unsigned flight = 0;

    cudaSetDevice(b->device);
    pthread_mutex_lock(&b->lock);
    while (!b->stop) {
        struct launch l = {.b = b};

        if (!is_ready(b)) {
            pthread_cond_wait(&b->wanted, &b->lock);
            continue;
        }
        l.w = work_at(&b->queue, b->queue.launched);
        l.flight = &b->flight[flight];
        pthread_mutex_unlock(&b->lock);
        launch(&l);
        if (l.code)
            cuda_lose(b, l.w->ticket, l.code, NULL);
        flight = (flight + 1) % CUDA_FLIGHTS;
        pthread_mutex_lock(&b->lock);
        b->queue.launched++;
        pthread_cond_signal(&b->launched);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* ---- what they became --------------------------------------------------- */

/* One entry of the slot's ring into the event; what the page is now. */
static enum cuda_status take_id(struct ocr_backend *b, struct cuda_page_slot *s,
                                struct ocr_event *e)
{
    struct cuda_out *out =
        &b->out[cuda_slot_number(b, s) * CUDA_RING + s->read % CUDA_RING];
    const enum cuda_status status = (enum cuda_status)out->status;

    if (status == CUDA_RUNNING || status == CUDA_LAST) {
        e->ids[e->count] = out->id;
        e->hashes[e->count++] = out->hash;
    }
    out->status = CUDA_ENDED; /* nothing is read twice */
    s->read++;
    return status;
}

static void end_slot(struct ocr_backend *b, const struct cuda_step_work *w,
                     struct cuda_page_slot *s, enum cuda_status status,
                     struct ocr_event *e)
{
    if (status == CUDA_BAD) {
        cuda_fail(b, w->ticket, s, "the logits of the page are not finite");
    } else if (status == CUDA_CANCELLED) {
        cuda_fail(b, w->ticket, s, "cancelled");
    } else if (status == CUDA_ENDED) {
        cuda_fail(b, w->ticket, s, "a step of the page is missing");
    } else {
        pthread_mutex_lock(&b->lock);
        s->running = false;
        pthread_mutex_unlock(&b->lock);
        e->type = OCR_EVENT_DONE;
        e->stopped = status == CUDA_STOPPED;
        cuda_emit(b, e);
    }
}

static void finish_slot(struct ocr_backend *b, const struct cuda_step_work *w,
                        struct cuda_page_slot *s)
{
    struct ocr_event e = cuda_event(b, w->ticket, s, OCR_EVENT_TOKENS);

    for (unsigned i = 0; i < w->steps; i++) {
        const enum cuda_status status = take_id(b, s, &e);

        if (status != CUDA_RUNNING) {
            end_slot(b, w, s, status, &e);
            return;
        }
    }
    cuda_emit(b, &e);
}

static void finish(struct ocr_backend *b, const struct cuda_step_work *w,
                   const struct cuda_flight *f)
{
    const struct ocr_event through =
        cuda_event(b, w->ticket, NULL, OCR_EVENT_STEP);
    const int code = (int)cudaEventSynchronize(f->done);

    if (code) {
        cuda_lose(b, w->ticket, code, NULL);
        return;
    }
    for (unsigned i = 0; i < w->count; i++)
        if (is_running(b, &b->slot[w->slots[i]]))
            finish_slot(b, w, &b->slot[w->slots[i]]);
    cuda_emit(b, &through);
}

void *cuda_finisher_run(void *backend)
{
    struct ocr_backend *b = backend;
    unsigned flight = 0;

    cudaSetDevice(b->device);
    pthread_mutex_lock(&b->lock);
    while (!b->stop) {
        const struct cuda_step_work *w = work_at(&b->queue, 0);

        if (!b->queue.launched || b->lost) {
            pthread_cond_wait(&b->launched, &b->lock);
            continue;
        }
        pthread_mutex_unlock(&b->lock);
        finish(b, w, &b->flight[flight]);
        flight = (flight + 1) % CUDA_FLIGHTS;
        pthread_mutex_lock(&b->lock);
        b->event_promised -= 2 * w->count + 1;
        b->queue.first = (b->queue.first + 1) % b->queue.size;
        b->queue.count--;
        b->queue.launched--;
        pthread_cond_broadcast(&b->wanted);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}
