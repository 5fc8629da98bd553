#include "kernels/cuda/cuda_i.h"
#include "kernels/gpu_trouble.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

unsigned cuda_slot_number(const struct ocr_backend *b,
                          const struct cuda_page_slot *s)
{
    return (unsigned)(s - b->slot);
}

/* ---- events. Room was promised when the work was taken ------------------ */

void cuda_emit(struct ocr_backend *b, const struct ocr_event *e)
{
    pthread_mutex_lock(&b->lock);
    b->event[(b->event_first + b->event_count++) % b->event_size] = *e;
    pthread_cond_signal(&b->happened);
    pthread_mutex_unlock(&b->lock);
}

struct ocr_event cuda_event(const struct ocr_backend *b, uint64_t ticket,
                            const struct cuda_page_slot *s,
                            enum ocr_event_type type)
{
    return (struct ocr_event){
        .type = type,
        .ticket = ticket,
        .page = s ? s->config.page : 0,
        .slot = s ? cuda_slot_number(b, s) : 0,
    };
}

void cuda_fail(struct ocr_backend *b, uint64_t ticket, struct cuda_page_slot *s,
               const char *format, ...)
{
    struct ocr_event e = cuda_event(b, ticket, s, OCR_EVENT_FAILED);
    va_list ap;

    va_start(ap, format);
    vsnprintf(e.sentence, sizeof e.sentence, format, ap);
    va_end(ap);
    pthread_mutex_lock(&b->lock);
    s->failed = true;
    s->running = false;
    pthread_mutex_unlock(&b->lock);
    cuda_emit(b, &e);
}

void cuda_lose(struct ocr_backend *b, uint64_t ticket, int code,
               const char *sentence)
{
    struct ocr_event e = cuda_event(b, ticket, NULL, OCR_EVENT_LOST);
    struct ocr_err err = OCR_ERR_INIT;
    bool before;

    if (!sentence)
        ocr_gpu_err(&err, code, NULL, cudaGetErrorString((cudaError_t)code));
    snprintf(e.sentence, sizeof e.sentence, "%.159s",
             sentence ? sentence : err.text);
    e.device_fault = ocr_gpu_is_fault(code);
    pthread_mutex_lock(&b->lock);
    before = b->lost;
    b->lost = true;
    pthread_mutex_unlock(&b->lock);
    if (!before)
        cuda_emit(b, &e);
}

bool cuda_stopping(struct ocr_backend *b)
{
    bool stop;

    pthread_mutex_lock(&b->lock);
    stop = b->stop;
    pthread_mutex_unlock(&b->lock);
    return stop;
}

bool cuda_misbehave(struct ocr_backend *b, uint64_t ticket,
                    struct cuda_page_slot *s)
{
    if (b->taps.fault == OCR_FAULT_NONE || s->config.page != b->taps.fault_page)
        return false;
    if (b->taps.fault == OCR_FAULT_HANG)
        while (!atomic_load(&s->cancelled) && !cuda_stopping(b))
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (b->taps.fault != OCR_FAULT_LOST)
        return false;
    cuda_lose(b, ticket, 0, "the device is gone");
    return true;
}

/* ---- what the threads share --------------------------------------------- */

bool cuda_push_table(struct ocr_backend *b, struct cuda_page_slot *s,
                     uint32_t from, uint32_t to, cudaStream_t stream,
                     uint32_t **stage, int *code)
{
    const uint32_t end = (to + OCR_BLOCK_TOKENS - 1) / OCR_BLOCK_TOKENS;
    uint32_t first = from / OCR_BLOCK_TOKENS;
    uint32_t *device = cuda_at(b, CUDA_BLOCK_TABLES);
    size_t bytes;

    for (uint32_t i = first; i < end; i++)
        if (s->table[i] >= b->plan.blocks)
            return false;
    while (first < end && s->pushed[first] == s->table[first])
        first++;
    if (first == end || *code)
        return true;
    bytes = (end - first) * sizeof **stage;
    memcpy(*stage, s->table + first, bytes);
    memcpy(s->pushed + first, s->table + first, bytes);
    device += (size_t)b->memory.slot_blocks * cuda_slot_number(b, s) + first;
    *code = (int)cudaMemcpyAsync(device, *stage, bytes, cudaMemcpyHostToDevice,
                                 stream);
    *stage += end - first;
    return true;
}

float *cuda_copy_back(const float *x, size_t count, cudaStream_t stream)
{
    float *copy = malloc(count * sizeof *copy);

    if (copy && (cudaMemcpyAsync(copy, x, count * sizeof *copy,
                                 cudaMemcpyDeviceToHost, stream) ||
                 cudaStreamSynchronize(stream))) {
        free(copy);
        copy = NULL;
    }
    return copy;
}

void cuda_tap_logits(struct ocr_backend *b, const struct cuda_page_slot *s,
                     uint32_t position, const float *logits,
                     cudaStream_t stream)
{
    float *copy = cuda_copy_back(logits, b->text.vocab, stream);

    if (!copy)
        return;
    pthread_mutex_lock(&b->tap_lock);
    b->taps.logits(b->taps.arg, s->config.page, position, copy, b->text.vocab);
    pthread_mutex_unlock(&b->tap_lock);
    free(copy);
}

void cuda_tap_layer(struct ocr_backend *b, const struct cuda_page_slot *s,
                    unsigned layer, const float *x, uint32_t first,
                    uint32_t rows, uint32_t hidden, cudaStream_t stream)
{
    float *copy = cuda_copy_back(x, (size_t)rows * hidden, stream);

    if (!copy)
        return;
    pthread_mutex_lock(&b->tap_lock);
    b->taps.layer(b->taps.arg, s->config.page, layer, copy, first, rows,
                  hidden);
    pthread_mutex_unlock(&b->tap_lock);
    free(copy);
}

/* ---- taking work -------------------------------------------------------- */

/* With the lock held: is there room for so many more events? */
static int promise(struct ocr_backend *b, bool full, unsigned events,
                   struct ocr_err *err)
{
    if (b->lost)
        return ocr_err_set(err, -EIO, "cuda: the device is gone");
    if (full || b->event_count + b->event_promised + events > b->event_size)
        return ocr_err_set(err, -EAGAIN, "cuda: too much is under way");
    b->event_promised += events;
    return 0;
}

static int enqueue_page(struct ocr_backend *b, const struct cuda_page_work *w,
                        struct ocr_err *err)
{
    int rc;

    pthread_mutex_lock(&b->lock);
    rc = promise(b, b->page_count == b->page_size, CUDA_PAGE_EVENTS, err);
    if (!rc) {
        b->page_work[(b->page_first + b->page_count++) % b->page_size] = *w;
        b->slot[w->slot].pending++;
        pthread_cond_broadcast(&b->wanted);
    }
    pthread_mutex_unlock(&b->lock);
    return rc;
}

static int enqueue_steps(struct ocr_backend *b, uint64_t ticket,
                         const unsigned *slots, unsigned count, unsigned steps,
                         struct ocr_err *err)
{
    struct cuda_step_queue *q = &b->queue;
    int rc;

    pthread_mutex_lock(&b->lock);
    rc = promise(b, q->count == q->size, 2 * count + 1, err);
    if (!rc) {
        struct cuda_step_work *w = &q->work[(q->first + q->count++) % q->size];

        w->ticket = ticket;
        w->steps = steps;
        w->count = count;
        memcpy(w->slots, slots, count * sizeof *slots);
        pthread_cond_broadcast(&b->wanted);
    }
    pthread_mutex_unlock(&b->lock);
    return rc;
}

/* ---- the table of functions --------------------------------------------- */

static struct cuda_page_slot *slot_of_page(struct ocr_backend *b, uint64_t page)
{
    for (unsigned i = 0; i < b->plan.slots; i++)
        if (b->slot[i].open && b->slot[i].config.page == page)
            return &b->slot[i];
    return NULL;
}

static int cuda_set_taps(struct ocr_backend *b, const struct ocr_taps *taps,
                         struct ocr_err *err)
{
    const bool hashes = b->step.hashes;

    pthread_mutex_lock(&b->lock);
    if (b->page_count || b->queue.count) {
        pthread_mutex_unlock(&b->lock);
        return ocr_err_set(err, -EBUSY, "cuda: taps come before work");
    }
    b->taps = *taps;
    pthread_mutex_unlock(&b->lock);
    b->step.hashes = b->first.hashes = taps->hashes;
    return hashes == taps->hashes ? 0 : cuda_capture(b, err);
}

/* Ids the page may have, by whatever bound. Choosing the id number n needs
 * tokens 0 .. prompt_len + n - 2 in the cache. */
static uint32_t limit_of(const struct ocr_backend *b,
                         const struct ocr_slot_config *c)
{
    const uint32_t room = b->plan.slot_blocks * OCR_BLOCK_TOKENS;
    const uint32_t positions =
        room < b->text.max_positions ? room : b->text.max_positions;
    uint32_t limit = positions - c->prompt_len + 1;

    if (c->max_tokens < limit)
        limit = c->max_tokens;
    if (c->forced && c->forced_len < limit)
        limit = c->forced_len;
    if (c->forced_length && c->forced_length < limit)
        limit = c->forced_length;
    return limit;
}

static int check_slot(const struct ocr_backend *b,
                      const struct ocr_slot_config *c, uint32_t *image_tokens,
                      struct ocr_err *err)
{
    const uint64_t tokens = (uint64_t)c->prompt_len + c->max_tokens;
    const uint32_t room = b->plan.slot_blocks * OCR_BLOCK_TOKENS;

    if (!c->prompt_len || !c->max_tokens || c->stop_count > OCR_STOP_IDS)
        return ocr_err_set(err, -EINVAL, "cuda: a page without prompt or room");
    if (c->prompt_len > b->config.prompt_tokens || tokens > room ||
        tokens > b->text.max_positions)
        return ocr_err_set(err, -E2BIG,
                           "cuda: %" PRIu32 " tokens and %" PRIu32
                           " generated are more than a slot holds, %" PRIu32,
                           c->prompt_len, c->max_tokens, room);
    for (uint32_t i = 0; i < c->prompt_len; i++) {
        if (c->prompt[i] >= b->text.vocab)
            return ocr_err_set(err, -EINVAL, "cuda: %" PRIu32 " is no id",
                               c->prompt[i]);
        *image_tokens += c->prompt[i] == b->image_token;
    }
    for (uint32_t i = 0; c->forced && i < c->forced_len; i++)
        if (c->forced[i] >= b->text.vocab)
            return ocr_err_set(err, -EINVAL, "cuda: %" PRIu32 " is no id",
                               c->forced[i]);
    if (c->forced && !c->forced_len)
        return ocr_err_set(err, -EINVAL, "cuda: no ids to force");
    return 0;
}

static int cuda_slot_open(struct ocr_backend *b, unsigned slot,
                          const struct ocr_slot_config *config,
                          struct ocr_err *err)
{
    struct cuda_page_slot *s = &b->slot[slot];
    uint32_t image_tokens = 0;
    int rc;

    if (slot >= b->plan.slots)
        return ocr_err_set(err, -EINVAL, "cuda: there is no slot %u", slot);
    if (s->open || slot_of_page(b, config->page))
        return ocr_err_set(err, -EBUSY, "cuda: slot %u or its page is in use",
                           slot);
    rc = check_slot(b, config, &image_tokens, err);
    if (rc)
        return rc;
    s->config = *config;
    s->image_tokens = image_tokens;
    s->limit = limit_of(b, config);
    s->submitted = s->image_used = s->launched = s->read = 0;
    s->encoded = s->running = s->failed = false;
    atomic_store(&s->cancelled, false);
    memset(s->pushed, 0xff, b->plan.slot_blocks * sizeof *s->pushed);
    memset(b->out + (size_t)slot * CUDA_RING, 0, CUDA_RING * sizeof *b->out);
    __atomic_store_n(&b->cancel[slot], 0, __ATOMIC_RELEASE);
    s->open = true;
    return 0;
}

static void cuda_slot_close(struct ocr_backend *b, unsigned slot)
{
    if (slot < b->plan.slots)
        b->slot[slot].open = false;
}

static uint32_t *cuda_block_table(struct ocr_backend *b, unsigned slot)
{
    return slot < b->plan.slots ? b->slot[slot].table : NULL;
}

static int cuda_submit_encode(struct ocr_backend *b, uint64_t ticket,
                              uint64_t page, const uint8_t *rgb, uint32_t width,
                              uint32_t height, struct ocr_err *err)
{
    const struct cuda_page_slot *s = slot_of_page(b, page);
    const uint32_t columns = width / CUDA_PATCH, rows = height / CUDA_PATCH;

    if (!s)
        return ocr_err_set(err, -EINVAL, "cuda: the page has no slot");
    if (!width || !height || width % CUDA_PATCH || height % CUDA_PATCH ||
        columns > b->vision.grid || rows > b->vision.grid ||
        columns * rows > b->plan.max_patches)
        return ocr_err_set(err, -EINVAL,
                           "cuda: %" PRIu32 " x %" PRIu32
                           " pixels are no page for this model",
                           width, height);
    if (columns / b->merge * (rows / b->merge) != s->image_tokens)
        return ocr_err_set(err, -EINVAL,
                           "cuda: the prompt has %" PRIu32
                           " image tokens, the page gives %" PRIu32,
                           s->image_tokens,
                           columns / b->merge * (rows / b->merge));
    return enqueue_page(b,
                        &(struct cuda_page_work){.encode = true,
                                                 .ticket = ticket,
                                                 .page = page,
                                                 .slot = cuda_slot_number(b, s),
                                                 .rgb = rgb,
                                                 .width = width,
                                                 .height = height},
                        err);
}

static int cuda_submit_prefill(struct ocr_backend *b, uint64_t ticket,
                               unsigned slot, uint32_t from, uint32_t count,
                               struct ocr_err *err)
{
    struct cuda_page_slot *s = &b->slot[slot];
    int rc;

    if (slot >= b->plan.slots || !s->open)
        return ocr_err_set(err, -EINVAL, "cuda: slot %u is not open", slot);
    if (!count || from != s->submitted || count > s->config.prompt_len - from)
        return ocr_err_set(err, -EINVAL,
                           "cuda: the prompt goes on at token %" PRIu32,
                           s->submitted);
    rc = enqueue_page(b,
                      &(struct cuda_page_work){.ticket = ticket,
                                               .page = s->config.page,
                                               .slot = slot,
                                               .from = from,
                                               .count = count},
                      err);
    if (!rc)
        s->submitted += count;
    return rc;
}

static int cuda_submit_decode(struct ocr_backend *b, uint64_t ticket,
                              const unsigned *slots, unsigned count,
                              unsigned steps, struct ocr_err *err)
{
    if (!count || count > b->plan.slots || !steps || steps > OCR_EVENT_IDS)
        return ocr_err_set(err, -EINVAL, "cuda: %u steps of %u slots", steps,
                           count);
    for (unsigned i = 0; i < count; i++)
        if (slots[i] >= b->plan.slots || !b->slot[slots[i]].open ||
            b->slot[slots[i]].submitted < b->slot[slots[i]].config.prompt_len)
            return ocr_err_set(err, -EINVAL, "cuda: slot %u has no prompt",
                               slots[i]);
    return enqueue_steps(b, ticket, slots, count, steps, err);
}

static void cuda_cancel(struct ocr_backend *b, uint64_t page)
{
    struct cuda_page_slot *s = slot_of_page(b, page);

    if (!s)
        return;
    atomic_store(&s->cancelled, true);
    __atomic_store_n(&b->cancel[cuda_slot_number(b, s)], 1, __ATOMIC_RELEASE);
}

static struct timespec deadline(int timeout_ms)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += timeout_ms / 1000;
    t.tv_nsec += timeout_ms % 1000 * 1000000L;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

static int cuda_poll(struct ocr_backend *b, struct ocr_event *events, int room,
                     int timeout_ms)
{
    const struct timespec until = deadline(timeout_ms < 0 ? 0 : timeout_ms);
    int n = 0;

    pthread_mutex_lock(&b->lock);
    while (!b->event_count && !b->woken) {
        if (timeout_ms < 0)
            pthread_cond_wait(&b->happened, &b->lock);
        else if (pthread_cond_timedwait(&b->happened, &b->lock, &until))
            break;
    }
    b->woken = false;
    for (; n < room && b->event_count; b->event_count--) {
        events[n++] = b->event[b->event_first];
        b->event_first = (b->event_first + 1) % b->event_size;
    }
    pthread_mutex_unlock(&b->lock);
    return n;
}

static void cuda_wake(struct ocr_backend *b)
{
    pthread_mutex_lock(&b->lock);
    b->woken = true;
    pthread_cond_signal(&b->happened);
    pthread_mutex_unlock(&b->lock);
}

/* ---- open and close ----------------------------------------------------- */

static void end_threads(struct ocr_backend *b)
{
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    pthread_cond_broadcast(&b->wanted);
    pthread_cond_broadcast(&b->launched);
    pthread_mutex_unlock(&b->lock);
    for (unsigned i = 0; i < b->threads; i++)
        pthread_join(b->thread[i], NULL);
}

static void cuda_close(struct ocr_backend *b)
{
    if (!b)
        return;
    cudaSetDevice(b->device);
    end_threads(b);
    cuda_release(b);
    for (unsigned i = 0; b->queue.work && i < b->queue.size; i++)
        free(b->queue.work[i].slots);
    free(b->queue.work);
    free(b->page_work);
    free(b->event);
    free(b->slot);
    free(b->tables);
    pthread_cond_destroy(&b->wanted);
    pthread_cond_destroy(&b->launched);
    pthread_cond_destroy(&b->happened);
    pthread_mutex_destroy(&b->lock);
    pthread_mutex_destroy(&b->tap_lock);
    free(b);
}

static int make_slots(struct ocr_backend *b, struct ocr_err *err)
{
    const size_t blocks = b->plan.slot_blocks;

    b->slot = calloc(b->plan.slots, sizeof *b->slot);
    b->tables = calloc(2 * blocks * b->plan.slots, sizeof *b->tables);
    if (!b->slot || !b->tables)
        return ocr_err_set(err, -ENOMEM, "cuda: no memory for slots");
    for (unsigned i = 0; i < b->plan.slots; i++) {
        b->slot[i].table = b->tables + 2 * blocks * i;
        b->slot[i].pushed = b->slot[i].table + blocks;
    }
    return 0;
}

static int make_queues(struct ocr_backend *b, struct ocr_err *err)
{
    const unsigned slots = b->plan.slots;
    bool complete;

    b->page_size = b->queue.size = 4 * slots + 8;
    b->event_size = 8 * (2 * slots + 1);
    b->page_work = calloc(b->page_size, sizeof *b->page_work);
    b->queue.work = calloc(b->queue.size, sizeof *b->queue.work);
    b->event = calloc(b->event_size, sizeof *b->event);
    complete = b->page_work && b->queue.work && b->event;
    for (unsigned i = 0; complete && i < b->queue.size; i++) {
        b->queue.work[i].slots = calloc(slots, sizeof(unsigned));
        complete = b->queue.work[i].slots != NULL;
    }
    return complete ? 0
                    : ocr_err_set(err, -ENOMEM, "cuda: no memory for queues");
}

static int start_threads(struct ocr_backend *b, struct ocr_err *err)
{
    static void *(*const runs[CUDA_THREADS])(void *) = {
        cuda_pages_run, cuda_steps_run, cuda_finisher_run};

    for (; b->threads < CUDA_THREADS; b->threads++)
        if (pthread_create(&b->thread[b->threads], NULL, runs[b->threads], b))
            return ocr_err_set(err, -EAGAIN, "cuda: cannot start a thread");
    return 0;
}

static void init_locks(struct ocr_backend *b)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&b->lock, NULL);
    pthread_mutex_init(&b->tap_lock, NULL);
    pthread_cond_init(&b->wanted, NULL);
    pthread_cond_init(&b->launched, NULL);
    pthread_cond_init(&b->happened, &attr);
    pthread_condattr_destroy(&attr);
}

static int cuda_backend_open(struct ocr_backend **out,
                             const struct ocr_backend_config *config,
                             const struct ocr_model *model,
                             struct ocr_backend_plan *plan, struct ocr_err *err)
{
    struct ocr_backend *b = calloc(1, sizeof *b);
    int rc;

    if (!b)
        return ocr_err_set(err, -ENOMEM, "cuda: no memory");
    b->config = *config;
    init_locks(b);
    rc = cuda_open(b, model, err);
    b->config.prompt_tokens = b->memory.prompt_tokens;
    rc = rc ? rc : make_slots(b, err);
    rc = rc ? rc : make_queues(b, err);
    rc = rc ? rc : start_threads(b, err);
    if (rc) {
        cuda_close(b);
        return rc;
    }
    *plan = b->plan;
    *out = b;
    return 0;
}

static const struct ocr_backend_ops ops = {
    .abi = OCR_BACKEND_ABI,
    .name = "cuda",
    .probe = cuda_probe,
    .open = cuda_backend_open,
    .plan = cuda_plan,
    .set_taps = cuda_set_taps,
    .slot_open = cuda_slot_open,
    .slot_close = cuda_slot_close,
    .block_table = cuda_block_table,
    .submit_encode = cuda_submit_encode,
    .submit_prefill = cuda_submit_prefill,
    .submit_decode = cuda_submit_decode,
    .cancel = cuda_cancel,
    .poll = cuda_poll,
    .wake = cuda_wake,
    .close = cuda_close,
};

/* The plugin's only symbol: OCR_BACKEND_PLUGIN_SYMBOL. */
const struct ocr_backend_ops *ocr_backend_plugin(void);

__attribute__((visibility("default"))) const struct ocr_backend_ops *
ocr_backend_plugin(void)
{
    return &ops;
}
